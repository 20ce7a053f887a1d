"""Random turns: properties that hold for any legal sequence of inputs.

The test keeps its own books, from the inputs and the commands alone: which commands are unanswered, how long
the turn has run, and the plugins' messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from standfast.errors import ErrorObject
from standfast.machine import (
    Aborted,
    CallModel,
    CallPrepared,
    CallRuled,
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
    KeptRange,
    ModelFailed,
    ModelReplied,
    OutputCheck,
    Park,
    Phase,
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
    decode_input,
    encode_input,
)
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry, UsageLimits
from standfast.model.message import AssistantMessage, Message, RequestedCall, ToolMessage, UserMessage
from standfast.model.outcome import (
    Approved,
    Completed,
    Denied,
    Elapsed,
    Expired,
    Finished,
    FrameSwitched,
    StopReason,
    Wait,
    Waiting,
    WaitOutcome,
)
from standfast.model.ruling import CallRuling, Ruling
from standfast.model.session import FrameOpened, PluginNode, TurnEnded
from standfast.testing.histories import command_as_json

ERRORS = st.sampled_from(["PROVIDER_ERROR", "CONTEXT_OVERFLOW", "TOOL_ERROR"]).map(
    lambda code: ErrorObject(code=code, message="no")
)
MESSAGES = st.lists(st.sampled_from(["x", "y"]).map(lambda text: UserMessage(content=text)), max_size=2)
REQUESTS = st.builds(
    RequestedCall,
    name=st.sampled_from(["look", "pay"]),
    arguments=st.sampled_from(["{}", '{"a":1}', "", "[", "7"]),
    provider_id=st.sampled_from(["", "p1"]),
)
LIMITS = st.builds(
    UsageLimits,
    max_iterations=st.integers(1, 9),
    max_no_progress=st.integers(1, 4),
    max_tokens=st.none() | st.integers(1, 900),
    max_wall_ms=st.just(100_000),
    max_attempts=st.integers(1, 3),
    max_output_retries=st.integers(0, 2),
)
USAGES = st.builds(Usage, input=st.integers(0, 50), output=st.integers(0, 50))
OUTCOMES: st.SearchStrategy[WaitOutcome] = st.sampled_from(
    [Approved(), Approved(arguments={"a": 2}), Denied(), Expired(), Elapsed(), Completed(value=1)]
)
VALUES = st.sampled_from([None, 1, "same", ["new", 2]])
PAUSES = st.integers(0, 5_000)
STAGES: list[Stage] = ["before_turn", "prepare", "before_tool_call", "checkpoint", "after_turn"]
SEVERITIES = st.sampled_from(["", "", "", "", "", "", "", "", "abort", "failure"])
"""Most rulings let the turn continue; otherwise few turns would get far."""
SPENT = st.lists(st.builds(UsageEntry, source=st.just("p"), model=st.just("m"), usage=USAGES), max_size=1)
FRAMES = st.sampled_from([None, None, None, FrameSwitch(frame_id="f_3")])


class Cell:
    """The state that the shell keeps of a call that has made calls."""

    def __init__(self) -> None:
        self.made = 0
        self.heard = 0
        self.paused = False


class Books:
    """The state that the shell keeps: the unanswered commands, the waits, and how long the turn ran."""

    def __init__(self) -> None:
        self.unanswered: list[Command] = []
        self.waits: dict[int, Wait] = {}
        self.parents: dict[int, int] = {}
        self.done: set[int] = set()
        self.cells: dict[int, Cell] = {}
        self.ran_ms = 0

    def enter(self, given: Input, commands: list[Command]) -> None:
        self._answer(given)
        for command in commands:
            self._ask(command)

    def running(self) -> list[int]:
        return sorted(one.call.call_id for one in self.unanswered if isinstance(one, RunTool | ContinueCell))

    def open(self) -> set[int]:
        """Return the calls without a result."""
        return {
            *self.running(),
            *self.waits,
            *(call_id for call_id, cell in self.cells.items() if cell.paused),
        }

    def may_pause(self, call_id: int, number: int, calls: int) -> bool:
        cell = self.cells.get(call_id) or Cell()
        return call_id in self.running() and number == cell.heard + 1 and cell.made + calls > cell.heard

    def _answer(self, given: Input) -> None:
        match given:
            case ModelReplied() | ModelFailed():
                self._drop(CallModel)
            case CheckpointPassed():
                self._drop(Checkpoint)
            case HooksRan():
                self._drop(RunHooks)
                self._drop(Checkpoint)
            case CallPrepared():
                self._drop(PrepareCall)
            case CallRuled():
                self._rule(given)
            case ToolSettled() if given.call_id in self.open():
                self._settle(given.call_id)
            case CellPaused() if self.may_pause(given.call_id, given.number, len(given.calls)):
                self._leave(given.call_id)
                cell = self.cells.setdefault(given.call_id, Cell())
                cell.made += len(given.calls)
                cell.paused = True
            case WaitOpened() if given.wait.call_id in self.open() - set(self.cells):
                self._leave(given.wait.call_id)
                if self.parents.get(given.wait.call_id) in self.done:
                    self.done.add(given.wait.call_id)
                else:
                    self.waits[given.wait.call_id] = given.wait
            case WaitEnded():
                self._end_wait(given.wait_id)

    def unruled(self) -> list[int]:
        return sorted(
            one.call.call_id for one in self.unanswered if isinstance(one, RunTool) and not one.ruled
        )

    def _rule(self, given: CallRuled) -> None:
        """Mark the call as ruled on, so that plugins need not be asked about it again."""
        if given.call_id in self.unruled():
            arguments = given.ruling.arguments
            self.unanswered = [
                msgspec.structs.replace(one, ruled=True, arguments=arguments)
                if isinstance(one, RunTool) and one.call.call_id == given.call_id
                else one
                for one in self.unanswered
            ]

    def _settle(self, call_id: int) -> None:
        """Record the result of the call, and abandon the waiting calls of its code."""
        given_up = [one for one in self.waits if self.parents.get(one) == call_id]
        for one in (call_id, *given_up):
            self._leave(one)
            self.done.add(one)

    def _leave(self, call_id: int) -> None:
        """Remove the call from those that run or wait."""
        self.waits.pop(call_id, None)
        if call_id in self.cells:
            self.cells[call_id].paused = False
        self._drop(Park)
        self.unanswered = [
            one
            for one in self.unanswered
            if not (isinstance(one, RunTool | ContinueCell) and one.call.call_id == call_id)
        ]

    def _end_wait(self, wait_id: str) -> None:
        for call_id, wait in list(self.waits.items()):
            if wait.wait_id == wait_id:
                self._leave(call_id)

    def _ask(self, command: Command) -> None:
        match command:
            case StopEffects() | Commit():
                self.unanswered = []
                self.waits.clear()
                self.cells.clear()
            case ContinueCell():
                cell = self.cells[command.call.call_id]
                cell.heard += 1
                cell.paused = False
                assert command.count == cell.heard
                self.unanswered.append(command)
            case RunTool(call=call) if call.parent:
                self.parents[call.call_id] = call.parent
                self.unanswered.append(command)
            case _:
                self.unanswered.append(command)

    def _drop(self, kind: type) -> None:
        self.unanswered = [one for one in self.unanswered if not isinstance(one, kind)]


def _in_order(commands: list[Command]) -> list[Command]:
    return sorted(
        commands, key=lambda one: one.call.call_id if isinstance(one, RunTool | ContinueCell) else 0
    )


def _as_json(commands: list[Command]) -> list[Any]:
    """Return the commands as JSON, because the calls and results of a cell grow with it."""
    return [command_as_json(command) for command in commands]


STANDING = (Phase.NEW, Phase.PARKED, Phase.CLOSING, Phase.ENDED)
"""Phases in which time does not count."""


class RandomTurns(RuleBasedStateMachine):
    """A turn, the books of its shell, and a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = TurnMachine()
        self.books = Books()
        self.journal: list[bytes] = []
        self.given: list[list[Command]] = []
        self.told: list[list[Any]] = []
        self.outstanding: list[list[Any]] = []
        self.now_ms = 1_000
        self.opened = 0
        self.heard: list[UserMessage] = []
        self.uttered = 0

    # Feeding

    def _feed(self, input_type: type, pause_ms: int = 0, **fields: Any) -> None:
        given = input_type(at_ms=self.now_ms + pause_ms, **fields)
        if self.machine.phase not in STANDING and input_type is not Resumed:
            self.books.ran_ms += pause_ms
        self.now_ms += pause_ms
        self.journal.append(encode_input(given))
        commands = self.machine.feed(given)
        if not self._was_over():
            self.books.enter(given, commands)
        else:
            assert commands == []
        self.given.append(commands)
        self.told.append(_as_json(commands))
        self.outstanding.append(_as_json(_in_order(self.books.unanswered)))

    def _was_over(self) -> bool:
        return any(isinstance(one, Commit) for commands in self.given for one in commands)

    def _phase(self) -> Phase:
        return self.machine.phase

    def _asked(self) -> Command | None:
        """Return the unanswered command if it has the given type."""
        return self.books.unanswered[0] if len(self.books.unanswered) == 1 else None

    def _computing(self) -> list[int]:
        """Return the calls that may make calls: those that plugins have ruled on."""
        return [call_id for call_id in self.books.running() if call_id not in self.books.unruled()]

    def _ruling(self, data: st.DataObject, kind: type[Ruling] = Ruling, **fields: Any) -> Any:
        """Draw a ruling of plugins; each of its messages is unique."""
        count = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
        self.uttered += count
        severity = data.draw(SEVERITIES)
        return kind(
            messages=tuple(UserMessage(content=f"p{self.uttered - number}") for number in range(count)),
            events=(PluginNode(plugin_id="p", kind="note"),) * data.draw(st.integers(0, 1)),
            usage=tuple(data.draw(SPENT)),
            model_calls=data.draw(st.integers(0, 1)),
            **({severity: ErrorObject(code="PLUGIN_ERROR", message="no")} if severity else {}),
            **fields,
        )

    # Events

    @initialize(
        limits=LIMITS, injected=MESSAGES, stages=st.sets(st.sampled_from(STAGES)), warns=st.booleans()
    )
    def start(
        self, limits: UsageLimits, injected: list[UserMessage], stages: set[Stage], warns: bool
    ) -> None:
        self._feed(
            TurnStarted,
            turn_id="t_1",
            message=UserMessage(content="hi"),
            injected=tuple(injected),
            limits=limits,
            stages=tuple(sorted(stages)),
            warns=warns,
        )

    @precondition(lambda self: isinstance(self._asked(), RunHooks))
    @rule(pause=PAUSES, data=st.data())
    def run_hooks(self, pause: int, data: st.DataObject) -> None:
        asked = self._asked()
        assert isinstance(asked, RunHooks)
        ruling = self._ruling(data)
        if asked.stage != "after_turn":
            self.heard.extend(ruling.messages)
        self._feed(HooksRan, pause, stage=asked.stage, number=asked.number, ruling=ruling)

    @precondition(lambda self: isinstance(self._asked(), Checkpoint) and self._asked().closing > 0)
    @rule(pause=PAUSES, data=st.data())
    def run_after_turn_hooks_on_an_answer(self, pause: int, data: st.DataObject) -> None:
        asked = self._asked()
        assert isinstance(asked, Checkpoint)
        self._feed(HooksRan, pause, stage="after_turn", number=asked.closing, ruling=self._ruling(data))

    @precondition(lambda self: self._phase() is Phase.PREPARING)
    @rule(pause=PAUSES, data=st.data(), prompt=st.none() | st.just("p"), frames=st.tuples(FRAMES, FRAMES))
    def prepare(self, pause: int, data: st.DataObject, prompt: str | None, frames: tuple[Any, Any]) -> None:
        asked = self._asked()
        assert isinstance(asked, PrepareCall)
        view = data.draw(st.sampled_from([None, (KeptRange(start=0, stop=1),)]))
        fields = {"prompt": prompt, "view": view, "compaction": frames[0], "switch": frames[1]}
        ruling = self._ruling(data)
        self.heard.extend(ruling.messages)
        self._feed(CallPrepared, pause, number=asked.number, ruling=ruling, **fields)

    @precondition(lambda self: bool(self.books.unruled()))
    @rule(pause=PAUSES, data=st.data(), arguments=st.none() | st.just({"a": 3}))
    def rule_on_a_call(self, pause: int, data: st.DataObject, arguments: dict[str, Any] | None) -> None:
        call_id = data.draw(st.sampled_from(self.books.unruled()))
        ruling = self._ruling(data, CallRuling, arguments=arguments)
        self.heard.extend(ruling.messages)
        self._feed(CallRuled, pause, call_id=call_id, ruling=ruling)

    @precondition(lambda self: self._phase() is Phase.ASKING)
    @rule(pause=PAUSES, requests=st.lists(REQUESTS, min_size=1, max_size=5), usage=USAGES)
    def ask_for_tools(self, pause: int, requests: list[RequestedCall], usage: Usage) -> None:
        self._feed(ModelReplied, pause, calls=tuple(requests), usage=usage, model="m")

    @precondition(lambda self: self._phase() is Phase.ASKING)
    @rule(pause=PAUSES, text=st.sampled_from(["", "done"]), usage=USAGES)
    def answer(self, pause: int, text: str, usage: Usage) -> None:
        self._feed(ModelReplied, pause, text=text, usage=usage, model="n")

    @precondition(lambda self: self._phase() is Phase.ASKING)
    @rule(pause=PAUSES, error=ERRORS, retryable=st.booleans(), after=st.none() | st.integers(0, 90_000))
    def fail(self, pause: int, error: ErrorObject, retryable: bool, after: int | None) -> None:
        self._feed(ModelFailed, pause, error=error, retryable=retryable, retry_after_ms=after)

    @precondition(lambda self: bool(self.books.running()))
    @rule(pause=PAUSES, data=st.data(), value=VALUES, error=st.none() | ERRORS)
    def settle(self, pause: int, data: st.DataObject, value: Any, error: ErrorObject | None) -> None:
        call_id = data.draw(st.sampled_from(self.books.running()))
        ruling = self._ruling(data)
        self.heard.extend(ruling.messages)
        value = None if error else value
        self._feed(ToolSettled, pause, call_id=call_id, value=value, error=error, ruling=ruling)

    @precondition(lambda self: bool(self.books.running()))
    @rule(pause=PAUSES, data=st.data(), kind=st.sampled_from(["approval", "timer", "completion"]))
    def open_a_wait(self, pause: int, data: st.DataObject, kind: Any) -> None:
        self.opened += 1
        call_id = data.draw(st.sampled_from(self.books.running()))
        wait = Wait(wait_id=f"w{self.opened}", kind=kind, call_id=call_id, due_at=9)
        self._feed(WaitOpened, pause, wait=wait)

    @precondition(lambda self: bool(self._computing()))
    @rule(pause=PAUSES, data=st.data(), count=st.integers(0, 3))
    def call_from_code(self, pause: int, data: st.DataObject, count: int) -> None:
        call_id = data.draw(st.sampled_from(self._computing()))
        cell = self.books.cells.get(call_id)
        number = 1 if cell is None else cell.heard + 1
        calls = (CellCalled(name="look", arguments={"a": 1}),) * count
        self._feed(CellPaused, pause, call_id=call_id, number=number, calls=calls)

    @precondition(lambda self: bool(self.books.open()))
    @rule(pause=PAUSES, data=st.data())
    def finish_from_code(self, pause: int, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.books.open())))
        self._feed(FinishRequested, pause, call_id=call_id, text="done by code")

    @precondition(lambda self: bool(self.books.waits))
    @rule(pause=PAUSES, data=st.data(), outcome=OUTCOMES)
    def end_a_wait(self, pause: int, data: st.DataObject, outcome: WaitOutcome) -> None:
        wait_id = data.draw(st.sampled_from(sorted(wait.wait_id for wait in self.books.waits.values())))
        self._feed(WaitEnded, pause, wait_id=wait_id, outcome=outcome)

    @precondition(lambda self: isinstance(self._asked(), Checkpoint))
    @rule(pause=PAUSES, messages=MESSAGES, problem=st.none() | st.just("no number"))
    def pass_the_checkpoint(self, pause: int, messages: list[UserMessage], problem: str | None) -> None:
        checkpoint = self._asked()
        assert isinstance(checkpoint, Checkpoint)
        output = OutputCheck(problem=problem)
        self._feed(CheckpointPassed, pause, kind=checkpoint.kind, messages=tuple(messages), output=output)

    @rule(
        pause=PAUSES,
        data=st.data(),
        what=st.sampled_from(["result", "wait", "end of a wait", "ruling", "pause", "finish"]),
    )
    def feed_an_input_about_any_call(self, pause: int, data: st.DataObject, what: str) -> None:
        """Feed an input about any call: one that runs, waits, is settled or was never requested."""
        call_id = data.draw(st.integers(1, 8))
        match what:
            case "result":
                self._feed(ToolSettled, pause, call_id=call_id, value=data.draw(VALUES))
            case "wait":
                self.opened += 1
                wait = Wait(wait_id=f"w{self.opened}", kind="approval", call_id=call_id, due_at=9)
                self._feed(WaitOpened, pause, wait=wait)
            case "end of a wait":
                self._feed(WaitEnded, pause, wait_id=f"w{call_id}", outcome=data.draw(OUTCOMES))
            case "pause" if call_id not in self.books.unruled():
                calls = (CellCalled(name="pay"),) * data.draw(st.integers(0, 1))
                number = data.draw(st.integers(0, 3))
                self._feed(CellPaused, pause, call_id=call_id, number=number, calls=calls)
            case "pause" | "finish":
                self._feed(FinishRequested, pause, call_id=call_id, text="perhaps late")
            case _:
                ruling = self._ruling(data, CallRuling)
                if call_id in self.books.unruled():
                    self.heard.extend(ruling.messages)
                self._feed(CallRuled, pause, call_id=call_id, ruling=ruling)

    @rule(data=st.data(), steps=st.integers(1, 4))
    def feed_ordinary_inputs(self, data: st.DataObject, steps: int) -> None:
        """Feed an ordinary input that a command asked for; most turns consist of such inputs."""
        for _ in range(steps):
            if commands := self.machine.outstanding():
                self._answer_plainly(data.draw(st.sampled_from(commands)))

    @rule(pause=PAUSES)
    def resume(self, pause: int) -> None:
        self._feed(Resumed, pause)

    @precondition(lambda self: len(self.journal) > 8)
    @rule(pause=PAUSES, frame=st.sampled_from(["f_1", "f_2"]))
    def open_a_frame(self, pause: int, frame: str) -> None:
        self._feed(FrameSwitchRequested, pause, switch=FrameSwitch(frame_id=frame))

    @precondition(lambda self: len(self.journal) > 12)
    @rule(pause=PAUSES, how=st.sampled_from(["cancel", "deadline", "abort"]), error=ERRORS)
    def end_early(self, pause: int, how: str, error: ErrorObject) -> None:
        match how:
            case "cancel":
                self._feed(CancelRequested, pause)
            case "deadline":
                self._feed(DeadlinePassed, pause)
            case _:
                self._feed(Aborted, pause, reason=StopReason.PLUGIN_ABORT, error=error)

    @precondition(lambda self: self._phase() in (Phase.CLOSING, Phase.ENDED))
    @rule(requests=st.lists(REQUESTS, max_size=2))
    def reply_after_the_end(self, requests: list[RequestedCall]) -> None:
        self._feed(ModelReplied, calls=tuple(requests))

    # Properties

    @invariant()
    def every_call_is_followed_by_its_result(self) -> None:
        """Machine rules 3 and 4, except for the iteration that is still open."""
        messages = self.machine.messages
        is_open = self._phase() in (Phase.ACTING, Phase.PARKED)
        for place, message in enumerate(messages):
            if isinstance(message, AssistantMessage):
                results = _results_after(messages, place)
                if is_open and place == len(messages) - 1:
                    assert results == []
                else:
                    assert results == [call.call_id for call in message.tool_calls]
        asked = [one.call_id for message in messages for one in getattr(message, "tool_calls", ())]
        assert asked == sorted(set(asked))
        assert not set(asked) & set(self.books.parents)
        assert sum(isinstance(message, ToolMessage) for message in messages) <= len(asked)

    @invariant()
    def the_turn_ends_once_and_with_a_commit(self) -> None:
        every = [command for commands in self.given for command in commands]
        commits = [command for command in every if isinstance(command, Commit)]
        assert len(commits) == (self._phase() is Phase.ENDED)
        if commits:
            assert every[-1] is commits[0]
            assert commits[0].outcome == self.machine.outcome
        else:
            assert self.machine.outcome is None
            assert self.journal == [] or self.books.unanswered != []

    @invariant()
    def unanswered_commands_are_outstanding(self) -> None:
        assert self.machine.outstanding() == _in_order(self.books.unanswered)

    @invariant()
    def a_turn_is_parked_if_and_only_if_calls_wait_and_none_runs(self) -> None:
        parked = self._phase() is Phase.PARKED
        assert parked == (bool(self.books.waits) and not self.books.running())
        if parked:
            waits = tuple(wait for _, wait in sorted(self.books.waits.items()))
            assert self.machine.outstanding() == [Park(Waiting(waits=waits))]

    @invariant()
    def the_deadline_is_the_remaining_time(self) -> None:
        if self._phase() in STANDING:
            assert self.machine.account.deadline_ms is None
        else:
            assert self.machine.account.deadline_ms == self.now_ms + 100_000 - self.books.ran_ms

    @invariant()
    def the_messages_are_among_the_entries(self) -> None:
        payloads = [entry.payload for entry in self.machine.entries]
        other = (PluginNode, FrameOpened, TurnEnded)
        assert [payload for payload in payloads if not isinstance(payload, other)] == self.machine.messages
        frames = [place for place, payload in enumerate(payloads) if isinstance(payload, FrameOpened)]
        switched = isinstance(self.machine.outcome, FrameSwitched)
        compacted = self.machine.compaction is not None
        assert frames == [0] * compacted + [len(payloads) - 1] * switched
        ended = self._phase() is Phase.ENDED and not isinstance(
            self.machine.outcome, Finished | FrameSwitched
        )
        assert sum(isinstance(payload, TurnEnded) for payload in payloads) == ended

    @invariant()
    def plugins_messages_are_delivered_once_in_this_turn_or_the_next(self) -> None:
        said = Counter(
            message.content
            for message in (*self.machine.messages, *self.machine.next_messages())
            if isinstance(message, UserMessage) and str(message.content).startswith("p")
        )
        assert set(said.values()) <= {1}
        assert {message.content for message in self.heard} <= set(said)

    @invariant()
    def the_ledger_adds_up(self) -> None:
        lines = self.machine.account.ledger("turn")
        assert sum(line.usage.total for line in lines) == self.machine.account.usage.total
        assert len({(line.source, line.model) for line in lines}) == len(lines)

    def teardown(self) -> None:
        """End the turn; check that each call has one result and that every prefix of the journal replays."""
        if self.journal:
            self._finish_turn()
        self._replay()

    def _finish_turn(self) -> None:
        for _ in range(400):
            for command in self.machine.outstanding():
                self._answer_plainly(command)
        assert self._phase() is Phase.ENDED
        self.every_call_is_followed_by_its_result()
        self.the_turn_ends_once_and_with_a_commit()
        self.the_messages_are_among_the_entries()
        self.plugins_messages_are_delivered_once_in_this_turn_or_the_next()

    def _answer_plainly(self, command: Command) -> None:
        match command:
            case RunHooks():
                self._feed(HooksRan, stage=command.stage, number=command.number)
            case PrepareCall():
                self._feed(CallPrepared, number=command.number)
            case CallModel(number=number) if number % 3:
                self._feed(ModelReplied, calls=(RequestedCall(name="look"), RequestedCall(name="pay")))
            case CallModel():
                self._feed(ModelReplied, text="the end")
            case RunTool(call=call, ruled=True):
                self._feed(ToolSettled, call_id=call.call_id, value=call.call_id)
            case RunTool(call=call):
                self._feed(CallRuled, call_id=call.call_id)
            case ContinueCell(call=call):
                self._feed(ToolSettled, call_id=call.call_id, value=call.call_id)
            case Checkpoint(closing=closing) if closing:
                self._feed(HooksRan, stage="after_turn", number=closing)
            case Checkpoint():
                self._feed(CheckpointPassed, kind=command.kind)
            case Park():
                self._feed(WaitEnded, wait_id=command.outcome.waits[0].wait_id, outcome=Approved())

    def _replay(self) -> None:
        """Check that every prefix of the journal yields the same commands and the same outstanding ones."""
        fresh = TurnMachine()
        for body, told, outstanding in zip(self.journal, self.told, self.outstanding, strict=True):
            assert _as_json(fresh.feed(decode_input(body))) == told
            assert _as_json(fresh.outstanding()) == outstanding
        assert fresh.entries == self.machine.entries
        assert fresh.next_messages() == self.machine.next_messages()
        assert fresh.account.ledger("turn") == self.machine.account.ledger("turn")
        assert (fresh.account.usage, fresh.calls.records) == (
            self.machine.account.usage,
            self.machine.calls.records,
        )
        assert (fresh.outcome, fresh.account.deadline_ms) == (
            self.machine.outcome,
            self.machine.account.deadline_ms,
        )


def _results_after(messages: list[Message], place: int) -> list[int]:
    found = []
    for message in messages[place + 1 :]:
        if not isinstance(message, ToolMessage):
            break
        found.append(message.call_id)
    return found


@pytest.mark.slow
def test_the_rules_hold_for_any_turn_and_it_can_be_replayed() -> None:
    """Ours: SPEC §7 and §12; machine rules 2 to 6, with any of the plugins' stages, and with cells."""
    run_state_machine_as_test(
        RandomTurns,
        settings=settings(
            max_examples=2 * settings.default.max_examples, stateful_step_count=40, deadline=None
        ),
    )
