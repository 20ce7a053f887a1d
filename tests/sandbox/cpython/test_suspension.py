"""Pauses that outlive their process: the code is replayed up to its pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, ErrorObject, InvalidArgument, SnapshotRefused
from standfast.model.capability import GuestException
from standfast.ports.code_engine import CallAnswer, CellCall, CellEnd, CellPause, CellRequest, CellStep
from standfast.sandbox.cell_lifecycle import MadeCall, PausedCell, SteppedCell, decode_cell, encode_cell
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.cpython.state import decode_dump, encode_dump

pytestmark = pytest.mark.slow

Open = Callable[..., SteppedCell]
Request = Callable[..., CellRequest]


@pytest.fixture
def cell(engine: CPythonCells, request_of: Request) -> Open:
    return lambda code, **options: engine.open(request_of(code, **options))


@pytest.fixture
def elsewhere(other: CPythonCells, request_of: Request) -> Open:
    return lambda code, **options: other.open(request_of(code, **options))


def ended(step: CellStep) -> CellEnd:
    assert isinstance(step, CellEnd), step
    return step


def value(of: Any, at_ms: int = 0) -> CallAnswer:
    return CallAnswer(value=of, at_ms=at_ms)


def test_a_suspended_cell_resumes_in_another_process(
    cell: Open, elsewhere: Open, other: CPythonCells
) -> None:
    """Seed: a cell that waits for a person outlives its process, and no call is reported twice."""
    state = ended(cell("base = 40").start()).state
    code = "print('before')\nx = add(1)\nprint('after')\nbase + x"
    run = cell(code, state=state)
    run.start()
    taken_up = elsewhere(code, paused=run.suspend())
    assert taken_up.start() == CellPause()
    end = ended(taken_up.answer(1, value(2)))
    assert (end.result, end.stdout, end.calls_made) == (42, "before\nafter\n", 1)
    assert end.state is not None
    assert other.names(end.state) == ["base", "x"]


def test_a_cell_can_be_resumed_repeatedly(cell: Open, elsewhere: Open) -> None:
    """Seed: earlier calls are not repeated, however often the process dies."""
    code = "xs = []\nfor n in range(4):\n    xs.append(add(n))\nxs"
    where, paused, told = [cell, elsewhere], b"", []
    run = cell(code)
    step = run.start()
    for number in range(1, 5):
        assert isinstance(step, CellPause)
        told += [call.args for call in step.calls]
        paused = run.suspend()
        run = where[number % 2](code, paused=paused)
        assert run.start() == CellPause()
        step = run.answer(number, value(number * 10))
    end = ended(step)
    assert (end.result, told, end.calls_made) == ([10, 20, 30, 40], [[0], [1], [2], [3]], 4)


def test_undelivered_answers_are_suspended_too(cell: Open, elsewhere: Open) -> None:
    """Ours: a result is journaled once and delivered once, whatever happens in between."""
    code = "p = fetch(1)\nq = add(2)\n[q, await p]"
    run = cell(code)
    run.start()
    run.answer(1, value(2**80))
    once = elsewhere(code, paused=run.suspend())
    assert once.start() == CellPause()
    twice = cell(code, paused=once.suspend())
    twice.start()
    assert ended(twice.answer(2, value("q"))).result == ["q", 2**80]


def test_a_gather_can_be_suspended_halfway(cell: Open, elsewhere: Open) -> None:
    """Seed: parallel calls are approved one by one, over days."""
    code = "import asyncio\nawait asyncio.gather(add(1), add(2), asyncio.sleep(3))"
    run = cell(code)
    run.start()
    assert run.answer(2, value("two")) == CellPause()
    taken_up = elsewhere(code, paused=run.suspend())
    taken_up.start()
    assert taken_up.answer(3, CallAnswer()) == CellPause()
    assert ended(taken_up.answer(1, value("one"))).result == ["one", "two", None]


def test_a_suspended_cell_keeps_the_codes_of_its_errors(cell: Open, elsewhere: Open) -> None:
    """Ours: an exception that is raised again later keeps its error code."""
    code = "try:\n    add(1)\nexcept ValueError as error:\n    kept = error\nadd(2)\nraise kept"
    run = cell(code)
    run.start()
    error = ErrorObject(code="OUT_OF_STOCK", message="none left")
    seen = GuestException(type="ValueError", message="none left")
    run.answer(1, CallAnswer(exception=seen, error=error))
    taken_up = elsewhere(code, paused=run.suspend())
    taken_up.start()
    end = ended(taken_up.answer(2, value(None)))
    assert end.error is not None
    assert end.error.code == "OUT_OF_STOCK"


def test_inputs_and_loaded_values_are_the_same_on_replay(
    cell: Open, elsewhere: Open, other: CPythonCells
) -> None:
    """Ours: replayed code sees the same values, and keeps none of them."""
    code = "x = len(data) + len(later)\nadd(x)\nlen(data)"
    run = cell(code, inputs={"data": "abc"}, load={"later": "de"}.__getitem__)
    assert isinstance(run.start(), CellPause)
    taken_up = elsewhere(code, paused=run.suspend())
    taken_up.start()
    end = ended(taken_up.answer(1, value(None)))
    assert end.result == 3
    assert end.state is not None
    assert other.names(end.state) == ["x"]


def test_calls_answered_immediately_are_replayed_rather_than_repeated(cell: Open, elsewhere: Open) -> None:
    """Ours: the host might answer differently by now."""
    asked: list[Any] = []

    def now(call: CellCall) -> CallAnswer | None:
        if call.name != "now_or_never":
            return None
        asked.append(call.args)
        return value(len(asked))

    code = "a = now_or_never('a')\nb = await now_or_never('b')\nc = add(a + b)\n[a, b, c, now_or_never('d')]"
    run = cell(code, answer_now=now)
    run.start()
    taken_up = elsewhere(code, paused=run.suspend(), answer_now=now)
    taken_up.start()
    assert ended(taken_up.answer(1, value(7))).result == [1, 2, 7, 3]
    assert asked == [["a"], ["b"], ["d"]]


def test_time_and_random_numbers_are_the_same_on_replay(cell: Open, elsewhere: Open) -> None:
    """Seed: time and random numbers come from the host."""
    code = """
import time, random, uuid
first = [time.time(), random.random(), str(uuid.uuid4())]
add(first)
second = [time.time(), random.random()]
fetch(second)
first + second
"""
    options = {"now_ms": 1_000, "seed": "turn-7"}
    plain = cell(code, **options)
    plain.start()
    plain.answer(1, value(None, at_ms=61_000))
    expected = ended(plain.answer(2, value(None))).result
    run = cell(code, **options)
    run.start()
    run.answer(1, value(None, at_ms=61_000))
    taken_up = elsewhere(code, paused=run.suspend(), now_ms=999_000, seed="another")
    taken_up.start()
    assert ended(taken_up.answer(2, value(None))).result == expected
    assert expected[3] == 61.0


def changed(data: bytes, **fields: Any) -> bytes:
    """Return the suspended cell with *fields* replaced, either its own or those of the dump in it."""
    cell = decode_cell(data)
    assert cell is not None
    own = {name: fields.pop(name) for name in list(fields) if name in PausedCell.__struct_fields__}
    dump = encode_dump(msgspec.structs.replace(decode_dump(cell.dump), **fields))
    return encode_cell(msgspec.structs.replace(cell, **{"dump": dump, **own}))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"code": "add(2)\nadd(3)"}, "call 1 is another one"),
        ({"code": "fetch(1)\nadd(3)"}, "call 1 is another one"),
        ({"code": "x = 1"}, "ended earlier"),
        ({"code": "1 / 0"}, "ended earlier"),
        ({"code": "await add(1)\nadd(3)"}, "call 1 is another one"),
        ({"made": []}, "was not called before"),
        ({"made": [MadeCall(b"x" * 16)] * 2}, "call 1 is another one"),
        ({"code": "history\nadd(1)\nadd(3)"}, "reads history"),
    ],
)
def test_code_that_diverges_on_replay_is_stopped(cell: Open, fields: dict[str, Any], what: str) -> None:
    """Ours: a replay that differs from the recorded digests is a hard failure."""
    code = "add(1)\nadd(3)"
    run = cell(code)
    run.start()
    run.answer(1, value(None))
    data = run.suspend()
    taken_up = cell(code, paused=changed(data, **fields), load={}.__getitem__)
    taken_up.start()
    end = ended(taken_up.answer(2, value(None)))
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.INTERRUPTED, True, None)
    assert "behaved differently when it was replayed" in end.error.message
    assert what in end.error.message


def test_address_dependent_order_is_detected_or_stable(cell: Open, elsewhere: Open) -> None:
    """Ours: a run that cannot be replayed must not continue with wrong results."""
    code = "add(id(object()))\nadd(2)"
    run = cell(code)
    run.start()
    run.answer(1, value(None))
    taken_up = elsewhere(code, paused=run.suspend())
    taken_up.start()
    end = ended(taken_up.answer(2, value(None)))
    assert end.error is None or "behaved differently when it was replayed" in end.error.message


def test_a_suspended_cell_of_another_python_version_is_refused(cell: Open) -> None:
    """Seed: a snapshot of another version has its own error code."""
    run = cell("add(1)")
    run.start()
    data = run.suspend()
    for fields in ({"version": "3.99"}, {"format": 99}, {"engine": "monty"}):
        with pytest.raises(SnapshotRefused) as refused:
            cell("add(1)", paused=changed(data, **fields))
        assert refused.value.code == Code.SNAPSHOT_VERSION_MISMATCH
    for broken in (data[:50], b"\x80", b"nonsense"):
        with pytest.raises(SnapshotRefused) as refused:
            cell("add(1)", paused=broken)
        assert refused.value.code == Code.SNAPSHOT_CORRUPT


def test_a_suspended_cell_occupies_no_process(cell: Open) -> None:
    """Ours: a pause consists of the state before it, the code, and the results."""
    run = cell("x = list(range(100000))\nadd(1)", seed="s", now_ms=5)
    run.start()
    data = run.suspend()
    assert len(data) < 1_000
    paused = decode_cell(data)
    assert paused is not None
    dump = decode_dump(paused.dump)
    assert (dump.code, dump.seed, paused.began_ms) == ("x = list(range(100000))\nadd(1)", "s", 5)
    assert (list(paused.calls), paused.at, len(paused.made)) == ([1], 1, 1)


def test_a_cell_that_has_ended_cannot_be_suspended(cell: Open) -> None:
    """Ours: an ended cell has nothing to resume."""
    run = cell("1")
    run.start()
    with pytest.raises(InvalidArgument):
        run.suspend()


def test_a_cell_whose_process_died_while_paused_resumes(cell: Open) -> None:
    """Ours: everything that a process holds can be recreated at any time."""
    run = cell("print('once')\na = add(1)\n[a, add(2)]")
    run.start()
    run.answer(1, value(1))
    worker = run._stepper.worker  # type: ignore[attr-defined]
    assert worker is not None
    worker.close()
    run._stepper._waiting_since = 0.0  # type: ignore[attr-defined]
    end = ended(run.answer(2, value(2)))
    assert (end.result, end.stdout, end.error) == ([1, 2], "once\n", None)


def test_output_above_the_cap_is_cut_even_across_a_suspension(cell: Open, elsewhere: Open) -> None:
    """Seed: output is kept up to a cap."""
    code = "print('a' * 90)\nadd(1)\nprint('b' * 90)"
    run = cell(code, limits={"max_stdout_bytes": 100})
    run.start()
    taken_up = elsewhere(code, paused=run.suspend(), limits={"max_stdout_bytes": 100})
    taken_up.start()
    end = ended(taken_up.answer(1, value(None)))
    assert (end.stdout, end.truncated) == ("a" * 90 + "\n" + "b" * 9, True)


def test_a_suspended_cell_that_is_stopped_still_reports_its_output(cell: Open, elsewhere: Open) -> None:
    """Ours: output that was reported is kept."""
    run = cell("print('before')\nadd(1)")
    run.start()
    taken_up = elsewhere("print('before')\nadd(1)", paused=run.suspend())
    taken_up.start()
    taken_up.stop(ErrorObject(code=Code.CANCELLED, message="enough"))
    end = ended(taken_up.answer(1, value(None)))
    assert (end.stdout, end.hard) == ("before\n", True)
