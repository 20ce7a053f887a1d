"""Accepted state can be loaded again, in a new process and under the limits it was created with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from standfast.errors import Code
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]
LIMITS = {"memory_mb": 24}
GROWTH = {
    "large keys": "d{n} = {{str(i) * 20: i for i in range(25_000)}}\nlen(d{n})",
    "lists": "d{n} = [[i] for i in range(40_000)]\nlen(d{n})",
    "one number many times": "d{n} = [100_000 + {n}] * 150_000\nlen(d{n})",
    "one string": "d{n} = str({n}) * (5 << 20)\nlen(d{n})",
    "objects": "class C:\n    def __init__(self, i): self.a = self.b = self.c = i\n"
    "d{n} = [C(i) for i in range(20_000)]\nlen(d{n})",
    "functions": "d{n} = [(lambda: {n}) for i in range(5_000)]\nlen(d{n})",
}


def _run(cells: CPythonCells, request: CellRequest) -> CellEnd:
    end = cells.open(request).start()
    assert isinstance(end, CellEnd)
    return end


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", GROWTH)
def test_every_stored_state_can_be_loaded_again(
    engine: CPythonCells, other: CPythonCells, request_of: Request, kind: str
) -> None:
    """Bug: two runs ended ok, and in a new process every run of the session ended with MEMORY_EXCEEDED."""
    state, kept = b"", 0
    while True:
        end = _run(engine, request_of(GROWTH[kind].format(n=kept), key=kind, state=state, limits=LIMITS))
        if end.error is not None:
            break
        assert end.state is not None
        assert kept < 20, "the limit was never reached"
        state, kept = end.state, kept + 1
        other.forget(kind)
        assert _run(other, request_of("len(d0)", key=kind, state=state, limits=LIMITS)).error is None
    assert kept > 1
    assert (end.error.code, end.hard, end.state) == (Code.MEMORY_EXCEEDED, True, None)
    engine.forget(kind)
    smaller = _run(engine, request_of("del d0\n'freed'", key=kind, state=state, limits=LIMITS))
    assert (smaller.result, smaller.error) == ("freed", None)


def test_a_state_that_needs_more_memory_to_load_is_not_stored(
    engine: CPythonCells, request_of: Request
) -> None:
    """Ours: an object's size in memory does not determine its size when it is loaded."""
    code = "class Growing:\n    def __reduce__(self):\n        return bytearray, (40 << 20,)\nx = Growing()"
    end = _run(engine, request_of(code, key="growing", limits=LIMITS))
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.MEMORY_EXCEEDED, True, None)
    assert end.error.message == "the session's variables cannot be stored and loaded within 24 MB"


def test_a_large_state_that_fails_to_load_is_not_stored(engine: CPythonCells, request_of: Request) -> None:
    """Bug: large states were not tested for loading, and the session was lost with its process."""
    code = (
        "class Stuck:\n    def __setstate__(self, state):\n        raise ValueError('stuck')\n"
        "x = Stuck()\nx.a = 1\ny = 'a' * (3 << 20)"
    )
    end = _run(engine, request_of(code, key="stuck"))
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.SERIALIZE_ERROR, True, None)
    assert "ValueError: stuck" in end.error.message


def test_a_run_can_be_stopped_while_its_state_is_test_loaded(
    engine: CPythonCells, request_of: Request
) -> None:
    """Ours: loading an object is subject to the limits of the run that created it."""
    code = (
        "class Endless:\n    def __setstate__(self, state):\n        while True: pass\n"
        "x = Endless()\nx.a = 1\ny = 'a' * (3 << 20)"
    )
    end = _run(engine, request_of(code, key="endless", limits={"wall_ms": 1_500}))
    assert end.error is not None
    assert (end.error.code, end.hard, end.state) == (Code.TIMEOUT_WALL, True, None)
    assert _run(engine, request_of("1", key="endless")).result == 1


def test_loading_does_not_count_towards_the_cpu_limit(
    engine: CPythonCells, other: CPythonCells, request_of: Request
) -> None:
    """Ours: a session that is slow to load can still run code with a small time limit."""
    state = _run(engine, request_of("d = {str(i): [i] for i in range(100_000)}", key="slow")).state
    assert state is not None
    end = _run(other, request_of("len(d)", key="slow", state=state, limits={"cpu_ms": 20}))
    assert end.result == 100_000


def test_a_state_too_large_for_a_run_is_reported_as_such(
    engine: CPythonCells, other: CPythonCells, request_of: Request
) -> None:
    """Ours: the error says that the run has less memory than the session needs."""
    state = _run(engine, request_of("d = [[i] for i in range(200_000)]", key="small")).state
    assert state is not None
    for memory_mb in (1, 8):
        end = _run(other, request_of("1", key="small", state=state, limits={"memory_mb": memory_mb}))
        assert end.error is not None
        assert (end.error.code, end.hard) == (Code.MEMORY_EXCEEDED, True)
        assert end.error.message == f"the session's state cannot be loaded within {memory_mb} MB"
    assert _run(other, request_of("len(d)", key="small", state=state)).result == 200_000


def test_code_cannot_reset_its_limits(engine: CPythonCells, other: CPythonCells, request_of: Request) -> None:
    """Ours: the guest reports only once that it has loaded the session, before the code runs."""
    code = (
        "import gc, os\nwire = next(o for o in gc.get_objects() if type(o).__name__ == 'HostChannel')\n"
        'os.write(wire._handle, wire.framed(b\'{"t":"loaded"}\'))\nwhile True: pass'
    )
    state = _run(engine, request_of("x = 1", key="anew")).state
    for cells, before in ((engine, state), (other, state), (other, b"")):
        end = _run(cells, request_of(code, key="anew", state=before))
        assert end.error is not None
        assert (end.error.code, end.hard) == (Code.INTERRUPTED, True)
        assert "sent an invalid message" in end.error.message
