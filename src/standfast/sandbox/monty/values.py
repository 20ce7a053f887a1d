"""Values that come out of the engine, as JSON or as a reason why not.

The engine hands functions, ranges, modules and cycles over as their text, indistinguishable from a string.
Where some text could be such a stand-in, the engine's dump is asked (`dump.stand_ins`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import Any, Final

from standfast.errors import ErrorObject, InvalidArgument, ValueTooLarge
from standfast.model.bounds import MAX_VALUE_BYTES
from standfast.model.canonical import Json, to_json
from standfast.sandbox.run_errors import not_serializable, result_too_large

_STAND_IN = re.compile(r"<.*>|[\w.]{1,200}\(.*\)|\[\.\.\.\]|\{\.\.\.\}|\(\.\.\.\)|\.\.\.", re.S)

TYPE_NAME: Final = re.compile(r"<([\w.]+)|([\w.]+)\(")


def json_of(value: object) -> tuple[Json, ErrorObject | None]:
    """The value as JSON, or why it is not."""
    try:
        clean, size = to_json(value)
    except ValueTooLarge as error:
        return None, result_too_large(error.limit)
    except InvalidArgument:
        return None, not_serializable(first_foreign(value))
    if size > MAX_VALUE_BYTES:
        return None, result_too_large(f"it is {size} bytes as JSON, the limit is {MAX_VALUE_BYTES}")
    return clean, None


def type_of_stand_in(text: str) -> str:
    """The name of the type that the text of a value tells."""
    if text == "<deeply nested>":
        return "a value nested too deeply"
    if text.startswith("<class "):
        return "type"
    if text.startswith("re.compile("):
        return "Pattern"
    found = TYPE_NAME.match(text)
    return (found[1] or found[2]) if found else "object"


def may_hold_stand_ins(value: Json, function_names: Container[str]) -> bool:
    """Whether some text in *value* could stand for something that is not text."""
    return any(text in function_names or _STAND_IN.fullmatch(text) for text in _texts(value))


def _texts(value: Json) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())


def first_foreign(value: object) -> str:
    """The type name of the first part that JSON has no place for."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            return f"float {item}"
        if item is None or isinstance(item, (bool, int, float, str)):
            continue
        if isinstance(item, (list, tuple)) and type(item) in (list, tuple):
            pending.extend(reversed(item))
        elif isinstance(item, dict):
            foreign = [key for key in item if not isinstance(key, (str, int, float, bool, type(None)))]
            if foreign:
                return f"dict with {type(foreign[0]).__name__} keys"
            pending.extend(item.values())
        else:
            return _name_of(item)
    return "a value nested too deeply"


def _name_of(item: object) -> str:
    if type(item).__name__ == "MontyClassProxy":
        return str(getattr(item, "name", "object"))
    if type(item).__name__ == "MontyStdTypeProxy":
        return str(getattr(item, "kind", "type"))
    return type(item).__name__
