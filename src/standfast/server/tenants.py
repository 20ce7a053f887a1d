"""Ownership of ids by tenants. Only this module knows the rules.

Rules
-----
1. The id of a tenant's session, trigger or source begins with `_TENANT_`. The server adds the prefix if a
   tenant's client omits it, so two tenants can use the same id and neither can name the other's.
2. Credentials without a tenant work on ids without such a prefix.
3. A session that the runtime created itself, such as a subagent's, has no prefix; it belongs to the tenant in
   its metadata, which children and forks inherit.
4. A conversation's id in another protocol becomes a session id by `foreign_session_id`, within the tenant.
"""

from __future__ import annotations

import re
from typing import Final

from standfast.errors import InvalidArgument, InvalidSessionId
from standfast.model.canonical import digest_bytes
from standfast.model.session import SessionId, session_id_from

TENANT_PATTERN: Final = "^[a-z0-9]{1,20}$"
METADATA_KEY: Final = "tenant"
_tenant = re.compile(r"[a-z0-9]{1,20}", re.ASCII)
_owned = re.compile(r"_([a-z0-9]{1,20})_.+", re.ASCII | re.DOTALL)
_MAX_ID: Final = 64


def checked_tenant(name: str) -> str:
    """Return *name*, "" for no tenant; raise `InvalidArgument` if it is not a valid tenant name."""
    if name and _tenant.fullmatch(name) is None:
        raise InvalidArgument(
            f"tenant {name[:80]!r} must match {TENANT_PATTERN}",
            hint="use 1 to 20 lower-case letters and digits",
        )
    return name


def prefix_of(tenant: str) -> str:
    return f"_{tenant}_" if tenant else ""


def owned_id(tenant: str, given: str) -> str:
    """Return the stored form of an id that a client of *tenant* sent."""
    prefix = prefix_of(tenant)
    return given if given.startswith(prefix) else prefix + given


def owns_id(tenant: str, stored: str) -> bool:
    """Return whether a stored id belongs to *tenant* by its prefix; "" owns the ids without one."""
    found = _owned.fullmatch(stored)
    return (found[1] if found else "") == tenant


def new_session_id(tenant: str, given: str) -> str:
    """Return the stored id of a new session; raise `InvalidSessionId` if *tenant* may not use it."""
    stored = SessionId(owned_id(tenant, SessionId(given)))
    if not owns_id(tenant, stored):
        raise InvalidSessionId(given, "begins with the prefix of a tenant", hint="choose another id")
    return stored


def foreign_session_id(tenant: str, text: str) -> str:
    """Return the stored session id for a conversation id of another protocol."""
    stored = owned_id(tenant, session_id_from(text))
    if len(stored) > _MAX_ID or not owns_id(tenant, stored):
        stored = f"{prefix_of(tenant)}{digest_bytes(text.encode('utf-8', 'surrogatepass'))[:32]}"
    return stored
