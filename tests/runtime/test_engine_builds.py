"""Suspended code resumes only on the engine build that suspended it."""

from __future__ import annotations

import asyncio

import pytest
from stand_ins import Place

from standfast import Agent, tool
from standfast.errors import EngineMismatch
from standfast.model.session import TurnState
from standfast.providers.scripted import ScriptedModel
from standfast.sandbox import engine_kinds


@tool(side_effect="external_system", approval="manual")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def _agent() -> Agent[None, str]:
    return Agent(
        ScriptedModel(["```python\nfinish(refund('A1'))\n```"]), name="clerk", tools=[refund], protocol="code"
    )


def test_a_turn_with_suspended_code_is_left_to_a_process_with_the_same_engine_build(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a worker does not claim a turn that it cannot load, so a rolling upgrade loses no turn."""
    asyncio.run(_upgrade(place, monkeypatch))


async def _upgrade(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = _agent()
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=agent)
        assert (await session.turn("Refund A1.")).waits
        record = await session.unfinished()
        assert record is not None
        assert record.summary is not None
        assert record.summary.engine == f"monty {engine_kinds.monty_version()}"
    newer = engine_kinds.EngineKind(
        language=engine_kinds.MONTY.language, version=lambda: "next", open=engine_kinds.MONTY.open
    )
    with monkeypatch.context() as upgraded:
        upgraded.setitem(engine_kinds.KINDS, "monty", newer)
        async with place.runtime(agents=[agent]) as runtime:
            session = await runtime.session("s", agent=agent)
            (asked,) = await session.approvals(pending=True)
            with pytest.raises(EngineMismatch, match="this process has monty next"):
                await session.approve(asked.approval_id)
            await runtime.approve(asked.approval_id)
            with pytest.raises(EngineMismatch):
                await (await session.resume() or pytest.fail("there is no turn"))
            assert await session.blocked() is not None
            left = await session.unfinished()
            assert left is not None
            assert left.state is TurnState.WAITING
    async with place.runtime() as runtime:
        session = await runtime.session("s", agent=agent)
        turn = await session.resume()
        assert turn is not None
        assert (await turn).output == "refunded A1"
