"""The plugins of one session: everything that the runtime asks of them.

Rules
-----
1. Hooks are asked in the order of the table in `hook.py`; what a failure means is the caller's to decide,
   except for observers and mutators, whose failures are logged and traced and never travel.
2. Nothing here touches the store. What is to be kept is returned as values.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from standfast.errors import PluginFailed, PluginStateLost, StandfastError, UnknownAction
from standfast.machine.inputs import Stage
from standfast.model.bounds import check_bounds
from standfast.model.canonical import Json
from standfast.model.directive import ReplaceToolArgs
from standfast.model.message import Message
from standfast.model.plugin_options import NO_OPTIONS, PluginOptions
from standfast.model.plugin_state import PluginSessionSnapshot
from standfast.model.prompt import PromptContribution, ordered
from standfast.model.session_policy import SessionPolicy, same_provider
from standfast.model.tool_access import SessionToolAccess
from standfast.model.tool_state import ToolState
from standfast.plugins.actions import PluginActionContext, PluginActionDef, RegisteredAction
from standfast.plugins.answers import (
    read_catalog,
    read_chunk,
    read_compaction,
    read_contributions,
    read_json,
    read_messages,
    read_policy,
    read_response,
    read_text,
)
from standfast.plugins.contexts import (
    AssistantResponseHookContext,
    AssistantResponseTransform,
    AssistantStreamHookContext,
    AssistantStreamTransform,
    CheckpointHookContext,
    CompactionContext,
    ContextCompaction,
    LifecycleEvent,
    NoHosts,
    PluginExtensions,
    PromptHookContext,
    SessionConfigChanged,
    SessionHosts,
    SessionRestored,
    SubagentContext,
    ToolCallHookContext,
    ToolCatalogContext,
    ToolResultHookContext,
    ToolResultProjectionContext,
    TurnFinalized,
    TurnHookContext,
    TurnPersisted,
    TurnResultHookContext,
    TurnTransformContext,
)
from standfast.plugins.directives import (
    CallHearing,
    OwnedDirective,
    PluginOwned,
    ResultHearing,
    read_directives,
)
from standfast.plugins.plugin import SessionPlugin
from standfast.plugins.plugin_memory import PluginMemory
from standfast.plugins.protocol import (
    AssistantProseProjectorPlugin,
    CodeExecutorPlugin,
    ProtocolBuildInput,
    ProtocolDriverPlugin,
    ProtocolRuntimeContext,
    ProtocolSessionMaterialization,
    ProtocolSessionPlugin,
    TurnDriverPreamble,
)
from standfast.plugins.registrar import Contributions
from standfast.plugins.remembering import RememberingPlugins, Report
from standfast.plugins.running import (
    BuildStep,
    Current,
    HookRunner,
    NoAnswer,
    RegisteredHook,
    all_within,
    within,
)
from standfast.plugins.triggers import TriggerEventCatalog
from standfast.tools.catalog import ToolCatalog, ToolCatalogContribution, resolve_catalog
from standfast.tools.registry import ToolRegistry

T = TypeVar("T")

_EVENT_KIND: Final[dict[type, str]] = {
    TurnFinalized: "turn_finalized",
    TurnPersisted: "turn_persisted",
    SessionRestored: "session_restored",
    SessionConfigChanged: "session_config_changed",
}


_ALL_TOOLS = SessionToolAccess()
_NO_OVERLAY = ToolCatalogContribution()


class SessionAuthority(msgspec.Struct, frozen=True):
    """What a session may do: which tools it may use, for whom it works, what its plugins are told."""

    tool_access: SessionToolAccess = _ALL_TOOLS
    subagent: SubagentContext | None = None
    plugin_options: PluginOptions = NO_OPTIONS

    def within(self, parent: SessionAuthority) -> SessionAuthority:
        """These rights, as far as *parent* has them."""
        return SessionAuthority(
            self.tool_access.within(parent.tool_access), self.subagent, self.plugin_options
        )


FULL = SessionAuthority()


class SessionBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose plugins are to be built."""

    session_id: str
    parent_session_id: str | None = None
    snapshot: PluginSessionSnapshot | None = None
    fetched: Mapping[str, bytes] | None = None
    tool_state: ToolState | None = None
    overlay: ToolCatalogContribution = _NO_OVERLAY
    authority: SessionAuthority = FULL


class SessionBuilder(Protocol):
    """What builds the plugins of sessions: `PluginHost`."""

    report: Report
    runner: HookRunner
    tools: ToolRegistry
    shared_artifact: tuple[object, Any]

    async def aside(self, work: Callable[[], T], step: BuildStep, *, asks_sources: bool = False) -> T:
        """Call *work*, which calls plugins' functions that cannot await, away from the runtime's loop."""

    def fork(
        self,
        source: PluginSession,
        session_id: str,
        *,
        parent_session_id: str | None = None,
        authority: SessionAuthority = FULL,
        overlay: ToolCatalogContribution | None = None,
        step: BuildStep | None = None,
    ) -> PluginSession:
        """Build the plugins of a session that goes on with what *source* remembers."""


class PluginSession(RememberingPlugins):
    """Built by a `PluginHost`; used on the loop of the runtime."""

    def __init__(
        self,
        host: SessionBuilder,
        build: SessionBuild,
        plugins: Sequence[SessionPlugin],
        contributions: Contributions,
        registry: ToolRegistry,
        extensions: PluginExtensions,
        step: BuildStep,
    ) -> None:
        super().__init__(plugins, contributions.places, host.report, step)
        self.host = host
        self.session_id = build.session_id
        self.tool_registry = registry
        self.tool_catalog_overlay = build.overlay
        self.authority = build.authority
        self.extensions = extensions
        self.contributions = contributions
        self.runner = host.runner
        self.hosts: SessionHosts = NoHosts()
        self.given_tools: object = registry.settings
        """The registry's settings before the session has decided anything about its tools."""
        self.stages = _stages_of(contributions, self.protocol_session())

    # What there is

    @property
    def tool_access(self) -> SessionToolAccess:
        return self.authority.tool_access

    @property
    def subagent_context(self) -> SubagentContext | None:
        return self.authority.subagent

    @property
    def triggers(self) -> TriggerEventCatalog:
        return self.contributions.triggers

    def protocol_session(self) -> ProtocolSessionPlugin:
        found: ProtocolSessionPlugin = self.contributions.slots["protocol_session"].value
        return found

    def protocol_driver(self) -> ProtocolDriverPlugin:
        found: ProtocolDriverPlugin = self.contributions.slots["protocol_driver"].value
        return found

    def code_executor(self) -> CodeExecutorPlugin | None:
        owned = self.contributions.slots.get("code_executor")
        return None if owned is None else owned.value

    def assistant_prose_projector(self) -> AssistantProseProjectorPlugin | None:
        owned = self.contributions.slots.get("prose_projector")
        return None if owned is None else owned.value

    def owner_of(self, slot: str) -> str:
        """The plugin that fills a slot, or nothing."""
        owned = self.contributions.slots.get(slot)
        return "" if owned is None else owned.plugin_id

    def plugin_actions(self) -> list[PluginActionDef]:
        return [action.definition for action in self.contributions.actions.values()]

    def has_assistant_stream_hooks(self) -> bool:
        return bool(self._hooks("assistant_stream"))

    def has_runtime_event_hooks(self, kind: str) -> bool:
        return bool(self._hooks(kind))

    def _hooks(self, kind: str) -> list[RegisteredHook]:
        return self.contributions.hooks[kind]

    # The context of a model call

    async def prepare_turn_context(
        self, ctx: TurnTransformContext, messages: list[Message], at: Current
    ) -> list[Message]:
        """The messages as the transforms leave them, one after the other."""
        copy = messages.copy()
        for hook in self._hooks("context_transform"):
            answer = await at.call(hook, ctx, copy)
            left = read_messages(hook, messages, answer)
            if left is not messages or answer is not copy:
                copy = left.copy()  # the hook may have changed the one it was given, or kept it
            messages = left
        return messages

    async def compact_context(self, ctx: CompactionContext, at: Current) -> ContextCompaction | None:
        """What the first compactor that has something to say makes of earlier turns."""
        for hook in self._hooks("compactor"):
            answer = await at.call(hook, ctx)
            if answer is not None and not (compaction := read_compaction(hook, answer)).is_empty:
                return compaction
        return None

    async def collect_prompt_contributions(
        self, ctx: PromptHookContext, at: Current
    ) -> list[PromptContribution]:
        """What plugins add to the prompt, without repetitions, in order."""
        found: list[PromptContribution] = []
        for hook in self._hooks("prompt_contributor"):
            found.extend(read_contributions(hook, await at.call(hook, ctx)))
        return ordered(found)

    # Turns and calls

    def before_turn(self, ctx: TurnHookContext) -> Coroutine[Any, Any, list[OwnedDirective]]:
        return self._directives("before_turn", ctx)

    def at_checkpoint(self, ctx: CheckpointHookContext) -> Coroutine[Any, Any, list[OwnedDirective]]:
        return self._directives("checkpoint", ctx)

    def after_turn(self, ctx: TurnResultHookContext) -> Coroutine[Any, Any, list[OwnedDirective]]:
        return self._directives("after_turn", ctx)

    async def after_tool_call(self, ctx: ToolResultHookContext) -> list[OwnedDirective]:
        return (await self.hear_result(ctx)).directives

    async def hear_result(self, ctx: ToolResultHookContext) -> ResultHearing:
        """Ask the plugins about a result; each sees it as those before it left it."""

        async def work(at: Current) -> ResultHearing:
            hearing = ResultHearing(ctx)
            for hook in self._hooks("after_tool_call"):
                hearing.take(read_directives(hook, await at.call(hook, hearing.context)))
            return hearing

        return await self.runner.stage(work)

    async def before_tool_call(self, ctx: ToolCallHookContext) -> list[OwnedDirective]:
        """The directives of all plugins; the last of them replaces the arguments, if they were replaced."""
        hearing = await self.hear_call(ctx)
        if hearing.arguments is None or hearing.replaced_by is None:
            return hearing.directives
        replaced = ReplaceToolArgs(arguments=hearing.arguments)
        return [*hearing.directives, PluginOwned(hearing.replaced_by, replaced)]

    async def hear_call(self, ctx: ToolCallHookContext) -> CallHearing:
        """Ask the plugins about a call; `PluginConflict` if they cannot agree on its arguments."""

        async def work(at: Current) -> CallHearing:
            async def ask(hook: RegisteredHook, now: ToolCallHookContext) -> list[OwnedDirective]:
                return read_directives(hook, await at.call(hook, now))

            hearing = CallHearing(ctx, ask)
            await hearing.hear(self._hooks("before_tool_call"))
            return hearing

        return await self.runner.stage(work)

    async def _directives(self, kind: str, ctx: object) -> list[OwnedDirective]:
        hooks = self._hooks(kind)
        if not hooks:
            return []

        async def work(at: Current) -> list[OwnedDirective]:
            found: list[OwnedDirective] = []
            for hook in hooks:
                if (answer := await at.call(hook, ctx)) is not None:
                    found += read_directives(hook, answer)
            return found

        return await self.runner.stage(work)

    # The model's reply

    async def transform_assistant_stream(
        self, ctx: AssistantStreamHookContext
    ) -> list[PluginOwned[AssistantStreamTransform]]:
        """What each plugin makes of a piece of the reply; the last one's is shown."""

        async def work(at: Current) -> list[PluginOwned[AssistantStreamTransform]]:
            now, found = ctx, []
            for hook in self._hooks("assistant_stream"):
                made = read_chunk(hook, await at.call(hook, now))
                now = msgspec.structs.replace(now, chunk=made.chunk)
                found.append(PluginOwned(hook.plugin_id, made))
            return found

        return await self.runner.stage(work)

    async def transform_assistant_response(
        self, ctx: AssistantResponseHookContext
    ) -> list[PluginOwned[AssistantResponseTransform]]:
        """What each plugin makes of the whole reply; the last one's counts."""

        async def work(at: Current) -> list[PluginOwned[AssistantResponseTransform]]:
            now, found = ctx, []
            for hook in self._hooks("assistant_response"):
                answer = await at.call(hook, now)
                if answer is now.response:  # it has nothing to change
                    found.append(PluginOwned(hook.plugin_id, AssistantResponseTransform(answer)))
                    continue
                made = read_response(hook, answer)
                now = msgspec.structs.replace(now, response=made.response)
                found.append(PluginOwned(hook.plugin_id, made))
            return found

        return await self.runner.stage(work)

    async def project_tool_result(self, ctx: ToolResultProjectionContext) -> str | None:
        """What the model reads of a result; None if that is the result itself."""
        owned = self.contributions.slots.get("tool_result_projector")
        if owned is None:
            return None
        hook = self.contributions.hook_of(owned.plugin_id, "tool_result_projector", owned.value)

        async def work(at: Current) -> str | None:
            return read_text(hook, await at.call(hook, ctx))

        return await self.runner.stage(work)

    # Lifecycle and settings

    async def emit_runtime_event(self, event: LifecycleEvent) -> None:
        """Tell all observers at once. Whatever they do, it is not fatal."""
        hooks, runner = self._hooks(_EVENT_KIND[type(event)]), self.runner
        told = (self._tell(hook, event) for hook in hooks)
        for place, problem in await all_within(runner.timeout_s, told, runner.spares):
            self._report(hooks[place].plugin_id, hooks[place].kind, problem)

    async def _tell(self, hook: RegisteredHook, event: LifecycleEvent) -> None:
        try:
            await self.runner.call(hook, event)
        except StandfastError as error:
            self._report(hook.plugin_id, hook.kind, error.message)

    async def mutate_session_config(self, ctx: SessionConfigChanged, policy: SessionPolicy) -> SessionPolicy:
        """The settings as the mutators leave them; one that fails leaves them as they were."""
        for hook in self._hooks("session_config_mutator"):
            policy = await self._mutated(hook, ctx, policy)
        return policy

    async def _mutated(
        self, hook: RegisteredHook, ctx: SessionConfigChanged, policy: SessionPolicy
    ) -> SessionPolicy:
        runner = self.runner
        try:
            answer = await within(runner.timeout_s, runner.call(hook, ctx, policy), runner.spares)
            return _of_same_provider(hook, policy, read_policy(hook, answer))
        except NoAnswer as problem:
            self._report(hook.plugin_id, hook.kind, str(problem))
        except StandfastError as error:
            self._report(hook.plugin_id, hook.kind, error.message)
        return policy

    # The protocol

    async def ask_protocol(self, method: str, *given: Any) -> Any:
        """Call a method of the protocol's session plugin, within the time that hooks have."""
        owner = self.contributions.slots["protocol_session"].plugin_id
        hook = self.contributions.hook_of(owner, method, getattr(self.protocol_session(), method))

        async def work(at: Current) -> Any:
            return await at.call(hook, *given)

        return await self.runner.stage(work)

    async def tell_protocol(self, method: str, *given: Any) -> None:
        """The same where nothing depends on it any more: a failure is told and goes no further."""
        try:
            await self.ask_protocol(method, *given)
        except StandfastError as error:
            owner = self.contributions.slots["protocol_session"].plugin_id
            self._report(owner, method, error.message)

    def configure_protocol(self, ctx: ProtocolRuntimeContext, opened: ProtocolSessionMaterialization) -> None:
        """Let the protocol read and set its options."""
        owned = self.contributions.slots["protocol_session"]
        method = "configure_runtime_on_materialize"
        hook = self.contributions.hook_of(owned.plugin_id, method, getattr(owned.value, method))
        self.runner.call_plain(hook, ctx, opened)

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        """What the protocol makes of a catalog."""
        owned = self.contributions.slots["protocol_driver"]
        hook = self.contributions.hook_of(owned.plugin_id, "build_preamble", owned.value.build_preamble)
        self.step.begin(hook.plugin_id, hook.kind)
        preamble = self.runner.call_plain(hook, given)
        if not isinstance(preamble, TurnDriverPreamble):
            problem = f"it answered with a {type(preamble).__name__}, not with TurnDriverPreamble"
            raise PluginFailed(owned.plugin_id, hook.kind, problem)
        return preamble

    # The catalog of tools

    def resolve_tool_catalog(self, ctx: ToolCatalogContext) -> ToolCatalog:
        """The tools of the session: as plugins, then the overlay, then the authority leave them."""
        found = []
        for hook in self._hooks("tool_catalog"):
            self.step.begin(hook.plugin_id, hook.kind)
            answer = self.runner.call_plain(hook, ctx)
            if answer is not None:
                found.append(read_catalog(hook, answer))
        return resolve_catalog(ctx.tools, found, self.tool_catalog_overlay, ctx.tool_access, ctx.found)

    # What is remembered

    @property
    def has_unknown_states(self) -> bool:
        """Whether a plugin has changed on a thread of its own and its state was not taken there since."""
        places = self._places
        return any(
            places[one.id].away is not None and one.revision and not self._memory(one).is_seen
            for one in self.plugins
        )

    async def take_states(self) -> None:
        """Take the states that are not known of plugins whose hooks run on a thread of their own, there."""
        for plugin in self.plugins:
            away, memory = self._places[plugin.id].away, self._memory(plugin)
            if away is None or self.is_known(plugin):
                continue

            async def refresh(memory: PluginMemory = memory) -> None:
                memory.refresh()

            try:
                await within(self.runner.timeout_s, away.run(refresh))
            except NoAnswer as problem:
                memory.problem = PluginStateLost(plugin.id, "snapshot", str(problem))

    # Forks

    def fork_for_session(self, session_id: str, step: BuildStep | None = None) -> PluginSession:
        """The same plugins with what they remember, for another session: no parent, all rights."""
        return self.fork_for_session_with_tool_catalog(session_id, self.tool_catalog_overlay, step)

    def fork_for_session_with_tool_catalog(
        self, session_id: str, overlay: ToolCatalogContribution, step: BuildStep | None = None
    ) -> PluginSession:
        """The same with another overlay over the catalog."""
        return self.host.fork(self, session_id, overlay=overlay, step=step)

    def fork_for_child_session(
        self,
        session_id: str,
        parent_session_id: str | None,
        authority: SessionAuthority,
        step: BuildStep | None = None,
    ) -> PluginSession:
        """The same for a session that works for another, with *authority* as far as this one has it."""
        return self.host.fork(
            self,
            session_id,
            parent_session_id=parent_session_id,
            authority=authority.within(self.authority),
            step=step,
        )

    # Actions

    async def invoke_plugin_action(
        self,
        name: str,
        arguments: Json = None,
        *,
        session_id: str | None = None,
        default_to_current_session: bool = True,
    ) -> Json:
        """Call an action with JSON and get JSON.

        Errors: `UnknownAction`, `MissingSession`, `UnexpectedSession`, `InvalidArgument`, `PluginFailed`.
        """
        call = self.prepare_plugin_action(
            name, arguments, session_id=session_id, default_to_current_session=default_to_current_session
        )

        async def work(at: Current) -> Any:
            return await at.call(call.hook, *call.given)

        return call.check(await self.runner.stage(work))

    def prepare_plugin_action(
        self,
        name: str,
        arguments: Json = None,
        *,
        session_id: str | None = None,
        default_to_current_session: bool = True,
    ) -> ActionCall:
        """Check a call of an action, and return it ready to be made; errors as of `invoke_plugin_action`."""
        action = self.contributions.actions.get(name)
        if action is None:
            known = ", ".join(sorted(self.contributions.actions)) or "none"
            raise UnknownAction(name, "does not exist", hint=f"the actions are {known}")
        wanted = action.definition.session_param
        current = self.session_id if default_to_current_session and wanted != "forbidden" else None
        ctx = PluginActionContext(session_id=action.session_for(session_id, current), host=self.hosts.action)
        given: tuple[Any, ...] = (ctx,) if action.takes is None else (ctx, action.read(arguments))
        hook = self.contributions.hook_of(action.definition.plugin_id, "action", action.handler)
        return ActionCall(action, hook, given, ctx.session_id)

    async def call_plugin_action(
        self, name: str, arguments: object = None, answer: type[T] | Any = Any, **where: Any
    ) -> T:
        """Call an action with values and get one of type *answer*."""
        check_bounds(arguments)
        raw = await self.invoke_plugin_action(name, msgspec.to_builtins(arguments), **where)
        try:
            value: T = msgspec.convert(raw, answer)
        except msgspec.ValidationError as error:
            owner = self.contributions.actions[name].definition.plugin_id
            raise PluginFailed(owner, f"action {name}", f"its answer does not fit: {error}") from None
        return value


class ActionCall(msgspec.Struct, frozen=True):
    """A call of an action that was checked: what is called with what, and the session it works on."""

    action: RegisteredAction
    hook: RegisteredHook
    given: tuple[Any, ...]
    session_id: str | None

    def check(self, answer: object) -> Json:
        """The answer as JSON, if it is what the action says it gives."""
        return self.action.check(read_json(self.hook, answer))


def _of_same_provider(hook: RegisteredHook, before: SessionPolicy, after: SessionPolicy) -> SessionPolicy:
    """Refuse a change of the provider: the session's history is of the one it has."""
    if same_provider(before.model, after.model):
        return after
    problem = f"it changed the model from {before.model} to {after.model}, which is of another provider"
    raise PluginFailed(hook.plugin_id, hook.kind, problem)


def _stages_of(contributions: Contributions, protocol: ProtocolSessionPlugin) -> tuple[Stage, ...]:
    """The stages at which a turn has to ask the plugins."""
    hooks = contributions.hooks
    prepares = any(hooks[kind] for kind in ("prompt_contributor", "context_transform", "compactor"))
    found: list[Stage] = []
    if hooks["before_turn"]:
        found.append("before_turn")
    if prepares or answers_for_model(protocol):
        found.append("prepare")
    if hooks["before_tool_call"]:
        found.append("before_tool_call")
    if hooks["checkpoint"]:
        found.append("checkpoint")
    if hooks["after_turn"]:
        found.append("after_turn")
    return tuple(found)


def answers_for_model(protocol: ProtocolSessionPlugin) -> bool:
    """Whether the protocol wants to be asked before the model is."""
    return type(protocol).before_llm_call is not ProtocolSessionPlugin.before_llm_call


__all__ = ["PluginSession", "answers_for_model"]
