import json
from typing import Any

import pytest
from hypothesis import given

from godwit.planrewrite.select import select
from godwit.planrewrite.stagegraph import Kind, SnapshotError, StageGraph, State
from tests.planrewrite.graphs import (
    graph,
    graph_of,
    papers_example,
    pipeline,
    plain_graph,
    query,
    random_graphs,
    result,
)


def refused(plain: Any) -> str:
    with pytest.raises(SnapshotError) as caught:
        StageGraph.from_json(json.dumps(plain))
    return str(caught.value)


@given(random_graphs())
def test_a_graph_survives_the_way_through_json(taken: StageGraph) -> None:
    assert StageGraph.from_json(taken.to_json()) == taken


def test_a_snapshot_of_the_jvm_is_read_field_by_field() -> None:
    plain = plain_graph()
    plain["queries"][0]["pipelines"][0] |= {"kind": "broadcast", "state": "running", "rows": 7}
    first = StageGraph.from_json(json.dumps(plain)).pipelines["a"]
    assert (first.kind, first.state, first.rows) == (Kind.BROADCAST, State.RUNNING, 7)


def test_an_idle_program_has_an_empty_graph() -> None:
    assert graph_of().pipelines == {}
    assert graph_of().progress == 0.0


def test_dependents_are_the_dependencies_inverted() -> None:
    assert papers_example(4).dependents == {
        "1": ("2",),
        "2": ("3", "6"),
        "3": ("4",),
        "4": ("6",),
        "5": ("6",),
        "6": (),
    }


def test_bottom_up_visits_a_pipeline_after_all_that_it_reads() -> None:
    order = [each.id for each in papers_example(0).bottom_up]
    reads = [("1", "2"), ("2", "3"), ("3", "4"), ("2", "6"), ("4", "6"), ("5", "6")]
    assert all(order.index(below) < order.index(above) for below, above in reads)


def test_an_exchange_that_waits_beside_its_finished_twin_is_one_pipeline_with_it() -> None:
    """A subquery reads what the main query has built already."""
    taken = graph(
        pipeline("scan", fingerprint="s"),
        pipeline("built", "scan", fingerprint="b"),
        pipeline("main", "built"),
        pipeline("scan-again", state="waiting", fingerprint="s"),
        pipeline("to-be-built", "scan-again", state="waiting", fingerprint="b"),
        pipeline("sub", "to-be-built", state="waiting"),
        result("r", "main sub"),
    )
    assert sorted(taken.pipelines) == ["built", "main", "r", "scan", "sub"]
    assert taken.pipelines["sub"].depends_on == ("built",)
    assert {each.pipeline_id for each in select(taken).chosen} == {"built", "main"}


def test_twins_one_beneath_the_other_make_no_circle() -> None:
    taken = graph(
        pipeline("below", state="running", fingerprint="same"),
        pipeline("middle", "below"),
        pipeline("above", "middle", fingerprint="same"),
        result("r", "above"),
    )
    assert taken.pipelines["above"].depends_on == ("middle",)
    assert taken.pipelines["middle"].depends_on == ("below",)


def test_refused_pipelines_are_nobodys_twins() -> None:
    twins = [pipeline("a", fingerprint="same", refusal="x"), pipeline("b", fingerprint="same", refusal="x")]
    assert len(graph(*twins, result("r", "a b")).pipelines) == 3


def test_progress_is_finished_pipelines_over_all_pipelines() -> None:
    assert papers_example(0).progress == 0.0
    assert papers_example(3).progress == 0.5
    assert papers_example(3).queries[0].progress == 0.5


def test_progress_counts_every_query() -> None:
    both = graph_of(query(pipeline("a"), result("r", "a")), query(result("s"), execution=1))
    assert both.progress == pytest.approx(1 / 3)
    assert [each.progress for each in both.queries] == [0.5, 0.0]


def test_bytes_of_a_state_are_the_sum_of_its_pipelines() -> None:
    taken = graph(
        pipeline("a", bytes=5), pipeline("b", bytes=7), pipeline("c", bytes=9), result("r", "a b c")
    )
    assert taken.bytes_of(["a", "c"]) == 14


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "kind",
            "sort",
            "snapshot.queries[0].pipelines[1].kind: 'sort' is none of shuffle, broadcast, cache",
        ),
        ("state", "failed", "snapshot.queries[0].pipelines[1].state: 'failed' is none of finished, running"),
        ("bytes", "12", "snapshot.queries[0].pipelines[1].bytes: expected int, found str"),
        ("bytes", True, "snapshot.queries[0].pipelines[1].bytes: expected int, found bool"),
        ("rows", 1.5, "snapshot.queries[0].pipelines[1].rows: expected int, found float"),
        ("depends_on", "a", "snapshot.queries[0].pipelines[1].depends_on: expected list, found str"),
        ("depends_on", ["x"], "snapshot: b depends on x, which is not in it"),
        ("depends_on", ["r"], "snapshot: pipelines depend on each other: "),
        ("depends_on", ["b"], "snapshot: pipelines depend on each other: b -> b"),
        ("id", "a", "snapshot: two pipelines have the same id"),
        ("kind", "result", "snapshot: query 0 does not have exactly one result"),
        ("colour", "red", "snapshot.queries[0].pipelines[1]: unknown colour"),
    ],
)
def test_a_snapshot_that_is_wrong_in_one_field_is_refused(field: str, value: Any, message: str) -> None:
    plain = plain_graph()
    plain["queries"][0]["pipelines"][1][field] = value
    assert refused(plain).startswith(message)


def test_a_query_without_a_result_is_refused() -> None:
    plain = plain_graph()
    del plain["queries"][0]["pipelines"][2]
    assert refused(plain) == "snapshot: query 0 does not have exactly one result"


@pytest.mark.parametrize("field", ["id", "kind", "depends_on", "bytes", "stored"])
def test_a_pipeline_without_one_of_its_fields_is_refused(field: str) -> None:
    plain = plain_graph()
    del plain["queries"][0]["pipelines"][1][field]
    assert refused(plain) == f"snapshot.queries[0].pipelines[1]: missing {field}"


@pytest.mark.parametrize("field", ["fingerprint", "refusal", "rows"])
def test_what_a_pipeline_may_lack_is_left_out_by_the_jvm(field: str) -> None:
    plain = plain_graph()
    del plain["queries"][0]["pipelines"][1][field]
    assert getattr(StageGraph.from_json(json.dumps(plain)).pipelines["b"], field) is None


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"text"'])
def test_what_is_no_snapshot_at_all_is_refused(text: str) -> None:
    with pytest.raises(SnapshotError):
        StageGraph.from_json(text)
