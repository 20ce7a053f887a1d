"""View models of a prompt: its sections, those already in the previous call, and those cached.

Everything here is a pure function of prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import msgspec

from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    TextPart,
    UserMessage,
)
from standfast.model.prompt_record import ModelPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionView:
    """A part of a prompt. `known`: in the prefix shared with the previous call; `cached`: read from cache."""

    kind: str
    title: str
    text: str
    exact: str = ""
    known: bool = False
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView:
    """A prompt in the order in which providers cache it: tools, instructions, messages."""

    tools: tuple[SectionView, ...]
    parts: tuple[SectionView, ...]
    messages: tuple[SectionView, ...]
    covered: float
    """The fraction of input tokens read from the cache, from 0 to 1."""

    @property
    def sections(self) -> tuple[SectionView, ...]:
        return (*self.tools, *self.parts, *self.messages)


def prompt_view(prompt: ModelPrompt, before: ModelPrompt | None) -> PromptView:
    """Return the sections of a prompt; *before* is the previous call's prompt, if known."""
    sections = _sections(prompt)
    earlier = [] if before is None else [(one.kind, one.exact) for one in _sections(before)]
    whole = sum(len(one.exact) for one in sections) or 1
    used = prompt.usage
    sent = used.input + used.cache_read + used.cache_write
    covered = used.cache_read / sent if sent else 0.0
    same, at = True, 0
    marked = []
    for place, one in enumerate(sections):
        at += len(one.exact)
        same = same and place < len(earlier) and earlier[place] == (one.kind, one.exact)
        cached = covered > 0 and at <= covered * whole
        marked.append(replace(one, known=same, cached=cached))

    def of(kind: str) -> tuple[SectionView, ...]:
        return tuple(one for one in marked if one.kind == kind)

    return PromptView(tools=of("tool"), parts=of("part"), messages=of("message"), covered=covered)


def _sections(prompt: ModelPrompt) -> list[SectionView]:
    tools = [
        SectionView(kind="tool", title=one.name, text=_tool_text(one), exact=_json(one))
        for one in prompt.tools
    ]
    parts = [
        SectionView(kind="part", title=one.by, text=one.content, exact=one.content) for one in prompt.parts
    ]
    said = [
        SectionView(kind="message", title=_role(one), text=message_text(one), exact=_json(one))
        for one in prompt.messages
    ]
    return [*tools, *parts, *said]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _role(message: Message) -> str:
    match message:
        case UserMessage():
            return "User"
        case AssistantMessage():
            return "Model"
        case tool:
            return f"Result of {tool.name}"


def message_text(message: Message) -> str:
    """Return a message as text: its content, files by name, calls with their arguments, or a result."""
    match message:
        case UserMessage(content=str(text)):
            return text
        case UserMessage(content=parts):
            return "\n".join(_part_text(part) for part in parts)
        case AssistantMessage(text=text, tool_calls=calls):
            made = [
                f"{call.name}({call.raw if call.arguments is None else _spread(call.arguments)})"
                for call in calls
            ]
            return "\n".join([*([text] if text else []), *made])
        case tool:
            if tool.shown is not None:
                return tool.shown
            if tool.error is not None:
                return f"{tool.error.code}: {tool.error.message}"
            return tool.value if isinstance(tool.value, str) else _spread(tool.value)


def _part_text(part: TextPart | AttachmentPart | InputPart | object) -> str:
    match part:
        case TextPart(text=text):
            return text
        case (
            AttachmentPart(name=name, media_type=kind, size=size)
            | InputPart(name=name, media_type=kind, size=size)
        ):
            return f"[{name or 'file'}: {kind}, {size:,} bytes]"
        case _:
            return _json(part)


def _spread(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tool_text(tool: Capability) -> str:
    schema = json.dumps(tool.input_schema, ensure_ascii=False, indent=2)
    return f"{tool.description}\n\n{schema}" if tool.description else schema


def prompt_lines(prompt: ModelPrompt) -> str:
    """Return a prompt as one text, for a diff against another."""
    pieces = [f"Tool {one.name}\n{_tool_text(one)}" for one in prompt.tools]
    pieces += [f"Instructions by {one.by}\n{one.content}" for one in prompt.parts]
    if prompt.output_schema is not None:
        pieces.append(f"Output schema\n{json.dumps(prompt.output_schema, indent=2)}")
    if prompt.settings:
        pieces.append(f"Settings\n{json.dumps(prompt.settings, indent=2)}")
    pieces += [f"{_role(one)}\n{message_text(one)}" for one in prompt.messages]
    return "\n\n".join(pieces)


def exact_json(prompt: ModelPrompt) -> bytes:
    """Return what the model received as JSON."""
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "instructions": prompt.instructions,
                "tools": prompt.tools,
                "messages": prompt.messages,
                "output_schema": prompt.output_schema,
                "settings": prompt.settings,
            }
        ),
        indent=2,
    )
