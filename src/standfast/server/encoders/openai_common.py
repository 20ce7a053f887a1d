"""Shared code of OpenAI's two APIs: settings, messages, usage, and the session of a request.

Rules
-----
1. A model is an agent. Its tools run on the server; the client runs the functions that the request defines
   (`client_functions`).
2. A request that names a conversation is a turn of that session, whose history the server has. Otherwise it
   is the first turn of a new session, with the request's earlier messages as history.
3. A request that ends with outputs of calls that this server requested resumes their turn. Other calls and
   outputs are history; if a request ends with them, its turn begins with the prompt `CONTINUE`.
4. A parameter that the server does not apply is rejected, never ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from standfast.errors import Code, InvalidArgument, RequestRefused
from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.runtime.agent_session import Attachment, Session
from standfast.runtime.http_values import TurnView
from standfast.server.calls import Call
from standfast.server.encoders.conversations import open_conversation, read_base64, read_data_url
from standfast.server.sessions import open_session
from standfast.server.tenants import foreign_session_id

Piece = str | Attachment
Effort = Literal["none", "minimal", "low", "medium", "high"]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
ToolChoice = Literal["auto", "none", "required"]
CONTINUE: Final = "Continue with the results of the functions."
Metadata = dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]]
encode: Final = msgspec.json.Encoder().encode


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The only answer format that a request may name; other formats are defined by the agent."""

    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidMessage:
    """One message of a request. `output_of` is the id of the call whose output it is."""

    role: str
    pieces: list[Piece]
    calls: tuple[CalledFunction, ...] = ()
    output_of: str = ""


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function call in a request's history."""

    name: str
    arguments: str = "{}"
    id: str = ""


class RequestMessages:
    """A request's messages: instructions, history, and the new user messages."""

    def __init__(self, messages: Iterable[SaidMessage]) -> None:
        self.system: list[str] = []
        self.history: list[Message] = []
        self.prompt: list[Piece] = []
        self._calls: dict[str, ToolCall] = {}
        for message in messages:
            if message.role in ("system", "developer"):
                self.system += [one for one in message.pieces if isinstance(one, str) and one.strip()]
            elif message.role == "user":
                self.prompt += message.pieces
            elif message.role == "tool":
                self._close()
                called = self._calls.get(message.output_of)
                if called is None:
                    raise InvalidArgument(f"the output for {message.output_of[:80]!r} has no call before it")
                self.history.append(
                    ToolMessage(
                        call_id=called.call_id,
                        name=called.name,
                        value=_text(message.pieces),
                        provider_id=message.output_of,
                    )
                )
            else:
                self._close()
                self._add_reply(_text(message.pieces), tuple(self._call(one) for one in message.calls))
        self.ends_with_output = not self.prompt and bool(self._calls)
        if self.ends_with_output:
            self.prompt = [CONTINUE]

    def _close(self) -> None:
        if self.prompt:
            self.history.append(UserMessage(content=_text(self.prompt)))
            self.prompt = []

    def _add_reply(self, text: str, calls: tuple[ToolCall, ...]) -> None:
        """Add a reply; calls that follow it as separate items are merged into it."""
        last = self.history[-1] if self.history else None
        if isinstance(last, AssistantMessage) and calls and not text:
            joined = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, *calls))
            self.history[-1] = joined
        else:
            self.history.append(AssistantMessage(text=text, tool_calls=calls))

    def _call(self, called: CalledFunction) -> ToolCall:
        try:
            arguments = msgspec.json.decode(called.arguments, type=dict[str, Json])
        except msgspec.DecodeError:
            arguments = None
        made = ToolCall(
            call_id=len(self._calls) + 1,
            name=called.name,
            arguments=arguments,
            raw=called.arguments if arguments is None else None,
            provider_id=called.id,
        )
        self._calls[called.id] = made
        return made


def _text(pieces: list[Piece]) -> str:
    if any(isinstance(one, Attachment) for one in pieces):
        raise InvalidArgument(
            "an earlier message has media", hint="name the conversation instead of sending its history"
        )
    return "\n".join(one for one in pieces if isinstance(one, str))


def read_content(content: Json) -> Iterator[Piece]:
    """Yield the text and the media of a message."""
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else []:
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                yield text
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                yield read_data_url(url)
            case {"type": "input_image", "image_url": str(url)}:
                yield read_data_url(url)
            case {"file_data": str(data)} | {"file": {"file_data": str(data)}}:
                yield read_data_url(data) if data.startswith("data:") else read_base64(data)
            case _:
                kind = part.get("type") if isinstance(part, dict) else part
                raise InvalidArgument(
                    f"a part of a message is {str(kind)[:80]!r}, not text, an image or a file"
                )


async def open_turn_session(
    call: Call, conversation: str | None, model: str, said: RequestMessages
) -> Session[Any]:
    """Open the request's session, or create one with the history in the request."""
    if model not in call.server.agents:
        raise RequestRefused(
            404, Code.NOT_CONFIGURED, f"there is no model {model[:80]!r}", hint="see /models"
        )
    if conversation is not None:
        session = await open_conversation(call, conversation, model)
    else:
        key = call.headers.get("idempotency-key")
        name = f"openai:{key}" if key else f"openai-{secrets.token_hex(10)}"
        session = await open_session(call, foreign_session_id(call.tenant, name), model)
    is_empty = (await session.head()).leaf is None
    if said.ends_with_output and not is_empty:
        raise InvalidArgument(
            "the outputs are of calls that this conversation did not ask for",
            hint="send them under the ids of its calls",
        )
    if said.history and is_empty:
        await session.append(said.history)
    return session


def entered(used: Usage) -> int:
    return used.input + used.cache_read + used.cache_write


def failure_of(view: TurnView) -> RequestRefused:
    """Return the error of a turn that ended without an answer."""
    assert view.error is not None
    return RequestRefused(502, str(view.error.code), view.error.message, hint=view.error.hint)
