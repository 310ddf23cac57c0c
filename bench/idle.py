"""What does Godwit cost while nothing happens? Runtime with the agent over runtime without it, on TPC-H.

One driver has two sessions, one as Spark makes it and one with the agent's rules; the agent's listener and
its thread are there only while the second one is measured. Two drivers would not do: two JVMs may differ by
more than what is looked for, for as long as they live, by how their code happened to be compiled. Each
query runs with, without, without, with, so that whatever slows the machine down for a while slows both. It
goes on until the geometric mean of the ratios is known to within `--half-width` with 95 % confidence, or time
is up. A `--control` has the agent in neither session.

    python -m bench.idle [--sf 1] [--queries 1,6,18] [--max-minutes 30] [--control] [--json]
"""

import math
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from bench.drivers import Driver, DriverFailed, arguments, driver, machine, print_figures, say, scratch, table
from godwit.extractor import driver as extractor_driver
from godwit.extractor import jvm, settings
from godwit.extractor.facade import Notice
from tests.tpc import data
from tests.tpc.queries import Query, tpch_queries

WARM_UP_ROUNDS = 2
MIN_ROUNDS = 5

# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them the normal one is close.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
NORMAL = 2.05


@dataclass
class Measured:
    """Seconds of each query in each round: (with the agent, without)."""

    rounds: list[dict[str, tuple[float, float]]] = field(default_factory=list)

    def ratios(self) -> dict[str, float]:
        """For each query, the geometric mean over the rounds."""
        names = self.rounds[0] if self.rounds else {}
        return {
            name: math.exp(statistics.fmean(log_ratio(each[name]) for each in self.rounds)) for name in names
        }

    def interval(self) -> tuple[float, float]:
        """The geometric mean over queries and rounds, and the half width of its 95 % interval.

        A round is one observation: the noise of neighbouring queries is not independent.
        """
        means = [statistics.fmean(map(log_ratio, each.values())) for each in self.rounds]
        ratio = math.exp(statistics.fmean(means))
        if len(means) < 2:
            return ratio, math.inf
        freedom = len(means) - 1
        quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
        return ratio, ratio * quantile * statistics.stdev(means) / math.sqrt(len(means))


def log_ratio(seconds: tuple[float, float]) -> float:
    return math.log(seconds[0] / seconds[1])


class SwitchedJvm(jvm.SparkJvm):
    """The agent asks this one for notices; while it is switched off, the agent waits and does nothing. Its
    time to look at the queries is counted only while it is on, in slices: a little more work than really."""

    SLICE_MS = 250

    def __init__(self, gateway: Any) -> None:
        super().__init__(gateway)
        self.on = threading.Event()

    def await_notice(self, timeout_ms: int) -> Notice | None:
        for _ in range(timeout_ms // self.SLICE_MS):
            self.on.wait()
            if notice := super().await_notice(self.SLICE_MS):
                return notice
        self.on.wait()
        return None


class Both:
    """In the driver: Spark without Godwit and with it."""

    def __init__(self, folder: Path) -> None:
        gateway = jvm.launch({})
        _, jar = jvm.connect(gateway, pyspark.__version__)
        self.plain = SparkSession.builder.getOrCreate()
        context = self.plain.sparkContext
        self._scala_context = context._jsc.sc()
        self.agent = SparkSession(context, extended(gateway.jvm, self._scala_context, self.plain))
        self._jvm = SwitchedJvm(gateway)
        task = settings.Settings(job="idle", store_uri=f"file://{folder}/store")
        extractor_driver.Driver(task, self._jvm, jar, sys.argv).attach(context)
        self._listener = private(gateway, "org.apache.spark.sql.godwit.Agent$", "watch")
        self._scala_context.removeSparkListener(self._listener)
        if (has_rules(self.agent), has_rules(self.plain)) != (True, False):
            raise DriverFailed("the agent's rules are not where they should be")

    def switch(self, on: bool) -> None:
        if on:
            self._scala_context.addSparkListener(self._listener)
            self._jvm.on.set()
        else:
            self._jvm.on.clear()
            self._scala_context.removeSparkListener(self._listener)


def extended(java: Any, scala_context: Any, plain: SparkSession) -> Any:
    """A session with the agent's rules. What it shares with the other one has the class loader of generated
    code in it: the same code is compiled once, for both."""
    extensions = java.org.apache.spark.sql.SparkSessionExtensions()
    java.org.apache.spark.sql.godwit.Extensions().apply(extensions)
    shared = java.scala.Option.apply(plain._jsparkSession.sharedState())
    nothing, no_options = java.scala.Option.empty(), java.PythonUtils.toScalaMap({})
    made = java.org.apache.spark.sql.classic.SparkSession
    return made(scala_context, shared, nothing, extensions, no_options, no_options)


def has_rules(spark: SparkSession) -> bool:
    rules = spark._jsparkSession.sessionState().adaptiveRulesHolder().queryStagePrepRules()
    return "Substitute" in str(rules.toString())


def private(gateway: Any, scala_object: str, name: str) -> Any:
    """A field that a Scala object keeps to itself."""
    loader = gateway.jvm.Thread.currentThread().getContextClassLoader()
    of = {each.getName(): each for each in loader.loadClass(scala_object).getDeclaredFields()}
    of[name].setAccessible(True)
    return of[name].get(of["MODULE$"].get(None))


@cache
def both(folder: Path) -> Both:
    return Both(folder)


def register(folder: Path, tables: Path) -> None:
    """In the driver: the suite's tables as views."""
    for spark in (both(folder).plain, both(folder).agent):
        for each in data.tables(tables):
            spark.read.parquet(str(each)).createOrReplaceTempView(each.name)


def run_query(folder: Path, with_agent: bool, text: str) -> float:
    """In the driver: how many seconds it takes to the last row."""
    here = both(folder)
    spark = here.agent if with_agent else here.plain
    if with_agent:
        here.switch(on=True)
    started = time.perf_counter()
    spark.sql(text).collect()
    seconds = time.perf_counter() - started
    if with_agent:
        here.switch(on=False)
    return seconds


@dataclass(frozen=True)
class Arms:
    """Runs a query with and without; in a control, without and without."""

    spark: Driver
    folder: Path
    control: bool

    def one_round(self, query: Query) -> tuple[float, float]:
        with_1, without_1, without_2, with_2 = (
            self.spark.ask(run_query, self.folder, with_agent and not self.control, query.spark_text)
            for with_agent in (True, False, False, True)
        )
        return with_1 + with_2, without_1 + without_2


def measure(queries: list[Query], arms: Arms, minutes: float, half_width: float) -> Measured:
    for _ in range(WARM_UP_ROUNDS):
        for query in queries:
            arms.one_round(query)
    measured = Measured()
    ends_at = time.monotonic() + minutes * 60
    while time.monotonic() < ends_at:
        measured.rounds.append({query.name: arms.one_round(query) for query in queries})
        ratio, half = measured.interval()
        say(f"round {len(measured.rounds)}: {ratio:.4f} +- {half:.4f}")
        if len(measured.rounds) >= MIN_ROUNDS and half <= half_width:
            break
    return measured


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sf", type=float, default=1.0, help="TPC-H's scale factor (default 1)")
    parser.add_argument("--queries", default="", help="numbers, by commas (default: all 22)")
    parser.add_argument("--max-minutes", type=float, default=30.0)
    parser.add_argument("--half-width", type=float, default=0.01)
    parser.add_argument("--control", action="store_true", help="no agent in either session")
    asked = parser.parse_args()
    wanted = {int(number) for number in asked.queries.split(",") if number}
    queries = [query for query in tpch_queries() if not wanted or query.number in wanted]
    tables, before = data.tpch(asked.sf), machine()
    with scratch() as folder, driver("idle", folder) as spark:
        spark.ask(register, folder, tables)
        measured = measure(queries, Arms(spark, folder, asked.control), asked.max_minutes, asked.half_width)
    ratio, half = measured.interval()
    figures = {
        "geometric_mean": round(ratio, 4),
        "half_width": round(half, 4),
        "rounds": len(measured.rounds),
        "ratios": measured.ratios(),
        **before,
    }
    rows = [
        (name, each, statistics.median(seconds[name][1] / 2 for seconds in measured.rounds))
        for name, each in measured.ratios().items()
    ]
    print_figures(figures, asked.json, [table("idle", ("query", "with / without", "without, s"), rows)])


if __name__ == "__main__":
    main()
