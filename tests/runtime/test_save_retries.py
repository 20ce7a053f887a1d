"""Retried saves: one failed write does not turn a known result into an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from standfast import Agent, Runtime, tool
from standfast.errors import LeaseLost, StoreUnavailable
from standfast.ports.session_store import SessionStore
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_runtime import open_store
from standfast.store.sqlite.connection import translated
from standfast.testing.clock import FakeClock

FAULTS = [apsw.FullError, apsw.IOError, apsw.BusyError]


class Faulty:
    """A store whose writes of one kind fail a given number of times, as SQLite's would."""

    def __init__(self, path: Path, method: str, fault: type[apsw.Error], times: int) -> None:
        self._store = open_store(path)
        self._path, self._method, self._fault = path, method, fault
        self.left = times
        self.armed = False
        self.on_failure: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._method or not self.armed:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.left:
                self.left -= 1
                if self.on_failure is not None:
                    await self.on_failure()
                raise translated(self._fault("injected"), self._path)
            return await found(*args, **kwargs)

        return call


class Till:
    """A payment tool that counts its calls, and breaks the store when it is called."""

    def __init__(self, store: Faulty) -> None:
        self.paid = 0
        self._store = store

    def tool(self) -> Any:
        @tool(side_effect="external_system")
        async def pay() -> str:
            """Pay."""
            self.paid += 1
            self._store.armed = True
            return f"receipt {self.paid}"

        return pay


async def _run(
    store: Faulty, clock: FakeClock, sleep: Callable[[float], Awaitable[None]]
) -> tuple[Till, Any]:
    till = Till(store)
    agent = Agent(
        ScriptedModel([{"tool_calls": [{"name": "pay"}]}, "done"], strict=False), tools=[till.tool()]
    )
    async with Runtime(cast(SessionStore, store), clock=clock, _sleep=sleep) as runtime:
        session = await runtime.session("s", agent=agent)
        return till, await session.turn("pay", idempotency_key="k").settled()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["save", "commit"])
def test_a_result_is_kept_and_saved_once_the_store_is_writable_again(
    tmp_path: Path, fault: type[apsw.Error], method: str
) -> None:
    """Bug: after one failed save of a payment's result, the model read that the call was interrupted."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def scenario() -> None:
        store = Faulty(tmp_path / "standfast.db", method, fault, times=6)
        till, result = await _run(store, FakeClock(), sleep)
        assert till.paid == 1
        assert result.output == "done"
        assert "receipt 1" in str(result.messages)
        assert "INTERRUPTED" not in str(result.messages)

    asyncio.run(scenario())
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]


def test_a_save_is_abandoned_when_the_lease_expires(tmp_path: Path) -> None:
    """Ours: then another process may own the turn, and reports an unknown outcome."""
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    async def scenario() -> None:
        store = Faulty(tmp_path / "standfast.db", "save", apsw.FullError, times=1_000)
        began = clock.boot_ms()
        with pytest.raises(StoreUnavailable, match="full"):
            await _run(store, clock, sleep)
        assert 29_000 <= clock.boot_ms() - began <= 31_000

    asyncio.run(scenario())


def test_setting_the_clock_does_not_end_the_lease_of_a_repeated_save(tmp_path: Path) -> None:
    """Ours: a lease is measured with a clock that cannot be set."""
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.set(864_000)

    async def scenario() -> None:
        store = Faulty(tmp_path / "standfast.db", "save", apsw.FullError, times=3)
        till, result = await _run(store, clock, sleep)
        assert (till.paid, result.output) == (1, "done")

    asyncio.run(scenario())


def test_a_lost_lease_ends_the_attempts(tmp_path: Path) -> None:
    """Ours: a process that lost the lease writes nothing and stops."""

    async def scenario() -> None:
        store = Faulty(tmp_path / "standfast.db", "save", apsw.FullError, times=1_000)

        async def sleep(seconds: float) -> None:
            (driver,) = runtimes[0]._open.services.leases._holders.values()
            driver.lose()

        runtimes: list[Runtime] = []
        till = Till(store)
        agent = Agent(ScriptedModel([{"tool_calls": [{"name": "pay"}]}], strict=False), tools=[till.tool()])
        async with Runtime(cast(SessionStore, store), clock=FakeClock(), _sleep=sleep) as runtime:
            runtimes.append(runtime)
            session = await runtime.session("s", agent=agent)
            with pytest.raises(LeaseLost):
                await session.turn("pay")
        assert store.left == 999

    asyncio.run(scenario())


def test_a_turn_cancelled_meanwhile_still_has_its_result(tmp_path: Path) -> None:
    """Ours: the cancellation ends the turn, and the payment is in its history."""

    async def scenario() -> None:
        store = Faulty(tmp_path / "standfast.db", "save", apsw.IOError, times=3)
        till = Till(store)
        agent = Agent(
            ScriptedModel([{"tool_calls": [{"name": "pay"}]}, "x"], strict=False), tools=[till.tool()]
        )

        async def sleep(seconds: float) -> None:
            await turn.cancel()

        async with Runtime(cast(SessionStore, store), clock=FakeClock(), _sleep=sleep) as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("pay")
            result = await turn.settled()
            assert result.status == "stopped"
            assert "receipt 1" in str(await session.messages())
        assert till.paid == 1

    asyncio.run(scenario())
