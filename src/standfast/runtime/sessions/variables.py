"""The variables of a session's code, described by its engine."""

from __future__ import annotations

from standfast.model.code import Variable
from standfast.model.session import SessionHead
from standfast.plugins.plugin_states import STATE, read_execution
from standfast.plugins.runtime_services import RuntimeServices
from standfast.protocols.code.executor import read_memory
from standfast.runtime.sessions.materialize import fetch_blobs, journaled_states, read_state


async def stored_variables_view(services: RuntimeServices, head: SessionHead) -> tuple[Variable, ...]:
    """Return the variables at *head*, or those that its unfinished turn has journaled."""
    store = services.store
    entry = (await read_state(store, head)).execution
    turn = await store.open_turn_journal(head.session_id)
    if turn is not None:
        entry = journaled_states(head, turn.journal).execution or entry
    if entry is None:
        return ()
    memory = read_memory(read_execution(entry, await fetch_blobs(store, [entry], only=STATE)))
    from standfast.sandbox.inspection import inspect_state  # only sessions with code need it

    return await services.threads.run(
        lambda: inspect_state(services.engines.named(memory.engine), memory.state)
    )
