"""What a session that another one made may do, and for whom; fixed when it is made, and kept with it."""

from __future__ import annotations

import msgspec

from standfast.model.ids import SessionIdField, check_session_id
from standfast.model.plugin_options import PluginOptions
from standfast.model.session_policy import SessionPolicy
from standfast.model.tool_access import SessionToolAccess


class SessionCharter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`depth` counts the sessions above: 0 for a root. `task` is what the session is for.

    `tool_access` is already within what the parent had. Without a `policy` it is the agent's. `request` is
    the digest of what was asked for, so that asking again is known.
    """

    parent_session_id: SessionIdField | None = None
    depth: int = 0
    task: str = ""
    subagent: bool = False
    tool_access: SessionToolAccess = SessionToolAccess()
    plugin_options: PluginOptions = PluginOptions()
    policy: SessionPolicy | None = None
    request: str = ""

    def __post_init__(self) -> None:
        if self.parent_session_id is not None:
            check_session_id(self.parent_session_id)
