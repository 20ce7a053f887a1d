"""Regressions between plugins and the runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Plugin, Runtime, hook, tool
from standfast.errors import PluginFailed
from standfast.model.canonical import Json
from standfast.plugins import (
    PluginActionContext,
    PluginRegistrar,
    ProtocolSessionPlugin,
    ShortCircuitTool,
    ToolCallHookContext,
    ToolCatalogContext,
    ToolResultHookContext,
    action,
    ask_person,
)
from standfast.plugins.contexts import ToolResultProjectionContext
from standfast.protocols.standard import StandardDriver
from standfast.providers.scripted import ScriptedModel

PAY = {"tool_calls": [{"name": "pay", "arguments": {"cents": 5}}]}


@tool
async def pay(cents: int) -> str:
    """Pay a supplier."""
    return f"{cents} paid"


def _agent(*replies: Any, **settings: Any) -> Agent[Any, str]:
    return Agent(ScriptedModel(replies, strict=False), **settings)


class Auditing(Plugin):
    @hook
    async def before_tool_call(self, ctx: ToolCallHookContext) -> ShortCircuitTool:
        return ask_person("it is money")

    @hook
    async def after_tool_call(self, ctx: ToolResultHookContext) -> None:
        self.state = ctx.arguments

    @action
    async def last(self, ctx: PluginActionContext) -> Json:
        return self.state


def test_after_hooks_see_the_arguments_that_a_person_edited() -> None:
    """Bug: plugins received the arguments that the model had requested."""

    async def main() -> Json:
        async with Runtime() as runtime:
            clerk = _agent(PAY, "Done.", tools=[pay], plugins=[Auditing()])
            session = await runtime.session("s", agent=clerk)
            waiting = await session.turn("Pay")
            await session.approve(waiting.waits[0].wait_id, arguments={"cents": 3})
            return await session.plugins.invoke("auditing.last")

    assert asyncio.run(main()) == {"cents": 3}


class BrokenCatalog(Plugin):
    @hook
    def tool_catalog(self, ctx: ToolCatalogContext) -> None:
        raise ValueError("no")


def test_a_catalog_that_cannot_be_built_leaves_no_turn_behind() -> None:
    """Bug: the turn stayed unfinished, and was resumed and failed again every second."""

    async def main() -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=_agent("Hi.", plugins=[BrokenCatalog()]))
            with pytest.raises(PluginFailed, match="tool_catalog"):
                await session.turn("Hi")
            assert await session.unfinished() is None

    asyncio.run(main())


class Moody(Plugin, ProtocolSessionPlugin):
    """A protocol whose mood is set by an extension."""

    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        registrar.protocol.session(self)
        registrar.protocol.driver(StandardDriver())

    async def apply_session_extension(self, extension: Json) -> None:
        self.state = extension

    @action
    async def mood(self, ctx: PluginActionContext) -> Json:
        return self.state


def test_a_protocols_state_after_an_extension_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    """Bug: the state was written only with the next turn."""

    async def mood(extension: Json) -> Json:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = await runtime.session("s", agent=_agent("Hi.", protocol=Moody()))
            if extension is not None:
                await session.plugins.apply_extension(extension)
            return await session.plugins.invoke("moody.mood")

    assert asyncio.run(mood("calm")) == "calm"
    assert asyncio.run(mood(None)) == "calm"


class Terse(Plugin):
    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        registrar.tool_calls.project_result(self.shorten)

    async def shorten(self, ctx: ToolResultProjectionContext) -> str:
        return "in short: paid"


def test_a_scripted_model_reads_the_projected_result() -> None:
    """Bug: a script could not check the projected result that a model reads."""
    done = {"text": "Done.", "expect": {"last_contains": "in short: paid"}}
    agent = _agent(PAY, done, tools=[pay], plugins=[Terse()])
    assert agent.run_sync("Pay").output == "Done."


def test_the_decorator_can_be_imported_from_the_package_after_any_other_import() -> None:
    """Bug: after a plugin was defined, the module of the same name replaced the decorator."""
    import standfast.plugins

    assert standfast.plugins.hook is hook
