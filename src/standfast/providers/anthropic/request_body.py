"""The body of a request to the Messages API.

Rules
-----
1. What thinking excludes is left out: a temperature, `top_k`, a `top_p` below 0.95, a forced tool.
2. At most three cache breakpoints: after the system prompt, after the tools, after the last message. The
   vendor takes four.
3. `seed` is no setting that this vendor has; it is passed over.
"""

from __future__ import annotations

from typing import Final

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.providers.anthropic.generations import takes_output_format
from standfast.providers.anthropic.messages import Turn, may_think, turns_of
from standfast.providers.anthropic.output_format import native_schema, told_schema
from standfast.providers.anthropic.thinking import Thinking, thinking_of
from standfast.providers.http.dialect import Asked
from standfast.providers.settings import ModelSettings

Body = dict[str, Json]
_EPHEMERAL: Final = {"type": "ephemeral"}
_LEAST_TOP_P: Final = 0.95


def body_of(asked: Asked) -> Body:
    """The request as the vendor wants it, without what the user adds as it is."""
    settings, turns = asked.settings, turns_of(asked)
    thinking = thinking_of(asked.model, settings, may_think=may_think(turns))
    schema = _native_output(asked)
    body: Body = {"model": asked.model, "max_tokens": thinking.max_tokens, "stream": True}
    if system := _system(asked, told=schema is None):
        body["system"] = system
    if tools := _tools(asked, turns):
        body["tools"] = tools
    body["messages"] = [turn.written() for turn in turns]
    body |= _choice(asked, tools, thinking) | _sampling(settings, thinking) | _output(schema, thinking)
    if settings.cache:
        _mark(body)
    return body


def _native_output(asked: Asked) -> Body | None:
    wanted = asked.request.output_schema
    return native_schema(wanted) if wanted is not None and takes_output_format(asked.model) else None


def _system(asked: Asked, *, told: bool) -> list[Body]:
    """The instructions, and the schema of the answer where it has to be told in words."""
    texts = [asked.request.instructions]
    if told and asked.request.output_schema is not None:
        texts.append(told_schema(asked.request.output_schema))
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _tools(asked: Asked, turns: list[Turn]) -> list[Body]:
    """The tools that are offered; where there are none, those that the conversation mentions."""
    if asked.request.tools:
        return [_tool(tool) for tool in asked.request.tools]
    names = {b["name"]: None for turn in turns for b in turn.blocks if b["type"] == "tool_use"}
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def _tool(tool: Capability) -> Body:
    """A tool. A model gives arguments by name, so a schema of positions has none to tell."""
    by_name = tool.input_schema.get("type") == "object"
    schema = tool.input_schema if by_name else {"type": "object", "properties": {}}
    found: Body = {"name": tool.name, "input_schema": schema}
    if tool.description.strip():
        found["description"] = tool.description
    return found


def _choice(asked: Asked, tools: list[Body], thinking: Thinking) -> Body:
    settings, offered = asked.settings, asked.request.tools
    if not tools:
        return {}
    if not offered:
        return {"tool_choice": {"type": "none"}}
    choice = _chosen(settings.tool_choice, {tool.name for tool in offered})
    if thinking.on and choice["type"] in ("any", "tool"):
        choice = {"type": "auto"}
    if settings.parallel_tool_calls is False and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return {} if choice == {"type": "auto"} else {"tool_choice": choice}


def _chosen(wanted: str | None, names: set[str]) -> Body:
    match wanted:
        case None | "auto":
            return {"type": "auto"}
        case "none":
            return {"type": "none"}
        case "required":
            return {"type": "any"}
    if wanted not in names:
        raise InvalidArgument(
            f"tool_choice {wanted!r} is no tool of this request",
            hint="use auto, none, required, or one of: " + ", ".join(sorted(names)),
        )
    return {"type": "tool", "name": wanted}


def _sampling(settings: ModelSettings, thinking: Thinking) -> Body:
    found: Body = {"stop_sequences": list(settings.stop)} if settings.stop else {}
    top_p = settings.top_p
    if thinking.on:
        top_p = top_p if top_p is not None and top_p >= _LEAST_TOP_P else None
    else:
        found |= _given(temperature=settings.temperature, top_k=settings.top_k)
    return found | _given(top_p=top_p)


def _output(schema: Body | None, thinking: Thinking) -> Body:
    """What the vendor has to know of the answer, and of the thinking before it."""
    form = None if schema is None else {"type": "json_schema", "schema": schema}
    config = _given(effort=thinking.effort, format=form)
    return _given(thinking=thinking.config, output_config=config or None)


def _given(**values: Json) -> Body:
    return {name: value for name, value in values.items() if value is not None}


def _mark(body: Body) -> None:
    """Set the cache breakpoints: everything before one is kept for the next request."""
    for blocks in (body.get("system"), body.get("tools"), body["messages"][-1]["content"]):
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": dict(_EPHEMERAL)}
