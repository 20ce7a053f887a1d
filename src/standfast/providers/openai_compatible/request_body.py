"""A request as the body of a chat completion.

Rules
-----
1. What was not asked for is not sent: some servers refuse what they do not know.
2. A schema that the server cannot be given, or not beside tools, is told to the model in words; the answer is
   checked in either case.
3. `extra_body` is not read here: the layer below puts it over all of this.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.providers.http.dialect import Asked
from standfast.providers.openai.strict_schema import fits_strict, is_object, opened
from standfast.providers.openai_compatible.hosts import Host
from standfast.providers.openai_compatible.messages import messages_of
from standfast.providers.settings import ModelSettings

_FEW_TOKENS: Final = 2048
_MANY_TOKENS: Final = 16384


def body_of(asked: Asked, host: Host) -> dict[str, Json]:
    """The whole body."""
    format_, told = _answer(asked, host)
    system = "\n\n".join(part for part in (asked.request.instructions, told) if part)
    body: dict[str, Json] = {
        "model": asked.model,
        "stream": True,
        "messages": messages_of(asked, host, system),
    }
    body |= _tools(asked.request.tools, asked.settings)
    if format_ is not None:
        body["response_format"] = format_
    body |= _sampling(asked.settings, host) | _reasoning(asked.settings.reasoning, host)
    if host.cache_key and asked.settings.cache and asked.request.session_id:
        body["prompt_cache_key"] = asked.request.session_id
    if host.asks_usage:
        body["stream_options"] = {"include_usage": True}
    return body


def _sampling(settings: ModelSettings, host: Host) -> dict[str, Json]:
    if settings.top_k is not None and not host.top_k:
        raise InvalidArgument(f"{host.domain} has no top_k", hint="use top_p or temperature")
    given: dict[str, Json] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        host.max_tokens: settings.max_tokens,
        "stop": list(settings.stop) or None,
        host.seed: settings.seed,
    }
    return {name: value for name, value in given.items() if value is not None}


def _reasoning(wanted: str | int | None, host: Host) -> dict[str, Json]:
    """How much to think. A number of tokens is a word for most."""
    if wanted is None:
        return {}
    if host.reasoning_object:
        return {"reasoning": {"max_tokens" if isinstance(wanted, int) else "effort": wanted}}
    return {"reasoning_effort": _effort(wanted) if isinstance(wanted, int) else wanted}


def _effort(tokens: int) -> str:
    if tokens <= _FEW_TOKENS:
        return "low"
    return "medium" if tokens <= _MANY_TOKENS else "high"


def _tools(tools: tuple[Capability, ...], settings: ModelSettings) -> dict[str, Json]:
    choice = settings.tool_choice
    if not tools:
        if choice not in (None, "auto", "none"):
            raise InvalidArgument(f"tool_choice is {choice!r}, and there are no tools")
        return {}
    body: dict[str, Json] = {"tools": [_tool(tool) for tool in tools]}
    if choice is not None:
        body["tool_choice"] = _choice(choice, tools)
    if settings.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = settings.parallel_tool_calls
    return body


def _choice(choice: str, tools: tuple[Capability, ...]) -> Json:
    if choice in ("auto", "none", "required"):
        return choice
    if all(tool.name != choice for tool in tools):
        raise InvalidArgument(f"tool_choice {choice!r} is no tool of the agent's")
    return {"type": "function", "function": {"name": choice}}


def _tool(tool: Capability) -> Json:
    schema = opened(tool.input_schema)
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema if is_object(schema) else {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _answer(asked: Asked, host: Host) -> tuple[Json, str]:
    """The `response_format`, if there can be one, and what the model is told instead."""
    if asked.request.output_schema is None:
        return None, ""
    schema = opened(asked.request.output_schema)
    if not is_object(schema) or (asked.request.tools and not host.schema_with_tools):
        return None, _told(schema)
    if not host.json_schema:
        return {"type": "json_object"}, _told(schema)
    named: dict[str, Any] = {"name": "answer", "schema": schema}
    if fits_strict(schema):
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}, ""


def _told(schema: dict[str, Any]) -> str:
    text = msgspec.json.encode(schema).decode()
    return f"Your answer is JSON and nothing else. It fits this JSON Schema:\n{text}"
