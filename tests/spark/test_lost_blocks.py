"""Stored rows can be lost at any moment. The query must come to its right end all the same, and say so."""

import functools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.pair import Capture, Driver, Running, chosen, driver, finished, write

Damage = Callable[[Path], None]


def delete(file: Path) -> None:
    file.unlink()


def flip(file: Path, part: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * part)] ^= 0x10
    file.write_bytes(bytes(content))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


DAMAGES: dict[str, Damage] = {
    "deleted": delete,
    "flipped in the first partition": lambda file: flip(file, 0.02),
    "flipped in the last partition": lambda file: flip(file, 0.95),
    "cut short": cut_short,
}


@dataclass(frozen=True)
class Query:
    """What is stored when the first stages have finished is read in a later one."""

    build: Callable[[SparkSession, str], DataFrame]
    stages: int = 1
    kind: str = "shuffle"
    ordered: bool = False


def facts(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.parquet(f"{folder}/facts")


def hashed(spark: SparkSession, folder: str) -> DataFrame:
    """Two shuffles: the second reads the stored one, a third reads the second."""
    sums = facts(spark, folder).groupBy("k").agg(sf.sum("v").alias("v"))
    return sums.groupBy((sf.col("v") % 100).alias("m")).count().repartition(3)


def ranged(spark: SparkSession, folder: str) -> DataFrame:
    return facts(spark, folder).orderBy("v", "id")


def round_robin(spark: SparkSession, folder: str) -> DataFrame:
    return (
        facts(spark, folder)
        .select("id", "k", "v")
        .repartition(5)
        .groupBy("k")
        .agg(sf.sum("v"), sf.count("*"))
    )


def broadcast(spark: SparkSession, folder: str) -> DataFrame:
    names = spark.read.parquet(f"{folder}/names").groupBy("k").agg(sf.max("name").alias("name"))
    return facts(spark, folder).join(sf.broadcast(names), "k").groupBy("name").agg(sf.sum("v"))


def skewed(spark: SparkSession, folder: str) -> DataFrame:
    names = spark.read.parquet(f"{folder}/names").hint("merge")
    return (
        facts(spark, folder)
        .drop("k")
        .withColumnRenamed("hot", "k")
        .join(names, "k")
        .select("id", "v", "name")
    )


def reused(spark: SparkSession, folder: str) -> DataFrame:
    sums = facts(spark, folder).groupBy("k").agg(sf.sum("v").alias("v"))
    low, high = sums.where("v % 2 = 0"), sums.where("v % 3 = 0")
    both = low.select(low.k.alias("a"), low.v.alias("p")).hint("merge").join(
        high.select(high.k.alias("b"), high.v.alias("q")), sf.col("a") == sf.col("b")
    )  # fmt: skip
    return both.groupBy("p").agg(sf.max("q"))


def two(spark: SparkSession, folder: str) -> DataFrame:
    left = facts(spark, folder).groupBy("k").agg(sf.sum("v").alias("v"))
    right = facts(spark, folder).groupBy("k").agg(sf.max("id").alias("m"))
    return left.join(right.hint("merge"), "k").groupBy("v").agg(sf.sum("m"))


QUERIES = {
    "hash": Query(hashed),
    "range": Query(ranged, ordered=True),
    "round robin": Query(round_robin),
    "broadcast": Query(broadcast, stages=2, kind="broadcast"),
    "skew": Query(skewed, stages=2),
    "reuse": Query(reused),
    "two fragments": Query(two, stages=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tables")
    numbers = random.Random(7)
    ids = range(60_000)
    write(
        folder / "facts",
        files=4,
        id=ids,
        k=[i % 500 for i in ids],
        v=[numbers.randrange(1_000_000) for _ in ids],
        hot=[0 if i % 10 else i % 500 for i in ids],
    )
    write(folder / "names", k=range(500), name=[f"name {k % 17}" for k in range(500)])
    return str(folder)


@pytest.fixture(scope="module")
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver with so many cores. With one, a recompute must not wait for the task that waits for it."""
    conf = {
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "64k",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
        "spark.default.parallelism": "8",  # says nothing about the cores
        "spark.local.dir": str(tmp_path_factory.mktemp("local")),
    }
    with driver(request.param, **conf) as made:
        yield made


@pytest.fixture(scope="module")
def captures(here: Driver, folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Capture]:
    return {
        name: here.moved(
            query.build(here.spark, folder),
            tmp_path_factory.mktemp("state"),
            query.stages,
            finished(query.kind),
        )
        for name, query in QUERIES.items()
    }


def copy(capture: Capture, folder: Path) -> Capture:
    shutil.copytree(capture.folder, folder / "state")
    return replace(capture, folder=folder / "state")


def compared(rows: list[object], query: Query) -> list[object]:
    return rows if query.ordered else sorted(rows, key=repr)


@pytest.mark.parametrize("here", [2], indirect=True)
@pytest.mark.parametrize("name", QUERIES)
def test_the_state_is_read_while_it_is_whole(
    here: Driver, captures: dict[str, Capture], folder: str, name: str
) -> None:
    query, capture = QUERIES[name], captures[name]
    assert capture.fragments
    rows = here.resumed(query.build(here.spark, folder), capture)
    assert compared(rows, query) == compared(capture.rows, query)
    assert set(here.report().used) == {each.fingerprint for each in capture.fragments}
    assert not here.report().fallbacks


@pytest.mark.parametrize(
    ("here", "name", "damage"),
    [(2, name, damage) for name in QUERIES for damage in DAMAGES]
    + [(1, name, "deleted") for name in QUERIES],
    indirect=["here"],
)
def test_rows_lost_before_the_query_starts_are_computed_again(
    here: Driver,
    captures: dict[str, Capture],
    folder: str,
    name: str,
    damage: str,
    tmp_path: Path,
) -> None:
    query, capture = QUERIES[name], copy(captures[name], tmp_path)
    here.said()
    for file in capture.files():
        DAMAGES[damage](file)
    rows = here.resumed(query.build(here.spark, folder), capture)
    assert compared(rows, query) == compared(capture.rows, query)
    assert set(here.report().fallbacks) == {each.fingerprint for each in capture.fragments}
    assert here.said().count("godwit: the stored rows of ") == len(capture.fragments)


@pytest.mark.parametrize("here", [2, 1], indirect=True)
def test_rows_lost_in_the_middle_of_the_query_are_computed_again(
    here: Driver, folder: str, tmp_path: Path
) -> None:
    """One side of a join is stored and not yet read, the other is computed first."""
    frame = two(here.spark, folder)
    capture = here.moved(frame, tmp_path, stages=2, choose=lambda graph: finished("shuffle")(graph)[:1])
    here.said()
    rows = here.resumed(
        two(here.spark, folder), capture, between=lambda: [flip(file, 0.5) for file in capture.files()]
    )
    assert sorted(rows) == sorted(capture.rows)
    assert list(here.report().fallbacks) == [capture.fragments[0].fingerprint]
    assert here.said().count("godwit: the stored rows of ") == 1


@pytest.mark.parametrize("here", [2, 1], indirect=True)
def test_a_folder_that_is_gone_in_the_middle_is_no_catastrophe(
    here: Driver, folder: str, tmp_path: Path
) -> None:
    capture = here.moved(
        two(here.spark, folder), tmp_path, stages=2, choose=lambda graph: finished("shuffle")(graph)[1:]
    )
    rows = here.resumed(two(here.spark, folder), capture, between=lambda: shutil.rmtree(tmp_path))
    assert sorted(rows) == sorted(capture.rows)
    assert list(here.report().fallbacks) == [capture.fragments[0].fingerprint]


def planned(frame: DataFrame) -> DataFrame:
    frame._jdf.queryExecution().executedPlan()
    return frame


@pytest.mark.parametrize("here", [2, 1], indirect=True)
def test_a_stored_shuffle_above_another_is_computed_again_from_that(
    here: Driver, folder: str, tmp_path: Path
) -> None:
    """The upper one is met when AQE plans anew, over the lower one, which is a stage by then."""
    capture = here.moved(hashed(here.spark, folder), tmp_path, 2, finished("shuffle"))
    lower, upper = sorted(capture.fragments, key=lambda each: len(beneath(capture, each.fingerprint)))
    here.load(replace(capture, fragments=(lower,)))
    frame = planned(hashed(here.spark, folder))
    here.load(capture)
    for file in capture.files():
        if file.is_relative_to(capture.folder / upper.folder):
            delete(file)
    rows = Running(frame.collect).rows()
    assert sorted(rows) == sorted(capture.rows)
    assert list(here.report().fallbacks) == [upper.fingerprint]
    here.clean()


def beneath(capture: Capture, fingerprint: str) -> tuple[str, ...]:
    (found,) = (each for each in capture.graph.pipelines.values() if each.fingerprint == fingerprint)
    return found.depends_on


@pytest.mark.parametrize("here", [2], indirect=True)
def test_rows_of_two_states_of_a_table_never_meet(here: Driver, tmp_path: Path) -> None:
    """The table changes after the query was planned, and then stored rows of it are lost."""
    write(tmp_path / "facts", k=[n % 9 for n in range(1000)], v=range(1000))
    capture = here.moved(hashed(here.spark, str(tmp_path)), tmp_path / "state")
    here.load(capture)
    frame = planned(hashed(here.spark, str(tmp_path)))
    write(tmp_path / "facts", k=[n % 9 for n in range(2000)], v=range(2000))
    delete(capture.files()[0])
    with pytest.raises(Py4JJavaError, match="has changed since the query was planned: run it again"):
        Running(frame.collect).rows()
    here.clean()


def five(spark: SparkSession, folder: str) -> DataFrame:
    sides = [
        facts(spark, folder).groupBy("k").agg(sf.sum(sf.col("v") + n).alias(f"v{n}")).hint("merge")
        for n in range(5)
    ]
    return functools.reduce(lambda left, right: left.join(right, "k"), sides)


@pytest.mark.parametrize("here", [2], indirect=True)
def test_a_stage_that_has_lost_more_than_spark_has_patience_for_comes_to_its_end(
    here: Driver, folder: str, tmp_path: Path
) -> None:
    """Spark runs a stage four times, and each run finds one loss."""
    capture = here.moved(five(here.spark, folder), tmp_path, 5, finished("shuffle"))
    assert len(capture.fragments) == 5
    for file in capture.files():
        delete(file)
    assert sorted(here.resumed(five(here.spark, folder), capture)) == sorted(capture.rows)
    assert len(here.report().fallbacks) == 5


LENIENT = ("spark.sql.legacy.timeParserPolicy", "LEGACY")
"""A setting that tasks look up where they run: without it these times are no times."""


@pytest.fixture
def days(tmp_path: Path) -> str:
    for number in range(4):
        lines = [f"{n % 50},2020-1-{1 + n % 9} 1:2:3" for n in range(number * 500, number * 500 + 500)]
        (tmp_path / f"days-{number}.csv").write_text("\n".join(lines))
    return str(tmp_path / "days-*.csv")


def latest(spark: SparkSession, files: str) -> DataFrame:
    read = spark.read.schema("k int, t timestamp").option("timestampFormat", "yyyy-MM-dd HH:mm:ss").csv(files)
    return read.groupBy("k").agg(sf.max("t").alias("t")).groupBy("t").count()


@pytest.mark.parametrize("here", [2], indirect=True)
def test_rows_are_computed_again_under_the_settings_of_their_query(
    here: Driver, days: str, tmp_path: Path
) -> None:
    here.spark.conf.set(*LENIENT)
    try:
        capture = here.moved(latest(here.spark, days), tmp_path / "state")
        assert all(row.t is not None for row in capture.rows)
        delete(capture.files()[0])
        assert sorted(here.resumed(latest(here.spark, days), capture)) == sorted(capture.rows)
        assert len(here.report().fallbacks) == 1
    finally:
        here.spark.conf.unset(LENIENT[0])


@pytest.mark.parametrize("here", [2], indirect=True)
def test_blocks_that_are_lost_before_they_are_stored_are_made_again_under_the_settings_of_their_query(
    here: Driver, days: str, tmp_path: Path
) -> None:
    here.spark.conf.set(*LENIENT)
    try:
        here.clean()
        here.stop_after(1)
        query = Running(latest(here.spark, days).collect)
        assert here.parked(query)
        graph = here.graph()
        files = shuffle_files(Path(here.spark.conf.get("spark.local.dir")))
        assert files
        for file in files:
            file.unlink()
        capture = here.extracted(graph, tmp_path / "state", chosen(graph))
        assert len(capture.fragments) == 1
        here.jvm.open_gate()
        rows = query.rows()
        assert all(row.t is not None for row in rows)
        assert sorted(here.resumed(latest(here.spark, days), capture)) == sorted(rows)
        assert here.report().fallbacks == {}
    finally:
        here.clean()
        here.spark.conf.unset(LENIENT[0])


def shuffle_files(disk: Path) -> list[Path]:
    """Of the newest shuffle."""
    found = [(int(each.name.split("_")[1]), each) for each in disk.rglob("shuffle_*.data")]
    newest = max(shuffle for shuffle, _ in found)
    return [path for shuffle, path in found if shuffle == newest]


@pytest.mark.parametrize("here", [2], indirect=True)
def test_a_partition_that_a_table_gets_after_the_query_was_planned_does_not_meet_stored_rows(
    here: Driver, tmp_path: Path
) -> None:
    spark = here.spark
    spark.sql(f"CREATE TABLE days (k INT, d INT) USING parquet PARTITIONED BY (d) LOCATION '{tmp_path}/days'")
    try:
        spark.sql("INSERT INTO days SELECT id % 50, id % 2 FROM range(2000)")

        def counted() -> DataFrame:
            return spark.table("days").groupBy("k").count().groupBy("count").agg(sf.count("k"))

        capture = here.moved(counted(), tmp_path / "state")
        here.load(capture)
        frame = planned(counted())
        spark.sql("INSERT INTO days SELECT id % 50, 7 FROM range(2000)")
        delete(capture.files()[0])
        with pytest.raises(Py4JJavaError, match="has changed since the query was planned: run it again"):
            Running(frame.collect).rows()
    finally:
        here.clean()
        spark.sql("DROP TABLE days")
