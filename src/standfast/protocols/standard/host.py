"""The effect host of the standard protocol: executes tool calls, cells, model calls and plugin hooks.

Rules
-----
1. Every call goes through the same dispatcher, so validation, limits, approvals and records are the same for
   all.
2. An approved call is refused if the tool's contract has changed since the approval.
3. A call that was interrupted by a crash and is not idempotent is not retried automatically: the tool's
   `on_interrupted` decides. `on_timeout` decides about a call that timed out.
4. A result is converted on its handler's thread, so that a large result does not block the loop.
5. Plugins rule on a call once, before any other check, and see every result first, except the result of a
   call that they made fail themselves.
6. An exception of a tool or a provider never propagates: it becomes an input of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

import msgspec

from standfast.durable.effects import Deliver, EffectReady, EffectSettled, EffectWaits, Prepared
from standfast.errors import Code, ErrorObject, InvalidArgument, StandfastError
from standfast.machine.commands import CallModel, ContinueCell, PrepareCall, RunHooks, RunTool
from standfast.machine.inputs import (
    CallPrepared,
    CallTimedOut,
    FrameSwitchRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    ToolSettled,
    decode_input,
    encode_input,
)
from standfast.model.canonical import Json, check_bounds, copied_if_small, digest_bytes, is_light, to_json
from standfast.model.capability import CallStatus, SettledCall, SideEffect, ToolCallContext
from standfast.model.frame import FrameSwitch
from standfast.model.limits import CapabilityLimits
from standfast.model.message import AssistantMessage, ToolCall
from standfast.model.outcome import Approved, Denied, Ended, Expired, Wait
from standfast.protocols.standard.approvals import ask_question, grant_for, request_approval, settle_wait
from standfast.tools.context import (
    LATER,
    AskPerson,
    CompleteAfter,
    CompleteLater,
    ContinueAs,
    Later,
    PersonAnswer,
    RunContext,
    drop_report,
)
from standfast.tools.dispatch import RunningCall
from standfast.tools.registered_tool import (
    ARGS,
    Admission,
    Admitted,
    CheckedArguments,
    NeedsApproval,
    RegisteredTool,
    from_native,
    is_positional,
)
from standfast.tools.settlement import (
    request_digest,
    settle_continued,
    settle_failure,
    settle_interrupted,
    settle_outcome,
    settle_timed_out,
)

if TYPE_CHECKING:
    from standfast.model.grant import Grant
    from standfast.plugins.turn_hooks import TurnContext, TurnHooks
    from standfast.protocols.standard.cells import HostedCells
    from standfast.protocols.standard.model_call import ModelCall

T = TypeVar("T")

_MAX_TIMEOUT_RETRIES: Final = 2
"""How often `on_timeout="retry"` retries a call, so that a tool that hangs cannot block its turn forever."""
_MAX_WAIT_S: Final = 100 * 366 * 24 * 3600
_MAX_PLAIN_CHARS: Final = CapabilityLimits().max_request_bytes // 8
"""A cell shorter than this is within its tool's request limit, however its characters are escaped."""


class StandardHost:
    """The `EffectHost` of one turn, or of a sandbox session's turns one after the other. Used on their loops.

    *model_call* creates each model call. *cells*, if given, run the cells instead of `TurnCells`.
    """

    def __init__(
        self,
        turn: TurnContext,
        model_call: Callable[[TurnContext, int, str, int], ModelCall] | None = None,
        cells: HostedCells | None = None,
    ) -> None:
        self._turn = turn
        self._hooks = hooks = turn.hooks
        self.changed_states, self.take_blobs, self.kept = hooks.changed_states, hooks.take_blobs, hooks.kept
        self._model_call = model_call
        if cells is None and turn.executor is not None:
            from standfast.protocols.standard.cells import TurnCells  # needed only by agents that write code

            cells = TurnCells(turn)
        self._cells = cells
        self._cell_tool = None if turn.executor is None else turn.executor.cell_tool
        self._running: RunningCalls | None = None
        self._judging: set[asyncio.Task[None]] = set()
        self._unresolved: dict[str, StandfastError] = {}

    def run_hooks(self, command: RunHooks) -> Coroutine[Any, Any, HooksRan]:
        return self._hooks.run_hooks(command)

    def prepare_call(self, command: PrepareCall) -> Coroutine[Any, Any, CallPrepared]:
        call = self._call_of_model(self._turn.machine.account.model_calls + 1, command.key, 1)
        return self._hooks.prepare_call(command, call.request)

    def call_model(self, command: CallModel) -> Coroutine[Any, Any, ModelReplied | ModelFailed]:
        return self._call_of_model(command.number, command.key, command.attempt).run()

    def _call_of_model(self, number: int, key: str, attempt: int) -> ModelCall:
        if self._model_call is None:
            from standfast.protocols.standard.model_call import ModelCall  # code turns do not need it

            self._model_call = ModelCall
        return self._model_call(self._turn, number, key, attempt)

    async def check_output(self, text: str) -> OutputCheck:
        output = self._turn.output
        if output is None or not output.runs_code:
            return OutputCheck() if output is None else output.check(text)
        limit_s = self._turn.services.settings.hook_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._turn.services.threads.run(lambda: output.check(text))
        except TimeoutError:
            return OutputCheck(problem=f"the check did not end within {limit_s:g} s")

    def settled(self, given: ToolSettled) -> None:
        if self._cells is not None:
            self._cells.settled(given.call_id)

    @property
    def parks_at_once(self) -> bool:
        return self._cells is None and not self._hooks.has_unknown_states

    async def parking(self) -> ToolSettled | None:
        ended = None if self._cells is None else await self._cells.park()
        await self._hooks.take_states()
        return ended

    def finalizing(self, outcome: Ended) -> Coroutine[Any, Any, None]:
        turn = self._turn
        if turn.executor is not None:
            turn.executor.turn_over([*turn.history, *turn.machine.messages])
        return self._hooks.finalizing(outcome)

    def stop(self) -> None:
        self._hooks.drop_held()
        if self._cells is not None:
            self._cells.stop()
        running, self._running = self._running, None
        if running is not None:
            running.abandon()
        judging, self._judging = self._judging, set()
        for task in judging:
            task.cancel()

    # Before a call is executed

    def ready_at_once(self, command: RunTool) -> EffectReady | None:
        turn, call = self._turn, command.call
        if not command.ruled or command.attempt > 1:
            return None
        if call.name == self._cell_tool and not call.parent:  # nothing but code needs no check
            given = _arguments(command)
            code = given.get("code")
            is_plain = isinstance(code, str) and len(given) == 1 and len(code) < _MAX_PLAIN_CHARS
            if not is_plain or (turn.machine.code is None and _is_second_cell(turn, call)):
                return None
            return EffectReady(command, True, None, pure=True)
        if self._unresolved or not turn.session.is_static:
            return None
        try:
            tool = self._find(call)
            args, named = _given(tool, command, _arguments(command))
        except StandfastError:
            return None
        may_wait = tool.runs_code or tool.capability.approval_policy != "none"
        if may_wait or (copied := copied_if_small([args, named])) is None:
            return None
        admission = turn.dispatcher.admit_tool(
            tool, args, named, session_id=turn.session_id, call_id=call.call_id, copied=copied
        )
        return self._ready(command, admission) if type(admission) is Admitted else None

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        if command.ruled:
            return await self._prepare(command, begun)
        await self._resolve(command.call)
        try:
            side_effect = self._find(command.call).capability.side_effect
        except StandfastError:
            side_effect = None
        ruled = await self._hooks.rule(command.call, side_effect)
        ruling = ruled.ruling
        command = msgspec.structs.replace(command, ruled=True, arguments=ruling.arguments)
        prepared: Prepared
        if (error := ruling.failure or ruling.abort) is not None:
            prepared = await self._settled(command, None, error)
        elif ruling.error is not None and ruling.error.code == Code.WAITING_FOR_APPROVAL:
            prepared = await self._prepare(command, begun)
            granted = isinstance(prepared, EffectWaits) and prepared.granted is not None
            if isinstance(prepared, EffectReady) or granted:  # otherwise the call already waits for a person
                tool = self._find(command.call)
                prepared = self._ask(tool, command, reason=ruling.error.message)
        elif ruling.settled:
            prepared = await self._judged(command, await self._settled(command, ruling.value, ruling.error))
        else:
            prepared = await self._prepare(command, begun)
        return msgspec.structs.replace(prepared, ruled=ruled)

    async def _prepare(self, command: RunTool, begun: bool) -> Prepared:
        if self._unresolved or not self._turn.session.is_static:
            await self._resolve(command.call)
        try:
            prepared = await self._checked(self._find(command.call), command, begun)
        except StandfastError as error:  # a tool that does not exist, for instance
            prepared = await self._settled(command, None, error.error_object())
        return await self._judged(command, prepared) if type(prepared) is EffectSettled else prepared

    async def _checked(self, tool: RegisteredTool, command: RunTool, begun: bool) -> Prepared:
        is_cell = command.call.name == self._cell_tool and not command.call.parent
        if is_cell and _is_second_cell(self._turn, command.call):
            error = ErrorObject(
                code=Code.INVALID_ARGUMENT,
                message="only the first cell of a reply is run; this one was not",
                hint="write one cell, read its result, then write the next",
            )
            return await self._settled(command, None, error)
        if (begun or command.timed_out) and (over := self._without_retry(tool, command, begun)) is not None:
            return over
        if command.granted is None:
            admission = await self._admit(tool, command)
        elif isinstance(command.granted, Approved) or _is_declined(command):
            admission = await self._check_approved(tool, command)
        else:
            call, granted = self._placeholder(tool, command), command.granted
            settled = await self._check_values(tool, lambda: settle_wait(call, command, granted))
            return self._known(command, settled)
        if (begun or command.timeouts) and type(admission) is SettledCall:
            # The previous execution may have taken effect, whatever the reason why the call is not retried.
            if command.timeouts:
                admission = settle_timed_out(self._placeholder(tool, command))
            else:
                admission = settle_interrupted(tool, _request_digest(tool, command))
        if type(admission) is NeedsApproval:
            grant = await grant_for(self._turn, admission.call)
            return self._ask(tool, command, grant=grant)
        return self._admitted(command, admission, is_cell)

    def _without_retry(self, tool: RegisteredTool, command: RunTool, begun: bool) -> Prepared | None:
        """Return the outcome of a call that was interrupted or timed out, unless it is executed again."""
        repeatable = tool.capability.idempotent
        if begun and not repeatable and tool.on_interrupted != "retry":
            if tool.on_interrupted == "ask":
                return self._ask(tool, command, interrupted=True)
            return self._known(command, settle_interrupted(tool, _request_digest(tool, command)))
        may_retry = tool.on_timeout == "retry" and command.timeouts <= _MAX_TIMEOUT_RETRIES
        if command.timed_out and not begun and not may_retry:
            if tool.on_timeout == "ask" and not repeatable:
                reason = "it timed out, and whether it took effect is unknown; run it again?"
                return self._ask(tool, command, reason=reason)
            return self._known(command, settle_timed_out(self._placeholder(tool, command)))
        return None

    async def _admit(self, tool: RegisteredTool, command: RunTool) -> Admission:
        args, named = _given(tool, command, _arguments(command))
        admit = partial(
            self._turn.dispatcher.admit_tool,
            tool,
            args,
            named,
            session_id=self._turn.session_id,
            call_id=command.call.call_id,
        )
        if tool.runs_code:
            return await self._check_values(tool, admit)
        if isinstance(tool.capability.approval_policy, str) and is_light([args, named]):
            return admit()
        # A rule is evaluated in the sandbox, which blocks.
        return await self._turn.services.threads.run(admit)

    async def _check_values(self, tool: RegisteredTool, work: Callable[[], T]) -> T | SettledCall:
        """Call *work*, which checks a call's values; on a thread if the tool's types run user code."""
        # Code that exceeds the tool's timeout is abandoned, and the call fails.
        if not tool.runs_code:
            return work()
        limit_ms = self._turn.dispatcher.timeout_ms(tool)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._turn.services.threads.run(work)
        except TimeoutError:
            message = f"the values of {tool.name}() could not be checked within {limit_ms} ms"
            return settle_failure(tool, "", ErrorObject(code=Code.INVALID_ARGUMENT, message=message))

    async def _check_approved(self, tool: RegisteredTool, command: RunTool) -> Admission:
        terms = None if command.waited is None else command.waited.value
        if not isinstance(terms, dict) or terms.get("contract") != tool.digest:
            message = f"{tool.name}() has changed since the call was approved, so it was not executed"
            return settle_failure(tool, "", ErrorObject(code=Code.PERMISSION_DENIED, message=message))
        args, named = _given(tool, command, _executed_with(command))
        session_id, call_id = self._turn.session_id, command.call.call_id
        return await self._check_values(
            tool,
            lambda: self._turn.dispatcher.check(tool, args, named, session_id=session_id, call_id=call_id),
        )

    def _admitted(self, command: RunTool, admission: Admitted | SettledCall, is_cell: bool) -> Prepared:
        if type(admission) is SettledCall:
            return self._known(command, admission)
        if is_cell:
            return EffectReady(command, True, admission, pure=True)
        return self._ready(command, admission)

    def _ready(self, command: RunTool, admission: Admitted) -> EffectReady:
        tool, contract = admission.tool, admission.tool.capability
        if tool.takes_context or self._turn.dispatcher.traced:
            context = _run_context(self._turn, command)
            admission = msgspec.structs.replace(admission, run_context=context)
        if command.attempt > 1:
            admission = msgspec.structs.replace(admission, attempt=command.attempt)
        idempotent = bool(contract.idempotent)
        # A tool with a context can pass the call's id to others, so the call must be stored first.
        pure = idempotent and contract.side_effect is SideEffect.NONE and not tool.takes_context
        return EffectReady(command, idempotent, admission, pure=pure)

    def _ask(
        self,
        tool: RegisteredTool,
        command: RunTool,
        *,
        interrupted: bool = False,
        reason: str | None = None,
        grant: Grant | None = None,
    ) -> Prepared:
        given, call_id = _given(tool, command, _arguments(command)), command.call.call_id
        return request_approval(
            self._turn, tool, call_id, given, interrupted=interrupted, reason=reason, grant=grant
        )

    async def _resolve(self, call: ToolCall) -> None:
        """Load the tool of a call. An error of its source is raised by `_find`."""
        self._unresolved.pop(call.name, None)
        try:
            await self._turn.session.prepare(call.name)
        except StandfastError as error:
            self._unresolved[call.name] = error

    def _find(self, call: ToolCall) -> RegisteredTool:
        """Return the tool of a call: of the code that made it, of the protocol, or of the session."""
        if (error := self._unresolved.get(call.name)) is not None:
            raise error
        turn, executor = self._turn, self._turn.executor
        if executor is not None and (call.parent or call.name == self._cell_tool):
            own = turn.session.code_functions().own(call.name)
            if own is not None:
                return own
        return turn.preamble.own.get(call.name) or turn.session.find_tool(call.name)

    def _known(self, command: RunTool, settled: SettledCall) -> EffectSettled:
        return EffectSettled(as_input(command.call.call_id, settled, self._turn.services.clock.now_ms()))

    def _placeholder(self, tool: RegisteredTool, command: RunTool) -> Admitted:
        """Return an admitted call for the settlement of a call that is not executed."""
        args, named = _recorded(tool, command)
        return Admitted(
            tool,
            ToolCallContext(name=tool.name, args=args, kwargs=named),
            CheckedArguments([], {}),
            self._turn.session_id,
            command.call.call_id,
            request_digest(tool.name, args, named),
            timeout_ms=self._turn.dispatcher.timeout_ms(tool),
        )

    async def _settled(self, command: RunTool, value: Json, error: ErrorObject | None) -> EffectSettled:
        """Return a result for a call that was not executed, with a record if the tool exists."""
        try:
            tool = self._find(command.call)
        except StandfastError:
            now, call_id = self._turn.services.clock.now_ms(), command.call.call_id
            return EffectSettled(ToolSettled(at_ms=now, call_id=call_id, value=value, error=error))
        if error is not None:
            return self._known(command, settle_failure(tool, _request_digest(tool, command), error))
        call = self._placeholder(tool, command)
        settled = await self._check_values(tool, lambda: settle_outcome(call, time.monotonic(), value, None))
        return self._known(command, settled)

    # Execution

    def start(self, ready: EffectReady, deliver: Deliver) -> None:
        call = ready.command.call
        if call.name == self._cell_tool and not call.parent:
            assert self._cells is not None
            self._cells.resume(ContinueCell(call, _executed_with(ready.command), (), (), 0), deliver)
            return
        if self._running is None:
            self._running = RunningCalls()
        pass_on = partial(self._pass_on, ready.command, deliver)
        Execution(self._turn, ready.call, self._running, pass_on).start()

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        assert self._cells is not None
        self._cells.resume(command, deliver)

    async def _judged(self, command: RunTool, known: EffectSettled) -> EffectSettled:
        """Let plugins see and change a result that did not come from an execution."""
        if not self._hooks.judges:
            return known
        settled = await _judge(self._hooks, command, known.settled)
        await self._hooks.settles(settled.call_id)
        return EffectSettled(settled)

    def _pass_on(
        self, command: RunTool, deliver: Deliver, given: Input | EffectWaits, /, *, at_once: bool = False
    ) -> None:
        """Deliver the outcome of an execution; let plugins change a result first."""
        hooks = self._hooks
        if isinstance(given, ToolSettled):
            given = hooks.with_attachments(given)
            if hooks.judges or (hooks.has_plugins_away and hooks.has_unknown_states):
                task = asyncio.get_running_loop().create_task(self._judge_first(command, deliver, given))
                self._judging.add(task)
                task.add_done_callback(self._judging.discard)
                return
            given = hooks.charged(given)
        deliver(given, at_once=at_once)

    async def _judge_first(self, command: RunTool, deliver: Deliver, settled: ToolSettled) -> None:
        hooks = self._hooks
        if hooks.judges:
            settled = await _judge(hooks, command, settled)
        await hooks.take_states()  # a plugin's tool may have changed the plugin's state
        hooks.deliver(settled.call_id, lambda: deliver(hooks.charged(settled)))


async def _judge(hooks: TurnHooks, command: RunTool, settled: ToolSettled) -> ToolSettled:
    call = command.call
    return await hooks.judge(settled, call.name, _executed_with(command), parent=call.parent)


class RunningCalls:
    """The running calls of a turn. One timer abandons calls that reach their deadline."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.calls: set[Execution] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def watch(self, execution: Execution) -> None:
        """Abandon a call at its deadline, if it is still running then."""
        deadline = execution.deadline
        if deadline is None or execution not in self.calls:
            return  # it is waiting for a slot, or has ended
        if self._timer is not None:
            if self._due <= deadline:
                return
            self._timer.cancel()
        self._due = deadline
        left = max(0.0, deadline - time.monotonic())
        self._timer = self.loop.call_later(left, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for execution in tuple(self.calls):
            if not execution.time_out():
                self.watch(execution)

    def abandon(self) -> None:
        """Abandon all calls; no outcome is delivered after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self.calls = self.calls, set()
        for execution in calls:
            execution.drop()


class Execution(RunningCall):
    """Executes one call until its handler returns or its timeout expires, and delivers the outcome once."""

    _is_starting = True
    _over = False

    def __init__(self, turn: TurnContext, call: Admitted, calls: RunningCalls, deliver: Deliver) -> None:
        super().__init__(call)
        self._turn = turn
        self._calls = calls
        self._deliver = deliver

    def start(self) -> None:
        self._calls.calls.add(self)
        self._turn.dispatcher.start(self)
        self._is_starting = False
        self._calls.watch(self)  # does nothing while the call waits for a slot

    def launched(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the turn with it
            self._calls.loop.call_soon_threadsafe(self._calls.watch, self)

    def returned(self, value: object, error: BaseException | None) -> Callable[[], object] | None:
        """Convert the handler's outcome to inputs; return the function that passes them to the loop."""
        inputs = self._inputs_of(value, error)
        if asyncio._get_running_loop() is not self._calls.loop:
            return partial(self._call_loop, inputs, copy_context())  # hooks see the handler's contextvars
        if self._is_starting:  # the handler could not be started
            self._calls.loop.call_soon(self._finish, inputs)
        else:
            self._finish(inputs)
        return None

    def _call_loop(self, inputs: list[Input | EffectWaits], context: Context) -> None:
        loop = self._calls.loop
        if asyncio._get_running_loop() is loop:  # the handler's thread drives the loop again
            context.run(self._finish, inputs)
            return
        try:
            loop.call_soon_threadsafe(self._finish, inputs, context=context)
        except RuntimeError:  # the loop is closed, and the turn with it
            return

    def drop(self) -> None:
        """Abandon the call; no outcome is delivered after this."""
        self._over = True
        self.abandon()

    def time_out(self) -> bool:
        """Abandon the call if its timeout has expired; return False if it has time left."""
        if self.seconds_left():
            return False  # the loop's clock is a little ahead of ours, or it was another call's timer
        settled = self.expire()
        if settled is not None:  # otherwise its result is being converted
            self._finish([self._settled(settled)])
        return True

    def _finish(self, inputs: list[Input | EffectWaits]) -> None:
        if self._over:
            return
        self._over = True
        self._calls.calls.discard(self)
        for given in inputs:
            self._deliver(given, at_once=given is inputs[-1])

    def _inputs_of(self, value: object, error: BaseException | None) -> list[Input | EffectWaits]:
        if error is None and isinstance(value, LATER):
            try:
                return self._deferred(value)
            except StandfastError as refused:
                error = refused
            except Exception as raised:  # a tool's result may contain anything
                name, kind = self.call.tool.name, type(value).__name__
                error = InvalidArgument(f"{name}() returned an invalid {kind}: {raised}")
        return [self._settled(settle_outcome(self.call, self.started, value, error))]

    def _settled(self, settled: SettledCall) -> ToolSettled | CallTimedOut:
        """Return the call's result, or a timeout for the tool's `on_timeout` to decide about."""
        call, tool, now = self.call, self.call.tool, self._turn.services.clock.now_ms()
        may_decide = tool.on_timeout != "report" and not tool.capability.idempotent
        if may_decide and settled.record.status is CallStatus.TIMEOUT:
            return CallTimedOut(at_ms=now, call_id=call.call_id, attempt=call.attempt, record=settled.record)
        return as_input(call.call_id, settled, now)

    def _deferred(self, value: Later) -> list[Input | EffectWaits]:
        """Convert a deferred result into inputs of the machine, or a wait."""
        now, turn_id, call_id = self._turn.services.clock.now_ms(), self._turn.turn_id, self.call.call_id
        match value:
            case CompleteLater():
                if not value.token.startswith(f"cpl_{turn_id}.{call_id}-"):
                    raise InvalidArgument(
                        f"{self.call.tool.name}() returned a token of another call",
                        hint="use ctx.completion_token()",
                    )
                due = now + _whole_ms(value.expires_in_s)
                wait = Wait(wait_id=value.token, kind="completion", call_id=call_id, due_at=due)
                return [EffectWaits(wait)]
            case CompleteAfter():
                clean, _ = to_json(value.value)
                wait = Wait(
                    wait_id=f"tmr_{turn_id}.{call_id}",
                    kind="timer",
                    call_id=call_id,
                    due_at=now + _whole_ms(value.seconds),
                    value=clean,
                )
                return [EffectWaits(wait)]
            case AskPerson():
                return [ask_question(self._turn, self.call, value)]
            case ContinueAs():
                check_bounds(value.seed)
                frame_id, seed = f"{turn_id}.f{call_id}", tuple(value.seed)
                switch = FrameSwitch(frame_id=frame_id, reason=value.reason, task=value.task, seed=seed)
                requested = FrameSwitchRequested(at_ms=now, switch=switch)
                decode_input(encode_input(requested))  # raises if the journal could not be read back
                return [requested, self._settled(settle_continued(self.call, self.started))]
            case _:
                assert_never(value)


def _whole_ms(seconds: float) -> int:
    if not seconds <= _MAX_WAIT_S:  # NaN as well
        raise InvalidArgument(f"a call can wait at most {_MAX_WAIT_S} seconds, got {seconds}")
    return int(max(0.0, seconds) * 1000)


def as_input(call_id: int, settled: SettledCall, now_ms: int) -> ToolSettled:
    """Convert a settled call into an input of the machine."""
    return ToolSettled(
        at_ms=now_ms,
        call_id=call_id,
        value=settled.value,
        error=settled.record.error,
        exception=settled.exception,
        record=settled.record,
        ends_turn=settled.ends_turn,
    )


def _is_second_cell(turn: TurnContext, call: ToolCall) -> bool:
    """Return whether the same reply requests another cell before this one."""
    for message in reversed(turn.machine.messages):
        if isinstance(message, AssistantMessage):
            cells = [one.call_id for one in message.tool_calls if one.name == call.name]
            return bool(cells) and cells[0] != call.call_id
    return False


def _run_context(turn: TurnContext, command: RunTool) -> RunContext[Any]:
    call_id, hooks = command.call.call_id, turn.hooks
    key = f"{turn.turn_id}.{call_id}"
    secret = digest_bytes(f"{turn.machine.nonce}.{key}".encode())[:24]
    return RunContext(
        deps=turn.deps,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        call_id=call_id,
        attempt=command.attempt,
        idempotency_key=key,
        token=f"cpl_{key}-{secret}",
        model=hooks.complete,
        host=hooks.tool_host,
        attachments=hooks.attachments_of(call_id),
        triggers=hooks.triggers_of(key),
        answer=_answer(command),
        report=_reporter(turn, call_id),
        limits=None if turn.machine.code is None else turn.machine.code.limits,
        session_limits=None if turn.head.code is None else turn.head.code.limits,
    )


def _reporter(turn: TurnContext, call_id: int) -> Callable[[str, Json], None]:
    """Return the function that publishes a call's events; a run of the sandbox has no subscribers."""
    show, turn_id = getattr(turn, "show", None), turn.turn_id
    if show is None:
        return drop_report
    home = asyncio.get_running_loop()

    def report(kind: str, body: Json) -> None:
        from standfast.model.events import ToolReported  # not needed by runs of a sandbox

        event = ToolReported(turn_id=turn_id, call_id=call_id, kind=kind, body=to_json(body)[0])
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the turn with it
            home.call_soon_threadsafe(show, event)

    return report


def _answer(command: RunTool) -> PersonAnswer | None:
    """Return the answer to the question of the call, if it has asked one."""
    granted, waited = command.granted, command.waited
    terms = waited.value if waited is not None and isinstance(waited.value, dict) else {}
    match granted:
        case Approved(answer=dict(answer)):
            return PersonAnswer(answer, terms.get("question"), granted.by)
        case Denied() if _is_declined(command):
            return PersonAnswer({}, terms.get("question"), granted.by, "decline")
        case Expired() if _is_declined(command):
            return PersonAnswer({}, terms.get("question"), None, "cancel")
        case _:
            return None


def _is_declined(command: RunTool) -> bool:
    """Return whether a question was denied or has expired, and its tool asked to be informed of that."""
    terms = None if command.waited is None else command.waited.value
    ended = isinstance(command.granted, Denied | Expired)
    return ended and isinstance(terms, dict) and terms.get("declinable") is True


# The arguments of a call


def _arguments(command: RunTool) -> dict[str, Json]:
    """Return the model's arguments, or those that plugins replaced them with."""
    return (command.call.arguments or {}) if command.arguments is None else command.arguments


def _executed_with(command: RunTool) -> dict[str, Json]:
    """Return the call's arguments, with the edits of the person who approved it."""
    granted = command.granted
    if isinstance(granted, Approved) and granted.arguments is not None:
        return granted.arguments
    return _arguments(command)


def _given(
    tool: RegisteredTool, command: RunTool, arguments: dict[str, Json]
) -> tuple[list[Json], dict[str, Json]]:
    """Return the positional and named arguments; a model or a person passes only named ones."""
    call, granted = command.call, command.granted
    edited = False
    if granted is not None and isinstance(granted, Approved):
        edited = granted.arguments is arguments
        if edited and granted.args is not None:
            return granted.args, arguments
    replaced = edited or (arguments is not call.arguments and ARGS in arguments)
    if not is_positional(tool.capability) or (call.parent and not replaced):
        return [] if edited else list(call.args), arguments  # an edit replaces all arguments
    return from_native(tool.capability, arguments), {}


def _recorded(tool: RegisteredTool, command: RunTool) -> tuple[list[Json], dict[str, Json]]:
    """Return the arguments for the record of a call that is not executed, even if they are invalid."""
    try:
        return _given(tool, command, _arguments(command))
    except InvalidArgument:
        return list(command.call.args), _arguments(command)


def _request_digest(tool: RegisteredTool, command: RunTool) -> str:
    return request_digest(tool.name, *_recorded(tool, command))
