"""The journal of a turn, step by step, and forks that continue from the middle of it.

Theory of operation
-------------------
A machine that is fed the inputs of a turn again makes the same decisions. So the steps of a turn can be
derived from its journal, and a fork in the middle of a turn is a new session over the history before the
turn, with an unfinished turn whose journal is the beginning of the old one. The process that resumes it
replays that beginning and continues, as after a crash.

Rules
-----
1. The fork's turn is another turn: its id is new, and so are the idempotency keys and tokens of its calls.
2. A call that had no result at that input is executed by the fork, and requests approval again if it did
   before: decisions, timers and completions belong to the turn that waited for them.
3. The usage of the replayed model calls was charged to the original turn, and is not counted again.
4. Variables and plugins have the state that they had after that input.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from standfast.durable.journal import journaled_inputs, key_of, replay
from standfast.errors import (
    Code,
    ErrorObject,
    InternalError,
    InvalidArgument,
    JournalNotKept,
    NodeNotFound,
    SessionNotFound,
    TurnNotFound,
)
from standfast.machine import commands, inputs
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import Json, digest_json, to_json
from standfast.model.capability import CallStatus
from standfast.model.code import RUN_CODE
from standfast.model.journal import JournalEdit, JournalStep
from standfast.model.limits import Usage
from standfast.model.message import RequestedCall
from standfast.model.session import SessionHead, SessionId, node_id
from standfast.ports.session_store import (
    JournaledTurn,
    JournalEntry,
    NewSession,
    NewTurn,
    SessionStore,
)
from standfast.runtime.sessions import materialize
from standfast.runtime.turn import new_turn_id

_replace = msgspec.structs.replace


async def find_journal(store: SessionStore, session_id: str, turn_id: str) -> JournaledTurn:
    """Return a turn of a session with its journal. Errors: `TurnNotFound`, `JournalNotKept`."""
    found = await store.turn_journal(turn_id)
    if found is not None and found.record.session_id == session_id:
        return found
    record = await store.turn(turn_id)
    if record is None or record.session_id != session_id:
        raise TurnNotFound(turn_id)
    raise JournalNotKept(turn_id)


def journal_steps(turn: JournaledTurn) -> list[JournalStep]:
    """Return the steps of a turn, in the order of its machine's inputs."""
    machine, steps = TurnMachine(), list[JournalStep]()
    for number, given in enumerate(_inputs(turn), start=1):
        said = len(machine.messages)
        following = machine.feed(given)
        fields: dict[str, Any] = msgspec.to_builtins(given)
        fields.pop("nonce", None)  # the tokens of calls are derived from it
        steps.append(
            JournalStep(
                number=number,
                at_ms=given.at_ms,
                input=fields,
                commands=tuple(_facts(command) for command in following),
                phase=machine.phase.value,
                messages=tuple(machine.messages[said:]),
                running=tuple(machine.calls.under_way()),
                waits=machine.calls.waits(),
                model_calls=machine.account.model_calls,
                usage=machine.account.usage,
            )
        )
    return steps


def _inputs(turn: JournaledTurn) -> list[inputs.Input]:
    return list(journaled_inputs(turn.record.turn_id, turn.input, turn.journal))


def _facts(command: commands.Command) -> dict[str, Json]:
    """Return a command as JSON, without the data that earlier steps already contain."""
    facts: dict[str, Json] = {"command": _NAMES[type(command)]}
    match command:
        case commands.RunTool(call=call, attempt=attempt):
            return facts | {"call_id": call.call_id, "name": call.name, "attempt": attempt}
        case commands.ContinueCell(call=call, count=count):
            return facts | {"call_id": call.call_id, "answers": count}
        case commands.CallModel(number=number, attempt=attempt, delay_ms=delay_ms):
            return facts | {"number": number, "attempt": attempt, "delay_ms": delay_ms}
        case commands.RunHooks(stage=stage, number=number):
            return facts | {"stage": stage, "number": number}
        case commands.PrepareCall(number=number):
            return facts | {"number": number}
        case commands.Checkpoint(kind=kind, number=number):
            return facts | {"kind": kind, "number": number}
        case commands.Park(outcome=outcome):
            return facts | {"waits": [wait.kind for wait in outcome.waits]}
        case commands.Commit(outcome=outcome):
            return facts | {"outcome": str(type(outcome).__struct_config__.tag)}
        case commands.StopEffects():
            return facts


_NAMES: Final[dict[type[commands.Command], str]] = {
    commands.RunTool: "run_tool",
    commands.ContinueCell: "continue_cell",
    commands.CallModel: "call_model",
    commands.RunHooks: "run_hooks",
    commands.PrepareCall: "prepare_call",
    commands.Checkpoint: "checkpoint",
    commands.Park: "park",
    commands.Commit: "commit",
    commands.StopEffects: "stop_effects",
}


# Forks


async def fork_in_turn(
    store: SessionStore,
    session_id: str,
    new_id: str,
    turn_id: str,
    number: int,
    edit: JournalEdit | None,
    now_ms: int,
) -> SessionHead:
    """Create a session that continues after input *number* of a turn, changed by *edit*; return its head.

    Its turn is unfinished: a process that knows the agent resumes it. Errors: those of `find_journal`,
    `SessionExists`, and `InvalidArgument` if the input does not exist or cannot be edited in this way.
    """
    head = await store.head(session_id)
    if head is None:
        raise SessionNotFound(session_id)
    if head.code is not None:
        raise InvalidArgument(
            f"session {session_id!r} runs code and has no model",
            hint="leave `input` out, and fork after a run",
        )
    turn = await find_journal(store, session_id, turn_id)
    base = head.leaf
    if turn.record.ended_at is not None:
        path = await store.path(node_id(turn_id, 0))
        if not path:
            raise NodeNotFound(node_id(turn_id, 0))
        base = path[-1].parent
    made_id = new_turn_id()
    first, journal = _beginning(turn, number, edit, made_id)
    new = SessionHead(
        session_id=SessionId(new_id),
        created_at=now_ms,
        updated_at=now_ms,
        model=head.model,
        host=head.host,
        metadata=head.metadata,
        agent=turn.record.agent or head.agent,
        forked_from=session_id,
        charter=materialize.charter_of_fork(head.charter),
    )
    started = NewTurn(
        session_id=new_id,
        turn_id=made_id,
        agent=turn.record.agent,
        make_input=lambda head, claimed: first,
        input_digest="",
    )
    over = None if base is None else session_id
    return await store.make_session(
        NewSession(head=new, fork_of=over, at=base, turn=started, journal=journal)
    )


def _beginning(
    turn: JournaledTurn, number: int, edit: JournalEdit | None, turn_id: str
) -> tuple[bytes, tuple[JournalEntry, ...]]:
    """Return the first input and journal of a new turn that continues after input *number* of this one."""
    given = _inputs(turn)
    if not 1 <= number <= len(given):
        raise InvalidArgument(
            f"turn {turn.record.turn_id} has inputs 1 to {len(given)}, got {number}",
            hint="Session.journal() lists them",
        )
    fed = [  # the fork does not pay for the calls of the original turn
        _replace(one, usage=Usage()) if isinstance(one, inputs.ModelReplied) else one
        for one in given[:number]
    ]
    if edit is not None:
        fed[-1] = _edited(fed[-1], edit, _cells(fed))
    settled = {one.call_id for one in fed if isinstance(one, inputs.ToolSettled)}
    opened = [one.wait for one in fed if isinstance(one, inputs.WaitOpened)]
    dropped = {wait.wait_id for wait in opened if wait.call_id not in settled}
    started, *others = (one for one in fed if _wait_of(one) not in dropped)
    assert isinstance(started, inputs.TurnStarted)
    first = inputs.encode_input(_replace(started, turn_id=turn_id, nonce=secrets.token_hex(12)))
    machine, journal = TurnMachine(), list[JournalEntry]()
    machine.feed(started)
    try:
        for place, one in enumerate(others):
            key = key_of(one, machine, place)
            journal.append(JournalEntry(key=key, kind="input", body=inputs.encode_input(one)))
            machine.feed(one)
        journal += states_after(turn.journal, number - 1)
        replay(turn_id, first, tuple(journal))
    except InternalError as error:
        raise InvalidArgument(
            f"turn {turn.record.turn_id} cannot be continued from input {number}: {error.message}",
            hint="choose the input before or after it",
        ) from None
    return first, tuple(journal)


def _wait_of(given: inputs.Input) -> str | None:
    """Return the id of the wait that an input opens or ends, if any."""
    match given:
        case inputs.WaitOpened(wait=wait):
            return wait.wait_id
        case inputs.WaitEnded(wait_id=wait_id):
            return wait_id
        case _:
            return None


def _cells(fed: Sequence[inputs.Input]) -> set[int]:
    """Return the ids of the calls that are cells."""
    machine, found = TurnMachine(), set[int]()
    for one in fed[:-1]:
        for command in machine.feed(one):
            if isinstance(command, commands.RunTool) and command.call.name == RUN_CODE:
                found.add(command.call.call_id)
    return found


def _edited(given: inputs.Input, edit: JournalEdit, cells: set[int]) -> inputs.Input:
    """Return a result or a reply, changed by *edit*."""
    if isinstance(given, inputs.ModelReplied) and (edit.text is not None or edit.calls):
        calls = tuple(
            RequestedCall(name=one.name, arguments=msgspec.json.encode(one.arguments).decode())
            for one in edit.calls
        )
        text = edit.text or ""
        return _replace(given, text=text, raw=None, calls=calls, reasoning=(), response_id="", events=())
    if isinstance(given, inputs.ToolSettled) and edit.text is None and not edit.calls:
        if given.call_id in cells:
            raise InvalidArgument(
                f"call {given.call_id} is a cell, whose result follows from its code",
                hint="edit the reply with the code, or the result of a call that the code makes",
            )
        value, _ = to_json(edit.value)
        error = None if edit.error is None else ErrorObject(code=Code.TOOL_ERROR, message=edit.error)
        record = given.record
        if record is not None:
            status = CallStatus.OK if error is None else CallStatus.ERROR
            record = _replace(record, status=status, response_digest=digest_json(value), error=error)
        return inputs.ToolSettled(
            at_ms=given.at_ms, call_id=given.call_id, value=value, error=error, record=record
        )
    raise InvalidArgument(
        f"a {type(given).__struct_config__.tag} cannot be edited in this way",
        hint="edit `value` or `error` of a tool_settled, or `text` and `calls` of a model_replied",
    )


def states_after(journal: Sequence[JournalEntry], count: int) -> list[JournalEntry]:
    """Return the states that were current after the first *count* inputs of a journal."""
    states: dict[str, JournalEntry] = {}
    seen = 0
    later: dict[str, JournalEntry] = {}
    for entry in journal:
        seen += entry.kind == "input"
        key = entry.key.rpartition("@")[0] if entry.kind == "past" else entry.key
        if entry.kind in ("past", "state") and seen > count:
            later.setdefault(key, entry)  # a `past` is the state before it; a `state` alone does not tell
        elif entry.kind == "state":
            states[key] = entry
    for key, entry in later.items():
        if entry.kind != "past":
            raise InternalError(f"its state of {key} was not kept")
        states.pop(key, None)
        if entry.body:
            states[key] = JournalEntry(key=key, kind="state", body=entry.body)
    return list(states.values())
