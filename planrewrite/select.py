"""A query is stopped half-way. Which of its finished work must travel, so that the rest goes on elsewhere?

Too much, and the machine is not vacated in time; too little, and work is lost. The answer is the paper's:
of the finished pipelines only those that an unfinished one still reads are state (Algorithm 6.5);
replacement goes from the top, the topmost wins, and nothing is extracted that the final plan does not read
(Algorithm 6.6).

Four things are Spark's own. A finished pipeline may be impossible to carry over: then it runs again, and
what it reads is needed. A broadcast or a cached table is often built again faster than it is moved. And a
pipeline that AQE made on the way is not in the next driver's first plan: it is met only after what lies
beneath it, so that is needed too. And a pipeline that adds floating-point numbers gives other last digits
when it runs again: then nothing may be kept that was made of the first ones.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from godwit.planrewrite.stagegraph import Kind, Pipeline, StageGraph

MOVE_SETUP_MS = 20
"""What a broadcast costs however small: one object that the driver writes and the next one reads. No job runs
at either end, as one does to build it again. (For a cached table jobs do; they are as short as its state.)"""

MOVE_BYTES_PER_MS = 100_000
"""100 MB/s, out and in again: a modest object store. An estimate on the slow side: where the store is faster,
either choice is cheap; the rule must be right where moving hurts."""


STALE = "stands on values that must be computed again, and may then be others"

RIVALS = "several queries have it, and its values do not repeat: each has its own"

UNNAMED = "stands on values that do not repeat, and that could not be told apart from others"

FOUNDATION = "what was made of it is kept, and its values do not repeat"


@dataclass(frozen=True)
class Chosen:
    pipeline_id: str
    bytes: int  # still to be written; 0 if the store has it already


@dataclass(frozen=True)
class Skipped:
    """A finished pipeline that the final plan needs and that will run again."""

    pipeline_id: str
    reason: str


@dataclass(frozen=True)
class StateSelection:
    chosen: tuple[Chosen, ...]
    skipped: tuple[Skipped, ...]

    @property
    def bytes(self) -> int:
        return sum(chosen.bytes for chosen in self.chosen)


@dataclass(frozen=True)
class Fate:
    """What becomes of a finished pipeline: kept, covered (not needed any more), or lost; and why."""

    pipeline_id: str
    outcome: Literal["kept", "covered", "lost"]
    reason: str


def select(graph: StageGraph, *, budget_bytes: int | None = None) -> StateSelection:
    """The state of every query in the graph; `budget_bytes` bounds what there is time or room to write."""
    refusals = dict(_refusals(graph))
    while stale := _stale(graph, extracted := _extracted(graph, refusals, budget_bytes)) or _unfounded(
        graph, extracted, refusals, budget_bytes
    ):
        refusals |= dict.fromkeys(stale, STALE)
    lost = sorted(_runs_again(graph, extracted))
    return StateSelection(
        tuple(
            Chosen(each, _bytes_to_write(graph, [each])) for each in sorted(_with_tables(graph, extracted))
        ),
        tuple(Skipped(each, refusals[each] or f"does not fit into {budget_bytes:,} bytes") for each in lost),
    )


def _extracted(
    graph: StageGraph, refusals: Mapping[str, str | None], budget_bytes: int | None
) -> frozenset[str]:
    storable = {pipeline_id for pipeline_id, reason in refusals.items() if reason is None}
    extracted = modify_plan(graph, select_state_operators(graph, storable))
    if budget_bytes is not None and _bytes_to_write(graph, extracted) > budget_bytes:
        extracted = _within_budget(graph, storable, budget_bytes)
    return extracted


def _stale(graph: StageGraph, kept: Collection[str]) -> frozenset[str]:
    """What must not be kept: it was made of values that others will read in another edition."""
    above = [each for each in _runs_again(graph, kept) if not graph.pipelines[each].repeatable]
    reached: set[str] = set()
    while above:
        for reader in graph.dependents[above.pop()]:
            if reader not in reached:
                reached.add(reader)
                above.append(reader)
    return frozenset(reached) & frozenset(kept)


def doubtful_beneath(graph: StageGraph, pipeline_id: str) -> list[Pipeline]:
    """All that it was made of, directly or not, and that another run may give otherwise. Of what a cached
    table was made of only other tables matter: who reads the table has these rows, nobody had the others.
    """
    found, below = {pipeline_id}, [pipeline_id]
    while below:
        for each in graph.pipelines[below.pop()].depends_on:
            if each not in found:
                found.add(each)
                below += [] if graph.pipelines[each].kind is Kind.CACHE else [each]
    beneath = [graph.pipelines[each] for each in sorted(found - {pipeline_id})]
    kinds = [Kind.CACHE] if graph.pipelines[pipeline_id].kind is Kind.CACHE else list(Kind)
    return [each for each in beneath if each.kind in kinds and not each.repeatable]


def _tables(graph: StageGraph, pipeline_id: str) -> frozenset[str]:
    """Cached tables that all queries of the program read, and that must not be built in another edition."""
    tables = frozenset(each.id for each in doubtful_beneath(graph, pipeline_id) if each.kind is Kind.CACHE)
    return tables.union(*(_tables(graph, each) for each in tables))


def _with_tables(graph: StageGraph, kept: Collection[str]) -> frozenset[str]:
    return frozenset(kept).union(*(_tables(graph, each) for each in kept))


def _unfounded(
    graph: StageGraph,
    kept: Collection[str],
    refusals: Mapping[str, str | None],
    budget_bytes: int | None,
) -> frozenset[str]:
    """What must not be kept since the tables that it was made of cannot be kept with it."""
    whole = _with_tables(graph, kept)
    fits = budget_bytes is None or _bytes_to_write(graph, whole) <= budget_bytes
    return frozenset(
        each
        for each in kept
        for table in _tables(graph, each)
        if refusals.get(table, "unfinished") is not None or (not fits and table not in kept)
    )


def select_state_operators(graph: StageGraph, storable: Collection[str]) -> frozenset[str]:
    """Algorithm 6.5, SelectStateOperators: what can be kept and has a dependent that is still to run."""
    finished_pipelines = {each for each in storable if _replaces_subtree(graph.pipelines[each])}
    return frozenset(
        pipeline_id
        for pipeline_id in storable
        if any(dep not in finished_pipelines for dep in graph.dependents[pipeline_id])
    )


def modify_plan(graph: StageGraph, state_operators: Collection[str]) -> frozenset[str]:
    """Algorithm 6.6, ModifyPlan: of the state operators those that the final plan reads (opsToExtract)."""
    return final_plan(graph, state_operators) & frozenset(state_operators)


def final_plan(graph: StageGraph, state_operators: Collection[str]) -> frozenset[str]:
    """The pipelines that the next driver meets if the state operators are stored.

    A location is valid while a path leads to it from an unfinished pipeline that nobody reads: a query's
    result. Each is visited after all that read it, so a replacement above has always happened before one
    below.
    """
    valid: set[str] = set()
    for pipeline in reversed(graph.bottom_up):
        locations = graph.dependents[pipeline.id]
        still_read = any(
            location in valid
            and not (location in state_operators and _replaces_subtree(graph.pipelines[location]))
            for location in locations
        )
        if still_read or (not locations and not pipeline.finished):
            valid.add(pipeline.id)
    return frozenset(valid)


def kept_and_lost(graph: StageGraph, selection: StateSelection) -> tuple[Fate, ...]:
    """What becomes of every finished pipeline, for people to read."""
    chosen = {each.pipeline_id for each in selection.chosen}
    skipped = {each.pipeline_id: each.reason for each in selection.skipped}
    finished = sorted(pipeline.id for pipeline in graph.pipelines.values() if pipeline.finished)
    return tuple(_fate(graph, each, chosen, skipped) for each in finished)


def why_not_worth_moving(size_bytes: int, rebuild_ms: int) -> str | None:
    """The cost rule for broadcasts and cached tables: None if moving is cheaper than building again."""
    move_ms = _move_ms(size_bytes)
    if rebuild_ms > move_ms:
        return None
    return f"cheaper to build again ({rebuild_ms:,} ms) than to move ({move_ms:,} ms)"


def _move_ms(size_bytes: int) -> int:
    return MOVE_SETUP_MS + size_bytes // MOVE_BYTES_PER_MS


def _replaces_subtree(pipeline: Pipeline) -> bool:
    """Whether what lies beneath it is superfluous once it is stored: not if AQE has to make it anew first."""
    return pipeline.in_initial_plan


def _refusals(graph: StageGraph) -> Mapping[str, str | None]:
    """For each finished pipeline why it cannot or should not be carried over; None: it can."""
    refusals: dict[str, str | None] = {}
    rivals = _rivals(graph)
    for pipeline in graph.bottom_up:
        if pipeline.finished:
            refusal = graph.refusal or _refusal(pipeline) or _doubt(graph, pipeline, rivals)
            refusals[pipeline.id] = refusal or _too_cheap(graph, pipeline, refusals)
    return refusals


def _rivals(graph: StageGraph) -> frozenset[str]:
    """Fingerprints of rows of which several queries have an edition each: which of them would be stored?"""
    met = Counter(each.fingerprint for each in graph.pipelines.values() if each.is_of_one_query)
    return frozenset(fingerprint for fingerprint, times in met.items() if fingerprint and times > 1)


def _doubt(graph: StageGraph, pipeline: Pipeline, rivals: Collection[str]) -> str | None:
    if pipeline.repeatable or pipeline.stored:
        return None
    beneath = doubtful_beneath(graph, pipeline.id)
    if any(each.fingerprint in rivals for each in (pipeline, *beneath)):
        return RIVALS
    unnamed = any(each.fingerprint is None for each in beneath if each.kind is not Kind.CACHE)
    return UNNAMED if unnamed else None


def _refusal(pipeline: Pipeline) -> str | None:
    if pipeline.refusal:
        return pipeline.refusal
    if pipeline.kind in (Kind.SUBQUERY, Kind.RESULT):
        return f"a {pipeline.kind} is computed again from what lies beneath it"
    return None if pipeline.fingerprint else "has no fingerprint to be found by"


def _too_cheap(graph: StageGraph, pipeline: Pipeline, refusals: Mapping[str, str | None]) -> str | None:
    if pipeline.kind is Kind.SHUFFLE or pipeline.stored or not pipeline.repeatable:
        return None
    return why_not_worth_moving(pipeline.bytes, _rebuild_ms(graph, pipeline, refusals))


def _rebuild_ms(graph: StageGraph, pipeline: Pipeline, refusals: Mapping[str, str | None]) -> int:
    """Running it and all beneath it that is not stored, and moving, in its place, what is.

    The latter does not count where it travels anyway: beneath a pipeline that does not replace its subtree.
    That another reader may need it too is left out: at worst one fragment more than needed travels.
    """
    run_ms, moved_instead_ms = pipeline.run_ms, 0
    seen, below = {pipeline.id}, list(pipeline.depends_on)
    while below:
        each = graph.pipelines[below.pop()]
        if each.id in seen:
            continue
        seen.add(each.id)
        if refusals.get(each.id, "unfinished") is None:
            moved_instead_ms += 0 if each.stored else _move_ms(each.bytes)
        else:
            run_ms += each.run_ms
            below.extend(each.depends_on)
    return run_ms + (moved_instead_ms if _replaces_subtree(pipeline) else 0)


def _bytes_to_write(graph: StageGraph, pipeline_ids: Collection[str]) -> int:
    return graph.bytes_of(each for each in pipeline_ids if not graph.pipelines[each].stored)


def _runs_again(graph: StageGraph, kept: Collection[str]) -> frozenset[str]:
    plan = final_plan(graph, kept)
    return frozenset(each for each in plan if graph.pipelines[each].finished and each not in kept)


def _within_budget(graph: StageGraph, storable: Collection[str], budget_bytes: int) -> frozenset[str]:
    """Greedy: again and again what saves the most run time per byte and still fits.

    A pipeline that comes in may cover chosen ones beneath it: they go, and give their bytes back. The run
    time that is lost shrinks with every round, so this ends, and no chosen one is useless beside the
    others.
    """
    kept = modify_plan(graph, {each for each in storable if graph.pipelines[each].stored})
    while (better := _best_addition(graph, storable, kept, budget_bytes)) is not None:
        kept = better
    return kept


def _best_addition(
    graph: StageGraph, storable: Collection[str], kept: frozenset[str], budget_bytes: int
) -> frozenset[str] | None:
    best, best_rate = None, 0.0
    lost_ms = _lost_ms(graph, kept)
    for candidate in sorted(_runs_again(graph, kept).intersection(storable)):
        together = modify_plan(graph, kept | {candidate})
        if _bytes_to_write(graph, together) > budget_bytes:
            continue
        rate = (lost_ms - _lost_ms(graph, together)) / max(1, _bytes_to_write(graph, [candidate]))
        if rate > best_rate:
            best, best_rate = together, rate
    return best


def _lost_ms(graph: StageGraph, kept: Collection[str]) -> int:
    return sum(graph.pipelines[each].run_ms for each in _runs_again(graph, kept))


def _fate(graph: StageGraph, pipeline_id: str, chosen: Collection[str], skipped: Mapping[str, str]) -> Fate:
    if pipeline_id in chosen:
        stored = graph.pipelines[pipeline_id].stored
        read = pipeline_id in final_plan(graph, chosen)
        why = "read by what is still to run" if read else FOUNDATION
        return Fate(pipeline_id, "kept", "in the store already" if stored else why)
    if pipeline_id in skipped:
        return Fate(pipeline_id, "lost", skipped[pipeline_id])
    above = _nearest_kept_above(graph, pipeline_id, chosen)
    why = f"beneath {', '.join(above)}" if above else "nobody reads it any more"
    return Fate(pipeline_id, "covered", why)


def _nearest_kept_above(graph: StageGraph, pipeline_id: str, chosen: Collection[str]) -> list[str]:
    found, seen, above = [], set(), list(graph.dependents[pipeline_id])
    while above:
        each = above.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in chosen:
            found.append(each)
        else:
            above.extend(graph.dependents[each])
    return sorted(found)
