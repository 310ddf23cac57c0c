"""Both ends of a move in one JVM.

Whether stored rows may stand for an exchange, and what happens when they are lost, does not depend on whose
process they were stored by. So a query is stopped, its state is written, it goes on to its end; then the
state is loaded and the query is planned again, as the next driver would. All of it is the real thing.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from godwit.extractor import decide, sparkconf
from godwit.extractor.facade import Report
from godwit.extractor.jvm import SparkJvm, connect, launch
from godwit.extractor.manifest import Fragment
from godwit.planrewrite.select import select
from godwit.planrewrite.stagegraph import StageGraph

PATIENCE_SECONDS = 90.0
"""A query that takes longer hangs."""

Choose = Callable[[StageGraph], Sequence[str]]


@dataclass(frozen=True)
class Capture:
    """A query's state in the middle of its way, and the rows that it gave at its end."""

    folder: Path
    graph: StageGraph
    fragments: tuple[Fragment, ...]
    refused: Mapping[str, str]  # pipeline -> why Spark's rows were not written
    rows: list[Any]

    def files(self, kind: str = "") -> list[Path]:
        """The block files, of fragments whose label contains `kind`."""
        folders = [self.folder / each.folder for each in self.fragments if kind in each.label]
        return sorted(file for folder in folders for file in folder.glob("*.blocks"))


class Running:
    """A query in a thread of its own."""

    def __init__(self, run: Callable[[], list[Any]]) -> None:
        self._run = run
        self._rows: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        try:
            self._rows = self._run()
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def rows(self, patience_seconds: float = PATIENCE_SECONDS) -> list[Any]:
        self._thread.join(patience_seconds)
        assert self.ended, "the query hangs"
        if self._error is not None:
            raise self._error
        return self._rows


class Driver:
    """A Spark driver with Godwit's JVM part in it; the test does what the agent would do."""

    def __init__(self, spark: SparkSession, jvm: SparkJvm) -> None:
        self.spark = spark
        self.jvm = jvm
        self._gate = spark._jvm.org.apache.spark.sql.godwit.Gate
        java = spark._jvm.java
        self._said = java.io.ByteArrayOutputStream()
        java.lang.System.setErr(java.io.PrintStream(self._said, True))
        jvm.start(spark.sparkContext, None, 30_000)
        self.clean()

    def clean(self) -> None:
        self._gate.setStopAfter(0)
        self.jvm.open_gate()
        self.jvm.load({})

    def graph(self) -> StageGraph:
        return StageGraph.from_json(self.jvm.snapshot())

    def stop_after(self, stages: int) -> None:
        self._gate.setStopAfter(self.graph().stages_finished + stages)

    def parked(self, query: Running) -> bool:
        """True once the query waits at the gate; False if it came to its end before that."""
        while not query.ended:
            if self.jvm.await_notice(50) is not None:
                assert self.jvm.await_quiet(int(PATIENCE_SECONDS * 1000))
                return True
        return False

    def moved(self, frame: DataFrame, folder: Path, stages: int = 1, choose: Choose | None = None) -> Capture:
        self.clean()
        self.stop_after(stages)
        query = Running(frame.collect)
        assert self.parked(query), "the query has ended before it could be stopped"
        graph = self.graph()
        wanted = (choose or chosen)(graph)
        written = self.extracted(graph, folder, wanted)
        self.jvm.open_gate()
        return replace(written, rows=query.rows())

    def extracted(
        self, graph: StageGraph, folder: Path, wanted: Sequence[str], timeout_ms: int = 60_000
    ) -> Capture:
        prints = {each: str(graph.pipelines[each].fingerprint) for each in wanted}
        extraction = self.jvm.extract(f"file://{folder}", prints, timeout_ms)
        fragments = tuple(decide.fragment(each, ".", graph, {}) for each in extraction.written)
        return Capture(
            folder, graph, fragments, {each.pipeline: each.reason for each in extraction.not_written}, []
        )

    def load(self, *captures: Capture) -> None:
        self.jvm.load({f"file://{c.folder}/{f.folder}": f for c in captures for f in c.fragments})

    def report(self) -> Report:
        return self.jvm.report()

    def said(self) -> str:
        """What the JVM has written to its standard error since it was asked last."""
        text = str(self._said.toString())
        self._said.reset()
        return text

    def resumed(
        self, frame: DataFrame, capture: Capture, between: Callable[[], None] | None = None
    ) -> list[Any]:
        """The rows of the query planned anew over the stored state; `between` is after its first stage."""
        self.load(capture)
        if between is None:
            return Running(frame.collect).rows()
        self.stop_after(1)
        query = Running(frame.collect)
        assert self.parked(query), "the query has ended before its middle"
        between()
        self.jvm.open_gate()
        return query.rows()

    def prints(self, frame: DataFrame) -> list[str]:
        """The fingerprint of each exchange of the initial plan, or why it has none, from the top."""
        fingerprint = self.spark._jvm.org.apache.spark.sql.godwit.Fingerprint(
            frame.sparkSession._jsparkSession
        )
        plan = frame._jdf.queryExecution().executedPlan().initialPlan()
        return [told(fingerprint.exchange(each)) for each in exchanges(plan)]


def chosen(graph: StageGraph) -> list[str]:
    return decide.to_write(graph, select(graph))


def finished(*kinds: str) -> Choose:
    """All that is finished and may be stored, whether it pays or not."""

    def choose(graph: StageGraph) -> list[str]:
        return [
            each.id
            for each in graph.pipelines.values()
            if each.kind in kinds and each.state == "finished" and each.fingerprint
        ]

    return choose


def told(either: Any) -> str:
    return str(either.toOption().get()) if either.isRight() else f"refused: {either.swap().toOption().get()}"


def exchanges(plan: Any) -> Iterator[Any]:
    if plan.nodeName() in ("Exchange", "BroadcastExchange"):
        yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from exchanges(children.apply(number))


@contextmanager
def driver(cores: int = 2, **conf: str) -> Iterator[Driver]:
    """`conf`: settings, with their dots or with two underscores for each; an empty one is left to Spark."""
    given = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "test",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.leafNodeDefaultParallelism": "2",
        "spark.sql.adaptive.coalescePartitions.minPartitionNum": "2",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    given = {key: value for key, value in given.items() if value}
    jvm, jar = connect(launch(given))
    settings = {**given, **sparkconf.additions(given, jar, {})}
    context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    made = Driver(SparkSession(context), jvm)
    try:
        yield made
    finally:
        made.clean()
        made.spark.stop()


def write(folder: Path, files: int = 1, **columns: Sequence[Any]) -> str:
    """A table of Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({name: list(values) for name, values in columns.items()})
    step = -(-table.num_rows // files)
    for number in range(files):
        part = table.slice(number * step, step)
        pyarrow.parquet.write_table(part, folder / f"part-{number}.parquet")
    return str(folder)


def compiled(source: str, jar: Path) -> Path:
    """Scala, by the compiler that is among Spark's own jars."""
    text = jar.with_suffix(".scala")
    text.write_text(source)
    jars = Path(pyspark.__file__).parent / "jars"
    compiler = ["java", "-Xss8m", "-cp", f"{jars}/*", "scala.tools.nsc.Main", "-usejavacp"]
    subprocess.run([*compiler, "-d", str(jar), str(text)], check=True)
    return jar


def wait_until(true: Callable[[], bool], patience_seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + patience_seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def holder(folder: Path) -> Callable[[int], int]:
    """A function of the executors that waits for a file `go`, and says by another that it waits."""
    go, held = str(folder / "go"), str(folder / "held")

    def wait(value: int) -> int:
        open(held, "w").close()
        while not os.path.exists(go):
            time.sleep(0.02)
        return value

    return wait
