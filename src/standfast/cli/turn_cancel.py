"""Giving up the turn that a session waits with."""

from __future__ import annotations

import asyncio

from standfast.cli.agent_host import AgentHost, known_session, open_sessions, recorded_settings
from standfast.cli.background import sigterm_raises
from standfast.cli.options import Invocation
from standfast.cli.turn_follow import Follower, carry_out
from standfast.errors import InvalidArgument, StandfastError
from standfast.model.turn import TurnRecord


def cancel_turn(invocation: Invocation, session_id: str) -> bool:
    """End the session's unfinished turn; false if that is only recorded, for want of its agent."""
    recorded, record = asyncio.run(_ask_for_end(invocation, session_id))
    try:
        host = AgentHost(invocation.data_dir, recorded_settings(recorded))
    except StandfastError:
        return False

    async def work() -> None:
        await host.session(session_id)
        await host.runtime.live(session_id).turn_of(record.turn_id).settled()

    with sigterm_raises():
        carry_out(Follower(host, session_id, lambda _: None), work(), lambda: None)
    return True


async def _ask_for_end(invocation: Invocation, session_id: str) -> tuple[dict[str, object], TurnRecord]:
    """Make the wish durable: whoever has the turn, or goes on with it, ends it."""
    async with open_sessions(invocation.data_dir) as runtime:
        session = await known_session(runtime, session_id)
        record = await session.unfinished()
        if record is None or not await runtime.store.cancel(record.turn_id):
            raise InvalidArgument(f"session {session_id!r} has no turn that could be cancelled")
        return (await session.head()).host, record
