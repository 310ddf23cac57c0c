"""What can be asked of a driver: queries that every process builds alike, and how their rows compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from tests.spark.features import FEATURES
from tests.spark.randomqueries import random_conf, random_query
from tests.tpc import data
from tests.tpc.compare import Order
from tests.tpc.queries import Query, suite_queries


@dataclass(frozen=True)
class Built:
    frame: DataFrame
    order: Order


class Question(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def conf(self) -> Mapping[str, str]:
        """What to set in the session before the query is built."""

    def build(self, spark: SparkSession) -> Built: ...


@dataclass(frozen=True)
class TpcQuestion:
    """A query of TPC-H or TPC-DS at a scale factor."""

    query: Query
    sf: float
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.query.name

    def build(self, spark: SparkSession) -> Built:
        open_suite(spark, data.suite(self.query.suite, self.sf))
        frame = spark.sql(self.query.spark_text)
        return Built(frame, self.query.order(frame.columns))


@dataclass(frozen=True)
class FeatureQuestion:
    feature: str
    folder: Path

    @property
    def name(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.feature)[:40]

    @property
    def conf(self) -> Mapping[str, str]:
        return FEATURES[self.feature].conf

    def build(self, spark: SparkSession) -> Built:
        feature = FEATURES[self.feature]
        return Built(feature.build(spark, self.folder), feature.order)


@dataclass(frozen=True)
class RandomQuestion:
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"random-{self.seed}"

    @property
    def conf(self) -> Mapping[str, str]:
        return random_conf(self.seed)

    def build(self, spark: SparkSession) -> Built:
        made = random_query(spark, self.folder, self.seed)
        return Built(made.frame, made.order)


def tpc_question(suite: str, number: int, sf: float, conf: Mapping[str, str] | None = None) -> TpcQuestion:
    (query,) = [each for each in suite_queries(suite) if each.number == number]
    return TpcQuestion(query, sf, conf or {})


def open_suite(spark: SparkSession, folder: Path) -> None:
    """The suite's tables as views. Both suites have a `customer`; the schemas are read once."""
    for name, frame in frames_of(spark, folder).items():
        frame.createOrReplaceTempView(name)


@cache
def frames_of(spark: SparkSession, folder: Path) -> Mapping[str, DataFrame]:
    return {table.name: spark.read.parquet(str(table)) for table in data.tables(folder)}
