"""One sandbox in memory for all tests of a module, and the tools its guests may call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from standfast import BlockingSandbox, CapabilityLimits, RunResult, ToolError, tool

Run = Callable[..., RunResult]


@tool(side_effect="read")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effect="read")
async def add_later(a: int, b: int = 1) -> int:
    """Add two numbers, later."""
    await asyncio.sleep(0)
    return a + b


@tool(side_effect="read")
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


class Meeting:
    """A tool that returns only once *size* calls to it run at the same time."""

    def __init__(self) -> None:
        self.barriers: dict[str, threading.Barrier] = {}
        self._lock = threading.Lock()

    def wait(self, place: str, size: int) -> int:
        with self._lock:
            barrier = self.barriers.setdefault(place, threading.Barrier(size))
        return barrier.wait(timeout=4)


_meeting = Meeting()


@tool(side_effect="read")
def meet(place: str, size: int, value: int = 0) -> int:
    """Return once all callers have arrived."""
    _meeting.wait(place, size)
    return value


_arrived: dict[str, asyncio.Event] = {}
_counts: dict[str, int] = {}


@tool(side_effect="read", loop="runtime")
async def meet_later(place: str, size: int, value: int = 0) -> int:
    """Return once all callers have arrived, without blocking the loop."""
    event = _arrived.setdefault(place, asyncio.Event())
    _counts[place] = _counts.get(place, 0) + 1
    if _counts[place] >= size:
        event.set()
    await asyncio.wait_for(event.wait(), 4)
    return value


@tool(side_effect="read")
def fail(kind: str = "ValueError") -> None:
    """Fail in the requested way."""
    if kind == "ToolError":
        raise ToolError("OUT_OF_STOCK", "none left")
    raise {"ValueError": ValueError, "KeyError": KeyError, "OSError": OSError}[kind]("told so")


@tool(side_effect="read", limits=CapabilityLimits(timeout_ms=60_000))
def hang(seconds: float = 30) -> str:
    """Take a long time."""
    time.sleep(seconds)
    return "slept"


@tool(side_effect="read", limits=CapabilityLimits(timeout_ms=60_000))
async def hang_later(seconds: float = 30) -> str:
    """Take a long time, without blocking the loop."""
    await asyncio.sleep(seconds)
    return "slept"


_calls: list[Any] = []


@tool(side_effect="read")
def note(value: Any = None) -> int:
    """Count calls."""
    _calls.append(value)
    return len(_calls)


GUEST_TOOLS = [add, add_later, echo, meet, meet_later, fail, hang, hang_later, note]


@pytest.fixture
def noted() -> list[Any]:
    """Return the arguments that `note` received in this test."""
    _calls.clear()
    return _calls


@pytest.fixture(scope="module")
def box() -> Iterator[BlockingSandbox]:
    with BlockingSandbox(tools=GUEST_TOOLS) as opened:
        yield opened


@pytest.fixture
def run(box: BlockingSandbox, sid: str) -> Run:
    """Return a function that runs code in a session of this test."""

    def go(code: str, **options: Any) -> RunResult:
        return box.run(code, session=options.pop("session", sid), **options)

    return go


@pytest.fixture
def value(run: Run) -> Callable[..., Any]:
    """Return a function that runs code that must succeed, and returns its result."""

    def go(code: str, **options: Any) -> Any:
        result = run(code, **options)
        assert result.status == "ok", result.error
        return result.result

    return go


@pytest.fixture
def code_of(run: Run) -> Callable[..., str]:
    """Return a function that runs code that must fail, and returns its error code."""

    def go(code: str, **options: Any) -> str:
        result = run(code, **options)
        assert result.error is not None, result.result
        return result.error.code

    return go
