"""JSON values: size limits, encoding and digests.

Theory of operation
-------------------
`a = [1]`, then forty times `a = [a, a]`, is forty small lists in memory and a tree of 2**41 values to
everything that traverses it: encoding, comparing, hashing, printing, copying. Those traversals run in C, hold
the GIL and have no limit. `check_bounds` therefore runs first. It walks the tree that they would see, with a
budget of nodes and of bytes, and raises `ValueTooLarge` where the budget ends.

Rules
-----
1. A part is counted each time the walk meets it, and each key of an object counts as a node.
2. Bytes are the minimum that a value can take as JSON, so that no value below the limit is rejected.
3. The walk has its own stack, hashes nothing, compares nothing and runs no code of a value's class.
4. No single call in C holds the GIL for more than 50 ms: the bound on nodes limits decoding, and long texts
   are encoded in pieces.
5. Canonical JSON is UTF-8 with sorted keys and without spaces, NaN and infinity; floats have their shortest
   form (`1e21`). A value that cannot be encoded raises `InvalidArgument`; it never digests as empty.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from standfast.errors.caller import InvalidArgument, ValueTooLarge

MAX_VALUE_BYTES: Final = 16 << 20
"""The maximum size of a result, an input or a message as JSON, unless a smaller limit applies."""
MAX_VALUE_NODES: Final = 200_000
"""The maximum number of values and keys in one value; shared parts count each time."""
MAX_VALUE_CONTAINERS: Final = 120_000
"""The maximum number of lists and dicts in one value: an engine converts them one by one, holding the GIL."""

_FEW_NODES: Final = 1_000
_FEW_BYTES: Final = 1 << 16
_INFINITY: Final = float("inf")
_SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
_BUFFERS: Final = (bytes, bytearray, memoryview)


def check_bounds(value: object, max_bytes: int = MAX_VALUE_BYTES, max_nodes: int = MAX_VALUE_NODES) -> bool:
    """Raise `ValueTooLarge` if *value* exceeds a limit; return whether it is plain JSON data.

    Plain are None, bool, int, finite float, str, list, tuple, and dict with str keys, but none of their
    subclasses. The walk also descends into what a tool may return: sets, dataclasses, structs and models.
    """
    plain = True
    size, nodes, containers = max_bytes, max_nodes - 1, MAX_VALUE_CONTAINERS
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            size -= len(item) + 2
        elif kind is int:
            bits = item.bit_length()
            size -= bits // 4 + 1
            nodes -= bits > 64  # engines convert long integers slowly, so they count twice
        elif item is None or kind is bool:
            size -= 4
        elif kind is list or kind is tuple:
            containers -= 1
            size -= len(item) + 1
            nodes -= len(item)
            if nodes >= 0:
                pending += item
        elif kind is dict:
            containers -= 1
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
        if size < 0 or nodes < 0 or containers < 0:
            _refuse_cycle(value, max_nodes)
            if nodes >= 0 and containers >= 0:
                raise ValueTooLarge(f"the limit is {max_bytes} bytes as JSON")
            most = f"{max_nodes} parts" if containers >= 0 else f"{MAX_VALUE_CONTAINERS} lists and dicts"
            raise ValueTooLarge(f"the limit is {most}, counting shared ones each time")
    return plain


def _least_bytes(item: object) -> int:
    """Return the minimum size as JSON of a value that is not plain, without its parts."""
    if isinstance(item, str):
        return str.__len__(item) + 2
    if isinstance(item, _BUFFERS):
        return memoryview(item).nbytes
    return int.bit_length(item) // 4 + 1 if isinstance(item, int) else 1


def is_light(value: object) -> bool:
    """Return whether *value* is small enough to check, encode and digest on an event loop."""
    if _is_small_and_plain(value, _FEW_BYTES // (2 * _SMALL_VALUES)):
        return True
    try:
        check_bounds(value, _FEW_BYTES, _FEW_NODES)
    except InvalidArgument:
        return False
    return True


def check_json_bounds(
    data: bytes | msgspec.Raw, max_bytes: int = MAX_VALUE_BYTES, max_nodes: int = MAX_VALUE_NODES
) -> None:
    """Raise `ValueTooLarge` if JSON text exceeds a limit, without decoding it."""
    size = len(memoryview(data))
    if size > max_bytes:
        raise ValueTooLarge(f"it is {size} bytes as JSON, the limit is {max_bytes}")
    if size <= max_nodes:  # a value takes at least one byte
        return
    text = bytes(data)
    if _marks(text) > max_nodes and _separators(text) > max_nodes and _separators_outside(text) > max_nodes:
        raise ValueTooLarge(f"the limit is {max_nodes} parts")


def count_json_nodes(data: bytes | msgspec.Raw) -> int:
    """Return the number of values and keys inside JSON text, or slightly more, without decoding it."""
    text = bytes(data)
    found = _separators(text)
    return found if found <= _FEW_NODES else _separators_outside(text)


def _separators(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Count one for each value and key inside JSON text, and more if its strings contain separators."""
    return _marks(text, start, end) - text.count(b"[]", start, end) - text.count(b"{}", start, end)


def _marks(text: bytes, start: int = 0, end: int | None = None) -> int:
    """Count like `_separators`, plus one per empty list and object; many times faster in long strings."""
    return sum(text.count(mark, start, end) for mark in (b",", b":", b"[", b"{"))


def _separators_outside(text: bytes) -> int:
    """Count like `_separators`, ignoring those inside strings."""
    found, at = 0, 0
    while (quote := text.find(b'"', at)) >= 0:
        found += _separators(text, at, quote)
        at = quote + 1
        while (quote := text.find(b'"', at)) >= 0:  # to the end of the string
            before = quote
            while text[before - 1] == 0x5C:
                before -= 1
            at = quote + 1
            if (quote - before) % 2 == 0:
                break
        else:
            at = len(text)
    return found + _separators(text, at)


def _parts(item: Any) -> list[Any]:
    """Return what an encoder finds inside a value that is not plain: [] for a leaf or an unknown type."""
    if isinstance(item, dict):
        return [*dict.keys(item), *dict.values(item)]
    for kind in _SEQUENCES:
        if isinstance(item, kind):
            return list(kind.__iter__(item))
    kind = type(item)
    if isinstance(item, msgspec.Struct):
        return [getattr(item, name, None) for name in kind.__struct_fields__]
    named: Iterable[str] | None = None  # the fields of a dataclass, a model or an attrs class
    for mark in ("__dataclass_fields__", "model_fields"):
        if named is None and isinstance(found := getattr(kind, mark, None), (dict, tuple)):
            named = found
    if named is None:
        named = [one.name for one in getattr(kind, "__attrs_attrs__", ())]
    held = getattr(item, "__dict__", None) if named or hasattr(kind, "__attrs_attrs__") else None
    if isinstance(held, dict) and held:
        return list(held.values())
    parts = []
    for name in named:
        with contextlib.suppress(Exception):  # a field that was never set, or a property in its place
            parts.append(getattr(item, name))
    return parts


def _refuse_cycle(value: object, max_nodes: int) -> None:
    """Raise `InvalidArgument` if *value* contains itself. Visit each part once, up to *max_nodes* parts."""
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
            raise InvalidArgument("not JSON: the value contains itself")
        elif id(item) not in done and (parts := _parts(item)):
            open_ids.add(id(item))
            pending.append((item, True))
            pending += [(part, False) for part in parts[:max_nodes]]


Json = Any
"""A JSON value: None, bool, int, float, str, list, or dict with string keys."""

PIECE_CHARS: Final = 1 << 20
"""The longest text that one call encodes."""

_SMALL_VALUES: Final = 32
_SMALL_CHARS: Final = 4_096
_SAFE_INTEGER: Final = 1 << 53
_MUCH_BYTES: Final = 1 << 18
_LONG_CHARS: Final = 1 << 14
_measure: Final = msgspec.msgpack.Encoder().encode
_encoders: Final = {
    order: msgspec.json.Encoder(order=order).encode for order in (None, "deterministic", "sorted")
}
_decoder: Final = msgspec.json.Decoder()


def to_json(value: object, max_bytes: int = MAX_VALUE_BYTES) -> tuple[Json, int]:
    """Return *value* copied as plain JSON data, and its size in bytes as JSON.

    Tuples become lists and integer keys strings, as in Python's own `json`. Anything else that is not JSON
    (NaN, bytes, sets, cycles, lone surrogates, objects) raises `InvalidArgument`. A value over
    `MAX_VALUE_NODES` or certainly over *max_bytes* raises `ValueTooLarge`; compare the returned size with the
    limit.
    """
    if (small := copied_if_small(value)) is not None:
        return small
    plain = check_bounds(value, max_bytes)
    try:
        if plain and len(data := encode_json(value)) <= _MUCH_BYTES:
            return _decoder.decode(data), len(data)
        with _without_collecting():
            copy = _copy(value)  # decoding much in a single call would hold the GIL for too long
        return copy, len(data if plain else encode_json(copy))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "the value is nested too deeply"
        elif isinstance(error, UnicodeEncodeError):
            reason = "a string contains a lone surrogate"
        raise InvalidArgument(f"not JSON: {reason}") from None


def copied_if_small(value: object) -> tuple[Json, int] | None:
    """Return what `to_json` does, if *value* is so small that an event loop may handle it; otherwise None.

    Also return None for a small value that is not certainly JSON, which takes a full check.
    """
    if not _is_small_and_plain(value):
        return None
    data = msgspec.json.encode(value)
    return (msgspec.json.decode(data), len(data)) if len(data) <= _FEW_BYTES else None


def encode_json(value: object, order: Literal["deterministic", "sorted"] | None = None) -> bytes:
    """Encode *value* as JSON, each long text separately and in pieces.

    `msgspec` holds the GIL while it encodes, 50 ms for 16 MiB of quotes; between two pieces other threads can
    run. Call `check_bounds` first.
    """
    try:
        if len(_measure(value)) <= _MUCH_BYTES:
            return _encoders[order](value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # too large an integer, or an error that encoding as JSON raises too
    if _holds_long_text(value):
        value = _with_long_texts_encoded(value)
    return _encoders[order](value)


def _holds_long_text(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str:
            if len(item) > _LONG_CHARS:
                return True
        elif kind is list or kind is tuple:
            pending += item
        elif kind is dict:
            pending += item.values()
        elif isinstance(item, msgspec.Struct):
            pending += [getattr(item, name) for name in item.__struct_fields__]
    return False


def _with_long_texts_encoded(value: Any) -> Any:
    """Return *value* with each long text replaced by its JSON, or *value* itself if it has none."""
    kind = type(value)
    if kind is str and len(value) > _LONG_CHARS:
        pieces = [_encode_text(value[at : at + PIECE_CHARS]) for at in range(0, len(value), PIECE_CHARS)]
        return msgspec.Raw(b"".join([b'"', *[memoryview(piece)[1:-1] for piece in pieces], b'"']))
    if kind is list or kind is tuple:
        items = [_with_long_texts_encoded(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items
    if kind is dict or isinstance(value, msgspec.Struct):
        named = value if kind is dict else {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {
            key: new for key, item in named.items() if (new := _with_long_texts_encoded(item)) is not item
        }
        if not changed:
            return value
        return {**value, **changed} if kind is dict else msgspec.structs.replace(value, **changed)
    return value


def _encode_text(text: str) -> bytes:
    """Encode a text; to escape every character, `json` takes a third of the time of `msgspec`."""
    sample = text[:_SMALL_CHARS]
    if 4 * sum(map(sample.count, '"\\\n')) > len(sample):
        import json.encoder  # slow to import, and few texts are long

        return json.encoder.encode_basestring(text).encode()
    return msgspec.json.encode(text)


def read_json(data: bytes | msgspec.Raw) -> Json:
    """Decode JSON; raise `ValueTooLarge` before decoding too many nodes, otherwise like `msgspec`."""
    size = len(memoryview(data))
    if size <= _MUCH_BYTES:
        return _decoder.decode(data)
    check_json_bounds(data, size)
    with _without_collecting():
        return _decoder.decode(data)


def _copy(value: Any) -> Any:
    """Copy *value*, with keys and subclasses of built-in types as Python's own `json` writes them.

    Raise `TypeError` or `ValueError` for values that `json` rejects. Recursive: check the bounds of *value*
    first.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not -_INFINITY < value < _INFINITY:
            raise ValueError(f"{float.__float__(value)} is not a JSON number")
        return float.__float__(value)
    if isinstance(value, (list, tuple)):
        items = []
        for item in value:  # a comprehension would halve the depth that Python's stack allows
            items.append(_copy(item))
        return items
    if isinstance(value, dict):
        fields = {}
        for key, item in value.items():
            if isinstance(key, str):
                name = key
            elif key is None or isinstance(key, (bool, int, float)):
                import json  # slow to import, and most keys are texts

                name = json.dumps(key, allow_nan=False)
            else:
                raise TypeError(f"an object with a {type(key).__name__} as a key")
            fields[name] = _copy(item)
        return fields
    raise TypeError(f"a value of type {type(value).__name__}")


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause the garbage collector, which would traverse millions of new objects repeatedly."""
    pauses = gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


def _is_small_and_plain(value: object, max_chars: int = _SMALL_CHARS) -> bool:
    """Return whether *value* is certainly small JSON, as most arguments are; cheaper than a full check.

    It has at most `_SMALL_VALUES` values and as many keys, each of *max_chars* at most.
    """
    found: list[Any] = [value]
    for one in found:  # it grows meanwhile
        kind = type(one)
        if kind is str:
            if len(one) > max_chars or not one.isascii():
                return False
        elif kind is int:
            if not -_SAFE_INTEGER < one < _SAFE_INTEGER:
                return False
        elif kind is dict:
            if len(found) + len(one) > _SMALL_VALUES:
                return False
            for key in one:
                if type(key) is not str or len(key) > max_chars or not key.isascii():
                    return False
            found += one.values()
        elif kind is list:
            if len(found) + len(one) > _SMALL_VALUES:
                return False
            found += one
        elif one is not None and kind is not bool:
            return False
    return True


def canonical_json(value: object) -> bytes:
    """Encode *value* so that equal values have equal bytes."""
    clean, _ = to_json(value)
    return encode_sorted(clean)


def encode_sorted(clean: Json) -> bytes:
    """Return the `canonical_json` of a value that is known to be plain JSON."""
    return encode_json(clean, order="sorted")


def digest_sorted(clean: Json, size: int) -> str:
    """Return the digest of the canonical JSON of plain JSON data, which takes *size* bytes as JSON."""
    data = _encoders["sorted"](clean) if size <= _MUCH_BYTES else encode_sorted(clean)
    return hashlib.sha3_256(data).hexdigest()


def digest_bytes(data: bytes) -> str:
    """Return the lower-case hex SHA3-256 of *data*."""
    return hashlib.sha3_256(data).hexdigest()


def digest_json(value: object) -> str:
    """Return the digest of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))


def nested_deeper_than(value: Json, levels: int) -> bool:
    """Return whether lists and objects in *value* are nested more than *levels* deep."""
    layer = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        parts = [one.values() if isinstance(one, dict) else one for one in layer]
        layer = [child for part in parts for child in part if isinstance(child, (dict, list))]
        if not layer:
            return False
    return True
