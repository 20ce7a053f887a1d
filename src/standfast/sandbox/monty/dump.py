"""Access to the contents of the engine's dumps, for which it has no API.

A dump is `MONTY`, a version, and CBOR. It shows the arguments of the call that a run is stopped at, before
they become Python objects (`check_arguments`, `stand_ins`). Two things in it must change between runs:

* *Limits* are stored with the session and can only be tightened through the API. Ours hold for one run,
  so the limits in a dump are overwritten before it is loaded.
* *Sources* of every run are kept for tracebacks, so that a dump grows with each run. Sources that no
  function can refer to are dropped.

Rules: a change replaces only bytes that were located by parsing the structure; everything else is copied. A
dump with an unexpected structure raises `EngineFailed`. The engine's version is pinned and stored with every
dump, so this code never reads the layout of another version.
"""

from __future__ import annotations

import functools
import re
import struct
from collections import Counter
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from standfast.errors import EngineFailed, ValueTooLarge
from standfast.model.canonical import MAX_VALUE_BYTES, MAX_VALUE_NODES
from standfast.model.limits import SessionLimits

P = ParamSpec("P")
T = TypeVar("T")
_MAGIC: Final = b"MONTY\x00"
_HEADER_BYTES: Final = 8
_TRACKER: Final = b"gtracker\xa4flimits\xa7"
_MAY_DEFINE = re.compile(rb"\b(def|class|lambda)\b")
_NUMBER = re.compile(rb"<python-input-(\d+)>")
_MAP: Final = 5
_HASHING_KINDS: Final = frozenset({b"Dict", b"Set", b"FrozenSet"})
_ARRAY_KINDS: Final = frozenset({b"List", b"Tuple", *_HASHING_KINDS})
_TEXT_KINDS: Final = frozenset({b"String", b"Bytes", b"BigInt", b"Repr"})
_PLAIN_KINDS: Final = frozenset(
    {b"", b"Int", b"String", b"Float", b"Bool", b"Repr", b"List", b"Dict", b"Set"}
)
"""Kinds of keys that are cheap to hash, or cannot be hashed at all."""
_MAX_UNUSUAL: Final = 1_000
"""The most integers beyond 64 bits if some are keys, because all of them may have the same hash; and the most
objects that are neither data nor containers, because each is created by a call."""
_MAX_NODE_BYTES: Final = 40
"""The maximum size of a node that is skipped together with others, including a reference to it."""
_NUMBER_ITEM: Final = rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
_ARRAY_HEAD: Final = rb"(?:[\x80-\x97]|\x98.)"
"""The head of an array that is short enough to be skipped together with others."""
_UNHASHED: Final = (
    rb"\xa1cInt(?:[\x00-\x17\x20-\x37]|[\x18\x38].|[\x19\x39]..|[\x1a\x3a].{4}|[\x1b\x3b].{8})"
    rb"|\xa1fString(?:" + b"|".join(b"%c.{%d}" % (0x60 + size, size) for size in range(24)) + rb")"
    rb"|\xa1eFloat\xfb.{8}|\xa1dBool[\xf4\xf5]|dNone"
    rb"|\xa1dList" + _ARRAY_HEAD + _NUMBER_ITEM + rb"*+"
)
"""Nodes that hash nothing, as the engine writes them. The item after an array of numbers is never a
number."""
_DICT: Final = rb"|\xa1dDict" + _ARRAY_HEAD + rb"(?:\x82" + _NUMBER_ITEM + rb"{2})*+"
MAX_SUSPENSIONS: Final = 2**31


@functools.cache
def _runs(*, hashed: bool) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return patterns of many nodes at once, and of one: if *hashed*, before one that must not be a key."""
    nodes = _UNHASHED + _DICT if hashed else _UNHASHED
    return re.compile(rb"(?:" + nodes + rb"){1,1024}+", re.S), re.compile(nodes, re.S)


def _careful(edit: Callable[P, T]) -> Callable[P, T]:
    """Make *edit* raise `EngineFailed` for a truncated or malformed dump."""

    @functools.wraps(edit)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return edit(*args, **kwargs)
        except (IndexError, ValueError, struct.error):
            raise EngineFailed("the engine's dump has an unexpected structure") from None

    return guarded


@_careful
def with_limits(dump: bytes, limits: SessionLimits) -> bytes:
    """Return the same session with other limits."""
    # Only counters and references follow the tracker, so the last match of its key cannot be in a guest's
    # string.
    at = dump.rfind(_TRACKER)
    if not dump.startswith(_MAGIC) or at < 0:
        raise EngineFailed("the engine's dump has no limits where they are expected")
    start = end = at + len(_TRACKER)
    for _ in range(7):
        end = _skip(dump, _skip(dump, end))
    seconds, nanos = limits.cpu_ms // 1000, limits.cpu_ms % 1000 * 1_000_000
    fields = {
        b"max_feed_duration": b"\xa2dsecs" + _encode_head(0, seconds) + b"enanos" + _encode_head(0, nanos),
        b"max_turn_duration": b"\xf6",
        b"max_memory": _encode_head(0, limits.memory_mb << 20),
        b"gc_interval": b"\xf6",
        b"max_recursion_depth": _encode_head(0, limits.max_stack_depth),
        b"max_suspensions": _encode_head(0, MAX_SUSPENSIONS),
        b"max_total_sleep": b"\xf6",
    }
    encoded = b"".join(_encode_head(3, len(key)) + key + value for key, value in fields.items())
    return dump[:start] + encoded + dump[end:]


@_careful
def without_sources(dump: bytes) -> tuple[bytes, int]:
    """Return the session without the sources that define nothing, and the number of its next source."""
    # Numbering continues after the last kept source, because the engine keeps the name of each source it has.
    idle = _value_of(dump, _value_of(dump, _HEADER_BYTES, "state"), "Idle")
    number = _value_of(dump, idle, "next_input_id")
    start = _value_of(dump, idle, "sources")
    count, at = _head(dump, start)
    kept: list[bytes] = []
    next_input = 0
    for _ in range(count):
        value = _skip(dump, at)
        end = _skip(dump, value)
        if _MAY_DEFINE.search(dump, value, end):
            kept.append(dump[at:end])
            if found := _NUMBER.search(dump, at, value):
                next_input = max(next_input, int(found[1]) + 1)
        at = end
    edited = dump[:number] + _encode_head(0, next_input) + dump[_skip(dump, number) : start]
    return edited + _encode_head(5, len(kept)) + b"".join(kept) + dump[at:], next_input


@_careful
def stand_ins(dump: bytes) -> list[str]:
    """Return the arguments that the engine passes as text although they are functions, ranges or cycles."""
    count, at = _head(dump, _argument_nodes(dump))
    found: list[str] = []
    for _ in range(count):
        if dump[at] >> 5 == _MAP:
            size, text = _head(dump, at + 1)
            kind = dump[text : text + size]
            if kind == b"Repr":
                length, start = _head(dump, text + size)
                found.append(dump[start : start + length].decode("utf-8", "replace"))
            elif kind in (b"Function", b"Cycle"):
                found.append("<function>" if kind == b"Function" else "<cycle>")
        at = _skip(dump, at)
    return found


@_careful
def check_arguments(dump: bytes, max_bytes: int = MAX_VALUE_BYTES) -> str | None:
    """Raise `ValueTooLarge` if the arguments of a dumped run's call certainly exceed a limit.

    The call is the one at which the run is stopped. Return the kind of an argument that has no JSON form and
    must not become a Python object: a tuple as a key, because hashing it hashes all of its parts as often as
    they occur, or another value that is slow to create.
    """
    count, at = _head(dump, _argument_nodes(dump))
    unusual: dict[int, bytes] = {}
    seen: Counter[bytes] = Counter()
    index, parts, in_runs, in_texts = 0, count, 0, 0
    while True:
        if max(parts, in_runs // _MAX_NODE_BYTES) > MAX_VALUE_NODES:
            raise ValueTooLarge(f"the limit is {MAX_VALUE_NODES} parts, counting shared ones each time")
        if in_texts > max_bytes + _MAX_NODE_BYTES * count:
            raise ValueTooLarge(f"the limit is {max_bytes} bytes as JSON")
        if index == count:
            return None
        many, one = _runs(hashed=not unusual)
        if run := many.match(dump, at):
            index += len(one.findall(dump, at, run.end()))
            in_runs += run.end() - at
            at = run.end()
            continue
        kind = dump[at + 2 : at + 2 + (dump[at + 1] & 0x1F)] if dump[at] >> 5 == _MAP else b""
        inside = at + 2 + len(kind)
        if kind in _ARRAY_KINDS and (size := _head(dump, inside)[0]) > MAX_VALUE_NODES:
            parts = size
            continue
        if kind in _HASHING_KINDS and unusual:
            foreign = _foreign_keys(dump, inside, kind, unusual, seen)
            if foreign is not None:
                return foreign
        if kind not in _PLAIN_KINDS:
            unusual[index] = kind
            seen[kind] += 1
            if seen[kind] > _MAX_UNUSUAL and kind not in _ARRAY_KINDS and kind not in _TEXT_KINDS:
                return kind.decode()
        end = _skip(dump, at)
        if kind in _TEXT_KINDS:
            in_texts += end - at
        elif kind in _ARRAY_KINDS:
            in_runs += end - at
        at, index = end, index + 1


def _foreign_keys(
    dump: bytes, at: int, kind: bytes, unusual: dict[int, bytes], seen: Counter[bytes]
) -> str | None:
    """Return the kind of the keys of a dict, or of a set, if hashing them must be avoided.

    *at* is an array of node numbers; for a dict, an array of pairs, of which the first is the key.
    """
    pairs = kind == b"Dict"
    count, at = _head(dump, at)
    for _ in range(count):
        number, after = _head(dump, _head(dump, at)[1] if pairs else at)
        at = _skip(dump, at) if pairs else after
        key = unusual.get(number)
        if key is None or (key == b"BigInt" and seen[key] <= _MAX_UNUSUAL):
            continue
        if not pairs:
            return kind.decode().lower()
        if key in (b"Tuple", b"NamedTuple"):
            return "dict with tuple keys"
        if key == b"ClassInstance":
            return "dict or set with objects as keys"
        return f"dict with {key.decode()} keys"
    return None


def _argument_nodes(dump: bytes) -> int:
    """Return the position of the argument nodes of the call at which a dumped run is stopped."""
    at = _HEADER_BYTES
    for key in ("state", "Suspended", "FunctionCall", "args", "graph", "nodes"):
        at = _value_of(dump, at, key)
    return at


def _value_of(dump: bytes, at: int, wanted: str) -> int:
    count, at = _head(dump, at)
    for _ in range(count):
        size, text = _head(dump, at)
        if dump[text : text + size] == wanted.encode():
            return text + size
        at = _skip(dump, text + size)
    raise EngineFailed(f"the engine's dump has no {wanted!r} where it is expected")


def _encode_head(major: int, value: int) -> bytes:
    lead = major << 5
    if value < 24:
        return bytes([lead | value])
    for code, layout in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if value < 1 << (8 * struct.calcsize(layout)):
            return bytes([lead | code]) + struct.pack(layout, value)
    raise EngineFailed("a number does not fit the engine's dump")


def _head(dump: bytes, at: int) -> tuple[int, int]:
    """Return the argument of the item at *at*, and where its content starts."""
    info = dump[at] & 0x1F
    if info < 24:
        return info, at + 1
    if info > 27:
        raise EngineFailed("the engine's dump has an item of unknown length")
    size = 1 << (info - 24)
    return int.from_bytes(dump[at + 1 : at + 1 + size], "big"), at + 1 + size


def _skip(dump: bytes, at: int) -> int:
    """Return where the item at *at* ends."""
    remaining = 1
    while remaining:
        remaining -= 1
        major = dump[at] >> 5
        value, at = _head(dump, at)
        if major in (2, 3):
            at += value
        elif major == 4:
            remaining += value
        elif major == 5:
            remaining += 2 * value
        elif major == 6:
            remaining += 1
    return at
