"""A second opinion: DuckDB's rows for the same query over the same files.

An engine that shares no code with Spark answers the same text. What the two mean differently by one text is
levelled here: where nulls sort, and the type of a quotient or an average of decimals, which is a decimal of
some scale in Spark and a float in DuckDB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.tpc import data
from tests.tpc.compare import Rounded, Row, difference
from tests.tpc.queries import Query

SETTINGS = ("SET default_null_order = 'nulls_first_on_asc_last_on_desc'",)


@dataclass(frozen=True)
class Answer:
    columns: tuple[str, ...]
    rows: list[Row]


def duckdb_answer(query: Query, sf: float) -> Answer:
    with data.connect(query.suite) as connection:
        for setting in SETTINGS:
            connection.execute(setting)
        for table in data.tables(data.suite(query.suite, sf)):
            connection.execute(f"CREATE VIEW {table.name} AS FROM '{table}/*.parquet'")
        cursor = connection.execute(query.duckdb_text)
        return Answer(tuple(name for name, *_ in cursor.description or ()), list(cursor.fetchall()))


def difference_from_duckdb(query: Query, sf: float, spark_rows: Sequence[Row]) -> str | None:
    """None if DuckDB gives the same rows, else the first difference in words."""
    answer = duckdb_answer(query, sf)
    return difference(*levelled(answer.rows, spark_rows), query.order(answer.columns))


def levelled(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both with columns made floats that are floats on either side."""
    width = len(ours[0]) if ours else 0
    floats = {column for column in range(width) for row in [*ours, *theirs] if isinstance(row[column], float)}
    return [as_floats(row, floats) for row in ours], [as_floats(row, floats) for row in theirs]


def as_floats(row: Row, columns: set[int]) -> Row:
    return tuple(as_float(value) if column in columns else value for column, value in enumerate(row))


def as_float(value: Any) -> Any:
    match value:
        case Decimal():
            return Rounded(float(value), 10.0 ** int(value.as_tuple().exponent))
        case int():
            return float(value)
        case _:
            return value
