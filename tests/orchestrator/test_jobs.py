"""The list shows every job, also one that cannot be read or asked."""

import time
from dataclasses import replace

from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.extractor.samples import RUNNING
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import LiveJob, store_state


def listed(godwit: Godwit, store: Store) -> dict[str, dict[str, object]]:
    rows = godwit("jobs", "--json", "--store", store.uri).json_lines
    return {row.pop("job"): row for row in rows}


def test_every_state_is_listed(godwit: Godwit, live_job: LiveJob) -> None:
    store = live_job.lease.job.store
    store_state(JobFolder(store, "moved"))
    lease = JobFolder(store, "ended").acquire()
    lease.end(ended_at=time.time(), moves=2)
    lease.release()
    JobFolder(store, "dead").acquire().release()
    rows = listed(godwit, store)
    assert {name: row["state"] for name, row in rows.items()} == {
        "etl": "running",
        "moved": "moved-out",
        "ended": "ended",
        "dead": "dead",
    }
    assert rows["ended"]["moves"] == 2
    assert rows["moved"]["epoch"] == rows["moved"]["moves"] == 1
    assert all(row["problem"] is None for row in rows.values())


def test_progress_and_state_come_from_the_driver_or_the_manifest(godwit: Godwit, live_job: LiveJob) -> None:
    store_state(JobFolder(live_job.lease.job.store, "moved"))
    for row in listed(godwit, live_job.lease.job.store).values():
        assert (row["pipelines_finished"], row["pipelines_total"], row["state_bytes"]) == (3, 6, 3_000_000)


def test_people_read_a_table(godwit: Godwit, live_job: LiveJob) -> None:
    store_state(JobFolder(live_job.lease.job.store, "moved"))
    head, *lines = godwit("jobs", "--store", live_job.lease.job.store.uri).out.splitlines()
    assert head.split() == ["job", "state", "pipelines", "epoch", "moves", "bytes", "since"]
    assert [line.split() for line in lines] == [
        ["etl", "running", "3/6", "1", "0", "3.0", "MB", "1", "min"],
        ["moved", "moved-out", "3/6", "1", "1", "3.0", "MB", "2", "h"],
    ]


def test_a_driver_that_does_not_answer_is_the_problem_of_its_row_only(
    godwit: Godwit, live_job: LiveJob
) -> None:
    live_job.lease.announce(replace(RUNNING, endpoint="127.0.0.1:9"))
    store_state(JobFolder(live_job.lease.job.store, "moved"))
    rows = listed(godwit, live_job.lease.job.store)
    assert "does not answer" in str(rows["etl"]["problem"])
    assert rows["etl"]["pipelines_total"] is None
    assert rows["moved"]["problem"] is None


def test_a_corrupt_manifest_is_the_problem_of_its_row(godwit: Godwit, store: Store) -> None:
    job = JobFolder(store, "etl")
    store_state(job)
    job.store.put(job.key("manifest"), b"rubbish")
    told = godwit("jobs", "--store", store.uri)
    assert told.code == 0
    assert "the manifest does not begin like one" in told.out
