"""The UI message stream (v1) of Vercel's AI SDK: a chat is a session, an assistant message is a turn.

Rules
-----
1. A chat's id becomes a session id by `tenants.foreign_session_id`. The session keeps the history; only the
   last message that a client sends is read.
2. The id of the user's message is the turn's idempotency key; the assistant message has the turn's id.
3. A waiting call is an approval request. An assistant message with the responses decides, which needs the
   scope `approve`, and its turn continues in the same message.
4. `GET {api}/{chat}/stream` replays the last turn from its beginning, as the SDK's transport expects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.responses import Response

from standfast.errors import Code, InvalidArgument, SessionNotFound
from standfast.model.canonical import Json
from standfast.model.outcome import Stopped, StopReason
from standfast.runtime.agent_session import Attachment
from standfast.runtime.http_values import Decide, Request
from standfast.runtime.sessions.observation import Cursor
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.encoders.ag_ui import AgentQuery, ForeignId
from standfast.server.encoders.conversations import (
    answer_waits,
    open_conversation,
    prompt_of,
    read_data_url,
)
from standfast.server.encoders.turn_parts import (
    ApprovalShown,
    CallShown,
    ReasoningAdded,
    ReplyShown,
    ResultShown,
    TextAdded,
    TextVoided,
    TurnPart,
    TurnParts,
    TurnShown,
)
from standfast.server.sessions import stream
from standfast.server.streams import EventStream
from standfast.server.tenants import foreign_session_id
from standfast.server.turns import start_turn

_encode: Final = msgspec.json.Encoder().encode
_HEADERS: Final = [(b"x-vercel-ai-ui-message-stream", b"v1")]
ROUTES: Final = Routes()


class UiMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat. Other fields are ignored."""

    id: ForeignId
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Json]]


class UiChat(Request, frozen=True, kw_only=True, rename="camel"):
    """A request from the SDK's transport: the chat and its messages."""

    id: ForeignId
    messages: Annotated[list[UiMessage], msgspec.Meta(min_length=1)]
    trigger: Literal["submit-message"] = "submit-message"
    message_id: str | None = None


@ROUTES.add("POST", "/vercel/chat", Scope.RUN, body=UiChat, query=AgentQuery, streams=True)
async def send_ui_message(call: Call) -> EventStream:
    """Send a chat's last message, or the decisions in it, and stream the answer."""
    asked: UiChat = call.body
    session = await open_conversation(call, asked.id, call.query.agent)
    last = asked.messages[-1]
    if last.role == "assistant":
        answers = dict(_answers(last))
        if not answers:
            raise InvalidArgument(
                "the last message is the assistant's, and it has no response to an approval request",
                hint="send a message of the user",
            )
        parts, after = await answer_waits(call, session, answers)
        return _stream(call, parts, after)
    after = await session.cursor()
    turn = await start_turn(call, session, prompt_of(_prompt(last)), key=f"ui-message:{last.id}")
    return _stream(call, TurnParts(call, session, turn.turn_id), after)


@ROUTES.add(
    "GET", "/vercel/chat/{chat_id}/stream", Scope.READ, query=AgentQuery, streams=True, other_statuses=(204,)
)
async def resume_ui_stream(call: Call) -> EventStream | Response:
    """Stream a chat's last turn again from its beginning; 204 if there is none."""
    try:
        head = await call.head(foreign_session_id(call.tenant, call.path["chat_id"]))
    except SessionNotFound:
        return Response(None, 204)
    session = call.runtime.session_handle(head.session_id)
    turns = await session.turns()
    if not turns:
        return Response(None, 204)
    return _stream(call, TurnParts(call, session, turns[-1].turn_id), None)


def _stream(call: Call, parts: TurnParts, after: Cursor | None) -> EventStream:
    async def chunks() -> AsyncIterator[bytes]:
        encoder = _ChunkEncoder()
        yield _sse({"type": "start", "messageId": parts.turn_id})
        async for part in parts.follow(after):
            for chunk in encoder.encode(part):
                yield _sse(chunk)
        yield b"data: [DONE]\n\n"

    return stream(call, chunks(), _HEADERS)


def _sse(chunk: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(chunk)


def _prompt(message: UiMessage) -> Iterator[str | Attachment]:
    for part in message.parts:
        match part:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": "file", "url": str(url)}:
                name = part.get("filename")
                yield read_data_url(url, name if isinstance(name, str) else None)
            case _:
                raise InvalidArgument(
                    f"a part of the user's message is {part.get('type')!r}, not text or file"
                )


def _answers(message: UiMessage) -> Iterator[tuple[str, Decide]]:
    """Yield the decisions in a message that responds to approval requests."""
    for part in message.parts:
        match part:
            case {
                "state": "approval-responded",
                "approval": {"id": str(approval_id), "approved": bool(approved), **more},
            }:
                reason = more.get("reason")
                yield (
                    approval_id,
                    Decide(approved=approved, reason=reason if isinstance(reason, str) else None),
                )


class _ChunkEncoder:
    """Encodes the parts of a turn as the chunks of one message."""

    def __init__(self) -> None:
        self._step = ""
        self._open: tuple[str, str] | None = None
        """The kind and id of the part being streamed."""
        self._voided = 0

    def encode(self, part: TurnPart) -> Iterator[dict[str, Any]]:
        match part:
            case TextAdded():
                yield from self._piece("text", part.reply_id, part.text)
            case ReasoningAdded():
                yield from self._piece("reasoning", part.reply_id, part.text)
            case TextVoided():
                self._open = None
                self._voided += 1
                yield {"type": "reset-step"}
            case ReplyShown():
                yield from self._begin_step(part.reply_id)
                yield from self._close()
            case CallShown():
                named = {"toolCallId": part.call_id, "toolName": part.name, "dynamic": True}
                yield {"type": "tool-input-available", **named, "input": part.arguments}
            case ResultShown():
                yield _result(part)
            case ApprovalShown():
                yield {
                    "type": "tool-approval-request",
                    "approvalId": part.approval.approval_id,
                    "toolCallId": part.call_id,
                }
            case TurnShown():
                yield from self._close()
                if self._step:
                    yield {"type": "finish-step"}
                yield from _end(part)

    def _piece(self, kind: str, reply_id: str, text: str) -> Iterator[dict[str, Any]]:
        yield from self._begin_step(reply_id)
        piece_id = f"{reply_id}-{kind}-{self._voided}"
        if self._open != (kind, piece_id):
            yield from self._close()
            self._open = (kind, piece_id)
            yield {"type": f"{kind}-start", "id": piece_id}
        yield {"type": f"{kind}-delta", "id": piece_id, "delta": text}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            kind, piece_id = self._open
            self._open = None
            yield {"type": f"{kind}-end", "id": piece_id}

    def _begin_step(self, reply_id: str) -> Iterator[dict[str, Any]]:
        if reply_id != self._step:
            if self._step:
                yield {"type": "finish-step"}
            self._step, self._voided = reply_id, 0
            yield {"type": "start-step"}


def _result(part: ResultShown) -> dict[str, Any]:
    named = {"toolCallId": part.call_id}
    if part.error is None:
        return {"type": "tool-output-available", **named, "output": part.value, "dynamic": True}
    if part.error.code == Code.PERMISSION_DENIED:
        return {"type": "tool-output-denied", **named}
    return {"type": "tool-output-error", **named, "errorText": part.error.message, "dynamic": True}


def _end(part: TurnShown) -> Iterator[dict[str, Any]]:
    view, failure = part.view, part.blocked or part.view.error
    if isinstance(view.outcome, Stopped) and view.outcome.reason is StopReason.CANCELLED:
        yield {"type": "abort", "reason": view.outcome.error.message}
        return
    if failure is not None:
        yield {"type": "error", "errorText": failure.message}
        yield {"type": "finish", "finishReason": "error"}
        return
    reason = (
        "tool-calls" if view.status == "waiting" else "length" if part.stop_reason == "length" else "stop"
    )
    about: dict[str, Any] = {"turnId": view.turn_id, "sessionId": view.session_id, "status": view.status}
    if view.status == "finished":
        about["output"] = view.output
    yield {"type": "finish", "finishReason": reason, "messageMetadata": {"standfast": about}}
