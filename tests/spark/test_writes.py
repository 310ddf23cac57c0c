"""A write that is done twice is worse than one that is lost: whatever may have begun one is not moved."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from godwit.extractor import decide
from tests.spark.pair import Driver, Running, compiled, driver, holder, wait_until


@pytest.fixture(scope="module")
def source() -> Iterator[Driver]:
    with driver(cores=2) as made:
        yield made


def writing(frame: DataFrame, form: str, folder: Path) -> Running:
    def write() -> list[Any]:
        frame.write.format(form).mode("append").save(str(folder))
        return []

    return Running(write)


@pytest.mark.parametrize("form", ["parquet", "noop"])
def test_a_write_in_its_last_stage_is_seen_as_writing(source: Driver, tmp_path: Path, form: str) -> None:
    """Spark has two ways to write, and in the plan of the second the adaptive part is not at the root."""
    sums = source.spark.range(1000).groupBy((sf.col("id") % 10).alias("k")).count()
    held = sums.withColumn("k", sf.udf(holder(tmp_path), "long")("k"))
    query = writing(held, form, tmp_path / "out")
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        (seen,) = source.graph().queries
        assert (seen.write, seen.result_running) == (True, True)
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    query.rows()
    assert source.graph().side_effects[-1].startswith(f"execution {seen.execution}: ")


@pytest.mark.parametrize("form", ["parquet", "noop"])
def test_a_write_that_waits_for_its_stages_is_not_one_yet(source: Driver, tmp_path: Path, form: str) -> None:
    numbers = source.spark.range(0, 1000, 1, 2).select(sf.udf(holder(tmp_path), "long")("id").alias("id"))
    sums = numbers.groupBy((sf.col("id") % 10).alias("k")).count()
    query = writing(sums, form, tmp_path / "out")
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        (seen,) = source.graph().queries
        assert (seen.write, seen.result_running) == (True, False)
        assert decide.last_refusal(source.graph()) is None
        (tmp_path / "go").touch()
        wait_until(lambda: source.graph().queries[0].parked)
        assert decide.last_refusal(source.graph()) is None
        assert not list((tmp_path / "out").glob("*.parquet"))
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    query.rows()


@pytest.mark.parametrize("planned", [True, False])
def test_a_write_that_makes_room_before_its_stages_is_writing_from_its_begin(
    source: Driver, tmp_path: Path, planned: bool
) -> None:
    """Where Spark does not plan it as a part of its query, the old files are gone by the time that the first
    stage runs, and the next driver would find a folder."""
    session = source.spark.newSession()
    session.conf.set("spark.sql.optimizer.plannedWrite.enabled", planned)
    session.range(3).write.parquet(str(tmp_path / "out"))
    old = sorted((tmp_path / "out").glob("*.parquet"))
    numbers = session.range(0, 1000, 1, 2).select(sf.udf(holder(tmp_path), "long")("id").alias("id"))
    sums = numbers.groupBy((sf.col("id") % 10).alias("k")).count()
    before = len(source.graph().side_effects)
    query = Running(lambda: [sums.write.mode("overwrite").parquet(str(tmp_path / "out"))])
    try:
        wait_until((tmp_path / "held").exists)
        source.jvm.close_gate()
        (tmp_path / "go").touch()
        wait_until(lambda: source.graph().queries[0].parked)
        taken = replace(source.graph(), side_effects=source.graph().side_effects[before:])
        assert (decide.refusal(taken) is None) == planned
        assert (sorted((tmp_path / "out").glob("*.parquet")) == old) == planned
    finally:
        (tmp_path / "go").touch()
        source.jvm.open_gate()
    query.rows()


def test_a_write_whose_last_stage_is_a_loop_of_queries_is_writing_while_they_wait(
    source: Driver, tmp_path: Path
) -> None:
    """They wait at the gate in its name, when the folder of its output is there already."""
    source.spark.range(100).createOrReplaceTempView("numbers")
    rows = source.spark.sql(
        """WITH RECURSIVE r(n) AS
          (SELECT max(id) - 90 FROM numbers UNION ALL SELECT n + 1 FROM r WHERE n < 40)
        SELECT /*+ BROADCAST(s) */ r.n, s.c
        FROM r JOIN (SELECT id, count(*) AS c FROM numbers GROUP BY id) s ON r.n = s.id"""
    )
    before = len(source.graph().side_effects)
    query = Running(lambda: [rows.write.parquet(str(tmp_path / "out"))])
    waited = 0
    try:
        while not query.ended:
            source.jvm.close_gate()
            time.sleep(0.2)
            graph = source.graph()
            if (tmp_path / "out").exists() and graph.queries and graph.queries[0].parked:
                taken = replace(graph, side_effects=graph.side_effects[before:])
                assert decide.refusal(taken) is not None
                waited += 1
            source.jvm.open_gate()
    finally:
        source.jvm.open_gate()
    query.rows()
    assert waited > 0


def inserted_twice(spark: SparkSession, folder: Path) -> None:
    for name in ("a", "b"):
        spark.sql(f"CREATE TABLE {name} (id BIGINT) USING parquet LOCATION '{folder / name}'")
    spark.range(3).createOrReplaceTempView("numbers")
    spark.sql("FROM numbers INSERT INTO a SELECT id INSERT INTO b SELECT id + 1")


def saved(spark: SparkSession, folder: Path) -> None:
    spark.range(3).write.option("path", str(folder / "saved")).saveAsTable("saved")


def failed_half_way(spark: SparkSession, folder: Path) -> None:
    """One partition has written, the other cannot."""
    broken = spark.range(0, 2, 1, 2).selectExpr("IF(id = 1, assert_true(false), NULL) AS n", "id")
    with pytest.raises(PySparkException):
        broken.write.csv(str(folder / "broken"))


def in_a_loop(spark: SparkSession, folder: Path) -> None:
    spark.range(3).foreachPartition(lambda rows: None)


def as_text(spark: SparkSession, folder: Path) -> None:
    spark.sparkContext.parallelize(["a"]).saveAsTextFile(str(folder / "text"))


def streamed(spark: SparkSession, folder: Path) -> None:
    """No plan of it has a command that writes."""
    spark.range(3).write.parquet(str(folder / "in"))
    numbers = spark.readStream.schema("id BIGINT").parquet(str(folder / "in"))
    stream = numbers.writeStream.format("parquet").option("checkpointLocation", str(folder / "log"))
    stream.trigger(availableNow=True).start(str(folder / "streamed")).awaitTermination()


WRITES = (streamed, inserted_twice, saved, failed_half_way, in_a_loop, as_text)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_whatever_may_have_written_is_seen(
    source: Driver, tmp_path: Path, write: Callable[[SparkSession, Path], None]
) -> None:
    before = len(source.graph().side_effects)
    write(source.spark, tmp_path)
    try:
        assert len(source.graph().side_effects) > before
        assert decide.refusal(source.graph()) is not None
    finally:
        for name in ("a", "b", "saved"):
            source.spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_an_effect_outside_of_queries_waits_while_the_gate_is_closed(source: Driver) -> None:
    """Otherwise it could begin after the last look before a commit, and be done again elsewhere."""
    before = source.graph().side_effects
    source.jvm.close_gate()
    effect = Running(lambda: [source.jvm.begin_effect("foreach")])
    try:
        time.sleep(0.3)
        assert not effect.ended
        assert source.graph().side_effects == before
    finally:
        source.jvm.open_gate()
    effect.rows()
    assert [*source.graph().side_effects][len(before) :] == ["foreach of an RDD"]


UNTOLD = 1 << 40
"""The number of an execution that Spark has not told of."""


@pytest.mark.parametrize(("held", "late"), [("write", True), ("read", False)])
def test_a_write_that_is_being_planned_is_waited_for(
    source: Driver, tmp_path: Path, held: str, late: bool
) -> None:
    """It has passed the gate, and Spark has not told of it yet. A query that only reads may stay behind."""
    state = source.spark._jsparkSession.sessionState()
    inner = source.spark._jvm.org.apache.spark.sql.execution
    text = "SELECT 1" if held == "read" else "CREATE TABLE planned (id INT)"
    qe = state.executePlan(state.sqlParser().parsePlan(text), inner.CommandExecutionMode.SKIP())
    executions = getattr(getattr(inner, "SQLExecution$"), "MODULE$").executionIdToQueryExecution()
    assert not source.graph().events_late
    executions.put(UNTOLD, qe)
    try:
        assert source.graph().events_late == late
    finally:
        executions.remove(UNTOLD)


def under_way(source: Driver) -> int:
    """Queries that the agent takes to be running. It keeps their list to itself."""
    java = source.spark._jvm
    loader = java.Thread.currentThread().getContextClassLoader()
    fields = loader.loadClass("org.apache.spark.sql.godwit.Agent$").getDeclaredFields()
    of = {each.getName(): each for each in fields}
    of["watch"].setAccessible(True)
    return int(of["watch"].get(of["MODULE$"].get(None)).executions().size())


def test_a_query_that_cannot_be_planned_is_no_write_and_ends(source: Driver, tmp_path: Path) -> None:
    """Programs look whether a table is there by reading it."""
    before, running = source.graph(), under_way(source)
    for text in (
        f"SELECT * FROM parquet.`{tmp_path}/none`",
        "SELECT * FROM none",
        "INSERT INTO none SELECT 1",
    ):
        with pytest.raises(PySparkException):
            source.spark.sql(text).collect()
    with pytest.raises(PySparkException):
        source.spark.read.parquet(f"{tmp_path}/none")
    with pytest.raises(PySparkException) as failed:
        source.spark.sql("SELECT CAST('x' AS INT)").collect()
    after = source.graph()
    assert "godwit" not in str(failed.value._stackTrace), "a listener has asked for the plan"  # type: ignore[attr-defined]
    assert (after.side_effects, after.queries) == (before.side_effects, before.queries)
    assert under_way(source) == running


def test_reading_is_no_write(source: Driver, tmp_path: Path) -> None:
    before = source.graph().side_effects
    spark = source.spark
    spark.range(3).groupBy("id").count().collect()
    spark.range(3).createOrReplaceTempView("read")
    spark.sql("SHOW TABLES").collect()
    spark.sql("DECLARE OR REPLACE VARIABLE x INT DEFAULT 5")
    spark.sql("SET VARIABLE x = 6")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION one_more(a INT) RETURNS INT RETURN a + 1")
    spark.sparkContext.parallelize([1, 2]).map(lambda n: n + 1).collect()
    assert source.graph().side_effects == before


SLOW = """
package org.apache.spark.elsewhere
class Slow extends org.apache.spark.scheduler.SparkListener {
  override def onOtherEvent(event: org.apache.spark.scheduler.SparkListenerEvent): Unit = Thread.sleep(5000)
}
"""


def test_a_write_is_seen_however_slow_others_are_and_told_as_possible_where_events_were_dropped(
    source: Driver, tmp_path: Path
) -> None:
    source.spark.stop()
    with driver(spark__scheduler__listenerbus__eventqueue__shared__capacity="1") as made:
        add_listener(made.spark, compiled(SLOW, tmp_path / "slow.jar"))
        before = made.graph().side_effects
        made.spark.range(3).write.parquet(str(tmp_path / "written"))
        graph = made.graph()
        assert (graph.events_late, len(graph.side_effects)) == (False, len(before) + 1)
    with driver(spark__scheduler__listenerbus__eventqueue__godwit__capacity="1") as made:
        for _ in range(50):
            made.spark.range(0, 1000, 1, 300).selectExpr("sum(id)").collect()
            if "Spark has dropped events" in made.graph().side_effects[-1]:
                break
        assert "Spark has dropped events" in made.graph().side_effects[-1]


def add_listener(spark: SparkSession, jar: Path) -> None:
    assert spark._jvm is not None
    loader = spark._jvm.Thread.currentThread().getContextClassLoader()
    loader.addURL(spark._jvm.java.io.File(str(jar)).toURI().toURL())
    spark.sparkContext._jsc.sc().addSparkListener(spark._jvm.org.apache.spark.elsewhere.Slow())
