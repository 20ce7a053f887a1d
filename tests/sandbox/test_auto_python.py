"""Sessions that begin on Monty and move to CPython when they need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, ErrorObject, StandfastError
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest, CellStep
from standfast.sandbox.auto_python import AutoPython, AutoRun, _OnMonty, lacking
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.monty.session_source import definitions_in, literal

pytestmark = pytest.mark.slow

LIMITS = SessionLimits(memory_mb=256, cpu_ms=5_000, wall_ms=30_000)
INHERITS = "class Mine(dict):\n    pass\nlen(Mine(a=1))"


class Functions:
    """The functions that these cells may call."""

    def __contains__(self, name: object, /) -> bool:
        return name in ("add", "finish")

    def names(self) -> list[str]:
        return ["add", "finish"]

    def capability(self, name: str) -> Capability:
        return Capability(name=name, description="", input_schema={})

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


@pytest.fixture(scope="module")
def auto() -> Iterator[AutoPython]:
    monty, cpython = MontyCells(capacity=2), CPythonCells(capacity=2)
    yield AutoPython(monty, cpython)
    monty.close()
    cpython.close()


def opened(auto: AutoPython, code: str, state: bytes = b"", **options: Any) -> AutoRun:
    request = CellRequest(
        key=options.pop("key", "s"), code=code, state=state, limits=LIMITS, functions=Functions(), **options
    )
    return auto.open(request)


def finished(run: AutoRun, step: CellStep | None = None) -> CellEnd:
    """Run a cell to its end, answering every call with its number."""
    step = run.start() if step is None else step
    while isinstance(step, CellPause):
        number = step.calls[0].number
        step = run.answer(number, CallAnswer(value=number))
    return step


def left(end: CellEnd) -> bytes:
    assert end.state is not None
    return end.state


def test_code_that_monty_supports_stays_on_monty(auto: AutoPython) -> None:
    """Ours: the session does not move, and there is no note."""
    first = finished(opened(auto, "x = [1, 2]"))
    second = finished(opened(auto, "sum(x) + add(1)", left(first)))
    assert (second.result, second.error, second.notes) == (4, None, ())


def test_code_that_monty_refuses_moves_the_session_with_its_variables(auto: AutoPython) -> None:
    """Ours: values, functions and imports move along, and a note reports the move."""
    before = "import math\nx = [1, {'a': (2, 3)}]\ndef twice(n=2):\n    return n * len(x)\nname = 'ä'"
    first = finished(opened(auto, before))
    moved = finished(opened(auto, f"{INHERITS}\n[x, twice(), twice(5), math.floor(2.5), name]", left(first)))
    assert moved.error is None
    assert moved.result == [[1, {"a": [2, 3]}], 4, 10, 2, "ä"]
    assert len(moved.notes) == 1
    assert "runs on CPython" in moved.notes[0]
    assert "class inheritance" in moved.notes[0]
    assert "these variables could not be moved" not in moved.notes[0]
    assert auto.names(left(moved)) == ["Mine", "math", "name", "twice", "x"]


def test_a_session_moves_only_once(auto: AutoPython) -> None:
    """Ours: the session stays on CPython, without further notes."""
    moved = finished(opened(auto, INHERITS))
    after = finished(
        opened(auto, "def numbers():\n    yield 1\nlist(numbers()) + [len(Mine())]", left(moved))
    )
    assert (after.result, after.notes) == ([1, 0], ())


@pytest.mark.parametrize(
    "code",
    [
        "def g():\n    yield 5\nnext(g())",
        "x = 5\ny = 1\ndel y\nx",
        "import statistics\nstatistics.mean([4, 6])",
        "import fractions\nint(fractions.Fraction(10, 2))",
        "class A:\n    @property\n    def five(self):\n        return 5\nA().five",
        "memoryview(b'abcde').nbytes",
        "next(x for x in [5])",
        "len('abcde'.translate(str.maketrans('a', 'b')))",
        "(31).bit_length()",
        "from collections.abc import Callable\nF = Callable[[int], int]\n5",
        "from typing import TypeVar\nT = TypeVar('T')\n5",
    ],
)
def test_every_feature_that_monty_lacks_works(auto: AutoPython, code: str) -> None:
    """Ours: a user never notices the limits of the smaller engine."""
    end = finished(opened(auto, code))
    assert (end.result, end.error) == (5, None)
    assert end.notes


def test_variables_that_cannot_be_moved_are_named(auto: AutoPython) -> None:
    """Ours: an instance, or a value that holds a function, cannot be moved."""
    before = "class P:\n    def __init__(self):\n        self.v = 1\np = P()\nfs = [len]\nx = 1"
    moved = finished(opened(auto, INHERITS, left(finished(opened(auto, before)))))
    assert moved.notes[0].endswith("these variables could not be moved: fs, p")
    assert auto.names(left(moved)) == ["Mine", "P", "x"]


def test_a_name_that_was_never_bound_is_not_reported_as_lost(auto: AutoPython) -> None:
    """Bug: a name whose binding had failed was reported as lost."""
    failed = finished(opened(auto, "x = 1\ny = x / 0"))
    moved = finished(opened(auto, INHERITS, left(failed)))
    assert "these variables could not be moved" not in moved.notes[0]


def test_a_cell_that_has_made_a_call_does_not_move(auto: AutoPython) -> None:
    """Ours: the call would be made twice if the cell were rerun elsewhere."""
    made: list[str] = []
    run = opened(auto, "x = add(1)\nimport statistics")
    step = run.start()
    while isinstance(step, CellPause):
        made += [call.name for call in step.calls]
        step = run.answer(step.calls[0].number, CallAnswer(value=1))
    assert made == ["add"]
    assert step.error is not None
    assert "statistics" in step.error.message
    assert step.notes == ()


def test_a_cell_with_an_immediately_answered_call_does_not_move(auto: AutoPython) -> None:
    """Ours: the host has already acted on the call that it answered."""
    heard: list[str] = []

    def answer(call: CellCall) -> CallAnswer:
        heard.append(call.name)
        return CallAnswer(value=1)

    end = finished(opened(auto, "x = add(1)\nimport statistics", answer_now=answer))
    assert heard == ["add"]
    assert end.error is not None
    assert end.notes == ()


def test_errors_in_the_code_itself_do_not_move_the_session(auto: AutoPython) -> None:
    """Ours: an error in the code is the same on every engine."""
    for code in ("nothing + 1", "1 / 0", "import nowhere_at_all", "'a'.nothing", "next([1])", "len(5)"):
        end = finished(opened(auto, f"x = 1\n{code}"))
        assert end.error is not None
        assert end.notes == ()
        assert "x" in auto.monty.names(msgspec.msgpack.decode(left(end))["state"])


def test_a_moved_cell_can_be_suspended_and_resumed_elsewhere(auto: AutoPython) -> None:
    """Ours: the suspended bytes contain the pause and the move."""
    first = finished(opened(auto, "x = 4"))
    code = f"{INHERITS}\ny = add(1) + x\ny"
    run = opened(auto, code, left(first))
    step = run.start()
    assert isinstance(step, CellPause)
    again = opened(auto, code, left(first), paused=run.suspend())
    assert again.start() == CellPause()
    end = finished(again, again.answer(1, CallAnswer(value=10)))
    assert (end.result, end.error) == (14, None)
    assert "runs on CPython" in end.notes[0]
    assert finished(opened(auto, "y", left(end))).result == 14


def test_a_suspended_cell_on_monty_resumes_there(auto: AutoPython) -> None:
    """Ours: the definitions of the cell are known if the session moves later."""
    code = "def half(n):\n    return n // 2\nz = add(1)"
    run = opened(auto, code)
    run.start()
    again = opened(auto, code, paused=run.suspend())
    again.start()
    end = finished(again, again.answer(1, CallAnswer(value=10)))
    moved = finished(opened(auto, f"{INHERITS}\nhalf(z)", left(end)))
    assert (moved.result, moved.error) == (5, None)


def test_a_plain_monty_state_opens_as_a_session_on_monty(auto: AutoPython) -> None:
    """Ours: an agent may switch to the larger engine later."""
    request = CellRequest(key="m", code="x = 3", limits=LIMITS, functions=Functions())
    end = auto.monty.open(request).start()
    assert isinstance(end, CellEnd)
    moved = finished(opened(auto, f"{INHERITS}\nx", left(end)))
    assert (moved.result, moved.error) == (3, None)


def test_a_check_accepts_what_only_the_other_engine_supports(auto: AutoPython) -> None:
    """Ours: any module of the standard library passes; a missing module or an unknown name does not."""

    def messages(code: str) -> list[str]:
        found = auto.check(code, state=b"", functions=Functions(), inputs=(), check="calls")
        return [one.message for one in found]

    assert messages("import statistics") == []
    assert messages("import nowhere_at_all") == ["there is no module 'nowhere_at_all'"]
    assert len(messages("import statistics\nad(1)")) == 1


def test_a_stopped_cell_ends(auto: AutoPython) -> None:
    """Ours: this also works after the cell has moved."""
    run = opened(auto, f"{INHERITS}\nadd(1)")
    assert isinstance(run.start(), CellPause)
    run.stop(ErrorObject(code=Code.CANCELLED, message="enough"))
    end = run.answer(1, CallAnswer(value=1))
    assert isinstance(end, CellEnd)
    assert (end.hard, end.state) == (True, None)
    run.close()


@pytest.mark.parametrize(
    ("message", "moves"),
    [
        ("ModuleNotFoundError: No module named 'csv'", True),
        ("ModuleNotFoundError: No module named 'xml.dom'", True),
        ("ModuleNotFoundError: No module named 'requests'", False),
        ("NameError: name 'memoryview' is not defined", True),
        ("NameError: name 'x' is not defined", False),
        ("bytearray() is neither defined nor a capability", True),
        ("send() is neither defined nor a capability", False),
        ("AttributeError: module 'math' has no attribute 'sumprod'", True),
        ("AttributeError: 'str' object has no attribute 'x'", False),
        ("ImportError: cannot import name 'batched' from 'itertools'", True),
        ("ValueError: NameError: name 'memoryview' is not defined", False),
    ],
)
def test_a_missing_feature_is_recognized_by_the_error(message: str, moves: bool) -> None:
    """Ours: a session moves only for features that CPython has."""
    error = ErrorObject(code=Code.RUNTIME_ERROR, message=message)
    assert lacking(error) is moves


def test_definitions_are_extracted_completely() -> None:
    """Ours: decorators, imports of several names, and two statements on a line are handled."""
    code = (
        "import a.b, c as d; x = 1\n"
        "@deco\n@other(1)\nasync def f():\n    pass  # end\n"
        "class K: z = 'ä'; y = 2"
    )
    assert definitions_in(code) == {
        "a": "import a.b, c as d",
        "d": "import a.b, c as d",
        "f": "@deco\n@other(1)\nasync def f():\n    pass",
        "K": "class K: z = 'ä'; y = 2",
    }
    assert definitions_in("x = (") == {}


def test_literals_evaluate_to_equal_values() -> None:
    """Ours: this holds for every value that Monty returns."""
    values: list[Any] = [
        None,
        True,
        10**30,
        -1.5,
        "a'\n\"",
        b"\x00",
        (),
        (1,),
        [],
        {},
        {(1, 2): {"a": [1]}},
        set(),
        {1},
    ]
    for value in [*values, frozenset({2}), float("inf")]:
        text = literal(value)
        assert text is not None
        assert eval(text) == value
    assert literal(object()) is None
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    assert literal(deep) is None


def test_a_move_that_pauses_frees_its_worker(auto: AutoPython) -> None:
    """Bug: definitions that paused when they were repeated kept their worker."""
    state = finished(opened(auto, "def f(): return 1", key="waits")).state
    assert state is not None
    place = msgspec.msgpack.decode(state, type=_OnMonty)
    waits = msgspec.structs.replace(place, definitions={"f": "import time\ntime.sleep(9)\ndef f(): return 1"})
    request = CellRequest(key="waits", code=INHERITS, limits=LIMITS, functions=Functions())
    before = set(auto.cpython.live)  # type: ignore[attr-defined]
    with pytest.raises(StandfastError, match="did not end"):
        auto.moved(waits, request)
    assert auto.cpython.live == before  # type: ignore[attr-defined]
