"""Where the records of a trace go, and what times a turn's phases. None may raise, block or change things."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from standfast.model.trace_record import TraceRecord


class TraceSink(Protocol):
    """Takes records. A sink with `contents = True` gets messages and arguments as well."""

    def record(self, record: TraceRecord, /) -> None: ...


class PhaseProbe(Protocol):
    """Is called when a phase begins and ends: `plugin_hook.{kind}.{plugin_id}` for a hook."""

    def begin_named(self, phase: str, /) -> None: ...

    def end_named(self, phase: str, /) -> None: ...


class HookWatch(Protocol):
    """Sees the hooks that run, and what they are called with."""

    def watching(
        self, plugin_id: str, kind: str, given: Sequence[Any], /
    ) -> AbstractContextManager[object]: ...


class Under(msgspec.Struct, frozen=True, gc=False):
    """The span of a turn that something happens in."""

    session_id: str
    turn_id: str
    span_id: str


UNDER: Final[ContextVar[Under | None]] = ContextVar("standfast_trace_under", default=None)
"""The hook or the tool call that this code runs in, if a trace is kept."""
