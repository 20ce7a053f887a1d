"""The conversation as Gemini's `contents`.

Rules
-----
1. `user` and `model` take turns, and `user` begins: what follows one another in the same role is one content.
2. The results of all calls of a reply are in the content right after it, in the order of the calls.
3. No empty text is sent, but for the empty part that a signature came with.
4. Gemini has its own ids, or none. One that was made up on this side stays on this side.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any, Final, assert_never

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    Part,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.providers.google.signatures import WirePart, placed_parts
from standfast.providers.http.dialect import Asked
from standfast.providers.http.told import kind_of

_MADE_UP: Final = re.compile(r"call_\d+_\d+")
_INLINE: Final = ("image/", "audio/", "video/", "application/pdf")
_TEXTS: Final = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})
_BEFORE: Final = "(What was said before is left out.)"


def contents_of(asked: Asked) -> list[Json]:
    """Everything that was said."""
    turns = _Turns()
    for message in _with_results_in_order(asked.request.messages):
        match message:
            case UserMessage():
                turns.add("user", _said(message, asked))
            case AssistantMessage():
                turns.add("model", placed_parts(message, _call_parts(message), asked.origin))
            case ToolMessage():
                turns.add("user", [_result_part(message)])
            case _:
                assert_never(message)
    return turns.contents


class _Turns:
    """Contents whose roles alternate."""

    def __init__(self) -> None:
        self.contents: list[Json] = []

    def add(self, role: str, parts: list[WirePart]) -> None:
        if not parts:
            return
        if not self.contents and role == "model":
            self.contents.append({"role": "user", "parts": [{"text": _BEFORE}]})
        if self.contents and self.contents[-1]["role"] == role:
            self.contents[-1]["parts"] += parts
        else:
            self.contents.append({"role": role, "parts": parts})


def _with_results_in_order(messages: Iterable[Message]) -> Iterable[Message]:
    """The messages, those of tools in the order in which they were called."""
    order: dict[int, int] = {}
    results: list[ToolMessage] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        yield from sorted(results, key=lambda result: order.get(result.call_id, len(order)))
        results.clear()
        if isinstance(message, AssistantMessage):
            order = {call.call_id: place for place, call in enumerate(message.tool_calls)}
        yield message
    yield from sorted(results, key=lambda result: order.get(result.call_id, len(order)))


def _said(message: UserMessage, asked: Asked) -> list[WirePart]:
    content = message.content
    if isinstance(content, str):
        return _text(content)
    return [part for given in content for part in _given(given, asked)]


def _given(part: Part, asked: Asked) -> list[WirePart]:
    match part:
        case TextPart():
            return _text(part.text)
        case AttachmentPart():
            return [_attached(part, asked)]
        case InputPart():
            return _text(f"[input `{part.name}`: {part.media_type}, {part.size:,} bytes]")
        case _:
            assert_never(part)


def _text(text: str) -> list[WirePart]:
    return [{"text": text}] if text else []


def _attached(part: AttachmentPart, asked: Asked) -> WirePart:
    """Media inline, whatever is text as text."""
    data = asked.media.get(part.digest)
    if data is None:
        raise InvalidArgument(f"the bytes of attachment {part.name or part.digest!r} are not there")
    kind = kind_of(part)
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        return {"text": _file_text(part, data)}
    if not kind.startswith(_INLINE):
        raise InvalidArgument(
            f"Gemini takes no {part.media_type!r} ({part.name or 'an attachment'})",
            hint="it takes images, audio, video, PDF and text",
        )
    return {"inlineData": {"mimeType": kind, "data": base64.b64encode(data).decode()}}


def _file_text(part: AttachmentPart, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"attachment {part.name or part.digest!r} is {part.media_type}, but its bytes are not UTF-8"
        ) from None
    return f"[file {part.name or part.media_type}]\n{text}"


def _call_parts(message: AssistantMessage) -> dict[str, WirePart]:
    """The calls by their ids; one without an id of its own is told apart by its number."""
    parts: dict[str, WirePart] = {}
    for call in message.tool_calls:
        name = call.provider_id
        parts[name if name and name not in parts else f"#{call.call_id}"] = _call_part(call)
    return parts


def _id_there(provider_id: str) -> dict[str, str]:
    """The id as Gemini is to see it, if it has one that it or another vendor gave."""
    return {} if not provider_id or _MADE_UP.fullmatch(provider_id) else {"id": provider_id}


def _call_part(call: ToolCall) -> WirePart:
    """A call as the model made it; arguments that were no object are shown to it as text."""
    args: dict[str, Any] | None = call.arguments
    if args is None:
        args = {} if call.raw is None else {"unreadable_arguments": call.raw}
    return {"functionCall": {**_id_there(call.provider_id), "name": call.name, "args": args}}


def _result_part(message: ToolMessage) -> WirePart:
    """What came of a call; Gemini wants an object, and tells an error by its key."""
    error = message.error
    if error is not None:
        said = f"{error.code}: {error.message}" if message.shown is None else message.shown
        response: dict[str, Json] = {"error": said}
    else:
        response = {"result": message.value if message.shown is None else message.shown}
    return {
        "functionResponse": {**_id_there(message.provider_id), "name": message.name, "response": response}
    }
