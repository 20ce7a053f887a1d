"""OpenAI Agents SDK: sessions in SQLite (`SQLiteSession`).

In memory a session is the list of items that the last run returned.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import agents
from agents import Agent, ModelResponse, RunState, SQLiteSession, Usage, function_tool
from measuring import CHUNK, REPLY, USER, Framework, Runner, Unsupported, look_up, main, scripted_calls
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

agents.set_tracing_disabled(True)


class FakeModel(agents.Model):
    def __init__(self, kind: str, chunks: int) -> None:
        self.kind, self.chunks, self.numbers = kind, chunks, itertools.count()

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        results = results_of_turn(input)
        calls = scripted_calls(self.kind, results)
        output: list[Any] = [self.call(x) for x in calls] or [self.said(REPLY)]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(self, *_: Any, **__: Any) -> Any:
        number = next(self.numbers)
        for index in range(self.chunks):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                delta=CHUNK,
                content_index=0,
                output_index=0,
                item_id=f"m{number}",
                sequence_number=index,
                logprobs=[],
            )
        response = Response(
            id=f"r{number}",
            created_at=0,
            model="fake",
            object="response",
            output=[self.said(CHUNK * self.chunks)],
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=self.chunks
        )

    def call(self, x: int) -> ResponseFunctionToolCall:
        return ResponseFunctionToolCall(
            type="function_call",
            call_id=f"c{next(self.numbers)}",
            name="lookup",
            arguments=json.dumps({"x": x}),
        )

    def said(self, text: str) -> ResponseOutputMessage:
        part = ResponseOutputText(type="output_text", text=text, annotations=[])
        return ResponseOutputMessage(
            id=f"m{next(self.numbers)}", type="message", role="assistant", status="completed", content=[part]
        )


def results_of_turn(items: Any) -> int:
    count = 0
    for item in reversed([] if isinstance(items, str) else items):
        if item.get("role") == "user":
            break
        count += item.get("type") == "function_call_output"
    return count


class Sessions(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        @function_tool(needs_approval=kind == "hitl")
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

        tools: list[Any] = [] if kind in ("plain", "stream") else [lookup]
        model = FakeModel(kind, chunks)
        self.agent: Agent[Any] = Agent(name="bench", instructions="be brief", model=model, tools=tools)
        self.path = path
        self.opened: list[SQLiteSession] = []

    def new_session(self, name: str) -> Any:
        if not self.path:
            return {"items": []}
        self.opened.append(SQLiteSession(name, self.path))
        return self.opened[-1]

    reopen = new_session

    async def turn(self, session: Any, text: str) -> Any:
        if self.path:
            return (await agents.Runner.run(self.agent, text, session=session, max_turns=20)).final_output
        items = [*session["items"], {"role": "user", "content": text}]
        result = await agents.Runner.run(self.agent, items, max_turns=20)
        session["items"] = result.to_input_list()
        return result.final_output

    async def stream(self, session: Any, text: str) -> int:
        result = agents.Runner.run_streamed(self.agent, text, session=session if self.path else None)
        seen = 0
        async for event in result.stream_events():
            seen += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        return seen

    async def pause(self, name: str) -> str:
        session = self.new_session(name) if self.path else None
        result = await agents.Runner.run(self.agent, USER, session=session)
        return result.to_state().to_string()

    async def resume(self, paused: str) -> Any:
        state = await RunState.from_string(self.agent, paused)
        state.approve(state.get_interruptions()[0])
        return (await agents.Runner.run(self.agent, state)).final_output

    def close(self) -> None:
        for session in self.opened:
            session.close()


class OpenAIAgents(Framework):
    name = "openai-agents"
    import_statement = "from agents import Agent, Runner, SQLiteSession, function_tool"
    packages = ("openai-agents",)

    def make(self, kind: str, path: str | None, chunks: int) -> Sessions:
        if kind == "code_step_1call":
            raise Unsupported("no code acting")
        return Sessions(kind, path, chunks)


if __name__ == "__main__":
    main(OpenAIAgents())
