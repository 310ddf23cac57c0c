"""A Spark query that is under way is a moving thing inside a JVM: stages finish, plans change.

What may be kept of it is decided on one frozen picture: the pipelines, the blocking operator at the end of
each, who directly reads whom (Definition 5 of the paper), what has finished. The JVM takes the picture in
one call and hands it over as JSON; this module is the only one that reads that JSON. Nothing here decides
anything.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from godwit.planrewrite.records import RecordError, from_plain, to_plain


class SnapshotError(ValueError):
    """The JVM's picture contradicts itself or is not of this version; nothing may be decided on it."""


class Kind(StrEnum):
    """The blocking operator at which a pipeline ends."""

    SHUFFLE = "shuffle"  # scan-optimized
    BROADCAST = "broadcast"  # index-optimized
    CACHE = "cache"
    SUBQUERY = "subquery"
    RESULT = "result"  # the query's answer, exactly one per query


class State(StrEnum):
    FINISHED = "finished"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(frozen=True)
class Pipeline:
    id: str
    kind: Kind
    state: State
    depends_on: tuple[str, ...]  # direct dependencies only
    fingerprint: str | None
    refusal: str | None  # why its rows may not be carried over
    in_initial_plan: bool  # False: made by AQE on the way, so the next driver's first plan does not have it
    stored: bool  # read from the store by this driver: can be carried forward without being extracted
    repeatable: bool  # whether running it again gives the very same values
    bytes: int
    rows: int | None  # None is "unknown", never zero
    tasks_done: int
    tasks_total: int
    run_ms: int
    operator: str
    stands_for: str
    partitions: int

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED

    @property
    def is_of_one_query(self) -> bool:
        """Whether another query that runs the same may come by other values. Cached tables are for all."""
        return not (self.repeatable or self.stored or self.kind is Kind.CACHE)


@dataclass(frozen=True)
class Query:
    execution: int
    description: str
    write: bool
    parked: bool
    result_running: bool
    pipelines: tuple[Pipeline, ...]

    @property
    def progress(self) -> float:
        return _progress(self.pipelines)


@dataclass(frozen=True)
class StageGraph:
    taken_at_ms: int
    spark_version: str
    refusal: str | None  # why nothing of this session is state
    stopped: bool  # the program has ended its session
    side_effects: tuple[str, ...]
    events_late: bool  # a write may have ended that is not among them yet
    stages_finished: int
    queries: tuple[Query, ...]

    @staticmethod
    def from_json(text: str) -> "StageGraph":
        try:
            graph = from_plain(StageGraph, json.loads(text), "snapshot")
        except (json.JSONDecodeError, RecordError) as invalid:
            raise SnapshotError(str(invalid)) from invalid
        _check(graph)
        return _reused(graph)

    def to_json(self) -> str:
        return json.dumps(to_plain(self), separators=(",", ":"))

    @cached_property
    def pipelines(self) -> Mapping[str, Pipeline]:
        """Every pipeline of every query, by id."""
        return {pipeline.id: pipeline for query in self.queries for pipeline in query.pipelines}

    @cached_property
    def dependents(self) -> Mapping[str, tuple[str, ...]]:
        """Who directly reads each pipeline: the dependencies, inverted."""
        readers: dict[str, set[str]] = {pipeline_id: set() for pipeline_id in self.pipelines}
        for pipeline in self.pipelines.values():
            for dependency in pipeline.depends_on:
                readers[dependency].add(pipeline.id)
        return {pipeline_id: tuple(sorted(ids)) for pipeline_id, ids in readers.items()}

    @cached_property
    def bottom_up(self) -> tuple[Pipeline, ...]:
        """Every pipeline after all that it reads."""
        reads = {pipeline.id: pipeline.depends_on for pipeline in self.pipelines.values()}
        return tuple(self.pipelines[pipeline_id] for pipeline_id in TopologicalSorter(reads).static_order())

    @property
    def progress(self) -> float:
        """Definition 3 of the paper: finished pipelines over all pipelines."""
        return _progress(self.pipelines.values())

    def bytes_of(self, pipeline_ids: Iterable[str]) -> int:
        return sum(self.pipelines[pipeline_id].bytes for pipeline_id in pipeline_ids)


def _progress(pipelines: Iterable[Pipeline]) -> float:
    finished = [pipeline.finished for pipeline in pipelines]
    return sum(finished) / len(finished) if finished else 0.0


def _check(graph: StageGraph) -> None:
    if len(graph.pipelines) < sum(len(query.pipelines) for query in graph.queries):
        raise SnapshotError("snapshot: two pipelines have the same id")
    for query in graph.queries:
        if [pipeline.kind for pipeline in query.pipelines].count(Kind.RESULT) != 1:
            raise SnapshotError(f"snapshot: query {query.execution} does not have exactly one result")
    for pipeline in graph.pipelines.values():
        for dependency in pipeline.depends_on:
            if dependency not in graph.pipelines:
                raise SnapshotError(f"snapshot: {pipeline.id} depends on {dependency}, which is not in it")
    try:
        _ = graph.bottom_up
    except CycleError as cycle:
        circle = " -> ".join(cycle.args[1])
        raise SnapshotError(f"snapshot: pipelines depend on each other: {circle}") from cycle


def _reused(graph: StageGraph) -> StageGraph:
    """An exchange that occurs several times runs once: AQE finds that out when it comes to the second one,
    which until then waits beside the finished first. Here they are one pipeline from the start, the one that
    has come furthest, and what only the others read is gone. Two queries each run their own, and if its
    values do not repeat these are not the same.
    """
    twins: dict[tuple[str, int | None], list[Pipeline]] = defaultdict(list)
    query_of = {each.id: query.execution for query in graph.queries for each in query.pipelines}
    for pipeline in graph.bottom_up:
        if pipeline.fingerprint and not pipeline.refusal:
            owner = query_of[pipeline.id] if pipeline.is_of_one_query else None
            twins[pipeline.fingerprint, owner].append(pipeline)
    instead: dict[str, str] = {}
    for group in twins.values():
        first = min(group, key=lambda each: _FURTHEST.index(each.state))
        beneath = _reach(graph.pipelines, [first.id])
        instead |= {each.id: first.id for each in group if each.id not in beneath}
    merged = {
        each.id: replace(each, depends_on=tuple(dict.fromkeys(instead.get(d, d) for d in each.depends_on)))
        for each in graph.pipelines.values()
    }
    read = _reach(merged, [each for each, readers in graph.dependents.items() if not readers])
    queries = (
        replace(query, pipelines=tuple(merged[each.id] for each in query.pipelines if each.id in read))
        for query in graph.queries
    )
    return replace(graph, queries=tuple(queries))


_FURTHEST = (State.FINISHED, State.RUNNING, State.WAITING)


def _reach(pipelines: Mapping[str, Pipeline], start: Iterable[str]) -> frozenset[str]:
    """These and all that they read, directly or not."""
    reached: set[str] = set()
    below = list(start)
    while below:
        each = below.pop()
        if each not in reached:
            reached.add(each)
            below.extend(pipelines[each].depends_on)
    return frozenset(reached)
