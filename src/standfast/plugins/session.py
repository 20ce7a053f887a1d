"""The plugins of one session, and the host that builds them.

Rules
-----
1. Hooks run in the order that the table in `hook.py` gives. The caller decides how to handle a failure,
   except for observers and mutators: their failures are logged and traced and never propagate.
2. This module does not access the store. State to store is returned as values.
3. Each plugin is built and registers, in order; then `session_ready` is called on each; then each gets its
   stored state. If a plugin raises during this, `PluginFailed` names it and the session is not opened.
4. A session has exactly one protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, partialmethod
from typing import Any, Final, TypeVar

import msgspec

from standfast import errors
from standfast.machine.inputs import Stage
from standfast.model.canonical import Json, check_bounds
from standfast.model.capability import SessionToolAccess, ToolState
from standfast.model.directive import ReplaceToolArgs
from standfast.model.message import Message
from standfast.model.plugin_options import NO_OPTIONS, PluginOptions
from standfast.model.plugin_state import PluginSessionSnapshot
from standfast.model.prompt import PromptContribution, ordered
from standfast.model.session import SessionPolicy, same_provider
from standfast.plugins import answers, contexts
from standfast.plugins.actions import PluginActionContext, PluginActionDef, RegisteredAction
from standfast.plugins.directives import CallReview, OwnedDirective, PluginOwned, ResultReview
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
from standfast.plugins.plugin_states import CallStage, PluginMemory, PluginStates, Report
from standfast.plugins.protocol import (
    AssistantProseProjectorPlugin,
    CodeExecutorPlugin,
    ProtocolBuildInput,
    ProtocolDriverPlugin,
    ProtocolRuntimeContext,
    ProtocolSessionMaterialization,
    ProtocolSessionPlugin,
)
from standfast.plugins.registrar import Contributions, PluginRegistrar, collect_triggers
from standfast.plugins.running import (
    AT_HOME,
    BuildStep,
    HookRunner,
    NoAnswer,
    PluginPlace,
    RegisteredHook,
    RunningStage,
    all_within,
    at_once,
    within,
)
from standfast.plugins.turn_protocol import TurnDriverPreamble
from standfast.tools.loop_threads import SharedLoop
from standfast.tools.registry import (
    ASKED,
    StaticTools,
    ToolCatalog,
    ToolCatalogContribution,
    ToolRegistry,
    resolve_catalog,
)
from standfast.tools.tracebacks import described

T = TypeVar("T")

_EVENT_KIND: Final[dict[type, str]] = {
    contexts.TurnFinalized: "turn_finalized",
    contexts.TurnPersisted: "turn_persisted",
    contexts.SessionRestored: "session_restored",
    contexts.SessionConfigChanged: "session_config_changed",
}


_OPTIONAL: Final = (
    "initialize_session",
    "restore_session",
    "append_session_nodes",
    "validate_turn_extension",
)
"""The methods of a protocol's session plugin that do nothing unless they are overridden."""
_ALL_TOOLS = SessionToolAccess()
_NO_OVERLAY = ToolCatalogContribution()


class SessionAuthority(msgspec.Struct, frozen=True):
    """The rights of a session: its tools, its parent if it is a subagent's, the options of its plugins."""

    tool_access: SessionToolAccess = _ALL_TOOLS
    subagent: contexts.SubagentContext | None = None
    plugin_options: PluginOptions = NO_OPTIONS

    def within(self, parent: SessionAuthority) -> SessionAuthority:
        """Return these rights, limited to those of *parent*."""
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


class PluginSession(PluginStates):
    """The plugins of one session, built by a `PluginHost`. Used on the runtime's loop."""

    __slots__ = (
        "_hooks", "assistant_prose_projector", "authority", "code_executor", "contributions", "extensions",
        "given_tools", "host", "hosts", "protocol_driver", "protocol_session", "runner", "session_id",
        "stages", "subagent_context", "tool_access", "tool_catalog_overlay", "tool_registry", "triggers",
    )  # fmt: skip

    def __init__(
        self,
        host: PluginHost,
        build: SessionBuild,
        plugins: Sequence[SessionPlugin],
        contributions: Contributions,
        registry: ToolRegistry,
        extensions: contexts.PluginExtensions,
        step: BuildStep,
    ) -> None:
        super().__init__(plugins, contributions.places, host.report, step, host.runner.timeout_s)
        self.host = host
        self.session_id = build.session_id
        self.tool_registry = registry
        self.tool_catalog_overlay = build.overlay
        self.authority = build.authority
        self.extensions = extensions
        self.contributions = contributions
        self._hooks = contributions.hooks
        self.runner = host.runner
        self.hosts: contexts.SessionHosts = contexts.NoHosts()
        self.given_tools: object = registry.table
        """The registry's settings before the session changed any of its tools."""
        self.tool_access = build.authority.tool_access
        self.subagent_context = build.authority.subagent
        self.triggers = contributions.triggers
        slots = {name: owned.value for name, owned in contributions.slots.items()}
        self.protocol_session: ProtocolSessionPlugin = slots["protocol_session"]
        self.protocol_driver: ProtocolDriverPlugin = slots["protocol_driver"]
        self.code_executor: CodeExecutorPlugin | None = slots.get("code_executor")
        self.assistant_prose_projector: AssistantProseProjectorPlugin | None = slots.get("prose_projector")
        self.stages = _stages_of(contributions, self.protocol_session)

    def plugin_actions(self) -> list[PluginActionDef]:
        return [action.definition for action in self.contributions.actions.values()]

    def has_assistant_stream_hooks(self) -> bool:
        return bool(self._hooks["assistant_stream"])

    def has_runtime_event_hooks(self, kind: str) -> bool:
        return bool(self._hooks[kind])

    # The context of a model call

    async def prepare_turn_context(
        self, ctx: contexts.TurnTransformContext, messages: list[Message], at: RunningStage
    ) -> list[Message]:
        """Apply the transforms to *messages*, one after the other."""
        copy = messages.copy()
        for hook in self._hooks["context_transform"]:
            answer = await at.call(hook, ctx, copy)
            left = answers.read_messages(hook, messages, answer)
            if left is not messages or answer is not copy:
                copy = left.copy()  # a fresh copy, as the hook may have changed or kept the last
            messages = left
        return messages

    async def compact_context(
        self, ctx: contexts.CompactionContext, at: RunningStage
    ) -> contexts.ContextCompaction | None:
        """Return the first compaction of earlier turns that a compactor returns, or None."""
        for hook in self._hooks["compactor"]:
            answer = await at.call(hook, ctx)
            if answer is not None and not (compaction := answers.read_compaction(hook, answer)).is_empty:
                return compaction
        return None

    async def collect_prompt_contributions(
        self, ctx: contexts.PromptHookContext, at: RunningStage, by: dict[int, str] | None = None
    ) -> list[PromptContribution]:
        """Return the plugins' contributions to the prompt, in order and without duplicates.

        If given, *by* is filled with the plugin of each contribution, by the contribution's `id()`.
        """
        found: list[PromptContribution] = []
        for hook in self._hooks["prompt_contributor"]:
            said = answers.read_contributions(hook, await at.call(hook, ctx))
            found.extend(said)
            if by is not None:
                by.update({id(one): hook.plugin_id for one in said})
        return ordered(found)

    # Turns and calls

    async def _directives(self, kind: str, ctx: object) -> list[OwnedDirective]:
        hooks = self._hooks[kind]
        if not hooks:
            return []

        async def work(at: RunningStage) -> list[OwnedDirective]:
            found: list[OwnedDirective] = []
            for hook in hooks:
                if (answer := await at.call(hook, ctx)) is not None:
                    found += answers.read_directives(hook, answer)
            return found

        return await self.runner.stage(work)

    before_turn = partialmethod(_directives, "before_turn")
    at_checkpoint = partialmethod(_directives, "checkpoint")
    after_turn = partialmethod(_directives, "after_turn")

    async def before_tool_call(self, ctx: contexts.ToolCallHookContext) -> list[OwnedDirective]:
        """Return the directives about a call; if the arguments were replaced, the last one replaces them."""
        review = await self.review_call(ctx)
        if review.arguments is None or review.replaced_by is None:
            return review.directives
        replaced = ReplaceToolArgs(arguments=review.arguments)
        return [*review.directives, PluginOwned(review.replaced_by, replaced)]

    async def review_call(self, ctx: contexts.ToolCallHookContext) -> CallReview:
        """Ask the plugins about a call; raise `PluginConflict` if they cannot agree on its arguments."""

        async def work(at: RunningStage) -> CallReview:
            async def ask(hook: RegisteredHook, now: contexts.ToolCallHookContext) -> list[OwnedDirective]:
                return answers.read_directives(hook, await at.call(hook, now))

            review = CallReview(ctx, ask)
            await review.run(self._hooks["before_tool_call"])
            return review

        return await self.runner.stage(work)

    async def after_tool_call(self, ctx: contexts.ToolResultHookContext) -> list[OwnedDirective]:
        return (await self.review_result(ctx)).directives

    async def review_result(self, ctx: contexts.ToolResultHookContext) -> ResultReview:
        """Ask the plugins about a result; each sees it as changed by the plugins before it."""

        async def work(at: RunningStage) -> ResultReview:
            review = ResultReview(ctx)
            for hook in self._hooks["after_tool_call"]:
                review.take(answers.read_directives(hook, await at.call(hook, review.context)))
            return review

        return await self.runner.stage(work)

    # The model's reply

    async def transform_assistant_stream(
        self, ctx: contexts.AssistantStreamHookContext
    ) -> list[PluginOwned[contexts.AssistantStreamTransform]]:
        """Return each plugin's version of a piece of the reply; the last one is shown."""
        return await self._chain("assistant_stream", ctx, "chunk", answers.read_chunk)

    async def transform_assistant_response(
        self, ctx: contexts.AssistantResponseHookContext
    ) -> list[PluginOwned[contexts.AssistantResponseTransform]]:
        """Return each plugin's version of the whole reply; the last one is used."""

        def read(hook: RegisteredHook, answer: object) -> contexts.AssistantResponseTransform:
            if answer is ctx.response:  # unchanged
                return contexts.AssistantResponseTransform(ctx.response)
            return answers.read_response(hook, answer)

        return await self._chain("assistant_response", ctx, "response", read)

    async def _chain(
        self, kind: str, ctx: Any, field: str, read: Callable[[RegisteredHook, object], T]
    ) -> list[PluginOwned[T]]:
        """Call the hooks one after the other; each gets the *field* as the one before it returned it."""

        async def work(at: RunningStage) -> list[PluginOwned[T]]:
            now, found = ctx, []
            for hook in self._hooks[kind]:
                made = read(hook, await at.call(hook, now))
                now = msgspec.structs.replace(now, **{field: getattr(made, field)})
                found.append(PluginOwned(hook.plugin_id, made))
            return found

        return await self.runner.stage(work)

    async def project_tool_result(self, ctx: contexts.ToolResultProjectionContext) -> str | None:
        """Return the text of a result that the model reads; None for the result itself."""
        owned = self.contributions.slots.get("tool_result_projector")
        if owned is None:
            return None
        hook = self.contributions.hook_of(owned.plugin_id, "tool_result_projector", owned.value)
        return answers.read_text(hook, await self.runner.ask(hook, ctx))

    # Lifecycle and settings

    async def emit_runtime_event(self, event: contexts.LifecycleEvent) -> None:
        """Call all observers concurrently. Their failures are reported and never propagate."""
        hooks, runner = self._hooks[_EVENT_KIND[type(event)]], self.runner

        async def call(hook: RegisteredHook) -> None:
            try:
                await runner.call(hook, event)
            except errors.StandfastError as error:
                self._report(hook.plugin_id, hook.kind, error.message)

        for place, problem in await all_within(runner.timeout_s, map(call, hooks), runner.spares):
            self._report(hooks[place].plugin_id, hooks[place].kind, problem)

    async def mutate_session_config(
        self, ctx: contexts.SessionConfigChanged, policy: SessionPolicy
    ) -> SessionPolicy:
        """Apply the mutators in order; ignore one that fails or changes the model's provider."""
        runner = self.runner
        for hook in self._hooks["session_config_mutator"]:
            try:
                answer = await within(runner.timeout_s, runner.call(hook, ctx, policy), runner.spares)
                after = answers.read_policy(hook, answer)
                if same_provider(policy.model, after.model):
                    policy = after
                    continue
                problem = f"it changed the provider of the model, from {policy.model} to {after.model}"
                self._report(hook.plugin_id, hook.kind, problem)
            except NoAnswer as late:
                self._report(hook.plugin_id, hook.kind, str(late))
            except errors.StandfastError as error:
                self._report(hook.plugin_id, hook.kind, error.message)
        return policy

    # The protocol

    async def ask_protocol(self, method: str, *given: Any) -> Any:
        """Call a method of the protocol's session plugin, within the hook timeout."""
        if method in _OPTIONAL and not self._overrides(method):
            return None
        return await self.runner.ask(self.contributions.protocol_hook(method), *given)

    def _overrides(self, method: str) -> bool:
        """Return whether the protocol has its own version of a method that does nothing by default."""
        mine = getattr(type(self.protocol_session), method, None)
        return mine is not getattr(ProtocolSessionPlugin, method)

    async def tell_protocol(self, method: str, *given: Any) -> None:
        """Call a method of the protocol's session plugin; report a failure instead of raising it."""
        try:
            await self.ask_protocol(method, *given)
        except errors.StandfastError as error:
            self._report(self.contributions.slots["protocol_session"].plugin_id, method, error.message)

    def configure_protocol(self, ctx: ProtocolRuntimeContext, opened: ProtocolSessionMaterialization) -> None:
        """Let the protocol read and set its options."""
        if self._overrides("configure_runtime_on_materialize"):
            hook = self.contributions.protocol_hook("configure_runtime_on_materialize")
            self.runner.call_plain(hook, ctx, opened)

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        """Return the protocol's preamble for a catalog."""
        owned = self.contributions.slots["protocol_driver"]
        hook = self.contributions.hook_of(owned.plugin_id, "build_preamble", owned.value.build_preamble)
        self.step.begin(hook.plugin_id, hook.kind)
        preamble = self.runner.call_plain(hook, given)
        if not isinstance(preamble, TurnDriverPreamble):
            problem = f"it answered with a {type(preamble).__name__}, not with TurnDriverPreamble"
            raise errors.PluginFailed(owned.plugin_id, hook.kind, problem)
        return preamble

    # The catalog of tools

    def resolve_tool_catalog(self, ctx: contexts.ToolCatalogContext) -> ToolCatalog:
        """Return the session's tools, changed by the plugins, then the overlay, then the authority."""
        found = []
        for hook in self._hooks["tool_catalog"]:
            self.step.begin(hook.plugin_id, hook.kind)
            answer = self.runner.call_plain(hook, ctx)
            if answer is not None:
                found.append(answers.read_catalog(hook, answer))
        return resolve_catalog(ctx.tools, found, self.tool_catalog_overlay, ctx.tool_access, ctx.found)

    # Forks

    def fork_for_session(self, session_id: str, step: BuildStep | None = None) -> PluginSession:
        """Build the same plugins with their state for another session that has no parent and all rights."""
        return self.fork_for_session_with_tool_catalog(session_id, self.tool_catalog_overlay, step)

    def fork_for_session_with_tool_catalog(
        self, session_id: str, overlay: ToolCatalogContribution, step: BuildStep | None = None
    ) -> PluginSession:
        """Like `fork_for_session`, with another catalog overlay."""
        return self.host.fork(self, session_id, overlay=overlay, step=step)

    def fork_for_child_session(
        self,
        session_id: str,
        parent_session_id: str | None,
        authority: SessionAuthority,
        step: BuildStep | None = None,
    ) -> PluginSession:
        """Like `fork_for_session`, for a child session, with *authority* limited to this session's."""
        return self.host.fork(
            self,
            session_id,
            parent_session_id=parent_session_id,
            authority=authority.within(self.authority),
            step=step,
        )

    # Actions

    async def invoke_plugin_action(self, name: str, arguments: Json = None, **where: Any) -> Json:
        """Call an action with JSON arguments and return its JSON answer.

        *where* is passed to `prepare_plugin_action`.

        Raises `UnknownAction`, `MissingSession`, `UnexpectedSession`, `InvalidArgument`, `PluginFailed`.
        """
        call = self.prepare_plugin_action(name, arguments, **where)
        return call.check(await self.runner.ask(call.hook, *call.given))

    def prepare_plugin_action(
        self,
        name: str,
        arguments: Json = None,
        *,
        session_id: str | None = None,
        default_to_current_session: bool = True,
    ) -> ActionCall:
        """Check a call of an action and return it. Raise the same errors as `invoke_plugin_action`."""
        action = self.contributions.actions.get(name)
        if action is None:
            known = ", ".join(sorted(self.contributions.actions)) or "none"
            raise errors.UnknownAction(name, "does not exist", hint=f"the actions are {known}")
        wanted = action.definition.session_param
        current = self.session_id if default_to_current_session and wanted != "forbidden" else None
        ctx = PluginActionContext(session_id=action.session_for(session_id, current), host=self.hosts.action)
        given: tuple[Any, ...] = (ctx,) if action.takes is None else (ctx, action.read(arguments))
        hook = self.contributions.hook_of(action.definition.plugin_id, "action", action.handler)
        return ActionCall(action, hook, given, ctx.session_id)

    async def call_plugin_action(
        self, name: str, arguments: object = None, answer: type[T] | Any = Any, **where: Any
    ) -> T:
        """Call an action with a typed argument; return its answer converted to the type *answer*."""
        check_bounds(arguments)
        raw = await self.invoke_plugin_action(name, msgspec.to_builtins(arguments), **where)
        try:
            value: T = msgspec.convert(raw, answer)
        except msgspec.ValidationError as error:
            owner = self.contributions.actions[name].definition.plugin_id
            raise errors.PluginFailed(owner, f"action {name}", f"its answer is invalid: {error}") from None
        return value


class ActionCall(msgspec.Struct, frozen=True):
    """A checked call of an action."""

    action: RegisteredAction
    hook: RegisteredHook
    given: tuple[Any, ...]
    session_id: str | None

    def check(self, answer: object) -> Json:
        """Return the answer as JSON; raise if it does not match the action's declared type."""
        return self.action.check(answers.read_json(self.hook, answer))


def _stages_of(contributions: Contributions, protocol: ProtocolSessionPlugin) -> tuple[Stage, ...]:
    """Return the stages of a turn at which the plugins have hooks."""
    hooks = contributions.hooks
    prepares = hooks["prompt_contributor"] or hooks["context_transform"] or hooks["compactor"]
    asked: dict[Stage, bool] = {
        "before_turn": bool(hooks["before_turn"]),
        "prepare": bool(prepares) or answers_for_model(protocol),
        "before_tool_call": bool(hooks["before_tool_call"]),
        "checkpoint": bool(hooks["checkpoint"]),
        "after_turn": bool(hooks["after_turn"]),
    }
    return tuple(stage for stage, is_asked in asked.items() if is_asked)


def answers_for_model(protocol: ProtocolSessionPlugin) -> bool:
    """Return whether the protocol overrides `before_llm_call`."""
    return type(protocol).before_llm_call is not ProtocolSessionPlugin.before_llm_call


class PluginHost:
    """The plugin factories of an agent, from which the plugins of each session are built."""

    def __init__(
        self,
        factories: Iterable[object],
        tools: ToolRegistry,
        *,
        storage_of: Any,
        report: Report,
        runner: HookRunner | None = None,
        read_attachment: Any = None,
        hosts_of: Callable[[str], contexts.SessionHosts] = lambda session_id: contexts.NoHosts(),
    ) -> None:
        self.factories = [as_factory(one) for one in factories]
        seen: dict[str, PluginFactory] = {}
        for factory in self.factories:
            if (other := seen.setdefault(factory.id, factory)) is not factory:
                raise errors.PluginConflict(
                    f"the id {factory.id!r}", repr(other), repr(factory), hint="pass it only once"
                )
        self.tools = tools
        self.runner = runner or HookRunner()
        self._storage_of = storage_of
        self.report = report
        self.shared_artifact: tuple[object, Any] = (None, None)
        """The catalog that sessions with the same tools share, and the registry settings it is built from."""
        self.shared_prompt: Any = None
        """The composed prompt that sessions without an overlay share."""
        self.prompts: dict[tuple[PromptContribution, ...], str] = {}
        """The prompts that were rendered last, by what they are rendered from."""
        self.prompt_records: list[Any] = []
        """The records of prompts that were stored last, the most recently used first."""
        self._read_attachment = read_attachment
        self._hosts_of = hosts_of

    async def open_session(self, build: SessionBuild) -> PluginSession:
        """Build the plugins of one session, on a thread other than the runtime's."""
        step = BuildStep()
        if self.tools.outdated():
            await self.aside(self.tools.refresh, step, asks_sources=True)
        return await self.aside(lambda: self.build_session(build, step), step)

    async def aside(self, work: Callable[[], T], step: BuildStep, *, asks_sources: bool = False) -> T:
        """Call *work*, which calls plain functions of plugins, on a thread other than the runtime's.

        If it exceeds the hook timeout, raise `PluginFailed` for the plugin of *step*, or, with
        *asks_sources*, `BadToolSource` for the tool source that *work* is calling.
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
                raise errors.BadToolSource(claimant, f"failed in {method}: {problem}") from None
            raise step.late(problem) from None

    def build_session(self, build: SessionBuild, step: BuildStep | None = None) -> PluginSession:
        """Build the plugins of one session with their state. *step* records which plugin is being called."""
        step = step or BuildStep()
        hosts, extensions = self._hosts_of(build.session_id), contexts.PluginExtensions()
        contributions = Contributions()
        places: dict[PluginLoop | None, PluginPlace] = {}
        ready: list[Callable[[], None]] = []
        plugins: list[SessionPlugin] = []
        unwritten: set[CallStage] = set()
        for factory in self.factories:
            ctx = PluginSessionContext(
                session_id=build.session_id,
                extensions=extensions,
                storage=self._storage_of(factory.id),
                options=build.authority.plugin_options,
                parent_session_id=build.parent_session_id,
                subagent=build.authority.subagent,
                read_attachment=self._read_attachment,
                host=hosts.session,
            )
            plugin = _built(factory, ctx, step)
            memory = PluginMemory(plugin, unwritten, says_changes=isinstance(plugin, Plugin))
            loop = loop_of(plugin)
            place = places[loop] = places.get(loop) or self._place(loop)
            contributions.places[plugin.id] = msgspec.structs.replace(place, memory=memory)
            _attempt(step, factory.id, "register", plugin.register, PluginRegistrar(plugin.id, contributions))
            plugins.append(plugin)
            if getattr(type(plugin), "session_ready", None) is not Plugin.session_ready:
                ready.append(partial(_attempt, step, plugin.id, "session_ready", plugin.session_ready, ctx))
        contributions.sort()
        collect_triggers(contributions, self.runner, step)
        for slot in ("protocol_session", "protocol_driver"):
            if slot not in contributions.slots:
                hint = 'pass protocol="standard" or a protocol plugin'
                raise errors.InvalidPlugin(f"no plugin fills the slot {slot}", hint=hint)
        registry = self._registry(contributions)
        given_tools = registry.table
        if build.tool_state is not None:
            registry.restore_state(build.tool_state)
        for call in ready:
            call()
        session = PluginSession(self, build, plugins, contributions, registry, extensions, step)
        session.hosts, session.unwritten, session.given_tools = hosts, unwritten, given_tools
        session.restore(build.snapshot or PluginSessionSnapshot(), build.fetched)
        return session

    def _place(self, loop: PluginLoop | None) -> PluginPlace:
        """Return where the plugins of one session that declare *loop* run."""
        loops, stalls = self.runner.loops, self.runner.stalls
        if loops is None or loop is None:
            return AT_HOME
        return PluginPlace(away=SharedLoop(loops) if loop == "own" else None, stalls=stalls)

    def _registry(self, contributions: Contributions) -> ToolRegistry:
        """Return the tools of one session: the agent's and those of its plugins."""
        registry = self.tools.fork()
        for plugin_id, tools in contributions.tools.items():
            registry.upsert(f"plugin:{plugin_id}", StaticTools(tools, prefix=f"{plugin_id}."))
        for source, provider in contributions.providers:
            registry.upsert(source, provider)
        return registry

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
                tool_state=None if tools.table is source.given_tools else tools.export_state(),
                overlay=source.tool_catalog_overlay if overlay is None else overlay,
                authority=authority,
            ),
            step,
        )


def _built(factory: PluginFactory, ctx: PluginSessionContext, step: BuildStep) -> SessionPlugin:
    """Build a plugin; raise `InvalidPlugin` if the result is not a plugin or its id is not the factory's."""
    plugin = _attempt(step, factory.id, "build", factory.build, ctx)
    if not isinstance(plugin, (Plugin, SessionPlugin)):
        problem = f"built a {type(plugin).__name__}, which is not a plugin"
        raise errors.InvalidPlugin(f"factory {factory.id!r} {problem}")
    if plugin.id != factory.id:
        raise errors.InvalidPlugin(f"factory {factory.id!r} built a plugin with the id {plugin.id!r}")
    return plugin


def _attempt(step: BuildStep, plugin_id: str, what: str, function: Any, *given: Any) -> Any:
    step.begin(plugin_id, what)
    try:
        return at_once(function(*given))
    except errors.StandfastError as error:
        if repr(plugin_id) in error.message:
            raise
        if isinstance(error, errors.InvalidPlugin):
            raise errors.InvalidPlugin(f"plugin {plugin_id!r}: {error.message}", hint=error.hint) from None
        raise errors.PluginFailed(plugin_id, what, error.message, hint=error.hint) from error
    except BaseException as error:
        raise errors.PluginFailed(plugin_id, what, described(error)) from error
