"""The variables of a session's code, described by its engine: as they are now, or around one cell.

The journal has the state after each cell, and what it replaced. The state before the first cell of a turn is
the last one that an earlier turn journaled.
"""

from __future__ import annotations

from typing import Final

from standfast.durable.journal import journaled_inputs
from standfast.errors import InvalidArgument, SessionNotFound
from standfast.machine.commands import RunTool
from standfast.machine.inputs import ToolSettled
from standfast.machine.turn_machine import TurnMachine
from standfast.model.code import CellVariables, Variable
from standfast.model.plugin_state import PluginSnapshotEntry
from standfast.model.session import SessionHead, node_id
from standfast.plugins.plugin_states import STATE, read_execution
from standfast.plugins.runtime_services import RuntimeServices
from standfast.ports.session_store import JournaledTurn, SessionStore
from standfast.protocols.code.memory import read_memory
from standfast.runtime.sessions.stored_states import fetch_blobs, journaled_states, read_state
from standfast.runtime.sessions.time_travel import states_after

MAX_TURNS: Final = 50
"""How many earlier turns are searched for the state before a turn."""


async def stored_variables_view(services: RuntimeServices, head: SessionHead) -> tuple[Variable, ...]:
    """Return the variables at *head*, or those that its unfinished turn has journaled."""
    store = services.store
    entry = (await read_state(store, head)).execution
    turn = await store.open_turn_journal(head.session_id)
    if turn is not None:
        entry = journaled_states(head, turn.journal).execution or entry
    return await _described(services, entry)


async def cell_variables_view(services: RuntimeServices, turn: JournaledTurn, call_id: int) -> CellVariables:
    """Return the variables before and after the cell *call_id* of a turn; None where they are not kept."""
    begun, ended = _places(turn, call_id)
    if begun is None:
        raise InvalidArgument(f"turn {turn.record.turn_id} has no cell {call_id}")
    head = await services.store.head(turn.record.session_id)
    if head is None:
        raise SessionNotFound(turn.record.session_id)
    before = _execution(head, turn, begun)
    kept = True
    if before is None:
        before, kept = await _earlier(services.store, head, turn)
    after = None if ended is None else _execution(head, turn, ended) or before
    return CellVariables(
        before=await _described(services, before) if kept else None,
        after=None if ended is None else await _described(services, after),
    )


def _places(turn: JournaledTurn, call_id: int) -> tuple[int | None, int | None]:
    """Return how many inputs the journal had when a cell began, and when it had ended."""
    machine = TurnMachine()
    begun = ended = None
    for place, given in enumerate(journaled_inputs(turn.record.turn_id, turn.input, turn.journal)):
        if isinstance(given, ToolSettled) and given.call_id == call_id:
            ended = place
        for command in machine.feed(given):
            if isinstance(command, RunTool) and command.call.call_id == call_id and begun is None:
                begun = place
    return begun, ended


def _execution(head: SessionHead, turn: JournaledTurn, count: int) -> PluginSnapshotEntry | None:
    return journaled_states(head, states_after(turn.journal, count)).execution


async def _earlier(
    store: SessionStore, head: SessionHead, turn: JournaledTurn
) -> tuple[PluginSnapshotEntry | None, bool]:
    """Return the state that earlier turns left, and whether it is known."""
    leaf = head.leaf
    if turn.record.ended_at is not None:
        path = await store.path(node_id(turn.record.turn_id, 0))
        leaf = path[-1].parent if path else None
    if leaf is None:
        return None, True
    for segment in reversed((await store.path(leaf))[-MAX_TURNS:]):
        journal = await store.turn_journal(segment.segment_id)
        if journal is None:
            if await store.turn(segment.segment_id) is None:
                continue  # nodes that were appended outside of turns
            return None, False
        found = journaled_states(head, journal.journal).execution
        if found is not None:
            return found, True
        if segment.parent is None:
            return None, True
    return None, False


async def _described(services: RuntimeServices, entry: PluginSnapshotEntry | None) -> tuple[Variable, ...]:
    if entry is None:
        return ()
    from standfast.sandbox.inspection import inspect_state  # only sessions with code need it

    memory = read_memory(read_execution(entry, await fetch_blobs(services.store, [entry], only=STATE)))
    return await services.threads.run(
        lambda: inspect_state(services.engines.named(memory.engine), memory.state)
    )
