"""Helpers for tests of turns: a place for sessions, models that a script cannot express, small readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from standfast.durable.journal import owner_is_dead
from standfast.model.events import Event
from standfast.model.message import Message, RequestedCall, ToolMessage, UserMessage, text_of
from standfast.model.session import Payload
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.result import TurnResult
from standfast.runtime.sessions.observation import Observed
from standfast.runtime.turn import Turn
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.clock import FakeClock

E = TypeVar("E")


class Place:
    """A store that outlives its runtimes."""

    def __init__(self, path: Path | None, clock: FakeClock) -> None:
        self.path = path
        self.clock = clock
        self.slept: list[float] = []
        self._memory = MemorySessionStore(owner_is_dead=owner_is_dead)

    def runtime(self, **options: Any) -> Runtime:
        """Open a runtime over the store, with the test's clock and without pauses between attempts."""
        options.setdefault("clock", self.clock)
        return Runtime(self.path or self._memory, _sleep=self._sleep, **options)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class StagedModel:
    """A model whose deltas come from a coroutine function, for behaviour that a script cannot express."""

    def __init__(
        self, play: Callable[[ModelRequest], AsyncIterator[ModelDelta]], model_id: str = "staged:one"
    ) -> None:
        self.model_id = model_id
        self.requests: list[ModelRequest] = []
        self._play = play

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        return self._play(request)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class HeldModel:
    """A model that streams "so far", then waits to be released; later calls are answered at once."""

    def __init__(self, *later: str, answer: str = "done") -> None:
        self.model_id = "held:one"
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.closed = 0
        self.requests: list[ModelRequest] = []
        self._answers = [answer, *later]

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        try:
            if len(self.requests) == 1:
                yield TextArrived("so far")
                self.started.set()
                await self.go.wait()
            yield ReplyEnded(text=self._answers[min(len(self.requests), len(self._answers)) - 1])
        finally:
            self.closed += 1

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class EchoModel:
    """A model that repeats every message."""

    def __init__(self) -> None:
        self.model_id = "echo:one"
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        yield ReplyEnded(text=f"re: {said(request.messages)[-1]}")

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def asks(*calls: tuple[str, dict[str, Any] | str]) -> dict[str, Any]:
    """Return a scripted reply that requests these calls."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def requested(name: str, arguments: str = "{}") -> ReplyEnded:
    """Return a reply that requests one call."""
    return ReplyEnded(text="", calls=(RequestedCall(name=name, arguments=arguments),))


def agent_of(*replies: Any, **options: Any) -> Agent[Any, Any]:
    """Return an agent with a scripted model."""
    return Agent(ScriptedModel(replies), **options)


def said(messages: Iterable[Payload]) -> list[str]:
    """Return the texts of the user's messages."""
    return [text_of(one.content) for one in messages if isinstance(one, UserMessage)]


def results(messages: Iterable[Message]) -> list[Any]:
    """Return the results of calls: values, or error codes."""
    return [
        one.value if one.error is None else one.error.code for one in messages if isinstance(one, ToolMessage)
    ]


def of_kind(kind: type[E], events: Iterable[object]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


async def events_of(turn: Turn[Any]) -> list[Event]:
    """Return every event of a turn."""
    return [event async for event in turn]


async def go_on(session: Session[Any]) -> TurnResult[Any]:
    """Resume the unfinished turn and wait for its result."""
    turn = await session.resume()
    if turn is None:  # recovery was faster: the runtime resumes unfinished turns by itself
        turn = session.follow((await session.turns())[-1].turn_id)
    return await turn.settled()


async def keeper_looks(runtime: Runtime, times: int = 3) -> None:
    """Wait until the keeper has looked for queued inputs more often than *times*."""
    seen, ask = 0, runtime.store.with_queued

    async def counted() -> list[str]:
        nonlocal seen
        seen += 1
        return await ask()

    runtime.store.with_queued = counted  # type: ignore[method-assign]
    await until(lambda: seen > times)
    runtime.store.with_queued = ask  # type: ignore[method-assign]


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Let other tasks run until the condition is true, for at most ten seconds."""
    clock = asyncio.get_running_loop().time
    end = clock() + 10
    while clock() < end:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")


async def observed(session: Session[Any], count: int, after: str | None = None) -> list[Observed]:
    """Return the first events that an observer sees."""
    found: list[Observed] = []
    stream = session.observe(after)
    try:
        async for one in stream:
            found.append(one)
            if len(found) == count:
                return found
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
    raise AssertionError("an observation has no end")
