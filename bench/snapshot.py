"""What does it cost to look at a running query, and to have somebody there who can?

The picture: a query of `--stages` shuffles runs, and while it does the agent's snapshot is taken again and
again, one call into the JVM each; the median counts. The memory: a driver with the agent and one without do
the same work, and the difference of what their Python processes hold is the agent's.

    python -m bench.snapshot [--stages 30] [--calls 50] [--json]
"""

import statistics
import time
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from bench.drivers import arguments, bench, driver, machine, print_figures, scratch, table
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from godwit.orchestrator.observe import control_of, observe
from godwit.planrewrite.stagegraph import Kind, State

ROWS = 20_000
WARM_UP_CALLS = 20
WORK_QUERIES = 20
RSS_SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Pictures:
    """Times of single calls at one moment of the query."""

    shuffles: int
    finished: int
    size_bytes: int  # of the picture
    calls_ms: list[float]


def pictures(stages: int, calls: int) -> list[Pictures]:
    """In the driver: at the query's beginning, in its middle and towards its end, once warm."""
    here = bench()
    points = (1, stages // 2, stages - 2)
    taken = []
    for at in (points[1], *points):
        with here.stopped(lambda: chain(stages).collect(), stages=at):
            taken.append(take(calls))
    return taken[1:]


def take(calls: int) -> Pictures:
    here = bench()
    for _ in range(WARM_UP_CALLS):
        text = here.jvm.snapshot()
    shuffles = [each for each in here.graph().pipelines.values() if each.kind is Kind.SHUFFLE]
    finished = sum(each.state is State.FINISHED for each in shuffles)
    return Pictures(len(shuffles), finished, len(text), [timed(here.jvm.snapshot) for _ in range(calls)])


def timed(call: Any) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def chain(stages: int) -> Any:
    """Joins on ever another key: each needs an exchange of what was joined before, and one of its own."""
    spark = bench().spark
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
    links = [
        spark.range(ROWS).selectExpr(f"id AS a{number}", f"(id * 7 + {number}) % {ROWS} AS b{number}")
        for number in range(stages // 2 + 1)
    ]

    def joined(left: Any, number: int) -> Any:
        return left.join(links[number], left[f"b{number - 1}"] == links[number][f"a{number}"])

    return reduce(joined, range(1, len(links)), links[0]).selectExpr(f"sum(b{len(links) - 1})")


def work(queries: int) -> int:
    """In the driver, with the agent or without: the same work; then how many bytes its Python process holds."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    for number in range(queries):
        spark.range(100_000).selectExpr(f"id % {number + 7} AS key").groupBy("key").count().collect()
    return held_bytes()


def held_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kilobytes) * 1024


def agent_bytes(folder: Path) -> int:
    with driver("plain", folder) as plain:
        without = plain.ask(work, WORK_QUERIES)
    with driver("agent", folder, job="memory") as agent:
        agent.ask(work, WORK_QUERIES)
        job = JobFolder(open_store(f"file://{folder}/store"), "memory").view()
        for _ in range(WORK_QUERIES):
            control_of(job).status()
            observe(job)
        time.sleep(RSS_SETTLE_SECONDS)
        return agent.ask(held_bytes) - without


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--stages", type=int, default=30)
    parser.add_argument("--calls", type=int, default=50)
    asked = parser.parse_args()
    before = machine()
    with scratch() as folder:
        with driver("snapshot", folder) as spark:
            taken = spark.ask(pictures, asked.stages, asked.calls)
        memory = agent_bytes(folder)
    figures = {
        "snapshot_ms": round(max(statistics.median(each.calls_ms) for each in taken), 2),
        "agent_mb": round(memory / 1e6, 1),
        "pictures": [vars(each) for each in taken],
        **before,
    }
    rows = [
        (each.finished, each.shuffles, each.size_bytes, statistics.median(each.calls_ms), max(each.calls_ms))
        for each in taken
    ]
    columns = ("stages finished", "of", "bytes", "median ms", "worst ms")
    print_figures(figures, asked.json, [table("snapshots of one query", columns, rows)])


if __name__ == "__main__":
    main()
