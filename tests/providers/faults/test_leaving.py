"""Clients that disconnect in the middle of a stream: cancelled, or killed and replaced by another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fault_stage import Desk, Stage, faulty, play
from fault_table import cell
from fault_vendors import DONE, LINES, REPLY, SETTINGS, TEXT, Vendor

from standfast import Agent, Runtime
from standfast.model.events import Event, TextRetracted, TextStreamed
from standfast.model.message import AssistantMessage
from standfast.providers.http.model import HttpModel
from standfast.providers.script import Reply
from standfast.testing.servers.http_server import Served

pytestmark = pytest.mark.slow

PROMPTLY_S = 2.0

VICTIM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fault_vendors
from test_leaving import LedgerDesk
from standfast import Agent, Runtime

async def main():
    vendor = next(one for one in fault_vendors.VENDORS if one.name == sys.argv[2])
    model = vendor.model(sys.argv[3], vendor.key, None)
    async with Runtime(Path(sys.argv[4])) as runtime:
        tools = [LedgerDesk(Path(sys.argv[5])).write]
        agent = Agent(model, tools=tools, settings=dict(fault_vendors.SETTINGS))
        await (await runtime.session("s", agent=agent)).turn("Write!")

asyncio.run(main())
"""


class LedgerDesk(Desk):
    """A tool that logs to a file, so that the calls of another process are visible."""

    def __init__(self, ledger: Path) -> None:
        super().__init__()
        self._ledger = ledger

    def note(self, line: str, number: int) -> None:
        with self._ledger.open("a") as file:
            file.write(f"{number} {line}\n")


def lines_of(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines()


def middle(vendor: Vendor) -> int:
    """Return how many bytes of the reply to send so that a call has begun but is not complete."""
    blocks = vendor.blocks()
    return sum(map(len, blocks[: len(blocks) * 2 // 3])) + 20


def stalling_replies(vendor: Vendor, where: str) -> list[Served]:
    """Return replies of which one stalls: the first, which has the calls, or the one after them."""
    if where == "in the call":
        return [faulty(stall_at=middle(vendor)), REPLY, DONE]
    last = Reply(text=DONE, chunk_size=3)
    return [REPLY, faulty(last, stall_at=sum(map(len, vendor.blocks(last))) // 2), DONE]


async def until_shown(events: AsyncIterator[Event], text: str) -> None:
    """Wait until that much text has been shown."""
    shown = ""
    while shown != text:
        event = await anext(events)
        shown += event.text if isinstance(event, TextStreamed) else ""


@cell("cancel")
def test_a_cancelled_turn_disconnects_at_once_and_the_session_stays_usable(vendor: Vendor) -> None:
    """Seed: a turn may be cancelled in the middle of a stream."""

    async def scene() -> None:
        stage = Stage()
        replies = stalling_replies(vendor, "in the call")
        async with vendor.server(replies) as server, stage.runtime() as runtime:
            model = vendor.open(server)
            session = await runtime.session("s", agent=stage.agent(model))
            turn = session.turn("Write!")
            events = aiter(turn)
            await until_shown(events, TEXT)
            await server.stalled.wait()
            began = time.perf_counter()
            assert await turn.cancel()
            await server.hung_up.wait()
            assert time.perf_counter() - began < PROMPTLY_S
            (retracted,) = [event async for event in events if isinstance(event, TextRetracted)]
            assert retracted.chars == len(TEXT)
            assert ((await turn.settled()).status, stage.desk.written) == ("stopped", [])
            assert (await session.turn("Again!")).output == DONE
            assert sorted(stage.desk.written) == sorted(LINES)
            assert len(server.requests) == 3
            await model.close()

    play(scene())


async def start_and_kill(
    vendor: Vendor, server: Any, child: Callable[..., Any], home: Path, ledger: Path
) -> None:
    """Start a turn in a process, and kill it once the server has stalled."""
    here = str(Path(__file__).parent)
    victim = child(VICTIM, here, vendor.name, server.base_url, home / "h.db", ledger)
    await server.stalled.wait()
    await asyncio.to_thread(victim.kill)
    await server.hung_up.wait()


async def resume_here(model: HttpModel, home: Path, ledger: Path) -> list[str]:
    """Resume the killed process's turn here, and return the texts of its replies."""
    agent = Agent(model, tools=[LedgerDesk(ledger).write], settings=dict(SETTINGS))
    async with Runtime(home / "h.db") as runtime:
        session = await runtime.session("s", agent=agent)
        turn = await session.resume()
        if turn is None:  # the runtime resumed it first
            turn = session.follow((await session.turns())[-1].turn_id)
        assert (await turn).output == DONE
        return [one.text for one in await session.messages() if isinstance(one, AssistantMessage)]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["in the call", "after the call"])
@cell("kill")
def test_a_turn_whose_process_was_killed_in_a_stream_is_finished_by_another_process(
    vendor: Vendor, where: str, child: Callable[..., Any], tmp_path: Path, ledger: Path
) -> None:
    """Seed: a resumed turn calls the model again, and the tool runs once."""
    halted = 0 if where == "in the call" else 1

    async def scene() -> None:
        async with vendor.server(stalling_replies(vendor, where)) as server:
            await start_and_kill(vendor, server, child, tmp_path, ledger)
            assert len(lines_of(ledger)) == halted * len(LINES)
            model = vendor.open(server)
            assert await resume_here(model, tmp_path, ledger) == [TEXT, DONE]
            await model.close()
        asked = [request.body for request in server.requests]
        assert len(asked) == 3
        assert asked[halted] == asked[halted + 1]

    play(scene())
    assert sorted(lines_of(ledger)) == sorted(f"{number} {line}" for line, number in LINES)
