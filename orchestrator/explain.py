"""`godwit explain`: before a notice comes, one wants to know what it would cost; after it, what it did."""

from collections.abc import Iterator
from typing import Any

import click
from rich.console import RenderableType
from rich.filesize import decimal
from rich.text import Text

from godwit.extractor import decide
from godwit.extractor.job import JobState, JobView, existing_job
from godwit.extractor.store import open_store
from godwit.orchestrator.draw import console, stage_trees
from godwit.orchestrator.observe import Observation, observe
from godwit.orchestrator.options import job_argument, json_option, print_json, store_option
from godwit.planrewrite.records import to_plain
from godwit.planrewrite.select import kept_and_lost

NOTHING_TO_SEE = {
    JobState.ENDED: "has ended; nothing is left of it to keep",
    JobState.DEAD: "has no driver and no state: its next run starts afresh",
}


@click.command()
@job_argument
@store_option
@json_option
def explain(job: str, store_uri: str, as_json: bool) -> None:
    """Draw the stage graph of a running or stored job: what is done, and what a move keeps or loses.

    \b
    ✔ finished  ▶ running  · waiting
    kept     state: a move takes it along
    covered  not needed any more: something kept stands above it
    lost     needed, and computed again after a move; the reason is beside it

    JSON keys: job, state, refusals, kept_bytes, fates (pipeline_id, outcome, reason), graph (the snapshot).
    """
    view = existing_job(open_store(store_uri, create=False), job).view()
    seen = observe(view)
    if as_json:
        print_json(as_plain(view, seen))
    else:
        console().print(*drawn(view, seen), sep="\n")


def as_plain(view: JobView, seen: Observation | None) -> dict[str, Any]:
    told: dict[str, Any] = {"job": view.name, "state": view.state}
    if seen is None:
        return told | {"refusals": [], "kept_bytes": 0, "fates": [], "graph": None}
    return told | {
        "refusals": list(refusals(seen)),
        "kept_bytes": seen.kept_bytes,
        "fates": to_plain(kept_and_lost(seen.graph, seen.selection)),
        "graph": to_plain(seen.graph),
    }


def drawn(view: JobView, seen: Observation | None) -> Iterator[RenderableType]:
    if seen is None:
        yield f"job {view.name} {NOTHING_TO_SEE[view.state]}"
        return
    yield Text.assemble((view.name, "bold"), f"  {view.state}, epoch {view.epoch}")
    yield from (Text(refusal, "red") for refusal in refusals(seen))
    if not seen.graph.queries:
        yield "no query is under way"
    yield from stage_trees(seen.graph, kept_and_lost(seen.graph, seen.selection))
    yield Text(conclusion(view.state, seen), "bold")


def refusals(seen: Observation) -> Iterator[str]:
    """Why the job as a whole cannot take its work along."""
    if seen.graph.refusal:
        yield f"nothing of this session can be kept: {seen.graph.refusal}"
    if why := decide.refusal(seen.graph):
        yield f"a move would be refused: {why}"


def conclusion(state: JobState, seen: Observation) -> str:
    kept, lost = len(seen.selection.chosen), len(seen.selection.skipped)
    amount = f"{kept} of {kept + lost} needed stages, {decimal(seen.kept_bytes)}"
    return f"a move now would keep {amount}" if state is JobState.RUNNING else f"the move kept {amount}"
