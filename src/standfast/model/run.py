"""A request to run code, and its result."""

from __future__ import annotations

import enum
import keyword
from typing import Final

import msgspec

from standfast.errors import STATUS_OF_CODE, ErrorObject, InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import ExternalCallRecord
from standfast.model.code import Diagnostic, Language
from standfast.model.limits import U32, U64, Positive32, SessionLimits
from standfast.model.session import SessionIdField, check_idempotency_key, check_session_id


class RunStatus(enum.StrEnum):
    OK = "ok"
    VALIDATION_ERROR = "validation_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PERMISSION_DENIED = "permission_denied"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    INTERRUPTED = "interrupted"


def status_of_code(code: str) -> RunStatus:
    """Return the status of a run that an error with *code* ends."""
    return RunStatus(STATUS_OF_CODE.get(code, RunStatus.RUNTIME_ERROR))


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Code to run. A repeated `idempotency_key` returns the stored result without running the code.

    A byte order mark at the beginning of the code is dropped, as by Python and Node when they read a file.
    """

    session_id: SessionIdField = "default"
    language: Language = Language.PYTHON
    code: str = ""
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    timeout_ms: Positive32 | None = None
    limits: SessionLimits | None = None
    return_snapshot: bool = False
    validate_only: bool = False
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if not isinstance(self.code, str):
            raise InvalidArgument(f"code must be text, not {type(self.code).__name__}")
        if self.code.startswith("\ufeff"):
            msgspec.structs.force_setattr(self, "code", self.code[1:])
        if self.timeout_ms is not None and not 0 < self.timeout_ms < 2**32:
            raise InvalidArgument(f"timeout_ms must be from 1 to 4294967295, not {self.timeout_ms}")
        if self.idempotency_key is not None:
            check_idempotency_key(self.idempotency_key)
        for name in self.inputs:
            typescript = self.language == Language.TYPESCRIPT
            word = name.replace("$", "_") if typescript and isinstance(name, str) else name
            taken = name in RESERVED if typescript else keyword.iskeyword(name)
            if not isinstance(name, str) or not word.isidentifier() or taken:
                spoken = "TypeScript" if typescript else "Python"
                raise InvalidArgument(f"input name {name!r} is not a {spoken} identifier")


RESERVED: Final = frozenset({
    "arguments", "await", "break", "case", "catch", "class", "const", "continue", "debugger", "default",
    "delete", "do", "else", "enum", "eval", "export", "extends", "false", "finally", "for", "function",
    "if", "implements", "import", "in", "instanceof", "interface", "let", "new", "null", "package",
    "private", "protected", "public", "return", "static", "super", "switch", "this", "throw", "true",
    "try", "typeof", "var", "void", "while", "with", "yield", "undefined", "NaN", "Infinity",
    "globalThis",
})  # fmt: skip
"""Words that cannot be the name of a TypeScript variable in strict mode."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Measured, never estimated: a figure that an engine cannot provide is null."""

    duration_ms: U32 = 0
    memory_peak_bytes: U64 | None = None
    instructions: U64 | None = None
    external_calls_count: U32 = 0


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    status: RunStatus = RunStatus.OK
    result: Json = None
    stdout: str = ""
    stderr: str = ""
    diagnostics: list[Diagnostic] = msgspec.field(default_factory=list)
    external_calls: list[ExternalCallRecord] = msgspec.field(default_factory=list)
    snapshot_id: str | None = None
    metrics: Metrics = Metrics()
    error: ErrorObject | None = None

    @classmethod
    def failed(cls, error: ErrorObject, *, stdout: str = "", metrics: Metrics = Metrics()) -> RunResult:
        """Return the result of a run that *error* ended; the status follows from its code."""
        return cls(
            status=status_of_code(error.code),
            stdout=stdout,
            diagnostics=[Diagnostic.error(error)],
            metrics=metrics,
            error=error,
        )
