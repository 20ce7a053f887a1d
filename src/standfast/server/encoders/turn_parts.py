"""A turn as a sequence of parts, which encoders translate into their protocols.

Theory of operation
-------------------
A turn's messages are in the store, and any process can read them. Events signal when to read them again, and
carry the text of a reply while it is streamed. So an encoder gets every part once and in order, even after a
reconnect, a takeover by another process, or a gap in the events.

Rules
-----
1. Streamed text that is not a prefix of the stored reply is voided, and the stored text follows.
2. For its reader, a waiting turn is over once it has applied every known decision about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import ErrorObject, TurnNotFound
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.events import (
    Event,
    ReasoningStreamed,
    ReplyReceived,
    TextRetracted,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    TurnBegan,
    TurnBlocked,
    TurnCommitted,
    TurnParked,
)
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage
from standfast.model.outcome import Wait, Waiting
from standfast.model.session import TurnRecord, TurnState
from standfast.runtime.agent_session import Session
from standfast.runtime.http_values import TurnView, view_record
from standfast.runtime.session_views import pending_approvals
from standfast.runtime.sessions.observation import Cursor, messages_of_turn
from standfast.server.calls import Call

_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TextAdded:
    """A piece of a reply's text."""

    reply_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningAdded:
    """A piece of the reasoning before a reply."""

    reply_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TextVoided:
    """A retraction of the text and reasoning emitted so far for a reply."""

    reply_id: str


@dataclass(frozen=True, slots=True)
class ReplyShown:
    """A complete reply, all of whose text has been emitted. Its calls follow."""

    reply_id: str
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class CallShown:
    """A tool call that the model requested or its code makes."""

    call_id: str
    reply_id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class ResultShown:
    """The result or the error of a call that was shown."""

    call_id: str
    name: str
    arguments: Json
    value: Json
    error: ErrorObject | None


@dataclass(frozen=True, slots=True)
class ApprovalShown:
    """A shown call that waits for a person."""

    call_id: str
    approval: Approval


@dataclass(frozen=True, slots=True)
class FunctionCallShown:
    """A call of a function that the client runs. The client returns the output under *token*."""

    token: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class TurnShown:
    """The last part: the turn has ended or waits. `blocked` says why it cannot run in this process."""

    view: TurnView
    stop_reason: str
    blocked: ErrorObject | None = None


TurnPart = (
    TextAdded
    | ReasoningAdded
    | TextVoided
    | ReplyShown
    | CallShown
    | ResultShown
    | ApprovalShown
    | FunctionCallShown
    | TurnShown
)


class TurnParts:
    """The parts of one turn, for one reader.

    *functions* has the reader's own functions by the names that the model calls; their calls are shown as
    such.
    """

    def __init__(
        self, call: Call, session: Session[Any], turn_id: str, functions: Mapping[str, str] | None = None
    ) -> None:
        self._functions = functions or {}
        self._runtime = call.runtime
        self._session = session
        self.turn_id = turn_id
        self._replies = 0
        """The number of replies shown whole."""
        self._heard: int | None = None
        """The number of replies announced by events; None if the reader subscribed too late to know."""
        self._streamed = ""
        self._thought = ""
        self._calls: dict[int, ToolCall] = {}
        self._settled: set[int] = set()
        self._stop_reason = ""
        self._blocked: ErrorObject | None = None
        self.answered: set[str] = set()
        """The ids of waits that this reader's request has resolved."""

    async def skip(self, after_call: int | None = None) -> None:
        """Skip the existing parts, which the reader has; with *after_call*, only up to that call's reply."""
        messages = await self._messages()
        if after_call is not None:
            asked = [
                at
                for at, one in enumerate(messages)
                if isinstance(one, AssistantMessage)
                and any(call.call_id == after_call for call in one.tool_calls)
            ]
            messages = messages[: asked[0] + 1] if asked else messages
        for _ in self._catch_up(messages):
            pass
        for approval in await pending_approvals(self._runtime, await self._record()):
            for _ in self._show_call(_call_of(approval)):
                pass
        self._heard = self._replies if after_call is None else None

    async def follow(self, after: Cursor | None = None) -> AsyncIterator[TurnPart]:
        """Yield the parts until the turn ends or waits.

        *after* is a cursor taken before the turn began, or when `skip` was called.
        """
        if after is not None and self._heard is None and not self._replies:
            self._heard = 0
        if not await self._is_over():
            async for event in self._events(after or Cursor(depth=(await self._session.head()).depth)):
                for part in await self._take(event):
                    yield part
                if isinstance(event, (TurnCommitted, TurnParked, TurnBlocked)) and await self._is_over():
                    break
        for part in self._catch_up(await self._messages()):
            yield part
        record = await self._record()
        for approval in await pending_approvals(self._runtime, record):
            for part in self._show_call(_call_of(approval)):
                yield part
            yield ApprovalShown(self._call_id(approval.call_id), approval)
        for wait in waits_of(record):
            called = self._calls.get(wait.call_id)
            if wait.kind == "completion" and called is not None and called.name in self._functions:
                yield FunctionCallShown(wait.wait_id, self._functions[called.name], _arguments(called))
        view = view_record(record, await messages_of_turn(self._runtime.store, record))
        yield TurnShown(view, self._stop_reason, self._blocked)

    async def _events(self, cursor: Cursor) -> AsyncIterator[Event]:
        """Yield the turn's events; after a quiet interval, check whether the turn is over."""
        events = self._session.observe(cursor)
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    observed = await anext(events)
            except TimeoutError:
                if await self._is_over():
                    return
                events = self._session.observe(cursor)
                continue
            cursor = observed.cursor
            if getattr(observed.event, "turn_id", None) == self.turn_id:
                yield observed.event

    async def _take(self, event: Event) -> list[TurnPart]:
        """Return the parts that an event adds."""
        match event:
            case TurnBegan(resumed=False):
                self._heard = 0
            case TextStreamed(text=text) if self._heard == self._replies and text:
                self._streamed += text
                return [TextAdded(self._reply_id(self._replies), text)]
            case ReasoningStreamed(text=text) if self._heard == self._replies and text:
                self._thought += text
                return [ReasoningAdded(self._reply_id(self._replies), text)]
            case TextRetracted() if self._heard == self._replies:
                return list(self._void())
            case ReplyReceived():
                parts = list(self._catch_up(await self._messages()))
                self._heard = self._replies if self._heard is None else self._heard + 1
                return parts
            case ToolCallStarted(call=call):
                return list(self._show_call(call))
            case ToolCallSettled(call_id=call_id, value=value, error=error):
                return list(self._show_result(call_id, value, error))
            case TurnBlocked(error=error):
                self._blocked = error
            case _:
                pass
        return []

    def _catch_up(self, messages: tuple[Message, ...]) -> Iterator[TurnPart]:
        """Yield the parts of *messages* that have not been shown."""
        number = 0
        for message in messages:
            if isinstance(message, AssistantMessage):
                if number >= self._replies:
                    yield from self._show_reply(self._reply_id(number), message)
                number += 1
            elif isinstance(message, ToolMessage):
                yield from self._show_result(message.call_id, message.value, message.error)

    def _show_reply(self, reply_id: str, message: AssistantMessage) -> Iterator[TurnPart]:
        if not message.text.startswith(self._streamed):
            yield from self._void()
        thought = "".join(one.text for one in message.reasoning)
        if thought and not self._thought and not self._streamed:
            yield ReasoningAdded(reply_id, thought)
        if rest := message.text[len(self._streamed) :]:
            yield TextAdded(reply_id, rest)
        yield ReplyShown(reply_id, message)
        self._replies += 1
        self._streamed = self._thought = ""
        self._stop_reason = message.stop_reason
        for call in message.tool_calls:
            yield from self._show_call(call)

    def _void(self) -> Iterator[TurnPart]:
        if self._streamed or self._thought:
            self._streamed = self._thought = ""
            yield TextVoided(self._reply_id(self._replies))

    def _show_call(self, call: ToolCall) -> Iterator[TurnPart]:
        if call.call_id not in self._calls:
            self._calls[call.call_id] = call
            if call.name in self._functions:
                return
            reply_id = self._reply_id(max(0, self._replies - 1))
            yield CallShown(self._call_id(call.call_id), reply_id, call.name, _arguments(call))

    def _show_result(self, call_id: int, value: Json, error: ErrorObject | None) -> Iterator[TurnPart]:
        call = self._calls.get(call_id)
        if call is not None and call_id not in self._settled:
            self._settled.add(call_id)
            if call.name in self._functions:
                return
            yield ResultShown(self._call_id(call_id), call.name, _arguments(call), value, error)

    def _reply_id(self, number: int) -> str:
        return f"{self.turn_id}-r{number}"

    def _call_id(self, number: int) -> str:
        return f"{self.turn_id}-c{number}"

    async def _is_over(self) -> bool:
        record = await self._record()
        if self._blocked is not None or record.state is TurnState.ENDED:
            return True
        waits = waits_of(record)
        if record.state is TurnState.RUNNING or any(wait.wait_id in self.answered for wait in waits):
            return False
        asked = [wait for wait in waits if wait.kind == "approval"]
        return len(await pending_approvals(self._runtime, record)) == len(asked)

    async def _record(self) -> TurnRecord:
        record = await self._runtime.store.turn(self.turn_id)
        if record is None:
            raise TurnNotFound(self.turn_id)
        return record

    async def _messages(self) -> tuple[Message, ...]:
        """Return the turn's messages so far."""
        current = await self._session.current_turn()
        if current is not None and current.turn_id == self.turn_id:
            return current.messages
        return await messages_of_turn(self._runtime.store, await self._record())


def _arguments(call: ToolCall) -> Json:
    """Return a call's arguments as one value, positional ones under `args`."""
    if call.args:
        return {"args": list(call.args), **(call.arguments or {})}
    return call.raw if call.arguments is None else call.arguments


def waits_of(record: TurnRecord) -> tuple[Wait, ...]:
    """Return the waits of a waiting turn, () for others."""
    outcome = None if record.summary is None else record.summary.outcome
    return outcome.waits if isinstance(outcome, Waiting) else ()


def _call_of(approval: Approval) -> ToolCall:
    return ToolCall(
        call_id=approval.call_id,
        name=approval.capability,
        arguments=approval.kwargs,
        args=tuple(approval.args),
    )
