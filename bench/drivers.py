"""A figure of a busy or a cold machine says little, and one of two different set-ups says nothing.

So every benchmark measures in driver processes of the same shape, which stay alive from its warm-up to its
end and are asked for one thing at a time; and it says how busy the machine was before it began.

    with driver("plain", folder) as plain:
        seconds = plain.ask(run_query, text)      # `run_query` is called in the other process

Only one JVM works at a time, the others wait. At most two are alive.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from godwit.orchestrator.launch import Launch
from godwit.planrewrite.stagegraph import StageGraph

ROOT = Path(__file__).parents[1]
CONF = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
QUIET_LOAD = 0.7

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Call:
    """A function of a module that both processes can import, and what it is given."""

    module: str
    function: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Raised:
    traceback: str


class DriverFailed(Exception):  # noqa: N818
    pass


class Driver:
    """A PySpark process that does what it is asked; with `job`, Godwit's agent is in it."""

    def __init__(self, name: str, folder: Path, job: str | None, conf: dict[str, str]) -> None:
        self._log = folder / f"{name}.log"
        self._connection, theirs = Pipe()
        settings = {**CONF, "spark.local.dir": str(folder / f"{name}.local"), **conf}
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.drivers"],
                cwd=ROOT,
                env=environment(folder, job, settings),
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
            )

    def ask(self, function: Callable[..., Answer], *args: Any) -> Answer:
        self._connection.send(Call(module_of(function), function.__name__, args))
        try:
            answer = self._connection.recv()
        except EOFError:
            answer = Raised(self._log.read_text(errors="replace")[-3000:])
        if isinstance(answer, Raised):
            raise DriverFailed(answer.traceback)
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def driver(
    name: str, folder: Path, *, job: str | None = None, conf: dict[str, str] | None = None
) -> Iterator[Driver]:
    made = Driver(name, folder, job, conf or {})
    try:
        yield made
    finally:
        made.close()


def environment(folder: Path, job: str | None, settings: dict[str, str]) -> dict[str, str]:
    conf = tuple(f"{key}={value}" for key, value in settings.items())
    launch = Launch(f"file://{folder}/store", job or "", master="local[2]", conf=conf)
    made = launch.environment(os.environ)
    return made if job else {key: value for key, value in made.items() if not key.startswith("GODWIT_")}


def module_of(function: Callable[..., Any]) -> str:
    """A function of the program itself is to be found by the module's real name."""
    if function.__module__ != "__main__":
        return function.__module__
    return str(sys.modules["__main__"].__spec__.name)  # type: ignore[union-attr]


def serve(asking: Connection) -> None:
    """The driver's side: one call after another, until nobody asks any more."""
    while True:
        try:
            call: Call = asking.recv()
        except EOFError:
            return
        try:
            answer = getattr(importlib.import_module(call.module), call.function)(*call.args)
        except Exception:
            answer = Raised(traceback.format_exc())
        asking.send(answer)


class Bench:
    """In the driver: Spark with Godwit's classes in it and nobody who serves notices, so that a query which
    stops at a stage waits for whoever measures."""

    def __init__(self) -> None:
        import pyspark

        from godwit.extractor import jvm, sparkconf

        gateway = jvm.launch({})
        self.jvm, jar = jvm.connect(gateway)
        additions = sparkconf.additions(dict(pyspark.SparkConf().getAll()), jar, {})
        self.spark = pyspark.sql.SparkSession.builder.config(map={**additions}).getOrCreate()
        self.jvm.start(self.spark.sparkContext, stop_after_stages=None, grace_ms=30_000)
        self.java = gateway.jvm

    def graph(self) -> StageGraph:
        return StageGraph.from_json(self.jvm.snapshot())

    @contextmanager
    def stopped(self, action: Callable[[], None], stages: int) -> Iterator[None]:
        """The action runs in another thread, waits where `stages` more stages are done, and goes on after."""
        gate = self.java.org.apache.spark.sql.godwit.Gate
        gate.setStopAfter(self.graph().stages_finished + stages)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(action)
            try:
                while self.jvm.await_notice(50) is None:
                    if running.done():
                        raise DriverFailed(f"ended before {stages} stages: {running.exception()}")
                self.jvm.await_quiet(60_000)
                yield
            finally:
                gate.setStopAfter(0)
                self.jvm.open_gate()
            running.result()


@cache
def bench() -> Bench:
    """In the driver: its one Spark."""
    return Bench()


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="godwit-bench-") as folder:
        yield Path(folder)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    return parser


def machine() -> dict[str, float | bool]:
    """How busy it is before a benchmark adds to it. Figures of a machine that is not quiet do not count."""
    load = os.getloadavg()[0]
    return {"load_before": round(load, 2), "quiet": load < QUIET_LOAD}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def print_figures(figures: dict[str, Any], as_json: bool, tables: Sequence[Table]) -> None:
    if as_json:
        print(json.dumps(figures))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    for table in tables:
        console.print(table)
    plain = {key: value for key, value in figures.items() if not isinstance(value, list | dict)}
    console.print(
        ", ".join(f"{key} {value}" for key, value in plain.items()), highlight=False, soft_wrap=True
    )


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)


if __name__ == "__main__":
    # By its real name, as the other process knows what is sent.
    importlib.import_module("bench.drivers").serve(Connection(os.dup(0)))
