"""A launch is an environment: what the command line says wins, then what the user has set."""

import shlex
import sys

import pytest

from godwit.extractor.errors import JobAlive, UsageError
from godwit.orchestrator.launch import Launch, admitted, beginning, submit_args
from tests.orchestrator.live import LiveJob


def test_a_launch_without_options_sets_what_activation_needs_and_no_more() -> None:
    assert Launch("file:///s", "etl").environment({"HOME": "/h"}) == {
        "HOME": "/h",
        "GODWIT_JOB": "etl",
        "GODWIT_STORE": "file:///s",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",
    }


def test_what_the_user_has_set_stays() -> None:
    given = {"PYSPARK_PYTHON": "/other/python", "PYTHONHASHSEED": "7", "GODWIT_GRACE_SECONDS": "5"}
    assert Launch("file:///s", "etl").environment(given).items() >= given.items()


def test_the_command_line_wins_over_the_environment() -> None:
    given = {"GODWIT_JOB": "other", "GODWIT_STORE": "file:///o", "GODWIT_STOP_AFTER_STAGES": "9"}
    found = Launch("file:///s", "etl", stop_after_stages=2, standby=True).environment(given)
    assert found["GODWIT_JOB"] == "etl"
    assert found["GODWIT_STORE"] == "file:///s"
    assert found["GODWIT_STOP_AFTER_STAGES"] == "2"
    assert found["GODWIT_STANDBY"] == "1"


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [
        ("", ["--master", "local[4]", "--conf", "a=b c", "pyspark-shell"]),
        ("pyspark-shell", ["--master", "local[4]", "--conf", "a=b c", "pyspark-shell"]),
        (
            "--driver-memory 1g pyspark-shell",
            ["--driver-memory", "1g", "--master", "local[4]", "--conf", "a=b c", "pyspark-shell"],
        ),
    ],
)
def test_sparks_options_go_behind_the_inherited_ones_where_they_win(
    inherited: str, expected: list[str]
) -> None:
    launch = Launch("file:///s", "etl", master="local[4]", conf=("a=b c",))
    found = launch.environment({"PYSPARK_SUBMIT_ARGS": inherited})["PYSPARK_SUBMIT_ARGS"]
    assert shlex.split(found) == expected
    assert submit_args(inherited, ["--master", "local[4]", "--conf", "a=b c"]) == found


def test_options_with_an_open_quote_are_told() -> None:
    with pytest.raises(UsageError, match="PYSPARK_SUBMIT_ARGS cannot be read: No closing quotation"):
        submit_args('--conf "x', ["--conf", "a=b"])


def test_only_a_standby_may_be_started_beside_a_live_driver(live_job: LiveJob) -> None:
    uri = live_job.lease.job.store.uri
    with pytest.raises(JobAlive):
        admitted(Launch(uri, "etl"))
    assert beginning(admitted(Launch(uri, "etl", standby=True)), standby=True)["begins"] == "standby"
