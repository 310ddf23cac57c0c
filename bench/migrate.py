"""Does moving a query beat starting it again, on a target that is warm either way?

For each query: how long it takes at the source when nobody disturbs it (plain); how long it takes on a warm
standby, from when the source is gone (restart); and, with a notice at each of some fractions of the plain
time, how long from the notice to the last row on such a standby (migrate). Source and target are processes of
their own, started as `godwit run` starts them, fresh for each run, and warm. "Vacate" is from the
notice until the source's process is gone, less the time in which running stages were finished. Medians over
the rounds; a cell is won if the median migration took less than the median restart.

    python -m bench.migrate [--sf 1] [--tpch 9,18,21] [--tpcds 14,23,64,72] [--at 0.25,0.5,0.8] [--rounds 3]
"""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.drivers import arguments, machine, print_figures, say, scratch, table
from bench.race import Move, Race
from tests.tpc import data
from tests.tpc.queries import Query, suite_queries

COLUMNS = ("query", "plain s", "at", "vacate s", "drain s", "migrate s", "restart s", "", "kept", "MB")
SURE_FRACTION, SURE_PLAIN_SECONDS = 0.5, 4.0
"""From here on a migration has to win."""


@dataclass(frozen=True)
class Cell:
    """One query and one moment of the notice: medians."""

    query: str
    fraction: float
    plain_seconds: float
    restart_seconds: float
    migrate_seconds: float | None  # None: the query ended at the source
    vacate_seconds: float
    drain_seconds: float
    stages_kept: int
    bytes_moved: int

    @property
    def won(self) -> bool | None:
        return None if self.migrate_seconds is None else self.migrate_seconds < self.restart_seconds

    @property
    def must_win(self) -> bool:
        return self.fraction >= SURE_FRACTION and self.plain_seconds >= SURE_PLAIN_SECONDS


def measure(folder: Path, query: Query, asked: Any) -> list[Cell]:
    plain, restarts = [], []
    moves: dict[float, list[Move]] = {fraction: [] for fraction in asked.at}
    for number in range(asked.rounds):
        name = f"{query.name}-{number}"
        plain_seconds, restart_seconds = Race(folder, query, asked.sf, f"{name}-restart").plain_and_restart()
        plain.append(plain_seconds)
        restarts.append(restart_seconds)
        for fraction in asked.at:
            race = Race(folder, query, asked.sf, f"{name}-{fraction:g}")
            moves[fraction].append(race.migrate(fraction * statistics.median(plain)))
            say(f"{name}: plain {plain[-1]:.2f}, restart {restarts[-1]:.2f}, {moves[fraction][-1]}")
    return [cell(query.name, each, plain, restarts, moves[each]) for each in asked.at]


def cell(query: str, fraction: float, plain: list[float], restarts: list[float], moves: list[Move]) -> Cell:
    plain_seconds, restart_seconds = statistics.median(plain), statistics.median(restarts)
    moved = [each for each in moves if each.seconds is not None]
    # A query that mostly ends at the source has nothing to be compared.
    if 2 * len(moved) <= len(moves):
        return Cell(query, fraction, plain_seconds, restart_seconds, None, 0.0, 0.0, 0, 0)
    return Cell(
        query,
        fraction,
        plain_seconds,
        restart_seconds,
        statistics.median(each.seconds for each in moved if each.seconds is not None),
        statistics.median(each.vacate_seconds for each in moved),
        statistics.median(each.drain_seconds for each in moved),
        int(statistics.median(each.stages_kept for each in moved)),
        int(statistics.median(each.bytes_moved for each in moved)),
    )


def summary(cells: list[Cell]) -> dict[str, Any]:
    moved = [each for each in cells if each.won is not None]
    sure = [each for each in moved if each.must_win]
    won = sum(bool(each.won) for each in moved)
    return {
        "cells": len(cells),
        "cells_moved": len(moved),
        "won_percent": round(100 * won / max(1, len(moved)), 1),
        "cells_that_must_win": len(sure),
        "of_them_won": sum(bool(each.won) for each in sure),
        "median_vacate_s": round(statistics.median([each.vacate_seconds for each in moved] or [0.0]), 3),
    }


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def fractions(text: str) -> list[float]:
    return [float(word) for word in text.split(",") if word]


def chosen(suite: str, wanted: list[int]) -> list[Query]:
    return [query for query in suite_queries(suite) if query.number in wanted]


def row(each: Cell) -> tuple[object, ...]:
    verdict = {True: "won", False: "LOST", None: "ended at the source"}[each.won]
    times = (each.plain_seconds, each.fraction, each.vacate_seconds, each.drain_seconds)
    ends = (each.migrate_seconds, each.restart_seconds)
    return (each.query, *times, *ends, verdict, each.stages_kept, f"{each.bytes_moved / 1e6:.1f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sf", type=float, default=1.0, help="scale factor (default 1)")
    parser.add_argument("--tpch", type=numbers, default=[9, 18, 21], metavar="N,N")
    parser.add_argument("--tpcds", type=numbers, default=[14, 23, 64, 72], metavar="N,N")
    parser.add_argument("--at", type=fractions, default=[0.25, 0.5, 0.8], metavar="F,F")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    queries = chosen("tpch", asked.tpch) + chosen("tpcds", asked.tpcds)
    for query in queries:
        data.suite(query.suite, asked.sf)
    before = machine()
    cells: list[Cell] = []
    with scratch() as folder:
        for query in queries:
            cells += measure(folder, query, asked)
    figures = {**summary(cells), "table": [{**asdict(each), "won": each.won} for each in cells], **before}
    print_figures(figures, asked.json, [table("migration against a restart", COLUMNS, list(map(row, cells)))])


if __name__ == "__main__":
    main()
