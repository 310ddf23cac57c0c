"""The command line as scripts meet it: words in, exit code, stdout and stderr out; before a real store."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store, open_store
from godwit.orchestrator.cli import main
from tests.orchestrator.live import LiveJob


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Godwit = Callable[..., Outcome]


@pytest.fixture
def godwit(capsys: pytest.CaptureFixture[str]) -> Godwit:
    def call(*words: object) -> Outcome:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        code = end.value.code
        assert isinstance(code, int) or code is None
        told = capsys.readouterr()
        return Outcome(code or 0, told.out, told.err)

    return call


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


@pytest.fixture
def live_job(store: Store) -> Iterator[LiveJob]:
    job = LiveJob(JobFolder(store, "etl"))
    yield job
    job.lease.release()
