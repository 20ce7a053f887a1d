"""Canonical JSON and the digests made of it.

Rules
-----
UTF-8, keys sorted, no spaces, no NaN or infinity, floats in shortest form (`1e21`).
What cannot be encoded raises `InvalidArgument`; nothing ever digests as empty.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import operator
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.bounds import MAX_VALUE_BYTES, check_bounds, check_json_bounds

Json = Any
"""A JSON value: None, bool, int, float, str, list, or dict with string keys."""

PIECE_CHARS: Final = 1 << 20
"""The longest text that one call encodes."""

_SMALL_VALUES: Final = 32
_SMALL_CHARS: Final = 4_096
_INFINITY: Final = float("inf")
_SAFE_INTEGER: Final = 1 << 53
_MUCH_BYTES: Final = 1 << 18
_LONG_CHARS: Final = 1 << 14
_measure: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.json.Decoder()
_strict = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def to_json(value: object, max_bytes: int = MAX_VALUE_BYTES) -> tuple[Json, int]:
    """Return *value* as plain JSON data of its own, and its size in bytes as JSON.

    Tuples become lists and integer keys strings, as Python's own `json` has it. Anything else that
    is not JSON (NaN, bytes, sets, cycles, lone surrogates, objects) raises `InvalidArgument`. A value over
    `MAX_VALUE_NODES` or surely over *max_bytes* raises `ValueTooLarge`; compare the size with the limit.
    """
    if _is_small_and_plain(value):
        data = msgspec.json.encode(value)
        return msgspec.json.decode(data), len(data)
    plain = check_bounds(value, max_bytes)
    try:
        if plain and len(data := encode_json(value)) <= _MUCH_BYTES:
            return _decoder.decode(data), len(data)
        with _without_collecting():
            copy = _copy(value)  # a single call that decodes much would hold the GIL for too long
        return copy, len(data if plain else encode_json(copy))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"not JSON: {_reason(error)}") from None


def encode_json(value: object, order: Literal["deterministic", "sorted"] | None = None) -> bytes:
    """Encode *value* as JSON, each long text by itself and in pieces.

    `msgspec` holds the GIL while it encodes, 50 ms for 16 MiB of quotes; between two pieces other threads
    run. Call `check_bounds` first.
    """
    if _holds_long_text(value):
        value = _with_long_texts_encoded(value)
    return msgspec.json.encode(value, order=order)


def _holds_long_text(value: Any) -> bool:
    try:
        if len(_measure(value)) <= _MUCH_BYTES:
            return False
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # too large an integer, or an error that encoding as JSON raises too
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
    """Return *value* with each long text replaced by its JSON, and *value* itself if it has none."""
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
    """Encode a text; `json` takes a third of the time that `msgspec` takes to escape every character."""
    sample = text[:_SMALL_CHARS]
    if 4 * sum(map(sample.count, '"\\\n')) > len(sample):
        return json.encoder.encode_basestring(text).encode()
    return msgspec.json.encode(text)


def read_json(data: bytes | msgspec.Raw) -> Json:
    """Decode JSON. Raise `ValueTooLarge` instead of decoding too many nodes, else as `msgspec` does."""
    size = len(memoryview(data))
    if size <= _MUCH_BYTES:
        return _decoder.decode(data)
    check_json_bounds(data, size)
    with _without_collecting():
        return _decoder.decode(data)


def _copy(value: Any) -> Any:
    """Return a copy of *value*, its keys and subclasses of built-in types as Python's own `json` writes them.

    Raise `TypeError` or `ValueError` for what `json` refuses. Recursive: check the bound of *value* before.
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
            fields[_text_key(key)] = _copy(item)
        return fields
    raise TypeError(f"a value of type {type(value).__name__}")


def _text_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return _strict.encode(key)
    raise TypeError(f"an object with a {type(key).__name__} as a key")


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause the garbage collector, which would traverse millions of new objects again and again."""
    pauses = gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


def _is_small_and_plain(value: object) -> bool:
    """Whether *value* is certainly JSON: most arguments are, and this is sooner said than encoded twice."""
    pending: list[Any] = [value]
    for _ in range(_SMALL_VALUES):
        if not pending:
            return True
        one = pending.pop()
        kind = type(one)
        if kind is str:
            if len(one) > _SMALL_CHARS or not one.isascii():
                return False
        elif kind is int:
            if not -_SAFE_INTEGER < one < _SAFE_INTEGER:
                return False
        elif kind is list:
            if len(one) > _SMALL_VALUES:
                return False
            pending += one
        elif kind is dict:
            if len(one) > _SMALL_VALUES or not all(_is_small_key(key) for key in one):
                return False
            pending += one.values()
        elif one is not None and kind is not bool:
            return False
    return not pending


def _is_small_key(key: object) -> bool:
    return type(key) is str and len(key) <= _SMALL_CHARS and key.isascii()


def canonical_json(value: object) -> bytes:
    """Encode *value* so that equal values have equal bytes."""
    clean, _ = to_json(value)
    return encode_sorted(clean)


def encode_sorted(clean: Json) -> bytes:
    """`canonical_json` of what is known to be plain JSON already."""
    return encode_json(clean, order="sorted")


def digest_bytes(data: bytes) -> str:
    """Lower-case hex SHA3-256."""
    return hashlib.sha3_256(data).hexdigest()


def digest_json(value: object) -> str:
    """The digest of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))


def nested_deeper_than(value: Json, levels: int) -> bool:
    """Whether lists and objects are nested in *value* more than so many deep."""
    layer = [value]
    for _ in range(levels):
        layer = [child for one in layer for child in _children(one)]
        if not layer:
            return False
    return True


def _children(value: Json) -> list[Json]:
    """The lists and objects inside a list or an object; what is neither is no level of its own."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return [child for child in value if isinstance(child, (dict, list))]


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the value is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "a string holds a lone surrogate"
    return str(error)
