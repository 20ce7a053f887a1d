"""A cell: one piece of code that a model or a caller wrote and a turn ran, and its report."""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.diagnostic import Diagnostic
from standfast.model.limits import SessionLimits

RUN_CODE: Final = "run_code"
"""The name of the call that runs a cell."""


class CodeInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Code as the input of a turn, with its variables; `snapshot` asks for a snapshot of the session."""

    code: str
    limits: SessionLimits
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    snapshot: bool = False


class CallMade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a cell made, in short: its arguments are cut text, its result is not here."""

    call_id: int
    name: str
    arguments: str = ""
    status: CallStatus = CallStatus.OK
    error: ErrorObject | None = None


class CellReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a cell printed, returned and did. It is kept whole.

    `index` is the cell's place in `history`. `notes` are remarks of the engine and the runtime. After a
    `hard` failure the session is as it was before the cell. Figures that the engine does not give are None.
    """

    index: int
    stdout: str = ""
    stderr: str = ""
    result: Json = None
    error: ErrorObject | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    calls: tuple[CallMade, ...] = ()
    notes: tuple[str, ...] = ()
    truncated: bool = False
    finished: bool = False
    hard: bool = False
    duration_ms: int | None = None
    memory_peak_bytes: int | None = None
    instructions: int | None = None
    calls_made: int = 0
