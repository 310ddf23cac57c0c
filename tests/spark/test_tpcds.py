"""TPC-DS queries that together contain every operator of the suite, moved at every point that they reach."""

import re

import pytest

from tests.spark.questions import TpcQuestion
from tests.spark.rig import Rig
from tests.tpc.oracle import difference_from_duckdb
from tests.tpc.queries import Query, tpcds_queries

SF = 0.01

NUMBERS = (1, 2, 6, 10, 16, 22, 23, 27, 31, 36, 38, 41, 44, 45, 51, 59, 67, 70, 77, 87, 92, 95, 97)
CHOSEN = [query for query in tpcds_queries() if query.number in NUMBERS]

OPERATOR = re.compile(r"^[\s:+|*()0-9-]*([A-Z][A-Za-z]+)", re.MULTILINE)
JOIN_TYPE = re.compile(r"Join .*?\b(Inner|LeftOuter|RightOuter|FullOuter|LeftSemi|LeftAnti|ExistenceJoin)")


@pytest.mark.parametrize("query", CHOSEN, ids=lambda query: query.name)
def test_a_query_moved_at_any_point_gives_its_rows(rig: Rig, query: Query) -> None:
    proof = rig.prove(TpcQuestion(query, SF))
    assert proof.wrong == []
    assert difference_from_duckdb(query, SF, proof.answer.rows) is None
    assert proof.missed == []
    assert any(point.used for point in proof.points)


def test_the_chosen_queries_contain_every_operator_of_the_suite(rig: Rig) -> None:
    found = {query.number: operators(rig.plan(TpcQuestion(query, SF))) for query in tpcds_queries()}
    chosen = set[str]().union(*(found[number] for number in NUMBERS))
    assert set[str]().union(*found.values()) == chosen
    assert {"CartesianProduct", "Expand", "WindowGroupLimit", "ExistenceJoin", "SortAggregate"} <= chosen


def operators(plan: str) -> set[str]:
    return {*OPERATOR.findall(plan), *JOIN_TYPE.findall(plan)}
