"""Offers of work to processes: each session to one process, for the time that it may need to begin.

Theory of operation
-------------------
A process asks for sessions that have work. One statement finds them, skips those that another transaction has
locked (`SKIP LOCKED`) or that were recently offered to another process, and records the rest as offered. The
process then takes the session's lease with `begin` or `take_over`. An offer is not a lease: it keeps two
processes from trying the same session. If a process dies with an offer, the session is only delayed until the
offer expires.

Rules
-----
1. Sessions that were never offered, or longest ago, come first.
2. The first process to write an offer gets the session: if another transaction had found the same session,
   its own offer is rejected.
3. Offers are in an unlogged table, and their commit does not wait for the disk. A crash of the server deletes
   them, which does no harm.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from standfast.ports.session_store import SessionWork
from standfast.store.rules import IsDead
from standfast.store.sql.connection import Connection

_OWNERS: Final = """
SELECT owner, min(until_ms) FROM turns JOIN sessions ON sessions.key = turns.session
WHERE turns.state <> 'ended' AND turns.state = 'running' AND owner IS NOT NULL AND until_ms > ?
GROUP BY owner
"""

# ?1 the time for leases, ?2 the time for waits, ?3 agents, ?4 dead owners, ?5 the limit, ?6 other engine
# builds
_FIND: Final = """
SELECT s.key, s.id, work.turn_id FROM (
    SELECT t.session, t.turn_id FROM turns t JOIN sessions ON sessions.key = t.session
    WHERE t.state <> 'ended' AND t.agent = ANY(?3) AND CASE t.state
        WHEN 'running' THEN owner IS NULL OR until_ms <= ?1 OR owner = ANY(?4)
        ELSE t.cancel <> 0 OR (
            cardinality(?6::text[]) = 0
            OR coalesce(convert_from(t.summary, 'UTF8')::json ->> 'engine', '') <> ALL(?6)
        ) AND EXISTS (
            SELECT 1 FROM waits w WHERE w.turn_id = t.turn_id AND w.stands <> 0 AND (
                w.outcome IS NOT NULL OR standfast_due_at(w.wait) <= ?2
                OR EXISTS (SELECT 1 FROM approvals WHERE approval_id = w.wait_id AND state <> 'pending')
            )
        ) END
    UNION ALL
    SELECT DISTINCT i.session, NULL FROM inputs i JOIN sessions ON sessions.key = i.session
    WHERE i.kind = 'queue' AND convert_from(head, 'UTF8')::json ->> 'agent' = ANY(?3)
        AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.session = i.session AND state <> 'ended')
) AS work JOIN sessions s ON s.key = work.session LEFT JOIN offers ON offers.session = s.key
WHERE offers.until_ms IS NULL OR offers.until_ms <= ?1
ORDER BY offers.until_ms NULLS FIRST, s.key LIMIT ?5 FOR NO KEY UPDATE OF s SKIP LOCKED
"""

# ?1 keys of sessions, ?2 the end of the offer, ?3 the time for leases
_OFFER: Final = """
INSERT INTO offers (session, until_ms) SELECT key, ?2 FROM unnest(?1::bigint[]) AS key ORDER BY key
ON CONFLICT (session) DO UPDATE SET until_ms = excluded.until_ms WHERE offers.until_ms <= ?3
RETURNING session
"""


class ClaimFilter(NamedTuple):
    """Up to `limit` sessions of these agents, without turns that need these engine builds."""

    agents: tuple[str, ...]
    limit: int
    without: tuple[str, ...]


class Offered(NamedTuple):
    """Sessions that have work, and the time until the next lease expires unless it is renewed."""

    work: list[SessionWork]
    lease_ends_ms: int | None


def offer(db: Connection, now_ms: int, offer_ms: int, wanted: ClaimFilter, is_dead: IsDead) -> Offered:
    """Offer sessions for *offer_ms*."""
    lease_now_ms = db.lease_now(now_ms)
    db.execute("SELECT set_config('synchronous_commit', 'off', true)")
    owners: dict[str, int] = dict(db.execute(_OWNERS, (lease_now_ms,)).fetchall())
    dead = [owner for owner in owners if is_dead(owner)]
    agents, without = list(wanted.agents), list(wanted.without)
    found = db.execute(_FIND, (lease_now_ms, now_ms, agents, dead, wanted.limit, without)).fetchall()
    keys = [key for key, _, _ in found]
    until_ms = lease_now_ms + offer_ms
    ours = {key for (key,) in db.execute(_OFFER, (keys, until_ms, lease_now_ms)).fetchall()}
    work = [
        SessionWork(session_id=session_id, turn_id=turn_id)
        for key, session_id, turn_id in found
        if key in ours
    ]
    return Offered(work, min(owners.values()) - lease_now_ms if owners else None)
