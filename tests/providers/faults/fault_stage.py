"""The setting for faults: an agent with one tool that has an effect, and a runtime on the test's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_vendors import ASKED, DONE, REPLY, SETTINGS, Vendor

from standfast import Agent, CapabilityLimits, Runtime, UsageLimits, tool
from standfast.errors import ModelError
from standfast.model.events import Event, TextRetracted, TextStreamed
from standfast.model.message import AssistantMessage
from standfast.ports.model_provider import ModelRequest, ReasoningArrived, ReplyEnded, TextArrived
from standfast.providers.http.deadlines import Deadlines
from standfast.providers.http.model import HttpModel
from standfast.providers.script import Reply
from standfast.runtime.result import TurnResult
from standfast.testing.clock import FakeClock
from standfast.testing.servers.http_server import Fault, ModelServer, SeenRequest, Served, ServedReply

_PATIENCE_S = 120


def play(scene: Awaitable[None]) -> None:
    """Run a scenario to its end; fail if it hangs."""

    async def bounded() -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await scene

    asyncio.run(bounded())


# One call of a model


@dataclass
class Heard:
    """The outcome of one call: the deltas, then the reply or an error."""

    text: str = ""
    thought: str = ""
    ended: ReplyEnded | None = None
    error: ModelError | None = None


async def hear(model: HttpModel, request: ModelRequest = ASKED) -> Heard:
    heard = Heard()
    try:
        async for delta in model.stream(request):
            match delta:
                case TextArrived(text=text):
                    heard.text += text
                case ReasoningArrived(text=text):
                    heard.thought += text
                case ReplyEnded():
                    assert heard.ended is None
                    heard.ended = delta
    except ModelError as error:
        heard.error = error
    assert (heard.ended is None) != (heard.error is None)
    return heard


def essence(ended: ReplyEnded | None) -> tuple[Any, ...]:
    """Return a reply without its token counts, which a broken connection may lose."""
    assert ended is not None
    thoughts = tuple((one.text, repr(one.opaque)) for one in ended.reasoning)
    return ended.text, ended.calls, ended.stop_reason, thoughts, ended.response_id


# A turn


class Desk:
    """The tool that has an effect, and a log of its calls."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []

    @tool(limits=CapabilityLimits(max_request_bytes=4 * 1024 * 1024))
    def write(self, line: str, number: int = 0) -> str:
        """Write a line."""
        self.written.append((line, number))
        self.note(line, number)
        return f"line {number} is written"

    def note(self, line: str, number: int) -> None:
        """Record the line somewhere else; nothing by default."""


class Stage:
    """A runtime that does not actually sleep, but records how long it would have."""

    def __init__(self, path: Path | None = None) -> None:
        self.clock = FakeClock()
        self.slept_ms: list[int] = []
        self.desk = Desk()
        self._path = path

    def runtime(self) -> Runtime:
        return Runtime(self._path, clock=self.clock, _sleep=self._sleep)

    def agent(self, model: HttpModel, **limits: Any) -> Agent[Any, Any]:
        return Agent(model, tools=[self.desk.write], settings=dict(SETTINGS), limits=UsageLimits(**limits))

    async def _sleep(self, seconds: float) -> None:
        self.slept_ms.append(round(seconds * 1000))
        self.clock.advance(seconds)


@dataclass
class Played:
    """A finished turn, and everything observable about it."""

    result: TurnResult[Any]
    desk: Desk
    slept_ms: list[int]
    requests: list[SeenRequest]
    events: list[Event] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.result.status

    def said(self) -> list[str]:
        """Return the stored texts of the model's replies."""
        return [one.text for one in self.result.messages if isinstance(one, AssistantMessage)]

    def shown(self) -> str:
        """Return the text that an observer shows: streamed deltas without the retracted ones."""
        text = ""
        for event in self.events:
            if isinstance(event, TextStreamed):
                text += event.text
            elif isinstance(event, TextRetracted):
                assert 0 < event.chars <= len(text)
                text = text[: -event.chars]
        return text

    def retracted(self) -> list[int]:
        return [event.chars for event in self.events if isinstance(event, TextRetracted)]


async def turn(
    vendor: Vendor,
    replies: Iterable[Served],
    *,
    path: Path | None = None,
    server: type[ModelServer] | None = None,
    deadlines: Deadlines | None = None,
    **limits: Any,
) -> Played:
    """Run one turn of an agent with these replies."""
    stage = Stage(path)
    async with (server or vendor.server)(replies) as serving, stage.runtime() as runtime:
        model = vendor.open(serving, deadlines)
        session = await runtime.session("s", agent=stage.agent(model, **limits))
        going = session.turn("Write!")
        events = [event async for event in going]
        played = Played(await going.settled(), stage.desk, stage.slept_ms, serving.requests, events)
        await model.close()
    return played


def faulty(reply: Reply = REPLY, **fault: Any) -> ServedReply:
    given = {name: getattr(reply, name) for name in Reply.__struct_fields__}
    return ServedReply(**given, fault=Fault(**fault))


def answering(vendor: Vendor, choose: Callable[[SeenRequest], Reply]) -> type[ModelServer]:
    """Make the vendor's server answer as *choose* decides, whatever its script says; faults still apply."""

    class Answering(vendor.server):  # type: ignore[misc, name-defined]
        def events(self, request: SeenRequest, reply: Reply) -> list[bytes]:
            events: list[bytes] = super().events(request, choose(request))
            return events

    return Answering


def by_results(request: SeenRequest) -> Reply:
    """Request two lines until one has been written."""
    return Reply(text=DONE) if "is written" in repr(request.body) else REPLY
