"""Encoder of requests to a Chat Completions endpoint.

Rules
-----
1. Unset settings are not sent: some servers reject fields that they do not know.
2. A schema that the server does not accept, or not beside tools, is described to the model in words. The
   answer is validated in either case.
3. A `tool` message follows the reply that made its call, under the call's id. A result without a call becomes
   a user message, because servers reject it otherwise.
4. Arguments are always the text of a JSON object: servers parse it to fill in their templates.
5. Nothing empty is sent. A reply that only called tools has the content null.
6. Text alone is sent as a string: many servers accept nothing else. Images, audio and documents are sent as
   parts, in base64; an attachment without a part type is an error.
7. Reasoning that came as text goes back in the field it came in, and only with a reply that called tools:
   there the server needs it, elsewhere it drops or rejects it. `reasoning_details` go back whole, with every
   reply. If one reply has `reasoning_content`, every reply that called tools has it, if necessary empty:
   DeepSeek rejects a conversation in which it is missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never
from urllib.parse import urlsplit

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
    ToolMessage,
    UserMessage,
)
from standfast.providers.http import content
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.http.schemas import fits_strict, is_object, openai_parameters, resolve_root
from standfast.providers.openai_compatible.reply_reader import (
    REASONING,
    REASONING_CONTENT,
    REASONING_DETAILS,
    THINKING,
)
from standfast.providers.settings import ModelSettings

_LOW_TOKENS: Final = 2048
_MEDIUM_TOKENS: Final = 16384
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)
_MAX_ID_CHARS: Final = 64
_AUDIO: Final = {
    **{f"audio/{name}": "wav" for name in ("wav", "x-wav", "wave", "vnd.wave")},
    **{f"audio/{name}": "mp3" for name in ("mpeg", "mp3")},
}
_DOCUMENTS: Final = {
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "application/msword": ".doc",
    "application/epub+zip": ".epub",
}


@dataclass(frozen=True, slots=True)
class ChatHost:
    """A host of Chat Completions, and what it accepts.

    asks_usage: accepts `stream_options`. json_schema: accepts `response_format` with a schema.
    schema_with_tools: accepts it beside tools; most others reject that, or never call a tool again.
    nine_letter_ids: requires call ids of nine letters or digits. reasoning_object: accepts `reasoning`, which
    may be a number of tokens.
    """

    domain: str = ""
    key_variable: str = ""
    max_tokens: str = "max_tokens"
    seed: str = "seed"
    asks_usage: bool = True
    json_schema: bool = True
    schema_with_tools: bool = False
    cache_key: bool = False
    top_k: bool = True
    nine_letter_ids: bool = False
    reasoning_object: bool = False


_HOSTS: Final = (
    ChatHost(
        domain="api.openai.com",
        key_variable="OPENAI_API_KEY",
        max_tokens="max_completion_tokens",
        schema_with_tools=True,
        cache_key=True,
        top_k=False,
    ),
    ChatHost("openrouter.ai", "OPENROUTER_API_KEY", schema_with_tools=True, reasoning_object=True),
    ChatHost("api.groq.com", "GROQ_API_KEY", top_k=False),
    ChatHost("api.deepseek.com", "DEEPSEEK_API_KEY", json_schema=False, top_k=False),
    ChatHost(
        domain="api.mistral.ai",
        key_variable="MISTRAL_API_KEY",
        seed="random_seed",
        asks_usage=False,
        top_k=False,
        nine_letter_ids=True,
    ),
    ChatHost("api.together.xyz", "TOGETHER_API_KEY"),
    ChatHost("api.together.ai", "TOGETHER_API_KEY"),
    ChatHost("api.fireworks.ai", "FIREWORKS_API_KEY"),
)
_UNKNOWN_HOST: Final = ChatHost()


def host_of(base_url: str) -> ChatHost:
    """Find the host of a URL by its domain; an unknown one is assumed to be a local server."""
    name = (urlsplit(base_url).hostname or "").rstrip(".").lower()
    for host in _HOSTS:
        if name == host.domain or name.endswith(f".{host.domain}"):
            return host
    return _UNKNOWN_HOST


def request_body(prepared: PreparedRequest, host: ChatHost) -> dict[str, Json]:
    """Write the body, without the user's `extra_body`."""
    request, settings = prepared.request, prepared.settings
    format_, instruction = _response_format(prepared, host)
    conversation = _Conversation(prepared, host)
    for message in request.messages:
        conversation.add(message)
    messages = conversation.messages
    if any(REASONING_CONTENT in message for message in messages):
        for message in messages:
            if "tool_calls" in message:
                message.setdefault(REASONING_CONTENT, "")
    if system := "\n\n".join(filter(None, (request.instructions, instruction))):
        messages = [{"role": "system", "content": system}, *messages]
    if settings.top_k is not None and not host.top_k:
        raise InvalidArgument(f"{host.domain} has no top_k", hint="use top_p or temperature")
    wanted = settings.reasoning
    reasoning: dict[str, Json] = {}
    if wanted is not None and host.reasoning_object:
        reasoning = {"reasoning": {"max_tokens" if isinstance(wanted, int) else "effort": wanted}}
    elif wanted is not None:  # most hosts accept only a named effort
        if isinstance(wanted, int):
            wanted = "low" if wanted <= _LOW_TOKENS else "medium" if wanted <= _MEDIUM_TOKENS else "high"
        reasoning = {"reasoning_effort": wanted}
    body: dict[str, Json] = {"model": prepared.model, "stream": True, "messages": messages}
    optional: dict[str, Json] = {
        **_tools(request.tools, settings),
        "response_format": format_,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        host.max_tokens: settings.max_tokens,
        "stop": list(settings.stop) or None,
        host.seed: settings.seed,
        **reasoning,
        "prompt_cache_key": request.session_id or None if host.cache_key and settings.cache else None,
        "stream_options": {"include_usage": True} if host.asks_usage else None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def _tools(tools: tuple[Capability, ...], settings: ModelSettings) -> dict[str, Json]:
    choice: Json = settings.tool_choice
    if not tools:
        if choice not in (None, "auto", "none"):
            raise InvalidArgument(f"tool_choice is {choice!r}, but there are no tools")
        return {}
    described: list[Json] = []
    for tool in tools:
        parameters = openai_parameters(tool.input_schema)
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        given = {name: value for name, value in function.items() if value}
        described.append({"type": "function", "function": given})
    body: dict[str, Json] = {"tools": described}
    if choice not in (None, "auto", "none", "required"):
        if all(tool.name != choice for tool in tools):
            raise InvalidArgument(f"tool_choice {choice!r} is not a tool of this request")
        choice = {"type": "function", "function": {"name": choice}}
    if choice is not None:
        body["tool_choice"] = choice
    if settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    return body


def _response_format(prepared: PreparedRequest, host: ChatHost) -> tuple[Json, str]:
    """Return the `response_format`, if there can be one, and otherwise the instruction in words."""
    request = prepared.request
    if request.output_schema is None:
        return None, ""
    schema = resolve_root(request.output_schema)
    if not is_object(schema) or (request.tools and not host.schema_with_tools):
        return None, content.schema_instruction(schema)
    if not host.json_schema:
        return {"type": "json_object"}, content.schema_instruction(schema)
    strict = {"strict": True} if fits_strict(schema) else {}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **strict}}, ""


# Messages


class _Conversation:
    """Encodes a conversation, message by message."""

    def __init__(self, prepared: PreparedRequest, host: ChatHost) -> None:
        self.messages: list[Any] = []
        self._prepared = prepared
        self._host = host
        self._ids: dict[int, str] = {}
        self._taken: set[str] = set()

    def add(self, message: Message) -> None:
        match message:
            case UserMessage():
                said: Json = message.content
                if not isinstance(said, str):
                    media = self._prepared.media
                    parts = [made for part in said if (made := _part(part, media)) is not None]
                    is_plain = all(part["type"] == "text" for part in parts)
                    said = "\n".join(part["text"] for part in parts) if is_plain else parts
                if said:
                    self.messages.append({"role": "user", "content": said})
            case AssistantMessage():
                if message.text or message.tool_calls:
                    self._add_reply(message)
            case ToolMessage():
                text, call_id = content.result_text(message), self._ids.pop(message.call_id, None)
                if call_id is None:
                    self.messages.append({"role": "user", "content": f"[result of {message.name}]\n{text}"})
                else:
                    self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case _:
                assert_never(message)

    def _add_reply(self, message: AssistantMessage) -> None:
        reasoning = _stored_reasoning(message, self._prepared.origin)
        written: dict[str, Json] = {"role": "assistant", "content": message.text or None}
        if thinking := reasoning.pop(THINKING, ""):
            parts = [{"type": THINKING, THINKING: [_text_part(thinking)]}]
            written["content"] = [*parts, _text_part(message.text)] if message.text else parts
        written |= reasoning
        self._ids = {}
        calls: list[Json] = []
        for call in message.tool_calls:
            wanted = call.provider_id or f"call_{call.call_id}"
            if self._host.nine_letter_ids or len(wanted) > _MAX_ID_CHARS:
                wanted = _nine_letters(wanted)
            call_id = content.unique_id(
                wanted, self._taken, lambda name, number: _nine_letters(f"{name} {number}")
            )
            self._ids[call.call_id] = call_id
            given = {"malformed_arguments": call.raw or ""} if call.arguments is None else call.arguments
            function = {"name": call.name, "arguments": content.json_text(given)}
            calls.append({"id": call_id, "type": "function", "function": function})
        if calls:
            written["tool_calls"] = calls
        self.messages.append(written)


def _nine_letters(wanted: str) -> str:
    """Return an id that every server accepts: *wanted*, or nine letters and digits of its digest."""
    return wanted if _NINE.fullmatch(wanted) else hashlib.sha3_256(wanted.encode()).hexdigest()[:9]


def _stored_reasoning(message: AssistantMessage, origin: str) -> dict[str, Json]:
    """Return the fields of a message that hold its reasoning; `thinking` becomes a part of the content."""
    found: dict[str, Any] = {}
    for reasoning in message.reasoning:
        opaque = reasoning.opaque
        if reasoning.origin != origin or not isinstance(opaque, dict):
            continue
        if details := opaque.get(REASONING_DETAILS):
            found[REASONING_DETAILS] = [*found.get(REASONING_DETAILS, ()), *details]
        elif message.tool_calls and opaque.get("field") in (REASONING_CONTENT, REASONING, THINKING):
            field = opaque["field"]
            found[field] = found.get(field, "") + reasoning.text
    return found


def _part(part: Part, media: Mapping[str, bytes]) -> Json:
    match part:
        case TextPart():
            return _text_part(part.text) if part.text else None
        case InputPart():
            return _text_part(content.input_text(part))
        case AttachmentPart():
            kind, data = content.media_type(part), media[part.digest]
            if content.is_text(kind):
                text = content.file_text(part, data)
                return _text_part(text) if text else None
            if kind.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": content.data_url(kind, data)}}
            if kind in _AUDIO:
                audio = {"data": content.base64_text(data), "format": _AUDIO[kind]}
                return {"type": "input_audio", "input_audio": audio}
            if kind in _DOCUMENTS or kind.startswith("application/vnd."):
                name = part.name or f"attachment{_DOCUMENTS.get(kind, '')}"
                return {"type": "file", "file": {"filename": name, "file_data": content.data_url(kind, data)}}
            name = part.name or part.digest[:12]
            raise InvalidArgument(
                f"Chat Completions does not accept {kind!r} (attachment {name!r})",
                hint="it has images, WAV and MP3, PDF and office documents, and text",
            )
        case _:
            assert_never(part)


def _text_part(text: str) -> dict[str, Json]:
    return {"type": "text", "text": text}
