"""The parts of a model call other than its messages, stored once for all calls that share them.

The messages of a call are in the history and the journal. The prompt, the tools and the schema of the answer
follow from the agent's code, which may change; `PromptRecord` has them as they were. It is stored as a blob,
and the journal refers to it by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import Capability
from standfast.model.limits import Usage
from standfast.model.message import Message
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot, layered, ordered

Reading = Literal["", "inputs_named", "python", "typescript"]
"""How the model reads messages: unchanged, with inputs by name, or with cells as fenced code."""


class PromptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The layers of a prompt with the names of their sources, the protocol's contributions, and the tools.

    A turn's own prompt layer is in the turn's first input. The contributions of plugins are in the journal.
    """

    layers: tuple[tuple[str, PromptLayer], ...] = ()
    protocol: tuple[PromptContribution, ...] = ()
    tools: tuple[Capability, ...] = ()
    output_schema: dict[str, Json] | None = None
    settings: dict[str, Json] = msgspec.field(default_factory=dict)
    reading: Reading = ""


class PromptPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the instructions. `by` is runtime, agent, instructions, host, turn, protocol or a plugin."""

    by: str
    content: str
    slot: PromptSlot | None = None


def named_parts(
    layers: Iterable[tuple[str, PromptLayer]],
    protocol: Iterable[PromptContribution] = (),
    added: Iterable[tuple[str, PromptContribution]] = (),
) -> list[PromptPart]:
    """Return the parts of a prompt in reading order, each with its source."""
    layers, protocol, added = list(layers), list(protocol), list(added)
    by = {id(one): name for name, layer in layers for one in layer.contributions}
    by |= {id(one): "protocol" for one in protocol}
    by |= {id(one): name for name, one in added}
    said = [*layered(layer for _, layer in layers), *protocol, *(one for _, one in added)]
    return [PromptPart(by=by[id(one)], content=one.content.strip(), slot=one.slot) for one in ordered(said)]


class ModelPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what the model received in one call of a turn, and the usage of the call.

    `number` counts the turn's calls from 1, `attempt` the attempts of a call. The contents of `parts`,
    separated by empty lines, are the `instructions`.
    """

    number: int
    attempt: int
    at_ms: int
    instructions: str
    parts: tuple[PromptPart, ...]
    messages: tuple[Message, ...]
    tools: tuple[Capability, ...] = ()
    output_schema: dict[str, Json] | None = None
    settings: dict[str, Json] = msgspec.field(default_factory=dict)
    model: str = ""
    usage: Usage = Usage()
    error: ErrorObject | None = None
