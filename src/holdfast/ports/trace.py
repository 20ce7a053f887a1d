"""Where the records of a trace go, and who times the phases of a turn.

Rule: neither may raise, block or change anything.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model.trace_record import TraceRecord


class TraceSink(Protocol):
    def record(self, record: TraceRecord, /) -> None: ...


class PhaseProbe(Protocol):
    """Hears when a phase begins and ends: `plugin_hook.{kind}.{plugin_id}` for a hook."""

    def begin_named(self, phase: str, /) -> None: ...

    def end_named(self, phase: str, /) -> None: ...
