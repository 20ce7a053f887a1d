"""The names and values on the wire are the seed's."""

from __future__ import annotations

import enum

import msgspec
import pytest

from standfast.errors import ErrorObject, InvalidArgument, Span
from standfast.model.capability import (
    CallStatus,
    Capability,
    ExternalCallRecord,
    SideEffect,
    ToolCallContext,
    auto_approval,
)
from standfast.model.code import Diagnostic, Language, Severity
from standfast.model.limits import CapabilityLimits, SessionLimits
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus
from standfast.model.session import SNAPSHOT_VERSION, SessionMeta

ENUMS: list[tuple[type[enum.Enum], list[str]]] = [
    (Language, ["python", "typescript"]),
    (SideEffect, ["none", "read", "write", "network", "database", "external_system"]),
    (
        RunStatus,
        [
            "ok", "validation_error", "runtime_error", "timeout", "cancelled", "resource_exhausted",
            "permission_denied", "waiting_for_approval", "interrupted",
        ],
    ),
    (Severity, ["error", "warning", "info"]),
    (CallStatus, ["ok", "error", "timeout", "denied", "approval_pending"]),
]  # fmt: skip

FIELDS: list[tuple[type[msgspec.Struct], str]] = [
    (SessionLimits, "memory_mb cpu_ms wall_ms max_stdout_bytes max_external_calls max_stack_depth"),
    (SessionMeta, "id created_at last_used_at language limits snapshot_version"),
    (CapabilityLimits, "timeout_ms max_request_bytes max_response_bytes concurrency rate_per_min"),
    (
        Capability,
        "name description input_schema output_schema side_effect limits approval_policy idempotent",
    ),
    (
        RunRequest,
        "session_id language code inputs timeout_ms limits return_snapshot validate_only idempotency_key",
    ),
    (Span, "line column end_line end_column"),
    (Diagnostic, "severity code message hint span"),
    (ErrorObject, "code message hint span"),
    (
        ExternalCallRecord,
        "name side_effect duration_ms status request_digest response_digest error traceback",
    ),
    (Metrics, "duration_ms memory_peak_bytes instructions external_calls_count"),
    (
        RunResult,
        "status result stdout stderr diagnostics external_calls snapshot_id metrics error",
    ),
    (ToolCallContext, "name args kwargs"),
]


@pytest.mark.parametrize(("kind", "values"), ENUMS, ids=lambda item: getattr(item, "__name__", ""))
def test_enums_are_encoded_in_the_seeds_snake_case(kind: type[enum.Enum], values: list[str]) -> None:
    """Seed: rename_all = snake_case, in the seed's order. Ours: "typescript", not "type_script"."""
    assert [msgspec.json.decode(msgspec.json.encode(member)) for member in kind] == values


@pytest.mark.parametrize(("kind", "names"), FIELDS, ids=lambda item: getattr(item, "__name__", ""))
def test_structs_have_exactly_the_seeds_fields(kind: type[msgspec.Struct], names: str) -> None:
    """Seed: field names are the interface."""
    assert list(kind.__struct_encode_fields__) == names.split()


def test_session_limits_have_the_seeds_defaults() -> None:
    """Seed: SessionLimits::default."""
    assert msgspec.to_builtins(SessionLimits()) == {
        "memory_mb": 64,
        "cpu_ms": 2_000,
        "wall_ms": 5_000,
        "max_stdout_bytes": 65_536,
        "max_external_calls": 32,
        "max_stack_depth": 256,
    }


def test_capability_limits_have_the_seeds_defaults() -> None:
    """Seed: CapabilityLimits::default. Ours: the kind of caller decides the time-out, 5 s or 60 s."""
    assert msgspec.to_builtins(CapabilityLimits()) == {
        "timeout_ms": None,
        "max_request_bytes": 1_048_576,
        "max_response_bytes": 1_048_576,
        "concurrency": 16,
        "rate_per_min": None,
    }


def test_a_capability_has_the_seeds_defaults() -> None:
    """Seed: Capability::new."""
    assert msgspec.to_builtins(Capability(name="f", description="d")) == {
        "name": "f",
        "description": "d",
        "input_schema": {"type": "array"},
        "output_schema": {},
        "side_effect": "none",
        "limits": msgspec.to_builtins(CapabilityLimits()),
        "approval_policy": "none",
        "idempotent": True,
    }


def test_requests_results_and_metadata_have_the_seeds_defaults() -> None:
    """Seed: the Default impls. Ours: figures that were not measured are null, not zero."""
    assert msgspec.to_builtins(RunRequest()) == {
        "session_id": "default",
        "language": "python",
        "code": "",
        "inputs": {},
        "timeout_ms": None,
        "limits": None,
        "return_snapshot": False,
        "validate_only": False,
        "idempotency_key": None,
    }
    assert msgspec.to_builtins(RunResult()) == {
        "status": "ok",
        "result": None,
        "stdout": "",
        "stderr": "",
        "diagnostics": [],
        "external_calls": [],
        "snapshot_id": None,
        "metrics": {
            "duration_ms": 0,
            "memory_peak_bytes": None,
            "instructions": None,
            "external_calls_count": 0,
        },
        "error": None,
    }
    meta = SessionMeta()
    assert (meta.created_at, meta.last_used_at, meta.language) == (0, 0, Language.PYTHON)
    assert meta.snapshot_version == SNAPSHOT_VERSION == 2
    assert msgspec.to_builtins(Span()) == {"line": 1, "column": 1, "end_line": None, "end_column": None}
    assert Diagnostic(code="X", message="m").severity is Severity.INFO


@pytest.mark.parametrize(
    ("policy", "written"),
    [
        ("none", b'"none"'),
        ("manual", b'"manual"'),
        (auto_approval("args[0] < 5"), b'{"auto":{"rule":"args[0] < 5"}}'),
    ],
)
def test_an_approval_policy_is_encoded_as_in_the_seed(policy: object, written: bytes) -> None:
    """Seed: serde writes unit variants as strings and Auto as an object with its rule."""
    capability = Capability(name="f", description="", approval_policy=policy)  # type: ignore[arg-type]
    assert msgspec.json.encode(capability.approval_policy) == written
    assert msgspec.json.decode(msgspec.json.encode(capability), type=Capability) == capability


def test_a_diagnostic_contains_everything_an_error_has() -> None:
    """Seed: Diagnostic::error."""
    error = ErrorObject(code="X", message="m").with_hint("h").with_span(Span(line=2, column=3))
    assert Diagnostic.error(error) == Diagnostic(
        severity=Severity.ERROR, code="X", message="m", hint="h", span=Span(line=2, column=3)
    )


def test_a_failed_result_has_a_status_and_its_error_as_a_diagnostic() -> None:
    """Seed: RunResult::error."""
    result = RunResult.failed(ErrorObject(code="TIMEOUT_CPU", message="m"), stdout="out")
    assert (result.status, result.result, result.stdout) == (RunStatus.TIMEOUT, None, "out")
    assert [item.code for item in result.diagnostics] == ["TIMEOUT_CPU"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_mb": 0},
        {"cpu_ms": 0},
        {"wall_ms": 0},
        {"max_stack_depth": 0},
        {"memory_mb": -1},
        {"cpu_ms": 1.5},
        {"wall_ms": True},
        {"max_external_calls": 2**32},
        {"max_stdout_bytes": "5"},
    ],
    ids=str,
)
def test_invalid_limits_are_refused(wrong: dict[str, object]) -> None:
    """Ours: the seed's fields are unsigned; a limit of zero is a mistake in most of them."""
    with pytest.raises(InvalidArgument):
        SessionLimits(**wrong)  # type: ignore[arg-type]


def test_a_stack_depth_beyond_16_bits_is_refused_on_construction_and_decoding() -> None:
    """Seed: max_stack_depth is a u16. Ours: construction checks what decoding checks."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"max_stack_depth":70000}', type=SessionLimits)
    with pytest.raises(InvalidArgument):
        SessionLimits(max_stack_depth=70_000)


def test_zero_external_calls_and_zero_output_are_valid_limits() -> None:
    """Ours: zero is valid where none at all is a sensible amount."""
    limits = SessionLimits(max_external_calls=0, max_stdout_bytes=0)
    assert msgspec.json.decode(msgspec.json.encode(limits), type=SessionLimits) == limits


def test_an_unknown_limit_is_refused_when_decoding() -> None:
    """Ours: a misspelt limit must not be silently ignored."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"memory": 5}', type=SessionLimits)


@pytest.mark.parametrize("name", ["a b", "1x", "", "a-b", "x\n"])
def test_an_input_whose_name_is_not_an_identifier_is_refused(name: str) -> None:
    """Ours: inputs are variables."""
    with pytest.raises(InvalidArgument):
        RunRequest(inputs={name: 1})


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**32])
def test_a_timeout_outside_its_range_is_refused(timeout_ms: int) -> None:
    """Ours: a time-out of zero is a mistake."""
    with pytest.raises(InvalidArgument):
        RunRequest(timeout_ms=timeout_ms)
