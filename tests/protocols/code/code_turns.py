"""Shared helpers for tests of turns that act in code: scripted sessions, logging tools, recording hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from code_stand_ins import RecordingModel
from stand_ins import Place, of_kind

from standfast import Agent, Plugin, hook, tool
from standfast.model.events import Event, TextStreamed
from standfast.model.limits import UsageLimits
from standfast.model.message import Message, ToolMessage, UserMessage, text_of
from standfast.plugins.contexts import ToolCallHookContext, ToolResultHookContext
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_session import Session
from standfast.runtime.result import TurnResult


@dataclass
class Played:
    """The outcome of several turns: their results and events, the model's requests, the effects of tools."""

    model: RecordingModel
    results: list[TurnResult[Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ran: list[Any] = field(default_factory=list)

    @property
    def first(self) -> TurnResult[Any]:
        return self.results[0]

    @property
    def last(self) -> TurnResult[Any]:
        return self.results[-1]

    @property
    def shown(self) -> list[str]:
        """Return the text that observers were shown of replies and answers, piece by piece."""
        return [one.text for one in of_kind(TextStreamed, self.events)]

    def read(self, call: int = -1) -> list[str]:
        """Return the messages of users and cells that the model read in one of its calls, in order."""
        return read_of(self.model.requests[call].messages)


def read_of(messages: Iterable[Message]) -> list[str]:
    return [text_of(one.content) for one in messages if isinstance(one, UserMessage)]


def observations(messages: Iterable[Message]) -> list[str]:
    """Return the observation of each cell, as the model reads it."""
    return [one.shown or "" for one in messages if isinstance(one, ToolMessage) and one.name == "run_code"]


def logging_tools(ran: list[Any]) -> list[Any]:
    """Return two tools that log their arguments."""

    @tool(side_effect="read")
    async def look(key: str) -> str:
        """Look something up."""
        ran.append(key)
        return f"seen {key}"

    @tool(side_effect="write")
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        ran.append((a, b))
        return a + b

    return [look, add]


def coder_on(*replies: Any, **options: Any) -> tuple[Agent[Any, Any], RecordingModel]:
    """Return an agent that acts in code, and its scripted model, all of whose replies must be used."""
    model = RecordingModel(ScriptedModel(replies))
    options.setdefault("protocol", "code")
    return Agent(model, **options), model


async def take_turns(
    session: Session[Any], played: Played, turns: Sequence[str], limits: UsageLimits | None = None
) -> None:
    for words in turns:
        turn = session.turn(words, limits=limits)
        played.events += [event async for event in turn]
        played.results.append(await turn.settled())


def play(
    place: Place,
    *replies: Any,
    turns: Sequence[str] = ("go",),
    limits: UsageLimits | None = None,
    tools: Sequence[Any] | None = None,
    **options: Any,
) -> Played:
    """Run several turns of a new session and return their outcome."""
    ran: list[Any] = []

    async def main() -> Played:
        agent, model = coder_on(*replies, tools=logging_tools(ran) if tools is None else tools, **options)
        played = Played(model, ran=ran)
        async with place.runtime() as runtime:
            await take_turns(await runtime.session("s", agent=agent), played, turns, limits)
        return played

    return asyncio.run(main())


Ruler = Callable[[ToolCallHookContext], Any]
Judge = Callable[[ToolResultHookContext], Any]


class Hooks(Plugin):
    """A plugin that rules on calls and results as a test defines, and logs what it was asked about."""

    id = "hooks"

    def __init__(self, before: Ruler | None = None, after: Judge | None = None) -> None:
        self.before = before or (lambda ctx: None)
        self.after = after or (lambda ctx: None)
        self.calls: list[ToolCallHookContext] = []
        self.seen: list[ToolResultHookContext] = []

    def __deepcopy__(self, memo: Any) -> Hooks:
        return self

    @hook
    async def before_tool_call(self, ctx: ToolCallHookContext) -> Any:
        self.calls.append(ctx)
        return self.before(ctx)

    @hook
    async def after_tool_call(self, ctx: ToolResultHookContext) -> Any:
        self.seen.append(ctx)
        return self.after(ctx)


def when(name: str, directive: Any) -> Callable[[Any], Any]:
    """Return a function that rules with *directive* on the calls of one tool."""
    return lambda ctx: directive if ctx.tool_name == name else None
