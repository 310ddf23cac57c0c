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
class Plan:
    """AQE's plan as text: what the query started with, and what it ended with."""

    initial: str
    final: str

    @staticmethod
    def of(frame: DataFrame) -> "Plan":
        """The plan of a frame that has been collected."""
        text = str(frame._jdf.queryExecution().executedPlan().toString())
        # Subqueries inside have such a line too, but indented.
        final, _, initial = text.partition("\n+- == Initial Plan ==\n")
        return Plan(initial, final)


@dataclass(frozen=True)
class Feature:
    """A query, and regular expressions that are found in its plan only if the feature is there."""

    name: str
    build: Callable[[SparkSession, Path], DataFrame]
    plan_contains: tuple[str, ...]  # the final plan
    conf: Mapping[str, str] = field(default_factory=dict)  # of the session
    context_conf: Mapping[str, str] = field(default_factory=dict)  # of a SparkContext of its own
    order: Order = UNORDERED
    initial_plan_contains: tuple[str, ...] = ()
    missed_because: str = ""  # why the next driver may plan it otherwise, so that what is stored is not met
    never_kept: bool = False  # all that there is to keep is refused

    def missing_in(self, plan: Plan) -> list[str]:
        """What should be in the executed plan and is not."""
        wanted = [(pattern, plan.final) for pattern in self.plan_contains]
        # Without a shuffle there would be nothing to stop at.
        wanted += [(pattern, plan.initial) for pattern in (*self.initial_plan_contains, "Exchange")]
        return [pattern for pattern, text in wanted if not re.search(pattern, text)]


def sql_feature(
    name: str,
    text: str,
    *plan_contains: str,
    conf: Mapping[str, str] | None = None,
    context_conf: Mapping[str, str] | None = None,
    order: Order = UNORDERED,
    initial_plan_contains: tuple[str, ...] = (),
    missed_because: str = "",
) -> Feature:
    def build(spark: SparkSession, folder: Path) -> DataFrame:
        open_tables(spark, folder)
        return spark.sql(text)

    return Feature(
        name,
        build,
        plan_contains,
        conf or {},
        context_conf or {},
        order,
        initial_plan_contains,
        missed_because,
    )
