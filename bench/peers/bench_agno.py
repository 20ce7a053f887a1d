"""Agno: sessions in SQLite (`AsyncSqliteDb`) or in memory (`InMemoryDb`).

Each request has the whole history, as with the other frameworks.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.db.sqlite import AsyncSqliteDb
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.run.agent import RunContentEvent
from agno.tools import tool
from measuring import CHUNK, REPLY, USER, Framework, Runner, Unsupported, look_up, main, scripted_calls


@dataclass
class FakeModel(Model):
    id: str = "fake"
    name: str = "Fake"
    provider: str = "fake"
    kind: str = "plain"
    chunks: int = 0
    numbers: Any = field(default_factory=itertools.count)

    def invoke(self, messages: Any, **_: Any) -> ModelResponse:
        calls = [self.call(x) for x in scripted_calls(self.kind, results_of_turn(messages))]
        if calls:
            return ModelResponse(role="assistant", tool_calls=calls)
        return ModelResponse(role="assistant", content=REPLY)

    async def ainvoke(self, messages: Any, **options: Any) -> ModelResponse:
        return self.invoke(messages, **options)

    def invoke_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def ainvoke_stream(self, *_: Any, **__: Any) -> Any:
        for _number in range(self.chunks):
            yield ModelResponse(role="assistant", content=CHUNK)

    def _parse_provider_response(self, response: Any, **_: Any) -> ModelResponse:
        return response

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        return response

    def call(self, x: int) -> dict[str, Any]:
        function = {"name": "lookup", "arguments": json.dumps({"x": x})}
        return {"id": f"c{next(self.numbers)}", "type": "function", "function": function}


def results_of_turn(messages: Any) -> int:
    count = 0
    for message in reversed(messages):
        if message.role == "user":
            break
        count += message.role == "tool"
    return count


class Sessions(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        @tool(requires_confirmation=kind == "hitl")
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

        self.db: Any = AsyncSqliteDb(db_file=path) if path else InMemoryDb()
        self.agent = Agent(
            model=FakeModel(kind=kind, chunks=chunks),
            instructions="be brief",
            tools=[] if kind in ("plain", "stream") else [lookup],
            db=self.db,
            add_history_to_context=True,
            num_history_runs=100_000,
            telemetry=False,
        )

    def new_session(self, name: str) -> str:
        return name

    reopen = new_session

    async def turn(self, session: str, text: str) -> Any:
        return (await self.agent.arun(text, session_id=session)).content

    async def stream(self, session: str, text: str) -> int:
        events = self.agent.arun(text, session_id=session, stream=True)
        return sum([isinstance(event, RunContentEvent) async for event in events])

    async def pause(self, name: str) -> Any:
        paused = await self.agent.arun(USER, session_id=name)
        return name, paused.run_id, paused.requirements

    async def resume(self, paused: Any) -> Any:
        name, run_id, requirements = paused
        requirements[0].confirm()
        result = await self.agent.acontinue_run(run_id=run_id, requirements=requirements, session_id=name)
        return result.content

    async def close(self) -> None:
        if isinstance(self.db, AsyncSqliteDb):
            await self.db.close()


class Agno(Framework):
    name = "agno"
    import_statement = (
        "from agno.agent import Agent; from agno.db.sqlite import AsyncSqliteDb; from agno.tools import tool"
    )
    packages = ("agno",)

    def make(self, kind: str, path: str | None, chunks: int) -> Sessions:
        if kind == "code_step_1call":
            raise Unsupported("no code acting")
        return Sessions(kind, path, chunks)


if __name__ == "__main__":
    main(Agno())
