"""Standfast: turns are journaled on SQLite (WAL, `synchronous=FULL`) and survive a crash and a loss of power.

Code runs in Monty. The tool declares an external side effect, so its intent is stored before it runs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from measuring import CHUNK, REPLY, USER, Framework, Runner, look_up, main, scripted_calls

from standfast import Agent, Runtime, Usage, tool
from standfast.events import TextStreamed
from standfast.model.message import ToolMessage, UserMessage
from standfast.ports.model_provider import ReplyEnded, RequestedCall, TextArrived

CODE = "```python\nr = await lookup(x={number})\nfinish(len(r))\n```"


class FakeModel:
    model_id = "fake:1"

    def __init__(self, kind: str, chunks: int) -> None:
        self.kind, self.chunks, self.numbers = kind, chunks, itertools.count()

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        usage = Usage(input=10, output=10)
        if self.kind == "stream":
            for _ in range(self.chunks):
                yield TextArrived(CHUNK)
            yield ReplyEnded(text=CHUNK * self.chunks, usage=usage)
        elif calls := scripted_calls(self.kind, results_of_turn(request.messages)):
            yield ReplyEnded(text="", calls=tuple(map(self.call, calls)), usage=usage)
        else:
            code = self.kind == "code_step_1call"
            text = CODE.format(number=next(self.numbers)) if code else REPLY
            yield TextArrived(text)
            yield ReplyEnded(text=text, usage=usage)

    def call(self, x: int) -> RequestedCall:
        return RequestedCall(
            name="lookup", arguments=json.dumps({"x": x}), provider_id=f"c{next(self.numbers)}"
        )

    async def close(self) -> None:
        pass


def results_of_turn(messages: Any) -> int:
    count = 0
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            break
        count += isinstance(message, ToolMessage)
    return count


class Sessions(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        @tool(side_effect="external_system", approval="manual" if kind == "hitl" else "none")
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

        options: dict[str, Any] = {"protocol": "code"} if kind == "code_step_1call" else {}
        tools = [] if kind in ("plain", "stream") else [lookup]
        model = FakeModel(kind, chunks)
        self.agent = Agent(model, name="bench", instructions="be brief", tools=tools, **options)
        self.runtime = Runtime(path)

    async def new_session(self, name: str) -> Any:
        return await self.runtime.session(name, agent=self.agent)

    reopen = new_session

    async def turn(self, session: Any, text: str) -> Any:
        return (await session.turn(text)).output

    async def stream(self, session: Any, text: str) -> int:
        return sum([isinstance(event, TextStreamed) async for event in session.turn(text)])

    async def pause(self, name: str) -> Any:
        session = await self.new_session(name)
        result = await session.turn(USER)
        return session, result.waits[0].wait_id

    async def resume(self, paused: Any) -> Any:
        session, wait = paused
        return (await session.approve(wait)).output

    async def close(self) -> None:
        await self.runtime.__aexit__(None, None, None)


class Standfast(Framework):
    name = "standfast"
    import_statement = "from standfast import Agent, Runtime, tool; Agent; Runtime"
    packages = ("standfast", "pydantic-monty", "msgspec", "apsw")

    async def make(self, kind: str, path: str | None, chunks: int) -> Sessions:
        sessions = Sessions(kind, path, chunks)
        await sessions.runtime.__aenter__()
        return sessions


if __name__ == "__main__":
    main(Standfast())
