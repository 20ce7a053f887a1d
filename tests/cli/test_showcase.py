"""The sessions that `standfast serve` without APP creates while a person watches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from standfast import Runtime
from standfast.cli.showcase import play, showcase_agents
from standfast.model.session import TurnState

pytestmark = pytest.mark.slow


def test_the_demo_shows_waits_a_loop_subagents_and_a_turn_that_survived_sigkill(tmp_path: Path) -> None:
    """Ours: the workbench opens on these sessions; a scripted model creates them."""

    async def main() -> None:
        store = str(tmp_path / "standfast.db")
        async with Runtime(store, agents=list(showcase_agents())) as runtime, asyncio.timeout(120):
            await play(runtime, store)
            for session_id in ("demo-refund", "demo-program"):
                record = await runtime.store.open_turn(session_id)
                assert record is not None
                assert record.state is TurnState.WAITING
            asked = {one.session_id for one in await runtime.approvals(pending=True)}
            assert asked == {"demo-refund", "demo-program"}
            assert len(await runtime.store.children("demo-team")) == 2
            async for _ in runtime.session_handle("demo-survivor").observe():
                if await runtime.store.open_turn("demo-survivor") is None:
                    break
            (turn,) = await runtime.session_handle("demo-survivor").turns()
            spans = await runtime.session_handle("demo-survivor").spans(turn.turn_id)
            assert {"turn_interrupted", "turn_taken_up"} <= {one.name for one in spans}
            await play(runtime, store)  # existing sessions are not created again
            assert len(await runtime.session_handle("demo-survivor").turns()) == 1

    asyncio.run(main())
