"""State must get out of a program that holds every core, and of exchanges of millions of blocks."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.pair import (
    PATIENCE_SECONDS,
    Driver,
    Running,
    chosen,
    driver,
    finished,
    holder,
    wait_until,
    write,
)

EXTRACT_MS = 30_000
HEAP_GROWTH_BYTES = 50_000_000
SIDE = 2_000
"""Mappers, and partitions."""

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def one_driver() -> Iterator[Driver]:
    with driver(cores=2, **{"spark.sql.autoBroadcastJoinThreshold": "-1"}) as made:
        yield made


@pytest.fixture
def source(one_driver: Driver) -> Driver:
    one_driver.clean()
    return one_driver


def test_a_broadcast_that_ends_after_its_query_was_parked_is_state(source: Driver, tmp_path: Path) -> None:
    slow = source.spark.range(0, 100, 1, 1).select(sf.udf(holder(tmp_path), "long")("id").alias("k"))
    sums = source.spark.range(0, 1000, 1, 2).groupBy((sf.col("id") % 100).alias("k")).count()
    source.stop_after(1)
    query = Running(sums.join(sf.broadcast(slow), "k").agg(sf.sum("k"), sf.sum("count")).collect)
    try:
        wait_until(lambda: source.jvm.await_notice(50) is not None)
        wait_until((tmp_path / "held").exists)
        (tmp_path / "go").touch()
        wait_until(lambda: len(finished("shuffle", "broadcast")(source.graph())) == 2)
        graph = source.graph()
        capture = source.extracted(graph, tmp_path / "blocks", finished("broadcast")(graph))
        assert [each.rows for each in capture.fragments] == [100]
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    assert [tuple(row) for row in query.rows()] == [(sum(range(100)), 1000)]


def test_a_stage_without_rows_that_settles_the_whole_answer_is_a_place_to_stop(
    source: Driver, tmp_path: Path
) -> None:
    """AQE puts the stages aside that it has no more use for; they have finished all the same."""
    numbers = write(tmp_path / "t", id=range(100), k=[n % 7 for n in range(100)])
    table = source.spark.read.parquet(numbers)
    nobody = table.where("id % 7 = 6 AND k = 5").select("k")
    capture = source.moved(table.join(sf.broadcast(nobody), "k").groupBy("k").count(), tmp_path / "blocks")
    assert capture.rows == []
    assert [each.kind for each in capture.graph.pipelines.values() if each.finished] == ["broadcast"]


def test_what_is_late_says_how_much_time_there_was(source: Driver, tmp_path: Path) -> None:
    numbers = source.spark.range(0, 1000, 1, 2)
    source.stop_after(1)
    query = Running(numbers.groupBy((sf.col("id") % 100).alias("k")).count().orderBy("k").collect)
    try:
        wait_until(lambda: source.jvm.await_notice(50) is not None)
        graph = source.graph()
        capture = source.extracted(graph, tmp_path / "blocks", chosen(graph), timeout_ms=1)
        assert list(capture.refused.values()) == ["could not be written within 0.001 s"]
    finally:
        source.jvm.open_gate()
    assert len(query.rows()) == 100


def test_an_attempt_never_writes_over_the_files_of_another(source: Driver, tmp_path: Path) -> None:
    numbers = source.spark.range(0, 1000, 1, 2).groupBy((sf.col("id") % 100).alias("k")).count()
    source.stop_after(1)
    query = Running(numbers.orderBy("k").collect)
    try:
        wait_until(lambda: source.jvm.await_notice(50) is not None)
        graph = source.graph()
        captures = [source.extracted(graph, tmp_path / "blocks", chosen(graph)) for _ in range(2)]
    finally:
        source.jvm.open_gate()
    assert len(query.rows()) == 100
    assert not any(each.refused for each in captures)
    assert len({file.name for file in captures[0].files()}) == 2 * len(captures[0].fragments)


def test_tasks_that_hold_every_core_hold_up_no_move_and_run_again_if_it_fails(
    source: Driver, tmp_path: Path
) -> None:
    groups = source.spark.range(1000).groupBy((sf.col("id") % 100).alias("k")).count()
    slow = groups.select(sf.udf(holder(tmp_path), "long")("k").alias("k")).repartition(4, "k")
    query = Running(slow.agg(sf.sum("k"), sf.count("k")).collect)
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        graph = source.graph()
        capture = source.extracted(graph, tmp_path / "blocks", chosen(graph), EXTRACT_MS)
        assert len(capture.fragments) == 1
        assert not capture.refused
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    assert [tuple(row) for row in query.rows()] == [(sum(range(100)), 100)]


def test_what_was_done_since_the_first_move_is_state_of_the_second(source: Driver, tmp_path: Path) -> None:
    """Sums of floating-point numbers are never twice the same to the last digit; stored, they are."""

    def sorted_sums() -> DataFrame:
        numbers = source.spark.range(0, 10_000, 1, 4).selectExpr("id % 100 AS k", "id / 7 AS x")
        sums = numbers.groupBy("k").agg(sf.sum("x").alias("x"))
        return sums.repartition(3, "x").groupBy(sf.floor("x").alias("f")).agg(sf.count("k")).orderBy("f")

    first = source.moved(sorted_sums(), tmp_path / "first", stages=1)
    source.load(first)
    source.stop_after(1)
    query = Running(sorted_sums().collect)
    assert source.parked(query)
    graph = source.graph()
    second = source.extracted(graph, tmp_path / "second", chosen(graph))
    source.jvm.open_gate()
    assert query.rows() == first.rows
    assert second.refused == {}
    assert [each.kind for each in second.fragments] == ["shuffle"]


class Heap:
    """The most that the JVM holds onto while something goes on, beyond what it held before."""

    def __init__(self, spark: SparkSession) -> None:
        lang = spark._jvm.java.lang
        self._gc = lang.System.gc
        pools = lang.management.ManagementFactory.getMemoryPoolMXBeans()
        self._pools = [pool for pool in pools if str(pool.getType().name()) == "HEAP"]

    def held_bytes(self) -> int:
        """What a collection has left: the JVM goes on making garbage before anybody can ask."""
        self._gc()
        return sum(int(pool.getCollectionUsage().getUsed()) for pool in self._pools)

    def growth_of(self, work: Callable[[], Result]) -> tuple[int, Result]:
        before, most, over = self.held_bytes(), 0, threading.Event()

        def look() -> None:
            nonlocal most
            while not over.wait(0.5):
                most = max(most, self.held_bytes())

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            result = work()
        finally:
            over.set()
            looking.join()
        return max(most, self.held_bytes()) - before, result


def test_four_million_blocks_take_little_of_the_heap_at_either_end(source: Driver, tmp_path: Path) -> None:
    """One JVM is driver and executors here: what it holds is more than a driver's part of it."""

    def sums() -> DataFrame:
        numbers = source.spark.range(0, 2 * SIDE * SIDE, 1, SIDE).repartition(SIDE, "id")
        return numbers.agg(sf.sum("id"), sf.count("id"))

    heap = Heap(source.spark)
    source.stop_after(1)
    query = Running(sums().collect)
    wait_until(lambda: source.jvm.await_notice(1000) is not None, 5 * PATIENCE_SECONDS)
    graph = source.graph()
    growth_bytes, capture = heap.growth_of(
        lambda: source.extracted(graph, tmp_path, chosen(graph), 10 * EXTRACT_MS)
    )
    assert capture.fragments
    assert growth_bytes < HEAP_GROWTH_BYTES
    source.jvm.open_gate()
    while not query.ended:  # nobody needs its rows
        source.spark.sparkContext.cancelAllJobs()
        time.sleep(0.1)

    source.load(capture)
    growth_bytes, rows = heap.growth_of(lambda: Running(sums().collect).rows(5 * PATIENCE_SECONDS))
    assert [tuple(row) for row in rows] == [(sum(range(2 * SIDE * SIDE)), 2 * SIDE * SIDE)]
    assert len(source.report().used) == 1
    assert growth_bytes < HEAP_GROWTH_BYTES
