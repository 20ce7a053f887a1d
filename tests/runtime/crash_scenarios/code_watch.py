"""The model, the engine and the store of a turn that acts in code: instrumented, with defects on demand."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, cast

import msgspec
from code_tools import CodeStage
from scenarios import Forgetful, ToldModel

from standfast.model.code import Diagnostic
from standfast.model.session import TurnSummary
from standfast.ports.code_engine import (
    CallAnswer,
    CellFunctions,
    CellRequest,
    CellRun,
    CellStep,
    Check,
    CodeEngine,
    NamesRead,
)
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.ports.session_store import Lease, Save, Saved, SessionStore
from standfast.protocols.standard import cells
from standfast.sandbox.engine_kinds import CodeEngines, OpenEngine
from standfast.testing.crash_points import CrashPoints


class CodeModel(ToldModel):
    """A model that records its requests, and the messages of the session under test."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        turn, _, key = request.idempotency_key.partition(".")
        self._stage.note("acts", act="model", turn=turn, key=key)
        own = request.session_id == "s" and key.startswith("model.")
        return super().stream(request) if own else self._script.stream(request)


class CountedEngine:
    """The engine with crash points around everything that a cell does; each run of a cell is an action."""

    def __init__(self, engine: CodeEngine, stage: CodeStage, *, lucky: bool = False) -> None:
        self.language = engine.language
        self._engine = engine
        self._stage = stage
        self._lucky = lucky

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        return self._engine.check(code, state=state, functions=functions, inputs=inputs, check=check)

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        return self._engine.touched(code, names)

    def names(self, state: bytes) -> list[str]:
        return self._engine.names(state)

    def open(self, request: CellRequest) -> CellRun:
        _, turn, call_id = request.seed.split(".")
        self._stage.act("go on" if request.paused else "begin", turn, f"tool.{call_id}")
        if self._lucky:
            request = msgspec.structs.replace(request, seed=secrets.token_hex(8))
        return CountedRun(self._engine.open(request), self._stage.points)  # type: ignore[return-value]

    def forget(self, key: str) -> None:
        self._engine.forget(key)

    def close(self) -> None:
        self._engine.close()


class CountedRun:
    def __init__(self, run: CellRun, points: CrashPoints) -> None:
        self._run = run
        self._points = points
        self.stop = run.stop
        self.close = run.close

    def start(self) -> CellStep:
        return self._pass("start", self._run.start)

    def answer(self, number: int, answer: CallAnswer) -> CellStep:
        return self._pass("answer", lambda: self._run.answer(number, answer))

    def suspend(self) -> bytes:
        self._points.point("before suspend")
        data = self._run.suspend()
        self._points.point("after suspend")
        return data

    def _pass(self, name: str, step: Callable[[], CellStep]) -> CellStep:
        self._points.point(f"before {name}")
        taken = step()
        self._points.point(f"after {name}")
        return taken


class ForgetfulOfCode:
    """A store with a defect: the state of code is not written before the end of a turn."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, lease: Lease, save: Save) -> Saved:
        return await self._store.save(lease, _without_execution(save))

    async def park(self, lease: Lease, save: Save, summary: TurnSummary) -> Any:
        return await self._store.park(lease, _without_execution(save), summary)


def _without_execution(save: Save) -> Save:
    kept = tuple(entry for entry in save.entries if (entry.key, entry.kind) != ("execution", "state"))
    return msgspec.structs.replace(save, entries=kept)


def give_answers_in_the_order_of_calls() -> None:
    """Introduce a defect: a cell that is rerun gets its results in a different order."""
    right = cells.CellContext.ask

    def wrong(self: Any, calls: Any, hear: Any) -> None:
        command = self._command
        known = sorted(command.answers[: command.count], key=lambda settled: settled.call_id)
        if self._heard < command.count - 1:  # it is not the first time
            self._command = msgspec.structs.replace(command, answers=known)
        right(self, calls, hear)

    vars(cells)["CellContext"].ask = wrong


def break_something(what: str | None, store: SessionStore) -> SessionStore:
    """Return the store with the requested defect."""
    match what:
        case "intents":
            return cast(SessionStore, Forgetful(store))
        case "execution":
            return cast(SessionStore, ForgetfulOfCode(store))
        case "order":
            give_answers_in_the_order_of_calls()
    return store


def watch_engine(stage: CodeStage, *, lucky: bool) -> None:
    """Instrument every engine of this process; with `lucky`, random numbers differ each time."""
    opened = CodeEngines.get

    def watched(self: CodeEngines, name: str) -> OpenEngine:
        found = opened(self, name)
        if not isinstance(found.cells, CountedEngine):
            counted = cast(CodeEngine, CountedEngine(found.cells, stage, lucky=lucky))
            found = self._opened[name] = OpenEngine(found.version, counted)
        return found

    CodeEngines.get = watched  # type: ignore[method-assign]
