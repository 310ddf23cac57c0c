"""Every TPC-H query, moved at every point that it reaches, gives its rows: Spark's own and DuckDB's."""

import pytest

from tests.spark.questions import TpcQuestion
from tests.spark.rig import Rig
from tests.tpc.oracle import difference_from_duckdb
from tests.tpc.queries import Query, tpch_queries

SF = 0.01

NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}

SHUFFLED = (2, 5, 9, 11, 15, 17, 18, 20, 21, 22)
"""With many joins, subqueries and reused exchanges: what broadcasts would hide."""


@pytest.mark.parametrize("query", tpch_queries(), ids=lambda query: query.name)
def test_a_query_moved_at_any_point_gives_its_rows(rig: Rig, query: Query) -> None:
    proof = rig.prove(TpcQuestion(query, SF))
    assert proof.wrong == []
    assert difference_from_duckdb(query, SF, proof.answer.rows) is None
    assert proof.missed == []
    assert proof.points[-1].used > 0


@pytest.mark.parametrize(
    "query", [each for each in tpch_queries() if each.number in SHUFFLED], ids=lambda query: query.name
)
def test_without_broadcasts_no_finished_stage_runs_again(rig: Rig, query: Query) -> None:
    proof = rig.prove(TpcQuestion(query, SF, NO_BROADCAST))
    assert proof.wrong == []
    assert difference_from_duckdb(query, SF, proof.answer.rows) is None
    again = [each for point in proof.points for each in point.account.recomputed if each.kind == "shuffle"]
    assert again == []
    assert all(point.used > 0 for point in proof.points)
