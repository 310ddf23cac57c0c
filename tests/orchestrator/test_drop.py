"""Forgetting is for a person to say, and never while somebody works on it."""

import io

import pytest

from godwit.extractor.job import JobFolder, job_names
from godwit.extractor.store import Store
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import LiveJob, store_state


@pytest.fixture
def job(store: Store) -> JobFolder:
    job = JobFolder(store, "etl")
    store_state(job)
    return job


@pytest.mark.parametrize(
    ("answer", "code", "left"), [("y\n", 0, []), ("n\n", 64, ["etl"]), ("", 64, ["etl"])]
)
def test_it_asks_first_and_nobody_there_is_a_no(
    godwit: Godwit, job: JobFolder, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    told = godwit("drop", "etl", "--store", job.store.uri)
    assert told.code == code
    assert "Forget job etl" in told.err
    assert job_names(job.store) == left


def test_with_yes_it_does_not_ask(godwit: Godwit, job: JobFolder) -> None:
    told = godwit("drop", "etl", "--yes", "--json", "--store", job.store.uri)
    assert told.json_lines == [{"dropped": "etl"}]
    assert job_names(job.store) == []


def test_a_live_job_is_not_dropped(godwit: Godwit, live_job: LiveJob) -> None:
    store = live_job.lease.job.store
    told = godwit("drop", "etl", "--yes", "--store", store.uri)
    assert told.code == 70
    assert job_names(store) == ["etl"]


def test_a_corrupt_job_can_be_dropped(godwit: Godwit, job: JobFolder) -> None:
    job.store.put(job.key("manifest"), b"rubbish")
    assert godwit("drop", "etl", "--yes", "--store", job.store.uri).code == 0
