"""Whatever is wrong is one line and an exit code of its own, and JSON for who asked for JSON."""

import json
import stat
from pathlib import Path

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import store_state


def test_help_names_every_command(godwit: Godwit) -> None:
    told = godwit("--help")
    assert told.code == 0
    for command in ("run", "sql", "migrate", "jobs", "explain", "drop", "demo", "completion"):
        assert f"\n  {command} " in told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fly"], "No such command 'fly'; see `godwit --help`"),
        (["--bogus"], "No such option '--bogus'; see `godwit --help`"),
        (["jobs"], "Missing option '--store'; see `godwit jobs --help`"),
        (["migrate", "--store", "s"], "Missing argument 'NAME'; see `godwit migrate --help`"),
        (["completion", "tcsh"], "see `godwit completion --help`"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_the_next_step(
    godwit: Godwit, words: list[str], says: str
) -> None:
    told = godwit(*words)
    assert (told.code, told.out) == (64, "")
    (line,) = told.err.splitlines()
    assert line.startswith("godwit: ")
    assert says in line


@pytest.mark.parametrize("words", [["--json", "--bogus"], ["--bogus", "--json"], ["--json"]])
def test_a_wrong_command_line_is_json_for_who_asked_for_json(godwit: Godwit, words: list[str]) -> None:
    told = godwit("jobs", *words)
    assert told.code == json.loads(told.err)["exit_code"] == 64
    assert json.loads(told.err)["next_step"] == "see `godwit jobs --help`"


@pytest.mark.parametrize("command", ["migrate", "explain", "drop"])
def test_an_unknown_job_is_66(godwit: Godwit, store: Store, command: str) -> None:
    told = godwit(command, "nobody", "--store", store.uri, "--json")
    assert told.code == 66
    assert json.loads(told.err) == {
        "error": f"there is no job nobody in {store.uri}",
        "next_step": "see `godwit jobs` for the jobs of this store",
        "exit_code": 66,
    }


@pytest.mark.parametrize("command", [["jobs"], ["migrate", "x"], ["explain", "x"], ["drop", "x"]])
def test_a_folder_that_is_not_there_is_no_store_and_is_not_made_by_looking(
    godwit: Godwit, tmp_path: Path, command: list[str]
) -> None:
    told = godwit(*command, "--store", tmp_path / "nowhere")
    assert told.code == 67
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", [["jobs"], ["run", "--job", "x", __file__]])
def test_a_folder_of_somebody_else_is_no_store(godwit: Godwit, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    told = godwit(command[0], "--store", tmp_path, *command[1:])
    assert told.code == 67
    assert "thesis.tex" in told.err


def test_a_store_that_may_not_be_read_is_67(godwit: Godwit, store: Store, tmp_path: Path) -> None:
    (tmp_path / "store" / "jobs").write_text("a file where a folder should be")
    assert godwit("jobs", "--store", store.uri).code == 67


@pytest.mark.parametrize("command", [["migrate"], ["explain"], ["drop"]])
def test_a_name_that_no_job_can_have_is_64(godwit: Godwit, store: Store, command: list[str]) -> None:
    assert godwit(*command, "../etc", "--store", store.uri).code == 64


def test_the_store_may_come_from_the_environment(
    godwit: Godwit, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GODWIT_STORE", store.uri)
    assert godwit("jobs").out == "no jobs\n"


def test_nobody_but_the_owner_reads_the_token(store: Store, tmp_path: Path, godwit: Godwit) -> None:
    store_state(JobFolder(store, "etl"))
    running = tmp_path / "store" / "jobs" / "etl" / "running"
    assert stat.S_IMODE(running.stat().st_mode) == 0o600
    for command in (["jobs"], ["explain", "etl"]):
        assert "secret" not in godwit(*command, "--store", store.uri, "--json").out
