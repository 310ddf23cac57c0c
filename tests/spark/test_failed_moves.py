"""A move that fails must cost nothing: the query goes on to its right end, and the error says what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
from tests.spark.pair import write

PATIENCE_SECONDS = 180

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession, functions as F

here = os.path.dirname(os.path.abspath(__file__))
spark = (
    SparkSession.builder.config("spark.sql.shuffle.partitions", 3)
    .config("spark.ui.enabled", "false").getOrCreate()
)
facts = spark.read.parquet(here + "/facts")
if "write" in sys.argv:
    facts.limit(1).write.parquet(here + "/written")


def broken(value):
    # Between two stages: what was stored, or was to be stored, is gone when the second begins.
    if os.path.exists(here + "/remove"):
        import shutil
        shutil.rmtree(open(here + "/remove").read(), ignore_errors=True)
    if os.path.exists(here + "/block"):
        open(open(here + "/block").read(), "w").close()
    return value


sums = facts.withColumn("v", F.udf(broken, "long")("v")).groupBy("k").agg(F.sum("v").alias("v"))
try:
    rows = sums.groupBy((F.col("v") % 3).alias("m")).agg(F.count("*"), F.sum("v")).orderBy("m").collect()
finally:
    print("finally", flush=True)
print("rows:", [tuple(row) for row in rows], flush=True)
"""


def expected() -> list[tuple[int, int, int]]:
    sums: dict[int, int] = {}
    for i in range(50_000):
        sums[i % 10_000] = sums.get(i % 10_000, 0) + i
    by_rest = [[v for v in sums.values() if v % 3 == m] for m in range(3)]
    return [(m, len(values), sum(values)) for m, values in enumerate(by_rest) if values]


class Desk:
    """A program with its data, and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "prog.py"
        self.program.write_text(PROGRAM)
        self.store = folder / "store"
        write(folder / "facts", files=2, k=[i % 10_000 for i in range(50_000)], v=range(50_000))

    def run(self, *args: str, stages: int = 0, wrapper: tuple[str, ...] = (), **environment: str) -> "Ended":
        submit = "--master local[2] --driver-memory 1g --conf spark.log.level=ERROR pyspark-shell"
        stop = {"GODWIT_STOP_AFTER_STAGES": str(stages)} if stages else {}
        ended = subprocess.run(
            [*wrapper, sys.executable, str(self.program), *args],
            env={
                **os.environ, "PYTHONHASHSEED": "0", "PYSPARK_SUBMIT_ARGS": submit, "GODWIT_JOB": "prog",
                "GODWIT_STORE": f"file://{self.store}", **stop, **environment,
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout)

    @property
    def job(self) -> JobFolder:
        return JobFolder(open_store(f"file://{self.store}", create=False), "prog")

    def moved_out(self) -> None:
        ended = self.run(stages=1)
        assert ended.code == 75, ended.output
        assert "finally" not in ended.output


class Ended:
    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    def assert_right(self) -> None:
        assert self.code == 0, self.output
        assert f"rows: {expected()}" in self.output
        assert self.output.count("finally\n") == 1

    def error(self) -> str:
        """The one line that says what went wrong."""
        assert "Traceback" not in self.output
        assert "rows:" not in self.output
        (line,) = (line for line in self.output.splitlines() if line.startswith("godwit: "))
        return line


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_full_store_lets_the_query_go_on(desk: Desk) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, so no small file system to fill")
    desk.store.mkdir()
    mount = 'mount -t tmpfs -o size=100k none "$1" && shift && exec "$@"'
    wrapper = ("unshare", "-rm", "sh", "-c", mount, "sh", str(desk.store))
    ended = desk.run(stages=1, wrapper=wrapper)
    if "mount:" in ended.output:
        pytest.skip("this machine lets nobody mount a small file system to fill")
    ended.assert_right()
    assert "not moved, the program goes on: " in ended.output
    assert "No space left on device" in ended.output


def test_a_store_that_is_gone_lets_the_query_go_on(desk: Desk) -> None:
    (desk.folder / "remove").write_text(str(desk.store))
    ended = desk.run(stages=1)
    ended.assert_right()
    assert "not moved, the program goes on: the store in " in ended.output


def test_a_place_for_blocks_that_cannot_be_written_lets_the_query_go_on(desk: Desk) -> None:
    """A file lies where the folder should be: nobody, root included, can write there."""
    open_store(f"file://{desk.store}", create=True)
    (desk.store / "jobs" / "prog").mkdir(parents=True)
    (desk.folder / "block").write_text(str(desk.store / "jobs" / "prog" / "blocks"))
    ended = desk.run(stages=1)
    ended.assert_right()
    assert "not moved, the program goes on: " in ended.output


def test_a_program_that_has_written_is_not_moved(desk: Desk) -> None:
    ended = desk.run("write", stages=2)
    ended.assert_right()
    assert "not moved, the program goes on: the program has already written: " in ended.output


def test_state_that_is_not_what_it_was_is_refused_in_one_line(desk: Desk) -> None:
    desk.moved_out()
    manifest = desk.store / "jobs" / "prog" / "manifest"
    content = manifest.read_bytes()
    for broken in (content[: len(content) // 2], content[:200] + b"?" + content[201:]):
        manifest.write_bytes(broken)
        ended = desk.run()
        assert ended.code == 65, ended.output
        assert "godwit drop" in ended.error()
    manifest.write_bytes(content)

    other = desk.run("with", "arguments")
    assert other.code == 68, other.output
    assert "'with', 'arguments'" in other.error()
    desk.program.write_text(PROGRAM + "# another program")
    assert desk.run().code == 68
    desk.program.write_text(PROGRAM)

    lease = desk.job.acquire()
    assert desk.run().code == 70
    lease.release()
    ended = desk.run()
    ended.assert_right()
    assert "resuming prog" in ended.output
