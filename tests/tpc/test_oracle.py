"""DuckDB is asked for what Spark would mean by the same text."""

from decimal import Decimal

from tests.tpc import data
from tests.tpc.compare import difference
from tests.tpc.oracle import SETTINGS, duckdb_answer, levelled
from tests.tpc.queries import Query


def test_nulls_sort_as_they_do_in_spark() -> None:
    with data.connect("tpch") as connection:
        for setting in SETTINGS:
            connection.execute(setting)
        values = "FROM (VALUES (1), (NULL), (2)) AS t(a)"
        assert connection.execute(f"SELECT a {values} ORDER BY a").fetchall() == [(None,), (1,), (2,)]
        assert connection.execute(f"SELECT a {values} ORDER BY a DESC").fetchall() == [(2,), (1,), (None,)]


def test_an_answer_has_the_names_of_its_columns() -> None:
    answer = duckdb_answer(Query("tpch", 1, "SELECT count(*) AS nations, 'x' AS x FROM nation"), 0.01)
    assert (answer.columns, answer.rows) == (("nations", "x"), [(25, "x")])


def test_a_decimal_is_a_float_where_the_other_engine_has_one() -> None:
    duckdb = [(1.0 / 3, Decimal("1.10"), None), (2.0, Decimal("2.20"), 4.0)]
    spark = [(Decimal("0.333333"), Decimal("1.10"), None), (Decimal("2.000000"), Decimal("2.20"), 4)]
    assert difference(*levelled(duckdb, spark)) is None


def test_decimals_on_both_sides_must_be_equal() -> None:
    assert difference(*levelled([(Decimal("1.10"), 0.5)], [(Decimal("1.11"), 0.5)]))
