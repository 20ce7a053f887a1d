"""Requests from plugins and tools to the runtime, and its answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from standfast.model.capability import SessionToolAccess
from standfast.model.limits import Usage, UsageLimits
from standfast.model.message import Message, UserMessage
from standfast.model.outcome import Outcome
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import SessionState
from standfast.model.session import HoldsSessionIds, Payload, SessionHead, SessionIdField, SessionPolicy


class FromNothing(msgspec.Struct, frozen=True, tag="nothing"):
    """A session without history."""


class FromCurrent(msgspec.Struct, frozen=True, tag="current"):
    """A session over the history of the requesting one, up to the node *at*."""

    at: str | None = None


class FromSession(HoldsSessionIds, frozen=True, tag="session"):
    """A session over the history of another one, up to the node *at*."""

    session_id: SessionIdField
    at: str | None = None


class FromSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """A session that begins with the contents of a snapshot."""

    snapshot: SessionSnapshot


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session at one moment: its head, the messages of its frame, the state of plugins and tools."""

    head: SessionHead
    messages: tuple[Message, ...] = ()
    state: SessionState = SessionState()


SessionStart = FromNothing | FromCurrent | FromSession | FromSnapshot


class SessionCreateRequest(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A session to create.

    Without an id, one is generated. The parent of a `child` is the requesting session. A child never has more
    tools than its parent, unless its `authority` is `own`, which requires an `agent` that the parent declares
    as a subagent. `plugins` are built anew (`fresh`) or forked with the parent's state (`inherited`). The
    `first_turn_input` can be taken once.
    """

    session_id: SessionIdField | None = None
    child: bool = True
    start: SessionStart = FromNothing()
    agent: str | None = None
    policy: SessionPolicy | None = None
    plugins: Literal["fresh", "inherited"] = "fresh"
    plugin_options: PluginOptions = PluginOptions()
    tool_access: SessionToolAccess = SessionToolAccess()
    task: str = ""
    subagent: bool = False
    authority: Literal["narrowed", "own"] = "narrowed"
    first_turn_input: UserMessage | None = None


class SessionHandle(HoldsSessionIds, frozen=True, kw_only=True):
    """A session that was created."""

    session_id: SessionIdField
    parent_session_id: SessionIdField | None = None
    depth: int = 0


class TurnInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of a turn. The same `idempotency_key` and content identify the same turn."""

    message: UserMessage
    limits: UsageLimits | None = None
    idempotency_key: str | None = None


class AssembledTurn(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that has ended, or waits."""

    turn_id: str
    session_id: SessionIdField
    outcome: Outcome
    text: str = ""
    usage: Usage = Usage()
    messages: tuple[Message, ...] = ()


class AppendSessionNodesRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes to append to the leaf, if `requires_ancestor_node_id` is still on the active path."""

    nodes: tuple[Payload, ...]
    requires_ancestor_node_id: str | None = None


class Appended(msgspec.Struct, frozen=True, kw_only=True, tag="appended", tag_field="status"):
    node_ids: tuple[str, ...]
    leaf_node_id: str


class BranchIsStale(msgspec.Struct, frozen=True, kw_only=True, tag="stale_branch", tag_field="status"):
    """Nothing was written: the active path has changed."""

    current_leaf_node_id: str | None = None


AppendSessionNodesResult = Appended | BranchIsStale


class DirectRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to a model outside of any turn. `model` defaults to the session's own."""

    prompt: str | tuple[Message, ...]
    instructions: str = ""
    output_schema: dict[str, Any] | None = None
    model: str | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class DirectCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the answer, and its usage."""

    text: str
    usage: Usage = Usage()
