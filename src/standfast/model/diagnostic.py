"""What a run or a check has to say about the code."""

from __future__ import annotations

import enum

import msgspec

from standfast.errors import ErrorObject, Span


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
        """The diagnostic that reports *error*."""
        return cls(
            severity=Severity.ERROR, code=error.code, message=error.message, hint=error.hint, span=error.span
        )
