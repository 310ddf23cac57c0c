"""`godwit migrate` against a real control endpoint."""

import json
import time
from dataclasses import replace

import pytest

from godwit.extractor.errors import DeadlinePassed, GodwitError, MoveFailed, MoveRefused
from godwit.extractor.job import JobFolder
from godwit.extractor.store import Store
from tests.extractor.samples import RUNNING
from tests.orchestrator.conftest import Godwit
from tests.orchestrator.live import LiveJob, store_state


def test_a_move_tells_its_steps_and_what_it_came_to(godwit: Godwit, live_job: LiveJob) -> None:
    told = godwit("migrate", "etl", "--store", live_job.lease.job.store.uri)
    assert told.code == 0
    assert told.err.splitlines() == [
        "parking",
        "draining: running stages may finish, for 28 s at most",
        "extracting 1 stages, 3.0 MB",
        "committed",
        "left",
    ]
    assert ["stages", "kept", "1"] in [line.split() for line in told.out.splitlines()]
    assert ["bytes", "3.0", "MB"] in [line.split() for line in told.out.splitlines()]


def test_json_tells_the_same(godwit: Godwit, live_job: LiveJob) -> None:
    told = godwit("migrate", "etl", "--json", "--store", live_job.lease.job.store.uri)
    *steps, moved = told.json_lines
    assert steps == live_job.steps()
    assert moved.pop("vacate_seconds") > 0
    assert moved == {"job": "etl", "stages_kept": 1, "stages_recomputed": 1, "bytes": 3_000_000}
    assert told.err == ""


@pytest.mark.parametrize(
    ("words", "seconds", "drain"), [([], 30, True), (["--deadline", "2m", "--now"], 120, False)]
)
def test_the_order_is_passed_on(
    godwit: Godwit, live_job: LiveJob, words: list[str], seconds: float, drain: bool
) -> None:
    before = time.time()
    godwit("migrate", "etl", *words, "--store", live_job.lease.job.store.uri)
    (order,) = live_job.orders
    assert before + seconds <= order.deadline_at <= time.time() + seconds
    assert order.drain is drain


@pytest.mark.parametrize("deadline", ["0s", "-5s", "0"])
def test_a_deadline_in_the_past_is_73_and_nothing_is_ordered(
    godwit: Godwit, live_job: LiveJob, deadline: str
) -> None:
    told = godwit("migrate", "etl", "--deadline", deadline, "--store", live_job.lease.job.store.uri)
    assert told.code == 73
    assert live_job.orders == []


def test_what_is_no_duration_is_64(godwit: Godwit, live_job: LiveJob) -> None:
    told = godwit("migrate", "etl", "--deadline", "soon", "--store", live_job.lease.job.store.uri)
    assert told.code == 64


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (MoveRefused("the program has already written: file:/x"), 71),
        (MoveFailed("the store is gone", next_step="bring it back"), 72),
        (DeadlinePassed("the deadline has passed"), 73),
    ],
)
def test_a_move_that_the_driver_undid_has_its_exit_code_and_reason(
    godwit: Godwit, live_job: LiveJob, refusal: GodwitError, code: int
) -> None:
    live_job.refusal = refusal
    told = godwit("migrate", "etl", "--store", live_job.lease.job.store.uri)
    assert told.code == code
    assert told.err.splitlines()[-1] == f"godwit: {refusal}; {refusal.next_step}"
    assert told.out == ""


def test_a_job_that_is_moved_out_already_is_not_moved_again(godwit: Godwit, store: Store) -> None:
    store_state(JobFolder(store, "etl"))
    told = godwit("migrate", "etl", "--store", store.uri)
    assert told.code == 71
    assert told.err.splitlines() == [
        "godwit: job etl has been moved out already; resume it with the command that started it"
    ]


def test_a_job_that_has_ended_or_died_is_not_running(godwit: Godwit, store: Store) -> None:
    lease = JobFolder(store, "ended").acquire()
    lease.end(ended_at=0, moves=0)
    lease.release()
    JobFolder(store, "dead").acquire().release()
    assert "has ended" in godwit("migrate", "ended", "--store", store.uri).err
    assert "has no driver" in godwit("migrate", "dead", "--store", store.uri).err


def test_a_driver_that_does_not_answer_is_72(godwit: Godwit, live_job: LiveJob) -> None:
    live_job.lease.announce(replace(RUNNING, endpoint="127.0.0.1:9"))
    told = godwit("migrate", "etl", "--json", "--store", live_job.lease.job.store.uri)
    assert told.code == json.loads(told.err)["exit_code"] == 72


def test_a_driver_that_is_still_starting_cannot_be_asked(godwit: Godwit, store: Store) -> None:
    lease = JobFolder(store, "etl").acquire()
    told = godwit("migrate", "etl", "--store", store.uri)
    lease.release()
    assert told.code == 72
    assert "has not said yet" in told.err
