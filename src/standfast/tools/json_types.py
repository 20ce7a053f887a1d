"""Which types of values have a JSON form at all."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import msgspec.inspect

_JSON: Final = (str, int, float, bool, list, tuple, dict, set, frozenset, enum.Enum, type(None))
_BINARY: Final = (
    msgspec.inspect.BytesType,
    msgspec.inspect.ByteArrayType,
    msgspec.inspect.MemoryViewType,
    msgspec.inspect.ExtType,
    msgspec.inspect.RawType,
)


def type_without_json(type_: Any) -> str | None:
    """Name the first type within *type_* none of whose values is JSON; None if there is no such type.

    A type that msgspec cannot read is left alone: it may stand for values that are JSON.
    """
    try:
        info = msgspec.inspect.type_info(type_)
    except TypeError:
        return None
    return next(filter(None, map(_refused, _nodes(info, set()))), None)


def _refused(node: msgspec.inspect.Type) -> str | None:
    if isinstance(node, _BINARY):
        return type(node).__name__.removesuffix("Type").lower()
    if isinstance(node, msgspec.inspect.CustomType):
        return None if _may_be_json(node.cls) else node.cls.__name__
    return None


def _may_be_json(cls: type) -> bool:
    """Whether a value of *cls* may be JSON: it derives from a type of JSON, or a type of JSON from it."""
    if hasattr(cls, "model_dump"):  # a pydantic model
        return True
    try:
        return issubclass(cls, _JSON) or any(issubclass(one, cls) for one in _JSON)
    except TypeError:  # a protocol that cannot be asked
        return True


def _nodes(value: Any, seen: set[int]) -> Iterator[msgspec.inspect.Type]:
    """Walk a type and everything in it, fields of classes included; classes may refer to themselves."""
    if isinstance(value, tuple):
        for one in value:
            yield from _nodes(one, seen)
    elif isinstance(value, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, msgspec.inspect.Type):
            yield value
        for name in value.__struct_fields__:
            yield from _nodes(getattr(value, name), seen)
