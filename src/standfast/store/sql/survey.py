"""The operator's survey of a store: leases, unfinished turns, its size, and the usage of turns.

Rule: it is read in one transaction without locks. Rows are counted table by table, so the cost grows with the
store; turns never use it.
"""

from __future__ import annotations

from standfast.ports.session_store import DayUsage, HeldLease, SessionOutline, StoreSurvey
from standfast.store import rules
from standfast.store.sql import rows
from standfast.store.sql.connection import Connection
from standfast.store.sql.tables import TABLES


def outlines(db: Connection, session_ids: tuple[str, ...]) -> dict[str, SessionOutline]:
    among = f"sessions.id IN ({', '.join('?' * len(session_ids)) or 'NULL'})"
    counts = "SELECT id, count(*) FROM sessions JOIN turns ON turns.session = sessions.key"
    counted = db.execute(f"{counts} WHERE {among} GROUP BY id", session_ids).fetchall()
    found = rows.find_turns(db, f"turns.state <> 'ended' AND {among}", *session_ids)
    opened = {turn.record.session_id: turn.record for turn in found}
    return {name: SessionOutline(turns=count, open_turn=opened.get(name)) for name, count in counted}


def usage_by_day(db: Connection, since_ms: int) -> list[DayUsage]:
    ended = rows.find_turns(db, "turns.state = 'ended' AND turns.ended_at >= ?", since_ms)
    models = {head.session_id: head.model for head in rows.heads(db)}
    return rules.usage_by_day((turn.record for turn in ended), models)


def survey(db: Connection) -> StoreSurvey:
    held = db.execute("SELECT id, owner, until_ms FROM sessions WHERE owner IS NOT NULL ORDER BY id")
    leases = tuple(
        HeldLease(session_id=str(session_id), owner=str(owner), until_ms=until_ms)
        for session_id, owner, until_ms in held.fetchall()
    )
    turns = tuple(turn.record for turn in rows.find_turns(db, "turns.state <> 'ended'"))
    counts = {
        table.name: int(db.execute(f"SELECT count(*) FROM {table.name}").get)  # noqa: S608 (our own names)
        for table in TABLES
    }
    return StoreSurvey(leases=leases, turns=turns, rows=counts, bytes=db.size_bytes())
