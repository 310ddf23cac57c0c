"""Local mode hides what crosses processes: here are a master, two workers, and two executors."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from godwit.extractor.control import ControlClient
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from tests.spark.pair import write

PATIENCE_SECONDS = 240.0
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"

PROGRAM = """
import os, time
from pyspark.sql import SparkSession, functions as F

here = os.path.dirname(os.path.abspath(__file__))
spark = SparkSession.builder.getOrCreate()
facts = spark.read.parquet(here + "/facts")


def held(value):
    open(here + "/held", "w").close()
    while not os.path.exists(here + "/go"):
        time.sleep(0.02)
    return value


facts = facts.withColumn("v", F.udf(held, "long")("v"))
sums = facts.repartition(6, "k").groupBy("k").agg(F.sum("v").alias("v"), F.count("*").alias("n"))
groups = sums.groupBy((F.col("k") % 10).alias("g")).agg(F.sum("v").alias("v"), F.sum("n").alias("n"))
print("rows:", [tuple(row) for row in groups.orderBy("g").collect()], flush=True)
"""

ROWS = 200_000
EXPECTED = [(g, sum(range(g, ROWS, 10)), ROWS // 10) for g in range(10)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Cluster:
    address: str
    workers: frozenset[int]  # their processes

    def executors(self) -> list[int]:
        """The processes that these workers started, and no other on the machine."""
        listed = subprocess.run(
            ["ps", "-ewwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        )
        found = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
        return [
            int(pid)
            for pid, parent, words in found
            if int(parent) in self.workers and "CoarseGrainedExecutorBackend" in words
        ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master, and two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_WORKER_DIR": str(folder), "SPARK_DAEMON_MEMORY": "256m"}
    processes = []

    def start(*words: str) -> None:
        log = (folder / f"log-{len(processes)}").open("wb")
        command = [str(SPARK_CLASS), *words]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        )

    try:
        start(
            "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"
        )
        for _ in range(2):
            worker = ("-c", "1", "-m", "1g", "-h", "127.0.0.1", "--webui-port", "0", address)
            start("org.apache.spark.deploy.worker.Worker", *worker)
        log = folder / "log-0"
        wait_until(lambda: log.read_text().count("Registering worker") == 2, "two workers")
        yield Cluster(address, frozenset(process.pid for process in processes[1:]))
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Desk:
    def __init__(self, folder: Path, master: str) -> None:
        self.folder = folder
        self.master = master
        (folder / "prog.py").write_text(PROGRAM)
        write(folder / "facts", files=4, k=[i % 1000 for i in range(ROWS)], v=range(ROWS))
        self.store = f"file://{folder}/store"
        self.job = JobFolder(open_store(self.store, create=True), "prog")

    def start(self, log: str, stages: int | None = None) -> "subprocess.Popen[bytes]":
        settings = {
            "spark.executor.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "6", "spark.driver.host": "127.0.0.1",
        }  # fmt: skip
        confs = " ".join(f"--conf {key}={value}" for key, value in settings.items())
        stop = {} if stages is None else {"GODWIT_STOP_AFTER_STAGES": str(stages)}
        environment = {
            **os.environ, **stop, "PYTHONHASHSEED": "0", "GODWIT_JOB": "prog", "GODWIT_STORE": self.store,
            "PYSPARK_SUBMIT_ARGS": f"--master {self.master} --driver-memory 1g {confs} pyspark-shell",
        }  # fmt: skip
        with (self.folder / log).open("wb") as file:
            command = [sys.executable, str(self.folder / "prog.py")]
            return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def said(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")

    def ended(self, log: str, stages: int | None = None) -> int:
        return self.start(log, stages).wait(PATIENCE_SECONDS)


@pytest.fixture
def desk(tmp_path: Path, cluster: Cluster) -> Desk:
    return Desk(tmp_path, cluster.address)


def test_blocks_go_from_the_executors_to_the_store_and_back(desk: Desk) -> None:
    (desk.folder / "go").touch()
    assert desk.ended("one", stages=2) == 75, desk.said("one")
    manifest = desk.job.committed()
    assert manifest is not None
    assert manifest.fragments
    assert desk.ended("two") == 0, desk.said("two")
    assert f"rows: {EXPECTED}" in desk.said("two")
    assert " 0 were used" not in desk.said("two")


def test_an_executor_that_dies_during_the_extraction_costs_no_row(desk: Desk, cluster: Cluster) -> None:
    process = desk.start("one")
    try:
        wait_until(lambda: len(cluster.executors()) == 2, "two executors")
        wait_until((desk.folder / "held").exists, "the first stage")
        running = desk.job.running()
        assert running is not None
        phases, victim = [], cluster.executors()[0]
        for event in ControlClient(running.endpoint, running.token).migrate(PATIENCE_SECONDS):
            phases.append(event["phase"])
            if phases[-1] == "draining":
                (desk.folder / "go").touch()
            if phases[-1] == "extracting" and phases.count("extracting") == 1:
                os.kill(victim, signal.SIGSTOP)  # its blocks are awaited, and do not come
                time.sleep(1)
                os.kill(victim, signal.SIGKILL)
        assert "extracting" in phases
        assert "Lost executor" in desk.said("one"), desk.said("one")
        code = process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    last = "one"
    if phases[-1] == "left":  # Spark has computed the lost blocks again, in time
        assert code == 75, desk.said("one")
        last = "two"
        assert desk.ended("two") == 0, desk.said("two")
    else:
        assert code == 0, desk.said("one")
        assert "not moved, the program goes on: " in desk.said("one")
    assert f"rows: {EXPECTED}" in desk.said(last)
