"""What hooks answer, read and checked.

Rule: nothing of a wrong type, too large or impossible to write down gets past here. It becomes `PluginFailed`
with the plugin's id.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from standfast.errors import PluginFailed, StandfastError
from standfast.model.canonical import Json, check_bounds, to_json
from standfast.model.capability import checked_availability
from standfast.model.frame import FrameSwitch
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.session import SessionPolicy
from standfast.plugins.contexts import (
    AssistantResponseTransform,
    AssistantStreamTransform,
    ContextCompaction,
    SwitchAgentFrame,
)
from standfast.plugins.directives import MAX_BYTES
from standfast.plugins.running import RegisteredHook
from standfast.plugins.triggers import TriggerEvent
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.registry import ToolCatalogContribution

T = TypeVar("T")


def read_messages(hook: RegisteredHook, given: list[Message], answer: object) -> list[Message]:
    """The messages that a transform leaves of *given*; it may have worked on a copy of them in place."""
    if answer == given:
        return given
    if not isinstance(answer, list) or not all(
        isinstance(one, (UserMessage, AssistantMessage, ToolMessage)) for one in answer
    ):
        raise _garbage(hook, "a list of messages", answer)
    known = set(map(id, given))
    if not all(id(one) in known for one in answer):
        own = [one for one in answer if id(one) not in known]
        written = iter(_written(hook, own, list[Message], 16 * MAX_BYTES))
        return [one if id(one) in known else next(written) for one in answer]
    return answer


def read_compaction(hook: RegisteredHook, answer: object) -> ContextCompaction:
    if not isinstance(answer, ContextCompaction):
        raise _garbage(hook, "ContextCompaction", answer)
    return _written(hook, answer, ContextCompaction, 4 * MAX_BYTES)


def read_switch(hook: RegisteredHook, answer: object) -> FrameSwitch:
    if not isinstance(answer, SwitchAgentFrame):
        raise _garbage(hook, "SwitchAgentFrame", answer)
    return _written(hook, FrameSwitch(frame_id=answer.frame_id, task=answer.task), FrameSwitch)


def read_triggers(hook: RegisteredHook, answer: object) -> list[TriggerEvent]:
    if not isinstance(answer, (list, tuple)):
        raise _garbage(hook, "a list of TriggerEvent", answer)
    for one in answer:
        if not isinstance(one, TriggerEvent):
            raise _garbage(hook, "TriggerEvent", one)
    return _written(hook, answer, list[TriggerEvent])


def read_contributions(hook: RegisteredHook, answer: object) -> list[PromptContribution]:
    if answer is None:
        return []
    given = answer if isinstance(answer, (list, tuple)) else [answer]
    found = [_contribution(hook, one) for one in given]
    size = sum(len(_utf8(hook, one.content)) for one in found)
    if size > MAX_BYTES:
        raise _too_much(hook, size)
    return found


def _contribution(hook: RegisteredHook, one: object) -> PromptContribution:
    if isinstance(one, str):
        return PromptContribution(content=one)
    if not isinstance(one, PromptContribution) or not isinstance(one.content, str):
        raise _garbage(hook, "text or PromptContribution", one)
    if not isinstance(one.slot, PromptSlot) or not isinstance(one.priority, int):
        raise _garbage(hook, "a slot and a priority", one)
    return one


def read_chunk(hook: RegisteredHook, answer: object) -> AssistantStreamTransform:
    text = answer.chunk if isinstance(answer, AssistantStreamTransform) else answer
    return AssistantStreamTransform(read_text(hook, text))


def read_text(hook: RegisteredHook, answer: object) -> str:
    if not isinstance(answer, str):
        raise _garbage(hook, "text", answer)
    size = len(_utf8(hook, answer))
    if size > MAX_BYTES:
        raise _too_much(hook, size)
    return answer


def read_response(hook: RegisteredHook, answer: object) -> AssistantResponseTransform:
    reply = answer.response if isinstance(answer, AssistantResponseTransform) else answer
    if not isinstance(reply, ReplyEnded):
        raise _garbage(hook, "ReplyEnded", answer)
    return AssistantResponseTransform(_written(hook, reply, ReplyEnded, 16 * MAX_BYTES))


def read_policy(hook: RegisteredHook, answer: object) -> SessionPolicy:
    if not isinstance(answer, SessionPolicy):
        raise _garbage(hook, "SessionPolicy", answer)
    return _written(hook, answer, SessionPolicy)


def read_catalog(hook: RegisteredHook, answer: object) -> ToolCatalogContribution:
    if not isinstance(answer, ToolCatalogContribution):
        raise _garbage(hook, "ToolCatalogContribution", answer)
    try:
        availability = {name: checked_availability(level) for name, level in answer.availability.items()}
        return ToolCatalogContribution(availability, frozenset(answer.hidden))
    except (StandfastError, TypeError, ValueError, AttributeError) as error:
        raise PluginFailed(hook.plugin_id, hook.kind, f"its contribution is broken: {error}") from None


def read_json(hook: RegisteredHook, answer: object) -> Json:
    try:
        check_bounds(answer)
        clean, size = to_json(msgspec.to_builtins(answer))
    except (StandfastError, TypeError, ValueError, RecursionError) as error:
        raise PluginFailed(hook.plugin_id, hook.kind, f"its answer is not JSON: {error}") from None
    if size > 16 * MAX_BYTES:
        raise _too_much(hook, size, 16 * MAX_BYTES)
    return clean


def _written(hook: RegisteredHook, answer: object, kind: type[T], limit: int = MAX_BYTES) -> T:
    """An answer as it comes back from being written down, so that a replay sees the same."""
    try:
        check_bounds(answer, limit)
        data = msgspec.json.encode(answer)
        value = msgspec.json.decode(data, type=kind)
    except (StandfastError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        problem = f"what it answers with cannot be written down: {error}"
        raise PluginFailed(hook.plugin_id, hook.kind, problem) from None
    if len(data) > limit:
        raise _too_much(hook, len(data), limit)
    return value


def _utf8(hook: RegisteredHook, text: str) -> bytes:
    if len(text) > MAX_BYTES:  # a character takes a byte at least
        raise _too_much(hook, len(text))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise PluginFailed(hook.plugin_id, hook.kind, "its text is not Unicode") from None


def _garbage(hook: RegisteredHook, wanted: str, answer: object) -> PluginFailed:
    return PluginFailed(
        hook.plugin_id, hook.kind, f"it answered with a {type(answer).__name__}, not with {wanted}"
    )


def _too_much(hook: RegisteredHook, size: int, limit: int = MAX_BYTES) -> PluginFailed:
    return PluginFailed(hook.plugin_id, hook.kind, f"its answer is {size} bytes, the limit is {limit}")
