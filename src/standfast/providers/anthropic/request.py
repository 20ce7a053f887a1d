"""Encoder of requests to the Messages API.

The API takes turns that alternate between user and assistant, each a list of blocks. The user and tool
messages between two replies become one user turn, with the tool results first, because the vendor requires
every call to be answered in the next turn.

Rules
-----
1. The first and the last turn are the user's; a placeholder is added where the conversation has none.
2. Thinking is sent back unchanged, before the content that followed from it, and only to the server that
   produced it.
3. A call has the same id as its result, and no two calls have the same id.
4. Blocks without text are never sent, because the vendor rejects them.
5. Settings that thinking excludes are omitted: a temperature, `top_k`, a `top_p` below 0.95, a forced tool.
   `seed` does not exist in this API and is ignored.
6. There are at most three cache breakpoints: after the system prompt, the tools, and the last message. The
   vendor allows four.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    TextPart,
    ToolMessage,
    UserMessage,
)
from standfast.providers.http import content
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.http.schemas import anthropic_schema
from standfast.providers.settings import ModelSettings

Body = dict[str, Json]
CONTINUATION: Final = "(The conversation continues.)"
_THINKING_TYPES: Final = ("thinking", "redacted_thinking")
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_ID_CHARS: Final = 64
_MIN_TOP_P: Final = 0.95

_VERSION: Final = re.compile(r"(?<![0-9])([0-9]{1,2})(?:[-.]([0-9]{1,2}))?(?![0-9])")
_NEWEST: Final = (99, 0)
_MIN_BUDGET: Final = 1024
_BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_ADAPTIVE_TOKENS: Final = 24576
"""The thinking tokens of an adaptive model if the user sets no `max_tokens`."""


def request_body(prepared: PreparedRequest) -> Body:
    """Write the body, without the user's `extra_body`."""
    request, settings = prepared.request, prepared.settings
    turns = _Conversation(prepared).turns()
    # A model with a thinking budget may not think if its earlier calls lack their thinking.
    may_think = len(turns) < 2 or not turns[-1].results
    if not may_think and (blocks := turns[-2].blocks):
        may_think = blocks[0]["type"] in _THINKING_TYPES
    thinking = _thinking(prepared.model, settings, may_think=may_think)
    schema = None
    if request.output_schema is not None and takes_output_format(prepared.model):
        schema = anthropic_schema(request.output_schema)
    system = [request.instructions]
    if request.output_schema is not None and schema is None:
        system.append(content.schema_instruction(request.output_schema))
    body: Body = {"model": prepared.model, "max_tokens": thinking.max_tokens, "stream": True}
    if prompts := [_text(text) for text in system if text.strip()]:
        body["system"] = prompts
    if tools := _tools(request.tools, turns):
        body["tools"] = tools
    body["messages"] = [{"role": turn.role, "content": [*turn.results, *turn.blocks]} for turn in turns]
    if tools:
        body |= _tool_choice(request.tools, settings, thinking)
    top_p, stop = settings.top_p, list(settings.stop) or None
    if thinking.on:
        body |= _given(stop_sequences=stop, top_p=None if top_p is None or top_p < _MIN_TOP_P else top_p)
    else:
        sampling = _given(temperature=settings.temperature, top_k=settings.top_k, top_p=top_p)
        body |= _given(stop_sequences=stop) | sampling
    output_format = None if schema is None else {"type": "json_schema", "schema": schema}
    config = _given(effort=thinking.effort, format=output_format)
    body |= _given(thinking=thinking.config, output_config=config or None)
    if settings.cache:
        for cached in (body.get("system"), body.get("tools"), body["messages"][-1]["content"]):
            if cached:
                cached[-1] = {**cached[-1], "cache_control": {"type": "ephemeral"}}
    return body


# Messages


class _Turn(NamedTuple):
    """The blocks of one side's turn. Only user turns have `results`; they precede `blocks`."""

    role: str
    blocks: list[Body]
    results: list[Body]


class _Conversation:
    """Folds the messages of a request into turns."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared
        self._turns: list[_Turn] = []
        self._ids: set[str] = set()
        self._open: dict[int, str] = {}

    def turns(self) -> list[_Turn]:
        for message in self._prepared.request.messages:
            match message:
                case UserMessage(content=said):
                    blocks: list[Body] = []
                    for part in (TextPart(text=said),) if isinstance(said, str) else said:
                        if isinstance(part, AttachmentPart):
                            blocks.append(_attachment(part, self._prepared.media[part.digest]))
                        elif isinstance(part, InputPart):
                            blocks.append(_text(content.input_text(part)))
                        elif part.text.strip():
                            blocks.append(_text(part.text))
                    if blocks:
                        self._turn("user").blocks.extend(blocks)
                case AssistantMessage():
                    self._add_reply(message)
                case ToolMessage(call_id=call_id):
                    wire_id = self._open.get(call_id) or _clean(message.provider_id) or f"call_{call_id}"
                    block: Body = {"type": "tool_result", "tool_use_id": wire_id}
                    if (text := content.result_text(message)).strip():
                        block["content"] = text
                    if message.error is not None:
                        block["is_error"] = True
                    self._turn("user").results.append(block)
        turns = self._turns
        if not turns or turns[0].role != "user":
            turns.insert(0, _Turn("user", [_text(CONTINUATION)], []))
        if turns[-1].role != "user":
            turns.append(_Turn("user", [_text(CONTINUATION)], []))
        return turns

    def _turn(self, role: str) -> _Turn:
        """Return the last turn, or a new one if the other side spoke last."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role, [], []))
        return self._turns[-1]

    def _add_reply(self, message: AssistantMessage) -> None:
        blocks: list[Body] = []
        for reasoning in message.reasoning:
            opaque = reasoning.opaque
            if reasoning.origin == self._prepared.origin and isinstance(opaque, dict):
                is_text = opaque.get("type") == "thinking"
                blocks.append(
                    {"type": "thinking", "thinking": reasoning.text, **opaque} if is_text else opaque
                )
        if message.text.strip():
            blocks.append(_text(message.text))
        if message.tool_calls:
            self._open = {}
        for call in message.tool_calls:
            wanted = _clean(call.provider_id) or f"call_{call.call_id}"
            wire_id = content.unique_id(wanted, self._ids, lambda name, number: f"{name}_{number}")
            self._open[call.call_id] = wire_id
            # Arguments that are not a JSON object are sent as the text that arrived.
            arguments = {"raw": call.raw or ""} if call.arguments is None else call.arguments
            name = _clean(call.name) or "unnamed"
            blocks.append({"type": "tool_use", "id": wire_id, "name": name, "input": arguments})
        if any(block["type"] not in _THINKING_TYPES for block in blocks):
            self._turn("assistant").blocks.extend(blocks)


def _clean(name: str) -> str:
    """Replace the characters that the vendor does not allow in an id or a name."""
    return _NOT_IN_IDS.sub("_", name)[:_MAX_ID_CHARS]


def _text(text: str) -> Body:
    return {"type": "text", "text": text}


def _attachment(part: AttachmentPart, data: bytes) -> Body:
    kind = content.media_type(part)
    if kind.startswith("text/") or kind == "application/json":
        source = {"type": "text", "media_type": "text/plain", "data": content.utf8_text(part, data)}
    elif kind in _IMAGES or kind == "application/pdf":
        source = {"type": "base64", "media_type": kind, "data": content.base64_text(data)}
    else:
        raise InvalidArgument(
            f"Anthropic does not accept attachments of type {part.media_type!r}",
            hint=f"it accepts {', '.join(_IMAGES)}, application/pdf and text",
        )
    if kind in _IMAGES:
        return {"type": "image", "source": source}
    title = {"title": part.name} if part.name else {}
    return {"type": "document", "source": source, **title}


# Tools and settings


def _tools(offered: tuple[Capability, ...], turns: list[_Turn]) -> list[Body]:
    """Describe the tools on offer; if there are none, the tools that the conversation calls."""
    if not offered:
        calls = [block for turn in turns for block in turn.blocks if block["type"] == "tool_use"]
        names = dict.fromkeys(call["name"] for call in calls)
        return [{"name": name, "input_schema": {"type": "object"}} for name in names]
    tools: list[Body] = []
    for tool in offered:
        # A model passes arguments by name; a schema of positional arguments has no names.
        by_name = tool.input_schema.get("type") == "object"
        schema = tool.input_schema if by_name else {"type": "object", "properties": {}}
        description = {"description": tool.description} if tool.description.strip() else {}
        tools.append({"name": tool.name, "input_schema": schema, **description})
    return tools


def _tool_choice(offered: tuple[Capability, ...], settings: ModelSettings, thinking: _Thinking) -> Body:
    if not offered:
        return {"tool_choice": {"type": "none"}}
    wanted, names = settings.tool_choice or "auto", sorted(tool.name for tool in offered)
    choice: Body
    if wanted in ("auto", "none", "required"):
        choice = {"type": "any" if wanted == "required" else wanted}
    elif wanted in names:
        choice = {"type": "tool", "name": wanted}
    else:
        raise InvalidArgument(
            f"tool_choice {wanted!r} is not a tool of this request",
            hint="use auto, none, required, or one of: " + ", ".join(names),
        )
    if thinking.on and choice["type"] in ("any", "tool"):
        choice = {"type": "auto"}
    if settings.parallel_tool_calls is False and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return {} if choice == {"type": "auto"} else {"tool_choice": choice}


def _given(**values: Json) -> Body:
    return {name: value for name, value in values.items() if value is not None}


# Thinking, and what differs between models


def _version(model: str) -> tuple[int, int] | None:
    """Parse the version in the name of a Claude model; None for other models.

    A Claude without a version counts as the newest. Any other model belongs to a server that merely speaks
    this format; it gets the oldest form of everything.
    """
    if "claude" not in model:
        return None
    found = _VERSION.search(model)
    return _NEWEST if found is None else (int(found[1]), int(found[2] or 0))


def thinks_adaptively(model: str) -> bool:
    """Return whether the model chooses how much it thinks, and rejects a token budget."""
    version = _version(model)
    return version is not None and version >= (4, 7)


def takes_output_format(model: str) -> bool:
    """Return whether the model's output can be constrained to a JSON schema."""
    version = _version(model)
    return version is None or version >= (4, 5)


def default_max_tokens(model: str) -> int:
    """Return the reply length to request if the user sets none; the vendor requires a number."""
    version = _version(model)
    return 4096 if version is not None and version < (3, 5) else 8192


@dataclass(frozen=True, slots=True)
class _Thinking:
    """The request's thinking fields. `max_tokens` covers thinking and answer."""

    max_tokens: int
    config: Body | None = None
    effort: str | None = None
    on: bool = False


def _thinking(model: str, settings: ModelSettings, *, may_think: bool) -> _Thinking:
    """Convert `reasoning`: to a token budget up to Claude 4.6, to a named effort from 4.7 on."""
    wanted, adaptive = settings.reasoning, thinks_adaptively(model)
    usual = settings.max_tokens or default_max_tokens(model)
    if wanted is None:
        return _Thinking(usual)
    if wanted == "none":
        return _Thinking(usual, {"type": "disabled"} if adaptive else None)
    if adaptive:
        tokens = _BUDGETS[wanted] if isinstance(wanted, str) else wanted
        reached = [word for word, budget in _BUDGETS.items() if budget <= tokens]
        effort = _EFFORTS[reached[-1] if reached else "minimal"]
        config: Body = {"type": "adaptive", "display": "summarized"}
        return _Thinking(settings.max_tokens or usual + _ADAPTIVE_TOKENS, config, effort, on=True)
    if not may_think:
        return _Thinking(usual)
    budget, most = (
        _BUDGETS[wanted] if isinstance(wanted, str) else max(wanted, _MIN_BUDGET),
        settings.max_tokens,
    )
    if most is not None and budget >= most:
        if isinstance(wanted, int) or most <= _MIN_BUDGET:
            raise InvalidArgument(
                f"max_tokens={most} leaves no room for an answer after {budget} tokens of reasoning",
                hint="max_tokens counts the reasoning as well: raise it, or lower reasoning",
            )
        budget = max(_MIN_BUDGET, most // 2)
    config = {"type": "enabled", "budget_tokens": budget}
    return _Thinking(most or usual + budget, config, on=True)
