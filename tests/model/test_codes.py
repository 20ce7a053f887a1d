"""Error codes, their statuses, and the exceptions that have them."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import standfast
from standfast import errors
from standfast.errors import STATUS_OF_CODE, Code, ErrorObject, Span, StandfastError, ToolError, TurnCode
from standfast.model.run import RunStatus, status_of_code

ROOT = Path(standfast.__file__).parent

TABLE = {
    "validation_error": """SYNTAX_ERROR TYPE_ERROR UNKNOWN_TOOL UNSUPPORTED_FEATURE RESULT_NOT_SERIALIZABLE
        INVALID_ARGUMENT INVALID_SESSION_ID INVALID_TOOL_NAME SESSION_NOT_FOUND METHOD_NOT_FOUND
        SNAPSHOT_CORRUPT SNAPSHOT_VERSION_MISMATCH SNAPSHOT_CAPABILITY_MISMATCH
        SESSION_EXISTS SESSION_BUSY TURN_NOT_FOUND TURN_WAITS_FOR_ITSELF RUNTIME_REQUIRED IDEMPOTENCY_CONFLICT
        INPUT_NOT_FOUND NODE_NOT_FOUND STALE_BRANCH TOKEN_NOT_FOUND TOKEN_ALREADY_USED APPROVAL_NOT_FOUND
        APPROVAL_ALREADY_DECIDED GRANT_NOT_FOUND JOURNAL_NOT_KEPT TASK_EXISTS TASK_NOT_FOUND
        MONITOR_NOT_FOUND TRIGGER_NOT_FOUND SERVICE_UNAVAILABLE INVALID_PLUGIN PLUGIN_CONFLICT PROTOCOL_ERROR
        SESSION_REQUIRED SESSION_NOT_ACCEPTED TOOL_CONFLICT TOOL_ORPHANED GENERATION_MISMATCH
        PROVIDER_UNAVAILABLE PROVIDER_MISMATCH ENGINE_UNAVAILABLE""",
    "runtime_error": """RUNTIME_ERROR TOOL_ERROR IO_ERROR SERIALIZE_ERROR NOT_CONFIGURED
        PROVIDER_UNCONFIGURED RECORD_CORRUPT
        SCHEMA_TOO_NEW STORE_UNAVAILABLE BAD_TOOL_SOURCE INSTRUCTIONS_FAILED
        MCP_SERVER_FAILED MCP_SERVER_CHANGED MCP_SIGN_IN_REQUIRED""",
    "timeout": "TIMEOUT_WALL TIMEOUT_CPU TIMEOUT_TOOL",
    "resource_exhausted": """MEMORY_EXCEEDED STDOUT_EXCEEDED EXTERNAL_CALLS_EXCEEDED STACK_OVERFLOW
        REQUEST_TOO_LARGE RESPONSE_TOO_LARGE RATE_LIMITED""",
    "permission_denied": "PERMISSION_DENIED UNAUTHENTICATED",
    "cancelled": "CANCELLED",
    "waiting_for_approval": "WAITING_FOR_APPROVAL",
    "interrupted": "INTERRUPTED RUNTIME_CLOSED STALE_STATE LEASE_LOST",
}
ROWS = [(code, status) for status, codes in TABLE.items() for code in codes.split()]


@pytest.mark.parametrize(("code", "status"), ROWS)
def test_every_code_has_the_status_in_the_table(code: str, status: str) -> None:
    """Ours: the value is stable across versions."""
    assert Code(code) == code
    assert status_of_code(code) == status
    assert RunStatus(status)


def test_there_are_no_codes_outside_the_table() -> None:
    """Ours: a released code stays, so each is added on purpose."""
    assert {str(code) for code in Code} == {code for code, _ in ROWS} == set(STATUS_OF_CODE)


def test_codes_of_turns_differ_from_codes_of_runs() -> None:
    """Ours: one code has one meaning."""
    assert not set(TurnCode) & set(Code)


def test_a_tools_own_code_is_a_runtime_error() -> None:
    """Seed: ToolError may have any code."""
    assert status_of_code("OUT_OF_STOCK") == "runtime_error"


def test_an_exception_and_its_error_object_are_two_views_of_one_thing() -> None:
    """Ours: STYLE, one error tree."""
    error = StandfastError("m", hint="h", span=Span(line=2, column=3))
    assert error.error_object() == ErrorObject(
        code="RUNTIME_ERROR", message="m", hint="h", span=Span(line=2, column=3)
    )
    assert ToolError("OUT_OF_STOCK", "none left").error_object().code == "OUT_OF_STOCK"


def test_every_exception_class_is_in_the_tree_and_has_a_known_code() -> None:
    """Ours: the tree in the docstring of errors.py is complete."""
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 20
    for kind in found:
        assert issubclass(kind, StandfastError)
        assert str(kind.code) in STATUS_OF_CODE or str(kind.code) in set(TurnCode)
        assert kind.__name__ in (errors.__doc__ or "")


def test_the_tree_in_the_docstring_draws_each_class_below_its_base() -> None:
    """Bug: three classes were drawn beside the class that they derive from."""
    path: list[str] = []
    drawn = {}
    for indent, name in re.findall(r"^    ([ │├└─]*)(\w+)", errors.__doc__ or "", re.MULTILINE):
        path = [*path[: len(indent) // 4], name]
        if hasattr(errors, name) and len(path) > 1:
            drawn[name] = path[-2]
    assert len(drawn) > 20
    for name, base in drawn.items():
        assert getattr(errors, name).__base__.__name__ == base, name


def test_the_hint_for_a_missing_session_names_the_command_that_lists_sessions() -> None:
    """Bug: it named a command that listed sessions of another kind."""
    assert "`standfast sessions list`" in str(errors.SessionNotFound("x"))


def test_every_exception_of_the_package_is_defined_in_errors() -> None:
    """Ours: all errors are imported from one place; a private one never leaves its module."""
    for path in ROOT.rglob("*.py"):
        for made in re.findall(r"^class (\w+)\((\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            kind = getattr(errors, made[1], None)
            if isinstance(kind, type) and issubclass(kind, StandfastError) and not made[0].startswith("_"):
                assert hasattr(errors, made[0]), f"{path} has {made[0]}"
                assert path.parent.name == "errors", f"{path} has {made[0]}"


@pytest.mark.slow  # the first case parses the package
@pytest.mark.parametrize("code", [*Code, *TurnCode])
def test_every_code_is_raised_somewhere(code: Code | TurnCode) -> None:
    """Ours: an unused code is noise. Code names it, or creates an error of a class that has it."""
    kinds = {kind.__name__ for kind in _tree() if kind.__dict__.get("code") == code}
    assert {code.name, *kinds} & _reported()


@pytest.mark.slow  # the first case parses the package
@pytest.mark.parametrize("code", [*Code, *TurnCode])
def test_every_code_is_spelled_in_one_place(code: Code | TurnCode) -> None:
    """Ours: a code that is spelled twice can drift."""
    assert _texts()[code] == [f"codes.py: {code}"]


def _tree(kind: type[StandfastError] = StandfastError) -> Iterator[type[StandfastError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


@functools.cache
def _parsed() -> dict[Path, ast.Module]:
    """Return the package without `testing` and Google's client, as Google has codes with the same names."""
    left_out = {"testing", "google"}
    paths = [path for path in ROOT.rglob("*.py") if not left_out & set(path.relative_to(ROOT).parts)]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@functools.cache
def _reported() -> set[str]:
    """Return the codes named outside `errors`, except in comparisons, and the classes called."""
    found: set[str] = set()
    for path, tree in _parsed().items():
        if path.parent.name == "errors":
            continue
        compared = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Compare, ast.MatchValue))
            for part in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _last_name(node.value).endswith("Code"):
                found |= {node.attr} - ({node.attr} if id(node) in compared else set())
            elif isinstance(node, ast.Call):
                found.add(_last_name(node.func))
    return found


def _last_name(node: ast.expr) -> str:
    """Return the name that an expression ends with: `c` for `c`, `b.c` and `a[0].c`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@functools.cache
def _texts() -> dict[str, list[str]]:
    """Return the strings of the package, except docstrings, by the words in them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in _parsed().items():
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                for word in set(re.findall(r"\w+", node.value)):
                    found[word].append(f"{path.name}: {node.value}")
    return found
