"""What does Godwit cost while nothing happens? Runtime with the agent over runtime without it, on TPC-H.

Two warm drivers, one with the agent, run the same queries in turn (with, without, without, with), so that
whatever slows the machine down for a while slows both. It goes on until the geometric mean of the ratios is
known to within `--half-width` with 95 % confidence, or time is up. A `--control` has the agent in neither
driver: how far from 1 two JVMs are by themselves.

    python -m bench.idle [--sf 1] [--queries 1,6,18] [--max-minutes 30] [--control] [--json]
"""

import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from bench.drivers import Driver, DriverFailed, arguments, driver, machine, print_figures, say, scratch, table
from godwit.extractor.sparkconf import EXTENSIONS
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


def register(tables: Path) -> None:
    """In the driver: the suite's tables as views."""
    spark = SparkSession.builder.getOrCreate()
    for folder in data.tables(tables):
        spark.read.parquet(str(folder)).createOrReplaceTempView(folder.name)


def has_agent() -> bool:
    """In the driver: whether Godwit is in its Spark."""
    extensions = SparkSession.builder.getOrCreate().sparkContext.getConf().get("spark.sql.extensions", "")
    return EXTENSIONS in str(extensions)


def run_query(text: str) -> float:
    """In the driver: how many seconds it takes to the last row."""
    spark = SparkSession.builder.getOrCreate()
    started = time.perf_counter()
    spark.sql(text).collect()
    return time.perf_counter() - started


def one_round(query: Query, agent: Driver, plain: Driver) -> tuple[float, float]:
    text = query.spark_text
    first, second = agent.ask(run_query, text), plain.ask(run_query, text)
    third, fourth = plain.ask(run_query, text), agent.ask(run_query, text)
    return first + fourth, second + third


def measure(
    queries: list[Query], agent: Driver, plain: Driver, minutes: float, half_width: float
) -> Measured:
    for _ in range(WARM_UP_ROUNDS):
        for query in queries:
            one_round(query, agent, plain)
    measured = Measured()
    ends_at = time.monotonic() + minutes * 60
    while time.monotonic() < ends_at:
        measured.rounds.append({query.name: one_round(query, agent, plain) for query in queries})
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
    parser.add_argument("--control", action="store_true", help="no agent in either driver")
    asked = parser.parse_args()
    wanted = {int(number) for number in asked.queries.split(",") if number}
    queries = [query for query in tpch_queries() if not wanted or query.number in wanted]
    tables, before = data.tpch(asked.sf), machine()
    job = None if asked.control else "idle"
    with scratch() as folder, driver("agent", folder, job=job) as agent, driver("plain", folder) as plain:
        for each in (agent, plain):
            each.ask(register, tables)
        if (agent.ask(has_agent), plain.ask(has_agent)) != (not asked.control, False):
            raise DriverFailed("the agent is not where it should be")
        measured = measure(queries, agent, plain, asked.max_minutes, asked.half_width)
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
