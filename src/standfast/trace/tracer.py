"""Tells the sinks of one runtime what happens.

Rules
-----
1. Nothing that a sink does reaches a turn.
2. A sink that does not say `contents = True` never sees what is under `content`.
3. There is a `Tracer` only if there is a sink. Whoever could tell it something asks for that first.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from typing import Any, Final

import msgspec

from standfast.errors import StandfastError
from standfast.model.canonical import Json
from standfast.model.task import TaskRecord, TaskState
from standfast.model.trace_record import TraceRecord, TraceStatus, span_id_of
from standfast.ports.clock import Clock
from standfast.ports.trace import UNDER, TraceSink, Under

log: Final = logging.getLogger("standfast")

_PIECEWISE: Final = "assistant_stream"
"""The hook that is called for each piece of a reply; a span for each would bury the others."""

_NOTHING: Final = nullcontext()
_MOST_CALLERS: Final = 10_000

_TASK_STATUS: Final[dict[TaskState, TraceStatus]] = {
    TaskState.COMPLETED: "ok",
    TaskState.FAILED: "error",
    TaskState.CANCELLED: "cancelled",
}


class Tracer:
    """The sinks of a runtime, behind one door."""

    def __init__(self, sinks: TraceSink | Sequence[TraceSink], clock: Clock) -> None:
        given = sinks if isinstance(sinks, Sequence) else (sinks,)
        self.clock = clock
        self._callers: dict[str, Under] = {}
        self._takers = [(sink.record, bool(getattr(sink, "contents", False))) for sink in given]
        self.contents = any(wanted for _, wanted in self._takers)

    def emit(self, record: TraceRecord) -> None:
        for take, contents in self._takers:
            _give(take, record if contents or not self.contents else _without_content(record))

    def event(self, session_id: str, turn_id: str, plugin_id: str, name: str, body: Json) -> None:
        """Something happened, just now: in the hook or the call that tells it, else in the turn."""
        self.emit(
            TraceRecord(
                at_ms=self.clock.now_ms(),
                name=name,
                session_id=session_id,
                turn_id=turn_id,
                parent_id=span_under(turn_id),
                plugin_id=plugin_id,
                body=body,
            )
        )

    def task(self, task: TaskRecord) -> None:
        """A task has ended."""
        self.emit(
            TraceRecord(
                at_ms=task.updated_at,
                name=task.label or task.id,
                kind="task",
                session_id=task.session_id,
                span_id=span_id_of(task.session_id, f"task {task.id} {task.created_at}"),
                started_at_ms=task.created_at,
                duration_ms=max(0, task.updated_at - task.created_at),
                status=_TASK_STATUS.get(task.state, ""),
                body=_task_body(task),
            )
        )

    # Turns that calls of other turns have begun

    def called_by(self, turn_id: str, caller: Under) -> None:
        """A turn was begun in a span of another. Of those that never end here the oldest are forgotten."""
        self._callers[turn_id] = caller
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]

    def caller_of(self, turn_id: str) -> Under | None:
        """The span that a turn which has ended was begun in, once."""
        return self._callers.pop(turn_id, None)

    # Hooks

    def watching(self, plugin_id: str, kind: str, given: Sequence[Any]) -> AbstractContextManager[object]:
        """A span for a hook of a session: of its turn, and of the call that it is asked about."""
        about = given[0] if given else None
        session_id = getattr(about, "session_id", "")
        if kind == _PIECEWISE or not session_id:
            return _NOTHING
        return _HookSpan(self, plugin_id, kind, Under(session_id, *_place_of(about)))


class _HookSpan:
    """One run of a hook. What it does meanwhile is below it."""

    __slots__ = ("_at", "_began", "_kind", "_plugin_id", "_span_id", "_started_ms", "_token", "_tracer")

    def __init__(self, tracer: Tracer, plugin_id: str, kind: str, at: Under) -> None:
        self._tracer = tracer
        self._plugin_id = plugin_id
        self._kind = kind
        self._at = at
        self._span_id = secrets.token_hex(8)

    def __enter__(self) -> None:
        at, clock = self._at, self._tracer.clock
        self._token: Token[Under | None] = UNDER.set(Under(at.session_id, at.turn_id, self._span_id))
        self._started_ms = clock.now_ms()
        self._began = clock.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        UNDER.reset(self._token)
        at, clock = self._at, self._tracer.clock
        self._tracer.emit(
            TraceRecord(
                at_ms=clock.now_ms(),
                name=self._kind,
                kind="hook",
                session_id=at.session_id,
                turn_id=at.turn_id,
                span_id=self._span_id,
                parent_id=at.span_id,
                started_at_ms=self._started_ms,
                duration_ms=round(max(0.0, clock.monotonic() - self._began) * 1000, 3),
                status="ok" if error is None else "error",
                plugin_id=self._plugin_id,
                body=None if error is None else {"error": _code_of(error)},
            )
        )


def span_under(turn_id: str) -> str:
    """The span that something of a turn happens in."""
    if not turn_id:
        return ""
    under = UNDER.get()
    return under.span_id if under is not None and under.turn_id == turn_id else span_id_of(turn_id)


def _place_of(about: object) -> tuple[str, str]:
    """The turn that a hook is asked in, and the span that it belongs to there."""
    turn_id, call_id = getattr(about, "turn_id", ""), getattr(about, "call_id", 0)
    if not turn_id:
        return "", ""
    return turn_id, span_id_of(turn_id, f"tool.{call_id}" if call_id else "turn")


def _task_body(task: TaskRecord) -> Json:
    body: dict[str, Json] = {"task_id": task.id, "kind": task.kind.value, "state": task.state.value}
    return body if task.error is None else {**body, "error": task.error.code}


def _code_of(error: BaseException) -> str:
    return error.code if isinstance(error, StandfastError) else type(error).__name__


def _without_content(record: TraceRecord) -> TraceRecord:
    body = record.body
    if record.kind == "event" or not isinstance(body, dict) or "content" not in body:
        return record
    kept = {key: value for key, value in body.items() if key != "content"}
    return msgspec.structs.replace(record, body=kept)


def _give(take: Callable[[TraceRecord], None], record: TraceRecord) -> None:
    try:
        take(record)
    except Exception:
        log.exception("the trace refuses a record")
