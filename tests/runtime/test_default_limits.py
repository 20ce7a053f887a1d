"""`limits=None` means the defaults, wherever limits are accepted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stand_ins import Place, agent_of

from standfast import (
    BlockingSandbox,
    Capability,
    CapabilityLimits,
    CodeMode,
    CodeProtocol,
    Sandbox,
    SessionLimits,
    SessionMeta,
    UsageLimits,
    tool,
)
from standfast.model.session import SessionPolicy
from standfast.protocols.code.executor import CELL_LIMITS
from standfast.runtime.sandbox import SandboxOptions

NONE: Any = None


def test_a_sandbox_without_limits_has_the_default_limits() -> None:
    """Bug: `Sandbox(limits=None)` raised "'NoneType' object is not a mapping"."""
    assert SandboxOptions(limits=NONE).limits == SessionLimits()
    assert Sandbox(limits=None).options.limits == SessionLimits()
    assert BlockingSandbox(limits=None).options.limits == SessionLimits()
    with BlockingSandbox(limits=None) as box:
        assert box.create("own", limits=None).meta.limits == SessionLimits()
        assert box.run("1 + 1", session="own", limits=None).result == 2


@pytest.mark.parametrize("kind", [CodeProtocol, CodeMode])
def test_cells_without_limits_have_the_default_limits(kind: type[CodeProtocol | CodeMode]) -> None:
    """Bug: `CodeProtocol(limits=None)` was refused, `CodeMode(limits=None)` failed in the first turn."""
    assert kind(limits=None).options().limits == CELL_LIMITS
    assert kind().options().limits == CELL_LIMITS


def test_contracts_and_policies_without_limits_have_the_default_limits() -> None:
    """Bug: the None was stored, and failed where the limit was used."""
    assert Capability(name="x", description="", limits=NONE).limits == CapabilityLimits()
    assert SessionPolicy(limits=NONE).limits == UsageLimits()
    assert SessionMeta(limits=NONE).limits == SessionLimits()

    @tool(limits=None)
    def look() -> str:
        return "seen"

    assert agent_of("x", tools=[look], limits=None).limits == UsageLimits()


def test_a_turn_or_session_without_limits_has_its_agents_limits(memory: Place) -> None:
    """Ours: None means that no other limits are given, not that there is no limit."""
    own = UsageLimits(max_iterations=7)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("a", limits=own))
            await session.turn("hi", limits=None)
            await session.plugins.configure(limits=UsageLimits(max_iterations=3))
            assert (await session.plugins.configure(limits=None)).limits == own

    asyncio.run(main())
