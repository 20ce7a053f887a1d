"""Exceptions raised by the methods of a protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plugin_bench import Actor
from stand_ins import Place

from standfast import Agent
from standfast.errors import PluginFailed
from standfast.plugins.contexts import SwitchAgentFrame
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import ProtocolSessionPlugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.protocols.standard import StandardDriver


def protocol(where: str, error: BaseException) -> Plugin:
    async def later(self: Any, *given: Any) -> Any:
        raise error

    def plain(self: Any, *given: Any) -> Any:
        raise error

    async def hop(self: Any, ctx: Any, request: Any) -> Any:
        return SwitchAgentFrame("f", "land") if ctx.messages[-1].content == "hop" else None

    body: dict[str, Any] = {"before_llm_call": hop, where: plain if where.startswith("configure") else later}

    class Broken(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.protocol.session(type("Session", (ProtocolSessionPlugin,), body)())
            registrar.protocol.driver(StandardDriver())

    return Broken()


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3)], ids=["raises", "BaseException"])
@pytest.mark.parametrize("where", ["initialize_session", "configure_runtime_on_materialize"])
def test_a_protocol_that_fails_when_the_session_is_opened_is_named(
    where: str, error: BaseException, memory: Place
) -> None:
    """Ours: an error while a session is opened names the plugin."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(PluginFailed, match="'broken'"):
                await runtime.session("s", agent=Agent(Actor(), protocol=protocol(where, error)))

    asyncio.run(main())


@pytest.mark.parametrize("error", [RuntimeError("boom"), SystemExit(3)], ids=["raises", "BaseException"])
def test_a_committed_frame_switch_is_reported_even_if_restore_session_fails(
    error: BaseException, memory: Place
) -> None:
    """Ours: the turn is on disk, so its caller must be informed that it switched the frame."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(Actor(), protocol=protocol("restore_session", error))
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("hop").settled()).status == "frame_switched"

    asyncio.run(main())
