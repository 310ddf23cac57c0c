"""Does moving a query beat starting it again, on a target that is warm either way?

For each query: how long it takes at the source when nobody disturbs it (plain); how long it takes on a warm
standby, from when the source is gone (restart); and, with a notice at each of some fractions of the plain
time, how long from the notice to the last row on such a standby (migrate). Source and target are processes of
their own, started as `godwit run` starts them, fresh for each run, and warmed up alike. "Vacate" is from the
notice until the source's process is gone, less the time in which running stages were finished. Medians over
the rounds; a cell is won if the median migration took less than the median restart.

    python -m bench.migrate [--sf 1] [--tpch 9,18,21] [--tpcds 14,23,64,72] [--at 0.25,0.5,0.8] [--rounds 3]
"""

import json
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.drivers import CONF, arguments, machine, print_figures, say, scratch, table
from godwit.extractor.control import DriverUnreachable, Event
from godwit.extractor.errors import MoveRefused
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from godwit.orchestrator.launch import Launch
from godwit.orchestrator.migrate import follow
from godwit.orchestrator.observe import control_of
from godwit.orchestrator.pools import Pool
from tests.tpc import data
from tests.tpc.queries import Query, suite_queries

PROGRAM = """\
import json
import sys
import time
from pathlib import Path

from godwit.extractor.jvm import warm_context
from pyspark.sql import SparkSession

tables, query, green_light, answer = map(Path, sys.argv[1:])
if not green_light.exists():
    warm_context()  # as a standby does before it waits
spark = SparkSession.builder.getOrCreate()
for table in sorted(tables.iterdir()):
    spark.read.parquet(str(table)).createOrReplaceTempView(table.name)
answer.with_suffix(".ready").touch()
while not green_light.exists():
    time.sleep(0.01)
rows = spark.sql(query.read_text()).collect()
answer.write_text(json.dumps({"rows": len(rows), "at": time.time()}))
"""

COLUMNS = ("query", "plain s", "at", "vacate s", "drain s", "migrate s", "restart s", "", "kept", "MB")
CORES = 2
DEADLINE_SECONDS = 60.0
SURE_FRACTION, SURE_PLAIN_SECONDS = 0.5, 4.0
"""From here on a migration has to win."""


@dataclass(frozen=True)
class Move:
    """One migration. Without `seconds`, the query came to its end at the source."""

    seconds: float | None  # from the notice to the last row on the target
    vacate_seconds: float = 0.0  # beyond finishing the running stages
    drain_seconds: float = 0.0
    stages_kept: int = 0
    bytes_moved: int = 0


@dataclass(frozen=True)
class Cell:
    """One query and one moment of the notice: medians."""

    query: str
    fraction: float
    plain_seconds: float
    restart_seconds: float
    migrate_seconds: float | None  # None: the query ended at the source
    vacate_seconds: float
    drain_seconds: float
    stages_kept: int
    bytes_moved: int

    @property
    def won(self) -> bool | None:
        return None if self.migrate_seconds is None else self.migrate_seconds < self.restart_seconds

    @property
    def must_win(self) -> bool:
        return self.fraction >= SURE_FRACTION and self.plain_seconds >= SURE_PLAIN_SECONDS


class Race:
    """One run of one query: a source, and if need be a target that stands by."""

    def __init__(self, folder: Path, query: Query, sf: float, name: str) -> None:
        self._folder = folder
        self._job = JobFolder(open_store(str(folder / "store"), create=True), name)
        self._green, self._answer = folder / f"{name}.green", folder / f"{name}.json"
        self._ready = folder / f"{name}.ready"
        (folder / "program.py").write_text(PROGRAM)
        (folder / f"{query.name}.sql").write_text(query.spark_text)
        paths = ("program.py", data.suite(query.suite, sf), f"{query.name}.sql", self._green, self._answer)
        self._words = [str(folder / path) for path in paths]

    def plain(self) -> float:
        with self._pool("source", standby=False) as source:
            source.until(self._ready.exists)
            return self._finished(source, self._start())

    def restart(self) -> float:
        """The source leaves before it has begun."""
        with self._pools() as (source, target):
            for event in control_of(self._job.view()).migrate(DEADLINE_SECONDS):
                if event["phase"] == "committed":
                    self._start()
            source.exit_code()
            return self._finished(target, time.time())

    def migrate(self, after_seconds: float) -> Move:
        with self._pools() as (source, target):
            time.sleep(max(0.0, self._start() + after_seconds - time.time()))
            steps = Steps(time.time())
            try:
                events = control_of(self._job.view()).migrate(DEADLINE_SECONDS)
                moved = follow(self._job.name, steps.noting(events), lambda event: None, time.monotonic)
            except (MoveRefused, DriverUnreachable):
                source.exit_code()
                if not self._answer.exists():
                    raise
                return Move(None)
            source.exit_code()
            vacated_seconds = time.time() - steps.noticed_at
            if self._answer.exists():
                return Move(None)
            return Move(
                self._finished(target, steps.noticed_at),
                vacated_seconds - steps.drain_seconds,
                steps.drain_seconds,
                moved.stages_kept,
                moved.bytes,
            )

    @contextmanager
    def _pools(self) -> Iterator[tuple[Pool, Pool]]:
        with self._pool("source", standby=False) as source:
            source.until(self._ready.exists)
            with self._pool("target", standby=True) as target:
                target.until(lambda: target.said("standing by for"))
                yield source, target

    @contextmanager
    def _pool(self, name: str, standby: bool) -> Iterator[Pool]:
        pool = Pool(name, CORES, self._folder / f"{self._job.name}-{name}.log")
        conf = tuple(f"{key}={value}" for key, value in CONF.items())
        store_uri, job, master = self._job.store.uri, self._job.name, f"local[{CORES}]"
        pool.start(Launch(store_uri, job, standby=standby, master=master, conf=conf), self._words)
        try:
            yield pool
        finally:
            pool.stop()

    def _start(self) -> float:
        self._green.touch()
        return time.time()

    def _finished(self, pool: Pool, clock_from: float) -> float:
        pool.until(self._job.ended)
        return float(json.loads(self._answer.read_text())["at"]) - clock_from


class Steps:
    """When the steps of a move were told."""

    def __init__(self, noticed_at: float) -> None:
        self.noticed_at = noticed_at
        self._at: dict[str, float] = {}

    def noting(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._at.setdefault(event["phase"], time.time())
            yield event

    @property
    def drain_seconds(self) -> float:
        """The running stages are done when the extraction begins, or, with nothing to extract, the commit."""
        drained_at = self._at.get("extracting", self._at.get("committed", self.noticed_at))
        return drained_at - self._at.get("draining", drained_at)


def measure(folder: Path, query: Query, asked: Any) -> list[Cell]:
    plain, restarts = [], []
    moves: dict[float, list[Move]] = {fraction: [] for fraction in asked.at}
    for number in range(asked.rounds):
        name = f"{query.name}-{number}"
        plain.append(Race(folder, query, asked.sf, f"{name}-plain").plain())
        restarts.append(Race(folder, query, asked.sf, f"{name}-restart").restart())
        for fraction in asked.at:
            race = Race(folder, query, asked.sf, f"{name}-{fraction:g}")
            moves[fraction].append(race.migrate(fraction * statistics.median(plain)))
            say(f"{name}: plain {plain[-1]:.2f}, restart {restarts[-1]:.2f}, {moves[fraction][-1]}")
    return [cell(query.name, each, plain, restarts, moves[each]) for each in asked.at]


def cell(query: str, fraction: float, plain: list[float], restarts: list[float], moves: list[Move]) -> Cell:
    plain_seconds, restart_seconds = statistics.median(plain), statistics.median(restarts)
    moved = [each for each in moves if each.seconds is not None]
    # A query that mostly ends at the source has nothing to be compared.
    if 2 * len(moved) <= len(moves):
        return Cell(query, fraction, plain_seconds, restart_seconds, None, 0.0, 0.0, 0, 0)
    return Cell(
        query,
        fraction,
        plain_seconds,
        restart_seconds,
        statistics.median(each.seconds for each in moved if each.seconds is not None),
        statistics.median(each.vacate_seconds for each in moved),
        statistics.median(each.drain_seconds for each in moved),
        int(statistics.median(each.stages_kept for each in moved)),
        int(statistics.median(each.bytes_moved for each in moved)),
    )


def summary(cells: list[Cell]) -> dict[str, Any]:
    moved = [each for each in cells if each.won is not None]
    sure = [each for each in moved if each.must_win]
    won = sum(bool(each.won) for each in moved)
    return {
        "cells": len(cells),
        "cells_moved": len(moved),
        "won_percent": round(100 * won / max(1, len(moved)), 1),
        "cells_that_must_win": len(sure),
        "of_them_won": sum(bool(each.won) for each in sure),
        "median_vacate_s": statistics.median([each.vacate_seconds for each in moved] or [0.0]),
    }


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def fractions(text: str) -> list[float]:
    return [float(word) for word in text.split(",") if word]


def chosen(suite: str, wanted: list[int]) -> list[Query]:
    return [query for query in suite_queries(suite) if query.number in wanted]


def row(each: Cell) -> tuple[object, ...]:
    verdict = {True: "won", False: "LOST", None: "ended at the source"}[each.won]
    times = (each.plain_seconds, each.fraction, each.vacate_seconds, each.drain_seconds)
    ends = (each.migrate_seconds, each.restart_seconds)
    return (each.query, *times, *ends, verdict, each.stages_kept, f"{each.bytes_moved / 1e6:.1f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sf", type=float, default=1.0, help="scale factor (default 1)")
    parser.add_argument("--tpch", type=numbers, default=[9, 18, 21], metavar="N,N")
    parser.add_argument("--tpcds", type=numbers, default=[14, 23, 64, 72], metavar="N,N")
    parser.add_argument("--at", type=fractions, default=[0.25, 0.5, 0.8], metavar="F,F")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    queries = chosen("tpch", asked.tpch) + chosen("tpcds", asked.tpcds)
    for query in queries:
        data.suite(query.suite, asked.sf)
    before = machine()
    cells: list[Cell] = []
    with scratch() as folder:
        for query in queries:
            cells += measure(folder, query, asked)
    figures = {**summary(cells), "table": [{**asdict(each), "won": each.won} for each in cells], **before}
    print_figures(figures, asked.json, [table("migration against a restart", COLUMNS, list(map(row, cells)))])


if __name__ == "__main__":
    main()
