"""`godwit migrate`: the machine has to be free by a certain time; what it has computed should outlive it."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

import click
from rich.filesize import decimal
from rich.status import Status

from godwit.extractor.control import Event
from godwit.extractor.errors import DeadlinePassed, GodwitError, MoveFailed, MoveRefused
from godwit.extractor.job import JobState, JobView, existing_job
from godwit.extractor.store import open_store
from godwit.orchestrator.draw import console, facts
from godwit.orchestrator.observe import control_of
from godwit.orchestrator.options import duration, job_argument, json_option, print_json, store_option

ERRORS: Mapping[int, type[GodwitError]] = {
    error.exit_code: error for error in (MoveRefused, MoveFailed, DeadlinePassed)
}

NOT_RUNNING = {
    JobState.MOVED_OUT: ("has been moved out already", "resume it with the command that started it"),
    JobState.ENDED: ("has ended", "nothing is left to move"),
    JobState.DEAD: ("has no driver", "start it with the command that started it"),
}


@dataclass(frozen=True)
class Moved:
    """What a move came to."""

    job: str
    stages_kept: int
    stages_recomputed: int
    bytes: int
    vacate_seconds: float  # from the order until the driver has left


@click.command()
@job_argument
@store_option
@click.option(
    "--deadline",
    "deadline_seconds",
    default="30s",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="When the machine must be free, from now on: 500ms, 30s, 2m.",
)
@click.option("--now", is_flag=True, help="Do not wait for the stages that are running.")
@json_option
def migrate(job: str, store_uri: str, deadline_seconds: float, now: bool, as_json: bool) -> None:
    """Move a running job out: its finished work goes to the store, and its driver leaves with exit code 75.

    JSON, one object per line: the steps as they happen (phase and what belongs to it), then job, stages_kept,
    stages_recomputed, bytes, vacate_seconds.
    """
    if deadline_seconds <= 0:
        raise DeadlinePassed(f"a deadline of {deadline_seconds:g} s from now has passed")
    view = existing_job(open_store(store_uri, create=False), job).view()
    check_running(view)
    events = control_of(view).migrate(deadline_seconds, now)
    with teller(as_json) as tell:
        moved = follow(job, events, tell, time.monotonic)
    if as_json:
        print_json(asdict(moved))
    else:
        console().print(facts(summary(moved)))


def check_running(view: JobView) -> None:
    if view.state in NOT_RUNNING:
        what, next_step = NOT_RUNNING[view.state]
        raise MoveRefused(f"job {view.name} {what}", next_step=next_step)


def follow(
    job: str, events: Iterable[Event], tell: Callable[[Event], None], clock: Callable[[], float]
) -> Moved:
    """Tells each step; the last one is a move or an error."""
    ordered_at = clock()
    committed: Event = {}
    for event in events:
        tell(event)
        if event["phase"] == "committed":
            committed = event
        if event["phase"] == "failed":
            raise error_of(event)
    return Moved(
        job, committed["fragments"], committed["recomputed"], committed["bytes"], clock() - ordered_at
    )


def error_of(event: Event) -> GodwitError:
    kind = ERRORS.get(event["exit_code"], MoveFailed)
    return kind(event["error"], next_step=event["next_step"])


def teller(as_json: bool) -> AbstractContextManager[Callable[[Event], None]]:
    if as_json:
        return nullcontext(print_json)
    return Spinner() if sys.stderr.isatty() else nullcontext(tell_line)


class Spinner:
    """The current step on a terminal, gone when the move is."""

    def __init__(self) -> None:
        self._status = Status("asking", console=console(sys.stderr))

    def __enter__(self) -> Callable[[Event], None]:
        self._status.start()
        return lambda event: self._status.update(sentence(event))

    def __exit__(self, *_: object) -> None:
        self._status.stop()


def tell_line(event: Event) -> None:
    print(sentence(event), file=sys.stderr, flush=True)


def sentence(event: Event) -> str:
    match event:
        case {"phase": "draining", "seconds": seconds}:
            return f"draining: running stages may finish, for {seconds:.0f} s at most"
        case {"phase": "extracting", "pipelines": pipelines, "bytes": size}:
            return f"extracting {pipelines} stages, {decimal(size)}"
        case _:
            return str(event["phase"])


def summary(moved: Moved) -> list[tuple[str, str]]:
    return [
        ("moved out", moved.job),
        ("stages kept", str(moved.stages_kept)),
        ("stages to compute again", str(moved.stages_recomputed)),
        ("bytes", decimal(moved.bytes)),
        ("vacated in", f"{moved.vacate_seconds:.2f} s"),
    ]
