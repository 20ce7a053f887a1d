"""A model for tests of subagents that plays every role, selected by the first word of its task."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, RequestedCall, ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded

EACH = Usage(input=10, output=1)
"""The usage of each reply."""

Call = tuple[str, dict[str, Any]]
Move = str | list[Call] | Callable[[ModelRequest], Any]


class Cast:
    """A model with a script for each role: one move per reply, repeating the last one."""

    def __init__(self, name: str = "one", /, **roles: Any) -> None:
        self.model_id = f"cast:{name}"
        self.requests: dict[str, list[ModelRequest]] = {}
        self._roles = roles

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        role = _task(request).split()[0]
        self.requests.setdefault(role, []).append(request)
        moves = self._roles[role]
        said = sum(isinstance(one, AssistantMessage) for one in request.messages)
        move: Any = moves[min(said, len(moves) - 1)]
        if callable(move):
            move = move(request)
        if inspect.isawaitable(move):
            move = await move
        yield _reply(move)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def tools_of(self, role: str) -> list[str]:
        """Return the tools that a role was offered in its first request."""
        return sorted(tool.name for tool in self.requests[role][0].tools)


def calls(*made: Call) -> list[Call]:
    return list(made)


def spawn(task: str, **options: Any) -> Call:
    return ("spawn_agent", {"task": task, **options})


def spawned(request: ModelRequest) -> list[str]:
    """Return the ids of the subagents so far, in order."""
    return [value["agent_id"] for value in values(request, "spawn_agent")]


def values(request: ModelRequest, name: str) -> list[Any]:
    """Return the values that a tool has returned so far."""
    found = [one for one in request.messages if isinstance(one, ToolMessage) and one.name == name]
    return [one.value for one in found if one.error is None]


def errors(messages: list[Any], name: str) -> list[Any]:
    """Return the errors of the calls to a tool."""
    found = [one for one in messages if isinstance(one, ToolMessage) and one.name == name]
    return [one.error for one in found if one.error is not None]


def on(event: asyncio.Event, move: Move) -> Callable[[ModelRequest], Any]:
    """Return a move that waits until the event is set."""

    async def held(request: ModelRequest) -> Any:
        await event.wait()
        return move(request) if callable(move) else move

    return held


def _task(request: ModelRequest) -> str:
    first = next(one for one in request.messages if isinstance(one, UserMessage))
    return text_of(first.content)


def _reply(move: str | list[Call]) -> ReplyEnded:
    if isinstance(move, str):
        return ReplyEnded(text=move, usage=EACH)
    requested = tuple(
        RequestedCall(name=name, arguments=json.dumps(arguments), provider_id=f"c{place}")
        for place, (name, arguments) in enumerate(move)
    )
    return ReplyEnded(text="", calls=requested, usage=EACH, stop_reason="tool_calls")
