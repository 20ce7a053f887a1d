"""Guarantees of the in-memory store only: it is small, and several loops may use it."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from standfast.errors import SessionBusy
from standfast.ports.session_store import Begun
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.session_store_journals import keep_turn
from standfast.testing.session_values import (
    a_commit,
    a_head,
    a_save,
    a_wait,
    an_entry,
    begin,
    claimant,
    new_turn,
    waiting,
)

pytestmark = pytest.mark.slow


def test_only_one_of_several_concurrent_begins_on_different_loops_succeeds() -> None:
    """Ours: a lock guards the store, so that each method is atomic across loops and threads."""
    store = MemorySessionStore()
    asyncio.run(store.open_session(a_head()))
    start = threading.Barrier(8)
    committed: list[str] = []

    async def take_turns(worker: int) -> None:
        for number in range(50):
            turn_id = f"t{worker}_{number}"
            try:
                begun = await store.begin(new_turn(turn_id), claimant(f"w{worker}"))
            except SessionBusy:
                continue
            assert isinstance(begun, Begun)
            await store.commit(begun.lease, a_commit(turn_id))
            committed.append(turn_id)

    def work(worker: int) -> None:
        start.wait()
        asyncio.run(take_turns(worker))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = asyncio.run(store.head("s1"))
    assert head is not None
    assert head.revision == len(committed) == len(asyncio.run(store.turns("s1"))) > 0
    assert head.depth == 2 * len(committed)


def bytes_allocated_by(fill: Callable[[MemorySessionStore], Coroutine[Any, Any, None]]) -> int:
    """Return the memory that a store takes after *fill*."""
    store = MemorySessionStore()
    gc.collect()
    tracemalloc.start()
    try:
        asyncio.run(fill(store))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_waiting_session_takes_little_memory() -> None:
    """Ours: many sessions can wait for people at once; each takes 1.5 KB plus a small overhead of Python."""
    count = 500

    async def park_all(store: MemorySessionStore) -> None:
        for number in range(count):
            turn_id, session_id = f"t_{number:032}", f"session_{number}"
            begun = await begin(store, turn_id, session_id)
            wait = a_wait(f"wait_{number}")
            await store.park(begun.lease, a_save(turn_id), waiting(wait))

    assert bytes_allocated_by(park_all) / count < 2_000


def test_an_idle_session_is_small() -> None:
    """Ours: a turn and its two messages took 1.2 KB besides their text."""
    count, turns = 1_000, 5

    async def end_all(store: MemorySessionStore) -> None:
        for number in range(count):
            for turn in range(turns):
                begun = await begin(store, f"t_{number:016}{turn:016}", f"session_{number}")
                await store.commit(begun.lease, a_commit(f"t_{number:016}{turn:016}"))

    assert bytes_allocated_by(end_all) / count < 3_500


def test_the_journals_of_the_most_recent_turns_are_kept() -> None:
    """Ours: a journal repeats its turn's nodes, and must not fill the memory of a long-running program."""

    async def main() -> None:
        store = MemorySessionStore()
        await store.open_session(a_head("s1"))
        for number in range(1_002):
            await keep_turn(store, f"t{number}")
        kept = [await store.turn_journal(f"t{number}") is not None for number in range(1_002)]
        assert kept == [False] * 2 + [True] * 1_000

    asyncio.run(main())


def test_large_journals_are_kept_up_to_a_size_but_the_last_one_always() -> None:
    """Bug: a thousand journals were kept, however large."""

    async def main() -> None:
        store = MemorySessionStore()
        await store.open_session(a_head("s1"))
        for number in range(5):
            await keep_turn(store, f"t{number}", an_entry("tool.1", b'"%s"' % (b"x" * 100_000)))
        kept = [await store.turn_journal(f"t{number}") is not None for number in range(5)]
        assert kept == [False, False, False, True, True]
        await keep_turn(store, "t5", an_entry("tool.1", b'"%s"' % (b"x" * 1_000_000)))
        assert await store.turn_journal("t4") is None
        assert await store.turn_journal("t5") is not None
        assert await store.drop_journals(2**60) == 1
        await keep_turn(store, "t6", an_entry("tool.1", b'"%s"' % (b"x" * 100_000)))
        await keep_turn(store, "t7")
        assert await store.turn_journal("t6") is not None

    asyncio.run(main())
