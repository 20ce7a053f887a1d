"""A session as the store knows it, its history left out."""

from __future__ import annotations

import msgspec

from standfast.model.blocked import Blocked
from standfast.model.canonical import Json
from standfast.model.charter import SessionCharter
from standfast.model.code_settings import CodeSettings
from standfast.model.frame import INITIAL
from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.limits import U64
from standfast.model.usage import UsageEntry


class SessionHead(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stands.

    `leaf` is the last node of the active path and `depth` the number of nodes on it. `revision` rises by one
    whenever the leaf moves. `host` describes the agent to whoever goes on with the session elsewhere. `state`
    names the state of plugins and tools that holds at the leaf. A session that another one made has a
    `charter`. `metadata` is what the session was opened with; its forks and children have it too. `blocked`
    says why the next turn could not run when a process last tried. A session without a model has `code`.
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
