"""Codes, their statuses, and the exceptions that carry them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from standfast import errors
from standfast.errors import STATUS_OF_CODE, Code, ErrorObject, Span, StandfastError, ToolError, TurnCode
from standfast.model.run import RunStatus, status_of_code

TABLE = {
    "validation_error": """SYNTAX_ERROR TYPE_ERROR UNKNOWN_TOOL UNSUPPORTED_FEATURE RESULT_NOT_SERIALIZABLE
        INVALID_ARGUMENT INVALID_SESSION_ID INVALID_TOOL_NAME SESSION_NOT_FOUND METHOD_NOT_FOUND
        SNAPSHOT_CORRUPT SNAPSHOT_VERSION_MISMATCH SNAPSHOT_CAPABILITY_MISMATCH
        SESSION_EXISTS SESSION_BUSY TURN_NOT_FOUND TURN_WAITS_FOR_ITSELF RUNTIME_REQUIRED IDEMPOTENCY_CONFLICT
        INPUT_NOT_FOUND NODE_NOT_FOUND STALE_BRANCH TOKEN_NOT_FOUND TOKEN_ALREADY_USED APPROVAL_NOT_FOUND
        APPROVAL_ALREADY_DECIDED TASK_EXISTS TASK_NOT_FOUND MONITOR_NOT_FOUND TRIGGER_NOT_FOUND
        SERVICE_UNAVAILABLE INVALID_PLUGIN PLUGIN_CONFLICT PROTOCOL_ERROR SESSION_REQUIRED
        SESSION_NOT_ACCEPTED TOOL_CONFLICT TOOL_ORPHANED GENERATION_MISMATCH
        PROVIDER_UNAVAILABLE PROVIDER_MISMATCH ENGINE_UNAVAILABLE""",
    "runtime_error": """RUNTIME_ERROR TOOL_ERROR IO_ERROR SERIALIZE_ERROR NOT_CONFIGURED
        PROVIDER_UNCONFIGURED RECORD_CORRUPT
        SCHEMA_TOO_NEW STORE_UNAVAILABLE BAD_TOOL_SOURCE INSTRUCTIONS_FAILED""",
    "timeout": "TIMEOUT_WALL TIMEOUT_CPU TIMEOUT_TOOL",
    "resource_exhausted": """MEMORY_EXCEEDED STDOUT_EXCEEDED EXTERNAL_CALLS_EXCEEDED STACK_OVERFLOW
        REQUEST_TOO_LARGE RESPONSE_TOO_LARGE RATE_LIMITED""",
    "permission_denied": "PERMISSION_DENIED",
    "cancelled": "CANCELLED",
    "waiting_for_approval": "WAITING_FOR_APPROVAL",
    "interrupted": "INTERRUPTED RUNTIME_CLOSED STALE_STATE LEASE_LOST",
}
ROWS = [(code, status) for status, codes in TABLE.items() for code in codes.split()]


@pytest.mark.parametrize(("code", "status"), ROWS)
def test_every_code_means_the_status_of_the_table(code: str, status: str) -> None:
    """Ours: SPEC §3, stable for ever."""
    assert Code(code) == code
    assert status_of_code(code) == status
    assert RunStatus(status)


def test_there_are_no_codes_besides_those_of_the_table() -> None:
    """Ours: a code that is released stays, so each is added on purpose."""
    assert {str(code) for code in Code} == {code for code, _ in ROWS} == set(STATUS_OF_CODE)


def test_the_codes_of_turns_are_others_than_those_of_runs() -> None:
    """Ours: one code has one meaning, in turns as in runs."""
    assert not set(TurnCode) & set(Code)


def test_a_code_of_a_tools_own_is_a_runtime_error() -> None:
    """Seed: ToolError carries any code."""
    assert status_of_code("OUT_OF_STOCK") == "runtime_error"


def test_an_exception_and_its_error_object_are_two_views_of_one_thing() -> None:
    """Ours: STYLE, one error tree."""
    error = StandfastError("m", hint="h", span=Span(line=2, column=3))
    assert error.error_object() == ErrorObject(
        code="RUNTIME_ERROR", message="m", hint="h", span=Span(line=2, column=3)
    )
    assert ToolError("OUT_OF_STOCK", "none left").error_object().code == "OUT_OF_STOCK"


def test_every_exception_class_of_ours_hangs_in_the_tree_and_has_a_known_code() -> None:
    """Ours: the tree in the docstring of errors.py is the whole of it."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 20
    for kind in found:
        assert issubclass(kind, StandfastError)
        assert str(kind.code) in STATUS_OF_CODE or str(kind.code) in set(TurnCode)
        assert kind.__name__ in (errors.__doc__ or "")


def test_the_hint_of_a_missing_session_names_the_command_that_lists_them() -> None:
    """Bug: it named a command that listed sessions of another kind."""
    assert "`standfast sessions list`" in str(errors.SessionNotFound("x"))


@pytest.mark.parametrize("code", [*Code, *TurnCode])
def test_every_code_is_raised_somewhere_and_spelled_in_one_place(code: Code | TurnCode) -> None:
    """Ours: a code that nothing raises is noise, and one spelled twice can drift."""
    root = Path(errors.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    raised = re.compile(rf"\b(Turn)?Code\.{code.name}\b")
    assert any(raised.search(text) for text in sources.values())
    spelled = [path.name for path, text in sources.items() if f'"{code}"' in text]
    assert set(spelled) - {"google_server.py"} == {"errors.py"}  # Google has two statuses of the same names
