"""How fast the workbench is: a long session, a full inbox, an event on the pages of 20 viewers.

The targets: the page of a session with 1,000 turns begins within 150 ms and has at most 250 kB; a page of an
inbox with 5,000 requests takes at most 100 ms; an event is on the pages of 20 viewers within 100 ms.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from standfast import Agent, Runtime, tool
from standfast.model.approval import Approval, ApprovalState
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.server import Limits, Listen, create_app, make_server
from standfast.workbench import PAGES

TURNS, REQUESTS, VIEWERS, EVENTS = 1_000, 5_000, 20, 50
ANSWER = (
    "The order came **six days late**. Here is what I found:\n\n- paid: $19.99\n- refunded: nothing yet\n" * 3
)


class Model:
    """Answers at once, or streams a word for each token that is put into `words`."""

    model_id = "bench:model"

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        if "stream" not in str(request.messages[-1]):
            yield ReplyEnded(text=ANSWER)
            return
        said = ""
        for _ in range(EVENTS):
            word = await self.words.get()
            said += word
            yield TextArrived(word)
        yield ReplyEnded(text=said)

    async def close(self) -> None:
        pass


@tool(side_effect="external_system", approval="manual")
def refund(order_id: str, cents: int) -> str:
    """Refund an order."""
    return "refunded"


async def main() -> None:
    model = Model()
    agent = Agent(model, name="clerk", tools=[refund])
    with tempfile.TemporaryDirectory() as home:
        async with Runtime(Path(home) / "standfast.db", agents=[agent]) as runtime:
            limits = Limits(requests_per_s=1e6, burst=10**6, streams=1000)
            app = create_app(runtime, pages=PAGES, limits=limits)
            server = make_server(app, Listen(port=0))
            bound: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            server.on_started = bound.set_result
            serving = asyncio.create_task(server.serve())
            url = f"http://127.0.0.1:{(await bound)[0][1]}"
            token, _ = await app.state.tokens.create(scopes=("admin",))
            headers = {"authorization": f"Bearer {token}", "accept": "text/html"}
            async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                await long_session(runtime, agent, client)
                await full_inbox(runtime, client)
                await viewers(runtime, agent, model, client)
            server.should_exit = True
            await serving


async def timed(client: httpx2.AsyncClient, path: str) -> str:
    """Return the median time to the first byte, the CPU time of server and client, and the size of a page."""
    times, busy, size = [], [], 0
    for _ in range(9):
        began, used = time.perf_counter(), time.process_time()
        async with client.stream("GET", path) as answer:
            times.append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200
            size = len(await answer.aread())
        busy.append((time.process_time() - used) * 1000)
    return (
        f"first byte after {statistics.median(times):.0f} ms ({statistics.median(busy):.0f} ms of CPU), "
        f"{size / 1000:.0f} kB"
    )


async def long_session(runtime: Runtime, agent: Agent[Any, str], client: httpx2.AsyncClient) -> None:
    session = await runtime.session("long", agent=agent)
    for number in range(TURNS):
        last = await session.turn(f"question {number}")
    print(f"a session with {TURNS:,} turns: {await timed(client, '/sessions/long')}")
    turn = f"/sessions/long/turns/{last.turn_id}"
    print(f"the prompt of its last turn: {await timed(client, f'{turn}/prompt')}")
    print(f"the waterfall of its last turn: {await timed(client, f'{turn}/waterfall')}")
    print(f"the list of sessions: {await timed(client, '/')}")


async def full_inbox(runtime: Runtime, client: httpx2.AsyncClient) -> None:
    """Put requests into the store; their turns do not matter here."""
    now = runtime.now_ms()
    asked = [
        Approval(
            approval_id=f"apr_{number:06}",
            state=ApprovalState.PENDING,
            session_id="long",
            capability="refund",
            args=[],
            kwargs={"order_id": f"A{number}", "cents": number},
            requested_at=now - number,
            expires_at=now + 86_400_000,
            binding="",
            run_id="t_none",
            call_id=1,
        )
        for number in range(REQUESTS)
    ]
    from standfast.store.sql import sessions, waits

    put: Any = sessions._writes(lambda db: [waits.insert_approval(db, one) for one in asked])
    await put(runtime.store)
    await asyncio.sleep(1)  # pages may show what was read half a second ago
    assert "5,000 requests" in (await client.get("/approvals")).text
    print(f"an inbox with {REQUESTS:,} requests: {await timed(client, '/approvals')}")


async def viewers(runtime: Runtime, agent: Agent[Any, str], model: Model, client: httpx2.AsyncClient) -> None:
    session = await runtime.session("watched", agent=agent)
    await session.turn("hello")
    sent: dict[str, float] = {}
    delays: list[float] = []
    ready = asyncio.Semaphore(0)

    async def view() -> None:
        left = EVENTS
        async with client.stream("GET", "/sessions/watched/stream?depth=2") as answer:
            ready.release()
            async for line in answer.aiter_lines():
                arrived = time.perf_counter()
                for word in [one for one in sent if one in line and "stream-text" in line]:
                    delays.append((arrived - sent[word]) * 1000)
                    left -= 1
                if left <= 0:
                    return

    watching = [asyncio.create_task(view()) for _ in range(VIEWERS)]
    for _ in watching:
        await ready.acquire()
    turn = session.turn("stream")
    turn.start()
    await asyncio.sleep(1)
    for number in range(EVENTS):
        word = f"w{number:04}w "
        sent[word.strip()] = time.perf_counter()
        model.words.put_nowait(word)
        await asyncio.sleep(0.05)
        sent.pop(word.strip(), None)
    await turn.settled()
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    delays.sort()
    print(
        f"an event on the pages of {VIEWERS} viewers: median {statistics.median(delays):.0f} ms, "
        f"99 of 100 within {delays[int(len(delays) * 0.99) - 1]:.0f} ms ({len(delays)} arrivals)"
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
