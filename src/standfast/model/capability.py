"""Tools as values: the contract of a call, its record, and a session's decisions about its tools."""

from __future__ import annotations

import builtins
import enum
import keyword
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, final

import msgspec

from standfast.errors.caller import InvalidArgument, InvalidToolName, UnknownTool
from standfast.errors.codes import ErrorObject
from standfast.model.canonical import Json, digest_json
from standfast.model.limits import U32, U64, CapabilityLimits, default_limits


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
    """An approval policy in which a rule approves."""

    auto: AutoRule


REPEATABLE = (SideEffect.NONE, SideEffect.READ)
"""The side effects whose calls are idempotent unless the contract says otherwise."""

ApprovalPolicy = Literal["none", "manual"] | AutoApproval


def auto_approval(rule: str) -> AutoApproval:
    """Return a policy that approves calls for which *rule* is true and asks a person about the others."""
    return AutoApproval(auto=AutoRule(rule=rule))


_DEFAULT_LIMITS: Final = CapabilityLimits()


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """The contract of a tool: what may be called, with what, and under which conditions.

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
        default_limits(self, _DEFAULT_LIMITS)
        types = {"description": str, "limits": CapabilityLimits, "idempotent": bool}
        for field, wanted in types.items():
            if not isinstance(value := getattr(self, field), wanted):
                raise InvalidArgument(
                    f"{field} of tool {self.name}() must be a {wanted.__name__}, got {value!r:.80}"
                )

    def digest(self) -> str:
        """Return the digest of the whole contract, which approvals and snapshots have to match."""
        return digest_json(msgspec.to_builtins(self))


_taken = frozenset(dir(builtins))


def is_python_identifier(name: str) -> bool:
    """Return whether *name* is an ASCII Python identifier."""
    return name.isascii() and name.isidentifier()


def check_capability_name(name: str) -> None:
    """Raise `InvalidToolName` if guest code could not call *name* or it would hide a built-in."""
    if not is_python_identifier(name):
        raise InvalidToolName(
            f"capability name {name[:80]!r} is not an ASCII Python identifier",
            hint="use letters, digits and '_', not starting with a digit",
        )
    if keyword.iskeyword(name):
        raise InvalidToolName(f"capability name {name!r} is a Python keyword", hint="choose another name")
    if name in _taken:
        raise InvalidToolName(f"capability name {name!r} hides a Python built-in", hint="choose another name")


MAX_TRACEBACKS: Final = 16
"""The maximum number of records per turn or run that keep their tracebacks; others are only logged."""


class CallStatus(enum.StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    DENIED = "denied"
    APPROVAL_PENDING = "approval_pending"


class ExternalCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A call and its outcome, as digests: the audit trail holds no payloads.

    `traceback` is that of the tool's exception, for the tool's developer: at most 8 KB, with common forms of
    secrets removed. It is not shown to the model, to guest code or in the events of a session.
    """

    name: str
    side_effect: SideEffect
    duration_ms: U32
    status: CallStatus
    request_digest: str
    response_digest: str | None = None
    error: ErrorObject | None = None
    traceback: str | msgspec.UnsetType = msgspec.UNSET
    """Omitted if there is none."""

    def without_traceback(self) -> ExternalCallRecord:
        return msgspec.structs.replace(self, traceback=msgspec.UNSET) if self.traceback else self


class ToolCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call as guest code made it."""

    name: str
    args: list[Json] = msgspec.field(default_factory=list)
    kwargs: dict[str, Json] = msgspec.field(default_factory=dict)


class GuestException(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that guest code sees if a call fails."""

    type: str
    message: str


@final
class SettledCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its result: `value`, or `exception` if it failed; with `ends_turn`, that stops the turn."""

    record: ExternalCallRecord
    value: Json = None
    exception: GuestException | None = None
    ends_turn: bool = False


class ToolAvailability(enum.StrEnum):
    """How the model can reach a tool, in ascending order: off, searchable, callable, showcased."""

    OFF = "off"
    SEARCHABLE = "searchable"
    CALLABLE = "callable"
    SHOWCASED = "showcased"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    def __lt__(self, other: str) -> bool:
        return self.rank < ToolAvailability(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= ToolAvailability(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > ToolAvailability(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= ToolAvailability(other).rank


_RANKS: Final = {availability: rank for rank, availability in enumerate(ToolAvailability)}


def checked_availability(value: str) -> ToolAvailability:
    """Return the availability named *value*; raise for an unknown one, which must not count as "on"."""
    try:
        return ToolAvailability(value)
    except ValueError:
        known = ", ".join(ToolAvailability)
        raise InvalidArgument(f"{value!r} is not an availability", hint=f"use one of {known}") from None


class ToolStateEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One tool: its source, whether it is in the catalog, and the override of its own availability."""

    name: str
    source: str
    availability: ToolAvailability | None = None
    member: bool = True


class ToolState(msgspec.Struct, frozen=True, kw_only=True):
    """Every tool that a registry knows, by id; the model may call the searchable ones that it has `found`."""

    generation: U64 = 0
    tools: dict[str, ToolStateEntry] = {}
    found: tuple[str, ...] = ()

    def with_availability(self, names: Sequence[str], availability: ToolAvailability | None) -> ToolState:
        """Override the availability of these tools; None clears the override. They are no longer `found`."""
        override = None if availability is None else checked_availability(availability)
        changed = self._changed(names, lambda entry: msgspec.structs.replace(entry, availability=override))
        return msgspec.structs.replace(changed, found=tuple(sorted(set(self.found) - set(names))))

    def with_found(self, names: Sequence[str]) -> ToolState:
        """Record that the model has found these tools."""
        return msgspec.structs.replace(self, found=tuple(sorted({*self.found, *names})))

    def with_members(self, names: Sequence[str], member: bool) -> ToolState:
        """Add these tools to the catalog or remove them. Removed tools stay known."""
        return self._changed(names, lambda entry: msgspec.structs.replace(entry, member=member))

    def _changed(self, names: Sequence[str], change: Callable[[ToolStateEntry], ToolStateEntry]) -> ToolState:
        wanted = set(names)
        found = {tool_id: entry for tool_id, entry in self.tools.items() if entry.name in wanted}
        if unknown := sorted(wanted - {entry.name for entry in found.values()}):
            listed = ", ".join(repr(name[:80]) for name in unknown[:3])
            raise UnknownTool(f"there is no tool {listed}", hint="check the name; nothing was changed")
        changed = {tool_id: change(entry) for tool_id, entry in found.items()}
        return msgspec.structs.replace(self, tools={**self.tools, **changed})


class ToolManifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool as its source advertises it. Its id is the same across names, sources and restarts."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})]
    description: str = ""
    side_effect: SideEffect
    availability: ToolAvailability = ToolAvailability.SHOWCASED

    def __post_init__(self) -> None:
        check_capability_name(self.name)
        if not self.id:
            raise InvalidToolName(f"tool {self.name!r} has no id", hint="give it an id that never changes")


class SessionToolAccess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session's tools: a non-empty `tools` leaves only those, in order; `hidden_tools` then removes some.

    Rule: an empty `tools` means every tool, so "no tools" is expressed by naming tools and hiding them.
    """

    tools: tuple[str, ...] = ()
    hidden_tools: tuple[str, ...] = ()

    def within(self, parent: SessionToolAccess) -> SessionToolAccess:
        """Return this access restricted to what *parent* allows; never wider than either."""
        hidden = _distinct((*parent.hidden_tools, *self.hidden_tools))
        if not self.tools or not parent.tools:
            return SessionToolAccess(tools=self.tools or parent.tools, hidden_tools=hidden)
        shared = tuple(name for name in self.tools if name in set(parent.tools))
        if shared:
            return SessionToolAccess(tools=shared, hidden_tools=hidden)
        return SessionToolAccess(tools=self.tools, hidden_tools=_distinct((*hidden, *self.tools)))

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the *names* that this access allows, in the order that it gives them."""
        present = list(names)
        if self.tools:
            there = set(present)
            present = [name for name in _distinct(self.tools) if name in there]
        hidden = set(self.hidden_tools)
        return [name for name in present if name not in hidden]


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
