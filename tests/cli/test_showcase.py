"""The sessions that `standfast serve` without APP creates while a person watches."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from standfast import Runtime
from standfast.cli import showcase
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


def test_ctrl_c_does_not_reach_the_process_that_the_demo_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: Ctrl-C while that process was importing printed its traceback at the server's terminal."""
    program, found = tmp_path / "program", tmp_path / "session"
    program.write_text(
        f"#!{sys.executable} -IS\nimport os, time\n"
        f"open({str(found)!r}, 'w').write(str(os.getsid(0)))\n"
        "print('resting', flush=True)\ntime.sleep(60)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    asyncio.run(showcase._kill_in_the_middle("unused"))
    assert int(found.read_text()) != os.getsid(0)
