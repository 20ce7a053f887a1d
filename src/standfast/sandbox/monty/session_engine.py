"""Sessions of Python on the Monty engine, by the shortest way there is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.program import read_program
from standfast.sandbox.monty.run import MontyRun, Place
from standfast.sandbox.monty.state import (
    ENGINE,
    ENGINE_VERSION,
    OpenState,
    decode_paused,
    decode_state,
    encode_state,
)
from standfast.sandbox.monty.validate import Validator
from standfast.sandbox.monty.workers import Workers
from standfast.sandbox.registry_functions import RegistryFunctions
from standfast.sandbox.run_calls import RunHost
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.watchdog import Watchdog
from standfast.tools.registry import ToolRegistry


class MontySessions:
    """A `SessionEngine`. The workers belong to whoever made them: approval rules need them too."""

    name: Final = ENGINE
    version: Final = ENGINE_VERSION
    language: Final = Language.PYTHON

    def __init__(self, workers: Workers, registry: ToolRegistry, watchdog: Watchdog) -> None:
        self._workers = workers
        self._validator = Validator(workers, RegistryFunctions(registry), watchdog)

    def decode(self, data: bytes) -> OpenState | None:
        stored = decode_state(data)
        return OpenState.of(stored) if stored is not None else None

    def encode(self, state: OpenState | None) -> bytes:
        return encode_state(state.stored if state is not None else None)

    def before(self, parked: bytes) -> OpenState | None:
        stored = decode_paused(parked).before
        return OpenState.of(stored) if stored is not None else None

    def open(self, order: RunOrder, state: OpenState | None, version: object, host: RunHost) -> MontyRun:
        before = state.stored if state is not None else None
        plan = RunPlan(
            program=read_program(order.code, result_may_be_bound=before is not None and before.result_later),
            limits=order.limits,
            names=state.names if state is not None else frozenset(),
            sites=before.sites if before is not None else {},
            inputs=order.inputs,
            plain_keys=before is None or before.plain_keys,
        )
        if order.paused is not None:
            plan.going_on(order.paused, decode_paused(order.parked).dump)
        place = Place(self._workers, self._workers.take(order.session_id))
        return MontyRun(order, plan, host, place, (before, version))

    def check(
        self, code: str, state: OpenState | None, inputs: Collection[str], timeout_ms: int
    ) -> list[Diagnostic]:
        names = {*(state.names if state is not None else ()), *inputs}
        return self._validator.check(code, names, timeout_ms)

    def forget(self, session_id: str) -> None:
        self._workers.forget(session_id)

    def close(self) -> None:
        self._workers.close()
