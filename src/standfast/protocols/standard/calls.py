"""Native tool calls, from what the model asked for to a result.

Rules
-----
1. An approval is bound to the contract, the arguments, the session, the turn and the call. A contract that
   has changed since then makes it void.
2. A call that a dead process had begun, and that is not idempotent, is not run again on its own: the tool's
   `on_interrupted` decides. `on_timeout` decides about one that timed out.
3. A result is made where its handler ran: a large one from a thread does not hold up the loop.
4. Plugins rule on a call before anything else, once; and they see every result before anybody else does,
   except of a call that they themselves made to fail.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, assert_never

import msgspec

from standfast.durable.effects import Asks, Deliver, Known, Prepared, Ready
from standfast.errors import Code, ErrorObject, InvalidArgument, StandfastError
from standfast.machine.commands import ContinueCell, RunTool
from standfast.machine.inputs import Input, ToolSettled
from standfast.model.approval import Approval, ApprovalState, bind_approval
from standfast.model.bounds import is_light
from standfast.model.call import SettledCall, ToolCallContext
from standfast.model.canonical import Json, digest_bytes
from standfast.model.capability import SideEffect
from standfast.model.message import AssistantMessage, ToolCall
from standfast.model.wait import (
    Approved,
    Completed,
    Denied,
    Elapsed,
    Expired,
    Failed,
    Wait,
    WaitKind,
    WaitOutcome,
)
from standfast.plugins.turn_hooks import TurnContext
from standfast.protocols.standard.cells import RunningCells
from standfast.protocols.standard.execution import Execution, as_input
from standfast.tools.admission import Admission, Admitted, NeedsApproval
from standfast.tools.context import RunContext
from standfast.tools.registered_tool import ARGS, Bound, RegisteredTool, from_native, is_positional
from standfast.tools.settlement import (
    request_digest,
    settle_denied,
    settle_failure,
    settle_interrupted,
    settle_outcome,
    settle_timed_out,
)

T = TypeVar("T")

_MAX_TIMEOUT_RETRIES: Final = 2
"""How often `on_timeout="retry"` repeats a call: a tool that hangs must not hold its turn forever."""


class ToolCalls:
    """The calls of one turn. Used on the turn's loop."""

    def __init__(self, turn: TurnContext) -> None:
        self._turn = turn
        self._hooks = turn.hooks
        self._dispatcher = turn.dispatcher
        self._clock = turn.services.clock
        self._turn_id = turn.turn_id
        self._cells = None if turn.executor is None else RunningCells(turn)
        self._running: list[Execution] = []
        self._judges: set[asyncio.Task[None]] = set()
        self._unresolved: dict[str, StandfastError] = {}

    async def prepare(self, command: RunTool, *, begun: bool) -> Prepared:
        """Everything before the execution: what plugins say comes first."""
        await self._resolve(command.call)
        if command.ruled:
            return await self._prepare(command, begun)
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
            if isinstance(prepared, Ready):
                prepared = self._ask(self._find(command.call), command, reason=ruling.error.message)
        elif ruling.settled:
            prepared = await self._judged(command, await self._settled(command, ruling.value, ruling.error))
        else:
            prepared = await self._prepare(command, begun)
        return msgspec.structs.replace(prepared, ruled=ruled)

    async def _prepare(self, command: RunTool, begun: bool) -> Prepared:
        await self._resolve(command.call)
        try:
            prepared = await self._checked(self._find(command.call), command, begun)
        except StandfastError as error:  # a tool that does not exist, for instance
            prepared = await self._settled(command, None, error.error_object())
        return await self._judged(command, prepared) if isinstance(prepared, Known) else prepared

    async def _checked(self, tool: RegisteredTool, command: RunTool, begun: bool) -> Prepared:
        if self._is_second_cell(command.call):
            return await self._settled(command, None, _one_cell())
        repeatable = tool.capability.idempotent
        if begun and not repeatable and tool.on_interrupted != "retry":
            if tool.on_interrupted == "ask":
                return self._ask(tool, command, interrupted=True)
            return self._known(command, settle_interrupted(tool, self._digest(tool, command)))
        may_retry = tool.on_timeout == "retry" and command.timeouts <= _MAX_TIMEOUT_RETRIES
        if command.timed_out and not begun and not may_retry:
            if tool.on_timeout == "ask" and not repeatable:
                reason = "it timed out, and whether it took effect is unknown; run it again?"
                return self._ask(tool, command, reason=reason)
            return self._known(command, settle_timed_out(self._placeholder(tool, command)))
        if command.granted is None:
            if self._is_cell(command.call) and _is_plain_cell(tool, self._arguments(command)):
                return Ready(command, True, None, pure=True)
            admission = await self._admit(tool, command)
        elif isinstance(command.granted, Approved):
            admission = await self._check_approved(tool, command)
        else:
            granted = command.granted
            over = await self._checking(tool, lambda: self._wait_over(tool, command, granted))
            return self._known(command, over)
        if isinstance(admission, SettledCall) and (begun or command.timeouts):
            # The execution before may have taken effect, whatever keeps the call from being repeated.
            if command.timeouts:
                admission = settle_timed_out(self._placeholder(tool, command))
            else:
                admission = settle_interrupted(tool, self._digest(tool, command))
        return self._sorted(command, admission)

    def start(self, ready: Ready, deliver: Deliver) -> None:
        if self._cells is not None and self._is_cell(ready.command.call):
            self._cells.start(ready.command.call, self._executed_with(ready.command), deliver)
            return
        execution = Execution(
            self._dispatcher, self._clock, ready.call, self._turn_id, self._judging(ready, deliver)
        )
        self._running.append(execution)
        execution.start()

    def continue_cell(self, command: ContinueCell, deliver: Deliver) -> None:
        assert self._cells is not None
        self._cells.go_on(command, deliver)

    def settled(self, call_id: int) -> None:
        if self._cells is not None:
            self._cells.settled(call_id)

    async def parking(self) -> ToolSettled | None:
        return None if self._cells is None else await self._cells.park()

    def stop(self) -> None:
        """Give up what is under way."""
        self._hooks.drop_held()
        if self._cells is not None:
            self._cells.stop()
        running, self._running = self._running, []
        for execution in running:
            execution.abandon()
        judging, self._judges = self._judges, set()
        for task in judging:
            task.cancel()

    # Plugins

    async def _judged(self, command: RunTool, known: Known) -> Known:
        """A result that is known without an execution, as plugins leave it."""
        if not self._hooks.judges:
            return known
        settled = await self._judge(command, known.settled)
        await self._hooks.settles(settled.call_id)
        return Known(settled)

    async def _judge(self, command: RunTool, settled: ToolSettled) -> ToolSettled:
        call, arguments = command.call, self._executed_with(command)
        return await self._hooks.judge(settled, call.name, arguments, parent=call.parent)

    def _judging(self, ready: Ready, deliver: Deliver) -> Deliver:
        """Takes what came of an execution to the plugins before anybody else hears of it."""
        hooks = self._hooks

        async def judge(settled: ToolSettled) -> None:
            if hooks.judges:
                settled = await self._judge(ready.command, settled)
            await hooks.take_states()  # the tool may be a plugin's, and have changed what that remembers
            hooks.deliver(settled.call_id, lambda: deliver(hooks.charged(settled)))

        def hear(given: Input) -> None:
            if not isinstance(given, ToolSettled):
                deliver(given)
                return
            given = hooks.with_attachments(given)
            if not hooks.judges and not hooks.has_unknown_states:
                deliver(hooks.charged(given))
                return
            task = asyncio.get_running_loop().create_task(judge(given))
            self._judges.add(task)
            task.add_done_callback(self._judges.discard)

        return hear

    # Before the execution

    async def _admit(self, tool: RegisteredTool, command: RunTool) -> Admission:
        args, named = self._given(tool, command, self._arguments(command))

        def admit() -> Admission:
            return self._dispatcher.admit_tool(
                tool,
                args,
                named,
                session_id=self._turn.session_id,
                call_id=command.call.call_id,
            )

        if tool.runs_code:
            return await self._checking(tool, admit)
        if isinstance(tool.capability.approval_policy, str) and is_light((args, named)):
            return admit()
        # A rule is evaluated in the sandbox, which blocks.
        return await self._turn.services.threads.run(admit)

    async def _checking(self, tool: RegisteredTool, work: Callable[[], T]) -> T | SettledCall:
        """Do *work*, which checks values of a call; in a thread, if types of the tool run code for that.

        Code that does not end is left behind when the tool's time is over, and the call has failed.
        """
        if not tool.runs_code:
            return work()
        limit_ms = self._dispatcher.timeout_ms(tool)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._turn.services.threads.run(work)
        except TimeoutError:
            message = f"the values of {tool.name}() could not be checked within {limit_ms} ms"
            return settle_failure(tool, "", ErrorObject(code=Code.INVALID_ARGUMENT, message=message))

    async def _check_approved(self, tool: RegisteredTool, command: RunTool) -> Admission:
        if _terms(command.waited).get("contract") != tool.digest:
            message = f"{tool.name}() has changed since the call was approved, so it was not executed"
            return settle_failure(tool, "", ErrorObject(code=Code.PERMISSION_DENIED, message=message))
        args, named = self._given(tool, command, self._executed_with(command))
        session_id, call_id = self._turn.session_id, command.call.call_id
        return await self._checking(
            tool,
            lambda: self._dispatcher.check(tool, args, named, session_id=session_id, call_id=call_id),
        )

    def _sorted(self, command: RunTool, admission: Admission) -> Prepared:
        match admission:
            case SettledCall():
                return self._known(command, admission)
            case NeedsApproval():
                return self._ask(admission.call.tool, command)
            case Admitted():
                if self._is_cell(command.call):
                    return Ready(command, True, admission, pure=True)
                tool = admission.tool
                if tool.takes_context or self._dispatcher.traced:
                    admission = msgspec.structs.replace(admission, run_context=self._context(command))
                if command.attempt > 1:
                    admission = msgspec.structs.replace(admission, attempt=command.attempt)
                idempotent = bool(tool.capability.idempotent)
                return Ready(command, idempotent, admission, pure=_touches_nothing(tool))
            case _:
                assert_never(admission)

    def _ask(
        self, tool: RegisteredTool, command: RunTool, *, interrupted: bool = False, reason: str | None = None
    ) -> Asks:
        """A request to a person, and the wait for the answer."""
        reason = "it was interrupted by a crash; run it again?" if interrupted else reason
        approval = self._request(tool, command, reason)
        terms: dict[str, Json] = {"contract": tool.digest}
        if interrupted:
            terms["interrupted"] = True
        wait = Wait(
            wait_id=approval.approval_id,
            kind="approval",
            call_id=command.call.call_id,
            due_at=approval.expires_at,
            value=terms,
        )
        return Asks(wait, approval)

    def _request(self, tool: RegisteredTool, command: RunTool, reason: str | None) -> Approval:
        now, turn, call = self._now(), self._turn, command.call
        args, named = self._given(tool, command, self._arguments(command))
        approval = Approval(
            approval_id=f"apr_{secrets.token_hex(10)}",
            state=ApprovalState.PENDING,
            session_id=turn.session_id,
            capability=tool.name,
            args=args,
            kwargs=named,
            requested_at=now,
            expires_at=now + self._turn.services.settings.approval_ttl_ms,
            binding="",
            run_id=self._turn_id,
            call_id=call.call_id,
            reason=reason,
        )
        return msgspec.structs.replace(approval, binding=bind_approval(approval, tool.digest))

    # After a wait

    def _wait_over(self, tool: RegisteredTool, command: RunTool, outcome: WaitOutcome) -> SettledCall:
        call = self._placeholder(tool, command)
        match outcome:
            case Denied() | Expired() if _terms(command.waited).get("interrupted"):
                return settle_interrupted(tool, call.request_digest)
            case Denied() | Expired() if command.timeouts and _waited_for(command) == "approval":
                return settle_timed_out(call)
            case Denied(reason=reason):
                words = f": {reason}" if reason else ""
                return settle_denied(call, f"a person refused the call of {tool.name}(){words}")
            case Expired() if _waited_for(command) == "completion":
                message = f"nobody delivered the result of {tool.name}() in time"
                late = ErrorObject(code=Code.TIMEOUT_TOOL, message=message)
                return settle_failure(tool, call.request_digest, late)
            case Expired():
                return settle_denied(call, f"the approval of {tool.name}() expired before anybody decided")
            case Elapsed():
                value = None if command.waited is None else command.waited.value
                return settle_outcome(call, time.monotonic(), value, None)
            case Completed(value=value):
                return settle_outcome(call, time.monotonic(), value, None)
            case Failed(error=error):
                return settle_failure(tool, call.request_digest, error)
            case Approved():
                raise AssertionError("an approved call is executed")
            case _:
                assert_never(outcome)

    # Small things

    async def _resolve(self, call: ToolCall) -> None:
        """Have the tool of a call at hand. `_find` raises what its source raised."""
        self._unresolved.pop(call.name, None)
        try:
            await self._turn.session.prepare(call.name)
        except StandfastError as error:
            self._unresolved[call.name] = error

    def _find(self, call: ToolCall) -> RegisteredTool:
        """The tool of a call: of the session, of its protocol, or of its code, if code called it."""
        if (error := self._unresolved.get(call.name)) is not None:
            raise error
        turn, executor = self._turn, self._turn.executor
        if executor is not None and (call.parent or call.name == executor.cell_tool):
            own = turn.session.code_functions().own(call.name)
            if own is not None:
                return own
        return turn.preamble.own.get(call.name) or turn.session.find_tool(call.name)

    def _is_cell(self, call: ToolCall) -> bool:
        executor = self._turn.executor
        return executor is not None and call.name == executor.cell_tool and not call.parent

    def _is_second_cell(self, call: ToolCall) -> bool:
        """Whether the same reply asks for another cell before this one."""
        if not self._is_cell(call):
            return False
        for message in reversed(self._turn.machine.messages):
            if isinstance(message, AssistantMessage):
                cells = [one.call_id for one in message.tool_calls if one.name == call.name]
                return bool(cells) and cells[0] != call.call_id
        return False

    def _known(self, command: RunTool, settled: SettledCall) -> Known:
        return Known(as_input(command.call.call_id, settled, self._now()))

    def _placeholder(self, tool: RegisteredTool, command: RunTool) -> Admitted:
        """The call as settlement wants to see it; nothing is executed."""
        args, named = self._recorded(tool, command)
        context = ToolCallContext(name=tool.name, args=args, kwargs=named)
        nothing = Bound([], {}, [], {})
        digest = self._digest(tool, command)
        return Admitted(
            tool,
            context,
            nothing,
            self._turn.session_id,
            command.call.call_id,
            digest,
            timeout_ms=self._dispatcher.timeout_ms(tool),
        )

    def _digest(self, tool: RegisteredTool, command: RunTool) -> str:
        return request_digest(tool.name, *self._recorded(tool, command))

    def _recorded(self, tool: RegisteredTool, command: RunTool) -> tuple[list[Json], dict[str, Json]]:
        """The arguments for the record of a call that is not executed, whether they fit or not."""
        try:
            return self._given(tool, command, self._arguments(command))
        except InvalidArgument:
            return list(command.call.args), self._arguments(command)

    @staticmethod
    def _given(
        tool: RegisteredTool, command: RunTool, arguments: dict[str, Json]
    ) -> tuple[list[Json], dict[str, Json]]:
        """The arguments by position and by name; a model or a person gives them in one object."""
        call, granted = command.call, command.granted
        if isinstance(granted, Approved) and granted.args is not None and granted.arguments is arguments:
            return granted.args, arguments
        edited = isinstance(granted, Approved) and granted.arguments is arguments
        replaced = edited or (arguments is not call.arguments and ARGS in arguments)
        if not is_positional(tool.capability) or (call.parent and not replaced):
            return [] if edited else list(call.args), arguments  # an edit replaces all arguments
        return from_native(tool.capability, arguments), {}

    @staticmethod
    def _arguments(command: RunTool) -> dict[str, Json]:
        """What the call is made with: the model's arguments, or what plugins replaced them with."""
        return (command.call.arguments or {}) if command.arguments is None else command.arguments

    def _executed_with(self, command: RunTool) -> dict[str, Json]:
        """The arguments as the person who approved the call left them."""
        granted = command.granted
        if isinstance(granted, Approved) and granted.arguments is not None:
            return granted.arguments
        return self._arguments(command)

    async def _settled(self, command: RunTool, value: Json, error: ErrorObject | None) -> Known:
        """A result that no execution brought, on record if there is such a tool."""
        try:
            tool = self._find(command.call)
        except StandfastError:
            call_id = command.call.call_id
            return Known(ToolSettled(at_ms=self._now(), call_id=call_id, value=value, error=error))
        if error is not None:
            return self._known(command, settle_failure(tool, self._digest(tool, command), error))
        call = self._placeholder(tool, command)
        settled = await self._checking(tool, lambda: settle_outcome(call, time.monotonic(), value, None))
        return self._known(command, settled)

    def _context(self, command: RunTool) -> RunContext[Any]:
        turn = self._turn
        return RunContext(
            deps=turn.deps,
            session_id=turn.session_id,
            turn_id=self._turn_id,
            call_id=command.call.call_id,
            attempt=command.attempt,
            idempotency_key=f"{self._turn_id}.{command.call.call_id}",
            token=self._token(command.call.call_id),
            model=self._hooks.complete,
            host=self._hooks.tool_host,
            attachments=self._hooks.attachments_of(command.call.call_id),
            triggers=self._hooks.triggers_of(f"{self._turn_id}.{command.call.call_id}"),
            limits=None if turn.machine.code is None else turn.machine.code.limits,
            session_limits=None if turn.head.code is None else turn.head.code.limits,
        )

    def _token(self, call_id: int) -> str:
        """The name under which somebody outside may deliver the call's result."""
        secret = digest_bytes(f"{self._turn.machine.nonce}.{self._turn_id}.{call_id}".encode())[:24]
        return f"cpl_{self._turn_id}.{call_id}-{secret}"

    def _now(self) -> int:
        return self._clock.now_ms()


def _is_plain_cell(tool: RegisteredTool, arguments: dict[str, Json]) -> bool:
    """Whether a cell need not be looked at more closely: it is code, and of no unusual size."""
    code = arguments.get("code")
    limit = tool.capability.limits.max_request_bytes // 8
    return isinstance(code, str) and len(arguments) == 1 and len(code) < limit


def _touches_nothing(tool: RegisteredTool) -> bool:
    """Whether a tool only computes: it may be run before it is on disk that it was asked for.

    One that is told of its call can hand that on to others, who must find the call when they come back to it.
    """
    contract = tool.capability
    repeatable = bool(contract.idempotent) and not tool.takes_context
    return contract.side_effect is SideEffect.NONE and repeatable


def _one_cell() -> ErrorObject:
    return ErrorObject(
        code=Code.INVALID_ARGUMENT,
        message="only the first cell of a reply is run; this one was not",
        hint="write one cell, look at what came of it, then write the next",
    )


def _waited_for(command: RunTool) -> WaitKind | None:
    return None if command.waited is None else command.waited.kind


def _terms(wait: Wait | None) -> dict[str, Json]:
    """What an approval was asked under."""
    return wait.value if wait is not None and isinstance(wait.value, dict) else {}
