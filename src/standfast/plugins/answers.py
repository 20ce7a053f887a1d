"""Reads the return values of hooks.

A value of the wrong type, too large or not storable is `PluginFailed`.
"""

from __future__ import annotations

from typing import Final, TypeVar, get_args

import msgspec

from standfast.errors import PluginFailed, StandfastError
from standfast.model.canonical import Json, check_bounds, to_json
from standfast.model.capability import checked_availability
from standfast.model.directive import (
    AbortTurn,
    CreateSession,
    EmitRuntimeEvents,
    EmitTrace,
    EnqueueMessages,
    PluginDirective,
    ReplaceToolArgs,
    ShortCircuitTool,
)
from standfast.model.frame import FrameSwitch
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.session import SessionPolicy
from standfast.plugins.contexts import (
    AssistantResponseTransform,
    AssistantStreamTransform,
    ContextCompaction,
    SwitchAgentFrame,
    TriggerEvent,
)
from standfast.plugins.directives import OwnedDirective, PluginOwned
from standfast.plugins.running import RegisteredHook
from standfast.ports.model_provider import ReplyEnded
from standfast.tools.registry import ToolCatalogContribution

T = TypeVar("T")

MAX_BYTES: Final = 1 << 20
"""The largest return value of a hook."""

MAX_CALL_BYTES: Final = 16 << 20
"""The largest return value that contains the arguments or the result of a call."""

_ANYWHERE: Final = (EnqueueMessages, CreateSession, EmitRuntimeEvents, EmitTrace)

ALLOWED: Final[dict[str, tuple[type, ...]]] = {
    "before_turn": (*_ANYWHERE, AbortTurn),
    "checkpoint": (*_ANYWHERE, AbortTurn),
    "before_tool_call": (*_ANYWHERE, AbortTurn, ReplaceToolArgs, ShortCircuitTool),
    "after_tool_call": (*_ANYWHERE, AbortTurn, ShortCircuitTool),
    "after_turn": _ANYWHERE,
}
"""The directives that are allowed at each stage."""

_KINDS: Final = get_args(PluginDirective)


def read_directives(hook: RegisteredHook, answer: object) -> list[OwnedDirective]:
    """Return the directives of an answer; raise `PluginFailed` if one is not allowed at this stage."""
    if answer is None:
        return []
    given = [answer] if isinstance(answer, _KINDS) else answer
    if not isinstance(given, (list, tuple)):
        raise _wrong_type(hook, "directives", answer)
    for one in given:
        if not isinstance(one, _KINDS):
            raise _wrong_type(hook, "a directive", one)
        if not isinstance(one, ALLOWED[hook.kind]):
            raise PluginFailed(hook.plugin_id, hook.kind, f"it must not return {type(one).__name__}")
    if not given:
        return []
    is_large = any(isinstance(one, (ReplaceToolArgs, ShortCircuitTool)) for one in given)
    read = _stored_form(hook, given, list[PluginDirective], MAX_CALL_BYTES if is_large else MAX_BYTES)
    return [PluginOwned(hook.plugin_id, one) for one in read]


def read_messages(hook: RegisteredHook, given: list[Message], answer: object) -> list[Message]:
    """Return the messages that a transform made of *given*, a copy that it may have changed in place."""
    if answer == given:
        return given
    if not isinstance(answer, list) or not all(
        isinstance(one, (UserMessage, AssistantMessage, ToolMessage)) for one in answer
    ):
        raise _wrong_type(hook, "a list of messages", answer)
    known = set(map(id, given))
    if not all(id(one) in known for one in answer):
        own = [one for one in answer if id(one) not in known]
        written = iter(_stored_form(hook, own, list[Message], MAX_CALL_BYTES))
        return [one if id(one) in known else next(written) for one in answer]
    return answer


def read_compaction(hook: RegisteredHook, answer: object) -> ContextCompaction:
    return _read(hook, answer, ContextCompaction, 4 * MAX_BYTES)


def read_switch(hook: RegisteredHook, answer: object) -> FrameSwitch:
    switch = _read(hook, answer, SwitchAgentFrame)
    return FrameSwitch(frame_id=switch.frame_id, task=switch.task)


def read_policy(hook: RegisteredHook, answer: object) -> SessionPolicy:
    return _read(hook, answer, SessionPolicy)


def read_triggers(hook: RegisteredHook, answer: object) -> list[TriggerEvent]:
    if not isinstance(answer, (list, tuple)):
        raise _wrong_type(hook, "a list of TriggerEvent", answer)
    for one in answer:
        if not isinstance(one, TriggerEvent):
            raise _wrong_type(hook, "TriggerEvent", one)
    return _stored_form(hook, answer, list[TriggerEvent])


def read_contributions(hook: RegisteredHook, answer: object) -> list[PromptContribution]:
    if answer is None:
        return []
    found: list[PromptContribution] = []
    for one in answer if isinstance(answer, (list, tuple)) else [answer]:
        if isinstance(one, str):
            found.append(PromptContribution(content=one))
            continue
        if not isinstance(one, PromptContribution) or not isinstance(one.content, str):
            raise _wrong_type(hook, "text or PromptContribution", one)
        if not isinstance(one.slot, PromptSlot) or not isinstance(one.priority, int):
            raise _wrong_type(hook, "a slot and a priority", one)
        found.append(one)
    size = sum(len(_utf8(hook, one.content)) for one in found)
    if size > MAX_BYTES:
        raise _too_large(hook, size)
    return found


def read_chunk(hook: RegisteredHook, answer: object) -> AssistantStreamTransform:
    text = answer.chunk if isinstance(answer, AssistantStreamTransform) else answer
    return AssistantStreamTransform(read_text(hook, text))


def read_text(hook: RegisteredHook, answer: object) -> str:
    if not isinstance(answer, str):
        raise _wrong_type(hook, "text", answer)
    size = len(_utf8(hook, answer))
    if size > MAX_BYTES:
        raise _too_large(hook, size)
    return answer


def read_response(hook: RegisteredHook, answer: object) -> AssistantResponseTransform:
    reply = answer.response if isinstance(answer, AssistantResponseTransform) else answer
    if not isinstance(reply, ReplyEnded):
        raise _wrong_type(hook, "ReplyEnded", answer)
    return AssistantResponseTransform(_stored_form(hook, reply, ReplyEnded, MAX_CALL_BYTES))


def read_catalog(hook: RegisteredHook, answer: object) -> ToolCatalogContribution:
    if not isinstance(answer, ToolCatalogContribution):
        raise _wrong_type(hook, "ToolCatalogContribution", answer)
    try:
        availability = {name: checked_availability(level) for name, level in answer.availability.items()}
        return ToolCatalogContribution(availability, frozenset(answer.hidden))
    except (StandfastError, TypeError, ValueError, AttributeError) as error:
        raise PluginFailed(hook.plugin_id, hook.kind, f"its contribution is invalid: {error}") from None


def read_json(hook: RegisteredHook, answer: object) -> Json:
    try:
        check_bounds(answer)
        clean, size = to_json(msgspec.to_builtins(answer))
    except (StandfastError, TypeError, ValueError, RecursionError) as error:
        raise PluginFailed(hook.plugin_id, hook.kind, f"its answer is not JSON: {error}") from None
    if size > MAX_CALL_BYTES:
        raise _too_large(hook, size, MAX_CALL_BYTES)
    return clean


def _read(hook: RegisteredHook, answer: object, kind: type[T], limit: int = MAX_BYTES) -> T:
    if not isinstance(answer, kind):
        raise _wrong_type(hook, kind.__name__, answer)
    return _stored_form(hook, answer, kind, limit)


def _stored_form(hook: RegisteredHook, answer: object, kind: type[T], limit: int = MAX_BYTES) -> T:
    """Encode and decode a return value, as the journal does, so that a replay sees an equal value."""
    try:
        check_bounds(answer, limit)
        data = msgspec.json.encode(answer)
        value = msgspec.json.decode(data, type=kind)
    except (StandfastError, TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        problem = f"its answer cannot be stored: {error}"
        raise PluginFailed(hook.plugin_id, hook.kind, problem) from None
    if len(data) > limit:
        raise _too_large(hook, len(data), limit)
    return value


def _utf8(hook: RegisteredHook, text: str) -> bytes:
    if len(text) > MAX_BYTES:  # a character takes at least one byte
        raise _too_large(hook, len(text))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise PluginFailed(hook.plugin_id, hook.kind, "its text is not Unicode") from None


def _wrong_type(hook: RegisteredHook, wanted: str, answer: object) -> PluginFailed:
    return PluginFailed(
        hook.plugin_id, hook.kind, f"it answered with a {type(answer).__name__}, not with {wanted}"
    )


def _too_large(hook: RegisteredHook, size: int, limit: int = MAX_BYTES) -> PluginFailed:
    return PluginFailed(hook.plugin_id, hook.kind, f"its answer is {size} bytes, the limit is {limit}")
