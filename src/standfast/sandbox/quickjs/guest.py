"""QuickJS in WebAssembly, called through its exports.

A guest is one instance of the module. It is entered by calling its exports. Between two entries, its linear
memory is its whole state, because its stack is empty and its globals never change. A new instance begins with
the memory of a guest that has run the prelude (the *boot image*); a snapshot has the changes since then.

Rules
-----
1. The guest has no clock, randomness, files, environment or network: its imports use `now_ms` and `ask`, or
   fail. No import gives it access to the machine.
2. Nothing read from the guest is trusted: pointers are checked against its memory.
3. A trap ends a guest. It is not entered again.
4. One thread at a time enters guests; other threads may only advance the epoch.
5. The memory is never copied as a whole: snapshots are read from it and written to it piece by piece.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import wasmtime
from wasmtime import _bindings
from wasmtime import _ffi as ffi
from wasmtime import _func as wasmtime_func

from standfast.sandbox.quickjs.module_cache import BootFacts

MAX_DEPTH: Final = 1_000
"""Calls nested this deeply fit into the native stack with room to spare."""
MAX_WASM_STACK: Final = 1_900_000
"""The native stack of a guest, in bytes; wasmtime itself needs the rest of two megabytes."""
PAGE: Final = 65_536
SCRATCH_BYTES: Final = 4096
LIST_BYTES: Final = 1 << 20
"""The space for a list after the copy of the image."""
DEPTH_LIMIT: Final = "call_depth_limit"
OVERFLOW: Final = "overflow_function"
REJECTION: Final = "rejection_function"
SCRUB: Final = "scrub"
CHANGED: Final = "changed"
COPY: Final = "copy"
_PLENTY: Final = 1 << 60
_PAIR: Final = struct.Struct("<II")
_GAPS: Final = (64, 256, 4096, 1 << 16, 1 << 31)
_ERRNO_BADF: Final = 8
_ERROR_HANDLE: Final = -1
_EXPORTS: Final = (
    "qjs_alloc", "qjs_free", "new_string", "call_function", "get_string", "qjs_last_len", "qjs_last_ptr",
    "qjs_result_free", "free_value", "eval_code", "eval_async", "execute_pending_jobs", "run_gc",
    "last_exception", "get_prop", "new_function", "new_undefined", SCRUB, CHANGED,
)  # fmt: skip
_TRAPS: Final[dict[wasmtime.TrapCode | None, str]] = {
    wasmtime.TrapCode.INTERRUPT: "interrupt",
    wasmtime.TrapCode.OUT_OF_FUEL: "fuel",
    wasmtime.TrapCode.STACK_OVERFLOW: "stack",
}


class Trapped(Exception):
    """The guest was stopped in the middle of an entry, because of `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Broken(Exception):
    """The guest returned something invalid."""


class Guest:
    """One instance. Methods that enter it may raise `Trapped`, `Broken`, or an exception of `ask`."""

    def __init__(self, machine: Imports, boot: BootFacts, max_bytes: int) -> None:
        self._machine = machine
        self.boot = boot
        self.now_ms = 0
        self.ask: Callable[[str], str] | None = None
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
        """Free its memory."""
        self._store.close()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────

    def limit(self, *, memory: int, depth: int, fuel: int | None = None) -> None:
        """Set the guest's limits of memory (in bytes), call depth and, if given, *fuel*."""
        if memory != self._max_bytes:
            self._max_bytes = memory
            self._store.set_limits(memory_size=self._least(memory))
        if self.size > self._least(memory):
            raise Trapped("memory")
        if depth != self._depth:
            self._depth = depth
            self._exports[DEPTH_LIMIT].set_value(self._store, min(depth, MAX_DEPTH))
        if fuel is not None:
            self._store.set_fuel(fuel)
            self._store.set_epoch_deadline(1)

    def _least(self, max_bytes: int) -> int:
        """Return *max_bytes*, or the memory that a new guest has if that is more."""
        boot = self.boot
        return max(max_bytes, boot.data + boot.image_bytes, boot.image_bytes + LIST_BYTES + PAGE)

    def allow(self, max_bytes: int, fuel: int) -> None:
        """Let a stopped guest be entered once more, with higher limits."""
        self._store.set_limits(memory_size=max_bytes)
        self._exports[DEPTH_LIMIT].set_value(self._store, 2**31 - 1)
        self._store.set_fuel(fuel)
        self._store.set_epoch_deadline(2)

    @property
    def fuel(self) -> int:
        """The remaining fuel."""
        return int(self._store.get_fuel())

    # ── memory ───────────────────────────────────────────────────────────────────────────────────

    @property
    def size(self) -> int:
        return int(ffi.wasmtime_memory_data_size(self._context, self._memory_at))

    def resize(self, size: int) -> None:
        """Grow the memory to at least *size* bytes."""
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
        """Yield a view of the memory of each run that `changed` found.

        It is valid until the guest is entered.
        """
        view = memoryview((ctypes.c_ubyte * self.size).from_address(self._base())).cast("B")
        return (view[start:end] for start, end in runs)

    def write(self, at: int, data: bytes) -> None:
        if at < 0 or at + len(data) > self.size:
            raise Broken("the guest pointed outside of its memory")
        ctypes.memmove(self._base() + at, data, len(data))

    def word(self, at: int) -> int:
        return int(struct.unpack("<i", self.read(at, 4))[0])

    def _base(self) -> int:
        return ctypes.addressof(ffi.wasmtime_memory_data(self._context, self._memory_at).contents)

    def scrub(self) -> int:
        """Fill free memory with zeros; return the end of the allocator's chunks."""
        self._store.set_fuel(_PLENTY)
        return self.calls[SCRUB](self.boot.heap)

    def changed(self, gap: int) -> bytes | None:
        """Return the memory that differs from the boot image, as pairs of addresses; None if too many."""
        boot = self.boot
        room = LIST_BYTES // 8
        count = self.calls[CHANGED](boot.data, boot.image_bytes, gap, boot.image_bytes, room)
        return None if count < 0 else ctypes.string_at(self._copy + boot.image_bytes, count * 8)

    # ── entries ──────────────────────────────────────────────────────────────────────────────────

    def call(self, name: str, *texts: bytes) -> bytes:
        """Call a function of the bridge with strings, and return the string that it returns."""
        handles = [self._new_string(one) for one in texts]
        result = self.call_handles(self.boot.handles[name], handles)
        for handle in handles:
            self.calls["free_value"](handle)
        return self._take_string(result)

    def begin(self, code: bytes) -> bool:
        """Start a script; return False if it cannot be parsed: `exception` then returns the reason."""
        at, size = self.put(code)
        out = self.boot.scratch
        status = self.calls["eval_async"](at, len(code), out)
        self.release(at, size)
        if status:
            return False
        promise = self.word(out)
        self.calls["free_value"](self.call_handles(self.boot.handles["begin"], [promise]))
        self.calls["free_value"](promise)
        return True

    def run_jobs(self) -> None:
        """Run jobs until none is pending. The guest's own loop returns after 100,000 of them."""
        execute = self.calls["execute_pending_jobs"]
        while execute():
            pass

    def exception(self) -> list[str]:
        """Return name, message and stack of the exception that the last entry failed with."""
        scratch, found = self.boot.scratch, ["", "", ""]
        if self.calls["last_exception"](scratch):
            return ["Error", "", ""]
        handle = self.word(scratch)
        for index, name in enumerate((b"name", b"message", b"stack")):
            at, _ = self.put(name)
            if not self.calls["get_prop"](handle, at, len(name), scratch):
                found[index] = self._take_string(self.word(scratch)).decode("utf-8", "replace")
        self.calls["free_value"](handle)
        return found

    def answer_call(self, count: int, arguments: int) -> int:
        """Pass the guest's question, one string, to `ask`, and return a handle of the answer."""
        if self.ask is None or count != 1:
            return _ERROR_HANDLE
        text = self._string(self.word(arguments))
        return self._new_string(self.ask(text.decode("utf-8", "replace")).encode())

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    def call_handles(self, function: int, handles: list[int]) -> int:
        scratch, undefined = self.boot.scratch, self.boot.undefined
        self.write(scratch, struct.pack(f"<4x{len(handles)}i", *handles))
        if self.calls["call_function"](function, undefined, scratch + 4, len(handles), scratch):
            raise Broken(f"the bridge failed: {': '.join(self.exception())[:500]}")
        return self.word(scratch)

    def put(self, data: bytes) -> tuple[int, int]:
        """Write data to the guest's memory; return its address, and the number of bytes to free later."""
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

    def _new_string(self, text: bytes) -> int:
        at, size = self.put(text)
        handle = self.calls["new_string"](at, len(text))
        self.release(at, size)
        if not handle:
            raise Broken("the guest could not create a string")
        return handle

    def _take_string(self, handle: int) -> bytes:
        text = self._string(handle)
        self.calls["free_value"](handle)
        return text

    def _string(self, handle: int) -> bytes:
        """Return the text of a string value; empty for any other value."""
        if self.calls["get_string"](handle):
            return b""
        size = self.calls["qjs_last_len"]()
        text = self.read(self.calls["qjs_last_ptr"](), size) if size else b""
        self.calls["qjs_result_free"]()
        return text

    # ── calls of exports ─────────────────────────────────────────────────────────────────────────

    def _caller(self, export: Any) -> Callable[..., int]:
        """Return a function that calls an export that takes 32-bit integers, with minimal overhead."""
        function = ctypes.byref(export._func)
        words = (ctypes.c_int64 * 16)()  # a raw value takes two words
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
                ctypes.memset(trap_at, 0, ctypes.sizeof(trap))  # cleared for the next call
                self._fail(error, taken)
            value = words[0] & 0xFFFF_FFFF
            return value - (1 << 32) if value >= 1 << 31 else value

        return call

    def _fail(self, error: Any, trap: Any) -> None:
        """Raise the exception that ended an entry: that of an import, or `Trapped`.

        Both pointers are freed.
        """
        wasmtime_func.LAST_EXCEPTION = None
        failure, self.failure = self.failure, None
        if error:
            reason = str(wasmtime.WasmtimeError._from_ptr(error))
        else:
            found = wasmtime.Trap._from_ptr(trap)
            code, message = found.trap_code, found.message
            if code is wasmtime.TrapCode.UNREACHABLE and found.frames[0].func_index == self.boot.grower:
                reason = "memory"
            else:
                reason = _TRAPS.get(code, "") or (message.splitlines()[-1] if message else "trap")
        raise Trapped(reason) if failure is None else failure


class GuestSnapshot:
    """A snapshot of a guest between two entries. It is invalid as soon as the guest is entered.

    It has the size of the memory, and the runs of blocks that differ from the boot image, or beyond its end
    from zeros. The stack, below the guest's data, is empty between two entries and is not included::

        size, count | start, end | start, end | … | the bytes of each run
    """

    def __init__(self, guest: Guest) -> None:
        guest.write(guest.boot.scratch, bytes(SCRATCH_BYTES))  # scratch and freed memory are not state
        guest.scrub()
        listed = next(found for gap in _GAPS if (found := guest.changed(gap)) is not None)
        self._guest = guest
        self._runs: list[tuple[int, int]] = list(_PAIR.iter_unpack(listed))
        self._head = _PAIR.pack(guest.size, len(self._runs)) + listed
        self.size = len(self._head) + sum(end - start for start, end in self._runs)

    def parts(self) -> Iterator[bytes | memoryview]:
        yield self._head
        yield from self._guest.views(self._runs)


def load_snapshot(guest: Guest, size: int, pieces: Iterable[bytes]) -> None:
    """Load a snapshot of *size* bytes into a new guest, piece by piece.

    Raise `ValueError` if the bytes are not a snapshot, `Trapped` if it is larger than allowed. Nothing is
    written outside of the guest's data.
    """
    source = _Source(pieces)
    memory, count = _PAIR.unpack(source.take(min(size, _PAIR.size)).ljust(_PAIR.size, b"\0"))
    left = size - _PAIR.size * (1 + count)
    if left < 0:
        raise ValueError("the list of runs is incomplete")
    runs: list[tuple[int, int]] = list(_PAIR.iter_unpack(source.take(_PAIR.size * count)))
    start = guest.boot.data
    if memory % PAGE or memory < start + guest.boot.image_bytes:
        raise ValueError("the size of the memory is wrong")
    if any(not start <= first < end <= memory for first, end in runs):
        raise ValueError("a run lies outside of the memory")
    if sum(end - first for first, end in runs) != left:
        raise ValueError("the runs are incomplete")
    guest.resize(memory)
    for first, end in runs:
        for piece in source.pieces(end - first):
            guest.write(first, piece)
            first += len(piece)


class _Source:
    """A reader of bytes that arrive in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def pieces(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._rest:
                self._rest = memoryview(next(self._pieces))
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield bytes(piece)

    def take(self, size: int) -> bytes:
        return b"".join(self.pieces(size))


def new_engine(*, optimize: bool = True) -> wasmtime.Engine:
    """Return an engine that consumes fuel, and whose guests can be stopped from another thread."""
    config = wasmtime.Config()
    config.cranelift_opt_level = "speed" if optimize else "none"
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = MAX_WASM_STACK
    config.cranelift_nan_canonicalization = True
    return wasmtime.Engine(config)


class Imports:
    """A module with its imports. `current` is the guest that was entered last."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.engine = engine
        self.module = module
        self.current: Guest | None = None
        self.linker = wasmtime.Linker(engine)
        known: dict[str, Callable[..., int | None]] = {
            "clock_time_get": self._clock,
            "host_call": self._host_call,
            "host_interrupt": lambda *_: 0,  # do not interrupt
            "host_module_load": lambda *_: 0,  # no such module
            "host_module_normalize": lambda *_: 0,
            "proc_exit": self._exit,
            "random_get": self._random,
        }
        for one in module.imports:
            name, kind = str(one.name), one.type
            assert isinstance(kind, wasmtime.FuncType)
            self.linker.define_func(one.module, name, kind, known.get(name, lambda *_: _ERRNO_BADF))

    def _clock(self, _clock: int, _precision: int, out: int) -> int:
        assert self.current is not None
        self.current.write(out, struct.pack("<Q", self.current.now_ms * 1_000_000))
        return 0

    def _random(self, out: int, size: int) -> int:
        """Fill memory for the seeds of hash tables. Random numbers for guest code do not come from here."""
        assert self.current is not None
        self.current.write(out, bytes(size))
        return 0

    def _exit(self, _status: int) -> None:
        raise Broken("the guest called exit")

    def _host_call(self, _name: int, _size: int, _this: int, count: int, arguments: int) -> int:
        guest = self.current
        assert guest is not None
        try:
            return guest.answer_call(count, arguments)
        except BaseException as error:
            guest.failure = error
            raise
