"""`godwit demo`: who hears of moving a running query wants to see it once, without a cluster."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.filesize import decimal

from godwit.orchestrator import tpch
from godwit.orchestrator.acts import Answer, Demonstration
from godwit.orchestrator.draw import console, facts
from godwit.orchestrator.migrate import Moved
from godwit.orchestrator.options import json_option, print_json
from godwit.orchestrator.stage import Stage

QUERY = 21


@dataclass(frozen=True)
class Outcome:
    """What the demonstration showed."""

    rows: int
    rows_equal: bool  # to those of the uninterrupted run, in order
    stages_kept: int
    stages_recomputed: int
    bytes_moved: int
    vacate_seconds: float  # from the notice until the spot pool was free
    moved_seconds: float  # from the notice to the last row
    restart_seconds: float  # the query from its start, on the same warm pool
    saved_seconds: float


@click.command()
@click.option(
    "--scale", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="TPC-H's scale factor."
)
@json_option
def demo(scale: float, as_json: bool) -> None:
    """Show a move on this machine: TPC-H Q21 on a "spot" process, a notice, and on it goes elsewhere.

    JSON keys: rows, rows_equal, stages_kept, stages_recomputed, bytes_moved, vacate_seconds, moved_seconds,
    restart_seconds, saved_seconds. The exit code is 1 if the rows are not equal.
    """
    with tempfile.TemporaryDirectory(prefix="godwit-demo-") as folder, Stage() as stage:
        stage.title(f"TPC-H Q{QUERY} at scale factor {scale:g}: making the tables, if they are not there yet")
        play = Demonstration(Path(folder), tpch.tables(scale), tpch.query(QUERY), stage)
        stage.title("1 of 2: without Godwit. The spot pool goes away, the query starts again")
        restarted = play.restart()
        stage.title("2 of 2: with Godwit. A notice comes in the middle of the query")
        outcome = compare(restarted, *play.move(restarted.seconds / 2))
    if as_json:
        print_json(asdict(outcome))
    else:
        console().print(facts(summary(outcome)))
    if not outcome.rows_equal:
        raise click.exceptions.Exit(1)


def compare(restarted: Answer, moved: Moved, answer: Answer) -> Outcome:
    return Outcome(
        rows=len(answer.rows),
        rows_equal=answer.rows == restarted.rows,
        stages_kept=moved.stages_kept,
        stages_recomputed=moved.stages_recomputed,
        bytes_moved=moved.bytes,
        vacate_seconds=moved.vacate_seconds,
        moved_seconds=answer.seconds,
        restart_seconds=restarted.seconds,
        saved_seconds=restarted.seconds - answer.seconds,
    )


def summary(outcome: Outcome) -> list[tuple[str, str]]:
    needed = outcome.stages_kept + outcome.stages_recomputed
    verdict = (
        "equal to the uninterrupted run's" if outcome.rows_equal else "NOT EQUAL to the uninterrupted run's"
    )
    return [
        ("rows", f"{outcome.rows}, {verdict}"),
        ("finished stages kept", f"{outcome.stages_kept} of the {needed} still needed"),
        ("bytes moved", decimal(outcome.bytes_moved)),
        ("spot pool vacated in", f"{outcome.vacate_seconds:.2f} s, running stages finished first"),
        ("from the notice to the last row", f"{outcome.moved_seconds:.1f} s"),
        ("the same by a restart", f"{outcome.restart_seconds:.1f} s, on the same warm pool"),
        ("saved", f"{outcome.saved_seconds:.1f} s ({outcome.saved_seconds / outcome.restart_seconds:.0%})"),
    ]
