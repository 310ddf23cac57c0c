import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from godwit.extractor.errors import (
    JobAlive,
    ManifestCorrupt,
    MoveFailed,
    StoreUnreadable,
    UnknownJob,
    UsageError,
)
from godwit.extractor.job import JobFolder, JobLease, JobState, JobView, existing_job, job_names, list_jobs
from tests.extractor.samples import FRAGMENT, RUNNING, fragment, manifest, new_job, new_store

FINGERPRINT = FRAGMENT.fingerprint


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    return new_job(tmp_path)


def moved_out(job: JobFolder) -> None:
    """A driver takes the job, is stopped, and leaves."""
    lease = job.acquire()
    job.store.put(job.key(f"blocks/{lease.epoch}-00/f0/data"), b"rows")
    lease.commit(
        manifest(job=job.name, epoch=lease.epoch, fragments=(fragment(folder=f"blocks/{lease.epoch}-00/f0"),))
    )
    lease.release()


def blocks(job: JobFolder) -> list[str]:
    return job.store.list(job.key("blocks"))


# Names


@pytest.mark.parametrize("name", ["etl", "a", "9", "Daily.Report_2-x", "a" * 63])
def test_a_plain_name_names_a_job(tmp_path: Path, name: str) -> None:
    assert new_job(tmp_path, name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "_a", "a/b", "a b", "ä", "a\n", "a" * 64, "../etl"])
def test_a_name_that_is_not_safe_everywhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        new_job(tmp_path, name)


def test_a_job_that_the_store_does_not_have_is_unknown(job: JobFolder) -> None:
    with pytest.raises(UnknownJob, match="no job etl in file://"):
        existing_job(job.store, "etl")
    moved_out(job)
    assert existing_job(job.store, "etl").committed() is not None


# One driver at a time


def test_each_driver_of_a_job_has_a_higher_epoch(job: JobFolder) -> None:
    epochs = []
    for _ in range(3):
        lease = job.acquire()
        epochs.append(lease.epoch)
        lease.release()
    assert epochs == [1, 2, 3]


def test_a_second_driver_is_told_where_the_first_one_is(job: JobFolder) -> None:
    lease = job.acquire()
    lease.announce(RUNNING)
    with pytest.raises(JobAlive, match=r"job etl is running on worker-1 \(process 4711\)"):
        job.acquire()
    lease.release()


def test_a_driver_that_could_not_begin_does_not_keep_the_job(job: JobFolder) -> None:
    job.store.put(job.key("epoch"), b"three")
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match="the epoch of job etl is not a number"):
            job.acquire()


DRIVER = """
import sys, time
from godwit.extractor.errors import JobAlive
from godwit.extractor.job import JobFolder
from godwit.extractor.store import open_store
try:
    lease = JobFolder(open_store(sys.argv[1], create=True), "etl").acquire()
    print("epoch", lease.epoch, flush=True)
except JobAlive:
    print("alive", flush=True)
sys.stdin.read()
"""


def driver(job: JobFolder) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", DRIVER, job.store.uri]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_of_drivers_started_together_one_gets_the_job_and_its_death_frees_it(job: JobFolder) -> None:
    drivers = [driver(job) for _ in range(3)]
    try:
        said = {each.stdout.readline().strip(): each for each in drivers if each.stdout}
        assert sorted(said) == ["alive", "epoch 1"]
        assert job.view().state is JobState.RUNNING
        os.kill(said["epoch 1"].pid, signal.SIGKILL)
        said["epoch 1"].wait()
        assert job.view().state is JobState.DEAD
        lease = job.acquire()
        assert lease.epoch == 2
        lease.release()
    finally:
        for each in drivers:
            each.kill()
            each.communicate()


# Commit


def test_the_committed_manifest_is_there_for_the_next_driver(job: JobFolder) -> None:
    assert job.committed() is None
    moved_out(job)
    committed = job.committed()
    assert committed is not None
    assert (committed.epoch, committed.fragments[0].folder) == (1, "blocks/1-00/f0")
    lease = job.acquire()
    assert job.committed() == committed, "a driver that resumes keeps the state until it has a newer one"
    lease.release()


def test_a_driver_commits_only_its_own_manifest(job: JobFolder) -> None:
    lease = job.acquire()
    for foreign in (manifest(epoch=2), manifest(job="other")):
        with pytest.raises(ValueError, match="is not this driver's"):
            lease.commit(foreign)
    assert job.committed() is None
    lease.release()


def test_a_driver_that_lost_the_job_cannot_commit(job: JobFolder) -> None:
    lease = job.acquire()
    job.store.put(job.key("epoch"), b"2")  # as after a lock that a network file system forgot
    with pytest.raises(MoveFailed, match="driver 2 of job etl has taken over from driver 1"):
        lease.commit(manifest())
    assert job.committed() is None
    lease.release()


@pytest.mark.parametrize(
    "act",
    [
        lambda lease: lease.end(ended_at=1.0, moves=1),
        lambda lease: lease.mark_bad(FINGERPRINT, "torn"),
        lambda lease: lease.prune(),
    ],
    ids=["end", "mark_bad", "prune"],
)
def test_a_driver_that_lost_the_job_changes_nothing_of_it(
    job: JobFolder, act: Callable[[JobLease], object]
) -> None:
    moved_out(job)
    lease = job.acquire()
    job.store.put(job.key("blocks/3-00/f0/data"), b"of the next driver")
    job.store.put(job.key("epoch"), b"3")
    with pytest.raises(MoveFailed, match="driver 3 of job etl has taken over from driver 2"):
        act(lease)
    assert (job.committed() is None, job.ended(), job.bad(), len(blocks(job))) == (
        False,
        None,
        frozenset(),
        2,
    )
    lease.release()


def test_until_a_driver_says_who_it_is_nobody_is_taken_for_it(job: JobFolder) -> None:
    lease = job.acquire()
    lease.announce(replace(RUNNING, epoch=1))
    lease.release()
    lease = job.acquire()
    assert (job.view().state, job.view().running) == (JobState.RUNNING, None)
    lease.release()


def test_a_half_written_manifest_is_never_taken_for_state(job: JobFolder) -> None:
    moved_out(job)
    data = job.store.get(job.key("manifest"))
    assert data is not None
    job.store.put(job.key("manifest"), data[:-1])
    with pytest.raises(ManifestCorrupt):
        job.committed()


def test_a_manifest_of_another_job_is_not_this_ones_state(job: JobFolder) -> None:
    moved_out(job)
    other = JobFolder(job.store, "other")
    other.store.put(other.key("manifest"), job.store.get(job.key("manifest")) or b"")
    with pytest.raises(ManifestCorrupt, match="the manifest of other is the one of etl"):
        other.committed()


def test_a_fragment_that_proved_bad_is_remembered_until_there_is_a_new_manifest(job: JobFolder) -> None:
    moved_out(job)
    lease = job.acquire()
    lease.mark_bad(FINGERPRINT, "checksum of block 3")
    lease.mark_bad(FINGERPRINT, "again")
    assert job.bad() == {FINGERPRINT}
    assert job.store.get(job.key(f"bad/{FINGERPRINT}")) == b"checksum of block 3"
    lease.commit(manifest(epoch=2))
    assert job.bad() == frozenset()
    lease.release()


def test_only_a_fingerprint_is_marked_bad(job: JobFolder) -> None:
    lease = job.acquire()
    with pytest.raises(ValueError, match="not a fingerprint"):
        lease.mark_bad("../manifest", "x")
    lease.release()


# Blocks


def test_every_attempt_writes_to_a_folder_of_its_own(job: JobFolder) -> None:
    lease = job.acquire()
    folders = {lease.new_blocks() for _ in range(10)}
    assert len(folders) == 10
    assert all(folder.startswith("blocks/1-") for folder in folders)
    assert job.bulk_uri(min(folders)) == f"{job.store.uri}/jobs/etl/{min(folders)}"
    lease.release()


def test_pruning_removes_the_blocks_that_the_manifest_does_not_name_and_nothing_else(job: JobFolder) -> None:
    moved_out(job)
    lease = job.acquire()
    lease.announce(RUNNING)
    lease.mark_bad(FINGERPRINT, "x")
    for leftover in ("blocks/1-aa/f0/data", "blocks/2-bb/f0/data"):
        job.store.put(job.key(leftover), b"")
    before = set(job.store.list("jobs/etl"))
    assert lease.prune() == ["1-aa", "2-bb"]
    assert blocks(job) == ["1-00"]
    assert job.store.get(job.key("blocks/1-00/f0/data")) == b"rows"
    assert set(job.store.list("jobs/etl")) == before
    lease.release()


def test_without_a_manifest_all_blocks_are_leftovers(job: JobFolder) -> None:
    lease = job.acquire()
    job.store.put(job.key("blocks/1-aa/f0/data"), b"")
    assert lease.prune() == ["1-aa"]
    assert blocks(job) == []
    lease.release()


def test_beside_a_corrupt_manifest_nothing_is_pruned(job: JobFolder) -> None:
    moved_out(job)
    job.store.put(job.key("manifest"), b"rubbish")
    lease = job.acquire()
    with pytest.raises(ManifestCorrupt):
        lease.prune()
    assert blocks(job) == ["1-00"]
    lease.release()


# The end


def test_a_job_that_ended_leaves_nothing_to_resume(job: JobFolder) -> None:
    moved_out(job)
    lease = job.acquire()
    lease.end(ended_at=5.0, moves=1)
    lease.release()
    view = job.view()
    assert (view.state, view.epoch, view.moves) == (JobState.ENDED, 2, 1)
    assert job.committed() is None
    assert blocks(job) == []


def test_an_ended_job_that_is_run_again_starts_afresh(job: JobFolder) -> None:
    lease = job.acquire()
    lease.end(ended_at=5.0, moves=0)
    lease.release()
    lease = job.acquire()
    assert (lease.epoch, job.ended(), job.view().state) == (2, None, JobState.RUNNING)
    lease.release()
    assert job.view().state is JobState.DEAD


def test_a_driver_killed_while_it_tidied_up_has_ended_all_the_same(job: JobFolder) -> None:
    moved_out(job)
    stale, stale_rows = job.store.get(job.key("manifest")), b"rows"
    lease = job.acquire()
    lease.end(ended_at=5.0, moves=1)
    lease.release()
    job.store.put(job.key("manifest"), stale or b"")
    job.store.put(job.key("blocks/1-00/f0/data"), stale_rows)
    assert job.view().state is JobState.ENDED
    assert job.committed() is None
    lease = job.acquire()
    assert job.committed() is None
    assert blocks(job) == []
    lease.release()


def test_dropping_a_job_removes_all_of_it(job: JobFolder) -> None:
    moved_out(job)
    neighbour = JobFolder(job.store, "etl2")
    moved_out(neighbour)
    job.drop()
    assert job_names(job.store) == ["etl2"]
    assert job.store.list("jobs/etl") == []
    assert neighbour.committed() is not None
    assert job.acquire().epoch == 1


def test_a_job_that_is_alive_is_not_dropped(job: JobFolder) -> None:
    moved_out(job)
    lease = job.acquire()
    with pytest.raises(JobAlive):
        job.drop()
    assert job.committed() is not None
    lease.release()


def test_a_job_whose_records_are_broken_can_still_be_dropped(job: JobFolder) -> None:
    moved_out(job)
    for item in ("manifest", "running", "epoch"):
        job.store.put(job.key(item), b"rubbish")
    job.drop()
    assert job_names(job.store) == []


# Looking


def test_a_job_is_listed_with_its_state_and_facts(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert list_jobs(store) == []
    for name in ("moved", "ended", "dead", "alive"):
        JobFolder(store, name).acquire().release()
    moved_out(JobFolder(store, "moved"))
    lease = JobFolder(store, "ended").acquire()
    lease.end(ended_at=5.0, moves=3)
    lease.release()
    lease = JobFolder(store, "alive").acquire()
    running = replace(RUNNING, epoch=2)
    lease.announce(running)
    assert [(view.name, view.state, view.epoch, view.moves) for view in list_jobs(store)] == [
        ("alive", JobState.RUNNING, 2, 0),
        ("dead", JobState.DEAD, 1, 0),
        ("ended", JobState.ENDED, 2, 3),
        ("moved", JobState.MOVED_OUT, 2, 1),
    ]
    assert list_jobs(store)[0].running == running
    lease.release()


def test_looking_at_the_jobs_does_not_free_the_one_that_this_process_runs(job: JobFolder) -> None:
    lease = job.acquire()
    list_jobs(job.store)
    with driver(job) as other:
        assert other.stdout
        assert other.stdout.readline().strip() == "alive"
        other.kill()
    lease.release()


def test_a_file_among_the_jobs_hides_none(job: JobFolder) -> None:
    job.acquire()
    Path(job.store.uri.removeprefix("file://"), "jobs", "README").write_text("hands off")
    assert [view.name for view in list_jobs(job.store)] == [job.name]


@pytest.mark.parametrize(
    ("item", "content", "problem"),
    [
        ("manifest", b"rubbish", "does not begin like one"),
        ("running", b"{", "job etl has a broken record"),
        ("running", b'{"epoch": 1}', "running: missing endpoint"),
        ("ended", b"[]", "ended: expected dict, found list"),
    ],
)
def test_a_broken_record_is_told_and_hides_neither_the_rest_nor_other_jobs(
    job: JobFolder, item: str, content: bytes, problem: str
) -> None:
    moved_out(job)
    moved_out(JobFolder(job.store, "other"))
    job.store.put(job.key(item), content)
    views: dict[str, JobView] = {view.name: view for view in list_jobs(job.store)}
    assert problem in (views["etl"].problem or "")
    assert views["other"].problem is None
    assert views["other"].state is JobState.MOVED_OUT


def test_the_record_with_the_token_is_for_its_owner_alone(job: JobFolder, tmp_path: Path) -> None:
    lease = job.acquire()
    lease.announce(RUNNING)
    assert (tmp_path / "store" / "jobs" / "etl" / "running").stat().st_mode & 0o077 == 0
    lease.release()
