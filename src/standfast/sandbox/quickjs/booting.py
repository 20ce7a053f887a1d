"""Makes the guest that all others begin as: the guarded module, with the prelude run in it.

This happens once for a build; the result is kept (`module_cache`). It is the only place that knows how
the engine's own data lie in memory, and it checks what it believes.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Final

import msgspec
import wasmtime

from standfast.sandbox.quickjs.build import GuestMissing, guest_wasm, prelude
from standfast.sandbox.quickjs.guarding import BUILDS, Build, Guarded, guard, with_image
from standfast.sandbox.quickjs.guest import SCRATCH_BYTES, Broken, Guest
from standfast.sandbox.quickjs.guest_imports import Imports, new_engine
from standfast.sandbox.quickjs.module_cache import Boot

_OBJECT_TAG: Final = 0xFFFF_FFFF
_BRIDGE: Final = ("open", "bind", "begin", "settle", "poll", "rest", "close", "overflow", "rejected")
_SNAPSHOTS: Final = Path(__file__).with_name("snapshots.wat")
_BOOT_BYTES: Final = 64 << 20


def booted(engine: wasmtime.Engine) -> tuple[wasmtime.Module, Boot]:
    """The module that has run the prelude, and what has to be known of it."""
    wasm = guest_wasm()
    build = BUILDS.get(hashlib.sha256(wasm).hexdigest())
    if build is None:
        raise GuestMissing("the installed quickjs-rs is not one that is known; install quickjs-rs==0.2.6")
    guarded = guard(wasm, build, bytes(wasmtime.wat2wasm(_SNAPSHOTS.read_text())))
    quick = new_engine(optimize=False)  # it runs once, for a few milliseconds
    boot, image = _run(Imports(quick, wasmtime.Module(quick, guarded.wasm)), build, guarded)
    return wasmtime.Module(engine, with_image(guarded.wasm, build.data, image)), boot


def _run(imports: Imports, build: Build, guarded: Guarded) -> tuple[Boot, bytes]:
    """Run the prelude in a guest, and keep what it leaves."""
    nothing = Boot(
        data=build.data, heap=build.heap, image_bytes=0, digest=b"", handles={}, undefined=0, scratch=0,
        overflow=0, rejected=0, grower=build.sbrk,
    )  # fmt: skip
    guest = Guest(imports, nothing, _BOOT_BYTES)
    guest.boot = boot = _with_prelude(guest)
    _install_tracker(guest, guarded.tracker)
    guest.collect_garbage()
    guest.write(boot.scratch, bytes(SCRATCH_BYTES))
    if guest.scrub() != guest.size:
        raise Broken("the guest's heap is not as it should be")
    image = guest.read(build.data, guest.size - build.data)
    guest.close()
    return _described(boot, image), image


def _with_prelude(guest: Guest) -> Boot:
    """Run the prelude; handles of the functions of the bridge."""
    calls, boot = guest.calls, guest.boot
    scratch = calls["qjs_alloc"](SCRATCH_BYTES)
    guest.boot = boot = _replaced(boot, scratch=scratch, undefined=calls["new_undefined"]())
    at, _ = guest.put(b"host")
    host = calls["new_function"](at, 4)
    code = prelude()
    at, size = guest.put(code)
    if calls["eval_code"](at, len(code), scratch):
        raise Broken(f"the prelude cannot be read: {guest.exception()}")
    guest.release(at, size)
    bridge = guest.call_handles(guest.word(scratch), [host])
    handles = {name: _property(guest, bridge, name) for name in _BRIDGE}
    return _replaced(
        boot,
        handles=handles,
        overflow=_value_of(guest, handles["overflow"]),
        rejected=_value_of(guest, handles["rejected"]),
    )


def _property(guest: Guest, handle: int, name: str) -> int:
    at, _ = guest.put(name.encode())
    guest.calls["get_prop"](handle, at, len(name), guest.boot.scratch)
    return guest.word(guest.boot.scratch)


def _value_of(guest: Guest, handle: int) -> int:
    """The engine's own word for an object, which a handle points to."""
    found: int = struct.unpack("<q", guest.read(handle, 8))[0]
    if (found >> 32) & 0xFFFF_FFFF != _OBJECT_TAG:
        raise Broken("a handle of the guest is not as it should be")
    return found


def _install_tracker(guest: Guest, tracker: int) -> None:
    """Have the engine tell of rejected promises, and not ask whether it should stop: the epoch does that.

    The fields lie before the engine's list of jobs, which is empty: a list that points to itself.
    """
    start = guest.boot.heap
    data = guest.read(start, guest.size - start)
    words = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
    found = [
        start + at * 4
        for at in range(7, len(words) - 1)
        if words[at] == words[at + 1] == start + at * 4 and not any(words[at - 5 : at]) and words[at - 6]
    ]
    if len(found) != 1:
        raise Broken("the guest's runtime is not as it should be")
    jobs = found[0]
    guest.write(jobs - 28, struct.pack("<I", 0))
    guest.write(jobs - 8, struct.pack("<I", tracker))


def _described(boot: Boot, image: bytes) -> Boot:
    digest = hashlib.sha256(image).digest()[:16]
    return _replaced(boot, image_bytes=len(image), digest=digest)


def _replaced(boot: Boot, **changes: object) -> Boot:
    return msgspec.structs.replace(boot, **changes)
