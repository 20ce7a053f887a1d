"""Creation of the initial guest, which all guests are copies of: the guarded module after its prelude.

QuickJS can stop code that recurses too deeply, survive a failed allocation, and report rejected promises that
no code handles. Its WebAssembly build has the first disabled, reports the second to the code as an exception,
and has no interface for the third. So the module is changed before it is compiled: the body of a function
moves to a new function, and is replaced by a function of `guards.wat` that calls the new one::

    call(ctx, f, …)   counts the depth of calls; past `call_depth_limit` it calls `overflow_function` instead
    sbrk(increment)   traps if memory cannot grow
    (a new function)  in the function table, called for a rejected promise: calls `rejection_function`
    scrub, changed    new exports, for snapshots

Two exported globals hold these functions of the prelude. After the prelude has run, its memory becomes the
initial memory of the module; a second memory holds a copy of that image, and space for a list. All of this
happens once per build; `module_cache` stores the result.

Only a module with a known digest is changed, because the numbers of its functions are hard-coded. Nothing in
the guest's memory is moved. Only this file depends on the layout of the engine's data in memory, and it
checks each assumption.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import wasmtime

from standfast.sandbox.quickjs import module_cache
from standfast.sandbox.quickjs.build import GuestMissing, build_id, guest_wasm, prelude
from standfast.sandbox.quickjs.guest import (
    CHANGED,
    COPY,
    DEPTH_LIMIT,
    LIST_BYTES,
    OVERFLOW,
    PAGE,
    REJECTION,
    SCRATCH_BYTES,
    SCRUB,
    Broken,
    Guest,
    Imports,
    new_engine,
)
from standfast.sandbox.quickjs.module_cache import BootFacts

_GUARDS: Final = Path(__file__).with_name("guards.wat")
_BRIDGE: Final = ("open", "bind", "begin", "settle", "poll", "rest", "close", "overflow", "rejected")
_OBJECT_TAG: Final = 0xFFFF_FFFF
_BOOT_BYTES: Final = 64 << 20
_I32, _I64 = 0x7F, 0x7E
_TYPES, _FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS = 1, 3, 4, 5, 6
_EXPORTS, _ELEMENTS, _CODE, _DATA = 7, 9, 10, 11


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Facts about one module.

    The numbers of two functions, the number of imported functions, the address of its data (above its stack),
    and the address of the first chunk of its allocator (dlmalloc).
    """

    call: int
    sbrk: int
    imports: int
    data: int
    heap: int


BUILDS: Final = {
    # quickjs-rs 0.2.6
    "647ab11ae29cc6d39a6d17d3aa1e7a6a0b5fb9c44b4864475a18bc644f926050": ModuleFacts(
        call=762, sbrk=1928, imports=13, data=1 << 20, heap=1_177_304
    )
}


class CompiledGuest(Imports):
    """The compiled guest with the prelude, from the cache or newly compiled. A process has one."""

    def __init__(self) -> None:
        engine = new_engine()
        known = module_cache.load(engine, build_id())
        if known is None:
            known = booted(engine)
            module_cache.store(build_id(), *known)
        module, self.boot = known
        super().__init__(engine, module)

    def guest(self, max_bytes: int) -> Guest:
        """Create a guest that has run only the prelude."""
        return Guest(self, self.boot, max_bytes)


def booted(engine: wasmtime.Engine) -> tuple[wasmtime.Module, BootFacts]:
    """Compile the module with the memory that the prelude leaves; return it and facts about it."""
    wasm = guest_wasm()
    build = BUILDS.get(hashlib.sha256(wasm).hexdigest())
    if build is None:
        raise GuestMissing("the installed version of quickjs-rs is not supported; install quickjs-rs==0.2.6")
    guarded, tracker = guard(wasm, build)
    quick = new_engine(optimize=False)  # it runs once, for a few milliseconds
    nothing = BootFacts(
        data=build.data, heap=build.heap, image_bytes=0, digest=b"", handles={}, undefined=0, scratch=0,
        overflow=0, rejected=0, grower=build.sbrk,
    )  # fmt: skip
    guest = Guest(Imports(quick, wasmtime.Module(quick, guarded)), nothing, _BOOT_BYTES)
    guest.boot = boot = _with_prelude(guest)
    _install_tracker(guest, tracker)
    guest.calls["run_gc"]()
    guest.write(boot.scratch, bytes(SCRATCH_BYTES))
    if guest.scrub() != guest.size:
        raise Broken("the guest's heap has an unexpected layout")
    image = guest.read(build.data, guest.size - build.data)
    guest.close()
    digest = hashlib.sha256(image).digest()[:16]
    boot = msgspec.structs.replace(boot, image_bytes=len(image), digest=digest)
    parts = _Sections(guarded)  # its memory begins with the image, and its second memory holds a copy
    pages, copy_pages = (build.data + len(image)) // PAGE, -(-(len(image) + LIST_BYTES) // PAGE)
    parts.replace(_MEMORIES, _vector([b"\x00" + _uleb(pages), b"\x01" + _uleb(copy_pages) * 2]))
    data = _uleb(len(image)) + image
    parts.replace(_DATA, _vector([b"\x00" + _const(build.data) + data, b"\x02\x01" + _const(0) + data]))
    return wasmtime.Module(engine, parts.joined()), boot


def _with_prelude(guest: Guest) -> BootFacts:
    """Run the prelude, and look up the handles of the bridge's functions."""
    calls = guest.calls
    scratch = calls["qjs_alloc"](SCRATCH_BYTES)
    guest.boot = msgspec.structs.replace(guest.boot, scratch=scratch, undefined=calls["new_undefined"]())
    at, _ = guest.put(b"host")
    host = calls["new_function"](at, 4)
    code = prelude()
    at, size = guest.put(code)
    if calls["eval_code"](at, len(code), scratch):
        raise Broken(f"the prelude cannot be run: {guest.exception()}")
    guest.release(at, size)
    bridge = guest.call_handles(guest.word(scratch), [host])
    handles: dict[str, int] = {}
    for name in _BRIDGE:
        at, _ = guest.put(name.encode())
        calls["get_prop"](bridge, at, len(name), scratch)
        handles[name] = guest.word(scratch)
    words = [struct.unpack("<q", guest.read(handles[name], 8))[0] for name in ("overflow", "rejected")]
    if any((word >> 32) & 0xFFFF_FFFF != _OBJECT_TAG for word in words):
        raise Broken("a handle of the guest has an unexpected value")
    return msgspec.structs.replace(guest.boot, handles=handles, overflow=words[0], rejected=words[1])


def _install_tracker(guest: Guest, tracker: int) -> None:
    """Make the engine report rejected promises, and disable its interrupt handler, which nothing needs."""
    # Both fields precede the engine's list of jobs. The list is empty, so it is found by its pointers to
    # itself.
    start = guest.boot.heap
    data = guest.read(start, guest.size - start)
    words = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
    found = [
        start + at * 4
        for at in range(7, len(words) - 1)
        if words[at] == words[at + 1] == start + at * 4 and not any(words[at - 5 : at]) and words[at - 6]
    ]
    if len(found) != 1:
        raise Broken("the guest's runtime has an unexpected layout")
    jobs = found[0]
    guest.write(jobs - 28, struct.pack("<I", 0))
    guest.write(jobs - 8, struct.pack("<I", tracker))


# ── the module ───────────────────────────────────────────────────────────────────────────────────────


def guard(wasm: bytes, build: ModuleFacts) -> tuple[bytes, int]:
    """Return the module with its guards, and the table index of the function for rejected promises."""
    parts = _Sections(wasm)
    types, _ = _numbers(parts[_FUNCTIONS], 0)
    call, sbrk = build.call - build.imports, build.sbrk - build.imports
    first = build.imports + len(types)
    depth = _read_uleb(parts[_GLOBALS], 0)[0]
    guards = _GUARDS.read_text().format(
        depth=depth, limit=depth + 1, overflow=depth + 2, rejection=depth + 3, call=first, sbrk=first + 1
    )
    new_call, new_sbrk, *others = _Sections(bytes(wasmtime.wat2wasm(guards))).bodies()
    bodies = parts.bodies()
    bodies += [bodies[call], bodies[sbrk], *others]
    bodies[call], bodies[sbrk] = new_call, new_sbrk
    tracker_type = parts.type_number([_I32, _I64, _I64, _I32, _I32], [])
    changed_type = parts.type_number([_I32] * 5, [_I32])
    new_types = (types[call], types[sbrk], tracker_type, types[sbrk], changed_type)
    parts.extend(_FUNCTIONS, [_uleb(one) for one in new_types])
    new_globals = ((_I32, 0), (_I32, 2**31 - 1), (_I64, 0), (_I64, 0))
    parts.extend(_GLOBALS, [bytes([kind, 1]) + _const(value, kind) for kind, value in new_globals])
    exports = [(DEPTH_LIMIT, 3, depth + 1), (OVERFLOW, 3, depth + 2), (REJECTION, 3, depth + 3)]
    exports += [(SCRUB, 0, first + 3), (CHANGED, 0, first + 4), (COPY, 2, 1)]
    named = [_uleb(len(name)) + name.encode() + bytes([kind]) + _uleb(at) for name, kind, at in exports]
    parts.extend(_EXPORTS, named)
    parts.extend(_MEMORIES, [b"\x00\x01"])
    parts.replace(_CODE, _vector([_uleb(len(body)) + body for body in bodies]))
    tracker = _read_uleb(parts[_TABLES], 3)[0]  # one table of functions, with minimum and maximum size
    parts.replace(_TABLES, bytes([1, 0x70, 1]) + _uleb(tracker + 1) * 2)
    parts.extend(_ELEMENTS, [b"\x00" + _const(tracker) + _vector([_uleb(first + 2)])])
    return parts.joined(), tracker


class _Sections:
    """The sections of a WebAssembly module, in order."""

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

    def replace(self, number: int, data: bytes) -> None:
        self._sections = [(other, data if other == number else old) for other, old in self._sections]

    def extend(self, number: int, entries: list[bytes]) -> None:
        """Append entries to a section."""
        count, start = _read_uleb(self[number], 0)
        self.replace(number, _uleb(count + len(entries)) + self[number][start:] + b"".join(entries))

    def bodies(self) -> list[bytes]:
        """Return the bodies of the module's functions."""
        data = self[_CODE]
        count, at = _read_uleb(data, 0)
        found: list[bytes] = []
        for _ in range(count):
            size, at = _read_uleb(data, at)
            found.append(data[at : at + size])
            at += size
        return found

    def type_number(self, params: list[int], results: list[int]) -> int:
        """Return the number of the module's function type with these parameters and results."""
        data = self[_TYPES]
        count, at = _read_uleb(data, 0)
        for number in range(count):
            taken, at = _numbers(data, at + 1)
            given, at = _numbers(data, at)
            if (taken, given) == (params, results):
                return number
        raise ValueError("the guest's module lacks the type of a function that the guards add")

    def joined(self) -> bytes:
        parts = [bytes([number]) + _uleb(len(data)) + data for number, data in self._sections]
        return self._header + b"".join(parts)


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
    return bytes([*made, value])


def _const(value: int, kind: int = _I32) -> bytes:
    """Encode a constant expression, as used for globals and offsets."""
    made = bytearray(b"\x41" if kind == _I32 else b"\x42")
    while not -0x40 <= value < 0x40:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value & 0x7F, 0x0B])


def _vector(entries: Iterable[bytes]) -> bytes:
    listed = list(entries)
    return _uleb(len(listed)) + b"".join(listed)
