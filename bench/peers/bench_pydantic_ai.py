"""Pydantic AI: `StepPersistence` of its harness in SQLite.

In memory a session is the messages that the last run returned. Code runs in Monty.
"""

from __future__ import annotations

import itertools
from typing import Any

from measuring import CHUNK, REPLY, USER, Framework, Runner, look_up, main, scripted_calls
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness import CodeMode, StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run


class Script:
    """The functions of a `FunctionModel`."""

    def __init__(self, kind: str, chunks: int) -> None:
        self.kind, self.chunks, self.numbers = kind, chunks, itertools.count()

    async def reply(self, messages: Any, info: AgentInfo) -> ModelResponse:
        results = results_of_turn(messages)
        if self.kind == "code_step_1call" and not results:
            code = f"found = await lookup(x={next(self.numbers)})\nlen(found)"
            return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"code": code})])
        calls = [ToolCallPart("lookup", {"x": x}) for x in scripted_calls(self.kind, results)]
        return ModelResponse(parts=calls or [TextPart(REPLY)])

    async def arriving(self, messages: Any, info: AgentInfo) -> Any:
        for _ in range(self.chunks):
            yield CHUNK


def results_of_turn(messages: Any) -> int:
    count = 0
    for message in reversed(messages):
        if any(isinstance(part, UserPromptPart) for part in message.parts):
            break
        count += sum(isinstance(part, ToolReturnPart) for part in message.parts)
    return count


class Sessions(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        script = Script(kind, chunks)
        model = FunctionModel(script.reply, stream_function=script.arriving)
        self.store = SqliteStepStore(database=path) if path else None
        capabilities: list[Any] = [StepPersistence(store=self.store)] if self.store else []
        if kind == "code_step_1call":
            capabilities.append(CodeMode())
        output: Any = [str, DeferredToolRequests] if kind == "hitl" else str
        self.agent: Agent[Any, Any] = Agent(
            model, instructions="be brief", capabilities=capabilities, output_type=output
        )
        if kind in ("plain", "stream"):
            return

        @self.agent.tool_plain(requires_approval=kind == "hitl")
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

    def new_session(self, name: str) -> Any:
        return {"name": name, "messages": []}

    async def reopen(self, name: str) -> Any:
        last = (await self.store.list_runs(conversation_id=name))[-1]
        messages = await continue_run(self.store, run_id=last.run_id)
        return {"name": name, "messages": messages}

    async def turn(self, session: Any, text: str) -> Any:
        result = await self.agent.run(
            text, message_history=session["messages"], conversation_id=session["name"]
        )
        session["messages"] = result.all_messages()
        return result.output

    async def stream(self, session: Any, text: str) -> int:
        async with self.agent.run_stream(text, conversation_id=session["name"]) as result:
            return sum([1 async for _ in result.stream_text(delta=True, debounce_by=None)])

    async def pause(self, name: str) -> Any:
        result = await self.agent.run(USER, conversation_id=name)
        (call,) = result.output.approvals
        return ModelMessagesTypeAdapter.dump_json(result.all_messages()), call.tool_call_id

    async def resume(self, paused: Any) -> Any:
        stored, call_id = paused
        messages = ModelMessagesTypeAdapter.validate_json(stored)
        decided = DeferredToolResults(approvals={call_id: True})
        return (await self.agent.run(message_history=messages, deferred_tool_results=decided)).output


class PydanticAI(Framework):
    name = "pydantic-ai"
    import_statement = "from pydantic_ai import Agent; from pydantic_ai_harness import StepPersistence"
    packages = ("pydantic-ai-slim", "pydantic-ai-harness", "pydantic-monty")

    def make(self, kind: str, path: str | None, chunks: int) -> Sessions:
        return Sessions(kind, path, chunks)


if __name__ == "__main__":
    main(PydanticAI())
