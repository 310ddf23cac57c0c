"""Random expressions over whatever columns a random relation has.

Every one of them has the same value in any order of rows and on any number of cores, and none can fail: in
ANSI mode an overflow is an error, so integers are kept small by a modulus.
"""

import random
from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

MODULUS = 1009


def integer(chosen: random.Random, frame: DataFrame) -> str:
    """The name of a column of integers; every relation has one."""
    return chosen.choice([name for name, kind in frame.dtypes if kind in ("int", "bigint")])


def condition(chosen: random.Random, frame: DataFrame) -> Column:
    name, kind = chosen.choice(frame.dtypes)
    column = sf.col(name)
    match kind:
        case "string":
            return chosen.choice([column.like("%1%"), column > "name-3", column.isNull()])
        case "date":
            return sf.month(column) > chosen.randint(1, 9)
        case "timestamp_ntz":
            return sf.hour(column) < chosen.randint(6, 20)
        case "int" | "bigint":
            return column % 7 < chosen.randint(2, 6)
        case _:
            return (column > chosen.randint(1, 200)) | column.isNull()


def value(chosen: random.Random, frame: DataFrame) -> Column:
    name, kind = chosen.choice(frame.dtypes)
    column, other = sf.col(name), sf.col(integer(chosen, frame))
    if chosen.random() < 0.2:
        return sf.when(condition(chosen, frame), other % 13).otherwise(-1)
    match kind:
        case "string":
            return chosen.choice([sf.upper(column), sf.substring(column, 2, 5), sf.reverse(column)])
        case "date":
            return chosen.choice([sf.date_add(column, 40), sf.trunc(column, "month"), sf.year(column)])
        case "timestamp_ntz":
            return sf.date_trunc("hour", column)
        case "int" | "bigint":
            return (column.cast("bigint") * chosen.randint(2, 9) + sf.coalesce(other, sf.lit(5))) % MODULUS
        case _:
            return column + chosen.randint(1, 9)


def aggregate(chosen: random.Random, frame: DataFrame, name: str) -> Column:
    kind = dict(frame.dtypes)[name]
    functions: list[Callable[[Column], Column]] = [sf.min, sf.max, sf.count, sf.count_distinct]
    if kind in ("int", "bigint"):
        functions += [lambda number: sf.sum(number % MODULUS), lambda number: sf.avg(number).cast("int")]
    elif kind == "double" or kind.startswith("decimal"):
        functions += [sf.sum, sf.sum]
    elif kind == "string":
        functions += [lambda text: sf.size(sf.collect_set(text)), lambda text: sf.max(sf.length(text))]
    return chosen.choice(functions)(sf.col(name))
