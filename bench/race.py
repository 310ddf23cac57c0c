"""One run of one query, as it would be in two pools of machines: a source, and a target that stands by.

Both are processes of their own, started as `godwit run` starts them, and warm before the clock runs: the
source has answered other queries, as a job has that is under way, and a standby rehearses by itself.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.drivers import CONF
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

CORES = 2
WARM_UP = {"tpch": (3, 5, 10), "tpcds": (7, 25, 53)}
"""What the source has answered before: none is among the queries that are measured."""

DEADLINE_SECONDS = 60.0

PROGRAM = """\
import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

tables, query, warm_up, green_light, answer = map(Path, sys.argv[1:])
spark = SparkSession.builder.getOrCreate()
for table in sorted(tables.iterdir()):
    spark.read.parquet(str(table)).createOrReplaceTempView(table.name)
if not green_light.exists():
    for text in warm_up.read_text().split(";"):
        spark.sql(text).collect()
answer.with_suffix(".ready").touch()
while not green_light.exists():
    time.sleep(0.01)
rows = spark.sql(query.read_text()).collect()
answer.with_suffix(".part").write_text(json.dumps({"rows": len(rows), "at": time.time()}))
answer.with_suffix(".part").rename(answer)
while answer.with_suffix(".stay").exists():
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Move:
    """One migration. Without `seconds`, the query came to its end at the source."""

    seconds: float | None  # from the notice to the last row on the target
    vacate_seconds: float = 0.0  # beyond finishing the running stages
    drain_seconds: float = 0.0
    stages_kept: int = 0
    bytes_moved: int = 0


class Race:
    """One run of one query: a source, and if need be a target that stands by."""

    def __init__(self, folder: Path, query: Query, sf: float, name: str) -> None:
        self._folder = folder
        self._job = JobFolder(open_store(str(folder / "store"), create=True), name)
        self._green, self._answer = folder / f"{name}.green", folder / f"{name}.json"
        self._ready, self._stay = folder / f"{name}.ready", folder / f"{name}.stay"
        (folder / "program.py").write_text(PROGRAM)
        (folder / f"{query.name}.sql").write_text(query.spark_text)
        before = [each for each in suite_queries(query.suite) if each.number in WARM_UP[query.suite]]
        (folder / f"{query.suite}.sql").write_text(";".join(each.spark_text for each in before))
        tables, texts = data.suite(query.suite, sf), (f"{query.name}.sql", f"{query.suite}.sql")
        paths = ("program.py", tables, *texts, self._green, self._answer)
        self._words = [str(folder / path) for path in paths]

    def plain_and_restart(self) -> tuple[float, float]:
        """The source answers undisturbed, and stays until it is moved out with nothing under way: the target
        has to begin anew, from when the source is gone."""
        self._stay.touch()
        with self._pools() as (source, target):
            started_at = self._start()
            source.until(self._answer.exists)
            plain_seconds = self._answered_at() - started_at
            self._answer.unlink()
            for _ in control_of(self._job.view()).migrate(DEADLINE_SECONDS):
                pass
            source.exit_code()
            left_at = time.time()
            self._stay.unlink()
            return plain_seconds, self._finished(target, left_at)

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
        """Both get warm side by side, before the clock runs."""
        with self._pool("source", standby=False) as source:
            source.until(lambda: self._job.running() is not None)
            with self._pool("target", standby=True) as target:
                source.until(self._ready.exists)
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
        return self._answered_at() - clock_from

    def _answered_at(self) -> float:
        return float(json.loads(self._answer.read_text())["at"])


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
