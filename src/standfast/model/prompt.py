"""The system prompt as data: contributions by slot and layer."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from standfast.errors import InvalidArgument


class PromptSlot(enum.StrEnum):
    """The slots of a prompt, in the order in which the model reads them."""

    INTRO = "intro"
    EXECUTION = "execution"
    GUIDANCE = "guidance"
    PROJECT_INSTRUCTIONS = "project_instructions"
    RUNTIME_CONTEXT = "runtime_context"
    ENVIRONMENT = "environment"


_PLACE = {slot: place for place, slot in enumerate(PromptSlot)}


class PromptContribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of the prompt. Within a slot, lower `priority` comes first."""

    content: str
    slot: PromptSlot = PromptSlot.GUIDANCE
    priority: int = 0


class PromptLayer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contributions of the runtime, agent, session or turn. It `replaces` whole slots of lower layers."""

    contributions: tuple[PromptContribution, ...] = ()
    replaces: frozenset[PromptSlot] = frozenset()


def as_layer(given: PromptLayer | Sequence[PromptContribution | str] | str | None) -> PromptLayer:
    """Return a layer of the prompt from any of the forms that users pass."""
    if isinstance(given, PromptLayer):
        return given
    given = (given,) if isinstance(given, str) else given or ()
    parts = tuple(PromptContribution(content=one) if isinstance(one, str) else one for one in given)
    for part in parts:
        if not isinstance(part, PromptContribution):
            raise InvalidArgument(
                f"a part of the system prompt must be a str or a PromptContribution, got {part!r:.80}"
            )
    return PromptLayer(contributions=parts)


def layered(layers: Iterable[PromptLayer]) -> list[PromptContribution]:
    """Return the contributions of all layers, lowest first, without replaced slots."""
    found: list[PromptContribution] = []
    for layer in layers:
        if layer.replaces:
            found = [one for one in found if one.slot not in layer.replaces]
        found.extend(layer.contributions)
    return found


def ordered(contributions: Iterable[PromptContribution]) -> list[PromptContribution]:
    """Return the contributions in reading order, without blank ones and duplicates."""
    seen: set[tuple[PromptSlot, int, str]] = set()
    kept = []
    for one in contributions:
        key = (one.slot, one.priority, one.content.strip())
        if key[2] and key not in seen:
            seen.add(key)
            kept.append(one)
    return sorted(kept, key=lambda one: (_PLACE[one.slot], one.priority))


def rendered(contributions: Iterable[PromptContribution]) -> str:
    """Return the prompt as the model reads it."""
    return "\n\n".join(one.content.strip() for one in ordered(contributions))
