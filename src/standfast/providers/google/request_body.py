"""A request as the body that Gemini takes.

Rules
-----
1. What is not asked for is not sent: Gemini has defaults of its own.
2. `parallel_tool_calls` and `cache` have no counterpart: Gemini decides on parallel calls itself, and keeps
   what repeats without being told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.capability import Capability
from standfast.providers.google.contents import contents_of
from standfast.providers.google.generations import takes_schema_with_tools, thinking_config
from standfast.providers.google.schema import accepted, parameters_schema
from standfast.providers.http.dialect import Asked

_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}

Body = dict[str, Any]


def request_body(asked: Asked) -> Body:
    """Everything that is sent."""
    contents = contents_of(asked)
    if not contents:
        raise InvalidArgument("there is nothing to send to the model: every message is empty")
    body: Body = {"contents": contents}
    if instructions := _instructions(asked):
        body["systemInstruction"] = {"parts": [{"text": instructions}]}
    if asked.request.tools:
        body |= _tools(asked)
    if config := _generation_config(asked):
        body["generationConfig"] = config
    return body


def _instructions(asked: Asked) -> str:
    """The instructions; where the schema of the answer cannot be sent as such, they tell of it."""
    request = asked.request
    if request.output_schema is None or _binds_output(asked):
        return request.instructions
    schema = msgspec.json.encode(request.output_schema).decode()
    told = f"Your final answer must be JSON that fits this JSON Schema, and nothing else:\n{schema}"
    return f"{request.instructions}\n\n{told}".strip()


def _tools(asked: Asked) -> Body:
    declared: Body = {"tools": [{"functionDeclarations": [_declared(tool) for tool in asked.request.tools]}]}
    choice = asked.settings.tool_choice
    if choice is not None:
        declared["toolConfig"] = {"functionCallingConfig": _calling(choice, asked.request.tools)}
    return declared


def _declared(tool: Capability) -> Body:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parametersJsonSchema": parameters_schema(tool.input_schema)}


def _calling(choice: str, tools: tuple[Capability, ...]) -> Body:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    names = [tool.name for tool in tools]
    if choice not in names:
        raise InvalidArgument(
            f"tool_choice {choice[:80]!r} is no tool of this request",
            hint=f"use auto, none, required, or one of {', '.join(names)}",
        )
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _generation_config(asked: Asked) -> Body:
    settings = asked.settings
    config: Body = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "topK": settings.top_k,
        "maxOutputTokens": settings.max_tokens,
        "stopSequences": list(settings.stop) or None,
        "seed": settings.seed,
    }
    if asked.request.output_schema is not None and _binds_output(asked):
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = accepted(asked.request.output_schema)
    if settings.reasoning is not None:
        config["thinkingConfig"] = thinking_config(asked.model, settings.reasoning)
    return {name: value for name, value in config.items() if value is not None}


def _binds_output(asked: Asked) -> bool:
    return not asked.request.tools or takes_schema_with_tools(asked.model)
