"""Cells that were suspended when each engine had its own format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from standfast.errors import Code, SnapshotRefused
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellEnd, CellPause, CellRequest
from standfast.sandbox.cell_lifecycle import PausedCell, SteppedCells, decode_cell
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.sandbox.quickjs import state as quickjs_state
from standfast.sandbox.quickjs.cell_engine import QuickJsCells

pytestmark = pytest.mark.slow

COMMON = (
    "at", "calls", "ready", "calls_made", "now_ms", "stdout", "stderr", "truncated", "wall_used_ms",
    "memory_peak_bytes",
)  # fmt: skip


class Functions:
    """The function `add`, which takes any argument."""

    def __contains__(self, name: object, /) -> bool:
        return name == "add"

    def names(self) -> list[str]:
        return ["add"]

    def capability(self, name: str) -> Capability:
        return Capability(name=name, description="", input_schema={}, output_schema={})

    def is_async(self, name: str) -> bool:
        return False

    def suggest(self, name: str) -> str | None:
        return None


def _monty(cell: PausedCell, common: dict[str, Any]) -> bytes:
    at = cell.calls[cell.at] if cell.at is not None else None
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(cell.dump), **common, "at": at})


def _cpython(cell: PausedCell, common: dict[str, Any]) -> bytes:
    del common["calls"], common["ready"], common["now_ms"]
    record = {"made": cell.made, "answers": cell.answers, "began_ms": cell.began_ms}
    waiting = {"waiting": sorted(cell.calls)}
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(cell.dump), **common, **record, **waiting})


def _quickjs(cell: PausedCell, common: dict[str, Any]) -> bytes:
    del common["at"]
    dump = msgspec.msgpack.decode(cell.dump[quickjs_state._HEAD.size :])
    return quickjs_state._sealed(msgspec.msgpack.encode({**dump, **common}))


PLAIN = ("print('a')\nx = add(1)\ny = add(2)\nprint('b')\n[x, y]", "[x, y]")
GATHER = ("import asyncio\nr = await asyncio.gather(add(1), add(2), add(3))\nr", "r")
SCRIPT = ("const r = await Promise.all([add(1), add(2), add(3)])\nr", "r")
Packed = Callable[[PausedCell, dict[str, Any]], bytes]


@pytest.mark.parametrize(
    ("make", "packed", "code", "calls"),
    [
        (MontyCells, _monty, PLAIN, 2),
        (MontyCells, _monty, GATHER, 3),
        (CPythonCells, _cpython, PLAIN, 2),
        (CPythonCells, _cpython, GATHER, 3),
        (QuickJsCells, _quickjs, SCRIPT, 3),
    ],
    ids=["monty", "monty-gather", "cpython", "cpython-gather", "quickjs"],
)
def test_a_cell_suspended_in_the_former_format_resumes(
    make: Callable[[], SteppedCells], packed: Packed, code: tuple[str, str], calls: int
) -> None:
    """Ours: stored data stays readable."""
    cells = make()
    try:
        request = CellRequest(
            key="s", code=code[0], limits=SessionLimits(wall_ms=60_000), functions=Functions(), seed="s"
        )
        run = cells.open(request)
        run.start()
        assert isinstance(run.answer(1, CallAnswer(value=10)), CellPause)
        cell = decode_cell(run.suspend())
        assert cell is not None
        data = packed(cell, {name: getattr(cell, name) for name in COMMON})
        again = cells.open(msgspec.structs.replace(request, paused=data))
        assert again.start() == CellPause()
        for number in range(2, calls):
            assert isinstance(again.answer(number, CallAnswer(value=number * 10)), CellPause)
        end = again.answer(calls, CallAnswer(value=calls * 10))
        assert isinstance(end, CellEnd)
        assert (end.error, end.result) == (None, [number * 10 for number in range(1, calls + 1)])
        assert end.stdout == ("a\nb\n" if "print" in code[0] else "")
        with pytest.raises(SnapshotRefused) as refused:
            cells.open(msgspec.structs.replace(request, paused=data[:-5]))
        assert refused.value.code == Code.SNAPSHOT_CORRUPT
    finally:
        cells.close()
