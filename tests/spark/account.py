"""A move that keeps nothing gives right rows too. So every finished stage that ran again is accounted for.

The stage graph at the move says what had finished, the target says which fragments it used. What had
finished, is still read, and does not lie beneath a used fragment, ran again: it was refused, or not worth
moving, or the target did not find it. That much follows from the graph. The target's own stages are asked as
well: one that had finished at the source may have run there all the same.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from godwit.extractor.manifest import Fragment, Manifest
from godwit.planrewrite.stagegraph import Kind, Pipeline, StageGraph

STAGES = (Kind.SHUFFLE, Kind.BROADCAST, Kind.CACHE)
"""What AQE calls a query stage. The value of a subquery is none: it is read off the stages beneath it."""


@dataclass(frozen=True)
class Recomputed:
    pipeline: str
    kind: Kind
    run_ms: int
    reason: str
    missed: bool  # stored, in the plan from its start, and yet not read


@dataclass(frozen=True)
class Account:
    stages_by_kind: Mapping[str, int]  # that had finished
    run_ms: int  # of these
    recomputed: tuple[Recomputed, ...]

    @property
    def kept(self) -> int:
        return sum(self.stages_by_kind.values()) - len(self.recomputed)


NOTHING = Account({}, 0, ())


def account(
    stored: Manifest, used: Collection[str], fallbacks: Mapping[str, str], ran: Collection[str]
) -> Account:
    """`used`, `fallbacks` and what `ran` are fingerprints, as the target reported them."""
    graph = StageGraph.from_json(stored.snapshot)
    finished = [each for each in graph.pipelines.values() if each.finished and each.kind in STAGES]
    read = {each.pipeline for each in stored.fragments if each.fingerprint in {*used} - {*fallbacks}}
    skipped = {each.pipeline_id: each.reason for each in stored.selection.skipped}
    missed = {each.pipeline: why_missed(graph, each, fallbacks) for each in stored.fragments}
    follows = {each.id for each in still_to_run(graph, read)}
    again = [each for each in finished if each.id in follows or each.fingerprint in ran]

    def reason(pipeline: str) -> str:
        known = skipped.get(pipeline) or missed.get(pipeline)
        beneath = "beneath one that was stored, but not found"
        return known or (beneath if pipeline in follows else "ran on the target all the same")

    return Account(
        Counter(str(each.kind) for each in finished),
        sum(each.run_ms for each in finished),
        tuple(
            Recomputed(
                each.id,
                each.kind,
                each.run_ms,
                reason(each.id),
                each.id in missed and each.in_initial_plan,
            )
            for each in again
        ),
    )


def why_missed(graph: StageGraph, stored: Fragment, fallbacks: Mapping[str, str]) -> str:
    """What AQE made on the way depends on what it knew by then; the target knows more, from the start."""
    made_on_the_way = not graph.pipelines[stored.pipeline].in_initial_plan
    usual = "stored, but AQE chose otherwise" if made_on_the_way else "stored, but not found on the target"
    return fallbacks.get(stored.fingerprint, usual)


def still_to_run(graph: StageGraph, read: Collection[str]) -> Iterator[Pipeline]:
    """From the results down to what is read from the store."""
    seen: set[str] = set()
    below = [each.id for each in graph.pipelines.values() if each.kind is Kind.RESULT]
    while below:
        each = graph.pipelines[below.pop()]
        if each.id not in seen and each.id not in read:
            seen.add(each.id)
            below.extend(each.depends_on)
            yield each
