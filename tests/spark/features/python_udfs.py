"""Python in the plan.

The functions are made inside their builders: so they are pickled by value, and the workers need nothing of
the tests.
"""
# pandas has no stubs here, and PySpark's know neither UDFs typed by hints nor plain classes as UDTFs.
# mypy: disable-error-code="arg-type, call-overload, import-untyped, untyped-decorator"

from collections.abc import Iterator
from pathlib import Path

import pandas
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.functions import udf, udtf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.window import Window

from tests.spark.features.feature import Feature
from tests.spark.features.tables import open_tables

PICKLED = {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}
WITH_ARROW = {"spark.sql.execution.pythonUDF.arrow.enabled": "true"}


def facts(spark: SparkSession, folder: Path) -> DataFrame:
    open_tables(spark, folder)
    return spark.table("facts").where("id % 4 = 0").select("id", "k", "grp", "price", "name")


def scalar(spark: SparkSession, folder: Path) -> DataFrame:
    @udf("string")
    def initials(name: str | None, grp: int) -> str | None:
        return None if name is None else f"{name[:1]}{grp % 3}"

    return facts(spark, folder).groupBy(initials("name", "grp").alias("i")).agg(sf.count("*"), sf.sum("id"))


def scalar_above_a_shuffle(spark: SparkSession, folder: Path) -> DataFrame:
    @udf("long")
    def doubled(number: int) -> int:
        return 2 * number

    sums = facts(spark, folder).groupBy("k", "grp").agg(sf.sum("id").alias("total"))
    return sums.withColumn("twice", doubled("total")).groupBy("grp").agg(sf.sum("twice"))


def pandas_scalar(spark: SparkSession, folder: Path) -> DataFrame:
    @pandas_udf("double")
    def with_tax(price: pandas.Series) -> pandas.Series:
        return price * 1.25

    taxed = facts(spark, folder).withColumn("taxed", with_tax("price"))
    return taxed.groupBy("k").agg(sf.sum("taxed"), sf.count("*"))


def pandas_grouped(spark: SparkSession, folder: Path) -> DataFrame:
    def centred(group: pandas.DataFrame) -> pandas.DataFrame:
        return group.assign(price=group.price - group.price.min())

    frame = facts(spark, folder)
    return frame.groupBy("grp").applyInPandas(centred, frame.schema)


def pandas_aggregate(spark: SparkSession, folder: Path) -> DataFrame:
    @pandas_udf("double")
    def spread(price: pandas.Series) -> float:
        return float(price.max() - price.min())

    return facts(spark, folder).groupBy("k").agg(spread("price"))


def pandas_window(spark: SparkSession, folder: Path) -> DataFrame:
    @pandas_udf("double")
    def highest(price: pandas.Series) -> float:
        return float(price.max())

    window = Window.partitionBy("grp").orderBy("id").rowsBetween(-3, 0)
    return facts(spark, folder).withColumn("highest", highest("price").over(window))


def pandas_cogrouped(spark: SparkSession, folder: Path) -> DataFrame:
    def counted(left: pandas.DataFrame, right: pandas.DataFrame) -> pandas.DataFrame:
        key = left.grp.iloc[0] if len(left) else right.grp.iloc[0]
        return pandas.DataFrame({"grp": [key], "left": [len(left)], "right": [len(right)]})

    left, right = facts(spark, folder), spark.table("dims")
    both = left.groupBy("grp").cogroup(right.groupBy("grp"))
    return both.applyInPandas(counted, "grp int, left long, right long")


def pandas_mapped(spark: SparkSession, folder: Path) -> DataFrame:
    def kept(batches: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        for batch in batches:
            yield batch[batch.price > 100]

    sums = facts(spark, folder).groupBy("k").agg(sf.sum("price").alias("price"))
    return (
        sums.mapInPandas(kept, "k int, price double")
        .groupBy((sf.col("k") % 7).alias("k7"))
        .agg(sf.sum("price"))
    )


def table_function(spark: SparkSession, folder: Path) -> DataFrame:
    class Steps:
        def eval(self, number: int) -> Iterator[tuple[int, int]]:
            for step in range(int(number % 3)):
                yield step, number + step

    frame = facts(spark, folder)
    spark.udtf.register("steps", udtf(Steps, returnType="step int, value long"))
    frame.createOrReplaceTempView("quarter_facts")
    return spark.sql("SELECT step, count(*), sum(value) FROM quarter_facts, LATERAL steps(id) GROUP BY step")


FEATURES = [
    Feature("Python scalar UDF", scalar, (r"BatchEvalPython",), conf=PICKLED),
    Feature("Python scalar UDF with Arrow", scalar, (r"ArrowEvalPython",), conf=WITH_ARROW),
    Feature("Python scalar UDF above a shuffle", scalar_above_a_shuffle, (r"BatchEvalPython",), conf=PICKLED),
    Feature("pandas scalar UDF", pandas_scalar, (r"ArrowEvalPython",)),
    Feature("pandas grouped UDF", pandas_grouped, (r"FlatMapGroupsInPandas",)),
    Feature("pandas aggregate UDF", pandas_aggregate, (r"ArrowAggregatePython",)),
    Feature("pandas window UDF", pandas_window, (r"ArrowWindowPython",)),
    Feature("pandas cogrouped UDF", pandas_cogrouped, (r"FlatMapCoGroupsInPandas",)),
    Feature("pandas mapped UDF above a shuffle", pandas_mapped, (r"MapInPandas",)),
    # It may keep what it likes from one row to the next.
    Feature("Python table function", table_function, (r"EvalPythonUDTF",), never_kept=True),
]
