"""`godwit jobs`: who runs, who waits to be resumed, who has ended, and how far each has come."""

import time
from dataclasses import asdict, dataclass

import click
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from godwit.extractor.errors import GodwitError
from godwit.extractor.job import JobState, JobView, list_jobs
from godwit.extractor.store import open_store
from godwit.orchestrator.draw import age, console
from godwit.orchestrator.observe import Observation, observe
from godwit.orchestrator.options import json_option, print_json, store_option

STYLES = {
    JobState.RUNNING: "green",
    JobState.MOVED_OUT: "yellow",
    JobState.ENDED: "dim",
    JobState.DEAD: "red",
}


@dataclass(frozen=True)
class JobRow:
    job: str
    state: JobState
    pipelines_finished: int | None  # of the queries under way; None: not known, or none is
    pipelines_total: int | None
    epoch: int
    moves: int
    state_bytes: int | None  # stored, or what a move would store now
    since: float | None  # seconds since 1970: start of the driver, commit of the state, or end of the program
    problem: str | None


@click.command()
@store_option
@json_option
def jobs(store_uri: str, as_json: bool) -> None:
    """List the jobs of a store.

    JSON, one object per line: job, state (running, moved-out, ended, dead), pipelines_finished,
    pipelines_total, epoch, moves, state_bytes, since (seconds since 1970), problem.
    """
    rows = [job_row(view) for view in list_jobs(open_store(store_uri, create=False))]
    if as_json:
        for row in rows:
            print_json(asdict(row))
    else:
        console().print(jobs_table(rows, time.time()) if rows else "no jobs")


def job_row(view: JobView) -> JobRow:
    """A driver that does not answer is a problem of its row, not of the list."""
    seen, problem = None, view.problem
    try:
        seen = observe(view)
    except GodwitError as error:
        problem = problem or str(error)
    finished, total = pipelines(seen)
    return JobRow(
        job=view.name,
        state=view.state,
        pipelines_finished=finished,
        pipelines_total=total,
        epoch=view.epoch,
        moves=view.moves,
        state_bytes=state_bytes(view, seen),
        since=since(view),
        problem=problem,
    )


def pipelines(seen: Observation | None) -> tuple[int | None, int | None]:
    if seen is None or not seen.graph.pipelines:
        return None, None
    finished = [pipeline.finished for pipeline in seen.graph.pipelines.values()]
    return sum(finished), len(finished)


def state_bytes(view: JobView, seen: Observation | None) -> int | None:
    if view.state is JobState.MOVED_OUT and view.manifest:
        return sum(fragment.bytes for fragment in view.manifest.fragments)
    return seen.kept_bytes if seen else None


def since(view: JobView) -> float | None:
    match view.state:
        case JobState.MOVED_OUT:
            return view.manifest.written_at if view.manifest else None
        case JobState.ENDED:
            return view.ended.ended_at if view.ended else None
        case _:
            return view.running.started_at if view.running else None


def jobs_table(rows: list[JobRow], now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("job", "state"):
        table.add_column(title)
    for title in ("pipelines", "epoch", "moves", "bytes", "since"):
        table.add_column(title, justify="right")
    table.add_column("problem" if any(row.problem for row in rows) else "")
    for row in rows:
        table.add_row(*cells(row, now))
    return table


def cells(row: JobRow, now: float) -> list[Text]:
    return [
        Text(row.job, "bold"),
        Text(row.state, STYLES[row.state]),
        Text("" if row.pipelines_total is None else f"{row.pipelines_finished}/{row.pipelines_total}"),
        Text(str(row.epoch)),
        Text(str(row.moves)),
        Text("" if row.state_bytes is None else decimal(row.state_bytes)),
        Text("" if row.since is None else age(now - row.since)),
        Text(row.problem or "", "red"),
    ]
