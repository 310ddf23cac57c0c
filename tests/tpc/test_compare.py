"""The comparison decides what counts as a wrong row, so it must be able to say no."""

import datetime
import random
from decimal import Decimal
from typing import Any

import pytest

from tests.tpc.compare import Order, Rounded, Row, assert_same_rows, difference

ROWS: list[Row] = [
    (1, "a", 1.5, Decimal("2.50"), datetime.date(2024, 2, 29), None),
    (2, "b", -0.25, Decimal("2.50"), datetime.datetime(2024, 2, 29, 12), True),
    (2, "b", -0.25, Decimal("2.50"), datetime.datetime(2024, 2, 29, 12), True),
    (3, None, float("nan"), None, datetime.timedelta(days=1), False),
    (4, "c", float("inf"), Decimal(0), [1.0, (2, {"k": 3.5}), None], bytearray(b"xy")),
]


def changed(position: int, column: int, value: Any) -> list[Row]:
    rows = list(ROWS)
    rows[position] = (*rows[position][:column], value, *rows[position][column + 1 :])
    return rows


def test_rows_without_an_order_may_come_in_any() -> None:
    for seed in range(20):
        assert_same_rows(ROWS, random.Random(seed).sample(ROWS, len(ROWS)))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([*ROWS, ROWS[0]], id="one doubled"),
        pytest.param(ROWS[:-1], id="one lost"),
        pytest.param([*ROWS[1:], ROWS[1]], id="one lost and another doubled"),
        pytest.param(changed(0, 0, 2), id="another integer"),
        pytest.param(changed(0, 0, 1.0), id="a float for an integer"),
        pytest.param(changed(0, 0, True), id="a boolean for an integer"),
        pytest.param(changed(0, 0, Decimal(1)), id="a decimal for an integer"),
        pytest.param(changed(0, 1, "a "), id="a trailing space"),
        pytest.param(changed(0, 2, 1.500000003), id="a float two billionths away"),
        pytest.param(changed(3, 2, None), id="null for NaN"),
        pytest.param(changed(3, 2, 0.0), id="zero for NaN"),
        pytest.param(changed(4, 2, float("-inf")), id="the other infinity"),
        pytest.param(changed(0, 3, Decimal("2.51")), id="another decimal"),
        pytest.param(changed(0, 4, datetime.datetime(2024, 2, 29)), id="a timestamp for a date"),
        pytest.param(changed(0, 5, 0), id="zero for null"),
        pytest.param(changed(4, 4, [1.0, (2, {"k": 3.6}), None]), id="another float deep inside"),
        pytest.param(changed(4, 4, [1.0, None, (2, {"k": 3.5})]), id="an array in another order"),
        pytest.param(changed(4, 5, b"xz"), id="another byte"),
    ],
)
def test_a_difference_is_found(wrong: list[Row]) -> None:
    assert difference(ROWS, wrong)
    assert difference(wrong, ROWS)


def test_the_last_digits_of_floats_are_free_in_any_order() -> None:
    expected = [("g", 0.1 + 0.2, float(i), 1.0) for i in range(50)]
    actual = [("g", 0.3, i * (1 + 1e-12), 1.0) for i in reversed(range(50))]
    assert_same_rows(expected, actual)
    assert difference(expected, [*actual[:-1], ("g", 0.3, 49.0, 1.0)])


def test_floats_as_close_as_the_tolerance_are_paired_one_to_one() -> None:
    near = [(1.0, 5.0), (1.0 + 1e-12, 6.0), (1.0 + 2e-12, 7.0)]
    assert_same_rows(near, [(1.0, 7.0), (1.0, 5.0), (1.0, 6.0)])
    assert difference(near, [(1.0, 7.0), (1.0, 5.0), (1.0, 5.0)])


def test_ordered_rows_must_come_in_order() -> None:
    rows = [(1, "x"), (2, "y"), (3, "z")]
    assert_same_rows(rows, rows, Order(keys=(0,)))
    assert difference(rows, [rows[1], rows[0], rows[2]], Order(keys=(0,)))


def test_rows_that_tie_under_the_keys_may_change_places() -> None:
    rows = [(1, "x"), (1, "y"), (2, "z")]
    swapped = [(1, "y"), (1, "x"), (2, "z")]
    assert_same_rows(rows, swapped, Order(keys=(0,)))
    assert difference(rows, swapped, Order(keys=(0, 1)))
    assert difference(rows, [(1, "x"), (1, "x"), (2, "z")], Order(keys=(0,)))


def test_a_float_key_ties_with_its_neighbour_within_the_tolerance() -> None:
    rows = [(1.0, "x"), (1.0 + 1e-15, "y"), (2.0, "z")]
    assert_same_rows(rows, [(1.0, "y"), (1.0, "x"), (2.0, "z")], Order(keys=(0,)))


def test_a_limit_may_cut_other_rows_off_a_tie_but_only_there() -> None:
    rows = [(1, "x"), (2, "y"), (2, "z")]
    assert_same_rows(rows, [(1, "x"), (2, "y"), (2, "q")], Order(keys=(0,), limit=3))
    assert difference(rows, [(1, "q"), (2, "y"), (2, "z")], Order(keys=(0,), limit=3))
    assert difference(rows, [(1, "x"), (2, "y"), (3, "z")], Order(keys=(0,), limit=3))
    assert difference(rows, [(1, "x"), (2, "y"), (2, "q")], Order(keys=(0,), limit=4)), "nothing was cut off"


def test_a_rounded_decimal_is_like_the_float_within_one_unit() -> None:
    assert_same_rows([(0.3333333333,)], [(Rounded(0.333333, 1e-6),)])
    assert difference([(0.3333533333,)], [(Rounded(0.333333, 1e-6),)])


def test_the_message_shows_what_is_lost_and_what_is_extra() -> None:
    found = difference([(1, "x"), (2, "y")], [(1, "x"), (3, "y")])
    assert found == "rows 0 to 1 differ. Lost 1: (2, 'y'); extra 1: (3, 'y')"


def test_a_type_that_it_does_not_know_is_no_match() -> None:
    with pytest.raises(TypeError, match="object"):
        difference([(object(),)], [(object(),)])
