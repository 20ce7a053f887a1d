"""Packed nodes and journals: unpacking restores them, in files of every version."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import RecordCorrupt
from standfast.ports.session_store import PruneRequest
from standfast.store import packing, rules
from standfast.store.sqlite.connection import connect, ensure_checksums
from standfast.store.sqlite.sandbox_migration import COMPONENTS
from standfast.store.sqlite.schema import SESSIONS, migrate_all
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_store_journals import keep_turn
from standfast.testing.session_values import (
    NOW,
    a_commit,
    a_head,
    an_entry,
    begin,
    is_dead,
    opened,
    replied,
    said,
    take_turn,
    there,
)

VERSION_6 = Path(__file__).parent / "files" / "sessions_version_6.sql"
"""The rows of a file of the last version that packed no nodes."""

WORDS_DIGEST = "c21d40d649f2e71a"
LONG = "A question that is long enough to be packed. " * 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "standfast.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteSessionStore]:
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    asyncio.run(store.open_session(a_head("s1")))
    yield store
    asyncio.run(store.close())


def digest(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).hexdigest().encode()


texts = st.lists(
    st.one_of(
        st.text().map(lambda text: msgspec.json.encode(text)),
        st.integers(0, 9).map(lambda number: b'"%b"' % digest(number)),
        st.sampled_from((b'{"type":"user","content":"', b"abc" * 60, b"a" * 130)),
    ),
    max_size=12,
).map(b",".join)


@given(texts)
def test_nodes_are_restored_by_unpacking_and_their_digests_stay_readable(nodes: bytes) -> None:
    """Ours: pruning searches the stored rows for blob digests, in SQL."""
    stored = packing.pack_nodes(nodes)
    assert packing.unpack_nodes(stored, "nodes") == nodes
    assert set(rules.blob_digests(stored)) == set(rules.blob_digests(nodes))


@given(texts, texts)
def test_a_journal_is_unpacked_with_the_nodes_it_was_packed_with(journal: bytes, nodes: bytes) -> None:
    """Ours: a journal does not store the content of the nodes a second time."""
    stored = packing.pack_journal(journal, nodes)
    assert packing.unpack_journal(stored, packing.pack_nodes(nodes), "journal") == (journal, journal)


def test_nodes_with_more_digests_than_fit_in_a_byte_are_stored_unpacked() -> None:
    nodes = b",".join(digest(number) for number in range(256))
    assert packing.pack_nodes(nodes) == nodes


def test_damaged_packed_nodes_are_refused() -> None:
    """Ours: the digest of a row detects damage first; unpacking never raises a zlib error."""
    stored = packing.pack_nodes(LONG.encode())
    for damaged in (stored[:-1], stored[:2] + b"\x07" + stored[3:]):
        with pytest.raises(RecordCorrupt):
            packing.unpack_nodes(damaged, "nodes")


def test_the_compression_dictionary_is_that_of_the_first_version_that_packed() -> None:
    """Ours: rows that were packed with another dictionary could not be unpacked."""
    assert hashlib.sha256(packing._WORDS).hexdigest()[:16] == WORDS_DIGEST


def test_a_plain_turn_takes_less_space_than_its_texts(store: SqliteSessionStore) -> None:
    """Ours: the text of a reply is in the journal and in a node, but is stored once."""

    async def scenario() -> None:
        begun = await begin(store, "t1")
        text = "".join(chr(97 + byte % 26) for byte in hashlib.shake_256(b"text").digest(2_000))
        journal = (an_entry("model.1", b'{"type":"model_replied","text":"%b"}' % text.encode()),)
        commit = a_commit("t1", entries=(said(), replied(text)))
        await store.commit(begun.lease, msgspec.structs.replace(commit, journal=journal))
        assert there(await store.turn_journal("t1")).journal == journal

    asyncio.run(scenario())
    sizes = "SELECT length(segments.body), length(journals.body) FROM segments, journals"
    nodes, journal = store.database.read(lambda db: db.execute(sizes).get)
    assert nodes < 1_700
    assert journal < 150


def test_a_kept_journal_outlives_the_nodes_of_its_turn(store: SqliteSessionStore) -> None:
    """Ours: pruning earlier frames deletes nodes, not journals."""

    async def scenario() -> None:
        await keep_turn(store, "t1", an_entry("tool.1", LONG.encode()))
        before = there(await store.turn_journal("t1"))
        await take_turn(store, "t2", entries=(opened("t2"), said(LONG)))
        pruned = await store.prune(PruneRequest(frames=True))
        assert pruned.segments == 1
        assert await store.turn_journal("t1") == before

    asyncio.run(scenario())


def test_a_turn_that_added_no_nodes_keeps_its_journal(store: SqliteSessionStore) -> None:
    async def scenario() -> None:
        begun = await begin(store, "t1")
        commit = msgspec.structs.replace(a_commit("t1", entries=()), journal=(an_entry("model.1"),))
        await store.commit(begun.lease, commit)
        assert there(await store.turn_journal("t1")).journal == (an_entry("model.1"),)

    asyncio.run(scenario())


def test_a_journal_with_the_wrong_nodes_is_refused(store: SqliteSessionStore) -> None:
    """Ours: unpacked with other nodes the journal is a different text, and its digest does not match."""

    async def scenario() -> None:
        for turn_id in ("t1", "t2"):
            begun = await begin(store, turn_id)
            entries = (said(f"{turn_id} {LONG}"), replied())
            journal = (an_entry("model.1", b'"%b %b"' % (turn_id.encode(), LONG.encode())),)
            commit = msgspec.structs.replace(a_commit(turn_id, entries=entries), journal=journal)
            await store.commit(begun.lease, commit)
        swap = "UPDATE segments SET body = (SELECT body FROM segments WHERE key = 2) WHERE key = 1"
        store.database.write(lambda db: db.execute(swap))
        with pytest.raises(RecordCorrupt):
            await store.turn_journal("t1")

    asyncio.run(scenario())


def test_a_file_with_unpacked_nodes_stays_usable(path: Path) -> None:
    """Ours: unpacked segments and journals of the previous version stay readable next to packed ones."""
    components = {**COMPONENTS, "sessions": SESSIONS[:6]}
    ensure_checksums(path, lambda attempt: False, lambda db: None)
    with contextlib.closing(connect(path, 1_000)) as db:
        db.execute("BEGIN")
        migrate_all(db, components, path)
        db.execute("DELETE FROM standfast_schema")
        db.execute(VERSION_6.read_text())
        db.execute("COMMIT")

    async def scenario() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        long = an_entry("tool.1", b'"%s"' % (b"x" * 1_500))
        journals = [there(await store.turn_journal(turn_id)).journal for turn_id in ("t1", "t2")]
        assert journals == [(an_entry("model.1"), an_entry("model.9")), (long, an_entry("model.9"))]
        await keep_turn(store, "t4", now_ms=NOW + 3)
        head = there(await store.head("s1"))
        assert [it.segment_id for it in await store.frame(there(head.leaf))] == ["t1", "t2", "t3", "t4"]
        record = there(await store.turn("t1"))
        assert there(record.summary).outcome is not None
        await store.close()

    asyncio.run(scenario())
