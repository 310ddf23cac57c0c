"""What a move saves can only be seen beside what happens without it, on the same pools and the same data.

So there are two acts, each with a "spot" pool, and an "on-demand" pool with another number of cores that
stands by, warm. In the first the spot pool goes away before it has computed anything, and the query runs from
its start on the on-demand pool: that is an uninterrupted run, and what a restart costs. In the second a
notice comes when the query has run for a while. Both clocks stop with the last row.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from godwit.extractor.control import DriverUnreachable
from godwit.extractor.errors import MoveRefused
from godwit.extractor.job import JobFolder, JobState
from godwit.extractor.store import open_store
from godwit.orchestrator.draw import progress
from godwit.orchestrator.launch import Launch
from godwit.orchestrator.migrate import Moved, follow, sentence
from godwit.orchestrator.observe import control_of, observe
from godwit.orchestrator.pools import Pool
from godwit.orchestrator.stage import Stage

PROGRAM = '''\
"""An ordinary PySpark program: tables, one query, its rows into a file. It waits for a green light, so that
both pools are warm when the clock starts."""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

tables, query, green_light, answer = map(Path, sys.argv[1:])
spark = SparkSession.builder.getOrCreate()
for table in sorted(tables.iterdir()):
    spark.read.parquet(str(table)).createOrReplaceTempView(table.name)
while not green_light.exists():
    time.sleep(0.01)
rows = spark.sql(query.read_text()).collect()
answer.write_text(json.dumps({"rows": [[str(value) for value in row] for row in rows], "at": time.time()}))
'''

SPOT_CORES, ON_DEMAND_CORES = 2, 4
CONF = (
    "spark.driver.memory=1g",
    "spark.sql.shuffle.partitions=8",
    "spark.ui.enabled=false",
    "spark.log.level=ERROR",
)
DEADLINE_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    rows: list[list[str]]
    seconds: float  # on the clock of its act


class Demonstration:
    def __init__(self, folder: Path, tables: Path, query: str, stage: Stage) -> None:
        self._folder = folder
        self._tables = tables
        self._stage = stage
        self._store = open_store(str(folder / "store"), create=True)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "query.sql").write_text(query)

    def restart(self) -> Answer:
        job = JobFolder(self._store, "restart")
        with self._warm_pools(job) as (spot, on_demand):
            self._vacate(job, spot)
            started_at = self._show_green_light(job)
            return self._answer(job, on_demand, started_at)

    def move(self, notice_after_seconds: float) -> tuple[Moved, Answer]:
        job = JobFolder(self._store, "move")
        with self._warm_pools(job) as (spot, on_demand):
            notice_at = self._show_green_light(job) + notice_after_seconds
            spot.until(lambda: self._look(job, spot) > 0 and time.time() >= notice_at)
            noticed_at = time.time()
            try:
                moved = self._vacate(job, spot)
            except MoveRefused as error:
                raise MoveRefused(str(error), next_step="show it again with a larger --scale") from error
            return moved, self._answer(job, on_demand, noticed_at)

    @contextmanager
    def _warm_pools(self, job: JobFolder) -> Iterator[tuple[Pool, Pool]]:
        """One has the job and waits for the green light, the other stands by."""
        spot = Pool("spot", SPOT_CORES, self._folder / f"{job.name}-spot.log")
        on_demand = Pool("on-demand", ON_DEMAND_CORES, self._folder / f"{job.name}-on-demand.log")
        self._stage.enter(spot, on_demand)
        try:
            self._start(job, spot)
            spot.until(job.running)
            self._stage.tell(spot, "warm, has the job")
            self._start(job, on_demand, standby=True)
            on_demand.until(lambda: on_demand.said("standing by for"))
            self._stage.tell(on_demand, "warm, stands by")
            yield spot, on_demand
        finally:
            spot.stop()
            on_demand.stop()

    def _start(self, job: JobFolder, pool: Pool, standby: bool = False) -> None:
        launch = Launch(self._store.uri, job.name, standby=standby, master=f"local[{pool.cores}]", conf=CONF)
        paths = (
            self._folder / "program.py",
            self._tables,
            self._folder / "query.sql",
            self._green_light(job),
            self._answer_file(job),
        )
        self._stage.tell(pool, "starts Spark")
        pool.start(launch, [str(path) for path in paths])

    def _vacate(self, job: JobFolder, spot: Pool) -> Moved:
        events = control_of(job.view()).migrate(DEADLINE_SECONDS)
        moved = follow(
            job.name, events, lambda event: self._stage.tell(spot, sentence(event)), time.monotonic
        )
        code = spot.exit_code()
        self._stage.tell(spot, f"vacated, exit code {code}")
        return moved

    def _answer(self, job: JobFolder, on_demand: Pool, clock_from: float) -> Answer:
        def finished() -> bool:
            self._look(job, on_demand)
            return job.ended() is not None

        on_demand.until(finished)
        self._stage.tell(on_demand, "done")
        told = json.loads(self._answer_file(job).read_text())
        return Answer(told["rows"], told["at"] - clock_from)

    def _look(self, job: JobFolder, pool: Pool) -> float:
        """Shows how far the query has come in its pool, and says it: between 0 and 1."""
        view = job.view()
        try:
            seen = observe(view) if view.state is JobState.RUNNING else None
        except DriverUnreachable:
            # One driver has left, and the other has not said yet where it can be asked.
            return 0.0
        if seen is None or not seen.graph.queries:
            return 0.0
        self._stage.show(seen)
        self._stage.tell(pool, f"runs the query: {progress(seen.graph.pipelines.values())} pipelines")
        return seen.graph.progress

    def _show_green_light(self, job: JobFolder) -> float:
        """When it was shown, in seconds since 1970."""
        self._green_light(job).touch()
        return time.time()

    def _green_light(self, job: JobFolder) -> Path:
        return self._folder / f"{job.name}.green"

    def _answer_file(self, job: JobFolder) -> Path:
        return self._folder / f"{job.name}.json"
