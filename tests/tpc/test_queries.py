"""The texts are DuckDB's own; what is ours is their reading for Spark and the order of their rows."""

import pytest

from tests.tpc.compare import Order
from tests.tpc.queries import Query, tpcds_queries, tpch_queries


def test_all_queries_are_there() -> None:
    assert [query.number for query in tpch_queries()] == list(range(1, 23))
    assert [query.number for query in tpcds_queries()] == list(range(1, 100))


def test_only_names_in_double_quotes_are_written_anew_for_spark() -> None:
    changed = [query.number for query in tpcds_queries() if query.spark_text != query.duckdb_text]
    assert changed == [16, 32, 50, 62, 92, 94, 95, 99]
    assert all(query.spark_text == query.duckdb_text for query in tpch_queries())


@pytest.mark.parametrize(
    ("text", "columns", "order"),
    [
        ("SELECT a, b FROM t", ["a", "b"], Order()),
        ("SELECT a, b FROM t ORDER BY b DESC, A LIMIT 7", ["a", "b"], Order((1, 0), 7)),
        ("SELECT * FROM t ORDER BY 2", ["a", "b"], Order((1,))),
        ("SELECT t.a AS x, sum(b) FROM t GROUP BY 1 ORDER BY sum(b), t.a", ["x", "sum"], Order((1, 0))),
        ("SELECT a FROM t ORDER BY a - b, a", ["a"], Order((0,))),
    ],
)
def test_the_order_of_the_rows_is_the_keys_that_are_put_out(
    text: str, columns: list[str], order: Order
) -> None:
    assert Query("tpch", 1, text).order(columns) == order
