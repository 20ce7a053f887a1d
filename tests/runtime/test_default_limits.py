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
    Runtime,
    Sandbox,
    SessionLimits,
    SessionMeta,
    UsageLimits,
    tool,
)
from standfast.errors import InvalidArgument
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


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -1, "60", True])
def test_a_setting_that_is_no_duration_is_refused(seconds: Any) -> None:
    """Bug: infinity raised `OverflowError`; a negative lease ended before the turn began."""
    for name in ("lease_s", "approval_ttl_s", "busy_timeout_s", "keep_journals"):
        given: dict[str, Any] = {name: seconds}
        with pytest.raises(InvalidArgument, match=f"{name} must be a number of seconds"):
            Runtime(**given)
    with pytest.raises(InvalidArgument, match="lease_s"):
        Runtime(lease_s=0)
