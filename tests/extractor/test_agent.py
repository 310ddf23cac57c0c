"""Moves, step by step, with a stand-in for the JVM and a real store."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from godwit.extractor.agent import Agent, order_for
from godwit.extractor.control import Event, MoveUnderWay, Order
from godwit.extractor.errors import (
    DeadlinePassed,
    MoveFailed,
    MoveRefused,
    StoreFull,
    StoreUnreadable,
    StoreUnsure,
)
from godwit.extractor.facade import Notice
from godwit.extractor.job import JobFolder, JobLease
from godwit.extractor.manifest import Fragment, Manifest
from godwit.planrewrite.select import StateSelection
from godwit.planrewrite.stagegraph import StageGraph
from tests.extractor.machine import Machine
from tests.extractor.samples import fragment, manifest, new_job
from tests.planrewrite.graphs import graph, graph_of, pipeline, query, result

NOW = 1_700_000_000.0
SOON = Order(NOW + 30, drain=True)


class Stage:
    """An agent with all that it acts on, and a clock that the machine's waiting moves forward."""

    def __init__(self, folder: Path, machine: Machine, *loaded: Fragment) -> None:
        self.machine = machine
        self.job: JobFolder = new_job(folder)
        self.lease: JobLease = self.job.acquire()
        self.events: list[Event] = []
        self.left_with: list[int] = []
        self.extra_seconds = 0.0
        self.slept = threading.Event()
        self.agent = Agent(
            machine,
            self.lease,
            loaded={each.fingerprint: each for each in loaded},
            manifest=self.manifest,
            moves=0,
            narrate=lambda event: None,
            leave=self.left_with.append,
            clock=lambda: NOW + machine.waited_ms / 1000 + self.extra_seconds,
            sleep=lambda seconds: self.slept.set(),
        )

    def manifest(
        self, taken: StageGraph, selection: StateSelection, fragments: tuple[Fragment, ...]
    ) -> Manifest:
        return manifest(
            epoch=self.lease.epoch, snapshot=taken.to_json(), selection=selection, fragments=fragments
        )

    def move(self, order: Order = SOON) -> dict[str, Any]:
        """The last event."""
        self.agent.move(order, self.events.append)
        return dict(self.events[-1])

    def phases(self) -> list[str]:
        return [event["phase"] for event in self.events]

    def stored(self) -> dict[str, str]:
        """What the committed manifest keeps: fingerprint -> folder."""
        committed = self.job.committed()
        return {each.fingerprint: each.folder for each in committed.fragments} if committed else {}

    def blocks(self) -> list[str]:
        return self.job.store.list(self.job.key("blocks"))


Staged = Callable[..., Stage]


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    def build(taken: StageGraph, *loaded: Fragment) -> Stage:
        return Stage(tmp_path, Machine(taken), *loaded)

    return build


def two_stages(**facts: Any) -> StageGraph:
    """`a` has finished, `b` reads it, the result reads `b`."""
    return graph(pipeline("a", fingerprint="aa"), pipeline("b", "a", **facts), result("r", "b"))


def running(**facts: Any) -> StageGraph:
    return two_stages(state="running", fingerprint="bb", **facts)


# The way out


def test_a_move_commits_what_has_finished_and_leaves_with_75(staged: Staged) -> None:
    stage = staged(two_stages(state="waiting", fingerprint="bb"))
    assert stage.move() == {"phase": "left", "exit_code": 75}
    assert stage.left_with == [75]
    assert stage.phases() == ["parking", "draining", "extracting", "committed", "left"]
    assert stage.stored().keys() == {"aa"}


def test_the_queries_stay_parked_after_a_commit(staged: Staged) -> None:
    stage = staged(running())
    stage.move()
    assert not stage.machine.gate_is_open


def test_what_a_fragment_names_is_in_the_store(staged: Staged, tmp_path: Path) -> None:
    stage = staged(running())
    stage.move()
    for folder in stage.stored().values():
        assert Path(stage.job.bulk_uri(folder).removeprefix("file://"), "rows").exists()


def test_the_manifest_holds_the_picture_on_which_was_decided(staged: Staged) -> None:
    stage = staged(running())
    stage.move()
    committed = stage.job.committed()
    assert committed is not None
    assert StageGraph.from_json(committed.snapshot) == stage.machine.graph


def test_with_nothing_running_the_job_leaves_with_an_empty_manifest(staged: Staged) -> None:
    stage = staged(graph_of())
    assert stage.move()["phase"] == "left"
    assert stage.job.committed() is not None
    assert stage.stored() == {}
    assert stage.machine.extracted == []


def test_where_nothing_can_be_state_the_job_still_leaves(staged: Staged) -> None:
    stage = staged(graph(pipeline("a"), result("r", "a"), refusal="AQE is off"))
    assert stage.move()["phase"] == "left"
    assert stage.stored() == {}


# Waiting for what runs


def test_a_running_stage_is_finished_first_and_kept(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.drain_ms = 5_000
    stage.move()
    assert stage.stored().keys() == {"bb"}


def test_a_stage_that_is_about_to_submit_its_job_is_waited_for(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.looks_before_submission = 5
    stage.machine.drain_ms = 5_000
    stage.move()
    assert stage.stored().keys() == {"bb"}


def test_a_stage_that_never_submits_its_job_does_not_hold_the_move(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.looks_before_submission = 1_000_000
    stage.move()
    assert stage.stored().keys() == {"aa"}
    assert stage.machine.waited_ms < 2_000


def test_a_stage_that_reads_a_parked_subquery_is_not_waited_for(staged: Staged) -> None:
    subquery = pipeline("s", "a", "running", kind="subquery", fingerprint=None)
    stage = staged(
        graph(pipeline("a", fingerprint="aa"), subquery, pipeline("b", "s", "running"), result("r", "b"))
    )
    stage.machine.looks_before_submission = 1_000_000
    stage.move()
    assert stage.stored().keys() == {"aa"}
    assert stage.machine.waited_ms < 100


def test_without_drain_only_what_has_finished_is_kept(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.drain_ms = 5_000
    stage.move(replace(SOON, drain=False))
    assert stage.stored().keys() == {"aa"}
    assert "draining" not in stage.phases()
    assert stage.machine.waited_ms == 0


def test_a_stage_that_takes_too_long_is_left_behind_in_time_to_write_the_rest(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.drain_ms = 60_000
    stage.move()
    assert stage.stored().keys() == {"aa"}
    assert 25_000 < stage.machine.waited_ms < 27_500


def test_the_more_there_is_to_write_the_shorter_the_wait(staged: Staged) -> None:
    stage = staged(
        graph(
            pipeline("a", fingerprint="aa", bytes=1_500_000_000),
            pipeline("b", "a", "running"),
            result("r", "b"),
        )
    )
    stage.machine.drain_ms = 60_000
    stage.move()
    assert stage.stored().keys() == {"aa"}
    assert 10_000 < stage.machine.waited_ms < 12_500


def test_what_does_not_fit_into_the_time_left_is_not_begun(staged: Staged) -> None:
    stage = staged(graph(pipeline("a", bytes=10**12), result("r", "a")))
    assert stage.move()["phase"] == "left"
    assert stage.machine.extracted == []


def test_extraction_ends_before_the_deadline(staged: Staged) -> None:
    stage = staged(two_stages(state="waiting"))
    stage.move(Order(NOW + 10, drain=False))
    assert stage.machine.timeouts_ms == [9_500]


def test_an_earlier_deadline_overtakes_a_move_that_is_under_way(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.drain_ms = 600_000

    def sigterm() -> None:
        stage.machine.on_wait = lambda: None
        with pytest.raises(MoveUnderWay):
            stage.agent.move(Order(NOW + 10, drain=True), lambda event: None)

    stage.machine.on_wait = sigterm
    stage.move(Order(NOW + 600, drain=True))
    assert stage.machine.waited_ms < 10_000
    assert stage.stored().keys() == {"aa"}


def test_a_broadcast_that_the_driver_is_building_is_awaited_though_no_job_runs(staged: Staged) -> None:
    built = pipeline("b", kind="broadcast", state="running", fingerprint="bb", run_ms=4_000, bytes=1_000)
    stage = staged(graph(built, result("r", "b")))
    stage.machine.looks_before_submission = 200  # three seconds
    stage.move()
    assert stage.stored().keys() == {"bb"}


# Refusals


def test_a_program_that_has_written_is_not_moved(staged: Staged) -> None:
    stage = staged(replace(running(), side_effects=("execution 3 wrote file:/x",)))
    told = stage.move()
    assert (told["phase"], told["exit_code"]) == ("failed", MoveRefused.exit_code)
    assert "execution 3 wrote file:/x" in told["error"]
    assert stage.machine.gate_is_open
    assert stage.left_with == []
    assert stage.job.committed() is None


def test_a_write_that_ends_while_it_is_waited_for_stops_the_move(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.drain_ms = 1_000

    def write() -> None:
        stage.machine.graph = replace(stage.machine.graph, side_effects=("execution 3 wrote file:/x",))

    stage.machine.on_wait = write
    assert stage.move()["exit_code"] == MoveRefused.exit_code
    assert stage.machine.gate_is_open
    assert stage.blocks() == []


def test_a_write_that_is_producing_its_output_is_not_moved(staged: Staged) -> None:
    writing = replace(query(pipeline("a"), result("r", "a")), write=True, result_running=True, parked=False)
    stage = staged(graph_of(writing))
    assert stage.move()["exit_code"] == MoveRefused.exit_code
    assert stage.machine.waited_ms == 0


def test_a_write_that_passed_the_gate_before_it_closed_is_not_moved(staged: Staged) -> None:
    """Its stages are done, its output has not begun, and nothing holds it."""
    loose = replace(query(pipeline("a"), result("r", "a")), write=True, parked=False)
    stage = staged(graph_of(loose))
    told = stage.move()
    assert (told["exit_code"], stage.job.committed()) == (MoveRefused.exit_code, None)
    assert "about to write" in told["error"]
    assert stage.machine.gate_is_open


def test_a_subquery_does_not_hold_a_write(staged: Staged) -> None:
    subquery = pipeline("s", "a", "running", kind="subquery", fingerprint=None)
    loose = replace(query(pipeline("a"), subquery, result("r", "a s")), write=True, parked=False)
    stage = staged(graph_of(loose))
    assert stage.move(replace(SOON, drain=False))["exit_code"] == MoveRefused.exit_code


def test_a_write_that_waits_for_its_stages_is_moved_without_being_parked(staged: Staged) -> None:
    waiting = query(pipeline("a"), pipeline("b", "a", "running"), result("r", "b"))
    stage = staged(graph_of(replace(waiting, write=True, parked=False)))
    stage.move(replace(SOON, drain=False))
    assert stage.left_with == [75]


def test_whoever_cannot_be_told_does_not_keep_a_committed_job_here(staged: Staged) -> None:
    stage = staged(running())

    def deaf(event: Event) -> None:
        if event["phase"] == "committed":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        stage.agent.move(SOON, deaf)
    assert stage.left_with == [75]
    assert not stage.machine.gate_is_open


def test_whoever_cannot_be_told_of_a_failure_does_not_block_the_next_move(staged: Staged) -> None:
    stage = staged(running())

    def deaf(event: Event) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        stage.agent.move(SOON, deaf)
    assert stage.move()["phase"] == "left"


def test_a_write_that_has_not_begun_its_output_is_moved(staged: Staged) -> None:
    stage = staged(graph_of(replace(query(pipeline("a"), result("r", "a")), write=True)))
    assert stage.move()["phase"] == "left"


def test_a_read_in_its_result_is_moved(staged: Staged) -> None:
    reading = replace(query(pipeline("a", fingerprint="aa"), result("r", "a")), result_running=True)
    stage = staged(graph_of(reading))
    assert stage.move()["phase"] == "left"
    assert stage.stored().keys() == {"aa"}


def test_a_deadline_in_the_past_opens_the_gate_again(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.close_gate()  # as the JVM does when enough stages have finished
    assert stage.move(Order(NOW - 1, drain=True))["exit_code"] == DeadlinePassed.exit_code
    assert stage.machine.gate_is_open


# Failures


def test_a_failed_extraction_leaves_nothing_and_the_queries_go_on(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.fails = {"b": "java.io.IOException: the disk is on fire"}
    told = stage.move()
    assert (told["phase"], told["exit_code"]) == ("failed", MoveFailed.exit_code)
    assert "the disk is on fire" in told["error"]
    assert stage.machine.gate_is_open
    assert stage.blocks() == []
    assert stage.job.committed() is None
    assert stage.left_with == []


def test_a_full_store_is_called_that(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.fails = {"b": "java.io.IOException: No space left on device"}
    assert stage.move()["next_step"] == StoreFull.next_step


def test_a_store_that_is_gone_leaves_the_queries_running(staged: Staged, tmp_path: Path) -> None:
    stage = staged(running())

    def unmount() -> None:
        (tmp_path / "store").rename(tmp_path / "unmounted")

    stage.machine.on_extract = unmount
    told = stage.move()
    assert told["exit_code"] == StoreUnreadable.exit_code
    assert stage.machine.gate_is_open


def test_a_failed_move_does_not_touch_the_state_of_the_move_before(staged: Staged) -> None:
    kept = fragment(fingerprint="cc", folder="blocks/0-11111111/0/f0")
    stage = staged(running(), kept)
    stage.lease.commit(manifest(epoch=stage.lease.epoch, fragments=(kept,)))
    stage.machine.fails = {"b": "the disk is on fire"}
    stage.move()
    assert stage.stored() == {"cc": kept.folder}


def test_after_a_failed_move_another_one_can_succeed(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.fails = {"b": "the disk is on fire"}
    stage.move()
    stage.machine.fails = {}
    assert stage.move()["phase"] == "left"


def test_a_surprise_is_told_and_the_queries_go_on(staged: Staged) -> None:
    stage = staged(running())

    def surprise() -> None:
        raise ZeroDivisionError("surprise")

    stage.machine.on_extract = surprise
    told = stage.move()
    assert (told["phase"], told["exit_code"]) == ("failed", MoveFailed.exit_code)
    assert "surprise" in told["error"]
    assert stage.machine.gate_is_open


def test_a_picture_that_contradicts_itself_moves_nothing(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.snapshot = lambda: "{}"  # type: ignore[method-assign]
    assert stage.move()["exit_code"] == MoveFailed.exit_code
    assert stage.machine.gate_is_open


def test_what_lies_beneath_a_refused_stage_is_kept_in_its_place(staged: Staged) -> None:
    stage = staged(two_stages(fingerprint="bb"))
    stage.machine.refuses = {"b"}
    assert stage.move()["phase"] == "left"
    assert stage.machine.extracted == [["b"], ["a"]]
    assert stage.stored().keys() == {"aa"}
    committed = stage.job.committed()
    assert committed is not None
    assert [each.pipeline_id for each in committed.selection.skipped] == ["b"]


def test_a_machine_that_goes_away_takes_what_can_be_saved(staged: Staged) -> None:
    taken = graph(pipeline("a", fingerprint="aa"), pipeline("b", fingerprint="bb"), result("r", "a b"))
    stage = staged(taken)
    stage.machine.fails = {"b": "an executor was lost"}
    assert stage.move(SOON)["phase"] == "failed"
    assert stage.move(replace(SOON, must_leave=True))["phase"] == "left"
    assert stage.stored().keys() == {"aa"}


def test_a_machine_that_goes_away_with_nothing_saved_has_failed(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.fails = {"a": "the store is gone", "b": "the store is gone"}
    assert stage.move(replace(SOON, must_leave=True))["phase"] == "failed"


# What this driver resumed from


def test_what_is_in_the_store_already_is_not_written_again(staged: Staged) -> None:
    old = fragment(fingerprint="aa", folder="blocks/0-11111111/0/f0", pipeline="old")
    taken = graph(
        pipeline("a", fingerprint="aa", stored=True), pipeline("b", fingerprint="bb"), result("r", "a b")
    )
    stage = staged(taken, old)
    stage.move()
    assert stage.machine.extracted == [["b"]]
    assert stage.stored()["aa"] == old.folder
    committed = stage.job.committed()
    assert committed is not None
    assert {each.fingerprint: each.pipeline for each in committed.fragments} == {"aa": "a", "bb": "b"}


def test_what_the_running_query_has_left_behind_is_dropped(staged: Staged) -> None:
    old = fragment(fingerprint="aa", folder="blocks/0-11111111/0/f0")
    taken = graph(
        pipeline("a", fingerprint="aa", stored=True), pipeline("b", "a", fingerprint="bb"), result("r", "b")
    )
    stage = staged(taken, old)
    stage.move()
    assert stage.stored().keys() == {"bb"}


def test_what_the_program_has_not_met_yet_is_carried_forward(staged: Staged) -> None:
    later = fragment(fingerprint="cc", folder="blocks/0-11111111/0/f0")
    stage = staged(running(), later)
    stage.move()
    assert stage.stored().keys() == {"bb", "cc"}


def test_what_proved_unreadable_is_not_carried_forward(staged: Staged) -> None:
    broken = fragment(fingerprint="cc", folder="blocks/0-11111111/0/f0")
    stage = staged(running(), broken)
    stage.machine.fallbacks = {"cc": "block 3 is missing"}
    stage.move()
    assert stage.stored().keys() == {"bb"}


def test_two_queries_with_the_same_exchange_keep_it_once(staged: Staged) -> None:
    one = query(pipeline("a", fingerprint="aa"), result("r", "a"))
    other = query(pipeline("b", fingerprint="aa"), result("s", "b"), execution=1)
    stage = staged(graph_of(one, other))
    stage.move()
    assert stage.machine.extracted == [["a"]]
    assert list(stage.stored()) == ["aa"]


# One move at a time, and the end of the program


def test_a_second_move_is_turned_away(staged: Staged) -> None:
    stage = staged(running())
    turned_away: list[bool] = []

    def second() -> None:
        stage.machine.on_extract = lambda: None
        with pytest.raises(MoveUnderWay):
            stage.agent.move(SOON, lambda event: None)
        turned_away.append(True)

    stage.machine.on_extract = second
    stage.move()
    assert turned_away == [True]


def test_a_program_that_ends_during_a_move_has_ended(staged: Staged) -> None:
    stage = staged(running())
    ending = threading.Thread(target=stage.agent.retire)

    def end() -> None:
        ending.start()
        while not stage.agent._retired:
            pass

    stage.machine.on_extract = end
    told = stage.move()
    ending.join(10)
    assert not ending.is_alive()
    assert (told["phase"], told["exit_code"]) == ("failed", MoveRefused.exit_code)
    assert stage.job.committed() is None
    assert stage.blocks() == []


def test_a_program_that_ends_after_the_commit_waits_for_the_process_to_leave(staged: Staged) -> None:
    stage = staged(running())
    stage.move()
    ending = threading.Thread(target=stage.agent.retire, daemon=True)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()


# Notices


def test_a_sigterm_gives_the_grace_period_and_must_be_obeyed() -> None:
    assert order_for(Notice("sigterm", at_ms=1_000_000, grace_ms=15_000)) == Order(
        1015.0, drain=True, must_leave=True
    )


def test_so_many_stages_are_in_no_hurry() -> None:
    order = order_for(Notice("stages", at_ms=1_000_000, grace_ms=15_000))
    assert order.deadline_at > 1_000 + 600
    assert (order.drain, order.must_leave) == (True, False)


def test_the_agent_acts_on_a_notice_until_the_jvm_is_gone(staged: Staged) -> None:
    stage = staged(running())
    stage.machine.notices.put(Notice("sigterm", int(NOW * 1000), 30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.left_with == [75]


def test_while_nothing_happens_the_agent_looks_so_that_a_move_finds_all_prepared(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.extractor.agent.NOTICE_WAIT_MS", 1)
    stage = staged(running())

    def look() -> str:
        stage.machine.notices.put(None)
        raise MoveFailed("Spark is busy with something else")

    stage.machine.snapshot = look  # type: ignore[method-assign]
    stage.agent.serve()
    assert stage.machine.gate_is_open


def test_a_notice_that_arrives_twice_is_served_once(staged: Staged) -> None:
    stage = staged(replace(running(), side_effects=("execution 3 wrote file:/x",)))
    pictures: list[str] = []
    taken = stage.machine.graph.to_json()
    stage.machine.snapshot = lambda: pictures.append("taken") or taken  # type: ignore[method-assign, func-returns-value]
    for _ in range(2):
        stage.machine.notices.put(Notice("sigterm", int(NOW * 1000), 30_000))
    stage.machine.notices.put(None)
    stage.extra_seconds = 0.01
    stage.agent.serve()
    assert pictures == ["taken"]


def test_a_notice_of_stages_is_never_taken_for_an_echo(staged: Staged) -> None:
    """It has closed the gate: who drops it leaves the queries parked for ever."""
    stage = staged(replace(running(), side_effects=("execution 3 wrote file:/x",)))
    stage.machine.notices.put(Notice("sigterm", int(NOW * 1000), 30_000))
    stage.machine.notices.put(Notice("stages", int(NOW * 1000) - 1, 30_000))
    stage.machine.notices.put(None)
    closed: list[str] = []
    stage.machine.close_gate = lambda: closed.append("closed")  # type: ignore[method-assign]
    stage.agent.serve()
    assert closed == ["closed", "closed"]


def test_a_jvm_that_cannot_answer_once_is_asked_again(
    staged: Staged, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = staged(running())
    real, asked = stage.machine.await_notice, []

    def answer(timeout_ms: int) -> Notice | None:
        asked.append(timeout_ms)
        if len(asked) == 1:
            raise MoveFailed("Spark says: OutOfMemoryError")
        return real(timeout_ms)

    stage.machine.await_notice = answer  # type: ignore[method-assign]
    stage.machine.notices.put(Notice("sigterm", int(NOW * 1000), 30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.left_with == [75]
    assert "OutOfMemoryError" in capsys.readouterr().err


# What others see


def test_the_status_says_how_far_the_job_is(staged: Staged) -> None:
    stage = staged(running())
    status = stage.agent.status()
    assert (status["job"], status["epoch"], status["moves"], status["moving"]) == ("etl", 1, 0, False)
    assert status["progress"] == pytest.approx(1 / 3)
    assert status["refusal"] is None


def test_the_status_says_why_a_move_would_be_refused(staged: Staged) -> None:
    stage = staged(
        replace(running(), side_effects=("execution 3 wrote file:/x", "execution 4 wrote file:/y"))
    )
    assert stage.agent.status()["refusal"] == (
        "the program has already written: execution 3 wrote file:/x and more"
    )


def test_a_program_that_has_stopped_its_context_is_not_moved(staged: Staged) -> None:
    stage = staged(StageGraph(1, "4.3.0", None, True, (), False, 2, ()))
    assert "has stopped its SparkContext" in stage.agent.status()["refusal"]
    assert "has stopped its SparkContext" in str(stage.move()["error"])
    assert stage.left_with == []


# Notices that meet a move


def test_a_sigterm_during_a_move_makes_a_part_of_the_state_good_enough(staged: Staged) -> None:
    stage = staged(
        graph(pipeline("a", fingerprint="aa"), pipeline("b", fingerprint="bb"), result("r", "a b"))
    )
    stage.machine.fails = {"b": "the disk is broken"}

    def sigterm() -> None:
        with pytest.raises(MoveUnderWay):
            stage.agent.move(Order(NOW + 10, drain=True, must_leave=True), lambda event: None)

    stage.machine.on_extract = sigterm
    assert stage.move()["phase"] == "left"
    assert stage.stored().keys() == {"aa"}


def test_a_sigterm_during_a_move_that_fails_is_obeyed_after_it(staged: Staged) -> None:
    stage = staged(running())
    began, ends = threading.Event(), threading.Event()

    def hold() -> None:
        stage.machine.on_extract = lambda: None
        began.set()
        ends.wait(30)
        raise MoveFailed("somebody else's move comes to nothing")

    stage.machine.on_extract = hold
    ordered = threading.Thread(target=stage.move)
    ordered.start()
    began.wait(30)
    stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
    stage.machine.notices.put(None)
    serving = threading.Thread(target=stage.agent.serve)
    serving.start()
    ends.set()
    ordered.join(30)
    serving.join(30)
    assert stage.left_with == [75]


def test_a_sigterm_is_heard_while_the_agent_moves_after_so_many_stages(staged: Staged) -> None:
    stage = staged(
        graph(pipeline("a", fingerprint="aa"), pipeline("b", fingerprint="bb"), result("r", "a b"))
    )
    stage.machine.fails = {"b": "the disk is broken"}

    def sigterm() -> None:
        stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
        assert stage.slept.wait(30), "nobody has heard it"

    stage.machine.on_extract = sigterm
    stage.machine.notices.put(Notice("stages", at_ms=int(NOW * 1000), grace_ms=30_000))
    serving = threading.Thread(target=stage.agent.serve, daemon=True)
    serving.start()
    while not stage.left_with:
        serving.join(0.01)
    assert stage.stored().keys() == {"aa"}


def test_a_machine_that_goes_away_tries_again_what_has_failed(staged: Staged) -> None:
    stage = staged(running())

    def fail_once() -> None:
        stage.machine.on_extract = lambda: None
        raise MoveFailed("an executor is gone")

    stage.machine.on_extract = fail_once
    stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.left_with == [75]


def between_contexts() -> StageGraph:
    return replace(running(), stopped=True)


def about_to_write() -> StageGraph:
    """Its stages are done, and it has not come to the gate yet."""
    (query,) = two_stages(fingerprint="bb").queries
    return replace(running(), queries=(replace(query, write=True, parked=False),))


@pytest.mark.parametrize("in_the_way", [between_contexts, about_to_write])
def test_a_machine_that_goes_away_tries_again_what_is_refused_for_a_moment(
    staged: Staged, in_the_way: Callable[[], StageGraph]
) -> None:
    stage = staged(in_the_way())
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        stage.machine.graph = running()

    stage.agent._sleep = sleep
    stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.left_with == [75]
    assert slept


def test_but_not_when_there_is_no_time_left(staged: Staged) -> None:
    stage = staged(running())
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise MoveFailed("an executor is gone")

    stage.machine.on_extract = fail
    stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=3_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert (stage.left_with, tries) == ([], [1])
    assert stage.machine.gate_is_open


def ends_during_the_move(stage: Stage) -> None:
    def end() -> None:
        stage.machine.on_extract = lambda: None
        stage.machine.fails = {"a": "the pipeline is gone"}
        stage.machine.graph = graph(pipeline("z", fingerprint="cc"), result("y", "z"))

    stage.machine.on_extract = end


def test_a_query_that_ends_during_the_move_leaves_its_rows_to_the_program(staged: Staged) -> None:
    stage = staged(graph(pipeline("a", fingerprint="aa"), result("r", "a")))
    ends_during_the_move(stage)
    told = stage.move()
    assert (told["phase"], told["exit_code"]) == ("failed", MoveRefused.exit_code)
    assert stage.machine.gate_is_open
    assert stage.stored() == {}


def test_after_a_sigterm_what_comes_next_is_moved_then(staged: Staged) -> None:
    stage = staged(graph(pipeline("a", fingerprint="aa"), result("r", "a")))
    ends_during_the_move(stage)
    stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.left_with == [75]
    assert stage.stored().keys() == {"cc"}


def test_a_commit_that_has_landed_is_one_whatever_the_store_says(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(running())
    real = stage.lease.commit

    def commit(manifest: Manifest) -> None:
        real(manifest)
        raise StoreUnsure("the folder could not be synchronized")

    monkeypatch.setattr(stage.lease, "commit", commit)
    assert stage.move()["phase"] == "left"
    assert stage.left_with == [75]


def unsure(stage: Stage, monkeypatch: pytest.MonkeyPatch, *, landed: bool, silent_looks: int) -> None:
    """A store that fails in the middle of the commit, and then does not answer for a while."""
    commit, committed = stage.lease.commit, stage.job.committed
    looks = iter(range(silent_looks))

    def failing(manifest: Manifest) -> None:
        if landed:
            commit(manifest)
        monkeypatch.setattr(stage.job, "committed", silent)
        raise StoreUnsure("the store failed")

    def silent() -> Manifest | None:
        if next(looks, None) is None:
            return committed()
        stage.extra_seconds += 10
        raise StoreUnreadable("the store does not answer")

    monkeypatch.setattr(stage.lease, "commit", failing)


def test_a_commit_that_nobody_knows_of_keeps_the_queries_waiting_until_the_store_says(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(running())
    unsure(stage, monkeypatch, landed=True, silent_looks=20)
    assert stage.move()["phase"] == "left"
    assert not stage.machine.gate_is_open


def test_a_commit_that_has_not_landed_lets_the_queries_go_on(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(running())
    unsure(stage, monkeypatch, landed=False, silent_looks=3)
    assert stage.move()["phase"] == "failed"
    assert stage.machine.gate_is_open


def test_where_the_machine_ends_before_the_store_says_so_does_the_driver(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(running())
    unsure(stage, monkeypatch, landed=True, silent_looks=1000)
    stage.move(replace(SOON, must_leave=True))
    assert stage.left_with == [75]


def test_whatever_goes_wrong_in_a_look_the_agent_listens_on(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("godwit.extractor.agent.NOTICE_WAIT_MS", 1)
    stage = staged(running())

    def look() -> str:
        monkeypatch.undo()
        stage.machine.snapshot = real  # type: ignore[method-assign]
        stage.machine.notices.put(Notice("sigterm", at_ms=int(NOW * 1000), grace_ms=30_000))
        stage.machine.notices.put(None)
        raise ImportError("a module that is imported by being looked at")

    real, stage.machine.snapshot = stage.machine.snapshot, look  # type: ignore[method-assign]
    stage.agent.serve()
    assert stage.left_with == [75]


def test_a_notice_that_comes_too_late_leaves_nothing_parked(staged: Staged) -> None:
    stage = staged(running())
    stage.agent.retire()
    stage.machine.close_gate()  # as the JVM does when as many stages have finished as were asked for
    stage.machine.notices.put(Notice("stages", at_ms=int(NOW * 1000), grace_ms=30_000))
    stage.machine.notices.put(None)
    stage.agent.serve()
    assert stage.machine.gate_is_open


def test_after_the_programs_end_there_is_nothing_to_move(staged: Staged) -> None:
    stage = staged(running())
    stage.agent.retire()
    with pytest.raises(MoveRefused, match="come to its end"):
        stage.move()


def test_late_events_are_waited_for(staged: Staged) -> None:
    stage = staged(replace(running(), events_late=True))
    real = stage.machine.snapshot

    def settle() -> str:
        taken = real()
        stage.machine.graph = replace(stage.machine.graph, events_late=False)
        return taken

    stage.machine.snapshot = settle  # type: ignore[method-assign]
    assert stage.move()["phase"] == "left"


def test_events_that_stay_late_leave_the_job_where_it_is(staged: Staged) -> None:
    stage = staged(replace(running(), events_late=True))
    real = stage.machine.snapshot

    def slow() -> str:
        stage.extra_seconds += 2
        return real()

    stage.machine.snapshot = slow  # type: ignore[method-assign]
    told = stage.move()
    assert (told["exit_code"], stage.machine.gate_is_open) == (MoveRefused.exit_code, True)
    assert "late" in told["error"]


def test_a_program_that_has_answered_may_say_so_and_end(staged: Staged) -> None:
    stage = staged(running())
    stage.agent.retire()
    stage.agent.retire()
