"""The turn machine: decides what happens next, and does none of it.

Theory of operation
-------------------
A turn is a loop of *ask the model, run what it asked for*. The machine is told what happened (an `Input`) and
answers with what should be done (a list of `Command`)::

    NEW ──TurnStarted──▶ ASKING ──ModelReplied, calls──▶ ACTING ──all settled──▶ PASSING(after_work)
                          ▲  │ │                          │  ▲                        │
                          │  │ └─ModelFailed─▶ (again, or ENDED)                      │
                          │  │                            │  └──WaitEnded── PARKED    │
                          │  │                            └──none runs, some wait──▶  │
                          ├──┼────────────────────CheckpointPassed────────────────────┘
                          │  └─ModelReplied, no calls─▶ PASSING(before_completion)
                          └──────messages, or an answer that does not fit──┤
                                                                           └─▶ ENDED

Rules
-----
1. Everything that can change a turn's state is in this package. No clock, no I/O, no awaiting: time arrives
   in the inputs.
2. Inputs are journaled before anything that follows from them happens, so feeding the same inputs to a fresh
   machine yields the same commands. That is the whole durability story. After a replay, `outstanding` says
   what was asked for and not yet answered.
3. Every call has exactly one result before the model is asked again or the turn ends. A call that a
   cancellation, a deadline or an abort finds without one gets CANCELLED.
4. Results reach the model in the order of the calls, whatever order they came in.
5. What arrives for a call that has its result, or after the end, changes nothing.

Not here: retries of tools, approvals, limits of single calls (dispatch), and what the model sees of earlier
turns (graph).
"""

from __future__ import annotations

import enum
from typing import assert_never

import msgspec

from holdfast.errors import Code, ErrorObject, InternalError, TurnCode
from holdfast.machine.calls import CallTable
from holdfast.machine.commands import CallModel, Checkpoint, Command, Commit, Park, StopEffects
from holdfast.machine.inputs import (
    Aborted,
    CancelRequested,
    CheckpointKind,
    CheckpointPassed,
    DeadlinePassed,
    FrameSwitchRequested,
    Input,
    ModelFailed,
    ModelReplied,
    Resumed,
    ToolSettled,
    TurnStarted,
    WaitEnded,
    WaitOpened,
)
from holdfast.machine.progress import Progress
from holdfast.machine.stopwatch import Stopwatch
from holdfast.model.call import ExternalCallRecord
from holdfast.model.frame import FrameSwitch
from holdfast.model.message import AssistantMessage, Message, UserMessage
from holdfast.model.node import Entry, FrameOpened, Payload, TurnEnded
from holdfast.model.outcome import Ended, Finished, FrameSwitched, Stopped, StopReason, Waiting
from holdfast.model.turn import TurnSummary
from holdfast.model.usage import Usage, UsageEntry, UsageLimits

_BACKOFF_MS = 500
_MAX_BACKOFF_MS = 60_000
_DEFAULT_LIMITS = UsageLimits()


class Phase(enum.Enum):
    NEW = "new"
    ASKING = "asking"
    ACTING = "acting"
    PARKED = "parked"
    PASSING = "passing"
    ENDED = "ended"


class TurnMachine:
    """State of one turn. Feed it inputs; carry out the commands it returns."""

    def __init__(self) -> None:
        self.phase = Phase.NEW
        self.turn_id = ""
        self.nonce = ""
        self.entries: list[Entry] = []
        """What the turn adds to the history, so far."""
        self.messages: list[Message] = []
        """The messages among `entries`: what the model sees of this turn."""
        self.model_calls = 0
        self.usage = Usage()
        self.records: list[ExternalCallRecord] = []
        self.outcome: Ended | None = None
        self._by_model: dict[str, Usage] = {}
        self._limits = _DEFAULT_LIMITS
        self._calls = CallTable()
        self._progress = Progress()
        self._watch = Stopwatch()
        self._iterations = 0
        self._attempt = 0
        self._backoff_ms = 0
        self._output_retries = 0
        self._answer = ""
        self._checkpoint: CheckpointKind = "after_work"
        self.checkpoints = 0
        self._switch: FrameSwitch | None = None

    # What the shell may ask

    def outstanding(self) -> list[Command]:
        """What was asked for and is not answered: what a new process has to do first."""
        match self.phase:
            case Phase.ASKING:
                return [self._call_model()]
            case Phase.ACTING:
                return [*self._calls.running()]
            case Phase.PARKED:
                return [Park(self._waiting())]
            case Phase.PASSING:
                return [self._at_checkpoint()]
            case Phase.NEW | Phase.ENDED:
                return []
            case _:
                assert_never(self.phase)

    @property
    def deadline_ms(self) -> int | None:
        """When the turn's time is over, if it runs on until then."""
        limit_ms = self._limits.max_wall_ms
        return None if limit_ms is None else self._watch.deadline(limit_ms)

    def answer(self, value: object = None) -> Finished:
        """How the turn would finish if the checkpoint before completion brought nothing."""
        return Finished(text=self._answer, value=value)

    def summary(self, outcome: Ended | Waiting) -> TurnSummary:
        return TurnSummary(outcome=outcome, usage=self.usage, calls=tuple(self.records))

    def ledger(self, source: str) -> tuple[UsageEntry, ...]:
        """The turn's usage, a line for each model."""
        return tuple(
            UsageEntry(source=source, model=model, usage=usage) for model, usage in self._by_model.items()
        )

    # What happens to the turn

    def feed(self, given: Input) -> list[Command]:
        """Advance by one journaled input."""
        self._watch.tick(given.at_ms)
        if self.phase is Phase.ENDED:
            return []
        match given:
            case TurnStarted():
                return self._start(given)
            case ModelReplied():
                return self._replied(given)
            case ModelFailed():
                return self._failed(given)
            case ToolSettled():
                return self._settled(given)
            case WaitOpened():
                return self._wait_opened(given)
            case WaitEnded():
                return self._wait_ended(given)
            case CheckpointPassed():
                return self._passed(given)
            case FrameSwitchRequested():
                return self._switch_requested(given.switch)
            case CancelRequested():
                return self._break_off(StopReason.CANCELLED, Code.CANCELLED, "the turn was cancelled")
            case DeadlinePassed():
                return self._out_of_time()
            case Aborted():
                return self._abort(given.reason, given.error)
            case Resumed():
                self._watch.resume(given.at_ms)
                return []
            case _:
                assert_never(given)

    def _start(self, given: TurnStarted) -> list[Command]:
        self._require(given, Phase.NEW)
        self.turn_id = given.turn_id
        self.nonce = given.nonce
        self._limits = given.limits
        self._watch.start(given.at_ms)
        self._say(*given.injected, given.message)
        return self._ask()

    def _replied(self, given: ModelReplied) -> list[Command]:
        self._require(given, Phase.ASKING)
        self._count(given)
        calls = self._calls.add(given.calls)
        self._say(
            AssistantMessage(
                text=given.text,
                tool_calls=calls,
                model=given.model,
                usage=given.usage,
                stop_reason=given.stop_reason,
            )
        )
        if not calls:
            self._answer = given.text
            return self._pass("before_completion")
        self.phase = Phase.ACTING
        return [*self._calls.running()] or self._after_change()

    def _failed(self, given: ModelFailed) -> list[Command]:
        self._require(given, Phase.ASKING)
        self.usage += Usage(calls=1)
        if given.retryable and self._attempt < self._limits.max_attempts:
            wait = _BACKOFF_MS << (self._attempt - 1)
            self._backoff_ms = min(max(wait, given.retry_after_ms or 0), _MAX_BACKOFF_MS)
            self._attempt += 1
            self.model_calls += 1
            return [self._call_model()]
        overflow = given.error.code == TurnCode.CONTEXT_OVERFLOW
        return self._stop(StopReason.CONTEXT_OVERFLOW if overflow else StopReason.PROVIDER_ERROR, given.error)

    def _settled(self, given: ToolSettled) -> list[Command]:
        if not self._calls.settle(given):
            return []
        if given.record is not None:
            self.records.append(given.record)
        return self._after_change()

    def _wait_opened(self, given: WaitOpened) -> list[Command]:
        return self._after_change() if self._calls.wait(given.wait) else []

    def _wait_ended(self, given: WaitEnded) -> list[Command]:
        command = self._calls.wake(given.wait_id, given.outcome)
        if command is None:
            return []
        self._watch.start(given.at_ms)
        self.phase = Phase.ACTING
        return [command]

    def _passed(self, given: CheckpointPassed) -> list[Command]:
        self._require(given, Phase.PASSING)
        self._require_checkpoint(given)
        self._say(*given.messages)
        if given.kind == "after_work" or given.messages:
            return self._ask()
        if given.output.problem is None:
            return self._end(self.answer(given.output.value))
        return self._ask_to_correct(given.output.problem)

    def _switch_requested(self, switch: FrameSwitch) -> list[Command]:
        self._switch = switch
        if self.phase in (Phase.ACTING, Phase.PARKED):
            return []
        return [StopEffects(), *self._end(FrameSwitched(switch=switch))]

    # Deciding

    def _ask(self) -> list[Command]:
        if (problem := self._over_budget()) is not None:
            error = ErrorObject(code=TurnCode.TURN_BUDGET, message=problem, hint="raise it in UsageLimits")
            return self._stop(StopReason.TURN_BUDGET, error)
        self.phase = Phase.ASKING
        self._iterations += 1
        self._attempt = 1
        self._backoff_ms = 0
        self.model_calls += 1
        return [self._call_model()]

    def _over_budget(self) -> str | None:
        limits = self._limits
        if self._iterations >= limits.max_iterations:
            return f"the turn asked the model {self._iterations} times without coming to an end"
        if limits.max_tokens is not None and self.usage.total >= limits.max_tokens:
            return f"the turn used {self.usage.total} tokens, the limit is {limits.max_tokens}"
        return None

    def _ask_to_correct(self, problem: str) -> list[Command]:
        self._output_retries += 1
        if self._output_retries > self._limits.max_output_retries:
            error = ErrorObject(code=TurnCode.OUTPUT_INVALID, message=problem)
            return self._stop(StopReason.OUTPUT_INVALID, error)
        self._say(UserMessage(content=f"Your answer does not fit: {problem}. Answer again, corrected."))
        return self._ask()

    def _after_change(self) -> list[Command]:
        """A call was settled or waits: go on if none runs any more."""
        if self._calls.any_running():
            return []
        if self._calls.any_waiting():
            self.phase = Phase.PARKED
            self._watch.stop()
            return [Park(self._waiting())]
        self._watch.start(self._watch.now_ms)
        self._close_round()
        if self._switch is not None:
            return self._end(FrameSwitched(switch=self._switch))
        if self._progress.idle_rounds >= self._limits.max_no_progress:
            return self._stop(StopReason.NO_PROGRESS, _no_progress(self._progress.idle_rounds))
        return self._pass("after_work")

    def _close_round(self) -> None:
        """Take the results into the history, in the order of the calls."""
        results = self._calls.close()
        self._say(*(result for _, result in results))
        self._progress.round_over(results)

    def _pass(self, kind: CheckpointKind) -> list[Command]:
        self.phase = Phase.PASSING
        self._checkpoint = kind
        self.checkpoints += 1
        return [self._at_checkpoint()]

    def _out_of_time(self) -> list[Command]:
        limit = self._limits.max_wall_ms
        return self._break_off(
            StopReason.TURN_BUDGET, TurnCode.TURN_BUDGET, f"the turn took longer than {limit} ms"
        )

    def _break_off(self, reason: StopReason, code: str, message: str) -> list[Command]:
        return self._abort(reason, ErrorObject(code=code, message=message))

    def _abort(self, reason: StopReason, error: ErrorObject) -> list[Command]:
        """End in the middle: what is under way is stopped and gets a result that says so."""
        if self._calls.open():
            for settled in self._calls.cancel(self._watch.now_ms):
                self._calls.settle(settled)
            self._close_round()
        return [StopEffects(), *self._stop(reason, error)]

    def _stop(self, reason: StopReason, error: ErrorObject) -> list[Command]:
        outcome = Stopped(reason=reason, error=error)
        self._add(TurnEnded(outcome=outcome, usage=self.usage))
        return self._end(outcome)

    def _end(self, outcome: Ended) -> list[Command]:
        if isinstance(outcome, FrameSwitched):
            self._add(FrameOpened(switch=outcome.switch))
        self.phase = Phase.ENDED
        self._watch.stop()
        self.outcome = outcome
        return [Commit(outcome)]

    # Remembering

    def _call_model(self) -> CallModel:
        return CallModel(self.model_calls, self._attempt, self._backoff_ms)

    def _at_checkpoint(self) -> Checkpoint:
        text = self._answer if self._checkpoint == "before_completion" else ""
        return Checkpoint(self._checkpoint, self.checkpoints, text)

    def _waiting(self) -> Waiting:
        return Waiting(waits=self._calls.waits())

    def _count(self, given: ModelReplied) -> None:
        usage = msgspec.structs.replace(given.usage, calls=1)
        self.usage += usage
        self._by_model[given.model] = self._by_model.get(given.model, Usage()) + usage

    def _say(self, *messages: Message) -> None:
        for message in messages:
            self.messages.append(message)
            self._add(message)

    def _add(self, payload: Payload) -> None:
        self.entries.append(Entry(at_ms=self._watch.now_ms, payload=payload))

    def _require(self, given: Input, phase: Phase) -> None:
        if self.phase is not phase:
            raise self._misfit(given, self.phase.value)

    def _require_checkpoint(self, given: CheckpointPassed) -> None:
        if given.kind != self._checkpoint:
            raise self._misfit(given, f"at checkpoint {self._checkpoint}")

    def _misfit(self, given: Input, where: str) -> InternalError:
        return InternalError(
            f"turn {self.turn_id or '?'} got {type(given).__name__} while {where}",
            hint="the journal does not belong to this version of the machine",
        )


def _no_progress(rounds: int) -> ErrorObject:
    return ErrorObject(
        code=TurnCode.NO_PROGRESS,
        message=f"{rounds} rounds of calls in a row failed or repeated earlier ones",
        hint="see the results of the last calls; UsageLimits(max_no_progress=...) allows more",
    )
