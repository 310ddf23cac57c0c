"""What crosses a process border arrives untyped: JSON from the JVM, msgpack from the store.

A missing field, a number where a name belongs or a field of tomorrow's version must stop at the border,
with the place named, and not surface as a strange decision later. Here a frozen dataclass becomes a plain
value and a plain value that dataclass again. The dataclass is the schema: its fields are the keys, its
hints are checked.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


class RecordError(ValueError):
    """The value does not have the shape of the record; the message begins with the place."""


def to_plain(value: Any) -> Any:
    """The value in maps, lists, strings, numbers and bytes only, ready for msgpack (without bytes: for
    JSON).
    """
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def from_plain(record: type[Record], plain: Any, where: str) -> Record:
    """`plain` as a `record`; `where` names the whole in messages ("snapshot", "manifest")."""
    result: Record = _read(record, plain, where)
    return result


def _read(hint: Any, plain: Any, where: str) -> Any:
    origin = get_origin(hint)
    if _is_optional(hint):
        return _read_optional(hint, plain, where)
    if origin is tuple:
        items = _expect(list, plain, where)
        return tuple(_read(get_args(hint)[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin is Mapping:
        return _read_mapping(hint, plain, where)
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, plain, where)
    if issubclass(hint, Enum):
        return _read_enum(hint, plain, where)
    if hint is float and type(plain) is int:
        return float(plain)
    return _expect(hint, plain, where)


def _expect(kind: type, plain: Any, where: str) -> Any:
    # Exact types: isinstance would take True for the number 1.
    if type(plain) is not kind:
        raise RecordError(f"{where}: expected {kind.__name__}, found {type(plain).__name__}")
    return plain


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _read_optional(hint: Any, plain: Any, where: str) -> Any:
    (present,) = (option for option in get_args(hint) if option is not types.NoneType)
    return None if plain is None else _read(present, plain, where)


def _read_mapping(hint: Any, plain: Any, where: str) -> dict[str, Any]:
    of_key, of_value = get_args(hint)
    items = _expect(dict, plain, where).items()
    return {
        _expect(of_key, key, f"{where}: key"): _read(of_value, value, f"{where}.{key}")
        for key, value in items
    }


def _read_enum(hint: type[Enum], plain: Any, where: str) -> Enum:
    try:
        return hint(plain)
    except ValueError:
        known = ", ".join(str(member.value) for member in hint)
        raise RecordError(f"{where}: {plain!r} is none of {known}") from None


def _read_dataclass(hint: Any, plain: Any, where: str) -> Any:
    hints = _hints(hint)
    items = _expect(dict, plain, where)
    if missing := sorted(name for name in hints.keys() - items.keys() if not _is_optional(hints[name])):
        raise RecordError(f"{where}: missing {', '.join(missing)}")
    if unknown := sorted(map(str, items.keys() - hints.keys())):
        raise RecordError(f"{where}: unknown {', '.join(unknown)}")
    # The JVM's JSON writer leaves out what is null.
    return hint(**{name: _read(of, items.get(name), f"{where}.{name}") for name, of in hints.items()})


@cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)
