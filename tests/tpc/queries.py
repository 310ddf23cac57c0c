"""The 22 queries of TPC-H and the 99 of TPC-DS, for Spark and for DuckDB.

DuckDB brings the texts. Spark reads them as they are, but for names in double quotes. How the rows of a text
are ordered is taken from its ORDER BY, so that a comparison knows which rows may change places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import sqlglot
from sqlglot import exp

from tests.tpc import data
from tests.tpc.compare import Order


@dataclass(frozen=True)
class Query:
    suite: str
    number: int
    duckdb_text: str

    @property
    def name(self) -> str:
        return f"{self.suite}-q{self.number:02}"

    @property
    def spark_text(self) -> str:
        # In these texts a double quote always opens a name; to Spark it would open a string.
        return self.duckdb_text.replace('"', "`")

    def order(self, columns: Sequence[str]) -> Order:
        """How the rows are ordered, given the names of the columns that the query puts out."""
        tree = sqlglot.parse_one(self.duckdb_text, read="duckdb")
        ordered, limit = tree.args.get("order"), tree.args.get("limit")
        keys = [key.this for key in ordered.expressions] if ordered else []
        positions = [position_of(key, tree.expressions, columns) for key in keys]
        put_out = tuple(position for position in positions if position is not None)
        return Order(put_out, int(limit.expression.name) if limit else None)


def tpch_queries() -> list[Query]:
    return suite_queries("tpch")


def tpcds_queries() -> list[Query]:
    return suite_queries("tpcds")


@cache
def suite_queries(suite: str) -> list[Query]:
    with data.connect(suite) as connection:
        texts = connection.execute(
            f"SELECT query_nr, query FROM {suite}_queries() ORDER BY query_nr"
        ).fetchall()
    return [Query(suite, number, text.strip().removesuffix(";")) for number, text in texts]


def position_of(key: exp.Expression, selected: list[exp.Expression], columns: Sequence[str]) -> int | None:
    """Which output column an ORDER BY key is: by number, by its name, or by the expression it stands for."""
    if key.is_int:
        return int(key.name) - 1
    names = [column.lower() for column in columns]
    if isinstance(key, exp.Column) and not key.table and key.name.lower() in names:
        return names.index(key.name.lower())
    expressions = [item.unalias() for item in selected]
    return expressions.index(key) if key in expressions else None
