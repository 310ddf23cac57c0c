"""What a shell asks while somebody types."""

import os
import subprocess
import sys

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import store_state


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(godwit: Godwit, shell: str) -> None:
    told = godwit("completion", shell)
    assert told.code == 0
    assert f"_GODWIT_COMPLETE={shell}_complete" in told.out


def completed(*words: str) -> list[str]:
    """As bash asks: all words so far, the last of them half-typed."""
    asked = {
        "_GODWIT_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    call = [sys.executable, "-c", "from godwit.orchestrator.cli import main; main()"]
    done = subprocess.run(call, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_commands_are_completed() -> None:
    assert completed("godwit", "mi") == ["migrate"]


def test_names_of_jobs_come_from_the_store(store: Store) -> None:
    for name in ("nightly", "night-2", "etl"):
        store_state(JobFolder(store, name))
    assert completed("godwit", "migrate", "--store", store.uri, "ni") == ["night-2", "nightly"]
    assert completed("godwit", "run", "--store", store.uri, "--job", "e") == ["etl"]


def test_a_store_that_is_not_there_completes_nothing() -> None:
    assert completed("godwit", "drop", "--store", "/nowhere/at/all", "") == []
    assert completed("godwit", "drop", "") == []
