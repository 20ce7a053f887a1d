"""The runtime's services, for code that runs on another loop than the runtime's.

Rule: whatever a tool or a plugin awaits of the runtime is done on the runtime's loop, with the caller's
context variables. A cancellation of either side reaches the other. On the runtime's loop nothing is between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

from standfast.errors import ServiceUnavailable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


async def at_home(
    home: asyncio.AbstractEventLoop | None,
    function: Callable[P, Awaitable[R]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Await *function* on the loop *home*, or on the caller's if that is None."""
    if home is None or asyncio.get_running_loop() is home:
        return await function(*args, **kwargs)

    async def call() -> R:
        return await function(*args, **kwargs)

    work = call()
    try:
        future = asyncio.run_coroutine_threadsafe(work, home)
    except RuntimeError:
        work.close()
        raise ServiceUnavailable("the runtime", "its event loop has ended") from None
    return await asyncio.wrap_future(future)


def homed(home: asyncio.AbstractEventLoop, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """*function*, to be awaited on any loop."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await at_home(home, function, *args, **kwargs)

    return call


class HomeIterator(Generic[T]):
    """An async iterator of the loop *home*, to be read on any loop."""

    __slots__ = ("_home", "_items")

    def __init__(self, home: asyncio.AbstractEventLoop, items: AsyncIterator[T]) -> None:
        self._home = home
        self._items = items

    def __aiter__(self) -> HomeIterator[T]:
        return self

    async def __anext__(self) -> T:
        found: list[T] = await at_home(self._home, self._next)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def aclose(self) -> None:
        close: Any = getattr(self._items, "aclose", None)
        if close is not None:
            await at_home(self._home, close)

    async def _next(self) -> list[T]:
        """The next item, in a list that is empty at the end: no future takes a StopAsyncIteration."""
        async for item in self._items:
            return [item]
        return []
