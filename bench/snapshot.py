"""What does it cost to look at a running query, and to have somebody there who can?

The picture: a query of `--stages` shuffles runs, and while it does the agent's snapshot is taken again and
again, one call into the JVM each; then the same with the query stopped early, half way and late. The median
counts. The memory: a driver with the agent and one without do
the same work, and the difference of what their Python processes hold is the agent's.

    python -m bench.snapshot [--stages 30] [--calls 50] [--json]
"""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from bench.drivers import arguments, bench, driver, machine, print_figures, scratch, table
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from godwit.orchestrator.observe import control_of, observe
from godwit.planrewrite.stagegraph import Kind, StageGraph, State

ROWS = 20_000
PAUSE_SECONDS = 0.05
WORK_QUERIES = 20
RSS_SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Pictures:
    """Times of single calls, while the query runs or at one moment of it."""

    moment: str
    shuffles: int
    finished: int
    size_bytes: int  # of the picture
    calls_ms: list[float]


def pictures(stages: int, calls: int) -> list[Pictures]:
    """In the driver, once warm."""
    while_running(stages, calls)
    stops = {"early": 1, "half way": stages // 2, "late": stages - 2}
    return [while_running(stages, calls), *(while_stopped(stages, calls, *stop) for stop in stops.items())]


def while_running(stages: int, calls: int) -> Pictures:
    """As many as the query lasts for; again, if it was too short for so many calls."""
    graphs: list[tuple[StageGraph, int]] = []
    calls_ms: list[float] = []
    while len(calls_ms) < calls:
        with ThreadPoolExecutor(1) as thread:
            query = thread.submit(chain(stages).collect)
            while not query.done():
                elapsed_ms, text = timed_snapshot()
                if (graph := StageGraph.from_json(text)).queries:
                    graphs.append((graph, len(text)))
                    calls_ms.append(elapsed_ms)
                time.sleep(PAUSE_SECONDS)
            query.result()
    graph, size_bytes = graphs[len(graphs) // 2]
    return Pictures("running", *count(graph), size_bytes, calls_ms)


def while_stopped(stages: int, calls: int, moment: str, at: int) -> Pictures:
    with bench().stopped(lambda: chain(stages).collect(), stages=at):
        calls_ms = [timed_snapshot()[0] for _ in range(calls)]
        text = bench().jvm.snapshot()
    return Pictures(moment, *count(StageGraph.from_json(text)), len(text), calls_ms)


def count(graph: StageGraph) -> tuple[int, int]:
    shuffles = [each for each in graph.pipelines.values() if each.kind is Kind.SHUFFLE]
    return len(shuffles), sum(each.state is State.FINISHED for each in shuffles)


def timed_snapshot() -> tuple[float, str]:
    started = time.perf_counter()
    text = bench().jvm.snapshot()
    return (time.perf_counter() - started) * 1000, text


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
    """In the driver: how many bytes its Python process holds after this work."""
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
        job = JobFolder(open_store(f"file://{folder}/store", create=False), "memory").view()
        for _ in range(WORK_QUERIES):
            control_of(job).status()
            observe(job)
        time.sleep(RSS_SETTLE_SECONDS)
        return agent.ask(held_bytes) - without


def row(each: Pictures) -> tuple[object, ...]:
    median_ms, worst_ms = statistics.median(each.calls_ms), max(each.calls_ms)
    return each.moment, each.finished, each.shuffles, each.size_bytes, median_ms, worst_ms


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
        "snapshot_ms": round(statistics.median(taken[0].calls_ms), 2),
        "agent_mb": round(memory / 1e6, 1),
        "pictures": [vars(each) for each in taken],
        **before,
    }
    columns = ("query", "stages finished", "of", "bytes", "median ms", "worst ms")
    print_figures(figures, asked.json, [table("snapshots of one query", columns, list(map(row, taken)))])


if __name__ == "__main__":
    main()
