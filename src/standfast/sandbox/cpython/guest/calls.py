"""Guest code's calls of host functions, and the event loop that waits for their answers and for nothing else.

A plain call blocks the code until the host answers it. A call that the code awaits returns a `Later`
immediately; when every task waits, the event loop reports this to the host, which answers one call at a time.
Where a call is written decides which kind it is: a call whose value is eventually awaited is compiled to
return a `Later` (`program`); in other code, the byte code shows whether the call is awaited directly. A task
that waits for a time makes a call named `sleep`, so that the host determines how much time passes.

Rules
-----
1. The host records only the order of calls and answers, so nothing here may depend on anything else.
2. Only the main thread makes calls: calls of several threads would have no defined order.
3. The loop takes one answer at a time, and runs everything that the answer unblocks before the next one.
4. A function passed to `run_in_executor` runs immediately, in the main thread, which keeps the order defined.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import opcode
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from .channel import HostChannel, NotJson, Printer, encode, to_json
from .clock import RunClock

SLEEP: Final = "sleep"
_MAX_CALL: Final = 16 << 20
_ROOM: Final = 400
"""The number of stack frames that this module may use above those of guest code."""
_MAX_FRAMES: Final = 100
"""The number of stack frames to search for the line that made a call."""
_GET_AWAITABLE: Final = opcode.opmap["GET_AWAITABLE"]
_CACHE: Final = opcode.opmap["CACHE"]
_THREAD_PATIENCE_S: Final = 0.05
_TICK_S: Final = 0.001
"""The resolution of the host's clock, which counts milliseconds."""
_real_monotonic: Final = time.monotonic


class Bridge:
    """The guest's end of its calls of host functions."""

    def __init__(self, channel: HostChannel, clock: RunClock, printer: Printer) -> None:
        self._channel = channel
        self._clock = clock
        self._printer = printer
        self._main = get_ident()
        self._awaited: dict[int, Later] = {}
        self._places: dict[tuple[int, int], tuple[CodeType, bool]] = {}
        self._last = 0
        self._filename = ""
        self.names: frozenset[str] = frozenset()

    def begin(self, names: frozenset[str], filename: str) -> None:
        """Start a run whose code is compiled under *filename* and may call the functions *names*."""
        self.names = names
        self._filename = filename
        self._last = 0
        self._awaited.clear()
        self._places.clear()

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call, wait for its answer, and return the value or raise the exception in it."""
        depth = self._enter(name)
        try:
            text = self._message(name, args, kwargs, "false")
            if self._printer.holds:
                self._printer.post()
            answer = self._channel.ask(text)
            self._clock.move_to(answer["now"])
            if "v" in answer:
                return answer["v"]
            raise _exception(*answer["x"])
        finally:
            sys.setrecursionlimit(depth)

    def call_later(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Later:
        """Make a call, and return a `Later` for its answer."""
        depth = self._enter(name)
        try:
            text = self._message(name, args, kwargs, "true")
            self._printer.post()
            self._channel.post(text)
            made = self._awaited[self._last] = Later(self._last)
            return made
        finally:
            sys.setrecursionlimit(depth)

    def settle_one(self) -> None:
        """Report that every task waits, and settle the call that the host answers."""
        answer = self._ask('{"t":"blocked"}')
        made = self._awaited.pop(answer["id"], None)
        if made is not None:
            made.settle(answer)

    def load(self, name: str) -> dict[str, Any]:
        """Request the value of a name from the host, and return the host's response."""
        depth = self._enter(None)
        try:
            return self._ask(f'{{"t":"load","name":{encode(name)}}}')
        finally:
            sys.setrecursionlimit(depth)

    def _ask(self, text: str) -> dict[str, Any]:
        self._printer.post()
        answer = self._channel.ask(text)
        self._clock.move_to(answer["now"])
        return answer

    def is_awaited(self, frame: FrameType) -> bool:
        """Return whether *frame* directly awaits the value of the call that it is making."""
        code, at = frame.f_code, frame.f_lasti
        known = self._places.get((id(code), at))
        if known is None:
            byte_code, after = code.co_code, at + 2
            while after < len(byte_code) and byte_code[after] == _CACHE:
                after += 2
            awaits = after < len(byte_code) and byte_code[after] == _GET_AWAITABLE
            known = self._places[id(code), at] = (code, awaits)
        return known[1]

    def _enter(self, name: str | None) -> int:
        """Check that a call is allowed here, raise the recursion limit, and return the previous limit."""
        if get_ident() != self._main:
            raise RuntimeError("only the main thread can call the host; call it there and pass the value on")
        if name is not None and name not in self.names and name != SLEEP:
            raise NameError(f"name {name!r} is not defined", name=name)
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + _ROOM)
        return depth

    def _message(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], later: str) -> str:
        """Encode a call as a message; if its arguments cannot be sent, the message has the reason instead."""
        self._last += 1
        line = self._line()
        head = f'{{"t":"call","id":{self._last},"name":{encode(name)},"later":{later},"line":{line}'
        try:
            text = f'{head},"args":{to_json(args)},"kwargs":{to_json(kwargs) if kwargs else "{}"}}}'
            if len(text) <= _MAX_CALL:
                return text
            limit = f"the limit is {_MAX_CALL} bytes as JSON"
            return f'{head},"problem":{encode(limit)},"too_large":true}}'
        except NotJson as problem:
            return f'{head},"problem":{encode(str(problem))}}}'

    def _line(self) -> int:
        """Return the innermost line of this run's code on the stack; 0 if there is none."""
        frame: FrameType | None = sys._getframe(2)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_filename == self._filename:
                return frame.f_lineno or 0
            frame = frame.f_back
        return 0


class GuestTool:
    """A host function, as guest code sees it."""

    __slots__ = ("__name__", "__qualname__", "_bridge")

    def __init__(self, name: str, bridge: Bridge) -> None:
        self.__name__ = self.__qualname__ = name
        self._bridge = bridge

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._bridge.is_awaited(sys._getframe(1)):
            return self._bridge.call_later(self.__name__, args, kwargs)
        return self._bridge.call(self.__name__, args, kwargs)

    def later(self, /, *args: Any, **kwargs: Any) -> Later:
        return self._bridge.call_later(self.__name__, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return tool_named, (self.__name__,)

    def __repr__(self) -> str:
        return f"<function {self.__name__}>"


class Later(Coroutine[Any, Any, Any]):
    """The future answer to a call; it can be awaited any number of times."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._answer: dict[str, Any] | None = None
        self._waiting: list[Any] = []
        self._steps: Generator[Any, Any, Any] | None = None

    def is_settled(self) -> bool:
        return self._answer is not None

    def settle(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._answer is None:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            yield from future
        assert self._answer is not None
        if "x" in self._answer:
            raise _exception(*self._answer["x"])
        return self._answer.get("v")

    def send(self, value: Any, /) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle the answer to a call")


_bridges: list[Bridge] = []


def tool_named(name: str) -> GuestTool:
    """Return a tool by its name. Pickled states refer to this function, so it must keep its name."""
    return GuestTool(name, _bridges[0])


def later_of(function: Any) -> Any:
    """Return the callable to use instead of *function* where the value of the call is awaited."""
    if type(function) is GuestTool:
        return function.later
    if function is map:
        return lambda mapped, *sources: map(later_of(mapped), *sources)
    return function


def _exception(kind: str, message: str) -> BaseException:
    """Return the exception that a call failed with; a type that Python lacks becomes a RuntimeError."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        with contextlib.suppress(TypeError):  # some types require more arguments than a message
            return found(message)
    return RuntimeError(message)


# ── the event loop ───────────────────────────────────────────────────────────────────────────────────


class HostLoop(asyncio.BaseEventLoop):
    """An event loop without a selector of its own."""

    def __init__(self, bridge: Bridge, clock: RunClock) -> None:
        super().__init__()
        self._bridge = bridge
        self._clock = clock
        self._reached = 0.0
        self._alarms: dict[int, tuple[float, Later]] = {}
        self._woken = threading.Event()
        self._selector = self
        self._clock_resolution = _TICK_S  # a float of seconds since 1970 has no finer resolution

    def time(self) -> float:
        return max(self._clock.seconds(), self._reached)

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until a task can continue.

        The base class calls this after running everything that was ready.
        """
        if timeout is not None and timeout <= 0:
            return []
        if threading.active_count() > 1 and self._wait_for_threads():
            return []
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + _ROOM)
        try:
            moments: list[Any] = self._scheduled  # type: ignore[attr-defined]
            if moments and all(at != moments[0]._when for at, _ in self._alarms.values()):
                when = moments[0]._when  # let the host wait for the next scheduled time
                alarm = self._bridge.call_later(SLEEP, (), {"seconds": max(0.0, when - self.time())})
                self._alarms[alarm.number] = (when, alarm)
            self._bridge.settle_one()
            for number, (when, alarm) in list(self._alarms.items()):
                if alarm.is_settled():
                    del self._alarms[number]
                    self._reached = max(self._reached, when)
        finally:
            sys.setrecursionlimit(depth)
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _wait_for_threads(self) -> bool:
        """Wait briefly for other threads; return whether one of them woke the loop."""
        end = _real_monotonic() + _THREAD_PATIENCE_S
        while threading.active_count() > 1 and _real_monotonic() < end:
            if self._woken.wait(0.005):
                break
        woken = self._woken.is_set()
        self._woken.clear()
        return woken

    def _write_to_self(self) -> None:
        self._woken.set()

    def _process_events(self, events: list[Any]) -> None:
        """Do nothing: answers are settled where they are awaited."""


def install(bridge: Bridge, clock: RunClock) -> None:
    """Make asyncio use `HostLoop`, and let `tool_named` use *bridge*."""

    class HostPolicy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            return HostLoop(bridge, clock)

    class YieldOnce:
        def __await__(self) -> Generator[None]:
            yield None

    async def sleep(delay: float, result: Any = None) -> Any:
        if delay <= 0:
            await YieldOnce()
        else:
            await bridge.call_later(SLEEP, (), {"seconds": float(delay)})
        return result

    _bridges[:] = [bridge]
    asyncio.sleep = asyncio.tasks.sleep = sleep
    asyncio.set_event_loop_policy(HostPolicy())
