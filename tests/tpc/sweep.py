"""The whole proof: every query of TPC-H and TPC-DS, moved at every point that it reaches, and random queries.

It takes long, so two pairs of drivers work side by side (of each only one driver is busy at a time), each
query's line is printed and kept as soon as it is there, and with `--go-on` a sweep that was broken off goes
on where it was. Any wrong row or error, or too much that ran again, makes it end with exit code 1.

    python -m tests.tpc.sweep --sf 0.1 [--suite tpch] [--random 1000] [--go-on] [--table docs/sweep.md]
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from tests.spark.features import write_tables
from tests.spark.questions import Question, RandomQuestion, TpcQuestion
from tests.spark.rig import DriverError, Proof, Rig, open_rig
from tests.tpc.oracle import difference_from_duckdb
from tests.tpc.queries import suite_queries
from tests.tpc.sweeptable import Line, explanation, line_of, shortfalls, table, total

PAIRS = 2


def line(rig: Rig, question: Question) -> Line:
    started_at = time.monotonic()
    try:
        proof = moved(rig, question)
    except DriverError as error:
        return Line(question.name, round(time.monotonic() - started_at, 1), errors=(str(error),))
    oracle = None
    if isinstance(question, TpcQuestion):
        oracle = difference_from_duckdb(question.query, question.sf, proof.answer.rows)
    return line_of(proof, time.monotonic() - started_at, oracle)


def moved(rig: Rig, question: Question) -> Proof:
    if isinstance(question, RandomQuestion):
        return rig.prove_once(question, random.Random(question.seed))
    return rig.prove(question)


def questions(asked: argparse.Namespace, folder: Path) -> Iterator[Question]:
    for suite in [asked.suite] if asked.suite else ["tpch", "tpcds"]:
        for query in suite_queries(suite):
            yield TpcQuestion(query, asked.sf)
    if asked.random:
        tables = folder / "tables"
        write_tables(tables)
        for seed in range(asked.random):
            yield RandomQuestion(seed, tables)


def swept(asked: argparse.Namespace) -> list[Line]:
    kept: Path = asked.lines
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not asked.go_on:
        kept.unlink(missing_ok=True)
    lines = [Line(**json.loads(text)) for text in kept.read_text().splitlines()] if kept.exists() else []
    done = {line.name for line in lines}
    with tempfile.TemporaryDirectory(prefix="godwit-sweep-") as name, kept.open("a") as file:
        folder = Path(name)
        wanted = list(questions(asked, folder))
        waiting = iter([each for each in wanted if each.name not in done])
        turn = threading.Lock()

        def work(number: int) -> None:
            with open_rig(folder / f"pair-{number}") as rig:
                while question := taken(waiting, turn):
                    made = line(rig, question)
                    with turn:
                        lines.append(made)
                        print(json.dumps(made.to_plain()), file=file, flush=True)
                        print(told(made), flush=True)

        with ThreadPoolExecutor(PAIRS) as pairs:
            list(pairs.map(work, range(PAIRS)))
    place = {question.name: index for index, question in enumerate(wanted)}
    return sorted((line for line in lines if line.name in place), key=lambda line: place[line.name])


def taken(waiting: Iterator[Question], turn: threading.Lock) -> Question | None:
    with turn:
        return next(waiting, None)


def told(line: Line) -> str:
    again, stages = sum(line.recomputed.values()), sum(line.stages.values())
    figures = f"{line.points} points, {again} of {stages} stages run again, {line.seconds} s"
    return "\n  ".join([f"{line.name}: {figures}", *line.wrong, *line.errors])


def main() -> int:
    parser = argparse.ArgumentParser(description="Move every query at every point, and compare the rows.")
    parser.add_argument("--sf", type=float, default=0.1, help="scale factor (default 0.1)")
    parser.add_argument("--suite", choices=["tpch", "tpcds"], help="default: both")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="and so many random queries")
    parser.add_argument("--lines", type=Path, default=Path("build/sweep.jsonl"), help="a JSON line per query")
    parser.add_argument("--go-on", action="store_true", help="leave out what --lines has already")
    parser.add_argument("--table", type=Path, help="where to write the table (default: the terminal)")
    asked = parser.parse_args()
    lines = swept(asked)
    report = "\n".join([*explanation(asked.sf, datetime.now(UTC)), *table(lines), ""])
    if asked.table:
        asked.table.write_text(report)
    else:
        print(report)
    whole = total("all", lines)
    print(f"{whole.points} points, {len(whole.wrong)} wrong, {len(whole.errors)} errors, {whole.seconds} s")
    for shortfall in (missed := shortfalls(lines)):
        print(shortfall)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
