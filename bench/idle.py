"""What does Godwit cost while nothing happens? Runtime with the agent over runtime without it, on TPC-H.

One driver has two sessions, one as Spark makes it and one with the agent's rules; the agent's listener and
its thread are there only while the second one is measured. Two drivers would not do: two JVMs may differ by
more than what is looked for, for as long as they live, by how their code happened to be compiled.

The first two runs of a query after another one are slower by a tenth and more, whoever has them, so they do
not count. Then it runs with, without, without, with, and the next time the other way round, so that whatever
slows the machine down for a while slows both; short queries, which scatter most, more often than long ones.
It goes on until the geometric mean over the queries is known to within `--half-width` with 95 % confidence,
or time is up. A `--control` has the agent in neither session.

    python -m bench.idle [--sf 1] [--queries 1,6,18] [--max-minutes 60] [--control] [--json]
"""

import math
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.drivers import Driver, DriverFailed, arguments, driver, machine, print_figures, say, scratch, table
from godwit.extractor import driver as extractor_driver
from godwit.extractor import jvm, settings
from godwit.extractor.facade import Notice
from tests.tpc import data
from tests.tpc.queries import Query, tpch_queries

WARM_UP_ROUNDS = 1
MIN_ROUNDS = 3
TURN_SECONDS = 10.0
"""For which a query is measured before it is another one's turn; a long one is measured four times."""

NORMAL = 1.96
"""The 97.5 % quantile; there are hundreds of observations."""


@dataclass
class Measured:
    """Seconds of each query: (with the agent, without), twice each."""

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        """For each query, the geometric mean."""
        return {name: math.exp(statistics.fmean(logs)) for name, logs in self._logs().items()}

    def interval(self) -> tuple[float, float]:
        """The geometric mean over the queries, and the half width of its 95 % interval.

        Queries differ in how much they scatter and in how often they ran: each has a variance of its own.
        """
        logs = self._logs()
        ratio = math.exp(statistics.fmean(statistics.fmean(each) for each in logs.values()))
        variance = sum(statistics.variance(each) / len(each) for each in logs.values()) / len(logs) ** 2
        return ratio, ratio * NORMAL * math.sqrt(variance)

    def _logs(self) -> dict[str, list[float]]:
        return {
            name: [math.log(with_agent / without) for with_agent, without in pairs]
            for name, pairs in self.seconds.items()
        }


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
        _, jar = jvm.connect(gateway)
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

    def turn(self, query: Query, first: bool) -> list[tuple[float, float]]:
        """The query alone, for a while; `first`: the one with the agent."""
        for with_agent in (not first, first):
            self._run(query, with_agent)
        measured: list[tuple[float, float]] = []
        started = time.monotonic()
        while time.monotonic() - started < TURN_SECONDS:
            runs = [(arm, self._run(query, arm)) for arm in (first, not first, not first, first)]
            measured.append(
                (sum(took for arm, took in runs if arm), sum(took for arm, took in runs if not arm))
            )
            first = not first
        return measured

    def _run(self, query: Query, with_agent: bool) -> float:
        return self.spark.ask(run_query, self.folder, with_agent and not self.control, query.spark_text)


def measure(queries: list[Query], arms: Arms, minutes: float, half_width: float) -> Measured:
    for _ in range(WARM_UP_ROUNDS):
        for query in queries:
            arms.turn(query, first=True)
    measured = Measured({query.name: [] for query in queries})
    ends_at = time.monotonic() + minutes * 60
    for number in count(1):
        for query in queries:
            measured.seconds[query.name] += arms.turn(query, first=number % 2 == 0)
        if number == 1:
            continue  # one observation of a long query has no variance
        ratio, half = measured.interval()
        say(f"round {number}: {ratio:.4f} +- {half:.4f}")
        if (number >= MIN_ROUNDS and half <= half_width) or time.monotonic() > ends_at:
            break
    return measured


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sf", type=float, default=1.0, help="TPC-H's scale factor (default 1)")
    parser.add_argument("--queries", default="", help="numbers, by commas (default: all 22)")
    parser.add_argument("--max-minutes", type=float, default=60.0)
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
        "observations": sum(map(len, measured.seconds.values())),
        "ratios": measured.ratios(),
        **before,
    }
    rows = [
        (name, each, statistics.median(without / 2 for _, without in measured.seconds[name]))
        for name, each in measured.ratios().items()
    ]
    print_figures(figures, asked.json, [table("idle", ("query", "with / without", "without, s"), rows)])


if __name__ == "__main__":
    main()
