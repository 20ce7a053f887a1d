"""The agent of the ACP tests: it refunds with approval, writes a file, streams, or waits to be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from standfast import Agent, AskPerson, RunContext, tool
from standfast.model.message import ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall, TextArrived


@tool(side_effect="external_system", approval="manual")
def refund(cents: int) -> str:
    """Refund."""
    return f"refunded {cents}"


@tool(side_effect="write")
def edit(ctx: RunContext[None], path: str) -> str:
    """Edit a file."""
    ctx.report("edit", {"path": path, "old_text": "a", "new_text": "b"})
    return "edited"


@tool
def travel(ctx: RunContext[None]) -> str | AskPerson:
    """Ask where a person wants to go."""
    if ctx.answer is None:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        return AskPerson("Where to?", schema)
    return f"{ctx.answer.value} by {ctx.answer.by}"


class EditorModel:
    """A model that calls the tool that the prompt names, or streams an answer."""

    model_id = "test:editor"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        said = next(text_of(m.content) for m in reversed(request.messages) if isinstance(m, UserMessage))
        arguments = {"refund": '{"cents": 5}', "edit": '{"path": "/a.txt"}', "travel": "{}"}
        if isinstance(last, ToolMessage):
            yield ReplyEnded(text=f"the tool said {last.value if last.error is None else last.error.message}")
        elif said in arguments:
            yield ReplyEnded(text="", calls=(RequestedCall(name=said, arguments=arguments[said]),))
        elif said == "hold":
            yield TextArrived("holding")
            await asyncio.sleep(60)
        else:
            count = sum(isinstance(one, UserMessage) for one in request.messages)
            yield TextArrived(f"{count}: ")
            yield TextArrived(said)
            yield ReplyEnded(text=f"{count}: {said}")

    async def close(self) -> None:
        pass


agent = Agent(EditorModel(), name="editor", tools=[refund, edit, travel])
