"""The guest's WebAssembly with guards that its build leaves out.

Theory of operation
-------------------
QuickJS knows how to stop code that recurses too deeply, how to survive a failed allocation, and how to tell
of promises that were rejected and never looked at. The build for WebAssembly has the first switched off,
hands the second to the code as an exception that it may catch, and offers no way to ask for the third. So
functions are changed before the module is compiled, as any linker could: a function's body moves to a new
function at the end, and its place is taken by one that calls it::

    call(ctx, f, …)   counts the depth of calls; past `call_depth_limit` it calls `overflow_function` instead
    sbrk(increment)   traps where memory cannot grow, so that nothing of the guest runs on
    (a new function)  in the function table, called for a rejected promise: calls `rejection_function`
    scrub, changed    new exports, for snapshots: see `snapshots.wat`

`overflow_function` and `rejection_function` are exported globals that hold functions of the prelude. When the
prelude has run, the memory it left becomes the module's own (`with_image`): a guest is new, and the prelude
has run in it already. A second memory holds a copy of that image, and room for a list.

Rules
-----
1. Only a module that is known by its digest is changed: the numbers of its functions are facts about it.
2. Nothing in the guest's memory is moved; the globals that are added hold no state between two entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

I32, I64 = 0x7F, 0x7E
UNDEFINED: Final = 3 << 32
"""The JavaScript value, as the engine has it in a 64-bit word."""
_BOOLEAN: Final = 1 << 32
_GENERATOR_FLAG: Final = 4
_COPY_ARGUMENTS_FLAG: Final = 2
_ROOM: Final = 64
"""How many calls deeper the functions of the prelude may go."""

DEPTH_LIMIT: Final = "call_depth_limit"
OVERFLOW: Final = "overflow_function"
REJECTION: Final = "rejection_function"
SCRUB: Final = "scrub"
CHANGED: Final = "changed"
COPY: Final = "copy"
LIST_BYTES: Final = 1 << 20
"""Room for a list, behind the copy of the image."""


@dataclass(frozen=True, slots=True)
class Build:
    """What has to be known of a guest.

    The numbers of two functions, how many functions it imports, where its data begins above its stack, and
    where the first chunk of its allocator (dlmalloc) lies.
    """

    call: int
    sbrk: int
    imports: int
    data: int
    heap: int


BUILDS: Final = {
    # quickjs-rs 0.2.6
    "647ab11ae29cc6d39a6d17d3aa1e7a6a0b5fb9c44b4864475a18bc644f926050": Build(
        call=762, sbrk=1928, imports=13, data=1 << 20, heap=1_177_304
    ),
}


@dataclass(frozen=True, slots=True)
class Guarded:
    """The changed module. `sbrk` is the function that traps for want of memory, `tracker` a table index."""

    wasm: bytes
    sbrk: int
    tracker: int


def guard(wasm: bytes, build: Build, snapshots: bytes) -> Guarded:
    """The module with its guards, and the functions of *snapshots*, a module of its own."""
    parts = _Parts(wasm)
    types = _function_types(parts)
    call_type = types[build.call - build.imports]
    sbrk_type = types[build.sbrk - build.imports]
    first = build.imports + len(types)
    depth = parts.count(_GLOBALS)
    bodies = _bodies(parts)
    bodies += [bodies[build.call - build.imports], bodies[build.sbrk - build.imports]]
    bodies[build.call - build.imports] = _call_body(first, depth)
    bodies[build.sbrk - build.imports] = _sbrk_body(first + 1)
    bodies += [_tracker_body(first, depth), *_bodies(_Parts(snapshots))]
    tracker_type = _type_number(parts, [I32, I64, I64, I32, I32], [])
    changed_type = _type_number(parts, [I32] * 5, [I32])
    new_types = (call_type, sbrk_type, tracker_type, sbrk_type, changed_type)
    parts.extend(_FUNCTIONS, [_uleb(one) for one in new_types])
    parts.extend(_GLOBALS, [_global(I32, 0), _global(I32, 2**31 - 1), _global(I64, 0), _global(I64, 0)])
    names = (DEPTH_LIMIT, OVERFLOW, REJECTION)
    parts.extend(_EXPORTS, [_export(name, 3, depth + 1 + at) for at, name in enumerate(names)])
    parts.extend(
        _EXPORTS, [_export(SCRUB, 0, first + 3), _export(CHANGED, 0, first + 4), _export(COPY, 2, 1)]
    )
    parts.extend(_MEMORIES, [b"\x00\x01"])
    parts.replace(_CODE, _vector([_uleb(len(body)) + body for body in bodies]))
    tracker = _add_to_table(parts, first + 2)
    return Guarded(parts.joined(), build.sbrk, tracker)


def with_image(wasm: bytes, start: int, image: bytes) -> bytes:
    """The module, whose memory begins with *image* from *start* on; the second memory with the same."""
    parts = _Parts(wasm)
    pages = (start + len(image)) // _PAGE
    copy_pages = -(-(len(image) + LIST_BYTES) // _PAGE)
    parts.replace(_MEMORIES, _vector([b"\x00" + _uleb(pages), b"\x01" + _uleb(copy_pages) * 2]))
    data = _uleb(len(image)) + image
    first = b"\x00" + _i32(start) + b"\x0b" + data
    parts.replace(_DATA, _vector([first, b"\x02\x01" + _i32(0) + b"\x0b" + data]))
    return parts.joined()


# ── the functions ────────────────────────────────────────────────────────────────────────────────────


def _call_body(original: int, depth: int) -> bytes:
    """`(ctx, function, this, new.target, argc, argv, flags) -> value`; 7 is the result, 8 the depth."""
    return _body(
        [(1, I64), (1, I32)],
        _get_global(depth) + _i32(1) + b"\x6a" + _set_global(depth),
        _get_global(depth) + _get_global(depth + 1) + b"\x4a",
        _get(6) + _i32(_GENERATOR_FLAG) + b"\x71\x45\x71",
        b"\x04\x40",
        _with_room(depth, 8, _get(0) + _call_value(original, depth + 2, _i32(0) + _i32(0), 0) + b"\x21\x07"),
        b"\x05",
        b"".join(_get(at) for at in range(7)) + b"\x10" + _uleb(original) + b"\x21\x07",
        b"\x0b",
        _get_global(depth) + _i32(1) + b"\x6b" + _set_global(depth),
        _get(7),
    )


def _sbrk_body(original: int) -> bytes:
    """`(increment) -> address`, which is -1 where memory cannot grow."""
    return _body(
        [],
        _get(0) + b"\x10" + _uleb(original) + b"\x22\x00",
        _i32(-1) + b"\x46" + b"\x04\x40" + b"\x00" + b"\x0b",
        _get(0),
    )


def _tracker_body(call: int, depth: int) -> bytes:
    """`(ctx, promise, reason, is_handled, opaque)`; 5 is a piece of the stack, 6 the depth."""
    store = b"\x37\x03"
    return _body(
        [(2, I32)],
        _get_global(0) + _i32(32) + b"\x6b" + b"\x22\x05" + _set_global(0),
        _get(5) + _get(1) + store + _uleb(0),
        _get(5) + _get(2) + store + _uleb(8),
        _get(5) + _get(3) + b"\xad" + _i64(_BOOLEAN) + b"\x84" + store + _uleb(16),
        _with_room(
            depth,
            6,
            _get(0) + _call_value(call, depth + 3, _i32(3) + _get(5), _COPY_ARGUMENTS_FLAG) + b"\x1a",
        ),
        _get(5) + _i32(32) + b"\x6a" + _set_global(0),
    )


def _call_value(call: int, value: int, arguments: bytes, flags: int) -> bytes:
    """Call the JavaScript function in a global; the context is on the stack already."""
    return (
        _get_global(value)
        + _i64(UNDEFINED)
        + _i64(UNDEFINED)
        + arguments
        + _i32(flags)
        + b"\x10"
        + _uleb(call)
    )


def _with_room(depth: int, saved: int, code: bytes) -> bytes:
    """The code, with a little room below the limit of the depth."""
    before = _get_global(depth) + b"\x21" + _uleb(saved)
    room = _get_global(depth + 1) + _i32(_ROOM) + b"\x6b" + _set_global(depth)
    return before + room + code + _get(saved) + _set_global(depth)


# ── the format ───────────────────────────────────────────────────────────────────────────────────────

_TYPES, _FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS, _EXPORTS, _ELEMENTS, _CODE, _DATA = (
    1,
    3,
    4,
    5,
    6,
    7,
    9,
    10,
    11,
)
_PAGE: Final = 65_536


class _Parts:
    """The sections of a module, in their order."""

    def __init__(self, wasm: bytes) -> None:
        self._header = wasm[:8]
        self._sections: list[tuple[int, bytes]] = []
        at = 8
        while at < len(wasm):
            size, start = _read_uleb(wasm, at + 1)
            self._sections.append((wasm[at], wasm[start : start + size]))
            at = start + size

    def __getitem__(self, number: int) -> bytes:
        return next(data for other, data in self._sections if other == number)

    def count(self, number: int) -> int:
        """How many entries a section has."""
        return _read_uleb(self[number], 0)[0]

    def replace(self, number: int, data: bytes) -> None:
        self._sections = [(other, data if other == number else old) for other, old in self._sections]

    def extend(self, number: int, entries: list[bytes]) -> None:
        """Add entries at the end of a section."""
        count, start = _read_uleb(self[number], 0)
        self.replace(number, _uleb(count + len(entries)) + self[number][start:] + b"".join(entries))

    def joined(self) -> bytes:
        parts = [bytes([number]) + _uleb(len(data)) + data for number, data in self._sections]
        return self._header + b"".join(parts)


def _function_types(parts: _Parts) -> list[int]:
    return _numbers(parts[_FUNCTIONS], 0)[0]


def _bodies(parts: _Parts) -> list[bytes]:
    data = parts[_CODE]
    count, at = _read_uleb(data, 0)
    found: list[bytes] = []
    for _ in range(count):
        size, at = _read_uleb(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def _type_number(parts: _Parts, params: list[int], results: list[int]) -> int:
    """The number of a function type that the module has."""
    data = parts[_TYPES]
    count, at = _read_uleb(data, 0)
    for number in range(count):
        taken, at = _numbers(data, at + 1)
        given, at = _numbers(data, at)
        if (taken, given) == (params, results):
            return number
    raise ValueError("the guest's module has no type for what tracks rejections")


def _add_to_table(parts: _Parts, function: int) -> int:
    """Make the table one longer, with this function at its end; its index."""
    size = _read_uleb(parts[_TABLES], 3)[0]  # one table, of functions, with a least and a greatest size
    parts.replace(_TABLES, bytes([1, 0x70, 1]) + _uleb(size + 1) * 2)
    head = b"\x00" + _i32(size) + b"\x0b"
    parts.extend(_ELEMENTS, [head + _vector([_uleb(function)])])
    return size


def _numbers(data: bytes, at: int) -> tuple[list[int], int]:
    count, at = _read_uleb(data, at)
    found: list[int] = []
    for _ in range(count):
        number, at = _read_uleb(data, at)
        found.append(number)
    return found, at


def _read_uleb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _uleb(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _sleb(value: int) -> bytes:
    made = bytearray()
    while not -0x40 <= value < 0x40:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value & 0x7F)
    return bytes(made)


def _vector(entries: Iterable[bytes]) -> bytes:
    listed = list(entries)
    return _uleb(len(listed)) + b"".join(listed)


def _body(local_types: list[tuple[int, int]], *code: bytes) -> bytes:
    return _vector(_uleb(n) + bytes([kind]) for n, kind in local_types) + b"".join(code) + b"\x0b"


def _get(local: int) -> bytes:
    return b"\x20" + _uleb(local)


def _get_global(number: int) -> bytes:
    return b"\x23" + _uleb(number)


def _set_global(number: int) -> bytes:
    return b"\x24" + _uleb(number)


def _i32(value: int) -> bytes:
    return b"\x41" + _sleb(value)


def _i64(value: int) -> bytes:
    return b"\x42" + _sleb(value)


def _global(kind: int, value: int) -> bytes:
    return bytes([kind, 1]) + (_i32(value) if kind == I32 else _i64(value)) + b"\x0b"


def _export(name: str, kind: int, number: int) -> bytes:
    return _vector(bytes([byte]) for byte in name.encode()) + bytes([kind]) + _uleb(number)
