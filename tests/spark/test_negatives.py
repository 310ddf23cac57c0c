"""Two queries that differ in one thing must never share stored rows, and one query planned twice must."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas  # type: ignore[import-untyped]
import pytest
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tests.spark.pair import Driver, driver, write

ROOT = Path(__file__).parents[2]

SAY_ALL = "import sys; from tests.spark.test_negatives import say_all; say_all(sys.argv[1])"

Query = Callable[[SparkSession, str], DataFrame]


@dataclass(frozen=True)
class Pair:
    one: Query
    other: Query
    conf: tuple[str, str] | None = None  # what is set in the session of the other one


def tables(folder: Path) -> None:
    ids = range(1000)
    columns = {
        "id": ids,
        "g": [i % 7 for i in ids],
        "v": [(i * 37) % 1000 for i in ids],
        "w": [(i * 53) % 1000 for i in ids],
        "x": [i / 7 for i in ids],
        "y": [i / 3 for i in ids],
        "z": [i / 11 for i in ids],
        "s": [("Ab", "aB", "c")[i % 3] for i in ids],
        "t": [i * 3_600_000_000 for i in ids],
    }
    write(folder / "a", files=2, **columns)
    write(folder / "b", files=2, **columns)


def a(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.parquet(f"{folder}/a")


def over(step: Callable[[DataFrame], DataFrame]) -> Query:
    return lambda spark, folder: step(a(spark, folder))


def filtered(condition: str) -> Query:
    return over(lambda t: t.where(condition).groupBy("g").count())


def projected(*expressions: str) -> Query:
    return over(lambda t: t.selectExpr(*expressions).distinct())


def aggregated(*aggregates: str) -> Query:
    return over(lambda t: t.groupBy("g").agg(*map(sf.expr, aggregates)).repartition(3, "a1"))


def joined(kind: str) -> Query:
    return lambda spark, folder: (
        a(spark, folder)
        .join(spark.read.parquet(f"{folder}/b").select("id"), "id", kind)
        .select("id")
        .repartition(3)
    )


def windowed(first: int, last: int) -> Query:
    frame = f"PARTITION BY g ORDER BY id RANGE BETWEEN {first} PRECEDING AND {last} FOLLOWING"
    return over(lambda t: t.selectExpr(f"sum(v) OVER ({frame}) AS n").groupBy("n").count())


def compared(constant: int) -> Query:
    def query(spark: SparkSession, folder: str) -> DataFrame:
        a(spark, folder).createOrReplaceTempView("a")
        least = f"SELECT avg(v) FROM a WHERE id < {constant}"
        return spark.sql(f"SELECT g, count(*) FROM a WHERE v > ({least}) GROUP BY g")

    return query


def in_python(step: Callable[[int], int]) -> Query:
    return over(lambda t: t.select(sf.udf(step, "long")("v").alias("p")).groupBy("p").count())


def in_variant(
    path: str, kind: str = "int", parse: str = "parse_json", text: str = "concat('{\"a\": ', v, '}')"
) -> Query:
    return projected(f"variant_get({parse}({text}), '{path}', '{kind}') AS n")


def limited(rows: int) -> Query:
    return over(lambda t: t.select("g", "id").orderBy("id", "g").limit(rows).repartition(2))


def first_column(frame: pandas.DataFrame) -> pandas.DataFrame:
    return pandas.DataFrame({"n": frame["a"]})


def named_in_pandas(a: str, b: str) -> Query:
    columns = ("g", f"{a} AS a", f"{b} AS b")
    return over(
        lambda t: t.selectExpr(*columns).groupBy("g").applyInPandas(first_column, "n long").distinct()
    )


def in_order(t: DataFrame, *columns: str) -> DataFrame:
    """By all that there is: no ties."""
    return t.select("g", "v").sortWithinPartitions(*columns)


def sorted_first(column: str, then: Callable[[DataFrame], DataFrame]) -> Query:
    """Spark keeps the program's sort where it serves the groups as well."""
    return over(lambda t: then(t.repartition(3, "g").sortWithinPartitions("g", column)).groupBy("n").count())


def first_of_groups(t: DataFrame) -> DataFrame:
    return t.groupBy("g").applyInPandas(lambda f: pandas.DataFrame({"n": f["v"].head(1)}), "n long")


def first_aggregated(t: DataFrame) -> DataFrame:
    return t.groupBy("g").agg(sf.pandas_udf(first_value, "long")("v").alias("n"))


def first_in_window(t: DataFrame) -> DataFrame:
    first = sf.pandas_udf(first_value, "long")
    return t.select(first("v").over(Window.partitionBy("g")).alias("n"))


def first_value(values: pandas.Series) -> int:
    return int(values.iloc[0])


def average(values: pandas.Series) -> float:
    return float(values.mean())


def pandas_window(first: int, last: int) -> Query:
    """All columns are keys: no two rows are in each other's place."""

    def query(spark: SparkSession, folder: str) -> DataFrame:
        mean = sf.pandas_udf(average, "double")
        frame = Window.partitionBy("g").orderBy("id", "v").rowsBetween(first, last)
        columns = a(spark, folder).select("g", "id", "v")
        return columns.select(mean("v").over(frame).alias("n")).distinct()

    return query


SUMS = filtered("v > 5")

PAIRS = {
    "literal": Pair(SUMS, filtered("v > 6")),
    "type of a literal": Pair(projected("1 AS n", "g"), projected("1L AS n", "g")),
    "type of a literal that is the same number inside": Pair(
        projected("to_json(named_struct('v', v, 'd', DATE'1970-01-06')) AS n"),
        projected("to_json(named_struct('v', v, 'd', 5)) AS n"),
    ),
    "operator": Pair(SUMS, filtered("v >= 5")),
    "sides of a comparison": Pair(filtered("v > w"), filtered("w > v")),
    "sides of a subtraction": Pair(projected("v - w"), projected("w - v")),
    "negated": Pair(filtered("v IN (1, 2)"), filtered("v NOT IN (1, 2)")),
    "table": Pair(
        SUMS, lambda spark, folder: spark.read.parquet(f"{folder}/b").where("v > 5").groupBy("g").count()
    ),
    "column": Pair(filtered("v > 5"), filtered("w > 5")),
    "column order": Pair(
        over(lambda t: t.select("v", "w").repartition(3, "v", "w")),
        over(lambda t: t.select("w", "v").repartition(3, "v", "w")),
    ),
    "column order under equal types": Pair(
        over(lambda t: t.select("v", "w").repartition(3)), over(lambda t: t.select("w", "v").repartition(3))
    ),
    "swapped aggregates": Pair(
        aggregated("sum(v) AS a1", "sum(w) AS a2"), aggregated("sum(w) AS a1", "sum(v) AS a2")
    ),
    "swapped results of equal aggregates": Pair(
        over(lambda t: t.groupBy("g").agg(sf.sum("v").alias("a"), sf.sum("w").alias("b"))
             .select("a", "b").repartition(3)),
        over(lambda t: t.groupBy("g").agg(sf.sum("v").alias("a"), sf.sum("w").alias("b"))
             .select("b", "a").repartition(3)),
    ),
    "aggregate": Pair(aggregated("min(v) AS a1"), aggregated("max(v) AS a1")),
    "distinct aggregate": Pair(aggregated("count(v) AS a1"), aggregated("count(DISTINCT v) AS a1")),
    "aggregate's filter": Pair(
        over(lambda t: t.selectExpr("g", "v", "w").groupBy("g").agg(sf.expr("sum(v) FILTER (WHERE w > 1)"))),
        over(lambda t: t.selectExpr("g", "v", "w").groupBy("g").agg(sf.expr("sum(v) FILTER (WHERE w > 2)"))),
    ),
    "distinct rows": Pair(
        over(lambda t: t.select("g").distinct().repartition(3)), over(lambda t: t.select("g").repartition(3))
    ),
    "join type": Pair(joined("left_semi"), joined("inner")),
    "outer join type": Pair(joined("left"), joined("right")),
    "anti for semi join": Pair(joined("left_semi"), joined("left_anti")),
    "constant in a subquery": Pair(compared(500), compared(501)),
    "window frame": Pair(windowed(1, 0), windowed(2, 0)),
    "window order": Pair(
        over(lambda t: t.select(sf.rank().over(Window.partitionBy("g").orderBy("v")).alias("r")).distinct()),
        over(lambda t: t.select(sf.rank().over(Window.partitionBy("g").orderBy(sf.desc("v"))).alias("r"))
             .distinct()),
    ),
    "limit": Pair(limited(5), limited(6)),
    "offset": Pair(
        over(lambda t: t.select("id").orderBy("id").offset(1).limit(5).repartition(2)),
        over(lambda t: t.select("id").orderBy("id").offset(2).limit(5).repartition(2)),
    ),
    "sample's seed": Pair(
        over(lambda t: t.sample(fraction=0.5, seed=1).groupBy("g").count()),
        over(lambda t: t.sample(fraction=0.5, seed=2).groupBy("g").count()),
    ),
    "sample's fraction": Pair(
        over(lambda t: t.sample(fraction=0.5, seed=1).groupBy("g").count()),
        over(lambda t: t.sample(fraction=0.6, seed=1).groupBy("g").count()),
    ),
    "sort below a sample": Pair(
        over(lambda t: in_order(t, "g", "v").sample(fraction=0.5, seed=1).groupBy("g").count()),
        over(lambda t: in_order(t, "v", "g").sample(fraction=0.5, seed=1).groupBy("g").count()),
    ),
    "sort below an id": Pair(
        over(lambda t: in_order(t, "g", "v").select("v", sf.monotonically_increasing_id().alias("n"))
             .groupBy("n").agg(sf.max("v"))),
        over(lambda t: in_order(t, "v", "g").select("v", sf.monotonically_increasing_id().alias("n"))
             .groupBy("n").agg(sf.max("v"))),
    ),
    "sort below first": Pair(
        over(lambda t: in_order(t, "g", "v").groupBy("g").agg(sf.first("v"))),
        over(lambda t: in_order(t, "v", "g").groupBy("g").agg(sf.first("v"))),
    ),
    "sort below mapInPandas": Pair(
        over(lambda t: t.select("v").sortWithinPartitions("v").mapInPandas(lambda b: b, "v long").distinct()),
        over(lambda t: t.select("v").sortWithinPartitions(sf.desc("v")).mapInPandas(lambda b: b, "v long")
             .distinct()),
    ),
    "sort of a cached table below a sample": Pair(
        over(lambda t: t.sortWithinPartitions("id").cache().sample(fraction=0.5, seed=1).distinct()),
        over(lambda t: t.sortWithinPartitions("v").cache().sample(fraction=0.5, seed=1).distinct()),
    ),
    **{
        f"sort below {name} in pandas": Pair(sorted_first("v", then), sorted_first("w", then))
        for name, then in (("groups", first_of_groups), ("an aggregate", first_aggregated),
                           ("a window", first_in_window))
    },
    "order of values that compare as equal": Pair(
        projected("greatest(x * 0.0D, x * -0.0D) AS n"), projected("greatest(x * -0.0D, x * 0.0D) AS n")
    ),
    "order of a floating-point sum": Pair(projected("(x + y) + z"), projected("x + (y + z)")),
    "order of a floating-point product": Pair(projected("(x * y) * z"), projected("x * (y * z)")),
    "operands of a decimal sum": Pair(
        projected("(CAST(v AS DECIMAL(38, 18)) + CAST(w AS DECIMAL(20, 2))) + CAST(g AS DECIMAL(30, 5))"),
        projected("CAST(v AS DECIMAL(38, 18)) + (CAST(w AS DECIMAL(20, 2)) + CAST(g AS DECIMAL(30, 5)))"),
    ),
    "collation of a cast": Pair(
        projected("CAST(s AS STRING COLLATE UTF8_LCASE) AS n"),
        projected("CAST(s AS STRING COLLATE UNICODE) AS n"),
    ),
    "collation": Pair(projected("s COLLATE UTF8_LCASE AS n"), projected("s COLLATE UNICODE AS n")),
    "struct's field": Pair(
        projected("named_struct('p', v, 'q', w).p AS n"), projected("named_struct('p', v, 'q', w).q AS n")
    ),
    "element of an array": Pair(projected("array(v, w)[0] AS n"), projected("array(v, w)[1] AS n")),
    "lambda": Pair(
        projected("transform(array(v, w), e -> e + 1)"), projected("transform(array(v, w), e -> e + 2)")
    ),
    "lambda's argument": Pair(
        projected("transform(array(v, w), (e, i) -> e)"), projected("transform(array(v, w), (e, i) -> i)")
    ),
    "outer generator": Pair(
        over(lambda t: t.select("g", sf.explode(sf.array("v"))).distinct()),
        over(lambda t: t.select("g", sf.explode_outer(sf.array("v"))).distinct()),
    ),
    "grouping sets": Pair(
        over(lambda t: t.rollup("g", "s").count()), over(lambda t: t.cube("g", "s").count())
    ),
    "set operation": Pair(
        lambda spark, folder: a(spark, folder).select("v").intersect(a(spark, folder).select("w")),
        lambda spark, folder: a(spark, folder).select("v").subtract(a(spark, folder).select("w")),
    ),
    "number of partitions": Pair(
        over(lambda t: t.select("v").repartition(3, "v")), over(lambda t: t.select("v").repartition(4, "v"))
    ),
    "partitioning key": Pair(
        over(lambda t: t.select("v", "w").repartition(3, "v")),
        over(lambda t: t.select("v", "w").repartition(3, "w")),
    ),
    "direction of a range": Pair(
        over(lambda t: t.select("v").orderBy("v")), over(lambda t: t.select("v").orderBy(sf.desc("v")))
    ),
    "place of nulls in a range": Pair(
        over(lambda t: t.select("v").orderBy(sf.asc_nulls_first("v"))),
        over(lambda t: t.select("v").orderBy(sf.asc_nulls_last("v"))),
    ),
    "random numbers in a list that ends where one is met": Pair(
        over(lambda t: t.where("g IN (int(rand(1) * 7), int(rand(2) * 7))").groupBy("g").count()),
        over(lambda t: t.where("g IN (int(rand(2) * 7), int(rand(1) * 7))").groupBy("g").count()),
    ),
    "random number behind a condition": Pair(
        over(lambda t: t.where("v > 5 AND rand(1) < 0.5").groupBy("g").count()),
        over(lambda t: t.where("rand(1) < 0.5 AND v > 5").groupBy("g").count()),
    ),
    "file name above a shuffle": Pair(
        over(lambda t: t.select("g", sf.input_file_name().alias("f")).groupBy("f").count()),
        over(lambda t: t.repartition(8).select("g", sf.input_file_name().alias("f")).groupBy("f").count()),
    ),
    "columns' names under pandas": Pair(named_in_pandas("v", "w"), named_in_pandas("w", "v")),
    "frame of a pandas window": Pair(pandas_window(-1, 0), pandas_window(-2, 0)),
    "UDF code": Pair(in_python(lambda n: n + 1), in_python(lambda n: n + 2)),
    "path in a variant": Pair(in_variant("$.a"), in_variant("$.b")),
    "type in a variant": Pair(in_variant("$.a"), in_variant("$.a", "string")),
    "how a variant is parsed": Pair(in_variant("$.a"), in_variant("$.a", parse="try_parse_json")),
    "text in a variant": Pair(in_variant("$.a"), in_variant("$.a", text="concat('{\"a\": ', w, '}')")),
    "a method of Spark's": Pair(projected("url_encode(s) AS n"), projected("url_decode(s) AS n")),
    "character set": Pair(projected("encode(s, 'UTF-8') AS n"), projected("encode(s, 'UTF-16') AS n")),
    "ANSI mode": Pair(SUMS, SUMS, ("spark.sql.ansi.enabled", "false")),
    "timezone": Pair(SUMS, SUMS, ("spark.sql.session.timeZone", "Asia/Kathmandu")),
    "conf that changes rows": Pair(SUMS, SUMS, ("spark.sql.caseSensitive", "true")),
    "conf of a file format's own": Pair(SUMS, SUMS, ("orc.force.positional.evolution", "true")),
    "environment of the executors": Pair(SUMS, SUMS, ("spark.executorEnv.RATE", "2")),
    "environment with a secret in it": Pair(SUMS, SUMS, ("spark.executorEnv.SALT_SECRET", "2")),
    "conf that nobody knows": Pair(SUMS, SUMS, ("spark.sql.of.the.future", "1")),
}  # fmt: skip

REFUSED = {"sort of a cached table below a sample"}
"""What has no fingerprint at all may be anything."""

REFUSED_OTHERS = {"file name above a shuffle"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    tables(folder)
    return folder


@pytest.fixture(scope="module")
def here() -> Iterator[Driver]:
    with driver(spark__sql__autoBroadcastJoinThreshold="-1") as made:
        yield made


@pytest.mark.parametrize("name", PAIRS)
def test_one_query_is_itself_and_never_the_other(here: Driver, folder: Path, name: str) -> None:
    pair = PAIRS[name]
    one, again = (here.prints(pair.one(here.spark, str(folder)))[0] for _ in range(2))
    if name not in REFUSED:
        assert not one.startswith("refused"), one
    assert one == again
    session = here.spark.newSession()
    if pair.conf is not None:
        session.conf.set(*pair.conf)
    other = here.prints(pair.other(session, str(folder)))[0]
    here.spark.catalog.clearCache()
    if name not in REFUSED | REFUSED_OTHERS:
        assert not other.startswith("refused"), other
    if name not in REFUSED:
        assert one != other


def test_a_session_of_its_own_makes_no_difference(here: Driver, folder: Path) -> None:
    session = here.spark.newSession()
    assert here.prints(SUMS(here.spark, str(folder))) == here.prints(SUMS(session, str(folder)))


def test_another_file_of_the_same_size_is_another_table(here: Driver, tmp_path: Path) -> None:
    def summed(factor: int) -> tuple[int, list[str]]:
        (tmp_path / "part-0.csv").write_text("".join(f"{k},{factor * k}\n" for k in range(1, 4)))
        table = here.spark.read.csv(str(tmp_path), schema="k int, v int")
        return (tmp_path / "part-0.csv").stat().st_size, here.prints(table.groupBy("k").sum("v"))

    (one_size, one), (other_size, other) = summed(2), summed(3)
    assert one_size == other_size
    assert one != other


def test_partitions_that_have_changed_places_are_another_table(here: Driver, tmp_path: Path) -> None:
    """The files are the very same, but what their rows are called by is not in them."""
    spark = here.spark
    places = [write(tmp_path / f"p={number}", v=[number]) for number in range(2)]
    spark.sql(f"CREATE TABLE placed (v BIGINT, p INT) USING parquet PARTITIONED BY (p) LOCATION '{tmp_path}'")
    try:
        spark.sql("MSCK REPAIR TABLE placed")
        before = here.prints(spark.table("placed").groupBy("p").sum("v"))
        for number, place in enumerate(reversed(places)):
            spark.sql(f"ALTER TABLE placed PARTITION (p = {number}) SET LOCATION '{place}'")
        spark.catalog.refreshTable("placed")
        after = here.prints(spark.table("placed").groupBy("p").sum("v"))
        assert not before[0].startswith("refused")
        assert before != after
    finally:
        spark.sql("DROP TABLE placed")


TIES: dict[str, Query] = {
    "numbered rows of a cached table": over(
        lambda t: t.selectExpr("v", "row_number() OVER (PARTITION BY g ORDER BY s) AS n").cache().distinct()
    ),
    "some rows of a cached table": over(lambda t: t.limit(3).cache().repartition(2, "g")),
    "first rows of a cached table": over(lambda t: t.orderBy("g").limit(3).cache().repartition(2, "g")),
    "sample of rows that tie": over(
        lambda t: t.sortWithinPartitions("g").sample(fraction=0.5, seed=1).groupBy("v").count()
    ),
    "sample of partitions that were put together": over(
        lambda t: t.coalesce(2).sample(fraction=0.5, seed=1).groupBy("g").count()
    ),
    "first rows by a collated key": over(
        lambda t: t.selectExpr("s COLLATE UTF8_LCASE AS c").orderBy("c").limit(3).repartition(2, "c")
    ),
    "one row of a subquery": over(
        lambda t: t.where(f"v > (SELECT v FROM parquet.`{t.inputFiles()[0]}` LIMIT 1)").groupBy("g").count()
    ),
}


@pytest.mark.parametrize("name", TIES)
def test_rows_that_spark_may_choose_otherwise_have_no_fingerprint(
    here: Driver, folder: Path, name: str
) -> None:
    print_of = here.prints(TIES[name](here.spark, str(folder)))[0]
    here.spark.catalog.clearCache()
    assert print_of.startswith("refused"), print_of


def test_a_cached_table_is_also_the_settings_that_it_was_planned_under(here: Driver, folder: Path) -> None:
    def prints(mode: str) -> list[str]:
        here.spark.conf.set("spark.sql.files.ignoreCorruptFiles", mode)
        cached = a(here.spark, str(folder)).select("g", "v").cache()
        here.spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        found = here.prints(cached.groupBy("g").sum("v"))
        here.spark.catalog.clearCache()
        return found

    assert prints("true") == prints("true")
    assert prints("true") != prints("false")


@pytest.mark.parametrize(
    ("key", "value"),
    [("spark.sql.session.timeZone", "Asia/Tokyo"), ("spark.sql.files.maxPartitionBytes", "100")],
)
def test_files_that_were_opened_in_a_session_with_other_settings_are_refused(
    here: Driver, folder: Path, key: str, value: str
) -> None:
    """They are split and read under its settings, not under those of the session that asks."""
    other = here.spark.newSession()
    a(other, str(folder)).createOrReplaceGlobalTempView("opened")
    asked = "SELECT g, count(*) FROM global_temp.opened GROUP BY g"
    (same,) = here.prints(here.spark.sql(asked))
    assert not same.startswith("refused"), same
    other.conf.set(key, value)
    (otherwise,) = here.prints(here.spark.sql(asked))
    assert otherwise == "refused: files that were opened in a session with other settings"


def test_what_hadoop_was_told_counts(here: Driver, folder: Path) -> None:
    hadoop = here.spark.sparkContext._jsc.hadoopConfiguration()
    before = here.prints(SUMS(here.spark, str(folder)))
    hadoop.set("parquet.filter.columnindex.enabled", "false")
    after = here.prints(SUMS(here.spark, str(folder)))
    hadoop.unset("parquet.filter.columnindex.enabled")
    assert before != after
    hadoop.set("fs.s3a.session.token", "of this hour")
    assert before == here.prints(SUMS(here.spark, str(folder)))


def test_what_a_function_finds_on_the_executors_counts(here: Driver, folder: Path, tmp_path: Path) -> None:
    context, python = here.spark.sparkContext, in_python(lambda n: n + 1)
    alone, plain = here.prints(python(here.spark, str(folder))), here.prints(SUMS(here.spark, str(folder)))
    (tmp_path / "rate.txt").write_text("2")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "helper.py").write_text("rate = 2")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "package")
    context.addFile(str(tmp_path / "rate.txt"))
    with_file = here.prints(python(here.spark, str(folder)))
    context.addArchive(f"{archive}#helpers")
    with_both = here.prints(python(here.spark, str(folder)))
    Path(SparkFiles.get("rate.txt")).write_text("3")
    with_another = here.prints(python(here.spark, str(folder)))
    Path(SparkFiles.get("helpers"), "helper.py").write_text("rate = 3")
    found = [alone, with_file, with_both, with_another, here.prints(python(here.spark, str(folder)))]
    assert len({each[0] for each in found}) == 5
    assert not any(each[0].startswith("refused") for each in found)
    assert plain == here.prints(SUMS(here.spark, str(folder)))


def test_the_environment_of_python_on_the_executors_counts(here: Driver, folder: Path) -> None:
    """Spark gives all of a job's workers one seed for the hashes of strings; another job may have another."""
    environment, python = here.spark.sparkContext.environment, in_python(lambda n: n + 1)
    before = here.prints(python(here.spark, str(folder)))
    real = environment.get("PYTHONHASHSEED")
    environment["PYTHONHASHSEED"] = "12345"
    after = here.prints(python(here.spark, str(folder)))
    environment["PYTHONHASHSEED"] = real
    assert not before[0].startswith("refused")
    assert before != after


@pytest.mark.parametrize("size", [1, 2_000_000])
def test_a_function_that_counts_in_an_accumulator_has_no_fingerprint(
    here: Driver, folder: Path, size: int
) -> None:
    """What it counted would be lost with the run that is not repeated. A large one travels as a broadcast."""
    count, ballast = here.spark.sparkContext.accumulator(0), random.Random(1).randbytes(size)

    def step(number: int) -> int:
        count.add(len(ballast))
        return number

    assert here.prints(in_python(step)(here.spark, str(folder)))[0].startswith("refused: a Python function")


def test_what_the_program_has_told_spark_for_its_thread_counts_where_python_may_read_it(
    here: Driver, folder: Path
) -> None:
    def prints(query: Query, **told: str) -> str:
        for key, value in told.items():
            here.spark.sparkContext.setLocalProperty(key, value)
        found = here.prints(query(here.spark, str(folder)))[0]
        for key in told:
            here.spark.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type]
        assert not found.startswith("refused"), found
        return found

    python = in_python(lambda n: n + 1)
    assert prints(python, tenant="alpha") == prints(python, tenant="alpha")
    for name in ("tenant", "spark.sql.tenant", "spark.job.tenant", "callSite.tenant", "godwit.tenant"):
        alpha, beta = prints(python, **{name: "alpha"}), prints(python, **{name: "beta"})
        assert len({prints(python), alpha, beta}) == 3, name
    before = prints(python)
    SUMS(here.spark, str(folder)).collect()  # Spark tells the thread something of its own
    assert prints(python) == before
    here.spark.sparkContext.addJobTag("alpha")
    assert prints(python) != before
    here.spark.sparkContext.removeJobTag("alpha")
    assert prints(python) == before
    assert prints(SUMS) == prints(SUMS, tenant="alpha")


@pytest.mark.parametrize("name", ["java.locale.providers", "file.encoding"])
def test_what_java_was_told_about_text_counts(here: Driver, folder: Path, name: str) -> None:
    java = here.spark._jvm.java.lang.System
    real = java.getProperty(name)
    before = here.prints(SUMS(here.spark, str(folder)))
    java.setProperty(name, "COMPAT")
    try:
        assert before != here.prints(SUMS(here.spark, str(folder)))
    finally:
        java.setProperty(name, real) if real else java.clearProperty(name)


def test_the_machines_language_counts(here: Driver, folder: Path) -> None:
    """Upper and lower case are others in Turkish."""
    locales = here.spark._jvm.java.util.Locale
    real = locales.getDefault()
    before = here.prints(SUMS(here.spark, str(folder)))
    locales.setDefault(locales.forLanguageTag("tr-TR"))
    try:
        assert before != here.prints(SUMS(here.spark, str(folder)))
    finally:
        locales.setDefault(real)


def test_the_language_of_the_executors_counts_but_not_their_memory(here: Driver, folder: Path) -> None:
    conf = here.spark._jsparkSession.sessionState().conf()
    found = []
    for options in ("", "-Xss4m", "-Xss4m -Duser.language=tr"):
        conf.setConfString("spark.executor.extraJavaOptions", options)
        found.append(here.prints(SUMS(here.spark, str(folder))))
    conf.unsetConf("spark.executor.extraJavaOptions")
    assert found[0] == found[1] != found[2]


def test_the_machines_timezone_counts(here: Driver, folder: Path) -> None:
    zones = here.spark._jvm.java.util.TimeZone
    real = zones.getDefault()
    before = here.prints(SUMS(here.spark, str(folder)))
    try:
        zones.setDefault(zones.getTimeZone("Asia/Kathmandu"))
        assert here.prints(SUMS(here.spark, str(folder))) != before
    finally:
        zones.setDefault(real)


def test_all_queries_have_the_same_fingerprints_in_another_jvm(here: Driver, folder: Path) -> None:
    """Another process has other expression ids, other hash codes, and another seed for those of strings."""
    child = subprocess.run(
        [sys.executable, "-c", SAY_ALL, str(folder)],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    told = {line.split("|")[1]: line.split("|")[2:] for line in child.stdout.splitlines() if "|" in line}
    for name, pair in PAIRS.items():
        if "UDF" not in name and "andas" not in name:  # these differ with their module's name
            assert here.prints(pair.one(here.spark, str(folder))) == told[name], name
    here.spark.catalog.clearCache()


def say_all(folder: str) -> None:
    with driver(cores=1, spark__sql__autoBroadcastJoinThreshold="-1") as made:
        for _ in range(3):
            a(made.spark, folder).groupBy("g").count().collect()
        for name, pair in reversed(PAIRS.items()):
            print("|".join(["", name, *made.prints(pair.one(made.spark, folder))]))
            made.spark.catalog.clearCache()
