"""Where nothing can be kept a program is moved all the same: it says why, leaves, and starts anew."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.manifest import Manifest
from godwit.extractor.store import open_store
from godwit.planrewrite.stagegraph import StageGraph
from tests.spark.pair import compiled, write

PATIENCE_SECONDS = 120.0

PROGRAM = """
import os, sys, time
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

here, kind = os.path.dirname(os.path.abspath(__file__)), sys.argv[1]
builder = SparkSession.builder
if kind == "connect":
    builder = builder.remote("local[2]")
else:
    builder = builder.master("local[2]")
if kind == "not adaptive":
    builder = builder.config("spark.sql.adaptive.enabled", "false")
if kind == "shuffle manager":
    builder = builder.config("spark.shuffle.manager", "org.apache.spark.elsewhere.OtherShuffleManager")
spark = builder.config("spark.sql.shuffle.partitions", 3).getOrCreate()


class Numbers(DataSource):
    def schema(self):
        return "k long, v long"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(part) for part in range(2)]

    def read(self, partition):
        yield from ((i % 10, i) for i in range(partition.value, 1000, 2))


def held(value):
    open(here + "/held", "w").close()
    while not os.path.exists(here + "/go"):
        time.sleep(0.05)
    return value


if kind == "no version":
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("Numbers").load()
elif kind == "validated":
    rows = spark.read.schema("k long, v long").option("rowTag", "n")
    numbers = rows.option("rowValidationXSDPath", here + "/n.xsd").xml(here + "/numbers.xml")
else:
    numbers = spark.read.schema("k long, v long").parquet(here + "/numbers")
sums = numbers.groupBy("k").agg(F.sum("v").alias("v")).withColumn("v", F.udf(held, "long")("v"))
groups = sums.repartition(3, "k").groupBy((F.col("k") % 2).alias("m")).agg(F.sum("v")).orderBy("m")
print("rows:", [tuple(row) for row in groups.collect()], flush=True)
"""

EXPECTED = [(m, sum(i for i in range(1000) if i % 10 % 2 == m)) for m in range(2)]

XML = "<all>" + "".join(f"<n><k>{i % 10}</k><v>{i}</v></n>" for i in range(1000)) + "</all>"

XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="n"><xs:complexType><xs:sequence>
<xs:element name="k" type="xs:long"/><xs:element name="v" type="xs:long"/>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""

OTHER_SHUFFLE_MANAGER = """
package org.apache.spark.elsewhere
import org.apache.spark._
import org.apache.spark.shuffle._
import org.apache.spark.shuffle.sort.SortShuffleManager

/** Spark's own under another name: as good a stranger as any that keeps its blocks on servers of its own. */
class OtherShuffleManager(conf: SparkConf, isDriver: Boolean) extends BlockingShuffleManager {
  private val own = new SortShuffleManager(conf)
  def registerShuffle[K, V, C](id: Int, dependency: ShuffleDependency[K, V, C]): ShuffleHandle =
    own.registerShuffle(id, dependency)
  def getWriter[K, V](handle: ShuffleHandle, map: Long, context: TaskContext,
    metrics: ShuffleWriteMetricsReporter): ShuffleWriter[K, V] =
    own.getWriter[K, V](handle, map, context, metrics)
  def getReader[K, C](handle: ShuffleHandle, firstMap: Int, lastMap: Int, first: Int, last: Int,
    context: TaskContext, metrics: ShuffleReadMetricsReporter): ShuffleReader[K, C] =
    own.getReader[K, C](handle, firstMap, lastMap, first, last, context, metrics)
  def unregisterShuffle(id: Int): Boolean = own.unregisterShuffle(id)
  def shuffleBlockResolver: ShuffleBlockResolver = own.shuffleBlockResolver
  def stop(): Unit = own.stop()
}
"""


class Desk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "prog.py").write_text(PROGRAM)
        write(folder / "numbers", files=2, k=[i % 10 for i in range(1000)], v=range(1000))
        (folder / "numbers.xml").write_text(XML)
        (folder / "n.xsd").write_text(XSD)
        self.store = f"file://{folder}/store"
        self.jars: tuple[Path, ...] = ()

    def start(self, kind: str, log: str) -> "subprocess.Popen[bytes]":
        class_path = ["--driver-class-path", ":".join(map(str, self.jars))] if self.jars else []
        submit = ["--driver-memory", "1g", *class_path, "--conf", "spark.ui.enabled=false", "pyspark-shell"]
        environment = {
            **os.environ, "PYTHONHASHSEED": "0", "PYSPARK_SUBMIT_ARGS": " ".join(submit),
            "GODWIT_JOB": "prog", "GODWIT_STORE": self.store, "GODWIT_GRACE_SECONDS": "5",
        }  # fmt: skip
        with (self.folder / log).open("wb") as file:
            command = [sys.executable, str(self.folder / "prog.py"), kind]
            return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def said(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")

    def moved_out(self, kind: str) -> Manifest:
        """Told to leave while its second stage runs."""
        process = self.start(kind, "one")
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (self.folder / "held").exists():
                assert process.poll() is None, self.said("one")
                assert time.monotonic() < deadline, self.said("one")
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 75, self.said("one")
        finally:
            process.kill()
            process.wait()
        manifest = JobFolder(open_store(self.store, create=False), "prog").committed()
        assert manifest is not None
        return manifest

    def ends_right(self, kind: str) -> None:
        (self.folder / "go").touch()
        process = self.start(kind, "two")
        assert process.wait(PATIENCE_SECONDS) == 0, self.said("two")
        assert f"rows: {EXPECTED}" in self.said("two")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def reasons(manifest: Manifest) -> str:
    graph = StageGraph.from_json(manifest.snapshot)
    refused = [each.refusal or "" for each in graph.pipelines.values()]
    return " ".join([graph.refusal or "", *refused, *(each.reason for each in manifest.selection.skipped)])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("not adaptive", "not adaptive (spark.sql.adaptive.enabled)"),
        ("no version", "which has no version"),
        ("validated", "the option rowvalidationxsdpath, which points to a file that nobody compares"),
        ("connect", "Spark Connect sessions are not resumable"),
    ],
)
def test_a_query_of_which_nothing_can_be_kept_starts_again(desk: Desk, kind: str, reason: str) -> None:
    moved = desk.moved_out(kind)
    assert not moved.fragments
    assert reason in reasons(moved)
    desk.ends_right(kind)


def test_blocks_that_another_shuffle_manager_keeps_are_left_alone(desk: Desk) -> None:
    desk.jars = (compiled(OTHER_SHUFFLE_MANAGER, desk.folder / "other.jar"),)
    moved = desk.moved_out("shuffle manager")
    assert not moved.fragments
    assert "OtherShuffleManager keeps blocks where Godwit cannot read them" in reasons(moved)
    desk.ends_right("shuffle manager")
