"""Ports of tracing: record sinks, phase probes, hook watches. None may raise, block or change a turn."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from standfast.model.trace_record import TraceRecord


class TraceSink(Protocol):
    """Receives records. A sink with `contents = True` gets messages and arguments as well."""

    def record(self, record: TraceRecord, /) -> None: ...


class PhaseProbe(Protocol):
    """Called when a phase begins and ends; the phase of a hook is `plugin_hook.{kind}.{plugin_id}`."""

    def begin_named(self, phase: str, /) -> None: ...

    def end_named(self, phase: str, /) -> None: ...


class HookWatch(Protocol):
    """Observes each hook that runs, and its arguments."""

    def watching(
        self, plugin_id: str, kind: str, given: Sequence[Any], /
    ) -> AbstractContextManager[object]: ...


class EnclosingSpan(msgspec.Struct, frozen=True, gc=False):
    """The span in a turn's trace that encloses an operation."""

    session_id: str
    turn_id: str
    span_id: str


UNDER: Final[ContextVar[EnclosingSpan | None]] = ContextVar("standfast_trace_under", default=None)
"""The span of the hook or tool call that the current code runs in; None outside of one or without a trace."""
