"""What was found the hard way to give wrong rows or broken jobs; each with a test of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tests.spark.pair import Driver, driver, finished, write


@pytest.fixture
def here() -> Iterator[Driver]:
    with driver(spark__sql__autoBroadcastJoinThreshold="-1") as made:
        yield made


def grouped(spark: SparkSession, table: str) -> DataFrame:
    sums = spark.read.parquet(table).groupBy("k").agg(sf.sum("v").alias("v"))
    return sums.groupBy((sf.col("k") % 3).alias("m")).agg(sf.sum("v").alias("v"))


def test_a_table_that_was_overwritten_between_two_reads_is_read_again(here: Driver, tmp_path: Path) -> None:
    table = write(tmp_path / "t", k=range(900), v=range(900))
    before = here.moved(grouped(here.spark, table), tmp_path / "state")
    assert before.fragments
    here.load(before)
    assert sorted(grouped(here.spark, table).collect()) == sorted(before.rows)
    write(tmp_path / "t", k=range(900), v=[v + 1 for v in range(900)])
    after = grouped(here.spark, table).collect()
    assert sum(row.v for row in after) == sum(row.v for row in before.rows) + 900
    # A frame that is older than the overwriting has listed the files then; so does its fingerprint.
    old = grouped(here.spark, table)
    write(tmp_path / "t", k=range(900), v=[v + 2 for v in range(900)])
    here.load(before)
    assert old.select(sf.sum("v")).first()[0] != sum(row.v for row in before.rows)


def test_a_plan_runs_under_the_settings_of_its_run(here: Driver, tmp_path: Path) -> None:
    """Whether names match by case is asked when files are read, long after the plan was made."""
    table, spark = write(tmp_path / "t", A=[1, 1, 2, 3]), here.spark

    def counted(case: str) -> DataFrame:
        spark.conf.set("spark.sql.caseSensitive", "false")
        frame = spark.read.schema("a long").parquet(table).groupBy("a").count()
        frame._jdf.queryExecution().executedPlan()
        spark.conf.set("spark.sql.caseSensitive", case)
        return frame

    loose, strict = sorted(counted("false").collect()), counted("true").collect()
    assert (len(loose), strict) == (3, [(None, 4)])
    state = here.moved(counted("false"), tmp_path / "loose", choose=finished("shuffle"))
    assert len(state.fragments) == 1
    assert here.moved(counted("true"), tmp_path / "strict", choose=finished("shuffle")).fragments == ()
    here.load(state)
    assert sorted(counted("false").collect()) == loose
    here.said()
    assert counted("true").collect() == strict
    assert "settings have changed since the query was planned" in here.said()


def halves(spark: SparkSession, table: str) -> tuple[DataFrame, DataFrame]:
    one, other = spark.read.parquet(table).randomSplit([0.8, 0.2], seed=1)
    return (
        one.groupBy("id").agg(sf.count("*").alias("n"), sf.lit(1).alias("half")),
        other.groupBy("id").agg(sf.count("*").alias("n"), sf.lit(2).alias("half")),
    )


def test_two_halves_from_two_core_counts_neither_overlap_nor_lose_a_row(tmp_path: Path) -> None:
    """One half is stored by two cores, the other is computed by four."""
    table = write(tmp_path / "t", files=3, id=range(30_000), v=range(30_000))
    free = {
        "spark.sql.leafNodeDefaultParallelism": "",
        "spark.sql.adaptive.coalescePartitions.minPartitionNum": "",
    }
    with driver(2, **free) as source:
        pinned = dict(source.jvm.pinned())
        first, _ = halves(source.spark, table)
        capture = source.moved(first, tmp_path / "state", choose=finished("shuffle"))
        assert len(capture.fragments) == 1
    with driver(4, **{**free, **pinned}) as target:
        target.load(capture)
        one, other = halves(target.spark, table)
        ids = [row.id for row in one.unionAll(other).collect()]
        assert len(target.report().used) == 1
        assert sorted(ids) == list(range(30_000))
    with driver(4, **free) as unpinned:
        unpinned.load(capture)
        halves(unpinned.spark, table)[0].collect()
        assert not unpinned.report().used


def udf_print(value: int, big: bool) -> str:
    """The fingerprint of a query in a driver of its own, where broadcast ids begin anew."""
    with driver() as made:
        sums, sent = [value] * 200_000, made.spark.sparkContext.broadcast({"add": value})

        def add_from_closure(number: int) -> int:
            return number + sums[number]

        def add_from_broadcast(number: int) -> int:
            return number + int(sent.value["add"])

        step = sf.udf(add_from_closure if big else add_from_broadcast, "long")
        return made.prints(made.spark.range(100).select(step("id").alias("n")).groupBy("n").count())[0]


@pytest.mark.parametrize("big", [False, True], ids=["broadcast value", "closure over 1 MB"])
def test_a_python_function_is_also_what_travels_beside_it(big: bool) -> None:
    one = udf_print(1, big)
    assert not one.startswith("refused")
    assert udf_print(1, big) == one
    assert udf_print(2, big) != one


def test_a_row_count_that_spark_does_not_know_is_not_taken_for_none(here: Driver, tmp_path: Path) -> None:
    table = write(tmp_path / "t", k=range(900), v=range(900))
    capture = here.moved(grouped(here.spark, table), tmp_path / "state")
    (fragment,) = capture.fragments
    assert fragment.rows in (None, 900)
    # An exchange without a row is known to be empty.
    empty = here.spark.read.parquet(table).where("v < 0 AND k > v").groupBy("k").count().repartition(3)
    stopped = here.moved(empty, tmp_path / "empty", choose=finished("shuffle"))
    assert [each.bytes for each in stopped.fragments] == [0]
    assert here.resumed(empty.select("*"), stopped) == stopped.rows == []


def test_a_random_number_above_a_shuffle_is_never_stored(here: Driver, tmp_path: Path) -> None:
    """Spark computes it where the aggregate puts out its results: in whatever order the groups come."""
    table = here.spark.read.parquet(write(tmp_path / "t", files=2, k=range(900), v=range(900)))
    numbered = table.groupBy("k").agg(sf.max("v")).select("k", sf.rand(5).alias("r"))
    above, below = here.prints(numbered.where("r < 0.5").groupBy((sf.col("k") % 7).alias("m")).count())
    assert above.startswith("refused"), above
    assert not below.startswith("refused")


def test_rows_that_spark_calls_indeterminate_are_never_stored(here: Driver, tmp_path: Path) -> None:
    """Round robin over rows that come in any order, where Spark was told not to sort them first."""
    here.spark.conf.set("spark.sql.execution.sortBeforeRepartition", "false")
    table = here.spark.read.parquet(write(tmp_path / "t", files=2, k=range(900), v=range(900)))
    dealt = table.groupBy("k").agg(sf.max("v").alias("v")).repartition(5)
    frame = dealt.groupBy((sf.col("v") % 7).alias("m")).count()
    capture = here.moved(frame, tmp_path / "state", stages=2, choose=finished("shuffle"))
    assert ["indeterminate" in why for why in capture.refused.values()] == [True]
    assert [each.label.split("(")[0] for each in capture.fragments] == ["Exchange hashpartitioning"]


def test_the_present_time_is_never_the_stored_one(here: Driver, tmp_path: Path) -> None:
    table = write(tmp_path / "t", k=range(900), v=range(900))

    def stamped() -> DataFrame:
        stamp = here.spark.read.parquet(table).select("k", sf.current_timestamp().alias("t"))
        return stamp.groupBy("k").agg(sf.max("t").alias("t"))

    one, other = here.prints(stamped()), here.prints(stamped())
    assert one != other
    assert here.prints(here.spark.read.parquet(table).select(sf.expr("uuid()").alias("u")).distinct()) == [
        "refused: the non-deterministic uuid"
    ]


def test_a_sort_is_seen_through_only_where_nobody_looks_at_the_order(here: Driver, tmp_path: Path) -> None:
    table = here.spark.read.parquet(write(tmp_path / "t", files=2, k=range(900), v=range(900)))
    plain = here.prints(table.groupBy("k").agg(sf.sum("v")))
    assert here.prints(table.sortWithinPartitions("v").groupBy("k").agg(sf.sum("v"))) == plain
    first = here.prints(table.groupBy("k").agg(sf.first("v")))
    assert here.prints(table.sortWithinPartitions("v").groupBy("k").agg(sf.first("v"))) != first
    ties = Window.partitionBy("k").orderBy(sf.lit(1))
    (numbered, _) = here.prints(
        table.select("v", sf.row_number().over(ties).alias("n")).groupBy("n").agg(sf.max("v"))
    )
    assert numbered.startswith("refused")


@pytest.mark.parametrize(
    "step",
    [
        *("limit", "sample", "monotonically_increasing_id", "spark_partition_id"),
        *("mapInPandas", "mapInArrow", "zipWithIndex", "collect_list"),
    ],
)
def test_what_looks_at_the_order_of_rows_is_refused_above_a_shuffle(
    here: Driver, tmp_path: Path, step: str
) -> None:
    table = here.spark.read.parquet(write(tmp_path / "t", files=2, k=range(900), v=range(900)))
    shuffled = table.repartition(3, "k")
    frames = {
        "limit": lambda: shuffled.limit(10).repartition(2),
        "sample": lambda: shuffled.sample(fraction=0.5, seed=3).groupBy("v").count(),
        "monotonically_increasing_id": lambda: shuffled.select(sf.monotonically_increasing_id()).distinct(),
        "mapInPandas": lambda: shuffled.mapInPandas(lambda batches: batches, "k long, v long").distinct(),
        "mapInArrow": lambda: shuffled.mapInArrow(lambda batches: batches, "k long, v long").distinct(),
        "spark_partition_id": lambda: shuffled.select(sf.spark_partition_id()).distinct(),
        "zipWithIndex": lambda: here.spark.createDataFrame(
            shuffled.rdd.zipWithIndex().map(lambda pair: (pair[0].k, pair[1])), "k long, i long"
        ).distinct(),
        "collect_list": lambda: shuffled.groupBy("v").agg(sf.collect_list("k")),
    }
    top = here.prints(frames[step]())[0]
    assert top.startswith("refused"), top


def test_a_table_of_a_database_has_no_version(here: Driver) -> None:
    url = "jdbc:derby:memory:corrections;create=true"
    driver_class = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    here.spark.range(10).write.jdbc(url, "numbers", properties=driver_class)
    table = here.spark.read.jdbc(url, "numbers", properties=driver_class)
    (found,) = here.prints(table.groupBy("id").count())
    assert found.startswith("refused: the source Scan JDBC"), found
    assert found.endswith("which has no version")


def test_a_second_context_of_the_program_has_nothing_of_the_first_ones_losses(tmp_path: Path) -> None:
    table = write(tmp_path / "t", files=2, k=range(900), v=range(900))
    with driver() as source:
        capture = source.moved(grouped(source.spark, table), tmp_path / "state")
    (file,) = capture.files()
    whole = file.read_bytes()
    file.unlink()
    for _ in range(2):
        with driver() as target:
            assert sorted(target.resumed(grouped(target.spark, table), capture)) == sorted(capture.rows)
            assert len(target.report().fallbacks) == 1
    file.write_bytes(whole)
    with driver() as target:
        assert sorted(target.resumed(grouped(target.spark, table), capture)) == sorted(capture.rows)
        assert (len(target.report().used), len(target.report().fallbacks)) == (1, 0)
