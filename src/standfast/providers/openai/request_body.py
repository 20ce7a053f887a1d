"""What is sent to `POST /responses`.

Rules
-----
1. The vendor stores nothing (`store: false`): all that it needs comes with the request, encrypted reasoning
   included.
2. A setting that the API does not have is refused, not dropped.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.providers.http.dialect import Asked
from standfast.providers.openai.history import input_items
from standfast.providers.openai.strict_schema import fits_strict, is_object, opened
from standfast.providers.settings import Effort, ModelSettings

_THINKS: Final = re.compile(r"(ft:)?(o\d|codex|gpt-([5-9]|\d\d))(?!.*-chat)")
_EFFORTS: Final[tuple[tuple[int, Effort], ...]] = ((4_096, "low"), (16_384, "medium"))
_ABSENT: Final = ("top_k", "stop", "seed")
_JSON_ONLY: Final = "Answer with JSON and nothing else. It must fit this JSON Schema:"


def request_body(asked: Asked) -> dict[str, Json]:
    """The body that asks for a reply."""
    request, settings = asked.request, asked.settings
    _refuse_absent(settings)
    format_, told = _output(request.output_schema)
    instructions = "\n\n".join(filter(None, (request.instructions, told)))
    body: dict[str, Json] = {
        "model": asked.model,
        "input": input_items(request.messages, asked.media, asked.origin),
        "stream": True,
        "store": False,
    }
    body |= {"instructions": instructions} if instructions else {}
    body |= {"text": {"format": format_}} if format_ else {}
    body |= _tools(request.tools, settings)
    body |= _thinking(asked.model, settings)
    body |= {"prompt_cache_key": request.session_id} if settings.cache and request.session_id else {}
    return body | _sampling(settings)


def _refuse_absent(settings: ModelSettings) -> None:
    for name in _ABSENT:
        if getattr(settings, name):
            raise InvalidArgument(
                f"OpenAI's Responses API has no setting {name!r}",
                hint="leave it out, or use the model as 'openai-compatible:MODEL@BASE_URL'",
            )


def _output(schema: dict[str, Any] | None) -> tuple[Json, str]:
    """How the answer is to be formed: as a format where the API has one for it, or else in words."""
    if schema is None:
        return None, ""
    schema = opened(schema)
    if not is_object(schema):
        return None, f"{_JSON_ONLY}\n{msgspec.json.encode(schema).decode()}"
    strict = fits_strict(schema)
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": strict}, ""


def _tools(tools: tuple[Capability, ...], settings: ModelSettings) -> dict[str, Json]:
    if not tools:
        return {}
    body: dict[str, Json] = {"tools": [_tool(tool) for tool in tools]}
    choice = settings.tool_choice
    if choice is not None:
        by_name = choice not in ("auto", "none", "required")
        body["tool_choice"] = {"type": "function", "name": choice} if by_name else choice
    if settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    return body


def _tool(tool: Capability) -> Json:
    schema = opened(tool.input_schema)
    if not is_object(schema):
        schema = {"type": "object", "properties": {}}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": schema,
        "strict": fits_strict(schema),
    }


def _thinking(model: str, settings: ModelSettings) -> dict[str, Json]:
    """How much to think. A model that does not think refuses to be asked for what it thought."""
    wanted = settings.reasoning
    if wanted == "none":
        return {"reasoning": {"effort": "none"}}
    if wanted is None:
        return {"include": ["reasoning.encrypted_content"]} if _THINKS.match(model) else {}
    effort = wanted if isinstance(wanted, str) else _effort(wanted)
    return {
        "reasoning": {"effort": effort, "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }


def _effort(tokens: int) -> Effort:
    """A number of tokens in the vendor's words."""
    return next((effort for most, effort in _EFFORTS if tokens <= most), "high")


def _sampling(settings: ModelSettings) -> dict[str, Json]:
    values: dict[str, Json] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_output_tokens": settings.max_tokens,
    }
    return {name: value for name, value in values.items() if value is not None}
