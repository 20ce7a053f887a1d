"""Code: its languages and engines, its diagnostics, and the report of a cell.

A cell is one piece of code that a model or a caller wrote and a turn ran.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.limits import SessionLimits


class Language(enum.StrEnum):
    PYTHON = "python"
    TYPESCRIPT = "typescript"


class EngineName(enum.StrEnum):
    """An engine for guest code. `auto` begins on Monty and moves to CPython for features that Monty lacks."""

    MONTY = "monty"
    CPYTHON = "cpython"
    AUTO = "auto"
    QUICKJS = "quickjs"

    @property
    def language(self) -> Language:
        return Language.TYPESCRIPT if self is EngineName.QUICKJS else Language.PYTHON


def language_of(engine: str) -> Language | None:
    """Return the language of an engine that ships with Standfast, None for any other engine."""
    return EngineName(engine).language if engine in EngineName.__members__.values() else None


USUAL_ENGINE: Final = {Language.PYTHON: EngineName.MONTY, Language.TYPESCRIPT: EngineName.QUICKJS}
"""The default engine of each language."""


class Severity(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity = Severity.INFO
    code: str
    message: str
    hint: str | None = None
    span: Span | None = None

    @classmethod
    def error(cls, error: ErrorObject) -> Diagnostic:
        """Return the diagnostic that reports *error*."""
        return cls(
            severity=Severity.ERROR, code=error.code, message=error.message, hint=error.hint, span=error.span
        )


class Variable(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A variable of a session's code: the name of its type and a short text, empty if it has none."""

    name: str
    type: str = ""
    text: str = ""


class CellVariables(msgspec.Struct, frozen=True, kw_only=True):
    """The variables before and after a cell; None if the state is not kept, or the cell has not ended."""

    before: tuple[Variable, ...] | None
    after: tuple[Variable, ...] | None


RUN_CODE: Final = "run_code"
"""The name of the call that runs a cell."""


class CodeInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Code as the input of a turn, with its variables; `snapshot` requests a snapshot of the session."""

    code: str
    limits: SessionLimits
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    snapshot: bool = False


class CallMade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A short record of a call that a cell made: its arguments are truncated text, its result is omitted.

    `texts` are what the model reads from its tool, in addition to the value that the code got; `line` is as
    in `ToolCall`.
    """

    call_id: int
    name: str
    arguments: str = ""
    status: CallStatus = CallStatus.OK
    error: ErrorObject | None = None
    texts: tuple[str, ...] = ()
    line: int | None = None


class CellReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a cell printed, returned and did. It is stored whole.

    `index` is the cell's position in `history`. `notes` are remarks of the engine and the runtime. After a
    `hard` failure the session is as it was before the cell. Figures that the engine does not provide are
    None.
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
