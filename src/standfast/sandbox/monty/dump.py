"""What the engine's dumps tell and allow beyond its API.

Theory of operation
-------------------
A dump is `MONTY`, a version, and CBOR. One thing is read from it, `stand_ins`. Two things in it must change
between runs:

* *Limits* are stored with the session and can only be tightened through the API. Ours hold for one run,
  so the limits in a dump are overwritten before it is loaded.
* *Sources* of every run are kept for tracebacks, so that a dump grows with each run. Sources that no
  function can refer to are dropped.

Rules: only bytes at places found by structure change, everything else is copied as it is; a dump that does
not look as expected is refused with `EngineFailed`, never guessed at. The engine's version is pinned and
stored beside every dump, so another layout cannot meet this code.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from standfast.errors import EngineFailed
from standfast.model.limits import SessionLimits

P = ParamSpec("P")
T = TypeVar("T")
_MAGIC: Final = b"MONTY\x00"
_HEADER_BYTES: Final = 8
_TRACKER: Final = b"gtracker\xa4flimits\xa7"
_MAY_DEFINE = re.compile(rb"\b(def|class|lambda)\b")
_NUMBER = re.compile(rb"<python-input-(\d+)>")
_MAP: Final = 5
_STAND_IN_KINDS: Final = frozenset({b"Repr", b"Function", b"Cycle"})
_HASHING_KINDS: Final = {b"Dict": "dict with tuple keys", b"Set": "set", b"FrozenSet": "frozenset"}
_NUMBER_ITEM: Final = rb"(?:[\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
_ARRAY_HEAD: Final = rb"(?:[\x80-\x97]|\x98.|\x99..|\x9a.{4}|\x9b.{8})"
_UNHASHED: Final = (
    rb"\xa1cInt(?:[\x00-\x17\x20-\x37]|[\x18\x38].|[\x19\x39]..|[\x1a\x3a].{4}|[\x1b\x3b].{8})"
    rb"|\xa1fString(?:" + b"|".join(b"%c.{%d}" % (0x60 + size, size) for size in range(24)) + rb")"
    rb"|\xa1eFloat\xfb.{8}|\xa1dBool[\xf4\xf5]|dNone"
    rb"|\xa1dList" + _ARRAY_HEAD + _NUMBER_ITEM + rb"*+"
)
"""Nodes that hash nothing, as the engine writes them. What follows an array of numbers is no number."""
_DICT: Final = rb"|\xa1dDict" + _ARRAY_HEAD + rb"(?:\x82" + _NUMBER_ITEM + rb"{2})*+"
_RUNS: Final = tuple(
    (re.compile(rb"(?:" + nodes + rb"){1,4096}+", re.S), re.compile(nodes, re.S))
    for nodes in (_UNHASHED + _DICT, _UNHASHED)
)
"""Many nodes at once, and one of them: before the first tuple, and after it."""
MAX_SUSPENSIONS: Final = 2**31


def _careful(edit: Callable[P, T]) -> Callable[P, T]:
    """A dump that is cut or malformed is refused, not misread."""

    @functools.wraps(edit)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return edit(*args, **kwargs)
        except (IndexError, ValueError, struct.error):
            raise EngineFailed("the engine's dump does not look as expected") from None

    return guarded


@_careful
def with_limits(dump: bytes, limits: SessionLimits) -> bytes:
    """The same session under other limits.

    The tracker follows the heap, and after it come only counters and references, so the last
    occurrence of its key is the real one whatever strings guest code keeps.
    """
    at = dump.rfind(_TRACKER)
    if not dump.startswith(_MAGIC) or at < 0:
        raise EngineFailed("the engine's dump has no limits where they are expected")
    start = at + len(_TRACKER)
    end = start
    for _ in range(7):
        end = _skip(dump, _skip(dump, end))
    return dump[:start] + _encode_limits(limits) + dump[end:]


@_careful
def without_sources(dump: bytes) -> tuple[bytes, int]:
    """The same session without the sources of runs that defined nothing, and the number of its next source.

    Sources are numbered anew after the last one kept, because the engine remembers every name it gave.
    """
    idle = _value_of(dump, _value_of(dump, _HEADER_BYTES, "state"), "Idle")
    number = _value_of(dump, idle, "next_input_id")
    start = _value_of(dump, idle, "sources")
    kept, next_input, end = _kept_sources(dump, start)
    edited = dump[:number] + _encode_head(0, next_input) + dump[_skip(dump, number) : start]
    return edited + _encode_head(5, len(kept)) + b"".join(kept) + dump[end:], next_input


def _kept_sources(dump: bytes, start: int) -> tuple[list[bytes], int, int]:
    """The entries to keep, the number after the last of them, and where the map ends."""
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
    return kept, next_input, at


@_careful
def stand_ins(dump: bytes) -> list[str]:
    """The arguments of the call that a dumped run stands at which are only text that stands for something.

    The engine hands a function, a range or a cycle over as its text; its dump still tells them apart.
    """
    count, at = _head(dump, _argument_nodes(dump))
    found: list[str] = []
    for _ in range(count):
        if dump[at] >> 5 == _MAP:
            size, text = _head(dump, at + 1)
            kind = dump[text : text + size]
            if kind in _STAND_IN_KINDS:
                found.append(_text_of(dump, text + size, kind))
        at = _skip(dump, at)
    return found


@_careful
def tuple_keys(dump: bytes) -> str | None:
    """What among the arguments of the call that a dumped run stands at is hashed by its tuples, if anything.

    It has no place in JSON, and must not become a Python object: hashing a tuple hashes all that it holds, as
    often as it holds it.
    """
    count, at = _head(dump, _argument_nodes(dump))
    tuples: set[int] = set()
    index = 0
    while index < count:
        many, one = _RUNS[bool(tuples)]
        if run := many.match(dump, at):
            index += len(one.findall(dump, at, run.end()))
            at = run.end()
            continue
        kind = dump[at + 2 : at + 2 + (dump[at + 1] & 0x1F)] if dump[at] >> 5 == _MAP else b""
        if kind == b"Tuple":
            tuples.add(index)
        elif kind in _HASHING_KINDS and tuples:
            hashed = _numbers(dump, at + 2 + len(kind), pairs=kind == b"Dict")
            if not tuples.isdisjoint(hashed):
                return _HASHING_KINDS[kind]
        at = _skip(dump, at)
        index += 1
    return None


def _numbers(dump: bytes, at: int, *, pairs: bool) -> list[int]:
    """The numbers in an array, or the first of each pair in an array of pairs."""
    count, at = _head(dump, at)
    found = []
    for _ in range(count):
        number, after = _head(dump, _head(dump, at)[1] if pairs else at)
        found.append(number)
        at = _skip(dump, at) if pairs else after
    return found


def _argument_nodes(dump: bytes) -> int:
    """Where the values are that the call holds which a dumped run stands at."""
    at = _HEADER_BYTES
    for key in ("state", "Suspended", "FunctionCall", "args", "graph", "nodes"):
        at = _value_of(dump, at, key)
    return at


def _text_of(dump: bytes, at: int, kind: bytes) -> str:
    if kind == b"Function":
        return "<function>"
    size, text = _head(dump, at)
    return dump[text : text + size].decode("utf-8", "replace") if kind == b"Repr" else "<cycle>"


def _value_of(dump: bytes, at: int, wanted: str) -> int:
    count, at = _head(dump, at)
    for _ in range(count):
        size, text = _head(dump, at)
        if dump[text : text + size] == wanted.encode():
            return text + size
        at = _skip(dump, text + size)
    raise EngineFailed(f"the engine's dump has no {wanted!r} where it is expected")


def _encode_limits(limits: SessionLimits) -> bytes:
    cpu = (
        b"\xa2dsecs"
        + _encode_head(0, limits.cpu_ms // 1000)
        + b"enanos"
        + _encode_head(0, limits.cpu_ms % 1000 * 1_000_000)
    )
    fields = {
        b"max_feed_duration": cpu,
        b"max_turn_duration": b"\xf6",
        b"max_memory": _encode_head(0, limits.memory_mb << 20),
        b"gc_interval": b"\xf6",
        b"max_recursion_depth": _encode_head(0, limits.max_stack_depth),
        b"max_suspensions": _encode_head(0, MAX_SUSPENSIONS),
        b"max_total_sleep": b"\xf6",
    }
    return b"".join(_encode_head(3, len(key)) + key + value for key, value in fields.items())


def _encode_head(major: int, value: int) -> bytes:
    lead = major << 5
    if value < 24:
        return bytes([lead | value])
    for code, layout in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if value < 1 << (8 * struct.calcsize(layout)):
            return bytes([lead | code]) + struct.pack(layout, value)
    raise EngineFailed("a number does not fit the engine's dump")


def _head(dump: bytes, at: int) -> tuple[int, int]:
    """The argument of the item at *at*, and where what follows it starts."""
    info = dump[at] & 0x1F
    if info < 24:
        return info, at + 1
    if info > 27:
        raise EngineFailed("the engine's dump has an item of unknown length")
    size = 1 << (info - 24)
    return int.from_bytes(dump[at + 1 : at + 1 + size], "big"), at + 1 + size


def _skip(dump: bytes, at: int) -> int:
    """Where the item at *at* ends."""
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
