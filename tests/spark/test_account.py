"""The account of a move names every finished stage that ran again, and no other."""

from dataclasses import replace

from godwit.extractor.manifest import Manifest
from godwit.planrewrite.select import Skipped, StateSelection
from godwit.planrewrite.stagegraph import StageGraph
from tests.extractor.samples import MANIFEST, fragment
from tests.planrewrite.graphs import graph, pipeline, result
from tests.spark.account import account

GRAPH = graph(
    pipeline("scan", kind="broadcast"),
    pipeline("low"),
    pipeline("high", "low scan"),
    pipeline("running", "high", "running"),
    result("r", "running"),
)


def stored(graph: StageGraph, chosen: str, **skipped: str) -> Manifest:
    fragments = [fragment(fingerprint=f"f{each}", pipeline=each) for each in chosen.split()]
    selection = StateSelection((), tuple(Skipped(each, why) for each, why in skipped.items()))
    return replace(MANIFEST, snapshot=graph.to_json(), selection=selection, fragments=tuple(fragments))


def reasons(manifest: Manifest, *used: str, **fallbacks: str) -> dict[str, str]:
    found = account(
        manifest, [f"f{each}" for each in used], {f"f{key}": why for key, why in fallbacks.items()}, ran=[]
    )
    return {each.pipeline: each.reason for each in found.recomputed}


def test_nothing_runs_again_beneath_a_fragment_that_was_used() -> None:
    found = account(stored(GRAPH, "high"), ["fhigh"], {}, ran=["frunning"])
    assert found.recomputed == ()
    assert found.stages_by_kind == {"broadcast": 1, "shuffle": 2}
    assert found.run_ms == 180_000


def test_a_fragment_that_was_not_found_costs_what_lies_beneath_it() -> None:
    assert reasons(stored(GRAPH, "high")) == {
        "high": "stored, but not found on the target",
        "low": "beneath one that was stored, but not found",
        "scan": "beneath one that was stored, but not found",
    }


def test_a_stage_that_was_not_chosen_has_the_reason_of_the_selection() -> None:
    assert reasons(stored(GRAPH, "low", high="nondeterministic", scan="cheap"), "low") == {
        "high": "nondeterministic",
        "scan": "cheap",
    }


def test_a_fragment_that_could_not_be_read_has_not_been_used() -> None:
    assert reasons(stored(GRAPH, "high"), "high", high="checksum")["high"] == "checksum"


def test_a_finished_stage_that_the_target_ran_is_found_even_where_the_graph_does_not_say_so() -> None:
    found = account(stored(GRAPH, "high"), ["fhigh"], {}, ran=["fscan", "frunning"])
    assert [(each.pipeline, each.reason) for each in found.recomputed] == [
        ("scan", "ran on the target all the same")
    ]


def test_what_aqe_made_on_the_way_may_be_planned_otherwise_and_is_not_missed() -> None:
    made = graph(pipeline("low"), pipeline("side", "low", in_initial_plan=False), result("r", "side"))
    (again,) = account(stored(made, "low side"), ["flow"], {}, ran=[]).recomputed
    assert (again.pipeline, again.reason, again.missed) == ("side", "stored, but AQE chose otherwise", False)
