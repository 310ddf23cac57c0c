"""A cached table is work that is done: where it costs more to build again than to move, its rows move."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.planrewrite.stagegraph import StageGraph
from tests.spark.pair import Capture, Driver, Running, chosen, driver, finished, write
from tests.spark.test_lost_blocks import DAMAGES

ROWS = 200

Build = Callable[[], DataFrame]


@pytest.fixture(scope="module")
def one_driver() -> Iterator[Driver]:
    with driver(spark__sql__autoBroadcastJoinThreshold="-1") as made:
        yield made


@pytest.fixture
def here(one_driver: Driver) -> Iterator[Driver]:
    yield one_driver
    one_driver.clean()
    one_driver.spark.catalog.clearCache()


@pytest.fixture
def table(tmp_path: Path) -> str:
    values = [(17 * number) % ROWS for number in range(ROWS)]
    return write(tmp_path / "t", files=3, id=range(ROWS), k=[n % 7 for n in range(ROWS)], v=values)


class Counted:
    """A function that the executors call, and whose calls are counted, once for each row."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "calls"
        path = str(self.file)

        def noted(value: int) -> int:
            with open(path, "ab") as file:
                file.write(b".")
            return value + 1

        self.udf = sf.udf(noted, "long")

    def since_asked_last(self) -> int:
        calls = self.file.stat().st_size if self.file.exists() else 0
        self.file.unlink(missing_ok=True)
        return calls


def moved(here: Driver, build: Build, folder: Path, choose: str = "cache") -> Capture:
    """Stopped when the cached table is there, and another shuffle after it. The table is gone after that."""
    capture = here.moved(build(), folder, stages=2, choose=finished(choose))
    assert [each.kind for each in capture.fragments] == [choose]
    here.spark.catalog.clearCache()
    return capture


def test_a_cached_table_is_not_built_again(here: Driver, table: str, tmp_path: Path) -> None:
    counted = Counted(tmp_path)

    def sums() -> DataFrame:
        slow = here.spark.read.parquet(table).select("id", "k", counted.udf("v").alias("v")).cache()
        return slow.groupBy("k").agg(sf.sum("v"), sf.count("id")).orderBy("k")

    capture = moved(here, sums, tmp_path / "blocks")
    assert counted.since_asked_last() == ROWS
    assert here.resumed(sums(), capture) == capture.rows
    assert counted.since_asked_last() == 0
    assert len(here.report().used) == 1


def test_all_queries_of_the_next_driver_share_the_table(here: Driver, table: str, tmp_path: Path) -> None:
    def cached() -> DataFrame:
        return here.spark.read.parquet(table).groupBy("k").agg(sf.sum("v").alias("v")).cache()

    capture = moved(here, lambda: cached().repartition(3, "k"), tmp_path / "blocks", "cache")
    here.load(capture)
    sums = cached()
    first = Running(sums.agg(sf.sum("v")).collect).rows()
    for file in capture.files():
        file.unlink()
    assert Running(sums.agg(sf.sum("v")).collect).rows() == first == [(sum(range(ROWS)),)]
    assert here.report().fallbacks == {}


def test_a_cached_table_keeps_its_order(here: Driver, table: str, tmp_path: Path) -> None:
    def ordered() -> DataFrame:
        return here.spark.read.parquet(table).orderBy(sf.desc("v")).cache()

    capture = moved(here, lambda: ordered().repartition(2, "k"), tmp_path / "blocks")
    here.load(capture)
    again = ordered()
    assert [row.v for row in Running(again.collect).rows()] == list(reversed(range(ROWS)))
    assert [row.v for row in again.limit(3).collect()] == [ROWS - 1, ROWS - 2, ROWS - 3]
    assert len(here.report().used) == 1


OTHERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "order": lambda t: t.orderBy("v"),
    "order within partitions": lambda t: t.sortWithinPartitions(sf.desc("v")),
    "rows": lambda t: t.where("v > 0").orderBy(sf.desc("v")),
    "partitions": lambda t: t.repartition(2, "k").orderBy(sf.desc("v")),
    "columns": lambda t: t.select("id", "v", "k").orderBy(sf.desc("v")),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_table_of_another_kind_is_built(here: Driver, table: str, tmp_path: Path, other: str) -> None:
    def cached(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        return change(here.spark.read.parquet(table)).cache()

    capture = moved(
        here, lambda: cached(lambda t: t.orderBy(sf.desc("v"))).repartition(2, "k"), tmp_path / "blocks"
    )
    expected = OTHERS[other](here.spark.read.parquet(table)).collect()
    here.load(capture)
    assert Running(cached(OTHERS[other]).collect).rows() == expected
    assert not here.report().used


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cached_table_whose_rows_are_lost_is_built_again(
    here: Driver, table: str, tmp_path: Path, damage: str
) -> None:
    def sums() -> DataFrame:
        grouped = here.spark.read.parquet(table).groupBy("k").agg(sf.sum("v").alias("v"))
        return grouped.cache().groupBy("v").count().orderBy("v")

    capture = moved(here, sums, tmp_path / "blocks")
    DAMAGES[damage](max(capture.files(), key=lambda file: file.stat().st_size))
    here.said()
    assert here.resumed(sums(), capture) == capture.rows
    assert len(here.report().fallbacks) == 1
    assert "are lost" in here.said()


def test_a_table_that_is_being_built_again_does_not_hold_up_a_move(
    here: Driver, table: str, tmp_path: Path
) -> None:
    """Its lock is held by a query that is parked: whoever takes the picture must not ask for it."""

    def sums() -> DataFrame:
        grouped = here.spark.read.parquet(table).groupBy("k").agg(sf.sum("v").alias("v"))
        return grouped.cache().groupBy("v").count().orderBy("v")

    capture = moved(here, sums, tmp_path / "blocks")
    capture.files()[0].unlink()
    pictures: list[StageGraph] = []
    assert here.resumed(sums(), capture, lambda: pictures.append(here.graph())) == capture.rows
    states = {each.kind: each.state for each in pictures[0].pipelines.values()}
    assert states["cache"] == "running"


def test_a_cached_table_that_is_cheap_stays(here: Driver, table: str, tmp_path: Path) -> None:
    """Seven rows: the shuffle beneath them moves in their place."""

    def sums() -> DataFrame:
        return here.spark.range(7).cache().groupBy((sf.col("id") % 2).alias("k")).count().orderBy("k")

    capture = here.moved(sums(), tmp_path / "blocks", stages=2)
    assert {each.kind for each in capture.fragments} == {"shuffle"}


OTHER_SETTINGS = "a cached table that was filled under other settings than its own"


def test_a_table_that_a_session_with_other_settings_reads_is_built_again(
    here: Driver, table: str, tmp_path: Path
) -> None:
    """Rows that memory loses are made again under the settings of whoever reads them."""
    here.spark.read.parquet(table).select("k", "v").cache()
    other = here.spark.newSession()
    other.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    frame = other.read.parquet(table).select("k", "v").groupBy("k").agg(sf.sum("v")).orderBy("k")
    capture = here.moved(frame, tmp_path / "blocks", stages=2)
    assert capture.fragments == ()
    (cache,) = [each for each in capture.graph.pipelines.values() if each.kind == "cache"]
    assert cache.refusal == OTHER_SETTINGS


def test_a_table_that_was_filled_under_other_settings_than_it_was_declared_is_not_state(
    here: Driver, table: str, tmp_path: Path
) -> None:
    cached = here.spark.read.parquet(table).select("k", "v").cache()
    here.spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    cached.count()
    here.spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    above = here.prints(cached.groupBy("k").agg(sf.sum("v")))
    assert above == [f"refused: {OTHER_SETTINGS}"]


def test_what_spark_tells_itself_in_a_thread_does_not_count(here: Driver, table: str) -> None:
    """Once it has read a shuffle it says so to the jobs that follow."""
    here.spark.read.parquet(table).groupBy("k").count().collect()
    cached = here.spark.read.parquet(table).select("k", "v").cache()
    cached.count()
    (above,) = here.prints(cached.groupBy("k").agg(sf.sum("v")))
    assert not above.startswith("refused"), above


def test_a_table_that_was_filled_for_another_tenant_is_not_state(here: Driver, table: str) -> None:
    cached = here.spark.read.parquet(table).select("k", "v").cache()
    here.spark.sparkContext.setLocalProperty("tenant", "alpha")
    cached.count()
    here.spark.sparkContext.setLocalProperty("tenant", None)  # type: ignore[arg-type]
    above = here.prints(cached.groupBy("k").agg(sf.sum("v")))
    assert above == [f"refused: {OTHER_SETTINGS}"]


def group_of(value: int) -> str:
    return f"{TaskContext.get().getLocalProperty('spark.jobGroup.id')} {value}"  # type: ignore[union-attr]


@pytest.mark.parametrize(("python", "state"), [(True, False), (False, True)])
def test_a_table_that_was_filled_for_another_group_is_state_only_if_nothing_asks_for_the_group(
    here: Driver, table: str, python: bool, state: bool
) -> None:
    group = sf.udf(group_of, "string")("k") if python else sf.expr("string(k)")
    cached = here.spark.read.parquet(table).select(group.alias("k"), "v").cache()
    sc = here.spark.sparkContext
    sc.setJobGroup("godwit", "the first of two")  # whose own jobs are in a group, too
    cached.count()
    for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        sc.setLocalProperty(key, None)  # type: ignore[arg-type]
    (above,) = here.prints(cached.groupBy("k").agg(sf.sum("v")))
    assert above.startswith("refused") != state, above


@pytest.mark.parametrize(("number", "shared"), [("double", False), ("long", True)])
def test_what_was_made_of_sums_that_do_not_repeat_is_not_for_a_query_that_adds_them_anew(
    here: Driver, table: str, tmp_path: Path, number: str, shared: bool
) -> None:
    """It would meet other sums beside their stored maximum."""

    def sums() -> DataFrame:
        values = here.spark.read.parquet(table).withColumn("v", sf.col("v").cast(number))
        grouped = values.groupBy("k", (sf.col("id") % 5).alias("g")).agg(sf.sum("v").alias("s"))
        return grouped.repartition(3, "g")

    def topmost(graph: StageGraph) -> list[str]:
        return list(chosen(graph))[-1:]

    def largest() -> DataFrame:
        return sums().groupBy("k").agg(sf.max("s").alias("m"))

    def others() -> DataFrame:
        return sums().select("k", sf.col("s").alias("m")).union(largest())

    last = largest().repartition(2, "m")
    capture = here.moved(last, tmp_path / "blocks", stages=3, choose=topmost)
    (fragment,) = capture.fragments
    assert (not fragment.made_of) == shared
    expected = sorted(others().collect())
    here.load(capture)
    assert sorted(Running(others().collect).rows()) == expected
    assert bool(here.report().used) == shared
    assert sorted(Running(largest().repartition(2, "m").collect).rows()) == sorted(capture.rows)
    assert here.report().used
    assert here.report().fallbacks == {}


def test_a_subquery_gives_up_what_was_made_of_sums_that_its_query_adds_anew(
    here: Driver, table: str, tmp_path: Path
) -> None:
    """It is planned first, and does not know yet what the rest of its query will read."""
    here.spark.read.parquet(table).createOrReplaceTempView("numbers")
    sums = "(SELECT k, id % 5 AS g, sum(CAST(v AS DOUBLE)) AS s FROM numbers GROUP BY k, id % 5)"
    largest = f"SELECT max(m) AS m FROM (SELECT k, max(s) AS m FROM {sums} GROUP BY k)"
    both = here.spark.sql(f"SELECT k, g FROM {sums} WHERE s = ({largest})")

    def topmost(graph: StageGraph) -> list[str]:
        return list(chosen(graph))[-1:]

    capture = here.moved(here.spark.sql(largest), tmp_path / "blocks", stages=2, choose=topmost)
    assert [bool(fragment.made_of) for fragment in capture.fragments] == [True]
    here.load(capture)
    here.said()
    assert len(Running(both.collect).rows()) == 1
    assert "the query computes anew what it was made of" in here.said()


def drawn_twice_read(here: Driver, table: str) -> DataFrame:
    """Two sums over the same random numbers, which are drawn once."""
    draw = sf.udf(lambda number: random.randrange(1000), "long")
    numbers = here.spark.read.parquet(table).withColumn("r", draw("id")).repartition(4, "id")
    by_key = numbers.groupBy("k").agg(sf.sum("r").alias("s"))
    by_group = numbers.groupBy((sf.col("k") % 5).alias("g")).agg(sf.sum("r").alias("s"))
    return by_key.agg(sf.sum("s").alias("a")).crossJoin(by_group.agg(sf.sum("s").alias("b")))


def two_sums(graph: StageGraph) -> list[str]:
    return [each for each in chosen(graph) if graph.pipelines[each].depends_on]


def test_if_one_of_two_that_were_made_of_the_same_draw_is_gone_both_are_made_anew(
    here: Driver, table: str, tmp_path: Path
) -> None:
    capture = here.moved(drawn_twice_read(here, table), tmp_path / "blocks", stages=3, choose=two_sums)
    assert len(capture.fragments) == 2
    assert all(row.a == row.b for row in capture.rows), "the numbers are not drawn once"
    capture.files()[0].unlink()
    here.load(capture)
    (row,) = Running(drawn_twice_read(here, table).collect).rows()
    assert row.a == row.b
    assert len(here.report().fallbacks) == 1


def test_if_one_of_them_is_lost_while_they_are_read_the_query_fails_and_the_next_one_is_right(
    here: Driver, table: str, tmp_path: Path
) -> None:
    capture = here.moved(drawn_twice_read(here, table), tmp_path / "blocks", stages=3, choose=two_sums)
    DAMAGES["flipped in the first partition"](capture.files()[0])
    here.load(capture)
    with pytest.raises(Exception, match="made of the same values, which another run gives otherwise"):
        Running(drawn_twice_read(here, table).collect).rows()
    (row,) = Running(drawn_twice_read(here, table).collect).rows()
    assert row.a == row.b


def test_a_table_of_sums_that_do_not_repeat_travels_with_what_was_made_of_it(
    here: Driver, table: str, tmp_path: Path
) -> None:
    def sums() -> DataFrame:
        values = here.spark.read.parquet(table).withColumn("v", sf.col("v").cast("double"))
        return values.groupBy("k", (sf.col("id") % 5).alias("g")).agg(sf.sum("v").alias("s")).cache()

    largest = sums().groupBy("k").agg(sf.max("s").alias("m")).repartition(2, "m")
    capture = here.moved(largest, tmp_path / "blocks", stages=4)
    kinds = {each.kind: each for each in capture.fragments}
    assert set(kinds) == {"shuffle", "cache"}
    assert kinds["shuffle"].stands_on == (kinds["cache"].fingerprint,)


def test_a_random_sample_that_memory_has_lost_is_not_drawn_again_to_be_stored(
    here: Driver, table: str, tmp_path: Path
) -> None:
    """What was made of the first one may be stored beside it."""
    drawn = sf.udf(lambda number: random.random() < 0.5, "boolean")
    sample = here.spark.read.parquet(table).where(drawn("id")).cache()

    def lose_it(graph: StageGraph) -> list[str]:
        table = sample._jdf.queryExecution().withCachedData().cacheBuilder()
        table.cachedColumnBuffers().unpersist(True)
        return finished("cache")(graph)

    capture = here.moved(sample.groupBy("k").count(), tmp_path / "blocks", stages=2, choose=lose_it)
    assert list(capture.refused.values()) == ["a cached table that memory has lost a part of"]
    assert capture.fragments == ()


def test_all_questions_about_one_random_sample_are_about_the_same_rows(
    here: Driver, table: str, tmp_path: Path
) -> None:
    """Spark keeps a cached table for the whole program, so a program may rely on it. The next driver runs the
    first question again."""

    def sample() -> DataFrame:
        drawn = sf.udf(lambda number: random.random() < 0.5, "boolean")
        return here.spark.read.parquet(table).where(drawn("id")).cache()

    def first() -> DataFrame:
        return sample().agg(sf.count("*"), sf.sum("id"))

    def second() -> DataFrame:
        by_key = sample().groupBy("k").agg(sf.count("*").alias("n"), sf.sum("id").alias("t"))
        return by_key.groupBy((sf.col("k") % 2).alias("h")).agg(
            sf.sum("n").alias("n"), sf.sum("t").alias("t")
        )

    def total(rows: list[Any]) -> tuple[int, int]:
        return sum(row.n for row in rows), sum(row.t for row in rows)

    (told,) = first().collect()
    capture = here.moved(second(), tmp_path / "blocks", stages=2)
    assert {each.kind for each in capture.fragments} == {"shuffle", "cache"}
    assert total(capture.rows) == tuple(told)
    here.spark.catalog.clearCache()
    here.load(capture)
    assert Running(first().collect).rows() == [told]
    assert total(Running(second().collect).rows()) == tuple(told)
    assert len(here.report().used) == 2
