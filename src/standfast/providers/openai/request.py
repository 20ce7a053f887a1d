"""Encoder of requests to `POST /responses`.

Rules
-----
1. The vendor stores nothing (`store: false`): the request is self-contained, including encrypted reasoning.
2. A setting that the API does not have is an error; it is never dropped.
3. A call and its result have the same id, and no two calls have the same id. It is the vendor's own wherever
   that can be sent.
4. A reply with a stored outline goes back in its order, with its reasoning; any other as text, then calls.
   Reasoning goes back only right before the item that it led to: the API rejects any other.
5. Images and documents are sent as data URLs, text attachments as text. Other attachments are errors.
6. Nothing empty is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, assert_never

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
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
from standfast.providers.http import content
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.http.schemas import fits_strict, is_object, openai_parameters, resolve_root
from standfast.providers.openai import reply_reader
from standfast.providers.settings import Effort, ModelSettings

_REASONING_MODEL: Final = re.compile(r"(ft:)?(o\d|codex|gpt-([5-9]|\d\d))(?!.*-chat)")
_EFFORTS: Final[tuple[tuple[int, Effort], ...]] = ((4_096, "low"), (16_384, "medium"))
_UNSUPPORTED: Final = ("top_k", "stop", "seed")
_MAX_ID_CHARS: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_DOCUMENTS: Final = {
    "application/pdf": "pdf",
    "application/rtf": "rtf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    f"{_OFFICE}wordprocessingml.document": "docx",
    f"{_OFFICE}spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
}


def request_body(prepared: PreparedRequest) -> dict[str, Json]:
    """Write the body, without the user's `extra_body`."""
    request, settings = prepared.request, prepared.settings
    for name in _UNSUPPORTED:
        if getattr(settings, name):
            raise InvalidArgument(
                f"OpenAI's Responses API has no setting {name!r}",
                hint="leave it out, or use the model as 'openai-compatible:MODEL@BASE_URL'",
            )
    instructions, format_ = request.instructions, None
    if request.output_schema is not None:
        schema = resolve_root(request.output_schema)
        if is_object(schema):
            strict = fits_strict(schema)
            format_ = {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}
        else:  # the API has no format for it
            words = content.schema_instruction(schema)
            instructions = f"{instructions}\n\n{words}" if instructions else words
    conversation = _Conversation(prepared)
    for message in request.messages:
        conversation.add(message)
    body: dict[str, Json] = {
        "model": prepared.model,
        "input": conversation.items,
        "stream": True,
        "store": False,
    }
    optional: dict[str, Json] = {
        "instructions": instructions or None,
        "text": {"format": format_} if format_ else None,
        "prompt_cache_key": request.session_id or None if settings.cache else None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    return body | _tools(request.tools, settings) | _reasoning(prepared.model, settings.reasoning)


def _tools(tools: tuple[Capability, ...], settings: ModelSettings) -> dict[str, Json]:
    if not tools:
        return {}
    described: list[Json] = []
    for tool in tools:
        schema = openai_parameters(tool.input_schema)
        facts = {"name": tool.name, "description": tool.description, "parameters": schema}
        described.append({"type": "function", **facts, "strict": fits_strict(schema)})
    body: dict[str, Json] = {"tools": described}
    choice = settings.tool_choice
    if choice is not None:
        by_name = choice not in ("auto", "none", "required")
        body["tool_choice"] = {"type": "function", "name": choice} if by_name else choice
    if settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    return body


def _reasoning(model: str, wanted: Effort | int | None) -> dict[str, Json]:
    """Encode the reasoning effort. A model without reasoning rejects requests for encrypted reasoning."""
    if wanted == "none":
        return {"reasoning": {"effort": "none"}}
    include: dict[str, Json] = {"include": ["reasoning.encrypted_content"]}
    if wanted is None:
        return include if _REASONING_MODEL.match(model) else {}
    if isinstance(wanted, int):
        wanted = next((effort for most, effort in _EFFORTS if wanted <= most), "high")
    return {"reasoning": {"effort": wanted, "summary": "auto"}, **include}


# Messages


class _Conversation:
    """Encodes a conversation as the items of `input`, message by message."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self.items: list[Json] = []
        self._media = prepared.media
        self._origin = prepared.origin
        self._taken: set[str] = set()
        self._ids: dict[int, str] = {}

    def add(self, message: Message) -> None:
        match message:
            case UserMessage():
                said = message.content
                given = (TextPart(text=said),) if isinstance(said, str) else said
                if parts := [made for part in given if (made := _part(part, self._media)) is not None]:
                    self.items.append({"type": "message", "role": "user", "content": parts})
            case AssistantMessage():
                self._ids = {}
                for call in message.tool_calls:
                    given_id = call.provider_id
                    wanted = given_id if 0 < len(given_id) <= _MAX_ID_CHARS else f"call_{call.call_id}"
                    self._ids[call.call_id] = content.unique_id(
                        wanted, self._taken, lambda name, number: f"{name[: _MAX_ID_CHARS - 8]}_{number}"
                    )
                self.items += self._reply(
                    message, reply_reader.stored_outline(message.reasoning, self._origin) or ()
                )
            case ToolMessage():
                call_id = self._ids.get(message.call_id) or message.provider_id or f"call_{message.call_id}"
                result = {
                    "type": "function_call_output",
                    "call_id": call_id,
                    "output": content.result_text(message),
                }
                self.items.append(result)
            case _:
                assert_never(message)

    def _reply(self, message: AssistantMessage, outline: reply_reader.Outline) -> list[Json]:
        """Encode a reply in the order of its outline; calls that it does not mention come last."""
        texts = reply_reader.texts_of(message.text, outline)
        calls = {call.provider_id or str(call.call_id): call for call in message.tool_calls}
        items: list[Json] = [_text_item(message.text)] if message.text and not texts else []
        reasoning: list[Json] = []
        for entry in outline:
            item: Json = None
            match entry:
                case reply_reader.ReasoningEntry():
                    reasoning += [entry.item()] if entry.is_sent_back else []
                    continue
                case reply_reader.MessageEntry():
                    text = texts.pop(0)
                    item = _text_item(text, entry.phase) if text else None
                case reply_reader.CallEntry():
                    call = calls.pop(entry.call_id, None)
                    item = self._call(call) if call is not None else None
                case reply_reader.OtherEntry():
                    pass
                case _:
                    assert_never(entry)
            items += [*reasoning, item] if item is not None else []
            reasoning.clear()
        return [*items, *map(self._call, calls.values())]

    def _call(self, call: ToolCall) -> Json:
        arguments = call.raw if call.arguments is None else content.json_text(call.arguments)
        return {
            "type": "function_call",
            "call_id": self._ids[call.call_id],
            "name": _NOT_IN_NAMES.sub("_", call.name) or "_",
            "arguments": arguments or "{}",
        }


def _text_item(text: str, phase: str | None = None) -> Json:
    phased = {} if phase is None else {"phase": phase}
    return {"type": "message", "role": "assistant", "content": text, **phased}


def _part(part: Part, media: Mapping[str, bytes]) -> Json:
    match part:
        case TextPart():
            text = part.text
        case InputPart():
            text = content.input_text(part)
        case AttachmentPart():
            kind, data = content.media_type(part), media[part.digest]
            if kind in _IMAGES:
                return {"type": "input_image", "detail": "auto", "image_url": content.data_url(kind, data)}
            if kind in _DOCUMENTS:
                name = part.name or f"attachment.{_DOCUMENTS[kind]}"
                return {"type": "input_file", "filename": name, "file_data": content.data_url(kind, data)}
            if not content.is_text(kind):
                raise InvalidArgument(
                    f"OpenAI does not accept {kind!r} (attachment {part.name or part.digest[:12]!r})",
                    hint="it accepts PNG, JPEG, GIF and WebP images, PDF and office documents, and text",
                )
            text = content.file_text(part, data)
        case _:
            assert_never(part)
    return {"type": "input_text", "text": text} if text else None
