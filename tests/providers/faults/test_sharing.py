"""One provider, used by many sessions at once."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest
from fault_stage import Stage, answering, faulty, hear, play
from fault_table import cell
from fault_vendors import REPLY, Vendor

from standfast.model.message import AssistantMessage
from standfast.providers.http.model import HttpModel
from standfast.providers.script import Reply, ScriptedCall
from standfast.runtime.agent_runtime import Runtime
from standfast.testing.servers.http_server import SeenRequest

pytestmark = pytest.mark.slow

SESSIONS = 6


def reply_naming_the_caller(request: SeenRequest) -> Reply:
    """Return a reply with the caller's name in every part: first a call, then the end."""
    body = repr(request.body)
    (name,) = set(re.findall(r"for (\w\d)\b", body))
    if "is written" in body:
        return Reply(text=f"{name} is done.")
    call = ScriptedCall(name="write", arguments={"line": f"line for {name}", "number": 1})
    return Reply(text=f"{name} begins. ", chunk_size=3, tool_calls=(call,))


async def one_session(runtime: Runtime, stage: Stage, model: HttpModel, name: str) -> None:
    agent = stage.agent(model, max_attempts=20, max_retry_wait_ms=10**7)
    session = await runtime.session(name, agent=agent)
    result = await session.turn(f"Write for {name}.")
    texts = [one.text for one in result.messages if isinstance(one, AssistantMessage)]
    assert texts == [f"{name} begins. ", f"{name} is done."]


@cell("shared")
def test_sessions_of_two_runtimes_share_a_provider_while_calls_fail(vendor: Vendor) -> None:
    """Ours: every second call fails, and no session gets another session's reply."""
    faults = (
        faulty(cut_at=300),
        faulty(status=503, headers={"retry-after": "1"}),
        faulty(order="garbage:0"),
        faulty(cut_at=500, reset=True),
    )
    replies = [faults[number // 2 % len(faults)] if number % 2 else REPLY for number in range(200)]

    async def scene() -> None:
        first, second = Stage(), Stage()
        async with (
            answering(vendor, reply_naming_the_caller)(replies) as server,
            first.runtime() as here,
            second.runtime() as there,
        ):
            model = vendor.open(server)
            async with asyncio.TaskGroup() as group:
                for number in range(SESSIONS):
                    group.create_task(one_session(here, first, model, f"a{number}"))
                    group.create_task(one_session(there, second, model, f"b{number}"))
            await model.close()
        assert len(server.requests) > 2 * 2 * SESSIONS
        for letter, stage in (("a", first), ("b", second)):
            expected = Counter((f"line for {letter}{number}", 1) for number in range(SESSIONS))
            assert Counter(stage.desk.written) == expected
            assert stage.slept_ms

    play(scene())


@cell("shared-loops")
def test_two_event_loops_share_a_provider(vendor: Vendor) -> None:
    """Ours: connections belong to an event loop, and close with it."""

    async def scene() -> None:
        middle = sum(map(len, vendor.blocks())) // 2
        async with vendor.server([faulty(stall_at=middle), *[REPLY] * 3]) as server:
            model = vendor.open(server)
            waiting = asyncio.create_task(hear(model))
            await server.stalled.wait()
            there = [await asyncio.to_thread(asyncio.run, hear(model)) for _ in range(2)]
            here = await hear(model)
            assert all(one.ended is not None for one in (*there, here))
            assert not waiting.done()
            waiting.cancel()
            await server.hung_up.wait()
            await model.close()

    play(scene())
