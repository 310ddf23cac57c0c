"""One query per thing that Spark can do.

A migration that works for most queries proves little about the operator that nobody stopped at. So each
operator, join strategy, type and shuffle setting has a query of its own, and says how to see in the executed
plan that the thing is really there: AQE may well have planned it away.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.spark.features.tables import open_tables
from tests.tpc.compare import UNORDERED, Order


@dataclass(frozen=True)
class Feature:
    name: str
    build: Callable[[SparkSession, Path], DataFrame]
    plan_contains: tuple[str, ...]  # regular expressions, each found in the plan's text after the run
    conf: Mapping[str, str] = field(default_factory=dict)  # of the session
    context_conf: Mapping[str, str] = field(default_factory=dict)  # of a SparkContext of its own
    order: Order = UNORDERED

    def missing_in(self, plan: str) -> list[str]:
        """What should be in the executed plan and is not."""
        return [pattern for pattern in self.plan_contains if not re.search(pattern, plan)]


def sql_feature(
    name: str,
    text: str,
    *plan_contains: str,
    conf: Mapping[str, str] | None = None,
    context_conf: Mapping[str, str] | None = None,
    order: Order = UNORDERED,
) -> Feature:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        open_tables(spark, folder)
        return spark.sql(text)

    return Feature(name, build, plan_contains, conf or {}, context_conf or {}, order)


def executed_plan(frame: DataFrame) -> str:
    """The plan's text; once collected, AQE's final plan and, below it, the initial one."""
    return str(frame._jdf.queryExecution().executedPlan().toString())
