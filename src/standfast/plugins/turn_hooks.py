"""The plugins in one turn: carries out what the machine asks of them, and reports what came of it as inputs.

Rules
-----
1. What is returned is what the journal keeps; a turn that goes on elsewhere needs nothing else of it.
2. A hook that fails ends the turn, or fails its call, as the table in `hook.py` says. Nothing escapes.
3. Sessions that plugins want are made before their ruling is journaled, under names that a second attempt
   would choose again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from standfast.durable.effects import Kept
from standfast.errors import (
    CallerError,
    Code,
    ErrorObject,
    InternalError,
    ModelError,
    OperatorError,
    PluginConflict,
    PluginFailed,
    StandfastError,
    StoreError,
)
from standfast.machine.commands import PrepareCall, RunHooks
from standfast.machine.inputs import CallPrepared, CallRuled, HooksRan, Input, ToolSettled
from standfast.machine.turn_machine import TurnMachine
from standfast.model.call import CallStatus, ExternalCallRecord
from standfast.model.canonical import Json, digest_bytes, encode_sorted
from standfast.model.capability import SideEffect
from standfast.model.directive import SessionRequest
from standfast.model.events import Event
from standfast.model.frame import FrameSwitch
from standfast.model.head import SessionHead
from standfast.model.message import AssistantMessage, AttachmentPart, Message, ToolCall, UserMessage
from standfast.model.outcome import Ended
from standfast.model.plugin_state import encode_entry, encode_state
from standfast.model.prompt import PromptContribution
from standfast.model.ruling import NOTHING_SAID, CallRuling, Ruling
from standfast.model.usage import Usage, UsageEntry
from standfast.plugins.answers import read_switch
from standfast.plugins.contexts import (
    AssistantResponseHookContext,
    AssistantStreamHookContext,
    CheckpointHookContext,
    CompactionContext,
    PromptHookContext,
    StreamKind,
    ToolCallHookContext,
    ToolResultHookContext,
    ToolResultProjectionContext,
    TurnFinalized,
    TurnHookContext,
    TurnResultHookContext,
    TurnTransformContext,
)
from standfast.plugins.directives import Composed, OwnedDirective, compose, compose_call
from standfast.plugins.plugin_memory import STAGE, CallStage
from standfast.plugins.protocol import (
    AssistantProseProjectorPlugin,
    CodeExecutorPlugin,
    OutputContract,
    ProtocolBeforeLlmCallContext,
    SessionReadView,
    TurnDriverPreamble,
)
from standfast.plugins.running import Current, described
from standfast.plugins.runtime_services import Cost, RuntimeServices
from standfast.plugins.session import answers_for_model
from standfast.plugins.session_context import SessionContext
from standfast.plugins.view import Earlier, view_of
from standfast.ports.host import ToolHookHost
from standfast.ports.model_provider import ModelProvider, ModelRequest, ReplyEnded
from standfast.ports.session_store import Blob, JournalEntry
from standfast.tools.context import Attachments, Triggers
from standfast.tools.dispatch import Dispatcher
from standfast.tools.eager import Spares
from standfast.tools.home_loop import at_home

MakeRequest = Callable[[str, list[Message]], ModelRequest]
"""Makes what the model is asked of a prompt and the messages."""


@dataclasses.dataclass(slots=True, kw_only=True)
class TurnContext:
    """One turn: what it runs with, what was said before it, and who watches."""

    services: RuntimeServices
    session: SessionContext
    """The session's plugins, tools and prompt."""
    head: SessionHead
    """The head of the session that the turn began with."""
    machine: TurnMachine
    history: list[Message]
    model: ModelProvider
    plugin_model: ModelProvider
    """The model for what plugins, tools and code ask of it on their own."""
    dispatcher: Dispatcher
    show: Callable[[Event], None]
    create_session: Callable[[SessionRequest, str], Awaitable[None]]
    """Makes a session that a plugin asks for, under a key that a second attempt would choose again."""
    occur: Callable[[str, str, Json], Awaitable[int]]
    """Reports an occurrence: its source, its key and its payload; returns how many turns it becomes."""
    output: OutputContract | None = None
    deps: Any = None
    session_id: str = dataclasses.field(init=False)
    turn_id: str = dataclasses.field(init=False)
    settings: dict[str, Any] = dataclasses.field(init=False)
    preamble: TurnDriverPreamble = dataclasses.field(init=False)
    """That of the turn's beginning; the catalog may have changed since."""
    render: Callable[[Sequence[PromptContribution]], str] = dataclasses.field(init=False)
    """Renders the prompt, with what plugins add to it."""
    instructions: str = dataclasses.field(init=False)
    executor: CodeExecutorPlugin | None = dataclasses.field(init=False)
    projector: AssistantProseProjectorPlugin | None = dataclasses.field(init=False)
    hooks: TurnHooks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        session = self.session
        self.session_id = session.plugins.session_id
        self.turn_id = self.machine.turn_id
        self.settings = session.policy.settings
        self.preamble = session.artifact().preamble
        self.render = session.renderer(self.machine.prompt_layer)
        self.instructions = self.render(())
        self.executor = session.plugins.code_executor()
        self.projector = session.plugins.assistant_prose_projector()
        self.hooks = TurnHooks(self)


class TurnHooks:
    """Used on the turn's loop, by whoever carries out its commands."""

    def __init__(self, turn: TurnContext) -> None:
        self._turn = turn
        self._plugins = plugins = turn.session.plugins
        self._machine = machine = turn.machine
        self._history = turn.history
        self._clock = turn.services.clock
        self._cost = turn.services.cost_of(turn.model.model_id)
        self._home = asyncio.get_running_loop()
        self._blobs: list[Blob] = []
        self._keepers: dict[int, _AttachmentKeeper] = {}
        self._spent: list[UsageEntry] = []
        self._calls = 0
        self._last_call = 0
        self._stages: dict[str, CallStage] = {}
        plugins.unwritten.clear()  # what hooks of an earlier turn left behind is not waited for
        self.is_over = False
        self._common: dict[str, Any] = {
            "session_id": plugins.session_id,
            "turn_id": machine.turn_id,
            "extensions": plugins.extensions,
            "extension": machine.extension,
            "deps": turn.deps,
        }

    def attachments_of(self, call_id: int) -> Attachments:
        """What the tool of a call keeps attachments with; `with_attachments` adds them to its result."""
        keeper = self._keepers[call_id] = _AttachmentKeeper(self)
        return keeper

    def with_attachments(self, settled: ToolSettled) -> ToolSettled:
        """The result of a call with the attachments that its tool has kept."""
        keeper = self._keepers.pop(settled.call_id, None)
        if keeper is None or not keeper.kept:
            return settled
        return msgspec.structs.replace(settled, attachments=(*settled.attachments, *keeper.kept))

    def triggers_of(self, key: str) -> Triggers:
        """What a call tells of occurrences with, under its idempotency *key*."""
        return _CallTriggers(self._turn, self._home, key)

    @property
    def spares(self) -> Spares:
        """Tasks to begin work of the turn in."""
        return self._plugins.runner.spares

    @property
    def tool_host(self) -> ToolHookHost:
        """What the turn's tools may ask of the runtime."""
        return self._plugins.hosts.tool

    # Stages that the machine asks for

    async def run_hooks(self, command: RunHooks) -> HooksRan:
        try:
            wanted = await self._ask(command)
            ruling = await self._ruled(command.key, compose(wanted)) if wanted else NOTHING_SAID
        except StoreError:
            raise  # nobody's fault here; the turn stays unfinished
        except StandfastError as error:
            ruling = Ruling(failure=self._failure(error))
        return HooksRan(
            at_ms=self._now(), stage=command.stage, number=command.number, ruling=self._charged(ruling)
        )

    def _ask(self, command: RunHooks) -> Awaitable[list[OwnedDirective]]:
        machine, common = self._machine, self._common
        match command.stage:
            case "before_turn":
                return self._plugins.before_turn(self._turn_context())
            case "after_turn":
                assert command.outcome is not None
                context = TurnResultHookContext(
                    **common,
                    outcome=command.outcome,
                    messages=tuple(machine.messages),
                    usage=machine.usage,
                    complete=self.complete,
                    host=self._plugins.hosts.turn_result,
                )
                return self._plugins.after_turn(context)
            case checkpoint:
                at = CheckpointHookContext(
                    **common,
                    checkpoint=checkpoint,
                    messages=tuple(machine.messages),
                    usage=machine.usage,
                    complete=self.complete,
                    answer=machine.answer().text if checkpoint == "before_completion" else "",
                    host=self._plugins.hosts.checkpoint,
                )
                return self._plugins.at_checkpoint(at)

    def _earlier(self) -> Sequence[Message]:
        """What was said before the turn; plugins cannot change it."""
        return Earlier(self._history)

    def _turn_context(self) -> TurnHookContext:
        said = [one for one in self._machine.messages if isinstance(one, UserMessage)]
        return TurnHookContext(
            **self._common,
            input=said[-1],
            messages=self._earlier(),
            complete=self.complete,
            host=self._plugins.hosts.turn,
        )

    async def _ruling(self, key: str, asked: Awaitable[Composed]) -> Ruling:
        """What a stage came to, with what it used; a failure is a ruling as well."""
        try:
            ruling = await self._ruled(key, await asked)
        except StoreError:
            raise
        except StandfastError as error:
            ruling = Ruling(failure=self._failure(error))
        return self._charged(ruling)

    async def _ruled(self, key: str, composed: Composed) -> Ruling:
        """Do what does not concern the turn; the rest is its ruling."""
        await self._make_sessions(key, composed)
        self._tell(composed)
        return composed.ruling

    def _failure(self, error: StandfastError) -> ErrorObject:
        if isinstance(error, PluginConflict):
            body = {"what": error.message, "plugins": [error.owner, error.other]}
            self._trace(error.owner, "plugin_conflict", body)
        plugin = error.plugin_id if isinstance(error, PluginFailed) else ""
        self._trace(plugin, "plugin_failed", {"error": error.message})
        return ErrorObject(code="PLUGIN_ERROR", message=error.message, hint=error.hint)

    async def _make_sessions(self, key: str, composed: Composed) -> None:
        for number, one in enumerate(composed.sessions, 1):
            try:
                await self._turn.create_session(one.value, f"{self._machine.turn_id}.{key}.{number}")
            except (CallerError, OperatorError) as error:
                raise PluginFailed(one.plugin_id, "CreateSession", error.message, hint=error.hint) from None

    def _tell(self, composed: Composed) -> None:
        for conflict in composed.conflicts:
            body = {"what": conflict.what, "plugins": [conflict.winner, conflict.loser]}
            self._trace(conflict.winner, "plugin_conflict", body)
        for one in composed.traces:
            self._trace(one.plugin_id, one.value.name, one.value.body)

    def _trace(self, plugin_id: str, name: str, body: Json) -> None:
        turn = self._turn
        turn.services.record(turn.session_id, turn.turn_id, plugin_id, name, body)

    # A model call

    async def prepare_call(self, command: PrepareCall, make_request: MakeRequest) -> CallPrepared:
        """The prompt and the messages of the next call as the plugins want them."""
        try:
            prepared = await self._plugins.runner.stage(lambda at: self._prepared(at, command, make_request))
        except StandfastError as error:
            prepared = CallPrepared(
                at_ms=self._now(), number=command.number, ruling=Ruling(failure=self._failure(error))
            )
        return msgspec.structs.replace(prepared, at_ms=self._now(), ruling=self._charged(prepared.ruling))

    async def _prepared(self, at: Current, command: PrepareCall, make_request: MakeRequest) -> CallPrepared:
        hooks = self._plugins.contributions.hooks
        compaction = await self._compacted(at, command) if hooks["compactor"] else None
        base = self._base(compaction)
        shown = await self._transformed(at, command, base) if hooks["context_transform"] else base
        prompt = await self._prompt(at) if hooks["prompt_contributor"] else None
        switch = None
        if answers_for_model(self._plugins.protocol_session()):
            switch = await self._switched(at, command, prompt, shown, make_request)
        return CallPrepared(
            at_ms=0,
            number=command.number,
            prompt=prompt if prompt != self._machine.prompt else None,
            view=view_of(base, shown),
            compaction=compaction,
            switch=switch,
        )

    def _base(self, compaction: FrameSwitch | None) -> list[Message]:
        opened = compaction or self._machine.compaction
        before = self._history if opened is None else list(opened.seed)
        return before + self._machine.messages

    async def _compacted(self, at: Current, command: PrepareCall) -> FrameSwitch | None:
        plugins, machine = self._plugins, self._machine
        if machine.compaction is not None or not self._history:
            return None
        context = CompactionContext(
            **self._common,
            messages=self._earlier(),
            turn_messages=tuple(machine.messages),
            complete=self.complete,
            prompt_tokens=self._prompt_tokens(),
            overflowed=command.overflowed,
            host=plugins.hosts.history,
        )
        made = await plugins.compact_context(context, at)
        if made is None:
            return None
        return FrameSwitch(
            frame_id=f"{machine.turn_id}.c{command.number}", reason=made.reason, seed=tuple(made.seed)
        )

    async def _transformed(self, at: Current, command: PrepareCall, base: list[Message]) -> list[Message]:
        context = TurnTransformContext(
            **self._common,
            turn_messages=len(self._machine.messages),
            prompt_tokens=self._prompt_tokens(),
            overflowed=command.overflowed,
            host=self._plugins.hosts.history,
        )
        return await self._plugins.prepare_turn_context(context, base, at)

    async def _prompt(self, at: Current) -> str:
        plugins = self._plugins
        context = PromptHookContext(
            **self._common, iteration=self._machine.model_calls + 1, host=plugins.hosts.prompt
        )
        return self._turn.render(await plugins.collect_prompt_contributions(context, at))

    async def _switched(
        self,
        at: Current,
        command: PrepareCall,
        prompt: str | None,
        shown: list[Message],
        make_request: MakeRequest,
    ) -> FrameSwitch | None:
        protocol = self._plugins.protocol_session()
        owner = self._plugins.contributions.slots["protocol_session"].plugin_id
        hook = self._plugins.contributions.hook_of(owner, "before_llm_call", protocol.before_llm_call)
        context = ProtocolBeforeLlmCallContext(
            session_id=self._plugins.session_id,
            turn_id=self._machine.turn_id,
            messages=shown,
            prompt_tokens=self._prompt_tokens(),
            complete=self.complete,
            deps=self._common["deps"],
            state=self._read_view(),
            latest_prompt_usage=self._latest_usage(),
            invocation=f"{self._machine.turn_id}.{command.key}",
            sessions=self._plugins.hosts.sessions,
            session_graph=self._plugins.hosts.session_graph,
            processes=self._plugins.hosts.processes,
            completions=self._plugins.hosts.completions,
        )
        request = make_request(self._turn.render(()) if prompt is None else prompt, shown)
        answer = await at.call(hook, context, request)
        return None if answer is None else read_switch(hook, answer)

    def _read_view(self) -> SessionReadView:
        machine, context = self._machine, self._turn.session
        return SessionReadView(
            session_id=self._plugins.session_id,
            turn_id=machine.turn_id,
            frame_id=context.frame,
            policy=context.policy,
            history=self._earlier(),
            turn_messages=tuple(machine.messages),
            usage=machine.usage,
            model_calls=machine.model_calls,
        )

    def _prompt_tokens(self) -> int:
        """What the model was last given, as its provider counted."""
        usage = self._latest_usage() or Usage()
        return usage.input + usage.cache_read + usage.cache_write

    def _latest_usage(self) -> Usage | None:
        """What the last reply used; None before the first one."""
        for message in chain(reversed(self._machine.messages), reversed(self._history)):
            if isinstance(message, AssistantMessage):
                return message.usage
        return None

    @property
    def shows_streams(self) -> bool:
        """Whether plugins look at each piece of a reply."""
        return self._plugins.has_assistant_stream_hooks()

    async def stream(self, chunk: str, kind: StreamKind = "text", *, last: bool = False) -> str:
        """A piece of the reply as the plugins leave it; `PluginFailed` fails the model call."""
        number = self._machine.model_calls
        context = AssistantStreamHookContext(**self._common, chunk=chunk, kind=kind, number=number, last=last)
        made = await self._plugins.transform_assistant_stream(context)
        return made[-1].value.chunk

    async def reply(self, reply: ReplyEnded) -> ReplyEnded:
        """The whole reply as the plugins leave it."""
        if not self._plugins.contributions.hooks["assistant_response"]:
            return reply
        context = AssistantResponseHookContext(**self._common, response=reply)
        made = await self._plugins.transform_assistant_response(context)
        return made[-1].value.response

    # Tool calls

    async def rule(self, call: ToolCall, side_effect: SideEffect | None) -> CallRuled:
        """Ask the plugins about a call before anything else is done about it."""
        context = ToolCallHookContext(
            **self._common,
            call_id=call.call_id,
            tool_name=call.name,
            arguments=call.arguments or {},
            side_effect=side_effect,
            parent=call.parent,
            host=self._plugins.hosts.tool,
        )
        with self._stage(f"ruled.{call.call_id}") as stage:
            ruling = await self._ruling(f"call.{call.call_id}", self._heard(context))
        await self._settles(stage)
        if not isinstance(ruling, CallRuling):
            ruling = CallRuling(**{name: getattr(ruling, name) for name in Ruling.__struct_fields__})
        return CallRuled(at_ms=self._now(), call_id=call.call_id, ruling=ruling)

    async def _heard(self, context: ToolCallHookContext) -> Composed:
        hearing = await self._plugins.hear_call(context)
        return compose_call(hearing.directives, hearing.arguments)

    @property
    def judges(self) -> bool:
        """Whether plugins look at results."""
        contributions = self._plugins.contributions
        return bool(contributions.hooks["after_tool_call"] or "tool_result_projector" in contributions.slots)

    async def judge(
        self,
        settled: ToolSettled,
        name: str,
        arguments: dict[str, Json],
        *,
        parent: int = 0,
        is_cell: bool = False,
    ) -> ToolSettled:
        """A result as the plugins leave it, and what they had to say."""
        keeper = _AttachmentKeeper(self)
        context = ToolResultHookContext(
            **self._common,
            call_id=settled.call_id,
            tool_name=name,
            arguments=arguments,
            attachments=keeper,
            value=settled.value,
            error=settled.error,
            record=settled.record,
            parent=parent,
            is_cell=is_cell,
            host=self._plugins.hosts.tool,
        )
        with self._stage(f"tool.{settled.call_id}"):
            try:
                return await self._judged(settled, context, keeper)
            except StandfastError as error:
                return _failed(settled, self._failure(error))
            except Exception as error:  # somebody waits for this result, whatever happens
                return _failed(settled, self._failure(InternalError(described(error))))

    @contextlib.contextmanager
    def _stage(self, key: str) -> Iterator[CallStage]:
        """The hooks around a call, whose outcome is the input *key*."""
        stage = self._stages[key] = CallStage()
        self._plugins.unwritten.add(stage)
        outer = STAGE.set(stage)
        try:
            yield stage
        except BaseException:  # the turn is to end, or breaks
            stage.is_over = True
            self._deliver_held()
            raise
        finally:
            STAGE.reset(outer)

    def deliver(self, call_id: int, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which hands on the result of a call, when plugins' states allow it.

        What a plugin remembers after the call's hooks may contain what those of other calls have changed.
        Then all of them are handed on at once, so that they are written at once.
        """
        stage = self._stages.get(f"tool.{call_id}")
        if stage is None:
            deliver()
            return
        stage.deliver = deliver
        self._deliver_held()

    async def settles(self, call_id: int) -> None:
        """Wait until a result that the caller hands on may be handed on."""
        if (stage := self._stages.get(f"tool.{call_id}")) is not None:
            await self._settles(stage)

    async def _settles(self, stage: CallStage) -> None:
        released = self._home.create_future()
        stage.deliver = lambda: None if released.done() else released.set_result(None)
        self._deliver_held()
        if not released.done():
            await released

    def _deliver_held(self) -> None:
        """Deliver what came of all stages that contain no changes but of each other and of stages before."""
        held = [stage for stage in self._stages.values() if stage.deliver is not None]
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

    def drop_held(self) -> None:
        """Deliver nothing of what is held back: the calls are given up."""
        for stage in self._stages.values():
            stage.deliver = None

    @property
    def has_unknown_states(self) -> bool:
        return self._plugins.has_unknown_states

    async def take_states(self) -> None:
        """Take what plugins remember where their hooks run, as far as it is not known."""
        if self._plugins.has_unknown_states:
            await self._plugins.take_states()

    async def _judged(
        self, settled: ToolSettled, context: ToolResultHookContext, keeper: _AttachmentKeeper
    ) -> ToolSettled:
        hearing = await self._plugins.hear_result(context)
        composed = compose(hearing.directives)
        composed.conflicts += hearing.conflicts
        await self._make_sessions(f"result.{settled.call_id}", composed)
        self._tell(composed)
        result = hearing.context
        shown = await self._plugins.project_tool_result(
            ToolResultProjectionContext(
                **self._common,
                call_id=settled.call_id,
                tool_name=context.tool_name,
                value=result.value,
                error=result.error,
            )
        )
        return msgspec.structs.replace(
            settled,
            value=result.value,
            error=result.error,
            exception=None if hearing.replaced else settled.exception,
            record=_record_of(settled, result.value, result.error) if hearing.replaced else settled.record,
            attachments=(*settled.attachments, *keeper.kept),
            shown=shown,
            ruling=composed.ruling,
        )

    # What is remembered

    def changed_states(self, given: Input | None = None) -> tuple[JournalEntry, ...]:
        context = self._turn.session
        stage = self._stages.pop(_key_of(given), None) if self._stages else None
        changed, tools, execution = (
            self._plugins.changed(stage), context.changed_tools(), context.changed_execution()
        )  # fmt: skip
        if not changed and tools is None and execution is None:
            return ()
        for _, blobs in changed.values():
            self._blobs.extend(blobs)
        states = [
            JournalEntry(key=f"plugin.{name}", kind="state", body=encode_entry(entry))
            for name, (entry, _) in changed.items()
        ]
        if tools is not None:
            states.append(JournalEntry(key="tools", kind="state", body=encode_state(tools)))
        if execution is not None:
            self._blobs.extend(execution[1])
            states.append(JournalEntry(key="execution", kind="state", body=encode_entry(execution[0])))
        return tuple(states)

    def take_blobs(self) -> tuple[Blob, ...]:
        if not self._blobs:
            return ()
        blobs, self._blobs = tuple(self._blobs), []
        return blobs

    async def kept(self, *, tolerant: bool) -> Kept:
        return await self._turn.session.kept(tolerant)

    async def finalizing(self, outcome: Ended) -> None:
        if self._plugins.has_runtime_event_hooks("turn_finalized"):
            await self._plugins.emit_runtime_event(
                TurnFinalized(
                    session_id=self._plugins.session_id, turn_id=self._machine.turn_id, outcome=outcome
                )
            )

    # What plugins may ask for

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        source: str = "",
        output_schema: dict[str, Any] | None = None,
    ) -> str:
        """Ask the session's model for a text, for a plugin or a tool."""
        request = ModelRequest(
            messages=list(messages),
            instructions=instructions,
            output_schema=output_schema,
            settings=self._turn.settings,
        )
        reply, _ = await at_home(self._home, self.ask, request, source or "plugin")
        return reply.text

    async def ask(
        self, request: ModelRequest, source: str, model: ModelProvider | None = None
    ) -> tuple[ReplyEnded, UsageEntry]:
        """Ask a model on the turn's account: the whole reply, and the line of the ledger that it becomes.

        Once the turn `is_over`, the line is the caller's to write.
        """
        chosen = model or self._turn.plugin_model
        reply = await self._reply_to(request, chosen)
        usage = msgspec.structs.replace(self.priced(reply, chosen.model_id), calls=1)
        entry = UsageEntry(source=source, model=reply.model or chosen.model_id, usage=usage)
        if not self.is_over:
            self._spent.append(entry)
        return reply, entry

    async def _reply_to(self, request: ModelRequest, model: ModelProvider) -> ReplyEnded:
        number = self._next_call()
        numbered = dataclasses.replace(
            request,
            session_id=self._plugins.session_id,
            turn_id=self._machine.turn_id,
            call_number=self._turn.head.model_calls + number,
            idempotency_key=f"{self._machine.turn_id}.plugin.{number}",
            read_blob=request.read_blob or self._turn.services.store.blob,
        )
        try:
            return await whole_reply(model, numbered)
        finally:
            self._calls += 1

    def end(self) -> tuple[tuple[UsageEntry, ...], int]:
        """The turn is over: what was asked of models and is on nobody's account yet, and how many calls."""
        self.is_over = True
        left = (tuple(self._spent), self._calls)
        self._spent, self._calls = [], 0
        return left

    def _next_call(self) -> int:
        """The number of a model call that is about to be made; `ModelError` if the turn may not make it."""
        # Several may be under way at once, and the machine knows only of those that are charged already.
        made = max(self._last_call, self._machine.model_calls)
        refusal = self._machine.refuses_call(made, self._spent)
        if refusal is not None:
            raise ModelError(refusal.message, code=refusal.code, hint=refusal.hint)
        self._last_call = made + 1
        return self._last_call

    def priced(self, reply: ReplyEnded, model_id: str | None = None) -> Usage:
        """What a reply used, with what it cost if that is known. A provider may have said so itself."""
        return priced(self._cost, model_id or self._turn.model.model_id, reply)

    def _charged(self, ruling: Ruling) -> Ruling:
        """The ruling with what its hooks asked of a model."""
        if not self._calls:
            return ruling
        spent, calls = tuple(self._spent), self._calls
        self._spent, self._calls = [], 0
        return msgspec.structs.replace(ruling, usage=spent, model_calls=calls)

    def charged(self, settled: ToolSettled) -> ToolSettled:
        """The result of a call with what was asked of a model on the way."""
        if not self._calls:
            return settled
        ruling = settled.ruling
        charged = self._charged(ruling)
        return msgspec.structs.replace(
            settled,
            ruling=msgspec.structs.replace(
                charged,
                usage=(*ruling.usage, *charged.usage),
                model_calls=ruling.model_calls + charged.model_calls,
            ),
        )

    def keep_blob(self, data: bytes) -> str:
        digest = digest_bytes(data)
        self._blobs.append(Blob(digest=digest, data=data))
        return digest

    async def read_blob(self, digest: str) -> bytes | None:
        return await at_home(self._home, self._turn.services.store.blob, digest)

    def _now(self) -> int:
        return self._clock.now_ms()


class _AttachmentKeeper:
    """The `Attachments` of one result."""

    __slots__ = ("_hooks", "kept")

    def __init__(self, hooks: TurnHooks) -> None:
        self._hooks = hooks
        self.kept: list[AttachmentPart] = []

    def keep(self, data: bytes, *, media_type: str, name: str | None = None) -> AttachmentPart:
        part = AttachmentPart(
            digest=self._hooks.keep_blob(data), media_type=media_type, size=len(data), name=name
        )
        self.kept.append(part)
        return part

    async def read(self, digest: str) -> bytes | None:
        return await self._hooks.read_blob(digest)


class _CallTriggers:
    """The `Triggers` of one call."""

    __slots__ = ("_home", "_key", "_turn")

    def __init__(self, turn: TurnContext, home: asyncio.AbstractEventLoop, key: str) -> None:
        self._turn = turn
        self._home = home
        self._key = key

    @property
    def sources(self) -> dict[str, str]:
        events = self._turn.session.plugins.triggers.events
        return {name: event.description for name, event in events.items()}

    async def occur(self, source: str, payload: Json = None, *, key: str | None = None) -> int:
        return await at_home(self._home, self._turn.occur, source, self._key if key is None else key, payload)


def priced(cost_of: Cost, model_id: str, reply: ReplyEnded) -> Usage:
    """What a reply of this model used, with what it cost if that is known."""
    usage = reply.usage
    if usage.priced:
        return usage
    cost = cost_of(model_id, reply.model, usage)
    return usage if cost is None else msgspec.structs.replace(usage, cost_nano_usd=cost, priced=1)


async def whole_reply(model: ModelProvider, request: ModelRequest) -> ReplyEnded:
    """The reply without its pieces; `ModelError` if it has no end."""
    stream = model.stream(request)
    try:
        async for delta in stream:
            if isinstance(delta, ReplyEnded):
                return delta
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    raise ModelError("the model's reply broke off before its end", retryable=True)


def _key_of(given: Input | None) -> str:
    """The key of an input that comes of hooks around a call."""
    if isinstance(given, ToolSettled):
        return f"tool.{given.call_id}"
    return f"ruled.{given.call_id}" if isinstance(given, CallRuled) else ""


def _failed(settled: ToolSettled, error: ErrorObject) -> ToolSettled:
    return msgspec.structs.replace(
        settled, value=None, error=error, exception=None, record=_record_of(settled, None, error), shown=None
    )


def _record_of(settled: ToolSettled, value: Json, error: ErrorObject | None) -> ExternalCallRecord | None:
    """The record of a call whose result a plugin has replaced: it names the new one, and no exception."""
    record = settled.record
    if record is None:
        return None
    status = record.status
    if error is not None and record.error is None:
        status = _status_of(error)
    digest = digest_bytes(encode_sorted(value)) if error is None else None
    return msgspec.structs.replace(
        record.without_traceback(), error=error, status=status, response_digest=digest
    )


def _status_of(error: ErrorObject) -> CallStatus:
    return CallStatus.DENIED if error.code == Code.PERMISSION_DENIED else CallStatus.ERROR
