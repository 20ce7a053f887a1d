"""The statements of `store.sql` in PostgreSQL's SQL: numbered placeholders, and a few fragments that differ.

Rules
-----
1. Keys and journal positions come from sequences, because transactions of many processes run concurrently.
   One step of the journal's sequence leaves room for `ENTRIES_PER_WRITE` entries.
2. The journal of a turn is read through its index: PostgreSQL's checksums cover the pages of indexes
   (`settings`). SQLite's journal has no index, which damage could make hide an entry, and is read whole.
3. The server searches texts for digests of blobs, so that the texts need not be sent.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Final

from standfast.store.sql import history, prune, rows, waits

ENTRIES_PER_WRITE: Final = 1_000_000
_DIGESTS: Final = (
    "SELECT DISTINCT convert_to(found[1], 'UTF8') FROM ({texts}) AS texts (text), "
    "regexp_matches(encode(text, 'escape'), '[0-9a-f]{{64}}', 'g') AS found"
)

_FRAGMENTS: Final = {
    rows.NEXT_SESSION: "SELECT nextval(pg_get_serial_sequence('sessions', 'key'))",
    rows.NEXT_SEGMENT: "nextval('segments_key')",
    rows.LAST_ENTRY: f"nextval('journal_seq') * {ENTRIES_PER_WRITE}",
    rows.JOURNALED: "(SELECT count(*) FROM journal WHERE turn_id = t.turn_id)",
    rows.JOURNAL: f"{rows.ENTRIES} WHERE turn_id = ? ORDER BY seq",
    rows.UPDATED_AT: "coalesce(standfast_in_head(head, 'updated_at')::bigint, 1000000000000000)",
    rows.OF_AGENT: "coalesce(standfast_in_head(head, 'agent') = ?, true)",
    history.LAST_STATE: "SELECT nextval('states_key')",
    waits.IS_DUE: "standfast_due_at(wait) <= ?",
    prune.TEXTS: _DIGESTS.format(texts=prune.TEXTS),
}
_PLACEHOLDER: Final = re.compile(r"\?(\d*)")


@cache
def is_query(sql: str) -> bool:
    """Return whether a statement of `store.sql` changes nothing."""
    return sql.lstrip().startswith(("SELECT", "WITH"))


@cache
def to_postgres(sql: str) -> bytes:
    """Translate a statement of `store.sql`."""
    for fragment, ours in _FRAGMENTS.items():
        sql = sql.replace(fragment, ours)
    numbers = itertools.count(1)
    return _PLACEHOLDER.sub(lambda found: f"${found[1] or next(numbers)}", sql).encode()
