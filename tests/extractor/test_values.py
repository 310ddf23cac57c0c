import datetime
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict, namedtuple
from contextlib import suppress
from decimal import Decimal, InvalidOperation, localcontext
from enum import IntEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import Row, VariantVal

from godwit.extractor.values import DEPTH, NotKept, pack, unpack


def row_with_fields(fields: Any, values: tuple[Any, ...]) -> Row:
    made = Row(*values)
    made.__fields__ = fields
    return made


texts = st.text(st.characters(exclude_categories=()), max_size=5)  # with halves of surrogate pairs
zones = st.one_of(
    st.none(),
    st.builds(datetime.timezone, st.timedeltas(-datetime.timedelta(hours=23), datetime.timedelta(hours=23))),
    st.builds(datetime.timezone, st.just(datetime.timedelta(hours=1)), st.text("äb ", max_size=3)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]).map(ZoneInfo),
)
folds = st.sampled_from([0, 1])
numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats() | st.decimals(allow_nan=False)
moments = st.one_of(
    st.dates(),
    st.timedeltas(),
    st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, folds),
    st.builds(lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.times(), zones, folds),
)
keys = st.none() | st.booleans() | numbers | texts | st.binary(max_size=5) | moments
variants = st.builds(VariantVal, st.binary(max_size=5), st.binary(max_size=5))
leaves = keys | st.decimals() | st.binary(max_size=5).map(bytearray) | variants


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=4)
    names = st.lists(st.sampled_from(["a", "b", "a b"]), max_size=4)
    return st.one_of(
        some,
        some.map(tuple),
        some.map(lambda values: Row(*values)),
        st.builds(row_with_fields, names, some.map(tuple)),
        st.builds(row_with_fields, names.map(tuple), some.map(tuple)),
        st.builds(row_with_fields, names.map(lambda each: Row(*each)), some.map(tuple)),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=3).map(lambda each: Row(**each)),
        st.dictionaries(keys | st.tuples(keys, keys), inner, max_size=3),
    )


values = st.recursive(leaves, nested, max_leaves=12)


def facts(value: Any) -> Any:
    """Everything that tells two values apart, where `==` does not."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind in (datetime.datetime, datetime.time):
        return kind, value.replace(tzinfo=None, fold=0), value.fold, facts(value.tzinfo)
    if kind is datetime.timezone:
        return kind, value.__getinitargs__()
    if kind is ZoneInfo:
        return kind, id(value)
    if kind is dict:
        return kind, [(facts(key), facts(item)) for key, item in value.items()]
    if kind in (list, tuple):
        return kind, [facts(item) for item in value]
    if kind is Row:
        return kind, [facts(item) for item in value], facts(vars(value))
    if kind is VariantVal:
        return kind, facts(vars(value))
    return kind, value


def kept(value: Any) -> Any:
    return unpack(pack(value))


def refused(data: bytes) -> str:
    with pytest.raises(ValueError, match=r"not a packed value: .") as caught:
        unpack(data)
    return str(caught.value)


@settings(deadline=None)
@given(values)
def test_whatever_is_packed_comes_back_exactly(value: Any) -> None:
    assert facts(kept(value)) == facts(value)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, 1, -1),
        *(2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**4000, -(10**4000)),
        *(0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324),
        *("", "ä", "\ud83d", "\ud83d\ude00", "\U0001f600", b"", b"\xff", bytearray(), bytearray(b"x")),
        *map(Decimal, ["0", "-0", "0E+3", "0E-10", "1.10", "1E+5", "-1E-999999"]),
        *map(Decimal, ["NaN", "-sNaN12", "Infinity", "-Infinity"]),
        *(datetime.date.min, datetime.date.max, datetime.timedelta.min, datetime.timedelta.max),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1),
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(-datetime.timedelta(microseconds=1), "a bit")),
        datetime.time(23, 59, 59, 999999, tzinfo=datetime.UTC, fold=1),
        *([], (), {}, [[]], [()], {(): []}, {1: 2, "1": 3, None: 4, b"1": 5}),
        *(Row(), Row("a", "b"), Row("a", "b")(1, 2), Row(a=1, b=Row(c=[Row(d=None)]))),
        *(Row("a", "a")(1, 2), row_with_fields([], ()), row_with_fields(["a"], ())),
        [VariantVal(b"\x0c\x01", b"\x01\x00\x00")],
    ],
)
def test_values_at_the_edges_come_back_exactly(value: Any) -> None:
    assert facts(kept(value)) == facts(value)


def test_a_row_is_used_like_the_one_that_was_packed() -> None:
    row = kept(Row(name="a", inner=Row(x=1)))
    assert row == Row(name="a", inner=Row(x=1))
    assert (row.name, row.inner.x, row.asDict(recursive=True)) == ("a", 1, {"name": "a", "inner": {"x": 1}})
    person = kept(Row("name", "age"))
    assert person("a", 1).age == 1


def test_the_order_of_a_dictionary_is_kept() -> None:
    assert list(kept({"b": 1, "a": 2, 3: 3})) == ["b", "a", 3]


def test_utc_stays_the_one_utc() -> None:
    assert kept(datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)).tzinfo is datetime.UTC


# Record batches


def batch(**metadata: str) -> pyarrow.RecordBatch:
    fields = [pyarrow.field("a", pyarrow.int64(), nullable=False), pyarrow.field("b", pyarrow.string())]
    schema = pyarrow.schema(fields, metadata=metadata or None)
    return pyarrow.record_batch([pyarrow.array([1, 2, 3]), pyarrow.array(["x", None, "ä"])], schema=schema)


def test_record_batches_come_back_with_their_schema() -> None:
    batches = [batch(made="by a test"), batch(made="by a test").slice(1, 1)]
    found = kept(batches)
    assert type(found) is list
    assert found == batches
    assert [len(each) for each in found] == [3, 1]
    assert all(each.schema.equals(batches[0].schema, check_metadata=True) for each in found)


def test_a_list_that_has_more_than_record_batches_is_a_list_and_a_batch_alone_is_not_kept() -> None:
    assert kept([]) == []
    for value in (batch(), [batch(), None], (batch(),), {"a": batch()}):
        with pytest.raises(NotKept, match="RecordBatch"):
            pack(value)
    assert kept([[batch()], 1]) == [[batch()], 1]


def test_record_batches_of_different_schemas_are_not_kept() -> None:
    with pytest.raises(NotKept, match="different schemas"):
        pack([batch(), batch(made="otherwise")])


# What is not kept


class Number(IntEnum):
    ONE = 1


class Text(str): ...


class Day(datetime.datetime): ...


class Zone(datetime.tzinfo): ...


class OtherZone(ZoneInfo): ...


class OtherRow(Row): ...


Pair = namedtuple("Pair", "a b")


def zone_of_a_file(key: str | None) -> ZoneInfo:
    folder = Path("/usr/share/zoneinfo")
    if not folder.exists():
        pytest.skip("no time zones in files here")
    with (folder / "Europe" / "Berlin").open("rb") as file:
        return ZoneInfo.from_file(file, key=key)


@pytest.mark.parametrize(
    "value",
    [
        *(object(), int, len, {1}, frozenset(), range(3), 1j, iter(()), memoryview(b"")),
        *(Number.ONE, Text("a"), Pair(1, 2), OrderedDict(), OtherRow(1), Exception("a")),
        *(numpy.int64(1), numpy.float64(1), numpy.bool_(True), numpy.str_("a"), numpy.array([1])),
        *(Day(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=Zone()), datetime.time(tzinfo=Zone())),
        *(datetime.time(tzinfo=OtherZone("UTC")), datetime.time(tzinfo=ZoneInfo.no_cache("UTC"))),
        msgpack.ExtType(2, b""),
        msgpack.Timestamp(1),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "around", [lambda it: it, lambda it: [it], lambda it: Row(a=it), lambda it: {"a": (it,)}]
)
def test_what_is_not_known_exactly_is_not_kept(value: Any, around: Any) -> None:
    with pytest.raises(NotKept, match=r"not kept|not the one"):
        pack(around(value))


@pytest.mark.parametrize("key", [None, "Europe/Berlin", "No/Where", "../x"])
def test_a_time_zone_out_of_a_file_is_not_the_one_of_its_name(key: str | None) -> None:
    with pytest.raises(NotKept, match="is not the one of that name"):
        pack(datetime.time(tzinfo=zone_of_a_file(key)))


def test_a_class_that_has_only_the_name_of_a_known_one_is_not_kept() -> None:
    impostor = type("Row", (tuple,), {"__module__": "pyspark.sql.types"})
    with pytest.raises(NotKept, match=r"values of type pyspark\.sql\.types\.Row are not kept"):
        pack(impostor())


def test_a_row_or_a_variant_with_something_beside_is_not_kept() -> None:
    row = Row(a=1)
    vars(row)["note"] = 1
    variant = VariantVal(b"", b"")
    vars(variant)["note"] = 1
    for value in (row, variant):
        with pytest.raises(NotKept, match="attributes"):
            pack(value)


@pytest.mark.parametrize(
    "around", [lambda it: [it], lambda it: (it,), lambda it: {1: it}, lambda it: Row(a=it)]
)
def test_values_are_kept_to_a_depth_that_can_always_be_read(around: Any) -> None:
    value: Any = 0.5
    for _ in range(DEPTH):
        value = around(value)
    assert facts(kept(value)) == facts(value)
    for _ in range(2):
        value = around(value)
    with pytest.raises(NotKept, match=f"nested more than {DEPTH} deep"):
        pack(value)


def test_a_list_that_contains_itself_is_not_kept() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotKept, match="nested"):
        pack(endless)


# Bytes that nobody has written


def extension(code: int, data: bytes = b"") -> msgpack.ExtType:
    return msgpack.ExtType(code, data)


def packed(plain: Any) -> bytes:
    data: bytes = msgpack.packb(plain)
    return data


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xc1", b"\x01\x02", b"\x91", b"\xa1\xff", b"\xd9\x05abc"),
        *(packed({}), packed({"a": 1}), packed({1: 1}), b"\x81\x90\x01"),
        *(packed(msgpack.Timestamp(1)), packed([1, msgpack.Timestamp(1)])),
        *(packed(extension(99)), packed(extension(99, b"x")), packed([extension(5)])),
        *(packed(extension(16)), packed([1, extension(16)]), packed([extension(16), extension(16)])),
        *(packed([extension(16, b"x"), 1]), packed(extension(3, b"one")), packed(extension(3, b"\xff"))),
        *(packed([extension(17), 1]), packed([extension(17), [], 1]), packed([extension(17), 1, 2, 1, 3])),
        *(packed([extension(20)]), packed([extension(20), b""])),
        *(packed([extension(21), 2024, 13, 1]), packed([extension(21), "a", 1, 1]), packed([extension(21)])),
        *(packed([extension(22), 1]), packed([extension(23), 2024, 1, 1, 0, 0, 0, 0, "UTC", 0])),
        *(packed([extension(21), b"\x07\xe8\x01\x01"]), packed([extension(22), 1, 0])),
        *(packed([extension(24), 10**12, 0, 0]), packed([extension(24), float("inf"), 0, 0])),
        *(packed([extension(24), 1]), packed([extension(25), 1])),
        *(packed([extension(26), key]) for key in ("No/Where", "../../etc/passwd", "/etc/passwd", "a\0")),
        *(packed([extension(26), key]) for key in ("", 1, "Europe", "x" * 5000, ["UTC"])),
        *(packed(extension(4)), packed(extension(4, b"x" * 40))),
        b"\x91" * 2000 + b"\x01",
    ],
)
def test_what_pack_has_not_written_is_a_value_error(data: bytes) -> None:
    refused(data)


def test_arrow_never_sees_a_stream_that_was_changed() -> None:
    data = pack([batch()])
    for position in range(40, len(data), 7):
        spoilt = bytearray(data)
        spoilt[position] ^= 0x10
        refused(bytes(spoilt))


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        unpack(data)


@settings(deadline=None, max_examples=200)
@given(values, st.data())
def test_damaged_bytes_are_a_value_or_a_value_error(value: Any, data: st.DataObject) -> None:
    spoilt = bytearray(pack(value))
    position = data.draw(st.integers(0, len(spoilt) - 1))
    spoilt[position] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        unpack(bytes(spoilt))


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_bytes_that_are_cut_off_are_noticed(cut: int) -> None:
    data = pack([Row(a=1, b="some text"), Decimal("1.5")])
    assert refused(data[:-cut])


def test_lengths_that_are_not_there_take_no_memory() -> None:
    # Each of a thousand arrays, one within the other, announces as many items as there are bytes.
    size_bytes = 6_000
    heads = (b"\xdd" + size_bytes.to_bytes(4, "big")) * 1000
    data = heads + bytes(size_bytes - len(heads))
    tracemalloc.start()
    try:
        refused(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100 * size_bytes


def test_what_the_program_allows_in_its_decimals_changes_nothing() -> None:
    with localcontext() as context:
        context.traps[InvalidOperation] = False
        context.prec = 2
        context.capitals = 0
        assert kept(Decimal("1.23456E+10")).as_tuple() == Decimal("1.23456E+10").as_tuple()
        refused(packed(extension(3, b"no number")))


def test_neither_module_imports_pyspark_or_pyarrow_before_it_meets_a_value_of_theirs() -> None:
    program = (
        "import sys\n"
        "from godwit.extractor.values import pack, unpack\n"
        "unpack(pack([1, (2,), {3: None}]))\n"
        "print({'pyspark', 'pyarrow'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
