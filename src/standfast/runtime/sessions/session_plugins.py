"""The plugins and tools of a session, for host programs that read and change them.

Rule: a change between turns is durable when the call returns; a change during a turn, with that turn's next
write. While a turn waits, or another process runs one, changes are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from standfast.errors import InvalidArgument, PluginFailed, SessionBusy, UnknownSession
from standfast.model.canonical import Json, check_bounds, to_json
from standfast.model.capability import ToolAvailability, ToolState
from standfast.model.plugin_options import PluginOptions
from standfast.model.session import Entry, Payload, SessionHead, SessionPolicy
from standfast.model.task import TaskRecord, TaskSpec
from standfast.plugins.actions import PluginActionDef
from standfast.plugins.contexts import SessionConfigChanged
from standfast.plugins.plugin import Plugin
from standfast.plugins.plugin_states import StatefulPlugin
from standfast.plugins.protocol import ProtocolSessionContext
from standfast.plugins.runtime_services import RuntimeServices
from standfast.plugins.session import PluginSession
from standfast.plugins.session_context import Overlay, SessionContext
from standfast.ports.host import SessionTask
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.sessions.materialize import require_same_provider
from standfast.runtime.turn import new_turn_id
from standfast.tools.registry import CONTEXT, REGISTERED, ToolCatalogContribution, ToolProvider

T = TypeVar("T")

SpawnTask = Callable[[str, TaskSpec, SessionTask], Awaitable[TaskRecord]]
"""Runs a function as a task of a session."""


class PluginInfo(msgspec.Struct, frozen=True):
    """One plugin of a session: its hooks, slots, tools and actions, and its options.

    `options` contains numbers, flags and the options that were passed for the session. Other strings are left
    out, because they may be secrets.
    """

    id: str
    version: str
    revision: int
    summary: str
    hooks: tuple[str, ...]
    slots: tuple[str, ...]
    tools: tuple[str, ...]
    actions: tuple[str, ...]
    options: dict[str, Json] = msgspec.field(default_factory=dict)


class HookInfo(msgspec.Struct, frozen=True):
    """A hook of a plugin. Where hooks are ordered by `priority`, the highest runs first."""

    kind: str
    plugin_id: str
    priority: int


class ActionTarget(TypedDict, total=False):
    """The session that an action works on, by default the current one."""

    session_id: str | None
    default_to_current_session: bool


class _SessionChanges:
    """Changes to a session between its turns and within them."""

    __slots__ = ("_live", "_services")

    def __init__(self, live: LiveSession, services: RuntimeServices) -> None:
        self._live = live
        self._services = services

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[SessionContext]:
        """Let one caller at a time change the session, then store it.

        A running turn stores changes itself.
        """
        live, store = self._live, self._services.store
        alone = live.changes if live.driver is None else contextlib.nullcontext()
        async with alone:
            if live.driver is None and (turn := await store.open_turn(live.session_id)) is not None:
                raise SessionBusy(live.session_id, f"turn {turn.turn_id}")
            context = await live.current()
            yield context
            if live.driver is not None:
                return
            kept = await context.kept(tolerant=False)
            if kept.state is None:
                return
            try:
                now = self._services.clock.now_ms()
                head = await store.set_state(live.session_id, kept.state, kept.blobs, now)
            except SessionBusy:
                if not live.busy:
                    raise
                return  # a turn has begun here in the meantime: it stores the changes
            context.stored(head.state)


class SessionTools(_SessionChanges):
    """The tools of a session."""

    async def catalog(self) -> list[dict[str, Any]]:
        """Return the tools that the model sees, as a new list of JSON objects."""
        context = await self._live.current()
        await context.prepare()
        return context.tool_catalog()

    async def generation(self) -> int:
        return (await self._live.current()).tool_registry.generation

    async def state(self) -> ToolState:
        """Return the session's tool settings, including those of orphaned tools."""
        return (await self._live.current()).plugins.tool_registry.export_state()

    async def apply_state(self, state: ToolState) -> int:
        """Replace the tool settings; return the new generation.

        Raise `GenerationMismatch` if *state* is of another generation.
        """
        return await self._decide(lambda _: state)

    async def _decide(self, change: Callable[[ToolState], ToolState]) -> int:
        async with self._changing() as context:
            registry = context.plugins.tool_registry
            generation = registry.apply_state(change(registry.export_state()))
            await context.refresh_tool_catalog()
        return generation

    async def set_availability(
        self, names: Sequence[str] | str, availability: ToolAvailability | str | None
    ) -> int:
        """Set the availability of tools; None restores that of their source."""
        chosen = None if availability is None else _availability(availability)
        return await self._decide(lambda state: state.with_availability(_names(names), chosen))

    async def set_members(self, names: Sequence[str] | str, member: bool) -> int:
        """Add tools to the catalog or remove them from it."""
        return await self._decide(lambda state: state.with_members(_names(names), member))

    async def add_source(self, name: str, provider: ToolProvider) -> int:
        """Connect a tool source, replacing one of the same name; refuse conflicting tools."""
        if name in (REGISTERED, CONTEXT) or name.startswith("plugin:"):
            raise InvalidArgument(f"{name!r} cannot be the name of a source", hint="choose another name")
        async with self._changing() as context:
            registry = context.plugins.tool_registry
            generation = await context.ask_sources(lambda: registry.upsert(name, provider), provider)
            self._live.setup = self._live.setup.with_source(name, provider)
            await context.refresh_tool_catalog()
        return generation

    async def remove_source(self, name: str) -> int:
        """Disconnect a source. The settings of its tools are kept, and apply again when it is reconnected."""
        async with self._changing() as context:
            if name not in self._live.setup.sources:
                known = ", ".join(self._live.setup.sources) or "none"
                raise InvalidArgument(f"source {name!r} is not connected", hint=f"connected: {known}")
            generation = context.plugins.tool_registry.remove(name)
            self._live.setup = self._live.setup.with_source(name, None)
            await context.refresh_tool_catalog()
        return generation

    async def set_context_overlay(self, overlay: Overlay) -> bool:
        context = await self._live.current()
        changed = await context.set_context_overlay(overlay)
        if changed:
            self._live.setup = msgspec.structs.replace(self._live.setup, overlay=overlay)
        return changed

    async def set_catalog_overlay(
        self,
        availability: Mapping[str, ToolAvailability | str] | None = None,
        hidden: Sequence[str] | str = (),
    ) -> bool:
        """Override which tools the model sees, after all plugins; return False if nothing changes.

        The overlay applies in this process, including forks of the session and sessions that inherit its
        plugins. The session's authority is applied after it.
        """
        levels = {name: _availability(level) for name, level in (availability or {}).items()}
        overlay = ToolCatalogContribution(levels, frozenset(_names(hidden)))
        changed = (await self._live.current()).set_catalog_overlay(overlay)
        if changed:
            self._live.setup = msgspec.structs.replace(self._live.setup, catalog=overlay)
        return changed

    async def refresh(self) -> None:
        await (await self._live.current()).refresh_tool_catalog()

    async def invalidate(self) -> None:
        (await self._live.current()).invalidate_runtime_caches()


class SessionPlugins(_SessionChanges):
    """The plugins of a session."""

    __slots__ = ("_spawn",)

    def __init__(self, live: LiveSession, services: RuntimeServices, spawn: SpawnTask) -> None:
        super().__init__(live, services)
        self._spawn = spawn

    async def installed(self) -> list[PluginInfo]:
        """Return the plugins and their contributions, in order."""
        plugins = (await self._live.current()).plugins
        contributions = plugins.contributions
        return [
            PluginInfo(
                id=plugin.id,
                version=plugin.version,
                revision=plugin.revision,
                summary=str(getattr(plugin, "summary", "")),
                hooks=tuple(
                    kind
                    for kind, hooks in contributions.hooks.items()
                    for hook in hooks
                    if hook.plugin_id == plugin.id
                ),
                slots=tuple(
                    slot for slot, owned in contributions.slots.items() if owned.plugin_id == plugin.id
                ),
                tools=tuple(tool.name for tool in contributions.tools.get(plugin.id, [])),
                actions=tuple(
                    name
                    for name, made in contributions.actions.items()
                    if made.definition.plugin_id == plugin.id
                ),
                options=_options(plugin, plugins.authority.plugin_options),
            )
            for plugin in plugins.plugins
        ]

    async def hooks(self) -> list[HookInfo]:
        """Return the hooks of all plugins, those of one kind in the order in which they run."""
        contributions = (await self._live.current()).plugins.contributions
        return [
            HookInfo(hook.kind, hook.plugin_id, hook.priority)
            for hooks in contributions.hooks.values()
            for hook in hooks
        ]

    async def actions(self) -> list[PluginActionDef]:
        """Return the actions that callers may invoke."""
        return (await self._live.current()).plugins.plugin_actions()

    async def invoke(self, name: str, arguments: Json = None, **where: Unpack[ActionTarget]) -> Json:
        """Call an action with JSON arguments and return its JSON answer.

        It works on the session *session_id*, or by default on this one. An action of kind `task` runs in the
        background as a task of the session: its record is returned, and its answer is the record's `result`.

        Errors: `UnknownAction`, `UnknownSession`, `MissingSession`, `UnexpectedSession`.
        """
        done = await self._perform(
            name, arguments, where, lambda plugins: plugins.invoke_plugin_action(name, arguments, **where)
        )
        answer: Json = msgspec.to_builtins(done) if isinstance(done, TaskRecord) else done
        return answer

    async def call(
        self,
        name: str,
        arguments: object = None,
        answer: type[T] | Any = Any,
        **where: Unpack[ActionTarget],
    ) -> T:
        """Call an action with a typed argument; return a value of type *answer*, or a task's record.

        See `invoke`.
        """
        value: T = await self._perform(
            name,
            arguments,
            where,
            lambda plugins: plugins.call_plugin_action(name, arguments, answer, **where),
        )
        return value

    async def _perform(
        self,
        name: str,
        arguments: object,
        where: ActionTarget,
        perform: Callable[[PluginSession], Awaitable[Any]],
    ) -> Any:
        """Start an action of kind `task`, or perform one of another kind.

        Only queries run during a change.
        """
        session_id = where.get("session_id")
        if session_id is not None and await self._services.store.head(session_id) is None:
            raise UnknownSession(name, f"was called for session {session_id[:80]!r}, which does not exist")
        plugins = (await self._live.current()).plugins
        action = plugins.contributions.actions.get(name)
        kind = "query" if action is None else action.definition.kind
        if kind == "task":
            return await self._start_task(name, msgspec.to_builtins(arguments), **where)
        if kind == "query":
            return await perform(plugins)
        async with self._changing() as context:
            return await perform(context.plugins)

    async def _start_task(self, name: str, arguments: Json, **where: Any) -> TaskRecord:
        """Run an action as a task of the session it works on, or of this one."""
        plugins = (await self._live.current()).plugins
        call = plugins.prepare_plugin_action(name, arguments, **where)

        async def work() -> Json:
            try:
                answer = call.check(await plugins.runner.call(call.hook, *call.given))
            except PluginFailed:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the task was cancelled, the action did not fail
                    raise asyncio.CancelledError from None
                raise
            with contextlib.suppress(SessionBusy):  # a turn that runs or waits stores the changes itself
                async with self._changing():
                    pass
            return answer

        spec = TaskSpec(
            id=f"action.{name}.{os.urandom(6).hex()}",
            label=name,
            body={"action": name, "arguments": arguments},
        )
        return await self._spawn(call.session_id or self._live.session_id, spec, work)

    async def policy(self) -> SessionPolicy:
        """Return the settings that the session runs with."""
        return (await self._live.current()).policy

    async def configure(self, **changes: Any) -> SessionPolicy:
        """Change the settings from the next turn on, in this process, as far as plugins allow.

        Raise `ProviderMismatch` if the model is of another provider. `limits=None` restores the agent's own.
        """
        context = await self._live.current()
        before = context.policy
        if changes.get("limits", before) is None:
            changes["limits"] = self._live.require_agent().policy.limits
        try:
            wanted = msgspec.structs.replace(before, **changes)
            check_bounds(wanted)
            wanted = msgspec.convert(msgspec.to_builtins(wanted), SessionPolicy)
        except (TypeError, msgspec.ValidationError) as error:
            raise InvalidArgument(f"the session settings are invalid: {error}") from None
        head = await self._services.store.head(self._live.session_id)
        if head is not None:
            require_same_provider(head, wanted.model, used=True)
        changed = SessionConfigChanged(session_id=self._live.session_id, before=before, after=wanted)
        context.policy = await context.plugins.mutate_session_config(changed, wanted)
        self._live.setup = msgspec.structs.replace(self._live.setup, policy=wanted)
        await context.plugins.emit_runtime_event(msgspec.structs.replace(changed, after=context.policy))
        return context.policy

    async def apply_extension(self, extension: Json) -> None:
        """Pass *extension* to the session's protocol, which may refuse it with `ProtocolError`."""
        clean, _ = to_json(extension)
        async with self._changing() as context:
            await context.plugins.ask_protocol("apply_session_extension", clean)


async def append_nodes(
    live: LiveSession, services: RuntimeServices, payloads: Sequence[Payload], requires: str | None
) -> SessionHead:
    """Append nodes; raise `StaleBranch` if *requires* is not on the active path.

    If the protocol fails to process them, its error is raised, but the nodes are kept.
    """
    now = services.clock.now_ms()
    entries = []
    for payload in payloads:
        check_bounds(payload)
        try:
            read: Payload = msgspec.json.decode(msgspec.json.encode(payload), type=Payload)
        except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError) as error:
            raise InvalidArgument(
                f"{type(payload).__name__} cannot be a node: {error}",
                hint="append messages, PluginNode, FrameOpened or TurnEnded",
            ) from None
        entries.append(Entry(at_ms=now, payload=read))
    segment_id = new_turn_id().replace("t_", "a_")
    head = await services.store.append(live.session_id, segment_id, tuple(entries), requires, now)
    if live.prepared is not None:
        context = await live.context(head)
        here = ProtocolSessionContext(live.session_id)
        try:
            await context.plugins.ask_protocol("append_session_nodes", here, payloads)
        except PluginFailed as error:
            error.hint = f"do not append the nodes again: they were added, up to {head.leaf}"
            raise
    return head


def _options(plugin: StatefulPlugin, given: PluginOptions) -> dict[str, Json]:
    own = plugin.option_names() if isinstance(plugin, Plugin) else []
    found = {name: getattr(plugin, name) for name in own}
    shown: dict[str, Json] = {name: one for name, one in found.items() if isinstance(one, (bool, int, float))}
    told = given.plugins.get(plugin.id)
    return {**shown, **told} if isinstance(told, dict) else shown


def as_options(given: PluginOptions | Mapping[str, Json]) -> PluginOptions:
    """Return plugin options, given in any form that users may pass."""
    if isinstance(given, PluginOptions):
        return given
    clean, _ = to_json(dict(given))
    return PluginOptions(plugins=clean)


def _names(names: Sequence[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _availability(value: ToolAvailability | str) -> ToolAvailability:
    try:
        return ToolAvailability(value)
    except ValueError:
        known = ", ".join(ToolAvailability)
        raise InvalidArgument(f"{value!r} is not an availability", hint=f"use one of {known}") from None


__all__ = ["PluginInfo", "SessionPlugins", "SessionTools", "append_nodes", "as_options"]
