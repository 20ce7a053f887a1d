"""The contract of something guest code or a model may call."""

from __future__ import annotations

import builtins
import enum
import keyword
import re
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import InvalidToolName
from standfast.model.canonical import digest_json
from standfast.model.limits import CapabilityLimits, none_means_defaults


class SideEffect(enum.StrEnum):
    NONE = "none"
    READ = "read"
    WRITE = "write"
    NETWORK = "network"
    DATABASE = "database"
    EXTERNAL_SYSTEM = "external_system"


class AutoRule(msgspec.Struct, frozen=True, kw_only=True):
    """A Python expression over `args`, `kwargs` and `session_id`: true approves, all else asks a person."""

    rule: str


class AutoApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that lets a rule approve."""

    auto: AutoRule


REPEATABLE = (SideEffect.NONE, SideEffect.READ)
"""The side effects whose calls are idempotent unless the contract says otherwise."""

ApprovalPolicy = Literal["none", "manual"] | AutoApproval


def auto_approval(rule: str) -> AutoApproval:
    """Approve calls for which *rule* is true; a person is asked about the others."""
    return AutoApproval(auto=AutoRule(rule=rule))


_DEFAULT_LIMITS: Final = CapabilityLimits()


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """What may be called, with what, and under which conditions.

    Unless a contract states `idempotent`, it is true only for the side effects `none` and `read`: the runtime
    repeats an idempotent call after a crash.
    """

    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})]
    description: str
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "array"})
    output_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    side_effect: SideEffect = SideEffect.NONE
    limits: CapabilityLimits = CapabilityLimits()
    approval_policy: ApprovalPolicy = "none"
    idempotent: bool | None = None

    def __post_init__(self) -> None:
        check_capability_name(self.name)
        if self.idempotent is None:
            msgspec.structs.force_setattr(self, "idempotent", self.side_effect in REPEATABLE)
        none_means_defaults(self, _DEFAULT_LIMITS)

    def digest(self) -> str:
        """The digest of the whole contract; an approval or a snapshot made under another one is void."""
        return digest_json(msgspec.to_builtins(self))


_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_taken = frozenset(dir(builtins))


def is_python_identifier(name: str) -> bool:
    """Whether *name* is an ASCII Python identifier."""
    return _identifier.fullmatch(name) is not None


def check_capability_name(name: str) -> None:
    """Refuse a name that guest code could not call or that would hide a built-in."""
    if not is_python_identifier(name):
        raise InvalidToolName(
            f"capability name {name[:80]!r} is not an ASCII Python identifier",
            hint="use letters, digits and '_', not starting with a digit",
        )
    if keyword.iskeyword(name):
        raise InvalidToolName(f"capability name {name!r} is a Python keyword", hint="choose another name")
    if name in _taken:
        raise InvalidToolName(f"capability name {name!r} hides a Python built-in", hint="choose another name")
