"""Everything stored in a directory, for tests that search it for a secret."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from standfast.store.packing import unpack_journal, unpack_nodes

_JOURNALS = """
SELECT turn_id, journals.body, segments.body
FROM journals JOIN turns ON turns.key = journals.key LEFT JOIN segments ON segment_id = turn_id
"""


def stored_bytes(folder: Path) -> bytes:
    """Return the bytes of every file below *folder*, and of the packed contents of its SQLite stores."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    packed = [text for file in files if file.suffix == ".db" for text in _unpacked(file)]
    return b"\n".join([*(file.read_bytes() for file in files), *packed])


def _unpacked(file: Path) -> Iterator[bytes]:
    """Yield the nodes and the kept journals of a store, which may be open."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        for segment_id, body in db.execute("SELECT segment_id, body FROM segments"):
            yield unpack_nodes(body, segment_id)
        for turn_id, body, segment in db.execute(_JOURNALS):
            yield unpack_journal(body, segment, f"kept journal of {turn_id}")[0]
