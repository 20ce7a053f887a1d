"""The turn machine: decides what happens next but executes nothing itself.

Theory of operation
-------------------
A turn is a loop: call the model, then run the tools it requested. The driver feeds the machine an `Input` (an
event that occurred), and the machine returns `Command`s (actions for the driver)::

    NEW ──TurnStarted──▶ ASKING ──ModelReplied, calls──▶ ACTING ──all settled──▶ PASSING(after_work)
                          ▲  │ │                          │  ▲                        │
                          │  │ └─ModelFailed─▶ (again, or ENDED)                      │
                          │  │                            │  └──WaitEnded── PARKED    │
                          │  │                            └──none runs, some wait──▶  │
                          ├──┼────────────────────CheckpointPassed────────────────────┘
                          │  └─ModelReplied, no calls─▶ PASSING(before_completion)
                          └──────messages, or an answer that does not fit──┤
                                                                           └─▶ ENDED

Where plugins have hooks (`TurnStarted.stages`), there are more steps: OPENING before the first ASKING,
PREPARING before each ASKING, the hooks of a checkpoint within PASSING, CLOSING before ENDED. The rulings of
the hooks are inputs like any other. A turn without plugins never takes these steps.

A turn whose input is code has no model: it goes from NEW to ACTING with one cell, and ends with the cell.

A call may be a *cell*: code that makes calls of its own (`CellPaused`). These are in the same table and are
executed like any other call; their results go to the cell, one by one (`ContinueCell`), and only the result
of the cell itself goes to the model.

Rules
-----
1. Everything that can change a turn's state is in this package. No clock, no I/O, no awaiting: time arrives
   in the inputs.
2. Inputs are journaled before anything that follows from them happens, so feeding the same inputs to a fresh
   machine yields the same commands. Durability rests on this rule alone. After a replay, `outstanding`
   returns the commands that have no outcome yet.
3. Every call has exactly one result before the model is called again or the turn ends. A call without a
   result at a cancellation, a deadline or an abort gets the error CANCELLED.
4. Results reach the model in the order of the calls, whatever order they arrive in.
5. An input for a call that has its result, or after the end, changes nothing.
6. The plugins' ruling on the end of a turn takes effect only with the commit: if a message arrives before it,
   the turn continues and the plugins are asked again.

Not here: usage and limits (`account`), the table of calls (`calls`), whether a failed model call is retried
(`retry`); whether a call that timed out is executed again, approvals, limits of single calls (dispatch); the
messages of earlier turns that the model sees (graph).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, assert_never, cast

from standfast.errors import Code, ErrorObject, InternalError, TurnCode
from standfast.machine import inputs
from standfast.machine.account import TurnAccount
from standfast.machine.calls import CallTable
from standfast.machine.commands import (
    CallModel,
    Checkpoint,
    Command,
    Commit,
    Park,
    PrepareCall,
    RunHooks,
    StopEffects,
)
from standfast.machine.retry import Retry, decide
from standfast.model.code import CodeInput
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, Message, ToolMessage, UserMessage
from standfast.model.outcome import Ended, Finished, FrameSwitched, Stopped, StopReason, Waiting
from standfast.model.prompt import PromptLayer
from standfast.model.ruling import NOTHING_SAID, Ruling
from standfast.model.session import Entry, FrameOpened, Payload, TurnEnded, TurnSummary

MAX_RESUMES: Final = 50
"""How often in a row a turn may be resumed without any other input before it stops as interrupted."""

_MESSAGES: Final = frozenset((UserMessage, AssistantMessage, ToolMessage))
_FAILED_CALL: dict[str, StopReason] = {
    TurnCode.CONTEXT_OVERFLOW: StopReason.CONTEXT_OVERFLOW,
    TurnCode.PLUGIN_ERROR: StopReason.PLUGIN_ABORT,
}


class Phase(enum.Enum):
    NEW = "new"
    OPENING = "opening"
    PREPARING = "preparing"
    ASKING = "asking"
    ACTING = "acting"
    PARKED = "parked"
    PASSING = "passing"
    CLOSING = "closing"
    ENDED = "ended"


_NEW, _ASKING, _ACTING, _PASSING = Phase.NEW, Phase.ASKING, Phase.ACTING, Phase.PASSING
_CLOSING, _ENDED = Phase.CLOSING, Phase.ENDED  # reading an attribute of an enum takes long


class TurnMachine:
    """The state of one turn. Feed it inputs; execute the commands it returns."""

    turn_id = ""
    nonce = ""
    outcome: Ended | None = None
    prompt: str | None = None
    """The system prompt that plugins prepared; None if they left it unchanged."""
    prepared: inputs.CallPrepared | None = None
    """The plugins' preparation of the current model call."""
    replied_at_ms = 0
    """When the model gave its last reply."""
    failed_at_ms = 0
    """When a model call last failed: the delay before the next attempt counts from then."""
    compaction: FrameSwitch | None = None
    """The frame that a plugin opened before this turn; it replaces the earlier messages for the model."""
    code: CodeInput | None = None
    """The turn's input, if it is code and not a message."""
    extension: object = None
    prompt_layer: PromptLayer | None = None
    settings: Mapping[str, object] = MappingProxyType({})
    """The model settings for this turn alone."""
    checkpoints = 0
    _stages: frozenset[inputs.Stage] = frozenset()
    _checkpoint: inputs.CheckpointKind = "after_work"
    _asked_plugins = False
    _preparations = 0
    _overflowed = False
    _attempt = 0
    _delay_ms = 0
    _waited_ms = 0
    _output_retries = 0
    _answer = ""
    _switch: FrameSwitch | None = None
    _said: tuple[UserMessage, ...] = ()
    """Messages from plugins that the model gets at the next checkpoint."""
    _wanted: inputs.FinishRequested | None = None
    _closings = 0
    _closing: Ruling | None = None
    """The plugins' ruling on the end of the turn."""
    _ending: Ended | None = None

    def __init__(self) -> None:
        self.phase = _NEW
        self._resumes = 0
        self.account = TurnAccount()
        self.calls = CallTable()
        self.entries: list[Entry] = []
        """The entries that the turn adds to the history, so far."""
        self.messages: list[Message] = []
        """The messages among `entries`: the part of this turn that the model sees."""

    # Queries of the driver and the runtime

    def outstanding(self) -> list[Command]:
        """Return the commands that have no outcome yet; a process that takes over executes them first."""
        match self.phase:
            case Phase.OPENING:
                return [RunHooks("before_turn")]
            case Phase.PREPARING:
                return [PrepareCall(self._preparations, self._overflowed)]
            case Phase.ASKING:
                return [CallModel(self.account.model_calls, self._attempt, self._delay_ms)]
            case Phase.ACTING:
                return [*self.calls.running()]
            case Phase.PARKED:
                return [Park(Waiting(waits=self.calls.waits()))]
            case Phase.PASSING:
                return [self._passing()]
            case Phase.CLOSING:
                return [RunHooks("after_turn", self._closings, self._ending)]
            case Phase.NEW | Phase.ENDED:
                return []
            case _:
                assert_never(self.phase)

    def _passing(self) -> Command:
        """Return the command that passes the current checkpoint, or asks plugins before."""
        if not self._asked_plugins:
            return RunHooks(self._checkpoint, self.checkpoints)
        if self._checkpoint == "after_work":
            return Checkpoint("after_work", self.checkpoints)
        held = bool(self._said)
        asks = "after_turn" in self._stages and self._closing is None and not held
        closing = self._closings if asks else 0
        return Checkpoint("before_completion", self.checkpoints, self._answer, held, closing)

    def refuses_call(self, made: int, uncharged: Sequence[UsageEntry]) -> ErrorObject | None:
        """Return why a plugin, a tool or code may not call a model after *made* calls in all; None if it may.

        *uncharged* is usage that the machine has not counted yet. The token limit applies only while calls
        run: plugins may have to call a model so that the turn can end.
        """
        refusal = self.account.no_more_calls(made, uncharged)
        if refusal is None and self.phase is _ACTING:
            return self.account.no_more_tokens(uncharged)
        return refusal

    def answer(self, value: object = None) -> Finished:
        """Return the outcome of the turn if no message arrives at the checkpoint before completion."""
        return Finished(text=self._answer, value=value)

    def summary(self, outcome: Ended | Waiting) -> TurnSummary:
        return TurnSummary(outcome=outcome, usage=self.account.usage, calls=tuple(self.calls.records))

    def whole(self) -> list[Entry]:
        """Return all entries that the turn adds to the history, with those that plugins add at its end."""
        if self.phase is _ENDED or self._closing is None:
            return self.entries
        now_ms = self.account.watch.now_ms
        return [*self.entries, *(Entry(at_ms=now_ms, payload=event) for event in self._closing.events)]

    def next_messages(self) -> tuple[UserMessage, ...]:
        """Return the plugins' messages for later turns, and those that missed the last checkpoint."""
        after = () if self._closing is None else self._closing.messages
        return self._said + after

    # Inputs

    def feed(self, given: inputs.Input) -> list[Command]:
        """Apply one journaled input and return the commands to execute."""
        watch = self.account.watch
        watch.last_ms, watch.now_ms = watch.now_ms, given.at_ms
        if self.phase is _ENDED or (self.phase is _CLOSING and not isinstance(given, inputs.HooksRan)):
            return []
        if self._resumes and not isinstance(given, inputs.Resumed):
            self._resumes = 0
        # The most frequent inputs first; a class pattern that does not match takes as long as ten `is`.
        if type(given) is inputs.ToolSettled:
            return self._settled(given)
        if type(given) is inputs.ModelReplied:
            return self._replied(given)
        if type(given) is inputs.CheckpointPassed:
            return self._passed(given)
        match given:
            case inputs.TurnStarted():
                return self._start(given)
            case inputs.CellPaused():
                made = self.calls.pause(given)
                return [] if made is None else [*made, *self._after_change()]
            case inputs.FinishRequested():
                if self._wanted is None and self.calls.lacks_result(given.call_id):
                    self._wanted = given
                return []
            case inputs.HooksRan():
                return self._hooks_ran(given)
            case inputs.CallPrepared():
                return self._call_prepared(given)
            case inputs.CallRuled():
                return self._call_ruled(given)
            case inputs.ModelFailed():
                return self._failed(given)
            case inputs.CallTimedOut():
                again = self.calls.time_out(given)
                return [] if again is None else [again]
            case inputs.WaitOpened():
                return self._after_change() if self.calls.wait(given.wait, given.at_ms) else []
            case inputs.WaitEnded():
                woken = self.calls.wake(given.wait_id, given.outcome)
                if woken is None:
                    return []
                self.account.watch.start(given.at_ms)
                self.phase = _ACTING
                return [woken]
            case inputs.FrameSwitchRequested():
                self._switch = given.switch
                if self.phase in (_ACTING, Phase.PARKED):
                    return []
                return [StopEffects(), *self._end(FrameSwitched(switch=given.switch))]
            case inputs.CancelRequested():
                return self._abort(StopReason.CANCELLED, Code.CANCELLED, "the turn was cancelled")
            case inputs.DeadlinePassed():
                message = f"the turn took longer than {self.account.limits.max_wall_ms} ms"
                return self._abort(StopReason.TURN_BUDGET, TurnCode.TURN_BUDGET, message)
            case inputs.Aborted():
                return self._abort(given.reason, given.error)
            case inputs.Resumed():
                return self._resumed(given)
            case _:
                assert_never(given)

    def _start(self, given: inputs.TurnStarted) -> list[Command]:
        if self.phase is not _NEW:
            raise _unexpected(self, given)
        self.turn_id = given.turn_id
        self.nonce = given.nonce
        self.extension = given.extension
        self.prompt_layer = given.prompt
        self.settings = given.settings
        self._stages = frozenset(given.stages)
        self.calls.asks_plugins = "before_tool_call" in self._stages
        self.account.start(given.limits, given.at_ms, warns=given.warns)
        if given.code is not None:
            self.code = given.code
            self.replied_at_ms = given.at_ms
            cell = self.calls.add_cell(given.code.code)
            self._add(*given.injected, AssistantMessage(tool_calls=(cell.call,)))
            self.phase = _ACTING
            return [cell]
        assert given.message is not None
        self._add(*given.injected, given.message)
        if "before_turn" not in self._stages:
            return self._ask()
        self.phase = Phase.OPENING
        return self.outstanding()

    def _resumed(self, given: inputs.Resumed) -> list[Command]:
        """Record that another process has resumed the turn; stop a turn that keeps crashing its process."""
        self.account.watch.resume(given.at_ms)
        if self.phase is Phase.PARKED:
            return []
        self._resumes += 1
        if self._resumes <= MAX_RESUMES:
            return []
        message = f"the turn was resumed {self._resumes} times in a row without any progress"
        return self._abort(StopReason.INTERRUPTED, Code.INTERRUPTED, message)

    def _hooks_ran(self, given: inputs.HooksRan) -> list[Command]:
        match self.outstanding():
            case [RunHooks(stage=stage, number=number)]:
                expected = (stage, number) == (given.stage, given.number)
            case [Checkpoint(closing=number)]:
                expected = given.stage == "after_turn" and 0 < number == given.number
            case _:
                expected = False
        if not expected:
            raise _unexpected(self, given)
        if given.stage == "after_turn":
            self.account.charge(given.ruling)
            self._closing = given.ruling
            if given.ruling.failure is not None:
                return self.finish(Stopped(reason=StopReason.PLUGIN_ABORT, error=given.ruling.failure))
            return self.outstanding() if self._ending is None else self.finish(self._ending)
        self._take(given.ruling)
        if (error := given.ruling.ends_turn) is not None:
            return self._abort(StopReason.PLUGIN_ABORT, error)
        if given.stage != "before_turn":
            self._asked_plugins = True
            return self.outstanding()
        said, self._said = self._said, ()
        self._add(*said)
        return self._ask()

    def _call_prepared(self, given: inputs.CallPrepared) -> list[Command]:
        if self.phase is not Phase.PREPARING:
            raise _unexpected(self, given)
        self._take(given.ruling)
        if given.compaction is not None and self.compaction is None:
            self.compaction = given.compaction
            opened = FrameOpened(switch=given.compaction)
            self.entries.insert(0, Entry(at_ms=given.at_ms, payload=opened))
        if given.prompt is not None:
            self.prompt = given.prompt
        self.prepared = given
        if (error := given.ruling.ends_turn) is not None:
            return self._abort(StopReason.PLUGIN_ABORT, error)
        if given.switch is not None:
            return self._end(FrameSwitched(switch=given.switch))
        return self._out_of_calls() or self._call_model()

    def _call_ruled(self, given: inputs.CallRuled) -> list[Command]:
        """Apply a ruling. The host that ran the hooks executes the call, or already has its result."""
        if not self.calls.rule(given):
            return []
        self._take(given.ruling)
        abort = given.ruling.abort
        return [] if abort is None else self._abort(StopReason.PLUGIN_ABORT, abort)

    def _replied(self, given: inputs.ModelReplied) -> list[Command]:
        if self.phase is not _ASKING:
            raise _unexpected(self, given)
        self.account.add_reply(given)
        self.replied_at_ms = given.at_ms
        calls, commands = self.calls.add(given.calls)
        self._overflowed = False
        self._add(
            *given.events,
            AssistantMessage(
                text=given.text,
                tool_calls=calls,
                model=given.model,
                usage=given.usage,
                stop_reason=given.stop_reason,
                raw=given.raw,
                reasoning=given.reasoning,
                response_id=given.response_id,
            ),
        )
        if not calls:
            self._answer = given.text
            return self._pass("before_completion")
        self.phase = _ACTING
        return [*commands] or self._after_change()

    def _failed(self, given: inputs.ModelFailed) -> list[Command]:
        if self.phase is not _ASKING:
            raise _unexpected(self, given)
        account, error = self.account, given.error
        account.usage += Usage(calls=1)
        self.failed_at_ms = given.at_ms
        decision = decide(
            given,
            attempt=self._attempt,
            waited_ms=self._waited_ms,
            limits=account.limits,
            seed=f"{self.nonce}.{account.model_calls}" if self.nonce else "",
        )
        if isinstance(decision, Retry):
            if (out := self._out_of_calls(after=error)) is not None:
                return out
            self._delay_ms = decision.delay_ms
            self._waited_ms += decision.delay_ms
            self._attempt += 1
            account.model_calls += 1
            return self.outstanding()
        reason = _FAILED_CALL.get(error.code, StopReason.PROVIDER_ERROR)
        if reason is StopReason.CONTEXT_OVERFLOW and "prepare" in self._stages and not self._overflowed:
            self._overflowed = True
            return self._prepare()
        if decision.why is not None:
            error = _with_hint(error, decision.why)
        return self._end(Stopped(reason=reason, error=error))

    def _settled(self, given: inputs.ToolSettled) -> list[Command]:
        if not self.calls.settle(given):
            return []
        if given.ruling is not NOTHING_SAID:
            self._take(given.ruling)
            if given.ruling.abort is not None:
                return self._abort(StopReason.PLUGIN_ABORT, given.ruling.abort)
        if given.ends_turn and given.error is not None:
            return self._abort(StopReason.TOOL_ERROR, given.error)
        if given.gives_up_calls and (self.calls.any_running() or self.calls.any_waiting()):
            self.calls.give_up(given.at_ms)
            return [StopEffects(), *self._after_change()]
        return self._after_change()

    def _passed(self, given: inputs.CheckpointPassed) -> list[Command]:
        if self.phase is not _PASSING:
            raise _unexpected(self, given)
        if given.kind != self._checkpoint or not self._asked_plugins:
            raise _unexpected(self, given, f"at checkpoint {self._checkpoint}")
        self._closing = None if given.messages else self._closing
        said, self._said = self._said, ()
        if said or given.messages:
            self._add(*said, *given.messages)
        if self.code is not None:
            return self._end(self.answer())
        if given.kind == "after_work" or said or given.messages:
            return self._ask()
        problem = given.output.problem
        if problem is None:
            return self._end(self.answer(given.output.value))
        self._output_retries += 1
        if self._output_retries > self.account.limits.max_output_retries:
            error = ErrorObject(code=TurnCode.OUTPUT_INVALID, message=problem)
            return self._end(Stopped(reason=StopReason.OUTPUT_INVALID, error=error))
        self._add(UserMessage(content=f"Your answer does not fit: {problem}. Answer again, corrected."))
        return self._ask()

    # Deciding

    def _ask(self) -> list[Command]:
        """Take the next step: call the model, if the budget allows it."""
        account = self.account
        if (out := self._out_of_calls()) is not None:
            return out
        if (warning := account.warning()) is not None:
            self._add(UserMessage(content=warning))
        last_step = warning is not None and account.is_last_step()
        if not last_step and (error := account.over_budget()) is not None:
            return self._end(Stopped(reason=StopReason.TURN_BUDGET, error=error))
        account.iterations += 1
        return self._prepare() if "prepare" in self._stages else self._call_model()

    def _prepare(self) -> list[Command]:
        self.phase = Phase.PREPARING
        self._preparations += 1
        return self.outstanding()

    def _call_model(self) -> list[Command]:
        self.phase = _ASKING
        self._attempt = 1
        self._delay_ms = self._waited_ms = 0
        self.account.model_calls += 1
        return [CallModel(self.account.model_calls, 1)]

    def _out_of_calls(self, after: ErrorObject | None = None) -> list[Command] | None:
        """End the turn if no model may be called any more; *after* is the last call's error, if it failed."""
        error = self.account.no_more_calls(self.account.model_calls)
        if error is None:
            return None
        if after is not None:
            error = _with_hint(error, f"the last call failed: {after.message}")
        return self._end(Stopped(reason=StopReason.TURN_BUDGET, error=error))

    def _after_change(self) -> list[Command]:
        """Decide what follows after a call was settled, paused or began to wait; nothing while calls run."""
        watch = self.account.watch
        if self.calls.unsettled:
            if continued := self.calls.continued():
                watch.start(watch.now_ms)
                self.phase = _ACTING
                return [*continued]
            if self.calls.any_running():
                return []
            self.phase = Phase.PARKED  # each unsettled call waits, or is a cell whose calls wait
            watch.stop()
            return self.outstanding()
        watch.start(watch.now_ms)
        self._close_round()
        if self.code is not None:
            result = self.messages[-1]
            assert isinstance(result, ToolMessage)
            if result.error is not None and result.error.code == Code.CANCELLED:
                return self._end(Stopped(reason=StopReason.CANCELLED, error=result.error))
            return self._pass("before_completion")
        if self._switch is not None:
            return self._end(FrameSwitched(switch=self._switch))
        if self._wanted is not None:  # code gave the answer in place of the model
            self._answer, self._wanted = self._wanted.text, None
            self._add(AssistantMessage(text=self._answer))
            return self._pass("before_completion")
        idle_rounds = self.account.progress.idle_rounds
        if idle_rounds >= self.account.limits.max_no_progress:
            error = ErrorObject(
                code=TurnCode.NO_PROGRESS,
                message=f"{idle_rounds} rounds of calls in a row failed or repeated earlier ones",
                hint="see the results of the last calls; UsageLimits(max_no_progress=...) allows more",
            )
            return self._end(Stopped(reason=StopReason.NO_PROGRESS, error=error))
        return self._pass("after_work")

    def _close_round(self) -> None:
        """Add the results to the history, in the order of the calls."""
        results = self.calls.close()
        for _, result in results:
            self._add(result)
        if self.code is None:
            self.account.progress.round_over(results)

    def _pass(self, kind: inputs.CheckpointKind) -> list[Command]:
        self.phase = _PASSING
        self._checkpoint = kind
        self.checkpoints += 1
        self._asked_plugins = "checkpoint" not in self._stages
        self._closing = None
        self._closings += 1
        return [self._passing()]

    def _abort(self, reason: StopReason, error: ErrorObject | str, message: str = "") -> list[Command]:
        """End the turn early with *error*, or with a code and *message*; unsettled calls get CANCELLED."""
        if isinstance(error, str):
            error = ErrorObject(code=error, message=message)
        if self.calls.open():
            self.calls.give_up(self.account.watch.now_ms)
            self._close_round()
        return [StopEffects(), *self._end(Stopped(reason=reason, error=error))]

    def _end(self, outcome: Ended) -> list[Command]:
        """End the turn, after its `after_turn` hooks have run."""
        if "after_turn" not in self._stages or (self._closing is not None and isinstance(outcome, Finished)):
            return self.finish(outcome)
        self.phase = _CLOSING
        self.account.watch.stop()
        self._ending = outcome
        self._closing = None
        self._closings += 1
        return self.outstanding()

    def finish(self, outcome: Ended) -> list[Command]:
        """End the turn; the driver calls it once a commit has finished the turn."""
        if self._closing is not None:
            self._add(*self._closing.events)
        if type(outcome) is FrameSwitched:
            self._add(FrameOpened(switch=outcome.switch))
        elif type(outcome) is Stopped:
            self._add(TurnEnded(outcome=outcome, usage=self.account.usage))
        self.phase = _ENDED
        self.account.watch.stop()
        self.outcome = outcome
        return [Commit(outcome)]

    # Recording

    def _take(self, ruling: Ruling) -> None:
        """Charge the plugins' model calls; add their events to the history and keep their messages."""
        if ruling is not NOTHING_SAID:
            self.account.charge(ruling)
            self._add(*ruling.events)
            self._said += ruling.messages

    def _add(self, *payloads: Payload) -> None:
        """Add *payloads* to the history, at the time of the last input."""
        now_ms = self.account.watch.now_ms
        for payload in payloads:
            self.entries.append(Entry(at_ms=now_ms, payload=payload))
            if type(payload) in _MESSAGES:
                self.messages.append(cast(Message, payload))


def _unexpected(machine: TurnMachine, given: inputs.Input, where: str = "") -> InternalError:
    """Return the error for an input that is impossible now: another version wrote the journal."""
    return InternalError(
        f"turn {machine.turn_id or '?'} got {type(given).__name__} while {where or machine.phase.value}",
        hint="open the session with the version of standfast that wrote its journal",
    )


def _with_hint(error: ErrorObject, more: str) -> ErrorObject:
    """Return the error with *more* added to its hint."""
    return error.with_hint(more if error.hint is None else f"{error.hint}; {more}")
