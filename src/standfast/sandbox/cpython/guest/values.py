"""Values between the host and the guest.

What the guest sends is plain JSON, or the name of the type that has no place in it. What it is given may hold
bytes and tuples as well: then it is *tagged*, as `[tag, ...]` lists all the way down (see `untag`).
"""

from __future__ import annotations

import base64
from typing import Any

from .wire import encode


class Foreign(Exception):
    """A value has no JSON form; the argument says what it holds."""


def to_json(value: object) -> str:
    """The value as JSON text."""
    try:
        text = encode(value)
        if not text.isascii():
            text.encode()
        return text
    except RecursionError:
        raise Foreign("a value nested too deeply") from None
    except UnicodeEncodeError:
        raise Foreign("text with a lone surrogate") from None
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):
            raise Foreign("a value that holds itself") from None
        raise Foreign(first_foreign(value)) from None


def first_foreign(value: object) -> str:
    """The type name of the first part that JSON has no place for. The value holds no cycle."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and item - item != 0:
            return f"float {item}"
        if isinstance(item, int) and item.bit_length() > 14_000:
            return "int of more than 4300 digits"
        if item is None or isinstance(item, (bool, int, float, str)):
            continue
        if isinstance(item, (list, tuple)):
            pending.extend(reversed(item))
        elif isinstance(item, dict):
            foreign = [key for key in item if not isinstance(key, (str, int, float, bool, type(None)))]
            if foreign:
                return f"dict with {type(foreign[0]).__name__} keys"
            pending.extend(item.values())
        else:
            return type(item).__name__
    return "a value that is not JSON"


def untag(value: Any) -> Any:
    """The value that the host tagged."""
    if not isinstance(value, list):
        return value
    tag, content = value
    if tag == "list":
        return [untag(item) for item in content]
    if tag == "dict":
        return {untag(key): untag(item) for key, item in content}
    if tag == "bytes":
        return base64.b64decode(content)
    if tag == "float":
        return float(content)
    items = (untag(item) for item in content)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](items)
