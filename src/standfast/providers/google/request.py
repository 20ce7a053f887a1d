"""Encoder of requests to the Gemini API.

Rules
-----
1. Unset settings are not sent: Gemini has its own defaults. `parallel_tool_calls` and `cache` have no
   counterpart: Gemini itself decides about parallel calls and caches repeated input.
2. The roles `user` and `model` alternate, starting with `user`: consecutive messages of one role become one
   content.
3. The results of all calls of a reply are in the content right after it, in the order of the calls.
4. No empty text is sent, except in the empty part that a signature arrived with.
5. Gemini has its own ids, or none. An id that we made up is not sent.
6. A signature goes back in the part that it arrived with, or not at all. If the text has changed since
   (`PartLayout.digest` differs), only the calls keep their signatures. Unsigned thoughts are not sent back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, assert_never

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    InputPart,
    Message,
    Part,
    TextPart,
    ToolMessage,
    UserMessage,
)
from standfast.providers.google.reply_reader import PartLayout, text_digest
from standfast.providers.http import content
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.http.schemas import google_parameters, google_schema
from standfast.providers.settings import Effort

Body = dict[str, Any]

_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MADE_UP_ID: Final = re.compile(r"call_\d+_\d+")
_INLINE_TYPES: Final = ("image/", "audio/", "video/", "application/pdf")
_OMISSION: Final = "(Earlier messages are left out.)"
_GENERATION: Final = re.compile(r"gemini-(\d+)")
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576,
}  # fmt: skip
_MIN_PRO_BUDGET: Final = 128


def request_body(prepared: PreparedRequest) -> Body:
    """Write the body, without the user's `extra_body`."""
    request = prepared.request
    contents = _contents(prepared)
    if not contents:
        raise InvalidArgument("there is nothing to send to the model: every message is empty")
    body: Body = {"contents": contents}
    # Before generation 3, a model with functions to call cannot be constrained to a schema.
    takes_both = _generation(prepared.model) >= 3 and not prepared.model.startswith("gemma")
    native = takes_both or not request.tools
    instructions = request.instructions
    if request.output_schema is not None and not native:
        instructions = f"{instructions}\n\n{content.schema_instruction(request.output_schema)}".strip()
    if instructions:
        body["systemInstruction"] = {"parts": [{"text": instructions}]}
    if request.tools:
        body |= _tools(request.tools, prepared.settings.tool_choice)
    settings = prepared.settings
    given: Body = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "topK": settings.top_k,
        "maxOutputTokens": settings.max_tokens,
        "stopSequences": list(settings.stop) or None,
        "seed": settings.seed,
    }
    if settings.reasoning is not None:
        given["thinkingConfig"] = _thinking_config(prepared.model, settings.reasoning)
    config = {name: value for name, value in given.items() if value is not None}
    if request.output_schema is not None and native:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = google_schema(request.output_schema)
    if config:
        body["generationConfig"] = config
    return body


def _tools(tools: tuple[Capability, ...], choice: str | None) -> Body:
    declarations = []
    for tool in tools:
        description = {"description": tool.description} if tool.description else {}
        parameters = google_parameters(tool.input_schema)
        declarations.append({"name": tool.name, **description, "parametersJsonSchema": parameters})
    body: Body = {"tools": [{"functionDeclarations": declarations}]}
    names = [tool.name for tool in tools]
    if choice in _MODES:
        body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[choice]}}
    elif choice in names:
        body["toolConfig"] = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [choice]}}
    elif choice is not None:
        raise InvalidArgument(
            f"tool_choice {choice[:80]!r} is not a tool of this request",
            hint=f"use auto, none, required, or one of {', '.join(names)}",
        )
    return body


def _thinking_config(model: str, reasoning: Effort | int) -> Body:
    """Convert `reasoning`: to a level, or a token budget before generation 3. `none` is a Pro's minimum."""
    is_pro = "pro" in model.split("-")
    shown = {"includeThoughts": True} if reasoning != "none" else {}
    if isinstance(reasoning, int):
        return {**shown, "thinkingBudget": reasoning}
    if _generation(model) >= 3:
        lowest = "LOW" if is_pro else "MINIMAL"
        return {**shown, "thinkingLevel": lowest if reasoning in ("none", "minimal") else reasoning.upper()}
    budget = _BUDGETS[reasoning]
    return {**shown, "thinkingBudget": max(budget, _MIN_PRO_BUDGET) if is_pro else budget}


def _generation(model: str) -> int:
    """Parse the generation in a model's name; `gemini-flash-latest` and the like count as the newest."""
    found = _GENERATION.search(model)
    return 99 if found is None else int(found[1])


# Messages


def _contents(prepared: PreparedRequest) -> list[Json]:
    contents: list[Json] = []
    for message in _with_results_in_order(prepared.request.messages):
        role, parts = "user", []
        match message:
            case UserMessage(content=said):
                given = (TextPart(text=said),) if isinstance(said, str) else said
                parts = [made for part in given if (made := _user_part(part, prepared)) is not None]
            case AssistantMessage():
                role, parts = "model", _reply_parts(message, prepared.origin)
            case ToolMessage(name=name, error=error):
                words = message.value if error is None else f"{error.code}: {error.message}"
                shown = words if message.shown is None else message.shown
                response = {"result" if error is None else "error": shown}
                result = {**_id(message.provider_id), "name": name, "response": response}
                parts = [{"functionResponse": result}]
            case _:
                assert_never(message)
        if not parts:
            continue
        if not contents and role == "model":
            contents.append({"role": "user", "parts": [{"text": _OMISSION}]})
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _with_results_in_order(messages: Iterable[Message]) -> Iterable[Message]:
    """Yield the messages, with tool results in the order of their calls."""
    order: dict[int, int] = {}
    results: list[ToolMessage] = []
    for message in (*messages, None):
        if isinstance(message, ToolMessage):
            results.append(message)
            continue
        yield from sorted(results, key=lambda result: order.get(result.call_id, len(order)))
        results.clear()
        if isinstance(message, AssistantMessage):
            order = {call.call_id: place for place, call in enumerate(message.tool_calls)}
        if message is not None:
            yield message


def _user_part(part: Part, prepared: PreparedRequest) -> Body | None:
    if isinstance(part, TextPart):
        return {"text": part.text} if part.text else None
    if isinstance(part, InputPart):
        return {"text": content.input_text(part)}
    kind, data = content.media_type(part), prepared.media[part.digest]
    if content.is_text(kind):
        return {"text": f"[file {part.name or part.media_type}]\n{content.utf8_text(part, data)}"}
    if not kind.startswith(_INLINE_TYPES):
        raise InvalidArgument(
            f"Gemini does not accept {part.media_type!r} ({part.name or 'an attachment'})",
            hint="it accepts images, audio, video, PDF and text",
        )
    return {"inlineData": {"mimeType": kind, "data": content.base64_text(data)}}


def _id(provider_id: str) -> Body:
    """Return a call's id as a field, if a vendor assigned it."""
    return {} if not provider_id or _MADE_UP_ID.fullmatch(provider_id) else {"id": provider_id}


def _reply_parts(message: AssistantMessage, origin: str) -> list[Body]:
    """Encode an earlier reply, with the signatures that came from *origin*."""
    calls: dict[str, Body] = {}
    for call in message.tool_calls:
        name = call.provider_id
        args = call.arguments
        if args is None:  # not an object: show them to the model as text
            args = {} if call.raw is None else {"unreadable_arguments": call.raw}
        part: Body = {"functionCall": {**_id(name), "name": call.name, "args": args}}
        calls[name if name and name not in calls else f"#{call.call_id}"] = part
    plain = [{"text": message.text}] if message.text else []
    layout = None
    for reasoning in message.reasoning:
        if reasoning.origin == origin and reasoning.opaque is not None:
            with suppress(msgspec.ValidationError):
                layout = msgspec.convert(reasoning.opaque, PartLayout)
                break
    if layout is None:
        return [*plain, *calls.values()]
    of_calls = [place for place in layout.parts if place.of == "call"]
    signatures = {place.call: place.signature for place in of_calls}
    if [place.call for place in of_calls] != list(calls) or layout.digest != text_digest(
        message.text, reasoning.text
    ):
        return [*plain, *(_signed(part, signatures.get(call)) for call, part in calls.items())]
    parts: list[Body] = []
    for place in layout.parts:
        if place.of == "call":
            part = calls[place.call]
        elif place.of == "text":
            part = {"text": message.text[place.start : place.end]}
        else:
            part = {"text": reasoning.text[place.start : place.end], "thought": True}
        parts.append(_signed(part, place.signature))
    return parts


def _signed(part: Body, signature: str | None) -> Body:
    return part if signature is None else {**part, "thoughtSignature": signature}
