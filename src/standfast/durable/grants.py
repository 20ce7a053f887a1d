"""Grants in the store: give, list and revoke them.

Rule: grants are read from the store whenever a call needs approval, so that a grant revoked in any process
approves no further calls.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import GrantNotFound, InvalidArgument, RecordCorrupt
from standfast.model.grant import Grant, check_grant, check_types
from standfast.ports.session_store import SessionStore

MAX_IN_FORCE: Final = 1_000
"""The most grants of one store that may be in force at once. Each call that needs approval reads them all."""
_OWNER: Final = "standfast"
_SCOPE: Final = "grants"
_KEPT_MS: Final = 90 * 86_400_000
"""How long an expired or revoked grant is kept."""


async def list_grants(store: SessionStore) -> list[Grant]:
    """Return all grants, oldest first, including those that have expired or were revoked."""
    found = [_decode(key, body) for key, body in await store.plugin_records(_OWNER, _SCOPE)]
    return sorted(found, key=lambda grant: (grant.given_at, grant.grant_id))


async def find_grant(store: SessionStore, grant_id: str) -> Grant:
    """Return a grant. Raise `GrantNotFound` if there is none with this id."""
    body = await store.plugin_record(_OWNER, _SCOPE, grant_id)
    if body is None:
        raise GrantNotFound(grant_id)
    return _decode(grant_id, body)


async def give_grant(store: SessionStore, grant: Grant) -> Grant:
    """Store a grant, and delete those that ended more than 90 days ago."""
    check_grant(grant)
    now, in_force = grant.given_at, 0
    for other in await list_grants(store):
        in_force += other.is_in_force(now)
        if min(other.expires_at, other.revoked_at or other.expires_at) + _KEPT_MS < now:
            await store.put_plugin_record(_OWNER, _SCOPE, other.grant_id, None, now)
    if in_force >= MAX_IN_FORCE:
        raise InvalidArgument(
            f"{in_force} grants are in force, the limit is {MAX_IN_FORCE}", hint="revoke some of them"
        )
    await _put(store, grant, now)
    return grant


async def revoke_grant(store: SessionStore, grant_id: str, revoked_by: str | None, now_ms: int) -> Grant:
    """Revoke a grant and return it. Revoking it again changes nothing. Raise `GrantNotFound` if unknown."""
    grant = await find_grant(store, grant_id)
    if grant.revoked_at is None:
        grant = msgspec.structs.replace(grant, revoked_at=now_ms, revoked_by=revoked_by)
        check_types(grant)
        await _put(store, grant, now_ms)
    return grant


async def _put(store: SessionStore, grant: Grant, now_ms: int) -> None:
    await store.put_plugin_record(_OWNER, _SCOPE, grant.grant_id, msgspec.json.encode(grant), now_ms)


def _decode(grant_id: str, body: bytes) -> Grant:
    try:
        return msgspec.json.decode(body, type=Grant)
    except msgspec.DecodeError as error:
        raise RecordCorrupt(f"grant {grant_id} ({error})") from None
