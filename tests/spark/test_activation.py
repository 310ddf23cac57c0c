"""Real programs in processes of their own, made movable by nothing but their environment."""

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pyspark
import pytest

from godwit.extractor.control import ControlClient
from godwit.extractor.job import JobFolder, JobState
from godwit.extractor.store import open_store
from godwit.planrewrite.stagegraph import Kind, StageGraph, State

START_SECONDS = 120.0
"""A Spark that starts on a busy machine."""

PROGRAM = """
import atexit, os, sys, time
from pyspark import SparkContext
from pyspark.sql import SparkSession, functions as F

here = os.path.dirname(os.path.abspath(__file__))
atexit.register(lambda: print("atexit of the program"))


def held(value):
    while not os.path.exists(here + "/go"):
        time.sleep(0.05)
    return value


def answer(spark):
    facts = spark.read.schema("k long, v long").parquet(here + "/facts")
    groups = spark.read.schema("k long, g long").parquet(here + "/groups")
    names = spark.read.schema("g long, name string").parquet(here + "/names")
    totals = facts.join(groups, "k").groupBy("g").agg(F.sum("v").alias("v"), F.count("*").alias("n"))
    slow = totals.join(names, "g").withColumn("v", F.udf(held, "long")("v"))
    sums = slow.repartition(3, "name").groupBy("name").agg(F.sum("v"), F.sum("n"))
    return [tuple(row) for row in sums.orderBy("name").collect()]


for _ in range(int(os.environ.get("CONTEXTS", "1"))):
    if "OWN_CONTEXT" in os.environ:
        SparkContext()
    spark = (
        SparkSession.builder.appName("etl")
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.sql.autoBroadcastJoinThreshold", -1)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    print("jvm:", spark.sparkContext._gateway.proc and spark.sparkContext._gateway.proc.pid, flush=True)
    if "FORK" in os.environ and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    rehearsed = spark.sparkContext.statusTracker().getJobIdsForGroup("godwit-rehearsal")
    print("warm:", len(rehearsed) > 0, flush=True)
    try:
        rows = answer(spark)
    finally:
        print("finally of the program", flush=True)
    if os.path.exists(here + "/fail"):
        raise ValueError("as you wish")
    print("rows:", rows)
    spark.stop()
"""

EXPECTED = [(f"name {g}", sum(3 * k for k in range(20_000) if k % 10 == g), 2_000) for g in range(10)]
"""What the program answers, computed without Spark."""


class Process:
    """A program that runs, with all that it says."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, text: str) -> None:
        wait_until(lambda: text in self.output, f"{text!r} in:\n{self.output}")

    def ended(self) -> int:
        return self._process.wait(START_SECONDS)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Desk:
    """A program with its data, and a store; one JVM at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "etl.py"
        self.program.write_text(PROGRAM)
        self.store_uri = f"file://{folder}/store"
        self.job = JobFolder(open_store(self.store_uri, create=True), "etl")
        self.processes: list[Process] = []
        write(folder / "facts", k=range(20_000), v=[3 * k for k in range(20_000)])
        write(folder / "groups", k=range(20_000), g=[k % 10 for k in range(20_000)])
        write(folder / "names", g=range(10), name=[f"name {g}" for g in range(10)])

    def start(self, launcher: str = "python", cores: int = 2, **environment: str) -> Process:
        submit = ["--master", f"local[{cores}]", "--driver-memory", "1g", "--conf", "spark.log.level=ERROR"]
        command, options = [sys.executable, str(self.program)], {}
        if launcher == "python":
            options["PYSPARK_SUBMIT_ARGS"] = " ".join([*submit, "pyspark-shell"])
        else:
            command = [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *submit,
                str(self.program),
            ]
        environment = {
            **os.environ,
            **options,
            "PYTHONHASHSEED": "0",
            "GODWIT_JOB": "etl",
            "GODWIT_STORE": self.store_uri,
            **environment,
        }
        process = Process(command, environment, self.folder / f"log-{len(self.processes)}")
        self.processes.append(process)
        return process

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def client(self) -> ControlClient:
        running = self.job.running()
        assert running is not None
        return ControlClient(running.endpoint, running.token)

    def held(self, process: Process) -> None:
        """Until everything beneath the stage that is held has finished, and that one runs."""
        process.said("godwit: ")

        def is_held() -> bool:
            graph = StageGraph.from_json(self.client().snapshot())
            runs = [each for each in graph.pipelines.values() if each.state is State.RUNNING]
            return graph.stages_finished >= 4 and [each.kind for each in runs] == [Kind.SHUFFLE]

        wait_until(is_held, "the stage that is held")

    def resumed(self, **environment: str) -> str:
        """What the next driver says, on another core count."""
        self.let_go()
        process = self.start(cores=3, **environment)
        assert process.ended() == 0, process.output
        assert self.job.view().state is JobState.ENDED
        return process.output


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    for process in desk.processes:
        process.kill()


def write(folder: Path, **columns: Any) -> None:
    folder.mkdir()
    table = pyarrow.table({name: list(values) for name, values in columns.items()})
    pyarrow.parquet.write_table(table, folder / "part-0.parquet")


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def assert_left_silently(process: Process) -> None:
    assert process.ended() == 75, process.output
    assert "of the program" not in process.output
    assert "Traceback" not in process.output


def assert_right(output: str) -> None:
    assert f"rows: {EXPECTED}" in output
    assert "finally of the program\n" in output
    assert "atexit of the program\n" in output


def test_a_program_stops_after_two_stages_and_another_process_ends_it(desk: Desk) -> None:
    desk.let_go()
    process = desk.start(GODWIT_STOP_AFTER_STAGES="2")
    assert_left_silently(process)
    view = desk.job.view()
    assert (view.state, view.moves) == (JobState.MOVED_OUT, 1)
    assert view.manifest is not None
    assert len(view.manifest.fragments) >= 2
    output = desk.resumed()
    assert_right(output)
    assert f"resuming etl from epoch 1: {len(view.manifest.fragments)} fragments" in output
    assert f"{len(view.manifest.fragments)} were used, 0 could not be read" in output
    assert not desk.job.store.exists(desk.job.key("blocks"))


def test_a_fork_of_the_program_does_not_keep_the_jvm_of_a_job_that_has_left(desk: Desk) -> None:
    desk.let_go()
    process = desk.start(GODWIT_STOP_AFTER_STAGES="2", FORK="1")
    assert_left_silently(process)
    (jvm,) = (line.split()[1] for line in process.output.splitlines() if line.startswith("jvm: "))
    wait_until(lambda: is_gone(int(jvm)), "the end of the JVM")


def is_gone(pid: int) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_a_sigterm_to_plain_python_waits_for_the_running_stage(desk: Desk) -> None:
    process = desk.start()
    desk.held(process)
    os.kill(process.pid, signal.SIGTERM)
    process.said("moving out")
    desk.let_go()
    assert_left_silently(process)
    assert_right(desk.resumed())


def test_a_sigterm_to_spark_submit_leaves_before_it_is_killed(desk: Desk) -> None:
    process = desk.start("spark-submit", GODWIT_GRACE_SECONDS="10")
    desk.held(process)
    told_at = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    assert_left_silently(process)
    assert time.monotonic() - told_at < 20
    manifest = desk.job.committed()
    assert manifest is not None
    assert len(manifest.fragments) >= 2
    output = desk.resumed()
    assert_right(output)
    assert " 0 were used" not in output


def test_a_job_is_moved_by_its_endpoint_and_a_warm_standby_ends_it(desk: Desk) -> None:
    process = desk.start()
    desk.held(process)
    graph = StageGraph.from_json(desk.client().snapshot())
    assert 0 < graph.progress < 1
    phases = [event["phase"] for event in desk.client().migrate(30, now=True)]
    assert (phases[0], phases[-2:]) == ("parking", ["committed", "left"])
    assert_left_silently(process)

    # One JVM at a time: the job that the standby waits for is this process, with the state of the real one.
    moved, running = desk.job.committed(), desk.job.running()
    assert moved is not None
    assert running is not None
    lease = desk.job.acquire()
    lease.announce(replace(running, epoch=lease.epoch))
    desk.let_go()
    standby = desk.start(cores=3, GODWIT_STANDBY="1")
    standby.said("standing by for etl")
    time.sleep(0.5)
    assert "warm:" not in standby.output
    lease.commit(replace(moved, epoch=lease.epoch))
    lease.release()
    assert standby.ended() == 0, standby.output
    assert_right(standby.output)
    assert desk.job.view().state is JobState.ENDED
    assert "warm: True" in standby.output
    assert " 0 were used" not in standby.output


def test_a_standby_that_is_not_needed_ends_without_the_program(desk: Desk) -> None:
    desk.let_go()
    assert desk.start(GODWIT_STOP_AFTER_STAGES="2").ended() == 75
    running = desk.job.running()
    assert running is not None
    lease = desk.job.acquire()
    lease.announce(replace(running, epoch=lease.epoch))
    standby = desk.start(GODWIT_STANDBY="1")
    standby.said("standing by for etl")
    lease.end(ended_at=time.time(), moves=1)
    lease.release()
    assert standby.ended() == 0
    assert "nothing is left to do" in standby.output
    assert "warm:" not in standby.output


def test_a_program_that_fails_keeps_its_state_for_the_next_try(desk: Desk) -> None:
    desk.let_go()
    assert desk.start(GODWIT_STOP_AFTER_STAGES="2").ended() == 75
    (desk.folder / "fail").touch()
    failed = desk.start()
    assert failed.ended() == 1
    assert "ValueError: as you wish" in failed.output
    assert desk.job.view().state is JobState.MOVED_OUT
    (desk.folder / "fail").unlink()
    output = desk.resumed()
    assert_right(output)
    assert "resuming etl from epoch 1" in output


def test_a_program_with_several_contexts_of_its_own_is_resumed_in_each(desk: Desk) -> None:
    desk.let_go()
    assert_left_silently(desk.start(GODWIT_STOP_AFTER_STAGES="2", CONTEXTS="2", OWN_CONTEXT="1"))
    output = desk.resumed(GODWIT_STANDBY="1", CONTEXTS="2", OWN_CONTEXT="1")
    assert output.count(f"rows: {EXPECTED}") == 2
    assert "warm: True" not in output
    assert " 0 were used" not in output
    assert output.count("resuming etl") == 1


def test_a_store_that_is_gone_leaves_the_query_running_to_its_right_end(desk: Desk) -> None:
    process = desk.start()
    desk.held(process)
    client = desk.client()
    (desk.folder / "store").rename(desk.folder / "unmounted")
    told = list(client.migrate(30, now=True))[-1]
    assert (told["phase"], told["exit_code"]) in [("failed", 67), ("failed", 72)]
    desk.let_go()
    assert process.ended() == 0, process.output
    assert_right(process.output)


def test_a_second_driver_of_a_job_that_is_alive_is_told_so_in_one_line(desk: Desk) -> None:
    lease = desk.job.acquire()
    second = desk.start()
    assert second.ended() == 70
    (line,) = (line for line in second.output.splitlines() if line.startswith("godwit: "))
    assert line.startswith("godwit: job etl is running; wait for it, ")
    assert "Traceback" not in second.output
    lease.release()


PYTHON_RATES = """
import os
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
rate = F.udf(lambda value: value * int(os.environ["RATE"]), "long")
numbers = spark.range(1000).select((F.col("id") % 5).alias("k"), rate("id").alias("v"))
sums = numbers.groupBy("k").agg(F.sum("v").alias("before"))
rows = sums.select("k", "before", rate(F.lit(1)).alias("rate")).groupBy("rate").agg(F.sum("before"))
print("rows:", [tuple(row) for row in rows.collect()])
"""


@pytest.mark.parametrize("name", ["RATE", "RATE_SECRET"])
def test_what_a_function_reads_from_its_environment_is_no_stranger_to_it(desk: Desk, name: str) -> None:
    """On one machine the executors' environment is the driver's. Secrets are in rows too: as salts."""
    desk.program.write_text(PYTHON_RATES.replace("RATE", name))
    assert desk.start(**{name: "1"}, GODWIT_STOP_AFTER_STAGES="1").ended() == 75
    other = desk.start(**{name: "2"})
    assert other.ended() == 0
    assert f"rows: [(2, {2 * sum(range(1000))})]" in other.output
    assert "files, settings or environment are not those that made them" in other.output


LAZY_RATES = """
from pyspark.sql import SparkSession, functions as F

def rate(value):
    import lazy
    return value * lazy.RATE

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
rate = F.udf(rate, "long")
numbers = spark.range(1000).select((F.col("id") % 5).alias("k"), rate("id").alias("v"))
sums = numbers.groupBy("k").agg(F.sum("v").alias("before"))
rows = sums.select("k", "before", rate(F.lit(1)).alias("rate")).groupBy("rate").agg(F.sum("before"))
print("rows:", [tuple(row) for row in rows.collect()])
"""


@pytest.mark.parametrize("changed", [False, True])
def test_code_that_only_workers_import_from_an_archive_is_part_of_the_program(
    desk: Desk, changed: bool
) -> None:
    def deploy(rate: int) -> str:
        with zipfile.ZipFile(desk.folder.parent / "lazy.zip", "w") as archive:
            archive.writestr("lazy.py", f"RATE = {rate}")
        return str(desk.folder.parent / "lazy.zip")

    desk.program.write_text(LAZY_RATES)
    assert desk.start(PYTHONPATH=deploy(1), GODWIT_STOP_AFTER_STAGES="1").ended() == 75
    rate = 2 if changed else 1
    other = desk.start(PYTHONPATH=deploy(rate) if changed else str(desk.folder.parent / "lazy.zip"))
    assert other.ended() == 0
    assert f"rows: [({rate}, {rate * sum(range(1000))})]" in other.output
    assert ("the code beside the program" in other.output) == changed
    assert ("1 were used" in other.output) == (not changed)


OWN_CLASSES = """
import dataclasses, enum, os, tempfile
os.chdir(tempfile.mkdtemp())
from pyspark.sql import SparkSession, functions as F

class Kind(enum.Enum):
    ODD, EVEN = 1, 2

@dataclasses.dataclass
class Pair:
    value: int

    def twice(self):
        return 2 * self.value

def own(value):
    return Pair(value).twice() + (Kind.ODD if value % 2 else Kind.EVEN).value

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.range(1000).select((F.col("id") % 5).alias("k"), F.udf(own, "long")("id").alias("v"))
sums = numbers.groupBy("k").agg(F.sum("v").alias("s")).groupBy((F.col("k") % 2).alias("m")).agg(F.sum("s"))
print("rows:", sorted(tuple(row) for row in sums.collect()))
"""


def test_a_program_with_classes_of_its_own_that_goes_to_another_folder_is_resumed(desk: Desk) -> None:
    """It is started by a relative path, and its classes are sent to the workers by value."""
    desk.program.write_text(OWN_CLASSES)
    desk.program = Path(os.path.relpath(desk.program))
    assert desk.start(GODWIT_STOP_AFTER_STAGES="1").ended() == 75
    other = desk.start()
    assert other.ended() == 0
    assert "rows: [(0, 600300), (1, 400200)]" in other.output
    assert "1 were used" in other.output
