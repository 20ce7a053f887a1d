"""Sessions on any `CodeEngine`: their state is the engine's bytes, their runs are cells.

Rules
-----
1. As many runs as the engine has workers go on at once, so none of them waits for one on its own time.
2. What a run began with (inputs, time, seed) is parked with it: an engine may replay a run to continue it.
3. Sleeping is a call of a cell and not one of a run. So that sleeps are not counted, a cell may make more
   calls than the run, `MAX_SLEEPS` more, and the run counts.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from standfast.errors import Code, SnapshotRefused
from standfast.model.canonical import Json
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.ports.clock import Clock
from standfast.ports.code_engine import CellRequest, CodeEngine
from standfast.sandbox.cell_session_run import MAX_SLEEPS, Beginning, CellSessionRun, ParkedCell
from standfast.sandbox.monty.validate import too_slow
from standfast.sandbox.registry_functions import RegistryFunctions
from standfast.sandbox.run_calls import RunHost
from standfast.sandbox.run_order import RunOrder
from standfast.tools.registry import ToolRegistry

_MAX_DIAGNOSTICS: Final = 200


class CellSessions:
    """A `SessionEngine`. A state is the engine's bytes; that of a new session is None.

    `under` are engines that *cells* is made of, and that are closed with it.
    """

    def __init__(
        self,
        name: str,
        version: str,
        cells: CodeEngine,
        registry: ToolRegistry,
        clock: Clock,
        capacity: int,
        under: tuple[CodeEngine, ...] = (),
    ) -> None:
        self.name = name
        self.version = version
        self._cells = cells
        self._under = under
        self._functions = RegistryFunctions(registry)
        self._clock = clock
        self._places = threading.Semaphore(capacity)

    @property
    def language(self) -> Language:
        return self._cells.language

    def decode(self, data: bytes) -> bytes | None:
        if data:
            self._cells.names(data)  # refuses what it cannot read, or another build has made
        return data or None

    def encode(self, state: bytes | None) -> bytes:
        return state or b""

    def before(self, parked: bytes) -> bytes | None:
        return _read(parked).before or None

    def open(self, order: RunOrder, state: bytes | None, version: object, host: RunHost) -> CellSessionRun:
        self._places.acquire()
        try:
            self._cells.prepare()
            began, paused = self._beginning(order, state or b"")
            cell = self._cells.open(
                CellRequest(
                    key=order.session_id,
                    code=order.code,
                    state=began.state,
                    paused=paused,
                    limits=_with_sleeps(order.limits),
                    functions=self._functions,
                    inputs=dict(began.inputs),
                    now_ms=began.now_ms,
                    seed=began.seed,
                )
            )
            return CellSessionRun(order, cell, host, began, self._places.release)
        except BaseException:
            self._places.release()
            raise

    def check(
        self, code: str, state: bytes | None, inputs: Collection[str], timeout_ms: int
    ) -> list[Diagnostic]:
        def check() -> list[Diagnostic]:
            return self._cells.check(
                code, state=state or b"", functions=self._functions, inputs=inputs, check="types"
            )

        return _within(timeout_ms, check)[:_MAX_DIAGNOSTICS]

    def forget(self, session_id: str) -> None:
        self._cells.forget(session_id)

    def close(self) -> None:
        for engine in (self._cells, *self._under):
            engine.close()

    def _beginning(self, order: RunOrder, state: bytes) -> tuple[Beginning, bytes]:
        """What the run began with, now or before it was parked, and the cell that was parked."""
        paused = order.paused
        if paused is None:
            now, seed = self._clock.now_ms(), secrets.token_hex(16)
            return Beginning(self._clock, state, order.inputs or {}, now, seed), b""
        parked = _read(order.parked)
        inputs: dict[str, Json] = msgspec.json.decode(parked.inputs)
        return Beginning(self._clock, state, inputs, paused.now_ms, paused.seed), parked.cell


def _with_sleeps(limits: SessionLimits) -> SessionLimits:
    calls = min(limits.max_external_calls + MAX_SLEEPS, 2**32 - 1)
    return msgspec.structs.replace(limits, max_external_calls=calls)


def _read(parked: bytes) -> ParkedCell:
    try:
        return msgspec.msgpack.decode(parked, type=ParkedCell)
    except msgspec.DecodeError as error:
        raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the waiting run cannot be read: {error}") from None


def _within(timeout_ms: int, check: Callable[[], list[Diagnostic]]) -> list[Diagnostic]:
    """What a check finds, if it does so in time. One that does not is left behind with its thread."""
    answer: queue.SimpleQueue[list[Diagnostic] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(check())
        except Exception as error:
            answer.put(error)

    threading.Thread(target=work, name="standfast-check", daemon=True).start()
    try:
        found = answer.get(timeout=timeout_ms / 1000)
    except queue.Empty:
        raise too_slow(timeout_ms) from None
    if isinstance(found, Exception):
        raise found
    return found
