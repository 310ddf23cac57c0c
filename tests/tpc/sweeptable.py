"""What a sweep found, a line per query, and the table that is made of the lines.

A line is kept as soon as its query is done, so that a sweep of an hour can be watched, and taken up again.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from tests.spark.rig import Proof

SECONDS_PER_MS = 1 / 1000

MOST_STAGES_AGAIN = 0.05
MOST_TIME_AGAIN = 0.02
LEAST_FROM_THE_STORE = 0.6
"""The goals. The last is for random queries, of which many have little that is worth keeping."""


@dataclass(frozen=True)
class Line:
    """One query at all its points. Stages are counted at each point anew."""

    name: str
    seconds: float
    points: int = 0
    resumed_from_store: int = 0  # points at which a stored exchange was used
    wrong: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    stages: Mapping[str, int] = field(default_factory=dict)  # finished, by kind
    recomputed: Mapping[str, int] = field(default_factory=dict)  # of these, by kind
    run_ms: int = 0
    recomputed_ms: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    def to_plain(self) -> dict[str, object]:
        return asdict(self)


def line_of(proof: Proof, seconds: float, oracle_difference: str | None) -> Line:
    accounts = [point.account for point in proof.points]
    again = [each for account in accounts for each in account.recomputed]
    wrong = [oracle_difference, proof.parked_difference, *(point.difference for point in proof.points)]
    return Line(
        proof.name,
        round(seconds, 1),
        points=len(proof.points),
        resumed_from_store=sum(point.used > 0 for point in proof.points),
        wrong=tuple(each for each in wrong if each),
        errors=tuple(point.failure for point in proof.points if point.failure),
        stages=summed(account.stages_by_kind for account in accounts),
        recomputed=dict(Counter(str(each.kind) for each in again)),
        run_ms=sum(account.run_ms for account in accounts),
        recomputed_ms=sum(each.run_ms for each in again),
        reasons=dict(Counter(without_figures(each.reason) for each in again)),
    )


def total(name: str, lines: Sequence[Line]) -> Line:
    return Line(
        name,
        round(sum(each.seconds for each in lines), 1),
        points=sum(each.points for each in lines),
        resumed_from_store=sum(each.resumed_from_store for each in lines),
        wrong=tuple(what for each in lines for what in each.wrong),
        errors=tuple(what for each in lines for what in each.errors),
        stages=summed(each.stages for each in lines),
        recomputed=summed(each.recomputed for each in lines),
        run_ms=sum(each.run_ms for each in lines),
        recomputed_ms=sum(each.recomputed_ms for each in lines),
        reasons=summed(each.reasons for each in lines),
    )


def shortfalls(lines: Sequence[Line]) -> list[str]:
    """Which goals were missed, by each suite as a whole."""
    missed = []
    for suite, part in suites(lines).items():
        whole = total(suite, part)
        again = sum(whole.recomputed.values()) / max(1, sum(whole.stages.values()))
        again_time = whole.recomputed_ms / max(1, whole.run_ms)
        if whole.wrong or whole.errors:
            missed.append(f"{suite}: {len(whole.wrong)} wrong answers, {len(whole.errors)} errors")
        if suite == "random":
            if (used := whole.resumed_from_store / max(1, whole.points)) < LEAST_FROM_THE_STORE:
                missed.append(f"{suite}: only {used:.0%} of the resumed queries used the store")
        elif again > MOST_STAGES_AGAIN or again_time > MOST_TIME_AGAIN:
            missed.append(f"{suite}: {again:.1%} of the stages and {again_time:.1%} of the time ran again")
    return missed


def suites(lines: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.name.split("-")[0], []).append(line)
    return found


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter()))


def without_figures(reason: str) -> str:
    return re.sub(r" \([\d,]+ ms\)|#\d+L?", "", reason)


def explanation(sf: float, written_at: datetime) -> list[str]:
    return [
        "# The sweep: every query, moved at every point",
        "",
        f"Written by `python -m tests.tpc.sweep` on {written_at:%Y-%m-%d at %H:%M} UTC, scale factor {sf:g}.",
        "",
        "Each query runs on a driver with two cores and is moved out at every re-planning that finds a stage",
        "finished; a driver with three cores resumes from each of these points. *Wrong* counts answers, of",
        "resumed queries and of those that were parked and went on, that differ from the answer of the same",
        "query left alone, and answers that differ from DuckDB's; random queries are moved at one random",
        "point. A stage that had finished and ran again is counted at each point anew, and so is its time",
        "(task time of shuffles; for broadcasts the time to collect and build them): those that the stage",
        "graph says must run again, and any other whose fingerprint is found among what the target computed.",
        "",
    ]


def table(lines: Sequence[Line]) -> list[str]:
    """As Markdown, with a total for each suite. Random queries are too many to list, unless one is bad."""
    listed = [line for line in lines if not line.name.startswith("random-") or line.wrong or line.errors]
    totals = [total(f"**{suite}: {counted(part)}**", part) for suite, part in suites(lines).items()]
    return [
        "| query | points | from the store | wrong | errors | shuffle stages: run again / finished "
        "| broadcasts: run again / finished | task time run again | why |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
        *(row(line) for line in [*listed, *totals]),
    ]


def counted(lines: Sequence[Line]) -> str:
    moved = sum(line.points > 0 for line in lines)
    return f"{len(lines)} queries, {moved} of them moved"


def row(line: Line) -> str:
    stages, again = line.stages, line.recomputed
    cells = (
        line.name,
        line.points,
        line.resumed_from_store,
        len(line.wrong),
        len(line.errors),
        f"{again.get('shuffle', 0)} / {stages.get('shuffle', 0)}",
        f"{again.get('broadcast', 0)} / {stages.get('broadcast', 0)}",
        share(line.recomputed_ms, line.run_ms),
        "; ".join(f"{count} x {why}" for why, count in sorted(line.reasons.items()))
        or ("" if line.points else "never moved: it ended before AQE planned anew with a stage finished"),
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def share(part_ms: int, whole_ms: int) -> str:
    percent = 100 * part_ms / whole_ms if whole_ms else 0.0
    return f"{part_ms * SECONDS_PER_MS:.1f} of {whole_ms * SECONDS_PER_MS:.1f} s ({percent:.1f} %)"
