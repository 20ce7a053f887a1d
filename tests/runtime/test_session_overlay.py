"""Overlays that a host puts on a session: revisions, caches, precedence, and the cost of a change."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from plugin_stand_ins import Builds, Counter, ObedientModel, Source, call, context_of, named_tool
from stand_ins import Place

from standfast import Agent, Plugin, Session, hook
from standfast.errors import BadToolSource, InvalidArgument, ToolConflict
from standfast.model import prompt
from standfast.model.capability import ToolAvailability
from standfast.model.host_requests import SessionCreateRequest
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.plugins.contexts import ToolCatalogContext
from standfast.plugins.session_context import MAX_CATALOGS, MAX_PROMPTS, SessionContext
from standfast.tools.decorator import as_registered
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import CatalogTool, StaticTools, ToolCatalogContribution, ToolProvider


@dataclass
class Opened:
    """A session, its context, its model, and the tools from which its catalogs were built."""

    session: Session[Any]
    context: SessionContext
    model: ObedientModel
    heard: list[ToolCatalogContext]

    def caches(self) -> tuple[int, list[Any], list[Any]]:
        """Return the overlay's revision and the identities of the cached objects."""
        catalogs, prompts = self.context._catalogs, self.context._prompts
        return (
            self.context.overlay_revision,
            [(key, id(found)) for key, found in catalogs.items()],
            [(key, id(found)) for key, found in prompts.items()],
        )

    async def names(self) -> list[str]:
        return [one["name"] for one in await self.session.tools.catalog()]


async def opened(runtime: Any, *plugins: object, **options: Any) -> Opened:
    """Return a session with the tool `base`."""
    model, heard = ObedientModel(), list[ToolCatalogContext]()
    options.setdefault("tools", [named_tool("base")])
    agent: Agent[Any, Any] = Agent(model, plugins=[Builds(heard), *plugins], **options)
    session = await runtime.session("s", agent=agent)
    return Opened(session, await context_of(session), model, heard)


# No-ops and changes


def test_setting_the_same_overlay_again_changes_nothing(memory: Place) -> None:
    """Seed: nothing changes if flag and contributions are equal and the providers are the same objects."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            one, other = Source("one"), Source("other")
            words: list[PromptContribution | str] = [PromptContribution(content="be brief"), "and kind"]
            assert await it.session.set_context_overlay([one, other], words, False) is True
            await it.session.turn("hello")
            before, listed = it.caches(), (one.listed, other.listed)
            equal = [PromptContribution(content="be brief"), PromptContribution(content="and kind")]
            assert await it.session.set_context_overlay([one, other], equal, False) is False
            assert it.caches() == before
            await it.session.turn("hello")
            assert it.caches() == before
            assert (one.listed, other.listed) == listed
            assert it.context.overlay_revision == 1

    asyncio.run(main())


def test_setting_an_empty_overlay_at_the_beginning_is_not_a_change(memory: Place) -> None:
    """Seed: the revision stays zero."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            assert await it.session.set_context_overlay() is False
            assert it.context.overlay_revision == 0

    asyncio.run(main())


ONE, OTHER = Source("one"), Source("other")
WORDS = (PromptContribution(content="be brief"),)

CHANGES: dict[str, tuple[list[ToolProvider], tuple[PromptContribution, ...], bool]] = {
    "the flag": ([ONE, OTHER], WORDS, False),
    "the words": ([ONE, OTHER], (PromptContribution(content="be long"),), True),
    "the slot of the words": (
        [ONE, OTHER],
        (PromptContribution(content="be brief", slot=PromptSlot.INTRO),),
        True,
    ),
    "no words": ([ONE, OTHER], (), True),
    "the order of providers": ([OTHER, ONE], WORDS, True),
    "one provider less": ([ONE], WORDS, True),
    "an equal provider that is another object": ([Source("one"), OTHER], WORDS, True),
    "everything": ([], (), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_the_overlay_increments_its_revision(memory: Place, change: str) -> None:
    """Seed: a changed overlay is composed, and its revision rises by one."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([ONE, OTHER], WORDS, True)
            await it.session.turn("hello")
            providers, words, base = CHANGES[change]
            assert await it.session.set_context_overlay(providers, words, base) is True
            assert it.context.overlay_revision == 2
            assert await it.session.set_context_overlay([ONE, OTHER], WORDS, True) is True
            assert it.context.overlay_revision == 3

    asyncio.run(main())


@pytest.mark.parametrize(("one", "other"), [("", ""), ("a.", "b.")])
def test_an_overlay_with_conflicting_providers_changes_nothing(memory: Place, one: str, other: str) -> None:
    """Seed: the overlay is composed before anything changes; duplicate ids or names are errors."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([ONE], WORDS)
            await it.session.turn("hello")
            before, names = it.caches(), await it.names()
            twins = [Source("twin", prefix=one), Source("twin", prefix=other)]
            with pytest.raises(ToolConflict, match=r"context provider 1.*context provider 2"):
                await it.session.set_context_overlay(twins, ["other words"], False)
            assert (it.caches(), await it.names()) == (before, names)
            await it.session.turn("hello")
            assert it.caches() == before
            assert "be brief" in it.model.prompts[-1]

    asyncio.run(main())


def test_an_overlay_with_a_failing_provider_changes_nothing(memory: Place) -> None:
    """Ours: a failing source must not affect the session."""

    class Broken(Source):
        def manifests(self) -> Any:
            raise OSError("no route")

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            before = it.caches()
            with pytest.raises(BadToolSource, match="no route"):
                await it.session.set_context_overlay([Broken()])
            assert it.caches() == before
            assert await it.names() == ["base"]

    asyncio.run(main())


# Precedence


def test_without_base_tools_only_the_overlays_tools_are_available(memory: Place) -> None:
    """Seed: with include_base_tools=false the model can neither see nor call other tools."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime, Counter())
            await it.session.set_context_overlay([Source("one")], include_base_tools=False)
            found = await call(it.session, "base", "one", "bump")
            assert it.model.offered == ["one"]
            assert [one.error and one.error.code for one in found] == ["UNKNOWN_TOOL", None, "UNKNOWN_TOOL"]
            assert it.context.tool_registry.generation == 2
            await it.session.set_context_overlay([], include_base_tools=False)
            await it.session.turn("hello")
            assert (it.model.offered, it.context.tool_registry.generation) == ([], 0)

    asyncio.run(main())


def test_an_overlays_tool_covers_one_of_the_same_name_while_the_overlay_is_set(memory: Place) -> None:
    """Seed: if the name is the same, the overlay wins."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            tools = [named_tool("base"), named_tool("look"), named_tool("third")]
            it = await opened(runtime, tools=tools)
            await it.session.set_context_overlay([Source("base", prefix="mine.", answer="covered")])
            found = await call(it.session, "base", "third")
            assert [one.value for one in found] == ["covered", "third"]
            assert it.model.offered == ["base", "look", "third"]
            await it.session.set_context_overlay()
            assert [one.value for one in await call(it.session, "base")] == ["base"]

    asyncio.run(main())


class Renamed(Source):
    """A source that offers the tool of one id under another name."""

    def manifests(self) -> Any:
        return [msgspec.structs.replace(one, id="base") for one in super().manifests()]


@pytest.mark.parametrize("protocol", ["standard", "code"])
def test_an_overlays_tool_wins_even_if_the_session_has_turned_the_tool_off(
    memory: Place, protocol: str
) -> None:
    """Bug: a tool of the overlay with the id of a tool that is off was off as well."""

    async def main() -> None:
        model = ObedientModel()
        async with memory.runtime() as runtime:
            agent: Agent[Any, Any] = Agent(model, protocol=protocol, tools=[named_tool("base")])
            session = await runtime.session("s", agent=agent)
            await session.tools.set_availability("base", "off")
            assert await session.tools.catalog() == []
            [entry] = [key for key, one in (await session.tools.state()).tools.items() if one.name == "base"]
            await session.set_context_overlay([StaticTools([registered("base")])])
            assert [one["id"] for one in await session.tools.catalog()] == [entry]
            context = await context_of(session)
            assert context.find_tool("base").owner == "overlay"
            await session.set_context_overlay()
            assert await session.tools.catalog() == [], "without the overlay the decision holds again"

    asyncio.run(main())


def registered(name: str) -> RegisteredTool:
    return msgspec.structs.replace(as_registered(named_tool(name)), owner="overlay")


def test_a_tool_covered_by_id_is_not_available_under_its_old_name(memory: Place) -> None:
    """Seed: if the id is the same, the overlay wins."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([Renamed("newer")])
            found = await call(it.session, "newer", "base")
            assert it.model.offered == ["newer"]
            assert [one.value for one in found] == ["newer", None]
            assert found[1].error is not None
            assert found[1].error.code == "UNKNOWN_TOOL"

    asyncio.run(main())


def test_changes_below_the_overlay_are_invisible_until_a_refresh(memory: Place) -> None:
    """Seed: later changes of the base are not seen until a refresh."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([Source("one")])
            assert await it.names() == ["base", "one"]
            it.context.plugins.tool_registry.upsert("later", Source("late"))
            await it.session.turn("hello")
            assert it.model.offered == ["base", "one"]
            revision = it.context.overlay_revision
            await it.session.refresh_tool_catalog()
            await it.session.turn("hello")
            assert it.model.offered == ["base", "late", "one"]
            assert it.context.overlay_revision == revision

    asyncio.run(main())


def test_the_hosts_own_tool_changes_are_visible_at_once_through_an_overlay(memory: Place) -> None:
    """Ours: a host that calls `session.tools` expects its effect."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([Source("one")])
            await it.session.tools.set_availability("base", "off")
            assert await it.names() == ["one"]
            await it.session.tools.add_source("live", Source("extra"))
            assert await it.names() == ["extra", "one"]
            await it.session.tools.remove_source("live")
            await it.session.tools.set_availability("base", None)
            assert await it.names() == ["base", "one"]

    asyncio.run(main())


def test_an_overlay_applies_only_in_this_process_and_to_forks(place: Place) -> None:
    """Ours: an overlay is not stored; a fork in the same process inherits it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([Source("one")], ["laid over"])
            await it.session.turn("hello")
            fork = await it.session.fork("other")
            await fork.turn("hello")
            assert it.model.offered == ["base", "one"]
            assert "laid over" in it.model.prompts[-1]
        async with place.runtime() as runtime:
            again = await opened(runtime)
            await again.session.turn("hello")
            assert again.model.offered == ["base"]
            assert again.model.prompts == [""]

    asyncio.run(main())


def test_an_overlay_survives_eviction(memory: Place) -> None:
    """Ours: the overlay survives when a session's plugins are rebuilt."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.set_context_overlay([Source("one")], ["laid over"])
            await it.session.turn("hello")
            it.session._live.forget()
            await it.session.turn("hello")
            assert it.model.offered == ["base", "one"]
            assert "laid over" in it.model.prompts[-1]

    asyncio.run(main())


# The catalog cache


def plugin_revision(*plugins: tuple[str, str, int]) -> int:
    """Return the plugin revision, computed by hand as SPEC §6 defines it."""
    text = b"".join(
        name.encode() + b"\0" + version.encode() + b"\0" + revision.to_bytes(8, "little") + b"\xff"
        for name, version, revision in plugins
    )
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def test_a_catalog_is_cached_by_flag_revision_generation_and_plugin_revision(memory: Place) -> None:
    """Seed: the key has the plugin revision, here computed by hand."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime, Counter())
            await it.session.turn("hello")
            (key,) = it.context._catalogs
            at_first = plugin_revision(("standard", "1", 0), ("builds", "1", 0), ("counter", "1", 0))
            assert key == (True, 0, it.context.tool_registry.generation, at_first)
            await call(it.session, "bump")
            await it.session.turn("hello")
            counted = plugin_revision(("standard", "1", 0), ("builds", "1", 0), ("counter", "1", 1))
            assert list(it.context._catalogs)[-1] == (True, 0, key[2], counted)
            await it.session.set_context_overlay([], include_base_tools=False)
            await it.session.turn("hello")
            assert list(it.context._catalogs) == [(False, 1, 0, counted)]

    asyncio.run(main())


def test_a_catalog_is_built_once_until_something_changes(memory: Place) -> None:
    """Ours: turns, lookups and refreshes do not rebuild the catalog; only a change does."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            for _ in range(3):
                await call(it.session, "base")
                await it.session.tools.catalog()
            assert len(it.heard) == 1
            await it.session.tools.set_availability("base", "callable")
            await it.session.turn("hello")
            await it.session.turn("hello")
            assert len(it.heard) == 2
            await it.session.set_context_overlay(prompt_contributions=["words alone"])
            await it.session.turn("hello")
            assert len(it.heard) == 3
            await it.session.invalidate_runtime_caches()
            assert len(it.heard) == 3
            await it.session.turn("hello")
            assert len(it.heard) == 4

    asyncio.run(main())


def test_a_change_of_a_plugins_state_rebuilds_the_catalog(memory: Place) -> None:
    """Seed: the plugin revision is in the key, because contributors may depend on their state."""

    class Shy(Plugin):
        @hook
        def tool_catalog(self, ctx: ToolCatalogContext) -> Any:
            return ToolCatalogContribution(hidden=frozenset(["base"])) if self.state else None

        @hook
        async def before_turn(self, ctx: Any) -> None:
            if ctx.input.content == "hide":
                self.state = True

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime, Shy())
            await it.session.turn("hello")
            assert it.model.offered == ["base"]
            await it.session.turn("hide")
            await it.session.turn("hello")
            assert it.model.offered == []

    asyncio.run(main())


def test_the_catalog_cache_is_bounded(memory: Place) -> None:
    """Seed: the number of cached catalogs is limited."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime, Counter())
            for _ in range(MAX_CATALOGS + 4):
                await call(it.session, "bump")
                assert len(it.context._catalogs) <= MAX_CATALOGS
            assert len(it.context._catalogs) == MAX_CATALOGS

    asyncio.run(main())


@pytest.mark.parametrize("asked", ["session.tools", "host", "catalog"])
def test_changing_a_returned_catalog_changes_nothing_else(memory: Place, asked: str) -> None:
    """Bug: `tools.catalog()` returned the cache itself."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)

            async def ask() -> list[dict[str, Any]]:
                if asked == "catalog":
                    return it.context.artifact().catalog.project()
                host = runtime.host("s")
                return await (host.tool_catalog("s") if asked == "host" else it.session.tools.catalog())

            given = await ask()
            given[0]["name"] = "spoilt"
            given.clear()
            assert [one["name"] for one in await ask()] == ["base"]

    asyncio.run(main())


def test_the_catalog_is_projected_to_json_once_and_on_demand(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: the projection to JSON is built once, on demand."""
    projected: list[str] = []
    project = CatalogTool.project

    def counted(self: CatalogTool) -> dict[str, Any]:
        projected.append(self.name)
        return project(self)

    monkeypatch.setattr(CatalogTool, "project", counted)

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            await it.session.turn("hello")
            assert projected == []
            first = await it.session.tools.catalog()
            await it.session.turn("hello")
            assert await it.session.tools.catalog() == first
            assert projected == ["base"]
            assert first == [
                {
                    "id": "base",
                    "name": "base",
                    "description": "The tool base.",
                    "side_effect": "read",
                    "availability": "showcased",
                }
            ]

    asyncio.run(main())


# The prompt cache


def renders(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the length of each prompt that is rendered."""
    found: list[int] = []

    def counted(contributions: Iterable[PromptContribution]) -> str:
        text = prompt.rendered(contributions)
        found.append(len(text))
        return text

    monkeypatch.setattr("standfast.plugins.session_context.rendered", counted)
    return found


def test_the_prompt_is_rendered_once_across_turns(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed: the prompt cache keeps the rendered system prompt across turns."""
    rendered = renders(monkeypatch)

    async def main() -> None:
        async with memory.runtime(system=["from the runtime"]) as runtime:
            it = await opened(runtime, instructions="be brief")
            for _ in range(4):
                await call(it.session, "base")
            assert len(rendered) == 1
            assert all(one is it.model.prompts[0] for one in it.model.prompts)
            await it.session.set_context_overlay(prompt_contributions=["laid over"])
            await it.session.turn("hello")
            assert len(rendered) == 2
            await it.session.set_context_overlay()
            await it.session.turn("hello")
            assert len(rendered) == 2
            await it.session.invalidate_runtime_caches()
            await it.session.turn("hello")
            assert len(rendered) == 3

    asyncio.run(main())


def test_a_prompt_with_plugin_contributions_is_rendered_once_while_they_stay_the_same(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: contributors run each time; the prompt is rendered only if their text changes."""
    rendered = renders(monkeypatch)

    class Moody(Plugin):
        def __init__(self) -> None:
            self.mood = "calm"

        @hook
        async def prompt_contributor(self, ctx: Any) -> str:
            return f"you are {self.mood}"

        @hook
        async def before_turn(self, ctx: Any) -> None:
            self.mood = "cross" if ctx.input.content == "cross" else "calm"

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime, Moody(), instructions="be brief")
            await it.session.turn("calm")
            await it.session.turn("calm")
            before = len(rendered)
            await it.session.turn("cross")
            await it.session.turn("calm")
            assert len(rendered) == before + 1
            assert [one.split()[-1] for one in it.model.prompts] == ["calm", "calm", "cross", "calm"]

    asyncio.run(main())


def test_the_prompt_cache_is_bounded(memory: Place) -> None:
    """Ours: texts of single turns must not make the cache grow forever."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            it = await opened(runtime)
            for number in range(MAX_PROMPTS + 5):
                await it.session.turn("hello", system=[f"number {number}"])
            assert len(it.context._prompts) == MAX_PROMPTS

    asyncio.run(main())


# The overlay on the catalog


class Raises(Plugin):
    """A plugin that makes one tool callable, and hides another."""

    @hook
    def tool_catalog(self, ctx: ToolCatalogContext) -> ToolCatalogContribution:
        return ToolCatalogContribution({"base": ToolAvailability.CALLABLE}, frozenset({"secret"}))


def test_the_session_overlay_changes_the_catalog_after_plugins_and_before_the_authority(
    memory: Place,
) -> None:
    """Bug: SPEC §4, plugins, session overlay, authority last; nothing could set that overlay."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            tools = [named_tool("base"), named_tool("more"), named_tool("secret")]
            it = await opened(runtime, Raises(), tools=tools)

            async def levels() -> dict[str, str]:
                return {one["name"]: one["availability"] for one in await it.session.tools.catalog()}

            assert await levels() == {"base": "callable", "more": "showcased"}
            say = it.session.tools.set_catalog_overlay
            assert await say({"base": "showcased", "secret": "showcased"}, hidden=["more"]) is True
            assert await levels() == {"base": "showcased"}, "what a plugin hid stays hidden"
            assert await say({"base": "showcased", "secret": "showcased"}, hidden="more") is False
            await it.session.turn("call more")
            assert it.model.offered == ["base"]
            await runtime.host("s").create_session(SessionCreateRequest(session_id="child"))
            child = await runtime.host("s").tool_catalog("child")
            assert [one["name"] for one in child] == ["base"], "a child sees no more than its parent"
            assert await say() is True
            assert await levels() == {"base": "callable", "more": "showcased"}
            with pytest.raises(InvalidArgument, match="availability"):
                await say({"base": "loud"})

    asyncio.run(main())
