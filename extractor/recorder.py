"""The next driver runs the program from its first line, and must do nothing that is done.

Each action of the program passes here. What the drivers before have done at the same place is answered from
their journal; what they began, and nobody knows the end of, is looked at where it would be found; the rest
runs, and is written down: a write before it begins and after it has ended, an answer once it is there.

A program may go another way than before: it has read a clock, or the world has changed. Where the journal
holds no write that the program has not passed yet, that is harmless. Else nothing tells what these writes
were made of, and the program stops before it does anything else.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol, TypeVar

from godwit.extractor import values
from godwit.extractor.errors import GodwitError
from godwit.extractor.journal import Forgotten, Past, Phase, Place, Record, Writer
from godwit.extractor.threads import Names

Answer = TypeVar("Answer")

ANSWER_BYTES = 1_000_000
"""What is larger is not kept: it is read again, or the program stops where that could give other rows."""


class Unsure(GodwitError):  # noqa: N818 - named for what happened
    """Going on could do something twice."""

    exit_code = 76
    next_step = (
        "look at what is named; then `godwit drop` the job and run it from its start, or mend it by hand"
    )


class Outcome(StrEnum):
    LANDED = "landed"
    NOT_LANDED = "not landed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Call:
    """What the program asks for."""

    method: str  # "DataFrameWriter.save"
    digest: str
    shown: str
    writes: bool = False
    targets: tuple[str, ...] = ()
    settled: bool = False  # asked again it gives the same rows in the same order


class World(Protocol):
    """What lies outside of the journal."""

    def outcome(self, record: Record) -> Outcome:
        """Of a write that was begun."""

    def stop(self, error: GodwitError) -> NoReturn:
        """Ends the process; no handler of the program runs."""


class Recorder:
    def __init__(
        self,
        past: Past,
        writer: Writer,
        names: Names,
        world: World,
        *,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._past = past
        self._writer = writer
        self._names = names
        self._world = world
        self._epoch = epoch
        self._clock = clock
        self._passed: dict[str, int] = {}  # thread -> the number of its next action
        self._left_at: dict[str, int] = {}  # thread -> from which action on it goes another way than before
        self._guard = threading.Lock()
        self._inside = threading.local()
        self._nameless: list[str] = []

    @property
    def refusal(self) -> str | None:
        """Why the next driver could not tell what is done."""
        if self._nameless:
            return f"it has written in a thread that nobody could find again: {self._nameless[0]}"
        return None

    def action(self, call: Callable[[], Call], run: Callable[[], Answer]) -> Answer:
        """`call` is asked only for the outermost: what Spark does inside of an action is part of it."""
        if getattr(self._inside, "here", False):
            return run()
        self._inside.here = True
        try:
            if self._names.here_is_sure():
                return self._answered(self._next_place(), call(), run)
            if (asked := call()).writes:
                self._nameless.append(asked.shown)
            return run()
        finally:
            self._inside.here = False

    def _next_place(self) -> Place:
        thread = self._names.here()
        with self._guard:
            number = self._passed.get(thread, 0)
            self._passed[thread] = number + 1
        return Place(thread, number)

    def _answered(self, place: Place, call: Call, run: Callable[[], Answer]) -> Answer:
        before = self._before(place)
        if before is not None and before.digest != call.digest:
            self._leave_the_way(place, call, before)
            before = None
        if before is None or before.phase is Phase.FAILED:
            return self._performed(place, call, run)
        if before.phase is Phase.BEGUN:
            return self._settled(place, call, before, run)
        if before.answer is not None:
            return values.unpack(before.answer)  # type: ignore[return-value]
        if not call.settled:
            self._stop(f"{call.shown} was answered, and its answer was not kept ({before.why_no_answer})")
        return run()

    def _performed(self, place: Place, call: Call, run: Callable[[], Answer]) -> Answer:
        """Of an answer that is an exception nothing is kept: asked again, it comes again, or the program goes
        another way. A write that raises one stays begun: it may have had a part of its effect."""
        if call.writes:
            self._writer.add_durably(self._record(place, call, Phase.BEGUN))
        answer = run()
        done = self._record(place, call, Phase.DONE, answer)
        if call.writes:
            self._writer.add_durably(done)
        else:
            self._writer.add(done)
        return answer

    def _settled(self, place: Place, call: Call, before: Record, run: Callable[[], Answer]) -> Answer:
        """A write that a driver began, and did not live to see the end of."""
        outcome = self._world.outcome(before)
        if outcome is Outcome.NOT_LANDED:
            return self._performed(place, call, run)
        if outcome is Outcome.UNKNOWN:
            self._stop(f"nobody knows whether this was done: {before.shown}")
        self._writer.add_durably(self._record(place, call, Phase.DONE))
        return None  # type: ignore[return-value]

    def _leave_the_way(self, place: Place, call: Call, before: Record) -> None:
        with self._guard:
            passed = {**self._passed, place.thread: place.number}
        if writes := self._past.writes_from(passed):
            self._stop(
                f"the program now does {call.shown}, and at this place it did {before.shown}; "
                f"since then it has written: {writes[0].shown}"
            )
        self._writer.add_durably(Forgotten(place.thread, place.number, self._epoch))
        self._left_at[place.thread] = place.number

    def _before(self, place: Place) -> Record | None:
        left_at = self._left_at.get(place.thread)
        return None if left_at is not None and place.number >= left_at else self._past.at(place)

    def _record(self, place: Place, call: Call, phase: Phase, answer: object = None) -> Record:
        kept, why = packed(answer) if phase is Phase.DONE else (None, None)
        return Record(
            place=place, call=call.method, digest=call.digest, shown=call.shown, writes=call.writes,
            targets=call.targets, phase=phase, answer=kept, why_no_answer=why, epoch=self._epoch,
            at=self._clock(),
        )  # fmt: skip

    def _stop(self, what: str) -> NoReturn:
        self._world.stop(Unsure(what))


def packed(answer: object) -> tuple[bytes | None, str | None]:
    try:
        data = values.pack(answer)
    except values.NotKept as refusal:
        return None, str(refusal)
    if len(data) > ANSWER_BYTES:
        return None, f"it has {len(data):,} bytes, at most {ANSWER_BYTES:,} are kept"
    return data, None
