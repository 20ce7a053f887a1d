"""What one run, and one call of a capability, may use."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from standfast.errors import InvalidArgument

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Positive16 = Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]
Positive32 = Annotated[int, msgspec.Meta(ge=1, le=2**32 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]


SANDBOX_TIMEOUT_MS: Final = 5_000
"""The time-out of a call from a sandbox without a model, if the contract has none."""
AGENT_TIMEOUT_MS: Final = 60_000
"""The time-out of a call from an agent, if the contract has none."""


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a run. `wall_ms` counts host calls, `cpu_ms` guest computing alone."""

    memory_mb: Positive32 = 64
    cpu_ms: Positive32 = 2_000
    wall_ms: Positive32 = 5_000
    max_stdout_bytes: U32 = 65_536
    max_external_calls: U32 = 32
    max_stack_depth: Positive16 = 256

    def __post_init__(self) -> None:
        require_unsigned(self)
        for name in ("memory_mb", "cpu_ms", "wall_ms", "max_stack_depth"):
            if getattr(self, name) == 0:
                raise InvalidArgument(f"{name} must be at least 1")
        if self.max_stack_depth >= 2**16:
            raise InvalidArgument(f"max_stack_depth must be at most {2**16 - 1}")


class CapabilityLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one capability. All of them are enforced on the host's side.

    Without `timeout_ms`, a call may take 5 s from a sandbox without a model and 60 s from an agent.
    """

    timeout_ms: Positive32 | None = None
    max_request_bytes: U32 = 1_048_576
    max_response_bytes: U32 = 1_048_576
    concurrency: Positive32 = 16
    rate_per_min: U32 | None = None

    def __post_init__(self) -> None:
        require_unsigned(self)
        for name in ("timeout_ms", "concurrency"):
            if getattr(self, name) == 0:
                raise InvalidArgument(f"{name} must be at least 1")


def none_means_defaults(struct: msgspec.Struct, defaults: msgspec.Struct) -> None:
    """Give a struct that was made with `limits=None` the default limits."""
    if getattr(struct, "limits", defaults) is None:
        msgspec.structs.force_setattr(struct, "limits", defaults)


def require_unsigned(struct: msgspec.Struct) -> None:
    """Refuse limits that are not whole numbers from 0; construction checks what decoding checks."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
            raise InvalidArgument(f"{name} must be a whole number from 0 to 4294967295, not {value!r}")
