"""Builds the plugins of sessions.

Rules
-----
1. Each plugin is built and registers, in order; then `session_ready` is called on each; then each gets its
   stored state.
2. A session has exactly one protocol.
3. Whatever a plugin raises while it is built is `PluginFailed` with its id; the session then does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from standfast.errors import BadToolSource, InvalidPlugin, PluginConflict, PluginFailed, StandfastError
from standfast.model.plugin_state import PluginSessionSnapshot
from standfast.plugins.contexts import NoHosts, PluginExtensions, SessionHosts
from standfast.plugins.plugin import (
    Plugin,
    PluginFactory,
    PluginLoop,
    PluginSessionContext,
    SessionPlugin,
    as_factory,
    is_shipped,
    loop_of,
)
from standfast.plugins.plugin_states import CallStage, PluginMemory, Report
from standfast.plugins.registrar import Contributions, PluginRegistrar, collect_triggers
from standfast.plugins.running import (
    AT_HOME,
    BuildStep,
    HookRunner,
    NoAnswer,
    PluginPlace,
    at_once,
    described,
    within,
)
from standfast.plugins.session import FULL, PluginSession, SessionAuthority, SessionBuild
from standfast.tools.loop_threads import SharedLoop
from standfast.tools.registry import ToolCatalogContribution, ToolRegistry
from standfast.tools.tool_table import ASKED, StaticTools

T = TypeVar("T")


class PluginHost:
    """The plugins of an agent, ready to be built for any number of sessions."""

    def __init__(
        self,
        factories: Iterable[object],
        tools: ToolRegistry,
        *,
        shelf_of: Any,
        report: Report,
        runner: HookRunner | None = None,
        read_attachment: Any = None,
        hosts_of: Callable[[str], SessionHosts] = lambda session_id: NoHosts(),
    ) -> None:
        self.factories = [as_factory(one) for one in factories]
        seen: dict[str, PluginFactory] = {}
        for factory in self.factories:
            if (other := seen.setdefault(factory.id, factory)) is not factory:
                raise PluginConflict(f"the id {factory.id!r}", repr(other), repr(factory), hint="use it once")
        self.tools = tools
        self.runner = runner or HookRunner()
        self._shelf_of = shelf_of
        self.report = report
        self.shared_artifact: tuple[object, Any] = (None, None)
        """The catalog that sessions with the same tools share, and the registry's settings it is made of."""
        self._read_attachment = read_attachment
        self._hosts_of = hosts_of

    async def open_session(self, build: SessionBuild) -> PluginSession:
        """Build the plugins of one session, away from the runtime's loop."""
        step = BuildStep()
        return await self.aside(lambda: self.build_session(build, step), step)

    async def aside(self, work: Callable[[], T], step: BuildStep, *, asks_sources: bool = False) -> T:
        """Call *work*, which calls synchronous functions of plugins, away from the runtime's loop.

        If it exceeds the hook timeout, the plugin of *step* has failed, or the source of tools that *work*
        asks (`BadToolSource`).
        """
        runner = self.runner
        shipped = not asks_sources and all(is_shipped(factory) for factory in self.factories)
        if runner.loops is None or shipped:
            return work()
        asked: list[tuple[str, str]] = []

        async def called() -> T:
            ASKED.set(asked)
            return work()

        try:
            return await within(runner.timeout_s, runner.loops.run(called))
        except NoAnswer as problem:
            for claimant, method in asked:
                raise BadToolSource(claimant, f"failed in {method}: {problem}") from None
            raise step.late(problem) from None

    def build_session(self, build: SessionBuild, step: BuildStep | None = None) -> PluginSession:
        """Build the plugins of one session with their state. *step* records which plugin does what."""
        step = step or BuildStep()
        extensions, hosts = PluginExtensions(), self._hosts_of(build.session_id)
        contributions, runner = Contributions(), self.runner
        places: dict[PluginLoop | None, PluginPlace] = {None: AT_HOME, "own": AT_HOME, "runtime": AT_HOME}
        if runner.loops is not None:
            places["own"] = PluginPlace(away=SharedLoop(runner.loops), stalls=runner.stalls)
            places["runtime"] = PluginPlace(stalls=runner.stalls)
        unwritten: set[CallStage] = set()
        plugins: list[SessionPlugin] = []
        contexts: list[PluginSessionContext] = []
        for factory in self.factories:
            ctx = PluginSessionContext(
                session_id=build.session_id,
                extensions=extensions,
                shelf=self._shelf_of(factory.id),
                options=build.authority.plugin_options,
                parent_session_id=build.parent_session_id,
                subagent=build.authority.subagent,
                read_attachment=self._read_attachment,
                host=hosts.session,
            )
            plugin = _attempt(step, factory.id, "build", factory.build, ctx)
            if not isinstance(plugin, (Plugin, SessionPlugin)):
                problem = f"built a {type(plugin).__name__}, which is no plugin"
                raise InvalidPlugin(f"factory {factory.id!r} {problem}")
            if plugin.id != factory.id:
                raise InvalidPlugin(f"factory {factory.id!r} built a plugin with the id {plugin.id!r}")
            memory = PluginMemory(plugin, unwritten, says_changes=isinstance(plugin, Plugin))
            contributions.places[plugin.id] = msgspec.structs.replace(places[loop_of(plugin)], memory=memory)
            _attempt(step, factory.id, "register", plugin.register, PluginRegistrar(plugin.id, contributions))
            plugins.append(plugin)
            contexts.append(ctx)
        contributions.sort()
        collect_triggers(contributions, self.runner, step)
        for slot in ("protocol_session", "protocol_driver"):
            if slot not in contributions.slots:
                hint = 'pass protocol="standard" or a protocol plugin'
                raise InvalidPlugin(f"no plugin fills the slot {slot}", hint=hint)
        registry = self.tools.fork()
        for plugin_id, tools in contributions.tools.items():
            registry.upsert(f"plugin:{plugin_id}", StaticTools(tools, prefix=f"{plugin_id}."))
        for source, provider in contributions.providers:
            registry.upsert(source, provider)
        given_tools = registry.settings
        if build.tool_state is not None:
            registry.restore_state(build.tool_state)
        for plugin, ctx in zip(plugins, contexts, strict=True):
            _attempt(step, plugin.id, "session_ready", plugin.session_ready, ctx)
        session = PluginSession(self, build, plugins, contributions, registry, extensions, step)
        session.hosts = hosts
        session.unwritten = unwritten
        session.given_tools = given_tools
        session.restore(build.snapshot or PluginSessionSnapshot(), build.fetched)
        return session

    def fork(
        self,
        source: PluginSession,
        session_id: str,
        *,
        parent_session_id: str | None = None,
        overlay: ToolCatalogContribution | None = None,
        authority: SessionAuthority = FULL,
        step: BuildStep | None = None,
    ) -> PluginSession:
        """Build the plugins of *source*, with their current state, for another session."""
        step = step or BuildStep()
        snapshot, pieces = source.copied(step)
        tools = source.tool_registry
        return self.build_session(
            SessionBuild(
                session_id=session_id,
                parent_session_id=parent_session_id,
                snapshot=snapshot,
                fetched=pieces,
                tool_state=None if tools.settings is source.given_tools else tools.export_state(),
                overlay=source.tool_catalog_overlay if overlay is None else overlay,
                authority=authority,
            ),
            step,
        )


def _attempt(step: BuildStep, plugin_id: str, what: str, function: Any, *given: Any) -> Any:
    step.begin(plugin_id, what)
    try:
        return at_once(function(*given))
    except StandfastError as error:
        if repr(plugin_id) in error.message:
            raise
        if isinstance(error, InvalidPlugin):
            raise InvalidPlugin(f"plugin {plugin_id!r}: {error.message}", hint=error.hint) from None
        raise PluginFailed(plugin_id, what, error.message, hint=error.hint) from error
    except BaseException as error:
        raise PluginFailed(plugin_id, what, described(error)) from error
