"""The life cycle of a cell, driven by a stepper that follows a list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from standfast.errors import Code, EngineFailed, ErrorObject, InvalidArgument
from standfast.model.capability import GuestException
from standfast.model.code import Diagnostic, Language
from standfast.model.limits import SessionLimits
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import (
    CallAnswer,
    CellEnd,
    CellFunctions,
    CellPause,
    CellRequest,
    CellStep,
    Check,
    NamesRead,
)
from standfast.sandbox.cell_lifecycle import SteppedCells
from standfast.sandbox.workers import WorkerSlots

Does = Step | Exception | Callable[[StepperHost], Step]


class ListStepper:
    """A stepper whose steps come from a list; `given` holds the delivered results in order."""

    wall_grace_s = 0.0
    instructions: int | None = None

    def __init__(self, host: StepperHost, cells: ListCells) -> None:
        self._host = host
        self._cells = cells
        self._left: list[Does] = []
        self.replayed = cells.replayed

    def prepare(self) -> None: ...

    def begin(self) -> Step:
        self._left = list(self._cells.steps)
        return self.proceed()

    def proceed(self) -> Step:
        does = self._left.pop(0)
        if isinstance(does, Exception):
            raise does
        return does if isinstance(does, Step) else does(self._host)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        self._cells.given.append((call_id, answer.value))
        return self.proceed()

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return answer.exception is not None

    def keep(self) -> bytes | None:
        if self._host.stopped is not None:
            raise CellFailed(ErrorObject(code=Code.INTERRUPTED, message="died"))
        return b"kept"

    def put_aside(self) -> None:
        if self._cells.not_suspended is not None:
            raise self._cells.not_suspended

    def dump(self) -> bytes:
        return b"dump"

    def load(self) -> Step:
        return StepBlocked()

    def is_in_worker(self) -> bool:
        return True

    def memory_peak_bytes(self) -> int | None:
        return 7

    def release(self, *, warm: bool) -> None:
        self._cells.released.append(warm)

    def kill(self) -> None:
        self._cells.killed += 1


class ListCells(SteppedCells):
    language = Language.PYTHON

    def __init__(self) -> None:
        super().__init__(WorkerSlots(1))
        self.steps: list[Does] = []
        self.replayed = False
        self.not_suspended: EngineFailed | None = None
        self.given: list[tuple[int, Any]] = []
        self.released: list[bool] = []
        self.killed = 0

    def stepper(self, host: StepperHost, dump: bytes) -> ListStepper:
        return ListStepper(host, self)

    def names(self, state: bytes) -> list[str]:
        return []

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        return NamesRead({})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        return []

    def cell(self, *steps: Does, paused: bytes = b"", **options: Any) -> Any:
        self.steps = list(steps)
        limits = SessionLimits(max_external_calls=3)
        return self.open(
            CellRequest(key="s", code="", limits=limits, functions=None, paused=paused, **options)  # type: ignore[arg-type]
        )


@pytest.fixture
def cells() -> Iterator[ListCells]:
    opened = ListCells()
    yield opened
    opened.close()


def stands(call_id: int) -> EngineCall:
    return EngineCall(id=call_id, name="f", args=[call_id])


def later(call_id: int, **fields: Any) -> EngineCall:
    return EngineCall(id=call_id, name="f", args=[call_id], stands=False, **fields)


def numbers(step: CellStep) -> list[int]:
    assert isinstance(step, CellPause)
    return [call.number for call in step.calls]


def ended(step: CellStep) -> CellEnd:
    assert isinstance(step, CellEnd)
    return step


CANCELLED = ErrorObject(code=Code.CANCELLED, message="enough")


def test_an_answer_is_held_back_until_the_code_waits_for_it(cells: ListCells) -> None:
    """Ours: results are delivered one at a time, in order."""
    run = cells.cell(
        later(10), later(11), stands(12), StepBlocked(), StepBlocked([10]), StepBlocked(), StepEnded(result=1)
    )
    assert numbers(run.start()) == [1, 2, 3]
    assert numbers(run.answer(2, CallAnswer(value="b"))) == []
    assert cells.given == []
    assert numbers(run.answer(3, CallAnswer(value="c"))) == []
    assert cells.given == [(12, "c"), (11, "b")]
    end = ended(run.answer(1, CallAnswer(value="a")))
    assert cells.given[2:] == [(10, "a")]
    assert (end.error and end.error.message, end.hard) == (
        "guest code waits, but none of its calls is pending",
        True,
    )


def test_an_immediate_answer_has_no_number(cells: ListCells) -> None:
    """Ours: a value is held back until the code waits; an exception is raised at the call if possible."""
    raised = CallAnswer(exception=GuestException(type="ValueError", message="no"))
    answers = {10: CallAnswer(value="a"), 11: raised, 12: None}
    run = cells.cell(
        later(10),
        later(11),
        stands(12),
        StepBlocked(),
        StepEnded(result=1),
        answer_now=lambda call: answers[call.args[0]],
    )
    assert numbers(run.start()) == [1]
    assert cells.given == [(11, None)]
    assert ended(run.answer(1, CallAnswer(value="c"))).calls_made == 1
    assert cells.given[1:] == [(12, "c"), (10, "a")]


def test_a_call_that_the_engine_answers_does_not_reach_the_host(cells: ListCells) -> None:
    """Ours: the host is not asked for a function that no longer exists."""
    own = EngineCall(id=1, name="gone", answer=CallAnswer(value="own"))
    run = cells.cell(own, StepEnded(result=1), answer_now=lambda call: pytest.fail("asked"))
    assert ended(run.start()).result == 1
    assert cells.given == [(1, "own")]


def test_one_call_too_many_ends_the_cell(cells: ListCells) -> None:
    """Seed: max_external_calls limits the calls of a cell."""
    end = ended(cells.cell(*map(later, range(4))).start())
    assert (end.error and end.error.code, end.hard, end.state) == (Code.EXTERNAL_CALLS_EXCEEDED, True, None)
    assert cells.released == [False]


def test_the_arguments_of_one_pause_share_a_size_limit(cells: ListCells) -> None:
    """Ours: decoded arguments take up many times their size, and all calls of a pause are in memory."""
    half = 20 << 20
    run = cells.cell(stands(1), later(2, argument_bytes=half), later(3, argument_bytes=half))
    run.start()
    end = ended(run.answer(1, CallAnswer()))
    assert end.error is not None
    assert end.error.code == Code.REQUEST_TOO_LARGE


def test_a_stop_ends_a_waiting_cell_at_its_next_answer_and_only_once(cells: ListCells) -> None:
    """Ours: the first stop counts; one after the end has no effect."""
    run = cells.cell(stands(1), StepEnded(result=1))
    run.start()
    run.stop(CANCELLED)
    run.stop(ErrorObject(code=Code.TIMEOUT_WALL, message="late"))
    end = ended(run.answer(1, CallAnswer()))
    assert (end.error, end.hard, cells.killed, cells.given) == (CANCELLED, True, 1, [])
    run.stop(CANCELLED)
    assert (cells.killed, run.answer(1, CallAnswer())) == (1, end)


@pytest.mark.parametrize(
    "failure", [CellStopped(), CellFailed(ErrorObject(code=Code.INTERRUPTED, message="x"))]
)
def test_a_cell_stopped_while_computing_ends_with_the_reason_of_the_stop(
    cells: ListCells, failure: Exception
) -> None:
    """Ours: the stop is the reason, whatever the killed engine reports."""

    def stop(host: StepperHost) -> Step:
        host.stop(CANCELLED)
        raise failure

    end = ended(cells.cell(stop).start())
    assert (end.error, end.hard, cells.released) == (CANCELLED, True, [False])


def test_a_stop_before_the_state_is_stored_undoes_the_cell(cells: ListCells) -> None:
    """Ours: a reported end is not final until the state is stored."""
    told: list[CellEnd] = []

    def through(end: CellEnd) -> None:
        told.append(end)
        run.stop(CANCELLED)

    run = cells.cell(StepEnded(result=5), through=through)
    end = ended(run.start())
    assert (told[0].result, told[0].state, end.result, end.error) == (5, None, None, CANCELLED)


def test_an_exception_keeps_the_state_and_refused_code_leaves_it_unchanged(cells: ListCells) -> None:
    """Ours: an exception of the language is not a hard stop."""
    error = ErrorObject(code=Code.RUNTIME_ERROR, message="oops")
    end = ended(cells.cell(StepEnded(error=error)).start())
    assert (end.error, end.hard, end.state, end.memory_peak_bytes) == (error, False, b"kept", 7)
    end = ended(cells.cell(StepEnded(error=error, refused=True)).start())
    assert (end.error, end.hard, end.state) == (error, False, None)
    assert cells.released == [True, True]


def test_a_cell_that_cannot_be_suspended_ends_when_its_worker_is_needed(cells: ListCells) -> None:
    """Ours: keeping the worker could block the call that the cell waits for."""
    run = cells.cell(stands(1), StepEnded(result=1))
    run.start()
    cells.not_suspended = EngineFailed("the cell cannot be suspended: too large")
    run.hand_back()
    end = ended(run.answer(1, CallAnswer()))
    assert end.error is not None
    assert end.error.message.startswith("another session needed the process of this run, and the cell cannot")


def test_a_cell_is_suspended_and_resumed_with_its_answers_and_calls(cells: ListCells) -> None:
    """Ours: an undelivered result is part of the suspended cell."""
    run = cells.cell(later(10), stands(11))
    assert numbers(run.start()) == [1, 2]
    run.answer(1, CallAnswer(value="a", at_ms=50))
    data = run.suspend()
    again = cells.cell(paused=data)
    assert again.start() == CellPause()
    assert again.now_ms == 50
    with pytest.raises(InvalidArgument):
        again.answer(1, CallAnswer())
    again._stepper._left = [StepBlocked(), StepEnded(result=2)]
    end = ended(again.answer(2, CallAnswer(value="b")))
    assert (end.result, end.calls_made, cells.given) == (2, 2, [(11, "b"), (10, "a")])


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([stands(1), stands(2), StepEnded(result=3)], None),
        ([stands(1), StepEnded(result=3)], "ended earlier"),
        ([stands(1), stands(9)], "is another one"),
        ([stands(1), later(2), StepBlocked()], "is another one"),
    ],
)
def test_a_replayed_cell_must_behave_identically(
    cells: ListCells, then: list[Does], message: str | None
) -> None:
    """Ours: an engine that cannot be stored in the middle of a cell is rerun and compared."""
    cells.replayed = True
    run = cells.cell(stands(1), stands(2))
    run.start()
    assert numbers(run.answer(1, CallAnswer(value="a"))) == [2]
    again = cells.cell(*then, paused=run.suspend())
    again.start()
    end = ended(again.answer(2, CallAnswer(value="b")))
    if message is None:
        assert (end.result, cells.given) == (3, [(1, "a"), (1, "a"), (2, "b")])
    else:
        assert end.error is not None
        assert (end.error.code, end.hard) == (Code.INTERRUPTED, True)
        assert message in end.error.message
