"""Are these the same rows?

A resumed query must give the rows of an undisturbed one: each exactly as often, in order where the query
orders. Three things are free, and only these: the order of rows that the query does not order, which of
several rows with equal ORDER BY keys a LIMIT cuts off, and the last digits of floats, since a sum of floats
depends on the order of its terms.

Floats never decide how rows are paired by being sorted or hashed: two values a billionth apart may fall on
either side of any boundary. Rows are paired by everything else first, then floats by closeness.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

RELATIVE_TOLERANCE = 1e-9
ROWS_SHOWN = 3

Row = Sequence[Any]


@dataclass(frozen=True)
class Order:
    """The ORDER BY keys as positions of output columns, and the LIMIT.

    A key that is not put out is left away: what is left is still in order, and ties only grow.
    """

    keys: tuple[int, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Rounded:
    """A number that is right up to one `unit`: a decimal, where the other engine has a float."""

    value: float
    unit: float


UNORDERED = Order()


def assert_same_rows(expected: Sequence[Row], actual: Sequence[Row], order: Order = UNORDERED) -> None:
    found = difference(expected, actual, order)
    if found is not None:
        raise AssertionError(found)


def difference(expected: Sequence[Row], actual: Sequence[Row], order: Order = UNORDERED) -> str | None:
    """None if these are the same rows, else the first difference in words."""
    wanted, got = [Flat.of(row) for row in expected], [Flat.of(row) for row in actual]
    if len(wanted) != len(got):
        return f"{len(wanted)} rows expected, {len(got)} came. " + told(*unpaired(wanted, got))
    wanted_keys = [Flat.of([row[key] for key in order.keys]) for row in expected]
    got_keys = [Flat.of([row[key] for key in order.keys]) for row in actual]
    for position, (wanted_key, got_key) in enumerate(zip(wanted_keys, got_keys, strict=True)):
        if not wanted_key.is_like(got_key):
            return (
                f"row {position} in order should be like {expected[position]!r}, but is {actual[position]!r}"
            )
    for start, end in ties(wanted_keys):
        cut_off = end == order.limit
        lost, extra = unpaired(wanted[start:end], got[start:end])
        if (lost or extra) and not cut_off:
            return f"rows {start} to {end - 1} differ. " + told(lost, extra)
    return None


@dataclass(frozen=True)
class Flat:
    """A row as its exact part, which can be hashed, and its finite floats."""

    row: Row = field(compare=False)
    exact: tuple[Any, ...]
    floats: tuple[Rounded, ...]

    @staticmethod
    def of(row: Row) -> "Flat":
        floats: list[Rounded] = []
        return Flat(row, tuple(exact_part(value, floats) for value in row), tuple(floats))

    def is_like(self, other: "Flat") -> bool:
        return self.exact == other.exact and all(
            abs(mine.value - others.value) <= tolerance(mine, others)
            for mine, others in zip(self.floats, other.floats, strict=True)
        )


def exact_part(value: Any, floats: list[Rounded]) -> tuple[Any, ...]:
    """The value without its finite floats, which go to `floats`; every type is told from every other."""
    match value:
        case None | bool() | int() | str() | Decimal() | date() | time() | timedelta():
            return (type(value).__name__, value)
        case float() if not math.isfinite(value):
            return ("float", repr(value))
        case float():
            floats.append(Rounded(value, 0.0))
            return ("float",)
        case Rounded():
            floats.append(value)
            return ("float",)
        case bytes() | bytearray():
            return ("bytes", bytes(value))
        case list():
            return ("list", *(exact_part(element, floats) for element in value))
        case tuple():
            return ("struct", *(exact_part(element, floats) for element in value))
        case dict():
            entries = sorted(value.items(), key=lambda entry: repr(entry[0]))
            return ("map", *(exact_part(part, floats) for entry in entries for part in entry))
        case _:
            raise TypeError(f"cannot compare values of type {type(value).__name__}: {value!r}")


def tolerance(one: Rounded, other: Rounded) -> float:
    return max(RELATIVE_TOLERANCE * max(abs(one.value), abs(other.value)), one.unit, other.unit)


def ties(keys: Sequence[Flat]) -> Iterator[tuple[int, int]]:
    """The runs of neighbours with equal keys."""
    start = 0
    for position in range(1, len(keys) + 1):
        if position == len(keys) or not keys[position - 1].is_like(keys[position]):
            yield start, position
            start = position


def unpaired(wanted: Sequence[Flat], got: Sequence[Flat]) -> tuple[list[Row], list[Row]]:
    """The rows of either side that have no partner on the other."""
    groups: dict[tuple[Any, ...], tuple[list[Flat], list[Flat]]] = defaultdict(lambda: ([], []))
    for row in wanted:
        groups[row.exact][0].append(row)
    for row in got:
        groups[row.exact][1].append(row)
    lost: list[Row] = []
    extra: list[Row] = []
    for left, right in groups.values():
        lost_flats, extra_flats = unpaired_floats(left, right)
        lost += [flat.row for flat in lost_flats]
        extra += [flat.row for flat in extra_flats]
    return lost, extra


def unpaired_floats(left: list[Flat], right: list[Flat]) -> tuple[list[Flat], list[Flat]]:
    """The same for rows that differ in their floats only.

    Identical rows go first; the others take the first free row that is like them, from low to high. That
    could miss a pairing only in a chain of rows each within the tolerance of the next, and a miss is a false
    alarm, never a pass.
    """
    if not left or not right or not left[0].floats:
        return left[len(right) :], right[len(left) :]
    identical = Counter(left) & Counter(right)
    left, right = (
        sorted(without(left, identical), key=first_float),
        sorted(without(right, identical), key=first_float),
    )
    unit = max((flat.floats[0].unit for flat in right), default=0.0)
    free = dict.fromkeys(range(len(right)), True)
    lost = []
    for flat in left:
        slack = tolerance(flat.floats[0], Rounded(flat.floats[0].value, unit)) * 2
        start = bisect_left(right, first_float(flat) - slack, key=first_float)
        end = bisect_right(right, first_float(flat) + slack, key=first_float)
        partner = next(
            (index for index in range(start, end) if free[index] and flat.is_like(right[index])), None
        )
        if partner is None:
            lost.append(flat)
        else:
            free[partner] = False
    return lost, [flat for index, flat in enumerate(right) if free[index]]


def without(rows: list[Flat], taken_out: Counter[Flat]) -> list[Flat]:
    return list((Counter(rows) - taken_out).elements())


def first_float(flat: Flat) -> float:
    return flat.floats[0].value


def told(lost: Sequence[Row], extra: Sequence[Row]) -> str:
    return f"{listed('Lost', lost)}; {listed('extra', extra)}"


def listed(what: str, rows: Sequence[Row]) -> str:
    shown = ", ".join(repr(tuple(row)) for row in rows[:ROWS_SHOWN])
    return f"{what} {len(rows)}: {shown}" + (", ..." if len(rows) > ROWS_SHOWN else "")
