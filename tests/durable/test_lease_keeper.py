"""The lease keeper: the reads it makes while turns run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from standfast.durable.journal import LeaseKeeper
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.clock import FakeClock
from standfast.testing.session_values import a_head, begin


class RunningTurn:
    """A lease holder that only records whether it was cancelled."""

    def __init__(self, begun: Any) -> None:
        self.journal: Any = SimpleNamespace(turn_id=begun.record.turn_id, lease=begun.lease, held_until_ms=0)
        self.cancelled = False

    def lose(self) -> None:
        raise AssertionError("it was not taken over")

    def request_cancel(self) -> None:
        self.cancelled = True


def test_one_read_finds_every_cancelled_turn_among_the_running_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a process with a thousand running turns read a thousand records every second."""

    async def run() -> None:
        store = MemorySessionStore()
        keeper = LeaseKeeper(store, FakeClock(), 30_000)
        turns = []
        for number in range(20):
            await store.open_session(a_head(f"s{number}"))
            turns.append(RunningTurn(await begin(store, f"t{number}", f"s{number}")))
            keeper.hold(turns[-1])
        await store.cancel("t7")
        asked: list[tuple[str, ...]] = []
        cancelled = store.cancelled

        async def note(turn_ids: tuple[str, ...]) -> frozenset[str]:
            asked.append(turn_ids)
            return await cancelled(turn_ids)

        monkeypatch.setattr(store, "cancelled", note)
        monkeypatch.delattr(MemorySessionStore, "turn")
        await keeper.look()
        assert [len(ids) for ids in asked] == [20]
        assert [number for number, turn in enumerate(turns) if turn.cancelled] == [7]
        for turn in turns:
            keeper.let_go(turn)
        await keeper.look()
        assert len(asked) == 1, "nothing runs: nothing is asked"
        await keeper.close()

    asyncio.run(run())
