"""The variables of a session's code, described by its engine: the current ones, or those around one cell.

The journal has the state after each cell except the last, and the state that it replaced; if journals are not
kept, only the newest state. The store has the states before and after a turn.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from standfast.durable.journal import journaled_inputs
from standfast.errors import InternalError, InvalidArgument, SessionNotFound, TurnNotFound
from standfast.machine.commands import RunTool
from standfast.machine.inputs import ToolSettled
from standfast.machine.turn_machine import TurnMachine
from standfast.model.code import RUN_CODE, CellVariables, Variable
from standfast.model.plugin_state import PluginSnapshotEntry
from standfast.model.session import SessionHead
from standfast.plugins.runtime_services import RuntimeServices
from standfast.plugins.stored_states import (
    STATE,
    fetch_blobs,
    journaled_states,
    read_execution,
    read_named_state,
    read_state,
)
from standfast.ports.session_store import JournaledTurn, SessionStore
from standfast.protocols.code.memory import read_memory
from standfast.runtime.sessions.time_travel import find_journal, states_after

_GONE: Final = "gone"
"""A marker for a state that was pruned."""
_OPEN: Final = "open"
"""A marker for the state after a turn that has not ended."""

Execution = PluginSnapshotEntry | Literal["gone", "open"] | None
"""A stored state of code, or the reason why there is none; None for code that has no variables."""


class _TurnStates(NamedTuple):
    before: Execution
    after: Execution


class _CellPlaces(NamedTuple):
    """How many inputs the journal had when a cell began and when it ended, and whether it has ended."""

    begun: int | None
    ended: int | None
    is_first: bool
    is_last: bool


async def stored_variables_view(services: RuntimeServices, head: SessionHead) -> tuple[Variable, ...]:
    """Return the variables at *head*, or those that its unfinished turn has journaled."""
    store = services.store
    entry = (await read_state(store, head)).execution
    turn = await store.open_turn_journal(head.session_id)
    if turn is not None:
        entry = journaled_states(head, turn.journal).execution or entry
    return await _described(services, entry) or ()


async def cell_variables_view(
    services: RuntimeServices, session_id: str, turn_id: str, call_id: int
) -> CellVariables:
    """Return the variables before and after the cell *call_id* of a turn; None where they are not kept."""
    store = services.store
    head = await store.head(session_id)
    if head is None:
        raise SessionNotFound(session_id)
    states = await _turn_states(store, head, turn_id)
    if head.code is not None and call_id == 1:  # the run is its only cell
        after = None if states.after is _OPEN else await _described(services, states.after)
        return CellVariables(before=await _described(services, states.before), after=after)
    turn = await find_journal(store, session_id, turn_id)
    cell = _places(turn, call_id)
    if cell.begun is None:
        raise InvalidArgument(f"turn {turn_id} has no cell {call_id}")
    before = states.before
    if not cell.is_first:
        before = _execution(head, turn, cell.begun) or before
    if cell.ended is None:
        return CellVariables(before=await _described(services, before), after=None)
    left = _execution(head, turn, cell.ended) or before
    if cell.is_last and states.after is not _OPEN:
        left = states.after
    return CellVariables(before=await _described(services, before), after=await _described(services, left))


async def _turn_states(store: SessionStore, head: SessionHead, turn_id: str) -> _TurnStates:
    """Return the states of a session's code before and after a turn."""
    record = await store.turn(turn_id)
    if record is None or record.session_id != head.session_id:
        raise TurnNotFound(turn_id)
    if record.ended_at is None:
        return _TurnStates((await read_state(store, head)).execution, _OPEN)
    around = await store.turn_states(turn_id)
    if around is None:
        return _TurnStates(_GONE, _GONE)
    found = [await read_named_state(store, head.session_id, name) for name in (around.before, around.after)]
    return _TurnStates(*(_GONE if one is None else one.execution for one in found))


def _places(turn: JournaledTurn, call_id: int) -> _CellPlaces:
    """Return the positions in the journal at which a cell began and ended."""
    machine = TurnMachine()
    begun = ended = first = last = None
    for place, given in enumerate(journaled_inputs(turn.record.turn_id, turn.input, turn.journal)):
        if isinstance(given, ToolSettled) and given.call_id == call_id:
            ended = place
        for command in machine.feed(given):
            if isinstance(command, RunTool) and command.call.name == RUN_CODE and not command.call.parent:
                last = command.call.call_id
                first = first or last
                if last == call_id and begun is None:
                    begun = place
    return _CellPlaces(begun, ended, first == call_id, last == call_id)


def _execution(head: SessionHead, turn: JournaledTurn, count: int) -> Execution:
    """Return the state of code after *count* inputs of a turn; None if the turn had not changed it."""
    known = [one for one in turn.journal if one.kind == "input" or one.key.partition("@")[0] == "execution"]
    try:
        return journaled_states(head, states_after(known, count)).execution
    except InternalError:  # a later state has replaced it
        return _GONE


async def _described(services: RuntimeServices, entry: Execution) -> tuple[Variable, ...] | None:
    """Return the variables of a stored state of code; None if the state is not kept."""
    if entry is None:
        return ()
    if not isinstance(entry, PluginSnapshotEntry):
        return None
    from standfast.sandbox.inspection import inspect_state  # needed only by sessions with code

    memory = read_memory(read_execution(entry, await fetch_blobs(services.store, [entry], only=STATE)))
    return await services.threads.run(
        lambda: inspect_state(services.engines.named(memory.engine), memory.state)
    )
