"""The journal of a turn in readable form, step by step, and an edit of one step for a fork."""

from __future__ import annotations

import msgspec

from standfast.model.canonical import Json
from standfast.model.limits import Usage
from standfast.model.message import Message
from standfast.model.outcome import Wait


class JournalStep(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a turn, and the machine's state and decisions after it.

    `number` counts from 1, the turn's own input. `input` has its kind under `type`; `commands` are the
    machine's decisions, each with its kind under `command`. `messages` are those that this input added to the
    conversation. `running` are the calls in progress after it, by id, and `waits` are the turn's waits.
    """

    number: int
    at_ms: int
    input: dict[str, Json]
    commands: tuple[dict[str, Json], ...]
    phase: str
    messages: tuple[Message, ...] = ()
    running: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()
    model_calls: int = 0
    usage: Usage = Usage()


class EditedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the edited reply requests. A cell is a call of `run_code` with its `code`."""

    name: str
    arguments: dict[str, Json] = msgspec.field(default_factory=dict)


class JournalEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new outcome of an input: `value` or `error` of a call's result, `text` and `calls` of a reply."""

    value: Json = None
    error: str | None = None
    text: str | None = None
    calls: tuple[EditedCall, ...] = ()
