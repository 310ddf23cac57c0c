"""A move is a chain of small decisions under a deadline: may this program be moved at all, how long to wait
for what still runs, how much fits, what to do about a pipeline that could not be written, what to keep of
the state that this driver itself resumed from.

Each is a function here, of pictures and numbers only. What follows from them is done by the agent.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from godwit.extractor.errors import MoveFailed, StoreFull
from godwit.extractor.facade import Extraction, Written
from godwit.extractor.manifest import Fragment
from godwit.planrewrite.select import MOVE_BYTES_PER_MS, StateSelection, doubtful_beneath
from godwit.planrewrite.stagegraph import Kind, Pipeline, StageGraph, State

RESERVE_SECONDS = 3.0
"""Kept back from waiting: for a first extraction in a cold JVM, for what the awaited stages will add to the
state, and for the commit. Too little loses all, too much only the stages that end within it."""

COMMIT_SECONDS = 0.5
"""Kept back from writing: the manifest itself, and the way out."""


def refusal(graph: StageGraph) -> str | None:
    """Why the program may not be moved: a write that is done, or half done, would be done again elsewhere."""
    if graph.stopped:
        return "the program has stopped its SparkContext, and no query is left to move"
    if graph.side_effects:
        more = " and more" if len(graph.side_effects) > 1 else ""
        return f"the program has already written: {graph.side_effects[0]}{more}"
    for query in graph.queries:
        if query.write and query.result_running:
            return f"the program is writing: {query.description}"
    return None


def last_refusal(graph: StageGraph) -> str | None:
    """Why nothing may be committed at this very moment: a write that passed the gate just before it closed,
    and has not begun its output yet, is held by nothing. By now any other is parked, or waits for stages. A
    subquery does not hold it: the output itself is what waits for that.
    """
    for query in graph.queries:
        (answer,) = (each for each in query.pipelines if each.kind is Kind.RESULT)
        read = [graph.pipelines[each] for each in answer.depends_on]
        waits = any(not each.finished for each in read if each.kind is not Kind.SUBQUERY)
        if query.write and not query.parked and not waits:
            return f"the program is about to write: {query.description}"
    return None


def drain_until(deadline_at: float, state_bytes: int) -> float:
    """Until when running stages may be waited for, so that the state can still be written after that."""
    return deadline_at - RESERVE_SECONDS - state_bytes / MOVE_BYTES_PER_MS / 1000


def about_to_run(graph: StageGraph) -> bool:
    """Whether a stage has begun and all that it reads is there: if no job of it runs, one soon will. A stage
    that waits for a parked subquery is not meant: it would wait for ever."""
    return any(
        pipeline.state is State.RUNNING
        and pipeline.kind in (Kind.SHUFFLE, Kind.BROADCAST)
        and all(graph.pipelines[each].finished for each in pipeline.depends_on)
        for pipeline in graph.pipelines.values()
    )


def being_built(graph: StageGraph) -> bool:
    """Whether the rows of a broadcast have been collected and the driver makes a table of them: no job runs,
    and yet it is work that is nearly done."""
    return any(
        pipeline.state is State.RUNNING and pipeline.kind is Kind.BROADCAST and pipeline.run_ms > 0
        for pipeline in graph.pipelines.values()
    )


def budget_bytes(seconds_left: float) -> int:
    return max(0, int((seconds_left - COMMIT_SECONDS) * 1000 * MOVE_BYTES_PER_MS))


def extract_ms(seconds_left: float) -> int:
    return max(0, int((seconds_left - COMMIT_SECONDS) * 1000))


def to_write(graph: StageGraph, selection: StateSelection) -> dict[str, str]:
    """Pipelines with their fingerprints. Two queries may have the same exchange: once is enough."""
    chosen = [graph.pipelines[each.pipeline_id] for each in selection.chosen]
    first = {str(pipeline.fingerprint): pipeline for pipeline in reversed(chosen) if not pipeline.stored}
    return {pipeline.id: fingerprint for fingerprint, pipeline in reversed(first.items())}


def fragment(written: Written, base: str, graph: StageGraph, loaded: Mapping[str, Fragment]) -> Fragment:
    """A query meets each value in one edition: what was made of some that another run gives otherwise names
    these, and stands for nothing in a query that computes one of them anew. A cached table is for all
    queries, so it travels with what was made of it.
    """
    beneath = doubtful_beneath(graph, written.pipeline)
    prints = {str(each.fingerprint) for each in beneath}
    before = [loaded[each] for each in prints if each in loaded]
    tables = {str(each.fingerprint) for each in beneath if each.kind is Kind.CACHE}
    return Fragment(
        fingerprint=written.fingerprint,
        kind=written.kind,
        label=written.label,
        bytes=written.size_bytes,
        rows=written.rows,
        folder=f"{base}/{written.name}",
        descriptor=written.descriptor,
        pipeline=written.pipeline,
        made_of=tuple(sorted(prints.union(*(each.made_of for each in before)))),
        stands_on=tuple(sorted(tables.union(*(each.stands_on for each in before)))),
    )


def problem(extraction: Extraction, a_part_will_do: bool) -> MoveFailed | None:
    """What went wrong for good. Rows that may not be carried over are no failure of the move."""
    broken = [each for each in extraction.not_written if not each.refused]
    if not broken or a_part_will_do:
        return None
    reason = broken[0].reason
    kind = StoreFull if "No space left on device" in reason else MoveFailed
    return kind(f"{len(broken)} of the state's stages could not be written: {reason}")


def ended(wanted: Mapping[str, str], extraction: Extraction, now: StageGraph) -> bool:
    """Whether something could not be written because its query has come to its end: its rows have gone to the
    program, which is to go on with them."""
    there = {pipeline.fingerprint for pipeline in now.pipelines.values()}
    return any(wanted[each.pipeline] not in there for each in extraction.not_written if not each.refused)


def after(graph: StageGraph, extraction: Extraction) -> StageGraph:
    """The graph to choose from next: what was written is there already, what could not be is refused."""
    written = {each.fingerprint for each in extraction.written}
    reasons = {each.pipeline: each.reason for each in extraction.not_written}

    def settled(pipeline: Pipeline) -> Pipeline:
        return replace(
            pipeline,
            stored=pipeline.stored or pipeline.fingerprint in written,
            refusal=reasons.get(pipeline.id, pipeline.refusal),
        )

    queries = (replace(query, pipelines=tuple(map(settled, query.pipelines))) for query in graph.queries)
    return replace(graph, queries=tuple(queries))


def kept(
    graph: StageGraph,
    selection: StateSelection,
    written: Mapping[str, Fragment],
    loaded: Mapping[str, Fragment],
    bad: Collection[str],
) -> tuple[Fragment, ...]:
    """The fragments of the next manifest, each exchange once.

    Of what this driver resumed from, the running queries drop what they have left behind. The rest is kept
    although they do not read it: it costs nothing, and the next driver runs the whole program again.
    """
    at_hand = {
        each: replace(fragment, pipeline="")
        for each, fragment in loaded.items()
        if each not in bad
        and not written.keys() & {each, *fragment.made_of}  # what is new is another edition
    }
    kept: dict[str, Fragment] = {}
    for pipeline in (graph.pipelines[chosen.pipeline_id] for chosen in selection.chosen):
        fingerprint = str(pipeline.fingerprint)
        if found := written.get(fingerprint) or at_hand.get(fingerprint):
            kept.setdefault(fingerprint, replace(found, pipeline=pipeline.id))
    met = {pipeline.fingerprint for pipeline in graph.pipelines.values()}
    for fingerprint, fragment in at_hand.items():
        if fingerprint not in met:
            kept.setdefault(fingerprint, fragment)
    # What was made of them may be used only with them.
    for each in {each for fragment in kept.values() for each in fragment.made_of if each in at_hand}:
        kept.setdefault(each, at_hand[each])
    return sound(kept.values())


def sound(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """Without those that stand on a cached table which is not among them."""
    found = {fragment.fingerprint: fragment for fragment in fragments}
    while unfounded := [
        each for each, fragment in found.items() if not found.keys() >= {*fragment.stands_on}
    ]:
        for each in unfounded:
            del found[each]
    return tuple(found.values())
