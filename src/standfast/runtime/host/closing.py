"""Ends what runs in a session and in everything that it made.

Theory of operation
-------------------
First, from the top, what waits to become a turn is withdrawn and every turn is asked to end, so that nobody
makes anything new. Then, from the deepest session up, each turn's end is waited for, and the session's tasks
and monitors are ended. What was made in between is found by looking again.

Rule: a turn that cannot end before the one that asks goes on is not waited for: it ends after that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from standfast.model.turn import TurnState
from standfast.runtime.host.turn_ends import turn_rests

if TYPE_CHECKING:
    from standfast.runtime.agent_runtime import Runtime

END_S: Final = 10.0
"""So long may a turn take to end once it was told to; after that it is left to end by itself."""


async def close_tree(runtime: Runtime, session_id: str) -> None:
    """Close a session and all below it."""
    closed: set[str] = set()
    while new := [one for one in await _tree(runtime, session_id) if one not in closed]:
        for one in new:
            await _cancel_turn(runtime, one)
        for one in reversed(new):
            await _close(runtime, one)
        closed.update(new)


async def _tree(runtime: Runtime, session_id: str) -> list[str]:
    """The session and all below it, each after the one that made it."""
    found = [session_id]
    for one in found:
        found += [head.session_id for head in await runtime.store.children(one)]
    return found


async def _cancel_turn(runtime: Runtime, session_id: str) -> None:
    await _withdraw_inputs(runtime, session_id)
    record = await runtime.store.open_turn(session_id)
    if record is not None:
        await runtime.cancel(record.turn_id)


async def _close(runtime: Runtime, session_id: str) -> None:
    await _await_end(runtime, session_id)
    await runtime.tasks.end_session(session_id)
    await runtime.monitors.forget(session_id)
    await _withdraw_inputs(runtime, session_id)
    runtime.live(session_id).forget()


async def _withdraw_inputs(runtime: Runtime, session_id: str) -> None:
    """Take back what would start a turn by itself."""
    for item in await runtime.store.inputs(session_id):
        if item.kind != "first":
            await runtime.store.withdraw_input(item.input_id)


async def _await_end(runtime: Runtime, session_id: str) -> None:
    """Wait for a turn that was told to end, if it is somebody's to end it."""
    record = await runtime.store.open_turn(session_id)
    if record is None or runtime.waits.waits_for_asker(session_id):
        return
    if record.state is not TurnState.RUNNING and runtime.live(session_id).staff is None:
        return  # whoever knows its agent ends it
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await turn_rests(runtime, record, ended=True)
