"""What a compiled guest imports, and the engine that compiles it.

Rules: what a guest imports is answered from its own `now_ms` and `outside`, or refused; nothing reaches the
machine that it runs on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import wasmtime

from standfast.sandbox.quickjs.guest import Broken, Guest

MAX_WASM_STACK: Final = 1_900_000
"""Native stack for a guest; wasmtime needs the rest of two megabytes for itself."""
_ERRNO_BADF: Final = 8


def new_engine(*, optimize: bool = True) -> wasmtime.Engine:
    """An engine that counts what it computes, and can be stopped from another thread."""
    config = wasmtime.Config()
    config.cranelift_opt_level = "speed" if optimize else "none"
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = MAX_WASM_STACK
    config.cranelift_nan_canonicalization = True
    return wasmtime.Engine(config)


class Imports:
    """A module linked to what it may import."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self.engine = engine
        self.module = module
        self.current: Guest | None = None
        self.linker = wasmtime.Linker(engine)
        known: dict[str, Callable[..., int | None]] = {
            "clock_time_get": self._clock,
            "host_call": self._host_call,
            "host_interrupt": _nothing,
            "host_module_load": _nothing,
            "host_module_normalize": _nothing,
            "proc_exit": _refuse_exit,
            "random_get": self._random,
        }
        for one in module.imports:
            name, kind = str(one.name), one.type
            assert isinstance(kind, wasmtime.FuncType)
            self.linker.define_func(one.module, name, kind, known.get(name, _refuse))

    def _clock(self, _clock: int, _precision: int, out: int) -> int:
        guest = self._entered()
        guest.write(out, struct.pack("<Q", guest.now_ms * 1_000_000))
        return 0

    def _random(self, out: int, size: int) -> int:
        """Seeds hash tables, before the prelude runs; chance for guest code is made elsewhere."""
        self._entered().write(out, bytes(size))
        return 0

    def _host_call(self, _name: int, _size: int, _this: int, count: int, arguments: int) -> int:
        guest = self._entered()
        try:
            return guest.answer_call(count, arguments)
        except BaseException as error:
            guest.failure = error
            raise

    def _entered(self) -> Guest:
        assert self.current is not None
        return self.current


def _nothing(*_: int) -> int:
    """No reason to stop; no module of that name."""
    return 0


def _refuse(*_: int) -> int:
    """No such file."""
    return _ERRNO_BADF


def _refuse_exit(*_: int) -> None:
    raise Broken("the guest wanted to exit")
