"""`godwit run` becomes the program. Nothing of Spark is needed to see that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import LiveJob, store_state

PROGRAM = """
import json, os, sys
told = {"argv": sys.argv, "main": __name__, "pid": os.getpid(), "environment": dict(os.environ)}
print(json.dumps(told))
sys.exit(41)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "etl.py"
    path.write_text(PROGRAM)
    return path


def become(*words: object) -> "subprocess.Popen[str]":
    call = "from godwit.orchestrator.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", call, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_becomes_the_program_with_its_arguments_and_exit_code(
    store: Store, program: Path
) -> None:
    process = become("run", "--store", store.uri, "--job", "etl", program, "--day", "1", "--json", "--", "x")
    out, err = process.communicate(timeout=60)
    told = json.loads(out)
    assert process.returncode == 41
    assert told["pid"] == process.pid
    assert told["main"] == "__main__"
    assert told["argv"] == [str(program), "--day", "1", "--json", "--", "x"]
    assert told["environment"]["GODWIT_JOB"] == "etl"
    assert told["environment"]["GODWIT_STORE"] == store.uri
    assert err == ""


def test_the_store_is_absolute_in_the_environment(tmp_path: Path, program: Path) -> None:
    (tmp_path / "here").mkdir()
    call = ["-c", "from godwit.orchestrator.cli import main; main()"]
    words = ["run", "--store", "here/store", "--job", "etl", str(program)]
    done = subprocess.run([sys.executable, *call, *words], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout)["environment"]["GODWIT_STORE"] == f"file://{tmp_path}/here/store"


def test_json_says_on_stderr_how_the_job_begins(store: Store, program: Path) -> None:
    store_state(JobFolder(store, "etl"))
    process = become("run", "--json", "--store", store.uri, "--job", "etl", program)
    out, err = process.communicate(timeout=60)
    assert json.loads(out)["argv"] == [str(program)]
    assert json.loads(err) == {
        "job": "etl",
        "begins": "resume",
        "epoch": 1,
        "fragments": 1,
        "bytes": 3_000_000,
    }


def test_a_second_run_of_a_live_job_is_70(godwit: Godwit, live_job: LiveJob, program: Path) -> None:
    told = godwit("run", "--store", live_job.lease.job.store.uri, "--job", "etl", program)
    assert told.code == 70
    assert told.err.startswith("godwit: job etl is running")


def test_the_arguments_of_the_program_are_not_godwits(
    godwit: Godwit, live_job: LiveJob, program: Path
) -> None:
    told = godwit("run", "--store", live_job.lease.job.store.uri, "--job", "etl", program, "--json")
    assert told.err.startswith("godwit: ")


def test_a_corrupt_manifest_is_65_before_anything_starts(
    godwit: Godwit, store: Store, program: Path, tmp_path: Path
) -> None:
    store_state(JobFolder(store, "etl"))
    manifest = tmp_path / "store" / "jobs" / "etl" / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert godwit("run", "--store", store.uri, "--job", "etl", program).code == 65


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--job", "etl", "missing.py"], "there is no program missing.py; check its path"),
        (["--job", "e t l", __file__], "'e t l' cannot be a job's name"),
        (["--job", "etl", "--stop-after-stages", "0", __file__], "0 is not in the range"),
        (["--job", "etl", "--conf", "spark.x", __file__], "'spark.x' is not of the form K=V"),
        (["--job", "etl"], "Missing argument 'PROGRAM.py'"),
    ],
)
def test_a_wrong_run_is_64(godwit: Godwit, store: Store, words: list[str], says: str) -> None:
    told = godwit("run", "--store", store.uri, *words)
    assert told.code == 64
    assert says in told.err


def test_a_store_on_another_planet_is_64(godwit: Godwit, program: Path) -> None:
    assert godwit("run", "--store", "s3://bucket/x", "--job", "etl", program).code == 64
