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
from collections.abc import Awaitable, Callable
from typing import Final

from standfast.model.session import TurnState
from standfast.runtime.host.turn_ends import turn_rests
from standfast.runtime.sessions.directory import SessionDirectory
from standfast.runtime.sessions.running_turn import TurnWaits

END_S: Final = 10.0
"""So long may a turn take to end once it was told to; after that it is left to end by itself."""


async def close_tree(
    directory: SessionDirectory,
    waits: TurnWaits,
    session_id: str,
    end_beside: Callable[[str], Awaitable[None]],
) -> None:
    """Close a session and all below it; *end_beside* ends the tasks and monitors of one."""
    closed: set[str] = set()
    while new := [one for one in await _tree(directory, session_id) if one not in closed]:
        for one in new:
            await _withdraw_inputs(directory, one)
            if (record := await directory.store.open_turn(one)) is not None:
                await directory.live(one).cancel(record.turn_id)
        for one in reversed(new):
            await _await_end(directory, waits, one)
            await end_beside(one)
            await _withdraw_inputs(directory, one)
            directory.live(one).forget()
        closed.update(new)


async def _tree(directory: SessionDirectory, session_id: str) -> list[str]:
    """The session and all below it, each after the one that made it."""
    found = [session_id]
    for one in found:
        found += [head.session_id for head in await directory.store.children(one)]
    return found


async def _withdraw_inputs(directory: SessionDirectory, session_id: str) -> None:
    """Take back what would start a turn by itself."""
    for item in await directory.store.inputs(session_id):
        if item.kind != "first":
            await directory.store.withdraw_input(item.input_id)


async def _await_end(directory: SessionDirectory, waits: TurnWaits, session_id: str) -> None:
    """Wait for a turn that was told to end, if it is somebody's to end it."""
    record = await directory.store.open_turn(session_id)
    if record is None or waits.waits_for_asker(session_id):
        return
    if record.state is not TurnState.RUNNING and directory.live(session_id).prepared is None:
        return  # whoever knows its agent ends it
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await turn_rests(directory, record, ended=True)
