"""Numbers in a log do not show a person what a notice would cost; a tree and a table do.

Pure: values in, Rich renderables out. Where they go, and whether somebody asked for JSON instead, is the
commands' business.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from godwit.planrewrite.select import Fate
from godwit.planrewrite.stagegraph import Kind, Pipeline, Query, StageGraph, State

MARKS = {State.FINISHED: ("✔", "green"), State.RUNNING: ("▶", "yellow"), State.WAITING: ("·", "dim")}
OUTCOME_STYLES = {"kept": "bold green", "covered": "dim", "lost": "bold red"}
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console(stream: TextIO | None = None) -> Console:
    """A pipe has no width: nothing is folded or cut there."""
    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 100_000, highlight=False)


def age(seconds: float) -> str:
    """Two days and three hours are "2 d": enough for a column that is read at a glance."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= size), UNITS[-1])
    return f"{max(0, int(seconds // size))} {unit}"


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values without borders, for summaries."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, "dim"), Text(value))
    return table


def stage_trees(graph: StageGraph, fates: Iterable[Fate]) -> list[Tree]:
    """One tree per query, its answer on top; what is read twice is drawn once and referred to after."""
    fate_of = {fate.pipeline_id: fate for fate in fates}
    drawn: set[str] = set()
    return [_query_tree(graph, query, fate_of, drawn) for query in graph.queries]


def progress(pipelines: Iterable[Pipeline]) -> str:
    finished = [pipeline.finished for pipeline in pipelines]
    return f"{sum(finished)}/{len(finished)}"


def _query_tree(graph: StageGraph, query: Query, fate_of: Mapping[str, Fate], drawn: set[str]) -> Tree:
    label = Text.assemble(("query ", "bold"), (str(query.execution), "bold"), f"  {query.description}  ")
    label.append(f"{progress(query.pipelines)} pipelines finished", "dim")
    if query.parked:
        label.append("  parked", "yellow")
    tree = Tree(label)
    tops = [pipeline for pipeline in query.pipelines if not graph.dependents[pipeline.id]]
    for top in sorted(tops, key=lambda pipeline: pipeline.kind is not Kind.RESULT):
        _grow(tree, graph, top, fate_of, drawn)
    return tree


def _grow(
    branch: Tree, graph: StageGraph, pipeline: Pipeline, fate_of: Mapping[str, Fate], drawn: set[str]
) -> None:
    if pipeline.id in drawn:
        branch.add(Text(f"↑ {pipeline.id} {pipeline.kind}, drawn above", "dim"))
        return
    drawn.add(pipeline.id)
    below = branch.add(_pipeline_line(pipeline, fate_of.get(pipeline.id)))
    for dependency in pipeline.depends_on:
        _grow(below, graph, graph.pipelines[dependency], fate_of, drawn)


def _pipeline_line(pipeline: Pipeline, fate: Fate | None) -> Text:
    """The operator comes last: it is long, and a narrow terminal cuts the end of the line."""
    mark, style = MARKS[pipeline.state]
    line = Text.assemble(
        (f"{mark} ", style), f"{pipeline.id} {pipeline.kind}", no_wrap=True, overflow="ellipsis"
    )
    if fate:
        line.append(f"  {fate.outcome}", OUTCOME_STYLES[fate.outcome])
        line.append(f" ({fate.reason})")
    line.append("".join(f"  {fact}" for fact in _measures(pipeline)))
    line.append(f"  {pipeline.operator}", "dim")
    return line


def _measures(pipeline: Pipeline) -> list[str]:
    if not pipeline.finished:
        return (
            [f"{pipeline.tasks_done}/{pipeline.tasks_total} tasks"] if pipeline.state is State.RUNNING else []
        )
    rows = [] if pipeline.rows is None else [f"{pipeline.rows:,} rows"]
    return [decimal(pipeline.bytes), *rows, f"{pipeline.run_ms / 1000:.1f} s"]
