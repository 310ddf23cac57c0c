"""What does it cost to look at a running query, and to have somebody there who can?

The picture: a query of `--stages` shuffles runs, and while it does the agent's snapshot is taken again and
again, one call into the JVM each; then the same with the query stopped early, half way and late. The median
counts. The memory: a driver with the agent and one without do
the same work, and the difference of what their Python processes hold is the agent's.

    python -m bench.snapshot [--stages 30] [--calls 50] [--json]
"""

import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from bench.drivers import (
    CONF,
    DriverFailed,
    arguments,
    bench,
    driver,
    environment,
    machine,
    print_figures,
    scratch,
    table,
)
from godwit.extractor.job import JobFolder, JobView
from godwit.extractor.store import open_store
from godwit.orchestrator.observe import control_of, observe
from godwit.planrewrite.stagegraph import Kind, StageGraph, State

ROWS = 20_000
PAUSE_SECONDS = 0.05
LOOKS = 20

# Nothing of these benchmarks is in it: they import much of Godwit, and would hide what the agent imports.
PROGRAM = """\
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
for number in range(20):
    spark.range(100_000).selectExpr(f"id % {number + 7} AS key").groupBy("key").count().collect()
Path(sys.argv[1]).touch()
while True:
    time.sleep(1)
"""


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


def agent_bytes(folder: Path) -> int:
    return held_bytes(folder, "memory") - held_bytes(folder, None)


def held_bytes(folder: Path, job: str | None) -> int:
    """By the Python process of an ordinary program, after its work and after others have looked at it."""
    program, done = folder / "program.py", folder / f"done-{job}"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(done)]
    with subprocess.Popen(command, env=environment(folder, job, CONF), stderr=subprocess.DEVNULL) as process:
        try:
            while not done.exists():
                if process.poll() is not None:
                    raise DriverFailed(f"the program ended with exit code {process.returncode}")
                time.sleep(0.1)
            if job:
                look_at(JobFolder(open_store(f"file://{folder}/store", create=False), job).view())
            return resident_bytes(process.pid)
        finally:
            process.kill()


def look_at(job: JobView) -> None:
    for _ in range(LOOKS):
        control_of(job).status()
        observe(job)


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kilobytes) * 1024


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
