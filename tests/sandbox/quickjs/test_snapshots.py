"""Suspended cells and stored sessions: other processes resume them, and no bytes can do harm."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, ErrorObject, SnapshotRefused, StandfastError
from standfast.model.capability import GuestException
from standfast.ports.code_engine import CallAnswer, CellCall, CellPause
from standfast.sandbox.cell_lifecycle import decode_cell, encode_cell
from standfast.sandbox.quickjs import state as stored
from standfast.sandbox.quickjs.frames import Image

pytestmark = pytest.mark.slow

Cells = Any


def value(of: Any, at_ms: int = 0) -> CallAnswer:
    return CallAnswer(value=of, at_ms=at_ms)


def test_a_cell_suspended_in_the_middle_of_an_expression_resumes_elsewhere(
    cells: Cells, other: Cells
) -> None:
    """Seed: a cell that waits for a person outlives its process."""
    state = cells.kept("const base = 40; class P { #n = 1; get n() { return this.#n } }")
    code = """
console.log('before');
const list = [new P(), ...(function* () { yield new P() })()];
const total = list.map(p => p.n).reduce((a, b) => a + b) + (await add(1)) * (await add(2)) + base;
console.log('after', list.length);
total
"""
    run = cells.open(code, state=state)
    assert cells.made(run.start()) == [(1, "add")]
    once = other.open(code, state=state, paused=run.suspend())
    assert once.start() == CellPause()
    assert other.made(once.answer(1, value(3))) == [(2, "add")]
    twice = cells.open(code, state=state, paused=once.suspend())
    twice.start()
    end = cells.ended(twice.answer(2, value(5)))
    assert (end.result, end.stdout, end.calls_made) == (57, "before\nafter 2\n", 2)
    assert cells.engine.names(end.state) == ["P", "base", "list", "total"]


def test_parallel_calls_can_be_suspended_halfway(cells: Cells, other: Cells) -> None:
    """Seed: parallel calls are approved one by one, over days."""
    code = "await Promise.all([add(1), add(2), new Promise(done => setTimeout(() => done('slept'), 3000))])"
    run = cells.open(code)
    assert cells.made(run.start()) == [(1, "add"), (2, "add"), (3, "sleep")]
    assert run.answer(2, value("two")) == CellPause()
    taken_up = other.open(code, paused=run.suspend())
    taken_up.start()
    assert taken_up.answer(3, CallAnswer()) == CellPause()
    assert other.ended(taken_up.answer(1, value("one"))).result == ["one", "two", "slept"]


def test_a_suspended_cell_keeps_the_codes_of_its_errors(cells: Cells, other: Cells) -> None:
    """Ours: an exception that is thrown again later keeps its error code."""
    code = "let kept: any;\ntry { await add(1) } catch (error) { kept = error }\nawait add(2);\nthrow kept"
    run = cells.open(code)
    run.start()
    error = ErrorObject(code="OUT_OF_STOCK", message="none left")
    run.answer(1, CallAnswer(exception=GuestException(type="ValueError", message="none left"), error=error))
    taken_up = other.open(code, paused=run.suspend())
    taken_up.start()
    end = other.ended(taken_up.answer(2, value(None)))
    assert end.error is not None
    assert (end.error.code, end.error.span.line) == ("OUT_OF_STOCK", 2)


def test_the_inputs_of_a_suspended_cell_end_with_it(cells: Cells, other: Cells) -> None:
    """Ours: a suspension does not change what is kept."""
    code = "const x = data.length + later.length;\nawait add(x);\ndata.length"
    run = cells.open(code, inputs={"data": "abc"}, load={"later": "de"}.__getitem__)
    assert isinstance(run.start(), CellPause)
    taken_up = other.open(code, paused=run.suspend())
    taken_up.start()
    end = other.ended(taken_up.answer(1, value(None)))
    assert end.result == 3
    assert other.engine.names(end.state) == ["x"]
    assert other.fails("data", state=end.state).message == "ReferenceError: data is not defined"
    assert other.fails("later", state=end.state).message == "ReferenceError: later is not defined"


def test_a_state_is_small_and_stays_small(cells: Cells) -> None:
    """Ours: a state grows with its contents, not with the number of cells."""
    state = b""
    for number in range(60):
        state = cells.kept(
            f"const n = {number}; const last = [n, n, n]; function f() {{ return n }}", state=state
        )
    assert len(state) < 40_000
    assert cells.value("[last, f()]", state=state) == [[59, 59, 59], 59]


def test_garbage_is_not_part_of_a_state(cells: Cells) -> None:
    """Ours: deleted values are neither stored nor recoverable."""
    state = cells.kept("let s = 'secret'.repeat(100000); s.length; s = ''; 1")
    assert len(state) < 60_000
    assert b"secretsecretsecret" not in state


def test_a_large_state_is_restored_completely(cells: Cells, other: Cells) -> None:
    """Ours: a session may hold as much as its limit permits."""
    state = cells.kept("const all = Array.from({length: 100000}, (_, n) => ({ n, text: 'item ' + n }))")
    assert len(state) > 1_000_000
    assert other.value("[all.length, all[99999].text, all[5].n]", state=state) == [100000, "item 99999", 5]


def test_a_cell_that_has_ended_cannot_be_suspended(cells: Cells) -> None:
    """Ours: an ended cell has nothing to resume."""
    run = cells.open("1")
    run.start()
    with pytest.raises(StandfastError):
        run.suspend()


# ── other builds, damage, attacks ────────────────────────────────────────────────────────────────────


def refusal(cells: Cells, **options: Any) -> str:
    with pytest.raises(SnapshotRefused) as refused:
        cells.open("await add(1)", **options).start()
    return str(refused.value.code)


def test_a_state_of_another_build_is_refused(cells: Cells) -> None:
    """Seed: a snapshot of another version has its own error code."""
    state = cells.kept("const x = 1")
    run = cells.open("await add(1)")
    run.start()
    paused = run.suspend()
    assert refusal(cells, state=state[:4] + bytes(16) + state[20:]) == Code.SNAPSHOT_VERSION_MISMATCH
    cell = decode_cell(paused)
    assert cell is not None
    dump = cell.dump[:4] + bytes(16) + cell.dump[20:]
    other_build = encode_cell(msgspec.structs.replace(cell, dump=dump))
    assert refusal(cells, paused=other_build) == Code.SNAPSHOT_VERSION_MISMATCH
    for name, data in (("state", state), ("paused", paused)):
        for broken in (data[:50], data[:-1], b"\x80", data[:40] + b"\xff" + data[41:], b"SFQJ"):
            assert refusal(cells, **{name: broken}) == Code.SNAPSHOT_CORRUPT
    with pytest.raises(SnapshotRefused):
        cells.engine.names(state[:-1])


def test_an_image_with_another_initial_memory_is_refused(cells: Cells) -> None:
    """Ours: a build always creates the same initial memory."""
    known = stored.decode_state(cells.kept("const x = 1"))
    forged = stored.QuickJsState(Image(bytes(16), known.image.data), known.names, known.lines, known.free)
    assert refusal(cells, state=stored.encode_state(forged)) == Code.SNAPSHOT_VERSION_MISMATCH


def forged(state: bytes, data: bytes) -> bytes:
    """Return a state with a replaced memory and a matching checksum."""
    known = stored.decode_state(state)
    image = Image(known.image.boot, data)
    return stored.encode_state(stored.QuickJsState(image, known.names, known.lines, known.free))


def outcome(cells: Cells, state: bytes) -> str:
    """Return the error code of a cell that starts from a state, or None if it succeeds."""
    try:
        end = cells.run("x.length", state=state, key="forged", limits={"cpu_ms": 200})
    except StandfastError as refused:
        return str(refused.code)
    return str(end.error.code) if end.error is not None else ""


@pytest.mark.parametrize("size", [0, 1, 65_535, 2**31, 2**32 - 65_536])
def test_an_invalid_image_is_refused(cells: Cells, size: int) -> None:
    """Ours: whatever is stored, nothing is written outside a guest."""
    state = cells.kept("const x = [1]")
    good = stored.decode_state(state).image.data
    refused = {Code.SNAPSHOT_CORRUPT, Code.MEMORY_EXCEEDED}
    assert outcome(cells, forged(state, size.to_bytes(4, "little") + good[4:])) in refused
    for data in (good[:4] + b"\xff\xff\xff\x7f" + good[8:], good[:100], good[:8] + bytes(len(good) - 8)):
        assert outcome(cells, forged(state, data)) == Code.SNAPSHOT_CORRUPT
    assert cells.value("x", state=state) == [1]


def test_a_memory_image_that_was_tampered_with_does_no_harm(cells: Cells) -> None:
    """Seed: the host survives any bytes in a state."""
    state = cells.kept("const x = [1, 2, 3]; function f(n: number) { return n + 1 }")
    good = stored.decode_state(state).image.data
    chance = random.Random(7)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.choice((1, 20, 400))):
            at = chance.randrange(len(data) // 3, len(data))
            data[at] ^= 1 << chance.randrange(8)
        outcome(cells, forged(state, bytes(data)))
    assert cells.value("x.map(f).join()", state=state) == "2,3,4"


# ── determinism ──────────────────────────────────────────────────────────────────────────────────────

CHANCE = """
await add(Math.random(), Math.random(), crypto.randomUUID());
const bytes = crypto.getRandomValues(new Uint8Array(4));
await fetchIt(Date.now(), new Date().toISOString(), performance.now(), Array.from(bytes));
await add(Math.random(), new Date().getTimezoneOffset(), [3, 1, 2].sort(() => 0.5 - Math.random()));
await add(Object.keys({ b: 1, a: 2, 1: 3 }), String(new Date(0)), crypto.randomUUID());
"""


def journey(cells: Cells, *, suspend: bool = False, **options: Any) -> list[CellCall]:
    """Return all calls that the same cell makes when given the same results."""
    run = cells.open(CHANCE, **options)
    step = run.start()
    calls: list[CellCall] = []
    while isinstance(step, CellPause):
        calls += step.calls
        if suspend:
            run = cells.open(CHANCE, paused=run.suspend(), **options)
            run.start()
        step = run.answer(len(calls), value(None, at_ms=1_700_000_000_000 + 61_000 * len(calls)))
    assert step.error is None
    return calls


def test_the_same_cell_makes_the_same_calls_in_another_process(cells: Cells, other: Cells) -> None:
    """Seed: a cell that is rerun after a crash makes the same calls."""
    options: dict[str, Any] = {"now_ms": 1_700_000_000_000, "seed": "turn-7"}
    calls = journey(cells, **options)
    assert len(calls) == 4
    assert journey(other, **options) == calls
    assert journey(other, suspend=True, **options) == calls
    assert calls[1].args[:2] == [1700000061000, "2023-11-14T22:14:21.000Z"]
    assert len({calls[0].args[2], calls[3].args[2]}) == 2
    assert journey(other, now_ms=1_700_000_000_000, seed="turn-8")[0] != calls[0]


def test_a_cell_uses_the_same_number_of_instructions_every_time(cells: Cells, other: Cells) -> None:
    """Ours: fuel does not depend on the machine or its load."""
    code = "let n = 0; for (let i = 0; i < 10000; i++) n += i % 7; n"
    state = cells.kept("const x = 1")
    found = {
        one.run(code, state=state, key=f"fuel{at}").instructions
        for at, one in enumerate((cells, other, cells))
    }
    assert len(found) == 1


def test_time_advances_with_answers_and_never_goes_back(cells: Cells) -> None:
    """Ours: a cell's clock follows its journal."""
    run = cells.open(
        "const a = Date.now(); await add(); const b = Date.now(); await add(); [a, b, Date.now()]",
        now_ms=5_000,
    )
    run.start()
    run.answer(1, value(None, at_ms=9_500))
    assert cells.ended(run.answer(2, value(None, at_ms=7_000))).result == [5000, 9500, 9500]


def test_random_numbers_continue_from_cell_to_cell(cells: Cells) -> None:
    """Ours: two cells of a session draw different numbers, even from the same seed."""
    code = "globalThis.ids = [...(globalThis.ids ?? []), crypto.randomUUID()]; ids"
    state = cells.kept(code)
    first, second = cells.value(code, state=state)
    assert first != second


# ── the process ──────────────────────────────────────────────────────────────────────────────────────

ORPHAN = """
import sys, threading
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CellRequest
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

class None_:
    def names(self): return []
    def __contains__(self, name): return False

cells = QuickJsCells(capacity=1)
limits = SessionLimits(cpu_ms=600_000, wall_ms=600_000)
ask = lambda code: CellRequest(key="s", code=code, limits=limits, functions=None_())
cells.open(ask("1")).start()
print(cells._workers._warm["s"].pid, flush=True)
threading.Thread(target=cells.open(ask("while (true) {}")).start, daemon=True).start()
sys.stdin.read()
"""


def test_a_computing_worker_exits_when_its_host_dies() -> None:
    """Ours: a killed host leaves no process behind that uses the CPU."""
    host = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    host.kill()
    host.wait()
    host.stdout.close()
    assert host.stdin is not None
    host.stdin.close()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
    raise AssertionError("the worker still runs")


def test_a_suspended_cell_is_plain_data(cells: Cells) -> None:
    """Ours: any program that knows the format can read a suspended cell."""
    run = cells.open("await add(1)")
    run.start()
    cell = decode_cell(run.suspend())
    assert cell is not None
    assert (cell.calls_made, cell.calls) == (1, {1: 1})
    assert msgspec.msgpack.encode(cell)
