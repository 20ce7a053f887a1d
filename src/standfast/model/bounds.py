"""The bound on values: how large one may be before anything else traverses it.

Theory of operation
-------------------
`a = [1]`, then forty times `a = [a, a]`, is forty small lists in memory and a tree of 2**41 values to
everything that traverses it: encoding, comparing, hashing, printing, copying. Those traversals run in C, hold
the GIL and know no limit. `check_bounds` therefore runs first. It walks the tree that they would see, with a
budget of nodes and of bytes, and raises `ValueTooLarge` where the budget ends.

Rules
-----
1. A part is counted each time the walk meets it, and each key of an object counts as a node.
2. Bytes are the least that a value can take as JSON, so that no value below the limit is refused.
3. The walk has a stack of its own, hashes nothing, compares nothing and runs no code of a value's class.
4. The bound on nodes keeps each single encoding or decoding in C below 50 ms; the GIL is held for as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, ValueTooLarge

MAX_VALUE_BYTES: Final = 16 << 20
"""The most that a result, an input or a message may take as JSON, unless a smaller limit holds."""
MAX_VALUE_NODES: Final = 250_000
"""The most values and keys that one value may consist of, shared parts counted each time."""

_FEW_NODES: Final = 1_000
_FEW_BYTES: Final = 1 << 16
_INFINITY: Final = float("inf")
_SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
_BUFFERS: Final = (bytes, bytearray, memoryview)


def check_bounds(value: object, max_bytes: int = MAX_VALUE_BYTES, max_nodes: int = MAX_VALUE_NODES) -> bool:
    """Raise `ValueTooLarge` if *value* exceeds a limit. Return whether it is plain JSON data.

    Plain are None, bool, int, finite float, str, list, tuple, and dict with str keys, but none of their
    subclasses. The walk also looks into what a tool may return: sets, dataclasses, structs and models.
    """
    plain = True
    size, nodes = max_bytes, max_nodes - 1
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            size -= len(item) + 2
        elif kind is int:
            size -= item.bit_length() // 4 + 1
        elif item is None or kind is bool:
            size -= 4
        elif kind is list or kind is tuple:
            count = len(item)
            size -= count + 1
            nodes -= count
            if nodes >= 0:
                pending += item
        elif kind is dict:
            count = len(item)
            size -= 2 * count + 1
            nodes -= 2 * count
            if nodes >= 0:
                for key in item:
                    if type(key) is str:
                        size -= len(key) + 2
                    else:
                        plain = False
                        pending.append(key)
                pending += item.values()
        elif kind is float:
            size -= 3
            plain = plain and -_INFINITY < item < _INFINITY
        else:
            plain = False
            parts = _parts(item)
            size -= _least_bytes(item)
            nodes -= len(parts)
            if nodes >= 0:
                pending += parts
        if size < 0 or nodes < 0:
            break
    if size < 0 or nodes < 0:
        _refuse_cycle(value, max_nodes)
    if nodes < 0:
        raise ValueTooLarge(f"the limit is {max_nodes} parts, counting shared ones each time")
    if size < 0:
        raise ValueTooLarge(f"the limit is {max_bytes} bytes as JSON")
    return plain


def is_light(value: object) -> bool:
    """Return whether *value* is so small that an event loop can check, encode and digest it itself."""
    try:
        check_bounds(value, _FEW_BYTES, _FEW_NODES)
    except InvalidArgument:
        return False
    return True


def check_json_bounds(
    data: bytes | msgspec.Raw, max_bytes: int = MAX_VALUE_BYTES, max_nodes: int = MAX_VALUE_NODES
) -> None:
    """Raise `ValueTooLarge` if JSON text exceeds a limit. Decodes nothing."""
    size = len(memoryview(data))
    if size > max_bytes:
        raise ValueTooLarge(f"it is {size} bytes as JSON, the limit is {max_bytes}")
    if size <= max_nodes:  # a value takes a byte at least
        return
    text = bytes(data)
    if _marks(text) > max_nodes and _separators(text) > max_nodes and _separators_outside(text) > max_nodes:
        raise ValueTooLarge(f"the limit is {max_nodes} parts")


def count_json_nodes(data: bytes | msgspec.Raw) -> int:
    """Return how many values and keys are inside JSON text, or a few more. Decodes nothing."""
    text = bytes(data)
    found = _separators(text)
    return found if found <= _FEW_NODES else _separators_outside(text)


def _separators(text: bytes, start: int = 0, end: int | None = None) -> int:
    """One for each value and key inside JSON text, and some more if its strings hold such characters."""
    return _marks(text, start, end) - text.count(b"[]", start, end) - text.count(b"{}", start, end)


def _marks(text: bytes, start: int = 0, end: int | None = None) -> int:
    """The same, and one more for each empty list and object; many times faster to count in long strings."""
    return sum(text.count(mark, start, end) for mark in (b",", b":", b"[", b"{"))


def _separators_outside(text: bytes) -> int:
    """`_separators` without those inside strings, counted piece by piece."""
    found, at = 0, 0
    while (quote := text.find(b'"', at)) >= 0:
        found += _separators(text, at, quote)
        at = _after_string(text, quote + 1)
    return found + _separators(text, at)


def _after_string(text: bytes, at: int) -> int:
    """Where the string ends whose first character is at *at*; the end of the text if it does not."""
    while (quote := text.find(b'"', at)) >= 0:
        before = quote
        while text[before - 1] == 0x5C:
            before -= 1
        if (quote - before) % 2 == 0:
            return quote + 1
        at = quote + 1
    return len(text)


def _parts(item: Any) -> list[Any]:
    """What an encoder would find inside a value that is not plain: nothing, if it is a leaf or unknown."""
    if isinstance(item, dict):
        return [*dict.keys(item), *dict.values(item)]
    for kind in _SEQUENCES:
        if isinstance(item, kind):
            return list(kind.__iter__(item))
    named = _fields(type(item))
    if named is None:
        return []
    held = getattr(item, "__dict__", None)
    return list(held.values()) if isinstance(held, dict) and held else [_field(item, name) for name in named]


def _fields(kind: type) -> Iterable[str] | None:
    """The names of the fields of a struct, a dataclass, an attrs class or a model; None for other types."""
    for mark in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        if isinstance(named := getattr(kind, mark, None), (dict, tuple)):
            return named
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [one.name for one in attributes]


def _field(item: Any, name: str) -> Any:
    try:
        return getattr(item, name)
    except Exception:  # a field that was never set, or a property in its place
        return None


def _least_bytes(item: Any) -> int:
    """The least that a value which is not plain takes, its parts aside."""
    if isinstance(item, str):
        return str.__len__(item) + 2
    if isinstance(item, _BUFFERS):
        return memoryview(item).nbytes
    return int.bit_length(item) // 4 + 1 if isinstance(item, int) else 1


def _refuse_cycle(value: object, max_nodes: int) -> None:
    """Raise `InvalidArgument` if *value* holds itself. Look at each part once, at *max_nodes* at most."""
    open_ids: set[int] = set()
    done: set[int] = set()
    pending: list[tuple[Any, bool]] = [(value, False)]
    for _ in range(2 * max_nodes):
        if not pending:
            return
        item, leaving = pending.pop()
        if leaving:
            open_ids.discard(id(item))
            done.add(id(item))
        elif id(item) in open_ids:
            raise InvalidArgument("not JSON: the value holds itself")
        elif id(item) not in done and (parts := _parts(item)):
            open_ids.add(id(item))
            pending.append((item, True))
            pending += [(part, False) for part in parts[:max_nodes]]
