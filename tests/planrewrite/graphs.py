"""Stage graphs for tests: written by hand, the paper's own example, and random ones."""

import json
from itertools import product
from typing import Any

from hypothesis import strategies as st

from godwit.planrewrite.stagegraph import Kind, Pipeline, Query, StageGraph, State

COSTLY_MS = 60_000


def pipeline(id: str, depends_on: str = "", state: str = "finished", **facts: Any) -> Pipeline:
    """A costly, storable shuffle of the initial plan, unless the facts say otherwise."""
    usual: dict[str, Any] = {
        "kind": "shuffle",
        "fingerprint": f"f{id}",
        "refusal": None,
        "in_initial_plan": True,
        "stored": False,
        "repeatable": True,
        "bytes": 1_000_000,
        "rows": None,
        "tasks_done": 4,
        "tasks_total": 4,
        "run_ms": COSTLY_MS,
        "operator": "Exchange",
        "stands_for": "Aggregate",
        "partitions": 4,
    }
    known = usual | facts
    known["kind"] = Kind(known["kind"])
    return Pipeline(id=id, state=State(state), depends_on=tuple(depends_on.split()), **known)


def result(id: str, depends_on: str = "", **facts: Any) -> Pipeline:
    return pipeline(id, depends_on, "waiting", kind="result", fingerprint=None, **facts)


def query(*pipelines: Pipeline, execution: int = 0) -> Query:
    return Query(execution, "collect at prog.py:12", False, True, False, pipelines)


def graph(*pipelines: Pipeline, refusal: str | None = None) -> StageGraph:
    return graph_of(query(*pipelines), refusal=refusal)


def graph_of(*queries: Query, refusal: str | None = None) -> StageGraph:
    taken = StageGraph(1_700_000_000_000, "4.3.0", refusal, False, (), False, 3, queries)
    return StageGraph.from_json(taken.to_json())


def plain_graph() -> dict[str, Any]:
    """A snapshot as the JVM writes it, to be spoilt by tests."""
    plain: dict[str, Any] = json.loads(graph(pipeline("a"), pipeline("b", "a"), result("r", "b")).to_json())
    return plain


def papers_example(finished: int) -> StageGraph:
    """Figure 6.2 and its dependencies in Figure 6.8, after the first `finished` of its six pipelines."""
    states = ["finished"] * finished + ["waiting"] * (6 - finished)
    ends = ["broadcast", "shuffle", "shuffle", "broadcast", "broadcast", "result"]
    reads = ["", "1", "2", "3", "", "2 4 5"]
    rows = zip(reads, states, ends, strict=True)
    return graph(*(pipeline(str(n), *row[:2], kind=row[2]) for n, row in enumerate(rows, start=1)))


# All that a pipeline can be, the usual first. Drawn by number: Hypothesis hashes lists whenever it sees them.
FACT_NAMES = ("bytes", "run_ms", "kind", "fingerprint", "refusal", "in_initial_plan", "stored")
FACTS = list(
    product(
        (1_000_000, 0, 1_000, 500_000_000),
        (COSTLY_MS, 0, 10, 1_000),
        ("shuffle", "shuffle", "broadcast", "cache", "subquery"),
        ("f", "f", None),
        (None, None, "nondeterministic"),
        (True, True, False),
        (False, False, True),
    )
)
numbers_of_facts = st.integers(0, len(FACTS) - 1)
states = st.sampled_from(State)


@st.composite
def random_graphs(draw: st.DrawFn) -> StageGraph:
    """DAGs as Spark makes them: whoever has finished has read only finished ones. Two queries, which may
    share: a cached table is read by several."""
    made: list[Pipeline] = []
    for number in range(draw(st.integers(1, 9))):
        below = some_of(made, draw(st.integers(0, 2**number - 1)))
        state = draw(states) if all(each.finished for each in below) else State.WAITING
        facts = dict(zip(FACT_NAMES, FACTS[draw(numbers_of_facts)], strict=True))
        repeatable = draw(st.integers(0, 3)) > 0
        made.append(pipeline(str(number), ids(below), state, repeatable=repeatable, **facts))
    tops = [some_of(made, draw(st.integers(0, 2 ** len(made) - 1))) for _ in range(2)]
    one = query(*made[::2], result("r0", ids(tops[0])))
    return graph_of(one, query(*made[1::2], result("r1", ids(tops[1])), execution=1))


def some_of(pipelines: list[Pipeline], bits: int) -> list[Pipeline]:
    return [each for position, each in enumerate(pipelines) if bits >> position & 1]


def ids(pipelines: list[Pipeline]) -> str:
    return " ".join(each.id for each in pipelines)
