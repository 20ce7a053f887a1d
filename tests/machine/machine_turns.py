"""Turns for the tests of the machine: short constructors for inputs, and a machine fed one input per second.

Commands are compared in short form: `model.1`, `tool.2.1`, `after_work.1`, `park w1`, `stop`,
`commit finished`; `hooks.after_turn.1` and `prepare.1` ask plugins, `tool.2.1?` asks them about the
call first. `cell.1 hears 3 2` resumes cell 1 with the results of calls 3 and 2, in the order of arrival.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from standfast.errors import ErrorObject
from standfast.machine import (
    Aborted,
    CallModel,
    CallPrepared,
    CallRuled,
    CallTimedOut,
    CancelRequested,
    CellCalled,
    CellPaused,
    Checkpoint,
    CheckpointPassed,
    Command,
    Commit,
    ContinueCell,
    DeadlinePassed,
    FinishRequested,
    FrameSwitchRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    Park,
    PrepareCall,
    Resumed,
    RunHooks,
    RunTool,
    Stage,
    StopEffects,
    ToolSettled,
    TurnMachine,
    TurnStarted,
    WaitEnded,
    WaitOpened,
)
from standfast.machine.inputs import CheckpointKind, HookStage
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus, ExternalCallRecord, SideEffect
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry, UsageLimits
from standfast.model.message import AssistantMessage, RequestedCall, ToolMessage, UserMessage
from standfast.model.outcome import (
    Approved,
    Ended,
    FrameSwitched,
    Stopped,
    StopReason,
    Wait,
    WaitKind,
    WaitOutcome,
)
from standfast.model.ruling import CallRuling, Ruling
from standfast.model.session import FrameOpened, PluginNode, TurnEnded

NO_TIME = -1
"""The time of an input whose time is set when it is fed."""

SWITCH = FrameSwitch(frame_id="f_2", task="go on")
COMPACTION = FrameSwitch(frame_id="f_c", reason="compaction", seed=(UserMessage(content="so far"),))
STAGES: tuple[Stage, ...] = ("before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn")
NOTE = PluginNode(plugin_id="p", kind="note", body=1)
ENOUGH = ErrorObject(code="ENOUGH", message="enough")
BROKEN = ErrorObject(code="PLUGIN_ERROR", message="a hook of p failed")
SPENT = UsageEntry(source="p", model="m", usage=Usage(input=7, calls=1))
DENIED = ErrorObject(code="PERMISSION_DENIED", message="pay() was denied")
NO_SUCH = ErrorObject(code="INVALID_ARGUMENT", message="there is no such function")


def said(text: str, input_id: str | None = None) -> UserMessage:
    return UserMessage(content=text, input_id=input_id)


def started(
    *injected: UserMessage, stages: tuple[Stage, ...] = (), warns: bool = False, **limits: float | None
) -> TurnStarted:
    return TurnStarted(
        at_ms=NO_TIME,
        turn_id="t_1",
        message=said("hello"),
        injected=injected,
        limits=UsageLimits(**limits),  # type: ignore[arg-type]
        stages=stages,
        warns=warns,
    )


def ran(stage: HookStage, number: int = 1, **ruling: Any) -> HooksRan:
    """Return the input that reports the ruling of the plugins at `stage`."""
    return HooksRan(at_ms=NO_TIME, stage=stage, number=number, ruling=Ruling(**ruling))


def prepared(number: int = 1, **fields: Any) -> CallPrepared:
    return CallPrepared(at_ms=NO_TIME, number=number, **fields)


def ruled(call_id: int, **ruling: Any) -> CallRuled:
    return CallRuled(at_ms=NO_TIME, call_id=call_id, ruling=CallRuling(**ruling))


def call(name: str = "look", arguments: str = "{}", provider_id: str = "") -> RequestedCall:
    return RequestedCall(name=name, arguments=arguments, provider_id=provider_id)


def calls(*names: str) -> ModelReplied:
    """Return a model reply that requests one call of each of the tools `names`."""
    return ModelReplied(at_ms=NO_TIME, calls=tuple(call(name) for name in names))


def asked_for(*requests: RequestedCall) -> ModelReplied:
    return ModelReplied(at_ms=NO_TIME, calls=requests)


def answered(text: str = "done", usage: Usage = Usage(), model: str = "") -> ModelReplied:
    """Return a model reply that requests no tool."""
    return ModelReplied(at_ms=NO_TIME, text=text, usage=usage, model=model)


def failed(code: str = "PROVIDER_ERROR", *, retryable: bool = False, after: int | None = None) -> ModelFailed:
    error = ErrorObject(code=code, message="no luck")
    return ModelFailed(at_ms=NO_TIME, error=error, retryable=retryable, retry_after_ms=after)


def settled(call_id: int, value: Json = None, error: ErrorObject | None = None, **ruling: Any) -> ToolSettled:
    return ToolSettled(at_ms=NO_TIME, call_id=call_id, value=value, error=error, ruling=Ruling(**ruling))


def recorded(call_id: int, name: str = "look") -> ToolSettled:
    """Return a settled call together with its execution record."""
    record = ExternalCallRecord(
        name=name,
        side_effect=SideEffect.READ,
        duration_ms=call_id,
        status=CallStatus.OK,
        request_digest=f"d{call_id}",
    )
    return ToolSettled(at_ms=NO_TIME, call_id=call_id, value=call_id, record=record)


def timed_out(call_id: int, attempt: int = 1, name: str = "pay") -> CallTimedOut:
    """Return an execution that exceeded its time-out, together with its record."""
    record = ExternalCallRecord(
        name=name,
        side_effect=SideEffect.EXTERNAL_SYSTEM,
        duration_ms=60_000,
        status=CallStatus.TIMEOUT,
        request_digest=f"d{call_id}",
        error=ErrorObject(code="TIMEOUT_TOOL", message="whether it took effect is unknown"),
    )
    return CallTimedOut(at_ms=NO_TIME, call_id=call_id, attempt=attempt, record=record)


def paused(call_id: int, number: int, *names: str) -> CellPaused:
    """Return the pause of a cell that made these calls; a name that ends with `!` cannot be executed."""
    return CellPaused(
        at_ms=NO_TIME, call_id=call_id, number=number, calls=tuple(_called(name) for name in names)
    )


def _called(name: str) -> CellCalled:
    return CellCalled(name=name.removesuffix("!"), error=NO_SUCH if name.endswith("!") else None)


def finish(call_id: int, text: str = "42") -> FinishRequested:
    """Return the input with which code gives the turn's answer."""
    return FinishRequested(at_ms=NO_TIME, call_id=call_id, text=text)


def waits(call_id: int, wait_id: str = "", kind: WaitKind = "approval") -> WaitOpened:
    wait = Wait(wait_id=wait_id or f"w{call_id}", kind=kind, call_id=call_id, due_at=9_000_000)
    return WaitOpened(at_ms=NO_TIME, wait=wait)


def ended(wait_id: str, outcome: WaitOutcome = Approved()) -> WaitEnded:
    return WaitEnded(at_ms=NO_TIME, wait_id=wait_id, outcome=outcome)


def passed(kind: CheckpointKind, *messages: UserMessage, output: OutputCheck = OutputCheck()) -> Input:
    return CheckpointPassed(at_ms=NO_TIME, kind=kind, messages=messages, output=output)


def misfit(problem: str = "no number") -> Input:
    """Return a last checkpoint at which the answer failed its validation."""
    return passed("before_completion", output=OutputCheck(problem=problem))


def switched(switch: FrameSwitch = SWITCH) -> FrameSwitchRequested:
    return FrameSwitchRequested(at_ms=NO_TIME, switch=switch)


def cancelled() -> CancelRequested:
    return CancelRequested(at_ms=NO_TIME)


def out_of_time() -> DeadlinePassed:
    return DeadlinePassed(at_ms=NO_TIME)


def aborted(reason: StopReason = StopReason.PLUGIN_ABORT) -> Aborted:
    return Aborted(at_ms=NO_TIME, reason=reason, error=ErrorObject(code="ENOUGH", message="enough"))


def resumed() -> Resumed:
    return Resumed(at_ms=NO_TIME)


def at(at_ms: int, given: Input) -> Input:
    """Return `given` with the time `at_ms`."""
    return msgspec.structs.replace(given, at_ms=at_ms)


class Turn:
    """A machine and the inputs it was fed."""

    def __init__(self, *inputs: Input) -> None:
        self.machine = TurnMachine()
        self.inputs: list[Input] = []
        self.commands: list[Command] = []
        self.feed(*inputs)

    def feed(self, *inputs: Input) -> list[Command]:
        """Feed the inputs and return the commands that follow the last of them."""
        commands: list[Command] = []
        for given in inputs:
            commands = self._feed(given)
        return commands

    def tell(self, *inputs: Input) -> list[str]:
        """Feed the inputs and return the commands that follow the last of them, in short form."""
        return in_short(self.feed(*inputs))

    def results(self) -> list[tuple[int, object]]:
        """Return the calls that have a result, each with its value or the code of its error."""
        return [
            (message.call_id, message.error.code if message.error else message.value)
            for message in self.machine.messages
            if isinstance(message, ToolMessage)
        ]

    def talk(self) -> list[str]:
        """Return the messages so far, each with its author."""
        return [_line(message) for message in self.machine.messages]

    def history(self) -> list[str]:
        """Return the entries that the turn adds to the history, in short form."""
        return [_kind(entry.payload) for entry in self.machine.whole()]

    def recovered(self) -> list[str]:
        """Return the outstanding commands of a fresh machine that was fed the same inputs, in short form."""
        fresh = TurnMachine()
        for given in self.inputs:
            fresh.feed(given)
        return in_short(fresh.outstanding())

    def stopped(self) -> Stopped:
        assert isinstance(self.machine.outcome, Stopped)
        return self.machine.outcome

    def _feed(self, given: Input) -> list[Command]:
        if given.at_ms == NO_TIME:
            given = at(1_000 * len(self.inputs), given)
        self.inputs.append(given)
        commands = self.machine.feed(given)
        self.commands += commands
        return commands


def in_a_cell(*more: Input, limit_ms: int | None = None) -> Turn:
    """Return a turn whose call 1 is a cell that has begun."""
    return Turn(started(max_wall_ms=limit_ms), calls("run_code"), *more)


def _line(message: Any) -> str:
    match message:
        case UserMessage():
            return f"user: {message.content}"
        case AssistantMessage():
            return f"assistant: {message.text or ' '.join(one.name for one in message.tool_calls)}"
        case _:
            return f"tool {message.call_id}: {message.error.code if message.error else message.value}"


def _kind(payload: Any) -> str:
    match payload:
        case PluginNode():
            return f"{payload.plugin_id} {payload.kind}"
        case FrameOpened():
            return f"frame {payload.switch.frame_id}"
        case TurnEnded():
            return f"ended {payload.outcome.reason}"
        case _:
            return _line(payload)


def in_short(commands: list[Command]) -> list[str]:
    return [_short(command) for command in commands]


def _short(command: Command) -> str:
    match command:
        case CallModel() | RunHooks():
            return command.key
        case PrepareCall():
            return f"{command.key} overflowed" if command.overflowed else command.key
        case RunTool():
            return command.key if command.ruled else f"{command.key}?"
        case ContinueCell():
            heard = " ".join(str(one.call_id) for one in command.answers[: command.count])
            return f"cell.{command.call.call_id} hears {heard}"
        case Checkpoint():
            held = " held" if command.held else ""
            closing = f" closing {command.closing}" if command.closing else ""
            return f"{command.kind}.{command.number}{held}{closing}"
        case Park():
            return " ".join(["park", *(wait.wait_id for wait in command.outcome.waits)])
        case StopEffects():
            return "stop"
        case Commit():
            return f"commit {_ending(command.outcome)}"
        case _:
            assert_never(command)


def _ending(outcome: Ended) -> str:
    match outcome:
        case Stopped():
            return outcome.reason
        case FrameSwitched():
            return f"switched to {outcome.switch.frame_id}"
        case _:
            return "finished"
