import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from godwit.extractor import journal
from godwit.extractor.errors import GodwitError
from godwit.extractor.job import JobFolder
from godwit.extractor.journal import Record, Writer
from godwit.extractor.recorder import ANSWER_BYTES, Call, Outcome, Recorder, Unsure
from godwit.extractor.threads import Names
from tests.extractor.samples import new_job


class World:
    def __init__(self, outcome: Outcome) -> None:
        self.said = outcome
        self.asked: list[str] = []

    def outcome(self, record: Record) -> Outcome:
        self.asked.append(record.shown)
        return self.said

    def stop(self, error: GodwitError) -> NoReturn:
        raise error


class Driver:
    """One after another drive the same job; each runs the program anew."""

    def __init__(self, job: JobFolder, outcome: Outcome = Outcome.UNKNOWN) -> None:
        self.lease = job.acquire()
        self.world = World(outcome)
        self.ran: list[str] = []
        self.writer = Writer(self.lease)
        clock = itertools.count(1).__next__
        self.recorder = Recorder(
            journal.load(job),
            self.writer,
            Names(),
            self.world,
            epoch=self.lease.epoch,
            clock=lambda: float(clock()),
        )

    def ask(self, what: str, answer: object = None, *, settled: bool = False) -> object:
        return self.recorder.action(lambda: call(what, settled=settled), lambda: self._run(what, answer))

    def write(self, what: str, then: Callable[[], None] = lambda: None) -> None:
        self.recorder.action(lambda: call(what, writes=True), lambda: (self._run(what, None), then())[0])

    def _run(self, what: str, answer: object) -> object:
        self.ran.append(what)
        return answer

    def leave(self) -> None:
        self.writer.flush()
        self.lease.release()

    def die(self) -> None:
        self.lease.release()


def call(what: str, *, writes: bool = False, settled: bool = False) -> Call:
    return Call("method", what.encode().hex(), what, writes, (f"file:///{what}",) if writes else (), settled)


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    return new_job(tmp_path)


def test_what_is_done_is_answered_and_not_done_again(job: JobFolder) -> None:
    first = Driver(job)
    assert first.ask("count", 3) == 3
    first.write("append")
    first.leave()
    next_one = Driver(job)
    assert next_one.ask("count", 4) == 3
    next_one.write("append")
    next_one.write("another")
    assert next_one.ran == ["another"]


def test_what_spark_does_inside_of_an_action_is_part_of_it(job: JobFolder) -> None:
    driver = Driver(job)
    driver.write("saveAsTable", then=lambda: driver.write("inner"))
    driver.leave()
    again = Driver(job)
    again.write("saveAsTable", then=lambda: again.write("inner"))
    again.ask("next", 1)
    assert again.ran == ["next"]


def test_an_answer_that_was_not_flushed_when_the_driver_died_is_computed_again(job: JobFolder) -> None:
    first = Driver(job)
    first.ask("count", 3)
    first.die()
    next_one = Driver(job)
    assert next_one.ask("count", 4) == 4
    assert next_one.ran == ["count"]


def test_but_it_is_written_before_any_later_write_begins(job: JobFolder) -> None:
    first = Driver(job)
    first.ask("count", 3)
    with pytest.raises(KeyError):
        first.write("append", then=lambda: {}["killed"])
    first.die()
    assert Driver(job).ask("count", 4) == 3


@pytest.mark.parametrize(("outcome", "ran"), [(Outcome.LANDED, []), (Outcome.NOT_LANDED, ["append"])])
def test_a_write_whose_end_nobody_saw_is_looked_up(job: JobFolder, outcome: Outcome, ran: list[str]) -> None:
    first = Driver(job)
    with pytest.raises(KeyError):
        first.write("append", then=lambda: {}["killed"])
    first.die()
    next_one = Driver(job, outcome)
    next_one.write("append")
    assert (next_one.world.asked, next_one.ran) == (["append"], ran)
    next_one.die()
    last = Driver(job)
    last.write("append")
    assert (last.world.asked, last.ran) == ([], [])


def test_where_nobody_knows_the_program_stops_before_any_effect(job: JobFolder) -> None:
    first = Driver(job)
    with pytest.raises(KeyError):
        first.write("append", then=lambda: {}["killed"])
    first.die()
    next_one = Driver(job, Outcome.UNKNOWN)
    with pytest.raises(Unsure, match="nobody knows whether this was done: append") as stopped:
        next_one.write("append")
    assert (next_one.ran, stopped.value.exit_code) == ([], 76)


def test_a_program_that_goes_another_way_before_a_write_stops(job: JobFolder) -> None:
    first = Driver(job)
    first.ask("count", 3)
    first.write("append")
    first.leave()
    next_one = Driver(job)
    with pytest.raises(
        Unsure, match=r"now does sum, and at this place it did count; since then it has written: append"
    ):
        next_one.ask("sum", 1)
    assert next_one.ran == []


def test_after_its_last_write_it_may_go_any_way_and_the_next_driver_follows(job: JobFolder) -> None:
    first = Driver(job)
    first.write("append")
    first.ask("count", 3)
    first.ask("more", 5)
    first.leave()
    second = Driver(job)
    second.write("append")
    second.ask("sum", 1)
    second.ask("more", 6)
    assert second.ran == ["sum", "more"]
    second.leave()
    third = Driver(job)
    third.write("append")
    assert (third.ask("sum", 2), third.ask("more", 7)) == (1, 6)
    assert third.ran == []


def test_what_is_too_large_to_be_kept_is_asked_again_if_it_can_only_be_the_same(job: JobFolder) -> None:
    first = Driver(job)
    first.ask("all", "x" * (ANSWER_BYTES + 1), settled=True)
    first.leave()
    assert Driver(job).ask("all", "the same", settled=True) == "the same"


def test_else_the_program_stops(job: JobFolder) -> None:
    first = Driver(job)
    first.ask("some", "x" * (ANSWER_BYTES + 1))
    first.leave()
    with pytest.raises(Unsure, match="its answer was not kept"):
        Driver(job).ask("some", "others")


def test_a_write_in_a_thread_without_a_name_keeps_the_job_from_moving(job: JobFolder) -> None:
    driver = Driver(job)
    assert driver.recorder.refusal is None
    thread = threading.Thread(target=driver.write, args=("append",))
    thread.start()
    thread.join()
    assert driver.ran == ["append"]
    assert "in a thread that nobody could find again: append" in str(driver.recorder.refusal)
