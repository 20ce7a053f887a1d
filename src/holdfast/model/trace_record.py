"""One line of a trace."""

from __future__ import annotations

import msgspec

from holdfast.model.canonical import Json
from holdfast.model.limits import U64


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something worth knowing about a session that changes nothing in it."""

    at_ms: U64
    name: str
    session_id: str = ""
    turn_id: str = ""
    plugin_id: str = ""
    body: Json = None
