"""The next driver answers for an action that it does not run: what it gives to the program must be what the
program was given before, to the last bit and with the same types, or it must give nothing.

So a value becomes msgpack, which has the plain types, and extensions for the others. What is not known
exactly is not kept: a subclass, a NumPy number, a time zone of another library. Nothing is pickled, and
reading runs no code that the bytes name; bytes that `pack` cannot have written are a ValueError. Two
references to one list become two lists.

An extension is either a whole value (`_WHOLES`), or without content the mark at the head of an array that
says what the items after it make (`_MADE_OF_ITEMS`). So reading needs no recursion of its own.
"""

import datetime
import decimal
import hashlib
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import msgpack

DEPTH = 100
"""How deep values may be nested, and an end for those that contain themselves."""

UNICODE_ERRORS = "surrogatepass"  # a text of Python may hold halves of surrogate pairs

SHA256_BYTES = hashlib.sha256().digest_size


class NotKept(Exception):  # noqa: N818 - named for what happened
    """There is no way to keep this value; `str()` says why."""


class _Code(IntEnum):
    """Of the extensions. Stored journals have them: none is ever given another meaning."""

    LARGE_INT = 1
    BYTEARRAY = 2
    DECIMAL = 3
    BATCHES = 4

    TUPLE = 16
    DICT = 17
    ROW = 18
    ROW_WITH_FIELDS = 19
    VARIANT = 20
    DATE = 21
    TIME = 22
    DATETIME = 23
    TIMEDELTA = 24
    TIMEZONE = 25
    ZONEINFO = 26


class _Mark:
    """What an extension without content is read as, until the array that it heads is complete."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


def pack(value: object) -> bytes:
    try:
        packed: bytes = msgpack.packb(_plain(value, 0), strict_types=True, unicode_errors=UNICODE_ERRORS)
    except (ValueError, OverflowError, RecursionError) as error:  # four gigabytes in one piece, say
        raise NotKept(f"msgpack cannot hold the value: {error}") from error
    return packed


def unpack(data: bytes) -> object:
    try:
        _check_lengths(data)
        value = msgpack.unpackb(
            data,
            ext_hook=_read_extension,
            list_hook=_read_array,
            object_pairs_hook=_refuse_map,
            strict_map_key=False,
            unicode_errors=UNICODE_ERRORS,
        )
        _check_no_marks([value])
    except MemoryError:
        raise  # says nothing about the bytes
    except Exception as error:  # bytes that nobody has written may make any constructor fail in its own way
        raise ValueError(f"not a packed value: {str(error) or type(error).__name__}") from error
    return value


# Writing


def _plain(value: Any, depth: int) -> Any:
    """The value in what msgpack has, extensions included."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    write = _WRITERS.get(kind) or _FOREIGN_WRITERS.get(_address(kind))
    if write is None:
        raise NotKept(f"values of type {kind.__module__}.{kind.__qualname__} are not kept")
    if depth > DEPTH:
        raise NotKept(f"the value is nested more than {DEPTH} deep")
    return write(value, depth + 1)


def _address(kind: type) -> str | None:
    """The full name of a class, if this is what is found by it. Whoever has a value of a class has imported
    it, and nobody else need to.
    """
    there = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    return f"{kind.__module__}.{kind.__qualname__}" if there is kind else None


def _marked(code: _Code, items: Iterable[Any], depth: int) -> list[Any]:
    return [_HEADS[code], *(_plain(item, depth) for item in items)]


def _write_int(value: int, depth: int) -> Any:
    if -(2**63) <= value < 2**64:
        return value
    size_bytes = value.bit_length() // 8 + 1
    return msgpack.ExtType(_Code.LARGE_INT, value.to_bytes(size_bytes, "big", signed=True))


def _write_list(items: list[Any], depth: int) -> Any:
    if items and all(_address(type(item)) == "pyarrow.lib.RecordBatch" for item in items):
        return _write_batches(items)
    return [_plain(item, depth) for item in items]


def _write_dict(items: dict[Any, Any], depth: int) -> Any:
    return _marked(_Code.DICT, (part for item in items.items() for part in item), depth)


def _write_time(time: datetime.time, depth: int) -> Any:
    parts = (time.hour, time.minute, time.second, time.microsecond, time.tzinfo, time.fold)
    return _marked(_Code.TIME, parts, depth)


def _write_datetime(at: datetime.datetime, depth: int) -> Any:
    parts = (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, at.tzinfo, at.fold)
    return _marked(_Code.DATETIME, parts, depth)


def _write_zoneinfo(zone: ZoneInfo, depth: int) -> Any:
    # One that was read from a file, or past the cache, is not equal to the one that its key gives.
    try:
        is_the_one = ZoneInfo(zone.key) is zone
    except (TypeError, ValueError, KeyError, OSError):
        is_the_one = False
    if not is_the_one:
        raise NotKept(f"the time zone {zone.key} is not the one of that name")
    return _marked(_Code.ZONEINFO, (zone.key,), depth)


def _write_row(row: Any, depth: int) -> Any:
    facts = vars(row)
    if not facts:
        return _marked(_Code.ROW, row, depth)
    if facts.keys() != {"__fields__"}:
        raise NotKept("a Row has attributes beside its fields")
    return _marked(_Code.ROW_WITH_FIELDS, (facts["__fields__"], *row), depth)


def _write_variant(variant: Any, depth: int) -> Any:
    if vars(variant).keys() != {"value", "metadata"}:
        raise NotKept("a VariantVal has other attributes than its value and metadata")
    return _marked(_Code.VARIANT, (variant.value, variant.metadata), depth)


def _write_batches(batches: list[Any]) -> Any:
    import pyarrow.ipc

    schema = batches[0].schema
    if not all(batch.schema.equals(schema, check_metadata=True) for batch in batches):
        raise NotKept("the record batches have different schemas")
    sink = pyarrow.BufferOutputStream()
    try:
        with pyarrow.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pyarrow.ArrowException as error:
        raise NotKept(f"Arrow cannot write the record batches: {error}") from error
    stream = sink.getvalue().to_pybytes()
    return msgpack.ExtType(_Code.BATCHES, hashlib.sha256(stream).digest() + stream)


_PLAIN = frozenset({type(None), bool, float, str, bytes})

_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    int: _write_int,
    list: _write_list,
    dict: _write_dict,
    tuple: lambda items, depth: _marked(_Code.TUPLE, items, depth),
    bytearray: lambda value, depth: msgpack.ExtType(_Code.BYTEARRAY, bytes(value)),
    decimal.Decimal: lambda value, depth: msgpack.ExtType(_Code.DECIMAL, str(value).encode()),
    datetime.date: lambda day, depth: _marked(_Code.DATE, (day.year, day.month, day.day), depth),
    datetime.time: _write_time,
    datetime.datetime: _write_datetime,
    datetime.timedelta: lambda span, depth: _marked(
        _Code.TIMEDELTA, (span.days, span.seconds, span.microseconds), depth
    ),
    datetime.timezone: lambda zone, depth: _marked(_Code.TIMEZONE, zone.__getinitargs__(), depth),
    ZoneInfo: _write_zoneinfo,
}

_FOREIGN_WRITERS: dict[str | None, Callable[[Any, int], Any]] = {
    "pyspark.sql.types.Row": _write_row,
    "pyspark.sql.types.VariantVal": _write_variant,
}

_HEADS = {code: msgpack.ExtType(code, b"") for code in _Code}


# Reading


def _check_lengths(data: bytes) -> None:
    """msgpack gives an array its memory before it has its items: what is announced must all be there."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.skip()


def _read_extension(code: int, data: bytes) -> Any:
    if code in _WHOLES:
        return _WHOLES[code](data)
    if code not in _MADE_OF_ITEMS or data:
        raise ValueError(f"an extension {code} of {len(data)} bytes")
    return _MADE_OF_ITEMS[code]


def _read_array(items: list[Any]) -> Any:
    if not items or type(items[0]) is not _Mark:
        _check_no_marks(items)
        return items
    mark, *parts = items
    _check_no_marks(parts)
    return mark.make(*parts)


def _check_no_marks(values: list[Any]) -> None:
    if not _NO_VALUES.isdisjoint(map(type, values)):
        raise ValueError("there is a mark, or a timestamp of msgpack, where a value belongs")


def _refuse_map(pairs: Any) -> Any:
    raise ValueError("there is a map of msgpack")


def _make_decimal(data: bytes) -> decimal.Decimal:
    # The program may have told its own context that any text is a number.
    return decimal.Decimal(data.decode("ascii"), decimal.Context(traps=[decimal.InvalidOperation]))


def _make_tuple(*items: Any) -> tuple[Any, ...]:
    return items


def _make_dict(*parts: Any) -> dict[Any, Any]:
    made = dict(zip(parts[::2], parts[1::2], strict=True))
    if 2 * len(made) != len(parts):
        raise ValueError("a key is there twice")
    return made


# Of these the constructors would take less, or what pickle gives them.


def _make_date(year: Any, month: Any, day: Any) -> datetime.date:
    return datetime.date(year, month, day)


def _make_time(hour: Any, minute: Any, second: Any, micros: Any, zone: Any, fold: Any) -> datetime.time:
    return datetime.time(hour, minute, second, micros, zone, fold=fold)


def _make_datetime(year: Any, month: Any, day: Any, hour: Any, *time: Any) -> datetime.datetime:
    minute, second, micros, zone, fold = time
    return datetime.datetime(year, month, day, hour, minute, second, micros, zone, fold=fold)


def _make_timedelta(days: Any, seconds: Any, micros: Any) -> datetime.timedelta:
    return datetime.timedelta(days, seconds, micros)


def _make_row(*values: Any) -> Any:
    from pyspark.sql.types import Row

    return Row(*values)


def _make_row_with_fields(fields: Any, *values: Any) -> Any:
    from pyspark.sql.types import Row

    row = Row(*values)
    row.__fields__ = fields
    return row


def _make_variant(value: Any, metadata: Any) -> Any:
    from pyspark.sql.types import VariantVal

    return VariantVal(value, metadata)


def _make_batches(data: bytes) -> Any:
    import pyarrow.ipc

    # Arrow trusts the lengths and offsets that it finds, so they must be those that Arrow wrote.
    digest, stream = data[:SHA256_BYTES], data[SHA256_BYTES:]
    if hashlib.sha256(stream).digest() != digest:
        raise ValueError("the checksum of record batches is wrong")
    with pyarrow.ipc.open_stream(stream) as reader:
        return list(reader)


_WHOLES: dict[int, Callable[[bytes], Any]] = {
    _Code.LARGE_INT: lambda data: int.from_bytes(data, "big", signed=True),
    _Code.BYTEARRAY: bytearray,
    _Code.DECIMAL: _make_decimal,
    _Code.BATCHES: _make_batches,
}

_MADE_OF_ITEMS: dict[int, _Mark] = {
    _Code.TUPLE: _Mark(_make_tuple),
    _Code.DICT: _Mark(_make_dict),
    _Code.ROW: _Mark(_make_row),
    _Code.ROW_WITH_FIELDS: _Mark(_make_row_with_fields),
    _Code.VARIANT: _Mark(_make_variant),
    _Code.DATE: _Mark(_make_date),
    _Code.TIME: _Mark(_make_time),
    _Code.DATETIME: _Mark(_make_datetime),
    _Code.TIMEDELTA: _Mark(_make_timedelta),
    _Code.TIMEZONE: _Mark(datetime.timezone),
    _Code.ZONEINFO: _Mark(ZoneInfo),
}

_NO_VALUES = frozenset({_Mark, msgpack.Timestamp})
