"""QuickJS as WebAssembly, driven directly.

Theory of operation
-------------------
A guest is one instance of the module. It is entered by calls of its exports; between two entries its linear
memory is all there is of it, for its stack is empty and its globals never change. A new instance begins with
the memory of a guest that has run the prelude (the *boot image*), and a snapshot is what has changed since.

Rules
-----
1. The guest has no clock, chance, files, environment or network: what it imports is answered from `now_ms`
   and from `Outside`, or refused.
2. Whatever is read from the guest may be anything: pointers are checked against its memory.
3. A trap ends a guest. Nothing enters it again.
4. One thread at a time enters guests; only the epoch may be moved by another.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import wasmtime
from wasmtime import _bindings
from wasmtime import _ffi as ffi
from wasmtime import _func as wasmtime_func

from standfast.sandbox.quickjs.guarding import (
    CHANGED,
    COPY,
    DEPTH_LIMIT,
    LIST_BYTES,
    OVERFLOW,
    REJECTION,
    SCRUB,
)
from standfast.sandbox.quickjs.module_cache import Boot

MAX_DEPTH: Final = 1_000
"""Calls that deep fit into the native stack with room to spare."""
PAGE: Final = 65_536
_PLENTY: Final = 1 << 60
SCRATCH_BYTES: Final = 4096
_ERRNO_BADF: Final = 8
_ERROR_HANDLE: Final = -1
_EXPORTS: Final = (
    "qjs_alloc", "qjs_free", "new_string", "call_function", "get_string", "qjs_last_len", "qjs_last_ptr",
    "qjs_result_free", "free_value", "eval_code", "eval_async", "execute_pending_jobs", "run_gc",
    "last_exception", "get_prop", "new_function", "new_undefined", SCRUB, CHANGED,
)  # fmt: skip


class Trapped(Exception):
    """The guest was stopped in the middle of something. `reason` tells by what."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broken(Exception):
    """The guest answered with something that it must not answer with."""


class Outside(Protocol):
    """What a guest may ask for in the middle of an entry."""

    def ask(self, text: str) -> str:
        """Answer; what it raises stops the guest."""


class Maker(Protocol):
    """Where guests come from. `current` is the guest that was entered last."""

    engine: wasmtime.Engine
    module: wasmtime.Module
    linker: wasmtime.Linker
    current: Guest | None


class Guest:
    """One instance. Its methods enter it; each may raise `Trapped` or `Broken`."""

    def __init__(self, machine: Maker, boot: Boot, max_bytes: int) -> None:
        self._machine = machine
        self.boot = boot
        self.now_ms = 0
        self.outside: Outside | None = None
        self.failure: BaseException | None = None
        self._depth = 0
        self._store = wasmtime.Store(machine.engine)
        self._max_bytes = max_bytes
        self._store.set_limits(memory_size=self._least(max_bytes))
        self._store.set_fuel(_PLENTY)
        self._store.set_epoch_deadline(1)
        machine.current = self
        try:
            self._instance = machine.linker.instantiate(self._store, machine.module)
        except (wasmtime.WasmtimeError, wasmtime.Trap):
            raise Trapped("memory") from None
        exports: Any = self._instance.exports(self._store)
        self._exports = exports
        self._memory = exports["memory"]
        self._context = self._store._context()
        self._memory_at = ctypes.byref(self._memory._memory)
        self._copy = ctypes.addressof(exports[COPY].data_ptr(self._store).contents)
        self.calls = {name: self._caller(exports[name]) for name in _EXPORTS}
        exports[OVERFLOW].set_value(self._store, boot.overflow)
        exports[REJECTION].set_value(self._store, boot.rejected)

    def close(self) -> None:
        """Give its memory back."""
        self._store.close()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    def limit(self, *, memory: int, depth: int, fuel: int) -> None:
        """Set how large the guest may be from here on, how deep calls may go, how much may be computed."""
        self.limit_size(memory=memory, depth=depth)
        self._store.set_fuel(fuel)
        self._store.set_epoch_deadline(1)

    def limit_size(self, *, memory: int, depth: int) -> None:
        """The same, without giving the guest anything to compute with."""
        if memory != self._max_bytes:
            self._max_bytes = memory
            self._store.set_limits(memory_size=self._least(memory))
        if self.size > self._least(memory):
            raise Trapped("memory")
        if depth != self._depth:
            self._depth = depth
            self._exports[DEPTH_LIMIT].set_value(self._store, min(depth, MAX_DEPTH))

    def _least(self, max_bytes: int) -> int:
        """A limit below what a guest begins with is that much."""
        boot = self.boot
        return max(max_bytes, boot.data + boot.image_bytes, boot.image_bytes + LIST_BYTES + PAGE)

    def allow(self, max_bytes: int, fuel: int) -> None:
        """Let a guest that was stopped go on for a moment, with more of everything."""
        self._store.set_limits(memory_size=max_bytes)
        self._exports[DEPTH_LIMIT].set_value(self._store, 2**31 - 1)
        self._store.set_fuel(fuel)
        self._store.set_epoch_deadline(2)

    @property
    def fuel(self) -> int:
        """What is left."""
        return int(self._store.get_fuel())

    # ── memory ───────────────────────────────────────────────────────────────────────────────────

    @property
    def size(self) -> int:
        return int(ffi.wasmtime_memory_data_size(self._context, self._memory_at))

    def resize(self, size: int) -> None:
        """Make the memory so large, at least."""
        missing = size - self.size
        if missing > 0:
            try:
                self._memory.grow(self._store, -(-missing // PAGE))
            except wasmtime.WasmtimeError:
                raise Trapped("memory") from None

    def read(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > self.size:
            raise Broken("the guest pointed outside of its memory")
        return ctypes.string_at(self._base() + at, size)

    def views(self, runs: Iterable[tuple[int, int]]) -> Iterator[memoryview]:
        """The memory between pairs of addresses that `changed` found, until something enters the guest."""
        view = memoryview((ctypes.c_ubyte * self.size).from_address(self._base())).cast("B")
        return (view[start:end] for start, end in runs)

    def write(self, at: int, data: bytes) -> None:
        if at < 0 or at + len(data) > self.size:
            raise Broken("the guest pointed outside of its memory")
        ctypes.memmove(self._base() + at, data, len(data))

    def _base(self) -> int:
        return ctypes.addressof(ffi.wasmtime_memory_data(self._context, self._memory_at).contents)

    def tidy(self) -> None:
        """Remove what is no part of the guest: what was written for it to read, and what it has freed."""
        self.write(self.boot.scratch, bytes(SCRATCH_BYTES))
        self.scrub()

    def scrub(self) -> int:
        """Fill what is free with zeros; where the allocator's chunks end."""
        self._store.set_fuel(_PLENTY)
        return self.calls[SCRUB](self.boot.heap)

    def changed(self, gap: int) -> bytes | None:
        """Where the memory differs from the boot image: pairs of addresses, as `snapshots.wat` lists them.

        None if there are too many.
        """
        boot = self.boot
        room = LIST_BYTES // 8
        count = self.calls[CHANGED](boot.data, boot.image_bytes, gap, boot.image_bytes, room)
        if count < 0:
            return None
        return ctypes.string_at(self._copy + boot.image_bytes, count * 8)

    # ── entries ──────────────────────────────────────────────────────────────────────────────────

    def call(self, name: str, *texts: bytes) -> bytes:
        """Call a function of the bridge with texts; the text it returns."""
        handles = [self._text(one) for one in texts]
        result = self.call_handles(self.boot.handles[name], handles)
        for handle in handles:
            self.calls["free_value"](handle)
        return self._taken(result)

    def begin(self, code: bytes) -> bool:
        """Start a script. False if it cannot be read: `exception` tells why."""
        at, size = self.put(code)
        out = self.boot.scratch
        status = self.calls["eval_async"](at, len(code), out)
        self.release(at, size)
        if status:
            return False
        promise = self.word(out)
        self._free_result(self.call_handles(self.boot.handles["begin"], [promise]))
        self.calls["free_value"](promise)
        return True

    def run_jobs(self) -> None:
        """Run jobs until none is pending. The guest's own loop returns after 100,000 of them."""
        execute = self.calls["execute_pending_jobs"]
        while execute():
            pass

    def collect_garbage(self) -> None:
        self.calls["run_gc"]()

    def exception(self) -> tuple[str, str, str]:
        """Name, message and stack of what the last entry failed with."""
        if self.calls["last_exception"](self.boot.scratch):
            return "Error", "", ""
        handle = self.word(self.boot.scratch)
        found = [self._property_text(handle, name) for name in (b"name", b"message", b"stack")]
        self.calls["free_value"](handle)
        return found[0], found[1], found[2]

    def answer_call(self, count: int, arguments: int) -> int:
        """The guest asks for something: one text, to be answered by a text."""
        if self.outside is None or count != 1:
            return _ERROR_HANDLE
        text = self._string(self.word(arguments))
        return self._text(self.outside.ask(text.decode("utf-8", "replace")).encode())

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def call_handles(self, function: int, handles: list[int]) -> int:
        scratch = self.boot.scratch
        self.write(scratch, struct.pack(f"<4x{len(handles)}i", *handles))
        status = self.calls["call_function"](
            function, self.boot.undefined, scratch + 4, len(handles), scratch
        )
        if status:
            raise Broken(f"the bridge failed: {': '.join(self.exception())[:500]}")
        return self.word(scratch)

    def _text(self, text: bytes) -> int:
        at, size = self.put(text)
        handle = self.calls["new_string"](at, len(text))
        self.release(at, size)
        if not handle:
            raise Broken("the guest refused a text")
        return handle

    def put(self, data: bytes) -> tuple[int, int]:
        """Write data where the guest can read it; where that is, and how much is to be freed."""
        if len(data) <= SCRATCH_BYTES - 64:
            at = self.boot.scratch + 64
            self.write(at, data)
            return at, 0
        at = self.calls["qjs_alloc"](len(data))
        self.write(at, data)
        return at, len(data)

    def release(self, at: int, size: int) -> None:
        if size:
            self.calls["qjs_free"](at, size)

    def _taken(self, handle: int) -> bytes:
        text = self._string(handle)
        self._free_result(handle)
        return text

    def _free_result(self, handle: int) -> None:
        self.calls["free_value"](handle)

    def _string(self, handle: int) -> bytes:
        """A string's text; nothing of what is none."""
        if self.calls["get_string"](handle):
            return b""
        size = self.calls["qjs_last_len"]()
        text = self.read(self.calls["qjs_last_ptr"](), size) if size else b""
        self.calls["qjs_result_free"]()
        return text

    def _property_text(self, handle: int, name: bytes) -> str:
        at, _ = self.put(name)
        if self.calls["get_prop"](handle, at, len(name), self.boot.scratch):
            return ""
        return self._taken(self.word(self.boot.scratch)).decode("utf-8", "replace")

    def word(self, at: int) -> int:
        return int(struct.unpack("<i", self.read(at, 4))[0])

    # ── calls of exports ─────────────────────────────────────────────────────────────────────────

    def _caller(self, export: Any) -> Callable[..., int]:
        """Calls an export of 32-bit integers, with as little around it as there can be."""
        function = ctypes.byref(export._func)
        words = (ctypes.c_int64 * 16)()  # a raw value takes two of them
        values = ctypes.cast(words, ctypes.POINTER(ffi.wasmtime_val_raw_t))
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        trap_at = ctypes.byref(trap)
        context, enter, machine = self._context, _bindings._wasmtime_func_call_unchecked, self._machine

        def call(*arguments: int) -> int:
            for at, argument in enumerate(arguments):
                words[at * 2] = argument
            machine.current = self
            error = enter(context, function, values, 8, trap_at)
            if error or trap:
                taken = ctypes.cast(trap, ctypes.POINTER(ffi.wasm_trap_t))
                ctypes.memset(trap_at, 0, ctypes.sizeof(trap))  # the next call finds none
                self._fail(error, taken)
            value = words[0] & 0xFFFF_FFFF
            return value - (1 << 32) if value >= 1 << 31 else value

        return call

    def _fail(self, error: Any, trap: Any) -> None:
        wasmtime_func.LAST_EXCEPTION = None
        failure, self.failure = self.failure, None
        if error:
            reason = str(wasmtime.WasmtimeError._from_ptr(error))
        else:
            reason = self._reason(wasmtime.Trap._from_ptr(trap))
        if failure is not None:
            raise failure
        raise Trapped(reason)

    def _reason(self, trap: wasmtime.Trap) -> str:
        code = trap.trap_code
        if code is wasmtime.TrapCode.INTERRUPT:
            return "interrupt"
        if code is wasmtime.TrapCode.OUT_OF_FUEL:
            return "fuel"
        if code is wasmtime.TrapCode.STACK_OVERFLOW:
            return "stack"
        if code is wasmtime.TrapCode.UNREACHABLE and trap.frames[0].func_index == self.boot.grower:
            return "memory"
        return trap.message.splitlines()[-1] if trap.message else "trap"
