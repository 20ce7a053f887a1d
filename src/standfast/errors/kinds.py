"""The root of the error tree, and its first split: whose fault an error is."""

from __future__ import annotations

from standfast.errors.codes import Code, ErrorObject, Span


class StandfastError(Exception):
    """The root of the error tree. `code` is stable; `hint` says how to fix the problem."""

    code: str = Code.RUNTIME_ERROR
    retryable: bool = False
    hint: str | None = None

    def __init__(self, message: str, *, hint: str | None = None, span: Span | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        if hint is not None:
            self.hint = hint

    def error_object(self) -> ErrorObject:
        """Return this error as data, which can be stored whatever a tool or a caller passed as its texts."""
        hint = None if self.hint is None else _as_text(self.hint)
        return ErrorObject(
            code=_as_text(self.code), message=_as_text(self.message), hint=hint, span=self.span
        )

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def _as_text(value: object) -> str:
    """Return *value* as text, with lone surrogates escaped."""
    return str(value).encode("utf-8", "backslashreplace").decode()


class CallerError(StandfastError):
    """The request cannot be done as asked."""

    code: str = Code.INVALID_ARGUMENT


class OperatorError(StandfastError):
    """The installation or its configuration is wrong."""

    code: str = Code.IO_ERROR


class OutsideError(StandfastError):
    """Something outside Standfast failed."""


class StoreError(StandfastError):
    """A stored record cannot be read or written."""

    code = Code.IO_ERROR


class InternalError(StandfastError):
    """A defect in Standfast itself."""
