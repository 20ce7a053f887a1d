"""The tracer, which passes a runtime's records to its sinks; without a sink there is no `Tracer`.

Rule: no failure of a sink reaches a turn, and a sink without `contents = True` never gets the value under
`content`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from typing import Any, Final

import msgspec

from standfast.errors import StandfastError
from standfast.model.canonical import Json
from standfast.model.task import TaskRecord, TaskState
from standfast.model.trace_record import TraceRecord, TraceStatus, span_id_of
from standfast.ports.clock import Clock
from standfast.ports.trace import UNDER, EnclosingSpan, TraceSink

log: Final = logging.getLogger("standfast")

_PIECEWISE: Final = "assistant_stream"
"""The hook called for each piece of a reply; its spans would hide the others."""

_NOTHING: Final = nullcontext()
_MOST_CALLERS: Final = 10_000

_TASK_STATUS: Final[dict[TaskState, TraceStatus]] = {
    TaskState.COMPLETED: "ok",
    TaskState.FAILED: "error",
    TaskState.CANCELLED: "cancelled",
}


class Tracer:
    """The sinks of a runtime."""

    def __init__(self, sinks: TraceSink | Sequence[TraceSink], clock: Clock) -> None:
        given = sinks if isinstance(sinks, Sequence) else (sinks,)
        self.clock = clock
        self._callers: dict[str, EnclosingSpan] = {}
        self._takers = [(sink.record, bool(getattr(sink, "contents", False))) for sink in given]
        self.contents = any(wanted for _, wanted in self._takers)

    def emit(self, record: TraceRecord) -> None:
        bare, body = record, record.body
        if self.contents and record.kind != "event" and isinstance(body, dict) and "content" in body:
            kept = {key: value for key, value in body.items() if key != "content"}
            bare = msgspec.structs.replace(record, body=kept)
        for take, contents in self._takers:
            try:
                take(record if contents else bare)
            except Exception:
                log.exception("a trace sink raised an exception")

    def event(self, session_id: str, turn_id: str, plugin_id: str, name: str, body: Json) -> None:
        """Record an event now, in the current hook or call, or else in the turn."""
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
        """Record the span of a task that has ended."""
        body: dict[str, Json] = {"task_id": task.id, "kind": task.kind.value, "state": task.state.value}
        if task.error is not None:
            body["error"] = task.error.code
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
                body=body,
            )
        )

    # Turns that calls of other turns have begun

    def called_by(self, turn_id: str, caller: EnclosingSpan) -> None:
        """Remember the span that started a turn, evicting the oldest entry if there are too many."""
        self._callers[turn_id] = caller
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]

    def caller_of(self, turn_id: str) -> EnclosingSpan | None:
        """Return and forget the span that started a turn."""
        return self._callers.pop(turn_id, None)

    # Hooks

    def watching(self, plugin_id: str, kind: str, given: Sequence[Any]) -> AbstractContextManager[object]:
        """Return a context that records a hook's span, below its turn and the call that it concerns."""
        about = given[0] if given else None
        session_id = getattr(about, "session_id", "")
        if kind == _PIECEWISE or not session_id:
            return _NOTHING
        turn_id, call_id = getattr(about, "turn_id", ""), getattr(about, "call_id", 0)
        span_id = span_id_of(turn_id, f"tool.{call_id}" if call_id else "turn") if turn_id else ""
        return _HookSpan(self, plugin_id, kind, EnclosingSpan(session_id, turn_id or "", span_id))


class _HookSpan:
    """The span of one run of a hook, and the parent of the spans of everything the hook does."""

    __slots__ = ("_at", "_began", "_kind", "_plugin_id", "_span_id", "_started_ms", "_token", "_tracer")

    def __init__(self, tracer: Tracer, plugin_id: str, kind: str, at: EnclosingSpan) -> None:
        self._tracer = tracer
        self._plugin_id = plugin_id
        self._kind = kind
        self._at = at
        self._span_id = secrets.token_hex(8)

    def __enter__(self) -> None:
        at, clock = self._at, self._tracer.clock
        self._token: Token[EnclosingSpan | None] = UNDER.set(
            EnclosingSpan(at.session_id, at.turn_id, self._span_id)
        )
        self._started_ms = clock.now_ms()
        self._began = clock.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        UNDER.reset(self._token)
        at, clock = self._at, self._tracer.clock
        body: Json = None
        if error is not None:
            body = {"error": error.code if isinstance(error, StandfastError) else type(error).__name__}
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
                body=body,
            )
        )


def span_under(turn_id: str) -> str:
    """Return the id of the span that the turn's current code runs in."""
    if not turn_id:
        return ""
    under = UNDER.get()
    return under.span_id if under is not None and under.turn_id == turn_id else span_id_of(turn_id)
