"""The hooks of one turn: runs the stages that the machine requests and returns their rulings as inputs.

Rules
-----
1. The values that these methods return are journaled; a process that takes over the turn needs nothing else.
2. A hook that fails ends the turn, or fails its call, as the table in `hook.py` says. Its exception is never
   raised to the driver.
3. Sessions that plugins request are created before their ruling is journaled, under names that a second
   attempt would choose again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, overload

import msgspec

from standfast import errors
from standfast.durable.effects import ChangedState
from standfast.graph.history import answered
from standfast.machine.commands import PrepareCall, RunHooks
from standfast.machine.inputs import CallPrepared, CallRuled, HooksRan, Input, KeptRange, ToolSettled, View
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import Json, digest_bytes, encode_sorted
from standfast.model.capability import CallStatus, Capability, ExternalCallRecord, SideEffect
from standfast.model.directive import SessionRequest
from standfast.model.events import Event
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall, UserMessage
from standfast.model.outcome import Ended
from standfast.model.plugin_state import encode_entry, encode_state
from standfast.model.prompt import PromptContribution
from standfast.model.prompt_record import named_parts
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.session import SessionHead
from standfast.plugins import contexts, protocol, turn_protocol
from standfast.plugins.answers import read_switch
from standfast.plugins.directives import ComposedRuling, compose, compose_call
from standfast.plugins.plugin_states import STAGE, CallStage
from standfast.plugins.running import RunningStage
from standfast.plugins.runtime_services import Cost, RuntimeServices
from standfast.plugins.session import answers_for_model
from standfast.plugins.session_context import SessionContext
from standfast.ports.model_provider import ModelProvider, ModelRequest, ReplyEnded, open_stream
from standfast.ports.session_store import Blob, JournalEntry
from standfast.tools.context import Attachments, Triggers, cut_texts
from standfast.tools.dispatch import Dispatcher
from standfast.tools.loop_threads import at_home
from standfast.tools.tracebacks import described

Occur = Callable[[str, str, Json], Awaitable[int]]
"""Reports an occurrence by source, key and payload; returns how many turns it starts."""

MakeRequest = Callable[[str, list[Message]], ModelRequest]
"""Makes the request of a model call from a prompt and a list of messages, which it may keep."""


class TurnContext:
    """The objects that one turn uses.

    *history* is the list of earlier messages that the model sees; if *shows_attachments*, results in it may
    have attachments. *plugin_model* serves the requests of plugins, tools and code. *create_session* creates
    a session that a plugin requests, under a key that a second attempt would choose again.
    """

    __slots__ = (
        "account", "create_session", "deps", "dispatcher", "executor", "head", "history", "hooks",
        "instructions", "layers", "machine", "model", "occur", "output", "plugin_model", "preamble",
        "projector", "recorded", "render", "services", "session", "session_id", "settings", "show",
        "shows_attachments", "turn_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        services: RuntimeServices,
        session: SessionContext,
        head: SessionHead,
        machine: TurnMachine,
        history: list[Message],
        model: ModelProvider,
        plugin_model: ModelProvider,
        dispatcher: Dispatcher,
        show: Callable[[Event], None],
        create_session: Callable[[SessionRequest, str], Awaitable[None]],
        occur: Occur,
        shows_attachments: bool = True,
        output: turn_protocol.OutputContract | None = None,
        deps: Any = None,
    ) -> None:
        self.services = services
        self.session = session
        self.head = head
        self.machine = machine
        self.history = history
        self.model = model
        self.plugin_model = plugin_model
        self.dispatcher = dispatcher
        self.show = show
        self.create_session = create_session
        self.occur = occur
        self.shows_attachments = shows_attachments
        self.output = output
        self.deps = deps
        self.recorded: tuple[tuple[Capability, ...], dict[str, Any], str] = ((), {}, "")
        """The tools and settings of the last model call, and the digest of their `PromptRecord`."""
        self.session_id = session.plugins.session_id
        self.turn_id = self.machine.turn_id
        self.settings = {**session.policy.settings, **self.machine.settings}
        self.preamble = session.artifact().preamble
        prompt = session.composed_prompt()
        self.layers = prompt.layers
        self.render = session.renderer(prompt, self.machine.prompt_layer, self.preamble.prompt)
        self.instructions = self.render(())
        self.executor = session.plugins.code_executor
        self.projector = session.plugins.assistant_prose_projector
        self.account = ModelAccount(self)
        self.hooks = TurnHooks(self)


class ModelAccount:
    """The model calls that plugins, tools and code make in a turn, and their cost.

    It has no reference to the turn's context, which refers to it: without cycles, a turn is freed
    immediately.
    """

    def __init__(self, turn: TurnContext) -> None:
        self._machine = turn.machine
        self._model_id = turn.model.model_id
        self._plugin_model = turn.plugin_model
        self._settings = turn.settings
        self._session_id = turn.session_id
        self._earlier_calls = turn.head.model_calls
        self._read_blob = turn.services.store.blob
        self._cost = turn.services.cost_of(self._model_id)
        self.priced = partial(priced, self._cost, self._model_id)
        """Returns the usage of a reply of the turn's own model, with its cost if that is known."""
        self._home = asyncio.get_running_loop()
        self._spent: tuple[UsageEntry, ...] = ()
        self._calls = 0
        self._last_call = 0
        self.is_over = False

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        source: str = "",
        output_schema: dict[str, Any] | None = None,
    ) -> str:
        """Request text from the session's model. May be called on any loop."""
        request = ModelRequest(
            messages=list(messages),
            instructions=instructions,
            output_schema=output_schema,
            settings=self._settings,
        )
        reply, _ = await at_home(self._home, self.ask, request, source or "plugin")
        return reply.text

    async def ask(
        self, request: ModelRequest, source: str, model: ModelProvider | None = None
    ) -> tuple[ReplyEnded, UsageEntry]:
        """Call a model and charge the turn; return the whole reply and its ledger entry.

        Raise `ModelError` if the turn's limits allow no further call. Once the turn `is_over`, the caller
        must write the entry itself.
        """
        machine, model = self._machine, model or self._plugin_model
        # Several calls may run concurrently, and the machine knows only those already charged.
        made = max(self._last_call, machine.account.model_calls)
        if (refusal := machine.refuses_call(made, self._spent)) is not None:
            raise errors.ModelError(refusal.message, code=refusal.code, hint=refusal.hint)
        number = self._last_call = made + 1
        numbered = msgspec.structs.replace(
            request,
            session_id=self._session_id,
            turn_id=machine.turn_id,
            call_number=self._earlier_calls + number,
            idempotency_key=f"{machine.turn_id}.plugin.{number}",
            read_blob=request.read_blob or self._read_blob,
        )
        try:
            reply, entry = await charged_reply(model, numbered, source, self._cost)
        finally:
            self._calls += 1
        if not self.is_over:
            self._spent += (entry,)
        return reply, entry

    def charge(self, ruling: Ruling) -> Ruling:
        """Add the calls that are not charged yet to *ruling*."""
        if not self._calls:
            return ruling
        spent, calls = self._take()
        return msgspec.structs.replace(
            ruling, usage=(*ruling.usage, *spent), model_calls=ruling.model_calls + calls
        )

    def charged(self, settled: ToolSettled) -> ToolSettled:
        """Add the calls that are not charged yet to the result of a tool call."""
        if not self._calls:
            return settled
        return msgspec.structs.replace(settled, ruling=self.charge(settled.ruling))

    def end(self) -> tuple[tuple[UsageEntry, ...], int]:
        """End the account with the turn; return the entries and the number of calls not charged yet."""
        self.is_over = True
        return self._take()

    def _take(self) -> tuple[tuple[UsageEntry, ...], int]:
        spent, calls = self._spent, self._calls
        self._spent, self._calls = (), 0
        return spent, calls


class HeldResults:
    """Call results that are held back until the plugin states to be written with them are complete.

    A plugin's state after the hooks of one call may contain changes by the hooks of other calls. The results
    of such calls are delivered together, so that one transaction writes them.
    """

    def __init__(self, unwritten: set[CallStage]) -> None:
        self._unwritten = unwritten
        self.stages: dict[str, CallStage] = {}

    @contextlib.contextmanager
    def stage(self, key: str) -> Iterator[CallStage]:
        """Return a context in which the hooks around a call run; their outcome is the input *key*."""
        stage = self.stages[key] = CallStage()
        self._unwritten.add(stage)
        outer = STAGE.set(stage)
        try:
            yield stage
        except BaseException:  # the turn has ended or failed
            stage.is_over = True
            self._release()
            raise
        finally:
            STAGE.reset(outer)

    def deliver(self, call_id: int, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which delivers the result of a call, as soon as plugin states allow."""
        stage = self.stages.get(f"tool.{call_id}")
        if stage is None:
            deliver()
            return
        stage.deliver = deliver
        self._release()

    async def settles(self, call: int | CallStage) -> None:
        """Wait until the caller may deliver the result of a call, or the outcome of a stage."""
        stage = self.stages.get(f"tool.{call}") if isinstance(call, int) else call
        if stage is None:
            return
        released = asyncio.get_running_loop().create_future()
        stage.deliver = lambda: None if released.done() else released.set_result(None)
        self._release()
        if not released.done():
            await released

    def _release(self) -> None:
        """Deliver the outcomes of all stages that depend only on each other and on stages before them."""
        held = [stage for stage in self.stages.values() if stage.deliver is not None]
        ready = set(held)
        while blocked := {one for one in ready if any(not (x.is_over or x in ready) for x in one.within)}:
            ready -= blocked
        released = [stage for stage in held if stage in ready]
        for stage in released:
            stage.is_over = True
        for stage in released:
            deliver, stage.deliver = stage.deliver, None
            assert deliver is not None
            deliver()

    def drop(self) -> None:
        """Discard the held results, because their calls were abandoned."""
        for stage in self.stages.values():
            stage.deliver = None

    def take(self, given: Input | None) -> CallStage | None:
        """Remove and return the stage whose outcome is *given*."""
        if isinstance(given, ToolSettled):
            return self.stages.pop(f"tool.{given.call_id}", None)
        return self.stages.pop(f"ruled.{given.call_id}", None) if isinstance(given, CallRuled) else None


class TurnHooks:
    """The hooks of one turn, and the attachments and plugin states that it journals. Used on the turn's loop.

    Like `ModelAccount`, it has no reference to the turn's context.
    """

    def __init__(self, turn: TurnContext) -> None:
        self._services = turn.services
        self._session = turn.session
        self._history = turn.history
        self._account = turn.account
        self._deps = turn.deps
        self._layers, self._preamble = turn.layers, turn.preamble.prompt
        self._render = turn.render
        self._create_session = turn.create_session
        self._occur = turn.occur
        self._plugins = plugins = turn.session.plugins
        self._machine = turn.machine
        self._home = asyncio.get_running_loop()
        self._blobs: list[Blob] = []
        self._keepers: dict[int, _AttachmentKeeper] = {}
        plugins.unwritten.clear()  # do not wait for hooks of an earlier turn
        self._held = held = HeldResults(plugins.unwritten)
        hooks, slots = plugins.contributions.hooks, plugins.contributions.slots
        self.judges = bool(hooks["after_tool_call"] or "tool_result_projector" in slots)
        """Whether plugins have hooks on the results of calls."""
        self.has_plugins_away = plugins.has_plugins_away
        self.shows_streams = bool(hooks["assistant_stream"])
        """Whether plugins have hooks on each piece of a reply."""
        self.sees_replies = bool(hooks["assistant_response"])
        """Whether plugins have hooks on whole replies."""
        self.spares = plugins.runner.spares
        self.tool_host = plugins.hosts.tool
        self.complete, self.charged = turn.account.complete, turn.account.charged
        self.kept = turn.session.kept
        self.deliver, self.settles, self.drop_held = held.deliver, held.settles, held.drop

    @cached_property
    def _common(self) -> dict[str, Any]:
        """Return the fields that the contexts of all hooks share."""
        return {
            "session_id": self._plugins.session_id,
            "turn_id": self._machine.turn_id,
            "extensions": self._plugins.extensions,
            "extension": self._machine.extension,
            "deps": self._deps,
        }

    def attachments_of(self, call_id: int) -> Attachments:
        """Return the `Attachments` of a call's tool; `with_attachments` adds them to its result."""
        keeper = self._keepers[call_id] = _AttachmentKeeper(self)
        return keeper

    def with_attachments(self, settled: ToolSettled) -> ToolSettled:
        """Add the attachments and texts of a call's tool to its result; a failure has no texts."""
        keeper = self._keepers.pop(settled.call_id, None)
        if keeper is None or not (keeper.kept or keeper.texts):
            return settled
        return msgspec.structs.replace(
            settled,
            attachments=(*settled.attachments, *keeper.kept),
            texts=() if settled.error is not None else cut_texts(keeper.texts),
        )

    def triggers_of(self, key: str) -> Triggers:
        """Return the `Triggers` of a call with the idempotency *key*."""
        return _CallTriggers(self._session, self._occur, self._home, key)

    async def run_hooks(self, command: RunHooks) -> HooksRan:
        plugins, machine, hosts = self._plugins, self._machine, self._plugins.hosts
        common = {**self._common, "complete": self.complete}
        try:
            match command.stage:
                case "before_turn":
                    said = [one for one in machine.messages if isinstance(one, UserMessage)]
                    earlier = EarlierMessages(self._history)
                    wanted = await plugins.before_turn(
                        contexts.TurnHookContext(**common, input=said[-1], messages=earlier, host=hosts.turn)
                    )
                case "after_turn":
                    assert command.outcome is not None
                    wanted = await plugins.after_turn(
                        contexts.TurnResultHookContext(
                            **common,
                            outcome=command.outcome,
                            messages=tuple(machine.messages),
                            usage=machine.account.usage,
                            host=hosts.turn_result,
                        )
                    )
                case checkpoint:
                    wanted = await plugins.at_checkpoint(
                        contexts.CheckpointHookContext(
                            **common,
                            checkpoint=checkpoint,
                            messages=tuple(machine.messages),
                            usage=machine.account.usage,
                            answer=machine.answer().text if checkpoint == "before_completion" else "",
                            host=hosts.checkpoint,
                        )
                    )
            ruling = await self._carry_out(command.key, compose(wanted)) if wanted else NOTHING_SAID
        except errors.StoreError:
            raise  # not a plugin's error; the turn stays unfinished
        except errors.StandfastError as error:
            ruling = Ruling(failure=self._failure(error))
        return HooksRan(
            at_ms=self._now(),
            stage=command.stage,
            number=command.number,
            ruling=self._account.charge(ruling),
        )

    async def _carry_out(self, key: str, composed: ComposedRuling) -> Ruling:
        """Create the sessions and write the traces that plugins requested; return the ruling."""
        for number, one in enumerate(composed.sessions, 1):
            try:
                await self._create_session(one.value, f"{self._machine.turn_id}.{key}.{number}")
            except (errors.CallerError, errors.OperatorError) as error:
                raise errors.PluginFailed(
                    one.plugin_id, "CreateSession", error.message, hint=error.hint
                ) from None
        for conflict in composed.conflicts:
            body = {"what": conflict.what, "plugins": [conflict.winner, conflict.loser]}
            self._trace(conflict.winner, "plugin_conflict", body)
        for trace in composed.traces:
            self._trace(trace.plugin_id, trace.value.name, trace.value.body)
        return composed.ruling

    def _failure(self, error: errors.StandfastError) -> errors.ErrorObject:
        if isinstance(error, errors.PluginConflict):
            body = {"what": error.message, "plugins": [error.owner, error.other]}
            self._trace(error.owner, "plugin_conflict", body)
        plugin = error.plugin_id if isinstance(error, errors.PluginFailed) else ""
        self._trace(plugin, "plugin_failed", {"error": error.message})
        return errors.ErrorObject(code=errors.TurnCode.PLUGIN_ERROR, message=error.message, hint=error.hint)

    def _trace(self, plugin_id: str, name: str, body: Json) -> None:
        session_id, turn_id = self._plugins.session_id, self._machine.turn_id
        self._services.record(session_id, turn_id, plugin_id, name, body)

    async def prepare_call(self, command: PrepareCall, make_request: MakeRequest) -> CallPrepared:
        """Let plugins prepare the prompt and the messages of the next model call."""
        try:
            prepared = await self._plugins.runner.stage(lambda at: self._prepared(at, command, make_request))
        except errors.StandfastError as error:
            prepared = CallPrepared(
                at_ms=0, number=command.number, ruling=Ruling(failure=self._failure(error))
            )
        ruling = self._account.charge(prepared.ruling)
        return msgspec.structs.replace(prepared, at_ms=self._now(), ruling=ruling)

    async def _prepared(
        self, at: RunningStage, command: PrepareCall, make_request: MakeRequest
    ) -> CallPrepared:
        plugins, machine = self._plugins, self._machine
        hooks, hosts = plugins.contributions.hooks, plugins.hosts
        compaction = await self._compact(at, command) if hooks["compactor"] else None
        opened = compaction or machine.compaction
        base = (self._history if opened is None else list(opened.seed)) + machine.messages
        shown, prompt = base, None
        said: list[PromptContribution] = []
        by: dict[int, str] = {}
        if hooks["context_transform"]:
            transform = contexts.TurnTransformContext(
                **self._common,
                turn_messages=len(machine.messages),
                prompt_tokens=self._prompt_tokens(),
                overflowed=command.overflowed,
                host=hosts.history,
            )
            shown = await plugins.prepare_turn_context(transform, base, at)
        if hooks["prompt_contributor"]:
            iteration = machine.account.model_calls + 1
            context = contexts.PromptHookContext(**self._common, iteration=iteration, host=hosts.prompt)
            said = await plugins.collect_prompt_contributions(context, at, by)
            prompt = self._render(said)
        switch = None
        if answers_for_model(plugins.protocol_session):
            request = make_request(self._render(()) if prompt is None else prompt, shown.copy())
            switch = await self._switch(at, command, shown, request)
        changed = prompt is not None and prompt != machine.prompt
        return CallPrepared(
            at_ms=0,
            number=command.number,
            prompt=prompt if changed else None,
            prompt_by=self._prompt_by([(by[id(one)], one) for one in said]) if changed else (),
            view=view_of(base, shown),
            compaction=compaction,
            switch=switch,
        )

    def _prompt_by(self, added: list[tuple[str, PromptContribution]]) -> tuple[tuple[str, int], ...]:
        """Return the author and length of each part of the prompt, including those that plugins *added*."""
        own = self._machine.prompt_layer
        layers = self._layers if own is None else (*self._layers, ("turn", own))
        return tuple((part.by, len(part.content)) for part in named_parts(layers, self._preamble, added))

    async def _compact(self, at: RunningStage, command: PrepareCall) -> FrameSwitch | None:
        plugins, machine, history = self._plugins, self._machine, self._history
        if machine.compaction is not None or not history:
            return None
        context = contexts.CompactionContext(
            **self._common,
            messages=EarlierMessages(history),
            turn_messages=tuple(machine.messages),
            complete=self.complete,
            prompt_tokens=self._prompt_tokens(),
            overflowed=command.overflowed,
            host=plugins.hosts.history,
        )
        made = await plugins.compact_context(context, at)
        if made is None:
            return None
        frame_id = f"{machine.turn_id}.c{command.number}"
        return FrameSwitch(frame_id=frame_id, reason=made.reason, seed=tuple(made.seed))

    async def _switch(
        self, at: RunningStage, command: PrepareCall, shown: list[Message], request: ModelRequest
    ) -> FrameSwitch | None:
        """Ask the protocol whether the turn switches frames instead of calling the model."""
        plugins, machine, session, hosts = (
            self._plugins, self._machine, self._session, self._plugins.hosts,
        )  # fmt: skip
        state = protocol.SessionReadView(
            session_id=plugins.session_id,
            turn_id=machine.turn_id,
            frame_id=session.options.frame,
            policy=session.policy,
            history=EarlierMessages(self._history),
            turn_messages=tuple(machine.messages),
            usage=machine.account.usage,
            model_calls=machine.account.model_calls,
        )
        context = protocol.ProtocolBeforeLlmCallContext(
            session_id=plugins.session_id,
            turn_id=machine.turn_id,
            messages=shown,
            prompt_tokens=self._prompt_tokens(),
            complete=self.complete,
            deps=self._deps,
            state=state,
            latest_prompt_usage=self._latest_usage(),
            invocation=f"{machine.turn_id}.{command.key}",
            sessions=hosts.sessions,
            session_graph=hosts.session_graph,
            processes=hosts.processes,
            completions=hosts.completions,
        )
        hook = plugins.contributions.protocol_hook("before_llm_call")
        answer = await at.call(hook, context, request)
        return None if answer is None else read_switch(hook, answer)

    def _prompt_tokens(self) -> int:
        """Return the number of tokens in the last model call's prompt, as its provider counted."""
        usage = self._latest_usage() or Usage()
        return usage.input + usage.cache_read + usage.cache_write

    def _latest_usage(self) -> Usage | None:
        for message in chain(reversed(self._machine.messages), reversed(self._history)):
            if isinstance(message, AssistantMessage):
                return message.usage
        return None

    async def stream(self, chunk: str, kind: contexts.StreamKind = "text", *, last: bool = False) -> str:
        """Let plugins change a piece of the reply. `PluginFailed` makes the model call fail."""
        number = self._machine.account.model_calls
        context = contexts.AssistantStreamHookContext(
            **self._common, chunk=chunk, kind=kind, number=number, last=last
        )
        made = await self._plugins.transform_assistant_stream(context)
        return made[-1].value.chunk

    async def reply(self, reply: ReplyEnded) -> ReplyEnded:
        """Let plugins change the whole reply."""
        context = contexts.AssistantResponseHookContext(**self._common, response=reply)
        made = await self._plugins.transform_assistant_response(context)
        return made[-1].value.response

    async def rule(self, call: ToolCall, side_effect: SideEffect | None) -> CallRuled:
        """Let plugins rule on a call before it is prepared."""
        context = contexts.ToolCallHookContext(
            **self._common,
            call_id=call.call_id,
            tool_name=call.name,
            arguments=call.arguments or {},
            side_effect=side_effect,
            parent=call.parent,
            host=self.tool_host,
        )
        with self._held.stage(f"ruled.{call.call_id}") as stage:
            try:
                review = await self._plugins.review_call(context)
                composed = compose_call(review.directives, review.arguments)
                ruling = await self._carry_out(f"call.{call.call_id}", composed)
            except errors.StoreError:
                raise
            except errors.StandfastError as error:
                ruling = CallRuling(failure=self._failure(error))
            ruling = self._account.charge(ruling)
        await self.settles(stage)
        assert isinstance(ruling, CallRuling)
        return CallRuled(at_ms=self._now(), call_id=call.call_id, ruling=ruling)

    async def judge(
        self,
        settled: ToolSettled,
        name: str,
        arguments: dict[str, Json],
        *,
        parent: int = 0,
        is_cell: bool = False,
    ) -> ToolSettled:
        """Let plugins change the result of a call; a hook that fails makes the call fail."""
        keeper = _AttachmentKeeper(self)
        context = contexts.ToolResultHookContext(
            **self._common,
            call_id=settled.call_id,
            tool_name=name,
            arguments=arguments,
            attachments=keeper,
            value=settled.value,
            error=settled.error,
            record=settled.record,
            texts=settled.texts,
            parent=parent,
            is_cell=is_cell,
            host=self.tool_host,
        )
        with self._held.stage(f"tool.{settled.call_id}"):
            try:
                return await self._judged(settled, context, keeper)
            except Exception as raised:  # the turn needs a result in any case
                known = (
                    raised
                    if isinstance(raised, errors.StandfastError)
                    else errors.InternalError(described(raised))
                )
                error = self._failure(known)
                return msgspec.structs.replace(
                    settled,
                    value=None,
                    error=error,
                    exception=None,
                    record=_changed_record(settled.record, None, error),
                    texts=(),
                    shown=None,
                )

    async def _judged(
        self, settled: ToolSettled, context: contexts.ToolResultHookContext, keeper: _AttachmentKeeper
    ) -> ToolSettled:
        review = await self._plugins.review_result(context)
        composed = compose(review.directives)
        composed.conflicts += review.conflicts
        ruling = await self._carry_out(f"result.{settled.call_id}", composed)
        value, error = review.context.value, review.context.error
        texts = cut_texts((*review.context.texts, *keeper.texts))
        shown = await self._plugins.project_tool_result(
            contexts.ToolResultProjectionContext(
                **self._common,
                call_id=settled.call_id,
                tool_name=context.tool_name,
                value=value,
                error=error,
                texts=texts,
            )
        )
        replaced = review.replaced
        return msgspec.structs.replace(
            settled,
            value=value,
            error=error,
            exception=None if replaced else settled.exception,
            record=_changed_record(settled.record, value, error) if replaced else settled.record,
            attachments=(*settled.attachments, *keeper.kept),
            texts=() if error is not None or shown is not None else texts,
            shown=shown,
            ruling=ruling,
        )

    @property
    def has_unknown_states(self) -> bool:
        return self._plugins.has_unknown_states

    async def take_states(self) -> None:
        """Capture the states of plugins that have changed on a separate thread."""
        if self._plugins.has_unknown_states:
            await self._plugins.take_states()

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry | ChangedState, ...]:
        context, held = self._session, self._held
        changed = self._plugins.changed(held.take(given) if held.stages else None)
        tools = context.changed_tools()
        execution = None if self._plugins.code_executor is None else context.execution.changed()
        if not changed and tools is None and execution is None:
            return ()
        states: list[JournalEntry | ChangedState] = []
        for name, (entry, blobs) in changed.items():
            self._blobs.extend(blobs)
            states.append(JournalEntry(key=f"plugin.{name}", kind="state", body=encode_entry(entry)))
        if tools is not None:
            states.append(JournalEntry(key="tools", kind="state", body=encode_state(tools)))
        if execution is not None:
            self._blobs.extend(execution[1])
            states.append(ChangedState("execution", execution[0]))
        return tuple(states)

    def take_blobs(self) -> tuple[Blob, ...]:
        blobs, self._blobs = tuple(self._blobs), []
        return blobs

    async def finalizing(self, outcome: Ended) -> None:
        plugins = self._plugins
        if plugins.contributions.hooks["turn_finalized"]:
            event = contexts.TurnFinalized(
                session_id=plugins.session_id, turn_id=self._machine.turn_id, outcome=outcome
            )
            await plugins.emit_runtime_event(event)

    def keep_blob(self, data: bytes) -> str:
        digest = digest_bytes(data)
        self._blobs.append(Blob(digest=digest, data=data))
        return digest

    async def read_blob(self, digest: str) -> bytes | None:
        return await at_home(self._home, self._services.store.blob, digest)

    def _now(self) -> int:
        return self._services.clock.now_ms()


class _AttachmentKeeper:
    """The `Attachments` of one result."""

    __slots__ = ("_hooks", "kept", "read", "texts")

    def __init__(self, hooks: TurnHooks) -> None:
        self._hooks = hooks
        self.kept: list[AttachmentPart] = []
        self.texts: list[str] = []
        self.read = hooks.read_blob

    def keep(
        self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False
    ) -> AttachmentPart:
        digest = self._hooks.keep_blob(data)
        part = AttachmentPart(digest=digest, media_type=media_type, size=len(data), name=name, shown=shown)
        self.kept.append(part)
        return part

    def add_text(self, text: str) -> None:
        if not isinstance(text, str):
            raise errors.InvalidArgument(f"the text for a result must be a str, got {type(text).__name__}")
        self.texts.append(text.encode(errors="replace").decode())


class _CallTriggers:
    """The `Triggers` of one call."""

    __slots__ = ("_home", "_key", "_occur", "_session")

    def __init__(
        self, session: SessionContext, occur: Occur, home: asyncio.AbstractEventLoop, key: str
    ) -> None:
        self._session = session
        self._occur = occur
        self._home = home
        self._key = key

    @property
    def sources(self) -> dict[str, str]:
        events = self._session.plugins.triggers.events
        return {name: event.description for name, event in events.items()}

    async def occur(self, source: str, payload: Json = None, *, key: str | None = None) -> int:
        return await at_home(self._home, self._occur, source, self._key if key is None else key, payload)


def priced(cost_of: Cost, model_id: str, reply: ReplyEnded) -> Usage:
    """Return the usage of a reply of this model, with its cost if the provider or the price list has it."""
    usage = reply.usage
    if usage.priced:
        return usage
    cost = cost_of(model_id, reply.model, usage)
    return usage if cost is None else msgspec.structs.replace(usage, cost_nano_usd=cost, priced=1)


async def charged_reply(
    model: ModelProvider, request: ModelRequest, source: str, cost_of: Cost
) -> tuple[ReplyEnded, UsageEntry]:
    """Call a model; return its whole reply and the ledger entry."""
    reply = await whole_reply(model, request)
    usage = msgspec.structs.replace(priced(cost_of, model.model_id, reply), calls=1)
    return reply, UsageEntry(source=source, model=reply.model or model.model_id, usage=usage)


async def whole_reply(model: ModelProvider, request: ModelRequest) -> ReplyEnded:
    """Return the whole reply, ignoring its pieces; raise `ModelError` if the stream ends too early."""
    async with open_stream(model, request) as deltas:
        async for delta in deltas:
            if isinstance(delta, ReplyEnded):
                return delta
    raise reply_broken_off()


def reply_broken_off() -> errors.ModelError:
    return errors.ModelError("the model's reply was cut off", retryable=True)


def _changed_record(
    record: ExternalCallRecord | None, value: Json, error: errors.ErrorObject | None
) -> ExternalCallRecord | None:
    """Return the record of a call whose result was replaced, with the new result and no traceback."""
    if record is None:
        return None
    status = record.status
    if error is not None and record.error is None:
        status = CallStatus.DENIED if error.code == errors.Code.PERMISSION_DENIED else CallStatus.ERROR
    digest = digest_bytes(encode_sorted(value)) if error is None else None
    return msgspec.structs.replace(
        record.without_traceback(), error=error, status=status, response_digest=digest
    )


class EarlierMessages(Sequence[Message]):
    """A read-only view of the messages before a turn, which are not copied."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | Sequence[Message]:
        return self._messages[place]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def view_of(base: list[Message], shown: list[Message]) -> View | None:
    """Describe *shown* as ranges of *base* and new messages; return None if both are the same."""
    if shown is base or shown == base:
        return None
    places = {id(message): place for place, message in enumerate(base)}
    view: list[Any] = []
    for message in shown:
        place = places.get(id(message))
        if place is None:
            view.append(message)
        elif view and isinstance(view[-1], KeptRange) and view[-1].stop == place:
            view[-1] = KeptRange(start=view[-1].start, stop=place + 1)
        else:
            view.append(KeptRange(start=place, stop=place + 1))
    return tuple(view)


def apply_view(base: list[Message], view: View) -> list[Message]:
    """Return the messages that a view shows, with a result for every call."""
    found: list[Message] = []
    for one in view:
        if isinstance(one, KeptRange):
            found.extend(base[one.start : one.stop])
        else:
            found.append(one)
    return answered(found)
