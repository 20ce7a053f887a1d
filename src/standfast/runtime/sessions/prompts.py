"""The exact prompts of a turn's model calls, rebuilt from the journal, the history and prompt records.

Theory of operation
-------------------
The journal is fed to a fresh machine up to each model call. The messages of the call are those before the
turn and those of the machine, after plugins have prepared them and the protocol has converted them. The
outcome of the call names the `PromptRecord` with everything else.

Rule: a call whose record is missing is left out, because an incomplete prompt is not what the model received.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from standfast.durable.journal import journaled_inputs
from standfast.errors import NodeNotFound, RecordCorrupt
from standfast.graph.history import messages_of
from standfast.machine import inputs
from standfast.machine.commands import CallModel
from standfast.machine.turn_machine import TurnMachine
from standfast.model.code import Language
from standfast.model.message import Message
from standfast.model.prompt_record import ModelPrompt, PromptPart, PromptRecord, Reading, named_parts
from standfast.model.session import SessionHead, node_id
from standfast.plugins.turn_hooks import apply_view
from standfast.ports.session_store import JournaledTurn, SessionStore
from standfast.protocols.code.executor import WrittenMessages
from standfast.protocols.standard.model_call import with_inputs_named, with_shown_attachments

_SEPARATOR: Final = 2
"""The number of characters between two parts of a prompt."""


async def model_prompts(store: SessionStore, head: SessionHead, turn: JournaledTurn) -> list[ModelPrompt]:
    """Return the calls of a turn that have an outcome and a record, in order."""
    leaf = head.leaf
    if turn.record.ended_at is not None:
        path = await store.path(node_id(turn.record.turn_id, 0))
        if not path:
            raise NodeNotFound(node_id(turn.record.turn_id, 0))
        leaf = path[-1].parent
    earlier = [] if leaf is None else messages_of(await store.frame(leaf))
    machine, found = TurnMachine(), list[ModelPrompt]()
    records: dict[str, PromptRecord | None] = {}
    by: tuple[tuple[str, int], ...] = ()
    asked = CallModel(number=0)
    for given in journaled_inputs(turn.record.turn_id, turn.input, turn.journal):
        if isinstance(given, (inputs.ModelReplied, inputs.ModelFailed)) and given.request:
            if given.request not in records:
                records[given.request] = await _record(store, given.request)
            record = records[given.request]
            if record is not None:
                found.append(_prompt(given, asked, record, machine, _Before(earlier, by)))
        elif isinstance(given, inputs.CallPrepared) and given.prompt is not None:
            by = given.prompt_by
        asked = next((one for one in machine.feed(given) if isinstance(one, CallModel)), asked)
    return found


async def _record(store: SessionStore, digest: str) -> PromptRecord | None:
    data = await store.blob(digest)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=PromptRecord)
    except msgspec.DecodeError as error:
        raise RecordCorrupt(f"prompt record {digest} ({error})") from None


class _Before(NamedTuple):
    """The messages before the turn, and the authors of the parts of a prompt that plugins have added to."""

    messages: list[Message]
    prompt_by: tuple[tuple[str, int], ...]


def _prompt(
    outcome: inputs.ModelReplied | inputs.ModelFailed,
    asked: CallModel,
    record: PromptRecord,
    machine: TurnMachine,
    earlier: _Before,
) -> ModelPrompt:
    before = earlier.messages if machine.compaction is None else list(machine.compaction.seed)
    messages = before + machine.messages
    if machine.prepared is not None and machine.prepared.view is not None:
        messages = apply_view(messages, machine.prepared.view)
    own = machine.prompt_layer
    parts = named_parts(record.layers if own is None else (*record.layers, ("turn", own)), record.protocol)
    instructions = "\n\n".join(part.content for part in parts)
    if machine.prompt is not None:
        instructions = machine.prompt
        parts = _cut(instructions, earlier.prompt_by)
    replied = outcome if isinstance(outcome, inputs.ModelReplied) else inputs.ModelReplied(at_ms=0)
    return ModelPrompt(
        number=asked.number,
        attempt=asked.attempt,
        at_ms=outcome.at_ms,
        instructions=instructions,
        parts=tuple(parts),
        messages=tuple(as_read(messages, record.reading)),
        tools=record.tools,
        output_schema=record.output_schema,
        settings=record.settings,
        model=replied.model,
        usage=replied.usage,
        error=outcome.error if isinstance(outcome, inputs.ModelFailed) else None,
    )


def _cut(prompt: str, by: tuple[tuple[str, int], ...]) -> list[PromptPart]:
    """Return the parts of a prompt that plugins have added to."""
    parts, at = list[PromptPart](), 0
    for name, length in by:
        parts.append(PromptPart(by=name, content=prompt[at : at + length]))
        at += length + _SEPARATOR
    if at - _SEPARATOR != len(prompt):
        return [PromptPart(by="plugins", content=prompt)] if prompt else []
    return parts


def as_read(messages: list[Message], reading: Reading) -> list[Message]:
    """Return messages in the form in which the model reads them."""
    shown = with_shown_attachments(messages)
    match reading:
        case "":
            return shown
        case "inputs_named":
            return [with_inputs_named(message) for message in shown]
        case language:
            return WrittenMessages(Language(language)).of(shown)
