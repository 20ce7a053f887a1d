"""Sessions as the store keeps them: ids, settings, turns, and the nodes of their history.

A turn appends its nodes in one transaction, each the child of the previous one. Such a chain is a *segment*:
one record, one digest, one parent. A node's id is its segment's id and its position in it (`t_3f….2`), so ids
need no table of their own and a branch can begin in the middle of a segment.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from standfast.errors import ErrorObject, InvalidArgument, InvalidSessionId
from standfast.model.canonical import Json, digest_bytes
from standfast.model.capability import ExternalCallRecord, SessionToolAccess
from standfast.model.code import Language
from standfast.model.frame import INITIAL, FrameSwitch
from standfast.model.limits import U32, U64, SessionLimits, Usage, UsageEntry, UsageLimits, default_limits
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.outcome import Outcome, Stopped, Wait
from standfast.model.plugin_options import PluginOptions

SESSION_ID_PATTERN: Final = "^[a-zA-Z0-9_-]{1,64}$"
_OWNED: Final = r"(?s)_([a-z0-9]{1,20})_.+"
"""Matches the id of a tenant's session."""
_session_id = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_READABLE: Final = r"[a-zA-Z0-9_]+"
_DIGEST_CHARS: Final = 32
# The form that `session_id_from` creates. A text of this form is digested too, because it could be the id of
# another text.
_DERIVED: Final = rf"[a-zA-Z0-9_-]+-[0-9a-f]{{{_DIGEST_CHARS}}}"


class SessionId(str):
    """The name of a session, validated on construction; `default` by default.

    It is a new type only for the type checker: the constructor returns a plain string, which every codec can
    write.
    """

    __slots__ = ()

    def __new__(cls, value: str = "default") -> SessionId:
        if not isinstance(value, str) or _session_id.fullmatch(value) is None:
            raise InvalidSessionId(value)
        return str(value)  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def check_session_id(value: str) -> None:
    """Raise `InvalidSessionId` if *value* is not a session id. Cached: the same few ids are decoded often."""
    SessionId(value)


def session_id_from(text: str) -> SessionId:
    """Return a valid session id for any *text*: the same id for the same text, another one for any other.

    A text that is a valid id is its own id. Otherwise the id is the readable part of the text and a digest of
    the text: `user@example.com/42` becomes `user-example-com-42-335485f5ac733fe37b0ae52f594f0654`.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"a session id is made from text, not from {type(text).__name__}")
    if _session_id.fullmatch(text) is not None and re.fullmatch(_DERIVED, text) is None:
        return SessionId(text)
    digest = digest_bytes(text.encode("utf-8", "surrogatepass"))[:_DIGEST_CHARS]
    readable = "-".join(re.findall(_READABLE, text))[: 63 - _DIGEST_CHARS].strip("-")
    return SessionId(f"{readable or 'id'}-{digest}")


def check_idempotency_key(key: object) -> None:
    """Raise `InvalidArgument` unless *key* is text and not empty. Stores cannot read back anything else."""
    if not isinstance(key, str) or not key:
        raise InvalidArgument(
            f"an idempotency key must be non-empty text, got {key!r:.80}",
            hint='pass a str such as "mail-4711", or leave it out',
        )


SessionIdField = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": SESSION_ID_PATTERN})]
"""The type of a session id in a struct."""


class HoldsSessionIds(msgspec.Struct, frozen=True):
    """The base of structs with `SessionIdField` fields, which decoding validates too."""

    session_id_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        hints = cls.__annotations__.items()
        cls.session_id_fields = tuple(name for name, hint in hints if hint.startswith("SessionIdField"))
        if cls.session_id_fields == ("session_id",):
            cls.__post_init__ = _check_own_session_id  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for name in self.session_id_fields:
            if (value := getattr(self, name)) is not None:
                check_session_id(value)


def _check_own_session_id(self: Any) -> None:
    """Validate the only session id of a struct, as most structs of turns and events have."""
    if self.session_id is not None:
        check_session_id(self.session_id)


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's settings for one session. Plugins may change them when it is configured."""

    model: str = ""
    instructions: str = ""
    limits: UsageLimits = UsageLimits()
    settings: dict[str, Json] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        default_limits(self, UsageLimits())


def same_provider(model_id: str, other_id: str) -> bool:
    """Return whether two models have the same provider, the part of their names before the colon."""
    return model_id.partition(":")[0] == other_id.partition(":")[0]


class SessionCharter(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """The parent, task and restrictions of a session.

    `depth` counts the sessions above: 0 for a root. `task` is the purpose of the session. `tool_access` is
    already within the parent's. Without a `policy`, the agent's policy applies. `request` is the digest of
    the creation request, by which a repeated one is recognized.
    """

    parent_session_id: SessionIdField | None = None
    depth: int = 0
    task: str = ""
    subagent: bool = False
    tool_access: SessionToolAccess = SessionToolAccess()
    plugin_options: PluginOptions = PluginOptions()
    policy: SessionPolicy | None = None
    request: str = ""


SANDBOX_AGENT: Final = "(sandbox)"
"""The agent's name in the records of turns without a model. No agent can have it."""


class CodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Language and engine, fixed on creation, and limits. After `expires_at` the session is deleted."""

    language: Language
    engine: str
    limits: SessionLimits
    expires_at: U64 | None = None


class Blocked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The turn or queued input that cannot run, and the reason; void once it has run."""

    error: ErrorObject
    at_ms: U64
    turn_id: str = ""
    input_id: str = ""


class SessionHead(HoldsSessionIds, frozen=True, kw_only=True, gc=False):
    """The current state of a session.

    `leaf` is the last node of the active path and `depth` the number of nodes on it. `revision` increases by
    one whenever the leaf moves. `host` describes the agent to another process that continues the session.
    `state` identifies the state of plugins and tools at the leaf. A session created by another one has a
    `charter`. `metadata` is given when the session is opened, and copied to forks and children. `blocked`
    says why the next turn could not run at the last attempt. A session without a model has `code`.
    """

    session_id: SessionIdField
    created_at: U64
    updated_at: U64
    leaf: str | None = None
    depth: int = 0
    frame: str = INITIAL
    revision: int = 0
    model_calls: int = 0
    agent: str = ""
    model: str = ""
    forked_from: SessionIdField | None = None
    usage: tuple[UsageEntry, ...] = ()
    host: dict[str, Json] = msgspec.field(default_factory=dict)
    state: str | None = None
    charter: SessionCharter | None = None
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)
    blocked: Blocked | None = None
    code: CodeSettings | None = None

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.forked_from is not None:
            check_session_id(self.forked_from)

    @property
    def tenant(self) -> str:
        """The tenant that owns the session, by the prefix of its id or by its metadata; "" if none does."""
        found = re.fullmatch(_OWNED, self.session_id)
        named = self.metadata.get("tenant", "") if found is None else found[1]
        return named if isinstance(named, str) else ""


class TurnState(enum.StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The summary of a turn that waits or has ended; its messages are in the graph.

    `engine` names the engine and the build that suspended code of the turn: no other can resume it.
    """

    outcome: Outcome
    usage: Usage = Usage()
    calls: tuple[ExternalCallRecord, ...] = ()
    engine: str = ""


class TurnRecord(HoldsSessionIds, frozen=True, kw_only=True, gc=False):
    """The stored record of a turn. It has a `summary` if it waits or has ended."""

    turn_id: str
    session_id: SessionIdField
    state: TurnState
    created_at: U64
    agent: str = ""
    ended_at: U64 | None = None
    idempotency_key: str | None = None
    input_digest: str = ""
    cancel_requested: bool = False
    summary: TurnSummary | None = None


CurrentState = Literal["running", "waiting", "interrupted"]


class CurrentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished turn, as far as it is stored or, if it runs in this process, as far as it is known.

    `state` is "interrupted" if its process is gone and no other has taken it over yet. The last calls in
    `messages` may have no results yet.
    """

    turn_id: str
    state: CurrentState
    messages: tuple[Message, ...]
    waits: tuple[Wait, ...] = ()


class TurnEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="turn_ended", omit_defaults=True):
    """An event: the turn stopped without an answer."""

    outcome: Stopped
    usage: Usage = Usage()


class FrameOpened(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="frame_opened"):
    """An event: from here on the model sees this frame."""

    switch: FrameSwitch


class PluginNode(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="plugin"):
    """A plugin's or the host's entry in the history; opaque to everything else."""

    plugin_id: str
    kind: str
    body: Json = None


Payload = UserMessage | AssistantMessage | ToolMessage | TurnEnded | FrameOpened | PluginNode


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node as its segment stores it."""

    at_ms: int
    payload: Payload


class Segment(HoldsSessionIds, frozen=True, kw_only=True, gc=False):
    """A chain of nodes appended in one transaction. `depth` is the position of its first node on its path.

    `frame` is the frame of its last node; `opens_frame` says that a `FrameOpened` is among its nodes. The
    session `session_id` appended it; others may share it. `model_calls` counts those on the path to its end.
    """

    segment_id: str
    session_id: SessionIdField
    parent: str | None
    caused_by: str
    depth: int
    frame: str
    entries: tuple[Entry, ...]
    opens_frame: bool = False
    model_calls: int = 0

    @property
    def leaf(self) -> str:
        """The id of the last node."""
        return f"{self.segment_id}.{len(self.entries) - 1}"


class Node(msgspec.Struct, frozen=True):
    """One entry of a session's graph."""

    id: str
    parent: str | None
    frame: str
    caused_by: str
    at_ms: int
    payload: Payload


def node_id(segment_id: str, index: int) -> str:
    return f"{segment_id}.{index}"


def split_node_id(value: str) -> tuple[str, int]:
    """Return the segment id and the position in a node id."""
    segment_id, dot, index = value.rpartition(".")
    if not dot or not segment_id or not index.isascii() or not index.isdigit():
        raise InvalidArgument(f"{value[:80]!r} is not a node id", hint="node ids look like t_3f2a….2")
    return segment_id, int(index)


SNAPSHOT_VERSION: Final = 2


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A session's settings and times, in milliseconds since 1970."""

    id: SessionIdField = "default"
    created_at: U64 = 0
    last_used_at: U64 = 0
    language: Language = Language.PYTHON
    limits: SessionLimits = SessionLimits()
    snapshot_version: U32 = SNAPSHOT_VERSION

    def __post_init__(self) -> None:
        check_session_id(self.id)
        default_limits(self, SessionLimits())


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as `list` and `show` present it. Its `engine` is fixed on creation."""

    meta: SessionMeta
    engine: str = "monty"
    state: Literal["idle", "waiting_for_approval"] = "idle"
    state_bytes: int = 0
    expires_at: U64 | None = None
    approvals: list[str] = msgspec.field(default_factory=list)
