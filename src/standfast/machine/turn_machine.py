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

Where plugins have a say (`TurnStarted.stages`), one more step comes first: OPENING before the first ASKING,
PREPARING before each, the hooks of a checkpoint within PASSING, CLOSING before ENDED. What they said arrives
as an input like any other. A turn without plugins never takes these steps.

A turn whose input is code has no model: it goes from NEW to ACTING with one cell, and ends when that has.

A call may be a *cell*: code that makes calls of its own (`CellPaused`). They stand in the same table and are
carried out as any other; their results go to the cell, one by one (`ContinueCell`), and only the result of
the cell itself goes to the model.

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
6. What plugins say about the end of a turn counts only once it has ended: if a message comes in before the
   commit, the turn goes on and they are asked again.

Not here: whether a call that timed out is repeated, approvals, limits of single calls (dispatch), and what
the model sees of earlier turns (graph).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Final, assert_never

import msgspec

from standfast.errors import Code, ErrorObject, InternalError, TurnCode
from standfast.machine.budget import BudgetWatch, Spent, no_more_calls, no_more_tokens, spent
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
from standfast.machine.inputs import (
    Aborted,
    CallPrepared,
    CallRuled,
    CallTimedOut,
    CancelRequested,
    CellPaused,
    CheckpointKind,
    CheckpointPassed,
    DeadlinePassed,
    FinishRequested,
    FrameSwitchRequested,
    HooksRan,
    Input,
    ModelFailed,
    ModelReplied,
    Resumed,
    Stage,
    ToolSettled,
    TurnStarted,
    WaitEnded,
    WaitOpened,
)
from standfast.machine.progress import Progress
from standfast.machine.retry import Retry, decide
from standfast.machine.stopwatch import Stopwatch
from standfast.model.capability import MAX_TRACEBACKS, ExternalCallRecord
from standfast.model.cell import CodeInput
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry, UsageLimits, add_to_ledger
from standfast.model.message import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from standfast.model.outcome import Ended, Finished, FrameSwitched, Stopped, StopReason, Waiting
from standfast.model.prompt import PromptLayer
from standfast.model.ruling import NOTHING_SAID, Ruling
from standfast.model.session import Entry, FrameOpened, Payload, TurnEnded, TurnSummary
from standfast.model.wait import Wait

_DEFAULT_LIMITS = UsageLimits()

MAX_RESUMES: Final = 50
"""So often in a row may a turn be taken up without getting any further, before it stops as interrupted."""

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
        self._records: list[tuple[int, ExternalCallRecord]] = []
        self.given_up: list[ToolCall] = []
        """The calls whose execution was given up, with no record of its own."""
        self.outcome: Ended | None = None
        self.prompt: str | None = None
        """The prompt as plugins have it, if they had a say."""
        self.prepared: CallPrepared | None = None
        """What plugins made of the model call that is under way."""
        self.replied_at_ms = 0
        """When the model gave its last reply."""
        self.failed_at_ms = 0
        """When a model call last failed: from then on the delay of the next one counts."""
        self.compaction: FrameSwitch | None = None
        """The frame that was opened before this turn, in place of what the model saw of the session."""
        self.code: CodeInput | None = None
        """The turn's input, if that is code and not a message."""
        self.extension: object = None
        self.prompt_layer: PromptLayer | None = None
        self._stages: frozenset[Stage] = frozenset()
        self._said: list[UserMessage] = []
        self._preparations = 0
        self._overflowed = False
        self._asked_plugins = False
        self._closings = 0
        self._closing: Ruling | None = None
        self._ending: Ended | None = None
        self._plugin_usage: tuple[UsageEntry, ...] = ()
        self._by_model: dict[str, Usage] = {}
        self._limits = _DEFAULT_LIMITS
        self._calls = CallTable()
        self._progress = Progress()
        self._watch = Stopwatch()
        self._iterations = 0
        self._attempt = 0
        self._delay_ms = 0
        self._waited_ms = 0
        self._unpriced = ""
        self._output_retries = 0
        self._answer = ""
        self._checkpoint: CheckpointKind = "after_work"
        self.checkpoints = 0
        self._switch: FrameSwitch | None = None
        self._wanted: FinishRequested | None = None
        self._budget: BudgetWatch | None = None
        self._resumes = 0

    # What the shell may ask

    def outstanding(self) -> list[Command]:
        """What was asked for and is not answered: what a new process has to do first."""
        match self.phase:
            case Phase.OPENING:
                return [RunHooks("before_turn")]
            case Phase.PREPARING:
                return [self._prepare_call()]
            case Phase.ASKING:
                return [self._call_model()]
            case Phase.ACTING:
                return [*self._calls.running()]
            case Phase.PARKED:
                return [Park(self._waiting())]
            case Phase.PASSING:
                return [self._at_checkpoint()]
            case Phase.CLOSING:
                return [RunHooks("after_turn", self._closings, self._ending)]
            case Phase.NEW | Phase.ENDED:
                return []
            case _:
                assert_never(self.phase)

    @property
    def deadline_ms(self) -> int | None:
        """When the turn's time is over, if it runs on until then."""
        limit_ms = self._limits.max_wall_ms
        return None if limit_ms is None else self._watch.deadline(limit_ms)

    @property
    def limits(self) -> UsageLimits:
        return self._limits

    def refuses_call(self, made: int, uncharged: Sequence[UsageEntry]) -> ErrorObject | None:
        """Why a plugin, a tool or code may not ask a model now that *made* calls are made in all.

        *uncharged* is what the machine does not know of yet. Tokens hold up only what tools and code ask:
        plugins may have to, so that the turn can come to an end.
        """
        usage = sum((line.usage for line in uncharged), self.usage)
        unpriced = self._unpriced or _unpriced_among(uncharged)
        refusal = no_more_calls(self._limits, made, usage.cost_nano_usd, unpriced)
        if refusal is None and self.phase is Phase.ACTING:
            return no_more_tokens(self._limits, usage.total)
        return refusal

    def under_way(self) -> list[int]:
        """The ids of the calls that run now."""
        return self._calls.under_way()

    def waits(self) -> tuple[Wait, ...]:
        """What the turn's calls wait for."""
        return self._calls.waits()

    def lacks_result(self, call_id: int) -> bool:
        """Whether a result of this call would count."""
        return self._calls.lacks_result(call_id)

    def any_cells(self) -> bool:
        """Whether code of the turn is in the middle, so that only who runs code can go on with it."""
        return self._calls.any_cells()

    def needed_tools(self, approved: Collection[str], begun: Collection[str]) -> set[str]:
        """The tools that only the turn's own agent has: of calls that a person approved, or that have begun.

        *approved* are the waits that a person has ended so, and *begun* the keys of intents.
        """
        return self._calls.needed_tools(approved, begun)

    def answer(self, value: object = None) -> Finished:
        """How the turn would finish if the checkpoint before completion brought nothing."""
        return Finished(text=self._answer, value=value)

    def summary(self, outcome: Ended | Waiting) -> TurnSummary:
        return TurnSummary(outcome=outcome, usage=self.usage, calls=tuple(self.records))

    @property
    def records(self) -> list[ExternalCallRecord]:
        """The records of all executions, in the order in which they ended."""
        return [record for _, record in self._records]

    def records_by_call(self) -> dict[int, ExternalCallRecord]:
        """The last record of each call that has one."""
        return dict(self._records)

    def ledger(self, source: str) -> tuple[UsageEntry, ...]:
        """The turn's usage, a line for each model, and for what plugins asked of one."""
        own = tuple(
            UsageEntry(source=source, model=model, usage=usage) for model, usage in self._by_model.items()
        )
        return add_to_ledger(own, self._plugin_usage) if self._plugin_usage else own

    def whole(self) -> list[Entry]:
        """What the turn adds to the history, with what plugins add at its end."""
        return self.entries if self.phase is Phase.ENDED else [*self.entries, *self._last_words()]

    def next_messages(self) -> tuple[UserMessage, ...]:
        """What plugins want said once this turn is over, and what missed its last checkpoint."""
        after = () if self._closing is None else self._closing.messages
        return (*self._said, *after)

    # What happens to the turn

    def feed(self, given: Input) -> list[Command]:
        """Advance by one journaled input."""
        self._watch.tick(given.at_ms)
        if self._is_over(given):
            return []
        if self._resumes and not isinstance(given, Resumed):
            self._resumes = 0
        match given:  # what comes most often comes first
            case ToolSettled():
                return self._settled(given)
            case ModelReplied():
                return self._replied(given)
            case TurnStarted():
                return self._start(given)
            case CheckpointPassed():
                return self._passed(given)
            case CellPaused():
                return self._cell_paused(given)
            case FinishRequested():
                return self._finish_requested(given)
            case HooksRan():
                return self._hooks_ran(given)
            case CallPrepared():
                return self._call_prepared(given)
            case CallRuled():
                return self._call_ruled(given)
            case ModelFailed():
                return self._failed(given)
            case CallTimedOut():
                return self._call_timed_out(given)
            case WaitOpened():
                return self._wait_opened(given)
            case WaitEnded():
                return self._wait_ended(given)
            case FrameSwitchRequested():
                return self._switch_requested(given.switch)
            case CancelRequested():
                return self._break_off(StopReason.CANCELLED, Code.CANCELLED, "the turn was cancelled")
            case DeadlinePassed():
                return self._out_of_time()
            case Aborted():
                return self._abort(given.reason, given.error)
            case Resumed():
                return self._taken_up(given)
            case _:
                assert_never(given)

    def _taken_up(self, given: Resumed) -> list[Command]:
        """Another process has the turn. One that brings down each of them comes to an end."""
        self._watch.resume(given.at_ms)
        if self.phase is Phase.PARKED:
            return []
        self._resumes += 1
        if self._resumes <= MAX_RESUMES:
            return []
        message = f"the turn was taken up {self._resumes} times in a row without getting any further"
        return self._break_off(StopReason.INTERRUPTED, Code.INTERRUPTED, message)

    def _is_over(self, given: Input) -> bool:
        """Whether how the turn ends is decided, so that this can change nothing."""
        if self.phase is Phase.CLOSING:
            return not isinstance(given, HooksRan)
        return self.phase is Phase.ENDED

    def _start(self, given: TurnStarted) -> list[Command]:
        self._require(given, Phase.NEW)
        self.turn_id = given.turn_id
        self.nonce = given.nonce
        self._limits = given.limits
        self.extension = given.extension
        self.prompt_layer = given.prompt
        self._stages = frozenset(given.stages)
        self._calls.asks_plugins = "before_tool_call" in self._stages
        self._budget = BudgetWatch() if given.warns else None
        self._watch.start(given.at_ms)
        if given.code is not None:
            return self._run_code(given, given.code)
        assert given.message is not None
        self._say(*given.injected, given.message)
        if "before_turn" not in self._stages:
            return self._ask()
        self.phase = Phase.OPENING
        return self.outstanding()

    def _run_code(self, given: TurnStarted, code: CodeInput) -> list[Command]:
        """Run the cell that the turn consists of."""
        self.code = code
        self.replied_at_ms = given.at_ms
        self._say(*given.injected, AssistantMessage(tool_calls=(self._calls.add_cell(code.code),)))
        self.phase = Phase.ACTING
        return [*self._calls.running()]

    def _hooks_ran(self, given: HooksRan) -> list[Command]:
        self._require_asked(given)
        self._charge(given.ruling)
        if given.stage == "after_turn":
            return self._end_ruled(given)
        self._take(given.ruling)
        if (out := self._ruled_out(given.ruling)) is not None:
            return out
        return self._go_on() if given.stage == "before_turn" else self._checkpoint_ruled()

    def _go_on(self) -> list[Command]:
        """Ask the model, with what plugins had to say before the turn."""
        said, self._said = self._said, []
        self._say(*said)
        return self._ask()

    def _checkpoint_ruled(self) -> list[Command]:
        self._asked_plugins = True
        return [self._at_checkpoint()]

    def _end_ruled(self, given: HooksRan) -> list[Command]:
        """Plugins know how the turn ends. Only a failure of theirs can change it."""
        self._closing = given.ruling
        if given.ruling.failure is not None:
            return self._finish(Stopped(reason=StopReason.PLUGIN_ABORT, error=given.ruling.failure))
        if self._ending is None:
            return [self._at_checkpoint()]
        return self._finish(self._ending)

    def _call_prepared(self, given: CallPrepared) -> list[Command]:
        self._require(given, Phase.PREPARING)
        self._charge(given.ruling)
        self._take(given.ruling)
        if given.compaction is not None and self.compaction is None:
            self.compaction = given.compaction
            self.entries.insert(0, self._entry(FrameOpened(switch=given.compaction)))
        if given.prompt is not None:
            self.prompt = given.prompt
        self.prepared = given
        if (out := self._ruled_out(given.ruling)) is not None:
            return out
        if given.switch is not None:
            return self._end(FrameSwitched(switch=given.switch))
        return self._out_of_calls() or self._begin_call()

    def _call_ruled(self, given: CallRuled) -> list[Command]:
        """A call may be executed or has its result: whoever asked the plugins knows which."""
        if not self._calls.rule(given):
            return []
        self._charge(given.ruling)
        self._take(given.ruling)
        abort = given.ruling.abort
        return [] if abort is None else self._abort(StopReason.PLUGIN_ABORT, abort)

    def _replied(self, given: ModelReplied) -> list[Command]:
        self._require(given, Phase.ASKING)
        self._count(given)
        self.replied_at_ms = given.at_ms
        calls = self._calls.add(given.calls)
        self._overflowed = False
        self.entries.extend(self._entries_of(given.events))
        self._say(
            AssistantMessage(
                text=given.text,
                tool_calls=calls,
                model=given.model,
                usage=given.usage,
                stop_reason=given.stop_reason,
                raw=given.raw,
                reasoning=given.reasoning,
                response_id=given.response_id,
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
        self.failed_at_ms = given.at_ms
        decision = decide(
            given,
            attempt=self._attempt,
            waited_ms=self._waited_ms,
            limits=self._limits,
            seed=f"{self.nonce}.{self.model_calls}" if self.nonce else "",
        )
        if isinstance(decision, Retry):
            return self._out_of_calls(after=given.error) or self._try_again(decision.delay_ms)
        return self._give_up(given.error, decision.why)

    def _try_again(self, delay_ms: int) -> list[Command]:
        self._delay_ms = delay_ms
        self._waited_ms += delay_ms
        self._attempt += 1
        self.model_calls += 1
        return [self._call_model()]

    def _give_up(self, error: ErrorObject, why: str | None) -> list[Command]:
        """The model call has failed for good."""
        reason = _FAILED_CALL.get(error.code, StopReason.PROVIDER_ERROR)
        if reason is StopReason.CONTEXT_OVERFLOW and "prepare" in self._stages and not self._overflowed:
            self._overflowed = True
            return self._prepare()
        return self._stop(reason, error if why is None else _with_hint(error, why))

    def _kept(self, record: ExternalCallRecord) -> ExternalCallRecord:
        """The record as the turn keeps it: with its traceback, unless there are many of them already."""
        if not record.traceback:
            return record
        many = sum(bool(one.traceback) for _, one in self._records) >= MAX_TRACEBACKS
        return record.without_traceback() if many else record

    def _settled(self, given: ToolSettled) -> list[Command]:
        if not self._calls.settle(given):
            return []
        if given.record is not None:
            self._records.append((given.call_id, self._kept(given.record)))
        self._charge(given.ruling)
        self._take(given.ruling)
        if given.ruling.abort is not None:
            return self._abort(StopReason.PLUGIN_ABORT, given.ruling.abort)
        if given.ends_turn and given.error is not None:
            return self._abort(StopReason.TOOL_ERROR, given.error)
        if given.gives_up_calls and (self._calls.any_running() or self._calls.any_waiting()):
            self._give_up_calls()
            return [StopEffects(), *self._after_change()]
        return self._after_change()

    def _call_timed_out(self, given: CallTimedOut) -> list[Command]:
        command = self._calls.time_out(given)
        if command is None:
            return []
        if given.record is not None:
            self._records.append((given.call_id, given.record))
        return [command]

    def _cell_paused(self, given: CellPaused) -> list[Command]:
        made = self._calls.pause(given)
        return [] if made is None else [*made, *self._after_change()]

    def _wait_opened(self, given: WaitOpened) -> list[Command]:
        return self._after_change() if self._calls.wait(given.wait, given.at_ms) else []

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
        self._closing = None if given.messages else self._closing
        said, self._said = self._said, []
        self._say(*said, *given.messages)
        if self.code is not None:
            return self._end(self.answer())
        if given.kind == "after_work" or said or given.messages:
            return self._ask()
        if given.output.problem is None:
            return self._end(self.answer(given.output.value))
        return self._ask_to_correct(given.output.problem)

    def _switch_requested(self, switch: FrameSwitch) -> list[Command]:
        self._switch = switch
        if self.phase in (Phase.ACTING, Phase.PARKED):
            return []
        return [StopEffects(), *self._end(FrameSwitched(switch=switch))]

    def _finish_requested(self, given: FinishRequested) -> list[Command]:
        if self._wanted is None and self._calls.lacks_result(given.call_id):
            self._wanted = given
        return []

    # Deciding

    def _ask(self) -> list[Command]:
        if (out := self._out_of_calls()) is not None:
            return out
        last_step = self._warn()
        if (problem := self._over_budget()) is not None and not last_step:
            return self._stop(StopReason.TURN_BUDGET, problem)
        self._iterations += 1
        if "prepare" in self._stages:
            return self._prepare()
        return self._begin_call()

    def _warn(self) -> bool:
        """Tell the model how much of its budget is used; whether this is its last step."""
        if self._budget is None:
            return False
        used = Spent(
            iterations=self._iterations,
            tokens=self.usage.total,
            wall_ms=self._watch.ran_ms(),
            calls=self.model_calls,
            cost_nano_usd=self.usage.cost_nano_usd,
        )
        warning = self._budget.warning(self._limits, used)
        if warning is None:
            return False
        self._say(UserMessage(content=warning))
        return self._budget.spent

    def _prepare(self) -> list[Command]:
        self.phase = Phase.PREPARING
        self._preparations += 1
        return [self._prepare_call()]

    def _begin_call(self) -> list[Command]:
        self.phase = Phase.ASKING
        self._attempt = 1
        self._delay_ms = self._waited_ms = 0
        self.model_calls += 1
        return [self._call_model()]

    def _over_budget(self) -> ErrorObject | None:
        if self._iterations >= self._limits.max_iterations:
            return spent(f"the turn asked the model {self._iterations} times without coming to an end")
        return no_more_tokens(self._limits, self.usage.total)

    def _out_of_calls(self, after: ErrorObject | None = None) -> list[Command] | None:
        """The end of the turn, if no model may be asked any more; *after* is how the last call failed."""
        error = no_more_calls(self._limits, self.model_calls, self.usage.cost_nano_usd, self._unpriced)
        if error is None:
            return None
        if after is not None:
            error = _with_hint(error, f"the last call failed: {after.message}")
        return self._stop(StopReason.TURN_BUDGET, error)

    def _ask_to_correct(self, problem: str) -> list[Command]:
        self._output_retries += 1
        if self._output_retries > self._limits.max_output_retries:
            error = ErrorObject(code=TurnCode.OUTPUT_INVALID, message=problem)
            return self._stop(StopReason.OUTPUT_INVALID, error)
        self._say(UserMessage(content=f"Your answer does not fit: {problem}. Answer again, corrected."))
        return self._ask()

    def _after_change(self) -> list[Command]:
        """A call was settled or waits: go on if none runs any more."""
        if continued := self._calls.continued():
            self._watch.start(self._watch.now_ms)
            self.phase = Phase.ACTING
            return [*continued]
        if self._calls.any_running():
            return []
        if self._calls.any_waiting():
            self.phase = Phase.PARKED
            self._watch.stop()
            return [Park(self._waiting())]
        self._watch.start(self._watch.now_ms)
        self._close_round()
        if self.code is not None:
            return self._code_ended()
        if self._switch is not None:
            return self._end(FrameSwitched(switch=self._switch))
        if self._wanted is not None:
            return self._give_answer(self._wanted.text)
        if self._progress.idle_rounds >= self._limits.max_no_progress:
            return self._stop(StopReason.NO_PROGRESS, _no_progress(self._progress.idle_rounds))
        return self._pass("after_work")

    def _code_ended(self) -> list[Command]:
        """The turn's own cell has its result: the turn has finished, unless the cell was cancelled."""
        last = self.messages[-1]
        assert isinstance(last, ToolMessage)
        if last.error is not None and last.error.code == Code.CANCELLED:
            return self._stop(StopReason.CANCELLED, last.error)
        return self._pass("before_completion")

    def _give_answer(self, text: str) -> list[Command]:
        """The answer that code gave: it is said, as if the model had, and ends the turn."""
        self._wanted = None
        self._answer = text
        self._say(AssistantMessage(text=text))
        return self._pass("before_completion")

    def _close_round(self) -> None:
        """Take the results into the history, in the order of the calls."""
        results = self._calls.close()
        self._say(*(result for _, result in results))
        self._progress.round_over(results)

    def _pass(self, kind: CheckpointKind) -> list[Command]:
        self.phase = Phase.PASSING
        self._checkpoint = kind
        self.checkpoints += 1
        self._asked_plugins = "checkpoint" not in self._stages
        self._closing = None
        self._closings += 1
        return [self._at_checkpoint()]

    def _ruled_out(self, ruling: Ruling) -> list[Command] | None:
        """The end of the turn, if plugins want it or failed."""
        error = ruling.ends_turn
        return None if error is None else self._abort(StopReason.PLUGIN_ABORT, error)

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
            self._give_up_calls()
            self._close_round()
        return [StopEffects(), *self._stop(reason, error)]

    def _give_up_calls(self) -> None:
        self.given_up += self._calls.executing()
        for settled in self._calls.cancel(self._watch.now_ms):
            self._calls.settle(settled)

    def _stop(self, reason: StopReason, error: ErrorObject) -> list[Command]:
        return self._end(Stopped(reason=reason, error=error))

    def _end(self, outcome: Ended) -> list[Command]:
        """End the turn, once plugins have heard how."""
        if "after_turn" not in self._stages or (self._closing is not None and isinstance(outcome, Finished)):
            return self._finish(outcome)
        self.phase = Phase.CLOSING
        self._watch.stop()
        self._ending = outcome
        self._closing = None
        self._closings += 1
        return self.outstanding()

    def _last_words(self) -> list[Entry]:
        return [] if self._closing is None else self._entries_of(self._closing.events)

    def _finish(self, outcome: Ended) -> list[Command]:
        self.entries.extend(self._last_words())
        if isinstance(outcome, FrameSwitched):
            self._add(FrameOpened(switch=outcome.switch))
        elif isinstance(outcome, Stopped):
            self._add(TurnEnded(outcome=outcome, usage=self.usage))
        self.phase = Phase.ENDED
        self._watch.stop()
        self.outcome = outcome
        return [Commit(outcome)]

    # Remembering

    def _call_model(self) -> CallModel:
        return CallModel(self.model_calls, self._attempt, self._delay_ms)

    def _prepare_call(self) -> PrepareCall:
        return PrepareCall(self._preparations, self._overflowed)

    def _at_checkpoint(self) -> RunHooks | Checkpoint:
        if not self._asked_plugins:
            return RunHooks(self._checkpoint, self.checkpoints)
        if self._checkpoint == "after_work":
            return Checkpoint("after_work", self.checkpoints)
        held = bool(self._said)
        asks = "after_turn" in self._stages and self._closing is None and not held
        closing = self._closings if asks else 0
        return Checkpoint("before_completion", self.checkpoints, self._answer, held, closing)

    def _waiting(self) -> Waiting:
        return Waiting(waits=self._calls.waits())

    def _count(self, given: ModelReplied) -> None:
        usage = msgspec.structs.replace(given.usage, calls=1)
        self.usage += usage
        if not usage.priced:
            self._unpriced = self._unpriced or given.model or "the model"
        self._by_model[given.model] = self._by_model.get(given.model, Usage()) + usage

    def _take(self, ruling: Ruling) -> None:
        """Remember what plugins tell observers, and what they want to say to the model."""
        if ruling is NOTHING_SAID:
            return
        self.entries.extend(self._entries_of(ruling.events))
        self._said.extend(ruling.messages)

    def _charge(self, ruling: Ruling) -> None:
        """Count what plugins asked of a model."""
        if ruling is NOTHING_SAID:
            return
        self.model_calls += ruling.model_calls
        if ruling.usage:
            self._plugin_usage = add_to_ledger(self._plugin_usage, ruling.usage)
            self.usage = sum((line.usage for line in ruling.usage), self.usage)
            self._unpriced = self._unpriced or _unpriced_among(ruling.usage)

    def _entries_of(self, payloads: Sequence[Payload]) -> list[Entry]:
        return [self._entry(payload) for payload in payloads]

    def _say(self, *messages: Message) -> None:
        for message in messages:
            self.messages.append(message)
            self._add(message)

    def _add(self, payload: Payload) -> None:
        self.entries.append(self._entry(payload))

    def _entry(self, payload: Payload) -> Entry:
        return Entry(at_ms=self._watch.now_ms, payload=payload)

    def _require(self, given: Input, phase: Phase) -> None:
        if self.phase is not phase:
            raise self._misfit(given, self.phase.value)

    def _require_checkpoint(self, given: CheckpointPassed) -> None:
        if given.kind != self._checkpoint or not self._asked_plugins:
            raise self._misfit(given, f"at checkpoint {self._checkpoint}")

    def _require_asked(self, given: HooksRan) -> None:
        """Plugins answer what they were asked, under its number."""
        match self.outstanding():
            case [RunHooks(stage=stage, number=number)] if (stage, number) == (given.stage, given.number):
                return
            case [Checkpoint(closing=number)] if given.stage == "after_turn" and 0 < number == given.number:
                return
        raise self._misfit(given, self.phase.value)

    def _misfit(self, given: Input, where: str) -> InternalError:
        return InternalError(
            f"turn {self.turn_id or '?'} got {type(given).__name__} while {where}",
            hint="the journal does not belong to this version of the machine",
        )


def _unpriced_among(lines: Sequence[UsageEntry]) -> str:
    """A model that was asked at a price that is not known."""
    return next((line.model or "the model" for line in lines if not line.usage.cost_is_known), "")


def _with_hint(error: ErrorObject, more: str) -> ErrorObject:
    """The error with something to add to its hint."""
    return error.with_hint(more if error.hint is None else f"{error.hint}; {more}")


def _no_progress(rounds: int) -> ErrorObject:
    return ErrorObject(
        code=TurnCode.NO_PROGRESS,
        message=f"{rounds} rounds of calls in a row failed or repeated earlier ones",
        hint="see the results of the last calls; UsageLimits(max_no_progress=...) allows more",
    )
