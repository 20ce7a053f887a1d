"""Calls of what the host offers.

Theory of operation
-------------------
A plain call is sent, and the code stands until its answer comes. A call that the code awaits gives a `Later`
at once; when every task waits, the event loop says so, and the host answers one call at a time. Which of the
two a call is, its place tells: code is compiled so that a call whose value ends up awaited asks for a `Later`
(`program`), and a call that is directly awaited in other code shows it in the byte code.

Rules
-----
1. The order of calls and answers is all that the host records; nothing here depends on anything else.
2. Only the main thread calls: two threads would make no order.
"""

from __future__ import annotations

import builtins
import opcode
import sys
from collections.abc import Coroutine, Generator
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final, NoReturn

from .clock import Surroundings
from .printing import Printer
from .values import Foreign, to_json
from .wire import Wire, encode

SLEEP: Final = "sleep"
_MAX_CALL: Final = 16 << 20
_ROOM: Final = 400
"""How many frames deeper than guest code this file may go."""
_GET_AWAITABLE: Final = opcode.opmap["GET_AWAITABLE"]
_CACHE: Final = opcode.opmap["CACHE"]


class Bridge:
    """The guest's side of its calls."""

    def __init__(self, wire: Wire, around: Surroundings, printer: Printer) -> None:
        self._wire = wire
        self._around = around
        self._printer = printer
        self._main = get_ident()
        self._awaited: dict[int, Later] = {}
        self._places: dict[tuple[int, int], tuple[CodeType, bool]] = {}
        self._last = 0
        self.names: frozenset[str] = frozenset()

    def begin(self, names: frozenset[str]) -> None:
        """A new run, which may call these."""
        self.names = names
        self._last = 0
        self._awaited.clear()
        self._places.clear()

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call and stand until it is answered."""
        depth = self._enter(name)
        try:
            text = self._told(name, args, kwargs, "false")
            if self._printer.holds:
                self._printer.post()
            answer = self._wire.ask(text)
            self._around.pass_to(answer["now"])
            if "v" in answer:
                return answer["v"]
            raise _exception(*answer["x"])
        finally:
            sys.setrecursionlimit(depth)

    def call_later(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Later:
        """Make a call whose answer is awaited."""
        depth = self._enter(name)
        try:
            text = self._told(name, args, kwargs, "true")
            self._printer.post()
            self._wire.post(text)
            made = self._awaited[self._last] = Later(self._last)
            return made
        finally:
            sys.setrecursionlimit(depth)

    def settle_one(self) -> None:
        """Every task waits: have one call answered."""
        answer = self._ask('{"t":"blocked"}')
        made = self._awaited.pop(answer["id"], None)
        if made is not None:
            made.settle(answer)

    def load(self, name: str) -> dict[str, Any]:
        """Ask for a value by its name."""
        depth = self._enter(None)
        try:
            return self._ask(f'{{"t":"load","name":{encode(name)}}}')
        finally:
            sys.setrecursionlimit(depth)

    def _ask(self, text: str) -> dict[str, Any]:
        self._printer.post()
        answer = self._wire.ask(text)
        self._around.pass_to(answer["now"])
        return answer

    def is_awaited(self, frame: FrameType) -> bool:
        """Whether the value of the call that *frame* is making is awaited right there."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = (code, _awaits_next(code.co_code, frame.f_lasti))
        return known[1]

    def _enter(self, name: str | None) -> int:
        """Check that a call can be made here, and make room on the stack for making it."""
        if get_ident() != self._main:
            raise RuntimeError("only the main thread can call the host; call it there and pass the value on")
        if name is not None and name not in self.names and name != SLEEP:
            raise NameError(f"name {name!r} is not defined", name=name)
        depth = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + _ROOM)
        return depth

    def _told(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], later: str) -> str:
        """A call as a message. What cannot be sent is told in its place."""
        self._last += 1
        head = f'{{"t":"call","id":{self._last},"name":{encode(name)},"later":{later}'
        try:
            text = f'{head},"args":{to_json(args)},"kwargs":{to_json(kwargs) if kwargs else "{}"}}}'
            if len(text) <= _MAX_CALL:
                return text
            limit = f"the limit is {_MAX_CALL} bytes as JSON"
            return f'{head},"problem":{encode(limit)},"too_large":true}}'
        except Foreign as foreign:
            return f'{head},"problem":{encode(str(foreign))}}}'


class Tool:
    """A function of the host, as code sees it."""

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
    """The answer to a call, to be awaited, as often as one likes."""

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
            from asyncio import get_running_loop

            future = get_running_loop().create_future()
            self._waiting.append(future)
            yield from future
        assert self._answer is not None
        return _value_of(self._answer)

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


def share(bridge: Bridge) -> None:
    """Make this the bridge of tools that come out of a state."""
    _bridges[:] = [bridge]


def tool_named(name: str) -> Tool:
    return Tool(name, _bridges[0])


def later_of(function: Any) -> Any:
    """What to call in the place of *function* where the value is awaited."""
    if type(function) is Tool:
        return function.later
    if function is map:
        return lambda mapped, *sources: map(later_of(mapped), *sources)
    return function


def _value_of(answer: dict[str, Any]) -> Any:
    if "x" in answer:
        raise _exception(*answer["x"])
    return answer.get("v")


def _exception(kind: str, message: str) -> BaseException:
    """The exception that a call failed with; one that Python does not have is a RuntimeError."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        try:
            return found(message)
        except TypeError:  # some want more than a message
            pass
    return RuntimeError(message)


def _awaits_next(code: bytes, at: int) -> bool:
    at += 2
    while at < len(code) and code[at] == _CACHE:
        at += 2
    return at < len(code) and code[at] == _GET_AWAITABLE
