"""A machine goes away in half a minute, and the queries on it have work behind them that would be lost.

The agent lives in the driver, beside the program, and moves the job out: it parks the queries at their next
re-planning, lets running stages finish while there is time, takes one picture, chooses what is state, has the
executors write it, and commits. Then the process leaves, and no handler of the program runs. If anything goes
wrong before the commit, the gate opens again and the queries go on as if nothing had happened.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from godwit.extractor import decide
from godwit.extractor.control import Event, MoveUnderWay, Order
from godwit.extractor.errors import (
    MOVED_OUT,
    DeadlinePassed,
    GodwitError,
    ManifestCorrupt,
    MoveFailed,
    MoveRefused,
    StoreUnreadable,
    StoreUnsure,
    failure,
)
from godwit.extractor.facade import Jvm, JvmGone, Notice
from godwit.extractor.job import JobLease
from godwit.extractor.manifest import Fragment, Manifest
from godwit.extractor.process import say
from godwit.planrewrite.select import StateSelection, select
from godwit.planrewrite.stagegraph import SnapshotError, StageGraph

NOTICE_WAIT_MS = 2_000
"""A look at the queries this often, of a few milliseconds, is all that the agent costs until a notice."""

DRAIN_LOOK_MS = 500
"""How late a drain hears that its deadline has been moved forward."""

LATE_LOOK_SECONDS = 0.02

ECHO_MS = 1_000
"""A signal to a whole process group arrives twice, by Python and by the JVM."""

SUBMIT_SECONDS = 1.0
"""How long a stage that has begun may take to submit its job. One that failed before it did never will."""

NO_HURRY_SECONDS = 3600.0
"""The deadline where nobody waits (so many stages have finished): a bound only for a stage that hangs."""

RETIRED = "the program has come to its end"

Tell = Callable[[Event], None]


class NotNow(MoveRefused):
    next_step = "order the move again if the program is still there"


class Agent:
    def __init__(
        self,
        jvm: Jvm,
        lease: JobLease,
        *,
        loaded: Mapping[str, Fragment],
        manifest: Callable[[StageGraph, StateSelection, tuple[Fragment, ...]], Manifest],
        moves: int,
        narrate: Tell,
        leave: Callable[[int], None],
        look_around: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jvm = jvm
        self._lease = lease
        self._loaded = loaded  # fingerprint -> what this driver resumed from
        self._manifest = manifest
        self._moves = moves
        self._narrate = narrate
        self._leave = leave
        self._look_around = look_around  # now and then, while nothing happens
        self._clock = clock
        self._sleep = sleep
        self._moving = threading.Lock()  # after a commit it is never released: the process leaves
        self._ordering = threading.Lock()
        self._deadline_at, self._must_leave = 0.0, False
        self._commit = threading.Lock()
        self._retired = False

    def serve(self) -> None:
        """Waits for the JVM's notices for ever, and acts on them; in a thread of its own. Each is obeyed in
        another one: a notice that comes during a move still has to be heard.
        """
        obeying: list[threading.Thread] = []
        last: Notice | None = None
        while True:
            try:
                notice = self._jvm.await_notice(NOTICE_WAIT_MS)
                if notice is None:
                    self._look()
            except JvmGone:
                break  # the program's next call into Spark will say so
            except Exception as error:  # whatever it is: who does not listen any more cannot be moved
                say(f"{type(error).__name__}: {error}; notices are asked for again")
                self._sleep(NOTICE_WAIT_MS / 1000)
                continue
            if notice is not None and not echo(notice, last):
                last = notice
                obeying.append(threading.Thread(target=self._obey, args=(order_for(notice),), daemon=True))
                obeying[-1].start()
        for thread in obeying:
            thread.join()

    def _obey(self, order: Order) -> None:
        """A move that is under way learns of the new deadline. Should it come to nothing, it is our turn. And
        where the machine goes away, what failed is tried again while there is time."""
        while self._is_to_be_tried_again(order, self._attempt(order)):
            self._sleep(DRAIN_LOOK_MS / 1000)

    def _is_to_be_tried_again(self, order: Order, error: GodwitError | None) -> bool:
        if order.must_leave and isinstance(error, MoveFailed | StoreUnreadable | NotNow):
            return self._clock() + decide.RESERVE_SECONDS < order.deadline_at
        return isinstance(error, MoveUnderWay | NotNow)

    def _attempt(self, order: Order) -> GodwitError | None:
        try:
            return self._moved(order, tell=lambda event: None)
        except MoveRefused as refusal:
            return refusal

    def _look(self) -> None:
        """What has been looked at once is quick to look at again, when there is a hurry."""
        self._look_around()
        with suppress(MoveFailed):  # a move will meet it too, and tell
            self._jvm.snapshot()

    def move(self, order: Order, tell: Tell) -> None:
        """Moves the job out, telling each step: the last is "left", or "failed" and the program goes on."""
        self._moved(order, tell)

    def _moved(self, order: Order, tell: Tell) -> GodwitError | None:
        """Why it has failed."""
        with self._ordering:
            if self._retired:
                self._jvm.open_gate()  # a notice may have closed it
                raise MoveRefused(RETIRED, next_step="nothing is left to move")
            if not self._moving.acquire(blocking=False):
                self._deadline_at = min(self._deadline_at, order.deadline_at)
                self._must_leave |= order.must_leave
                raise MoveUnderWay("a move of this job is under way already")
            self._deadline_at = order.deadline_at
            self._must_leave = order.must_leave

        def tell_all(event: Event) -> None:
            self._narrate(event)
            tell(event)

        started_at = self._clock()
        try:
            manifest = self._capture(order, tell_all)
        except Exception as error:
            known = error if isinstance(error, GodwitError) else MoveFailed(f"unexpected: {error!r}")
            try:
                tell_all({"phase": "failed", **failure(known)})
            finally:
                self._moving.release()
            return known
        else:
            # Whoever cannot be told any more: what is committed belongs to the next driver.
            try:
                tell_all({"phase": "committed", "seconds": self._clock() - started_at, **sizes(manifest)})
                tell_all({"phase": "left", "exit_code": MOVED_OUT})
            finally:
                self._leave(MOVED_OUT)
        return None

    def _capture(self, order: Order, tell: Tell) -> Manifest:
        """Commits the state of all running queries and leaves them parked; on failure they run again."""
        tell({"phase": "parking"})
        with self._parked():
            if order.deadline_at <= self._clock():
                raise DeadlinePassed("the deadline has passed")
            graph = self._picture()
            if order.drain:
                graph = self._drained(graph, tell)
            return self._stored(graph, tell)

    def retire(self) -> None:
        """The program has come to its end: no move may commit any more. If one already has, the process is
        about to leave, and this does not return.
        """
        with self._commit:
            if self._retired:
                return
            self._retired = True
        self._moving.acquire()

    def status(self) -> Mapping[str, Any]:
        graph = _parsed(self._jvm.snapshot())
        return {
            "job": self._lease.job.name,
            "epoch": self._lease.epoch,
            "moves": self._moves,
            "moving": self._moving.locked(),
            "progress": graph.progress,
            "stages_finished": graph.stages_finished,
            "queries": len(graph.queries),
            "refusal": graph.refusal or decide.refusal(graph),
        }

    def snapshot(self) -> str:
        return self._jvm.snapshot()

    @contextmanager
    def _parked(self) -> Iterator[None]:
        self._jvm.close_gate()
        try:
            yield
        except BaseException:
            self._jvm.open_gate()
            raise

    def _picture(self) -> StageGraph:
        graph = _parsed(self._jvm.snapshot())
        while graph.events_late:
            if self._clock() > self._deadline_at - decide.COMMIT_SECONDS:
                raise MoveRefused(
                    "Spark's events are late, and a write may be among them",
                    next_step="order the move again, with a later deadline",
                )
            self._sleep(LATE_LOOK_SECONDS)
            graph = _parsed(self._jvm.snapshot())
        if why := decide.refusal(graph):
            raise NotNow(why) if graph.stopped else MoveRefused(why)
        return graph

    def _drained(self, graph: StageGraph, tell: Tell) -> StageGraph:
        state_bytes = select(graph).bytes
        until = decide.drain_until(self._deadline_at, state_bytes)
        tell({"phase": "draining", "seconds": max(0.0, until - self._clock())})
        busy_at = self._clock()
        while (left := until - self._clock()) > 0:
            quiet = self._jvm.await_quiet(min(DRAIN_LOOK_MS, int(left * 1000) + 1))
            graph = self._picture()
            if not quiet or decide.being_built(graph):
                busy_at = self._clock()
            elif not decide.about_to_run(graph) or self._clock() - busy_at > SUBMIT_SECONDS:
                break
            until = decide.drain_until(self._deadline_at, state_bytes)
        return graph

    def _stored(self, graph: StageGraph, tell: Tell) -> Manifest:
        folder = self._lease.new_blocks()
        try:
            manifest = self._extracted(graph, folder, tell)
            with self._commit:
                if self._retired:
                    raise MoveRefused(RETIRED, next_step="nothing is left to move")
                if why := decide.last_refusal(self._picture()):
                    raise NotNow(why)
                self._commit_or_find(manifest)
        except BaseException:
            self._discard(folder)
            raise
        return manifest

    def _commit_or_find(self, manifest: Manifest) -> None:
        """A commit that failed half way may have landed, and then the job is the next driver's. Until the
        store says, the queries wait; if the machine ends before that, so does the driver, and the next one
        finds what there is."""
        try:
            self._lease.commit(manifest)
        except StoreUnsure:
            if not self._landed(manifest):
                raise

    def _landed(self, manifest: Manifest) -> bool:
        told = False
        while not (self._must_leave and self._clock() > self._deadline_at):
            try:
                found = self._lease.job.committed()
            except ManifestCorrupt:
                return False  # another one than ours, which is whole
            except GodwitError as error:
                if not told:
                    say(f"{error}; the queries wait until the store says whether the move is committed")
                told = True
                self._sleep(LATE_LOOK_SECONDS)
            else:
                return found is not None and (found.epoch, found.written_at) == (
                    manifest.epoch,
                    manifest.written_at,
                )
        return True

    def _extracted(self, graph: StageGraph, folder: str, tell: Tell) -> Manifest:
        """A pipeline that cannot be written may leave others beneath it to be chosen in its place: each round
        chooses anew, with what is known by then. Every round but the last refuses a pipeline, so this ends.
        """
        written: dict[str, Fragment] = {}
        known = graph
        for base in (f"{folder}/{number}" for number in itertools.count()):
            selection = select(known, budget_bytes=decide.budget_bytes(self._deadline_at - self._clock()))
            wanted = decide.to_write(known, selection)
            if not wanted:
                break
            tell({"phase": "extracting", "pipelines": len(wanted), "bytes": selection.bytes})
            timeout_ms = decide.extract_ms(self._deadline_at - self._clock())
            extraction = self._jvm.extract(self._lease.job.bulk_uri(base), wanted, timeout_ms)
            written |= {
                each.fingerprint: decide.fragment(each, base, known, self._loaded)
                for each in extraction.written
            }
            if problem := decide.problem(extraction, a_part_will_do=self._must_leave and bool(written)):
                if decide.ended(wanted, extraction, self._picture()):
                    raise NotNow("a query came to its end while its state was being stored") from problem
                raise problem
            known = decide.after(known, extraction)
        fragments = decide.kept(graph, selection, written, self._loaded, self._jvm.report().fallbacks)
        return self._manifest(graph, selection, fragments)

    def _discard(self, folder: str) -> None:
        """Only what surely no manifest names: a commit that failed may have landed all the same. Where the
        store does not even answer that, the next driver tidies up."""
        job = self._lease.job
        with suppress(GodwitError):
            committed = job.committed()
            if committed is None or not any(
                fragment.folder.startswith(f"{folder}/") for fragment in committed.fragments
            ):
                job.store.delete(job.key(folder))


def echo(notice: Notice, last: Notice | None) -> bool:
    return last is not None and notice.kind == last.kind == "sigterm" and notice.at_ms - last.at_ms < ECHO_MS


def order_for(notice: Notice) -> Order:
    if notice.kind == "sigterm":
        return Order((notice.at_ms + notice.grace_ms) / 1000, drain=True, must_leave=True)
    return Order(notice.at_ms / 1000 + NO_HURRY_SECONDS, drain=True)


def sizes(manifest: Manifest) -> dict[str, int]:
    fragments = manifest.fragments
    return {
        "fragments": len(fragments),
        "bytes": sum(fragment.bytes for fragment in fragments),
        "recomputed": len(manifest.selection.skipped),
    }


def _parsed(snapshot: str) -> StageGraph:
    try:
        return StageGraph.from_json(snapshot)
    except SnapshotError as error:
        raise MoveFailed(f"the JVM's picture of its queries cannot be read: {error}") from error
