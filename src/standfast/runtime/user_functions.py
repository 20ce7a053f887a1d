"""Where the functions run that a user passes to an agent or a runtime: instructions and deps factories.

A plain function runs in a thread, an async one on an event loop of its own thread (`tools/loop_threads.py`),
so that one that blocks delays no other session. An async function that is declared with `@runtime_loop` runs
on the runtime's loop, where the log names it if it blocks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from standfast.errors import InvalidArgument
from standfast.plugins.runtime_services import RuntimeServices
from standfast.tools.stalls import watched

F = TypeVar("F", bound=Callable[..., Any])


def runtime_loop(function: F) -> F:
    """Run an async *function* (instructions, a deps factory) on the runtime's event loop.

    For functions that use objects of that loop. If one blocks, every session waits.
    """
    if not is_async(function):
        raise InvalidArgument(
            f"@runtime_loop takes an async function or generator, not {function!r}",
            hint="a plain function runs in a thread, and needs no loop",
        )
    function.__standfast_loop__ = "runtime"  # type: ignore[attr-defined]
    return function


async def call_user_function(
    function: Callable[..., Any], given: object, what: str, services: RuntimeServices
) -> Any:
    """Return what *function* returns for *given*, awaited if need be. *what* names it in the log."""
    if on_runtime_loop(function):
        return await watched(function(given), services.stalls, what)
    if is_async(function):
        return await services.loops.run(lambda: function(given))
    made = await services.threads.run(lambda: function(given))
    return await services.loops.run(lambda: made) if inspect.isawaitable(made) else made


def on_runtime_loop(function: object) -> bool:
    return any(getattr(one, "__standfast_loop__", "") == "runtime" for one in (function, _called(function)))


def is_async(function: object) -> bool:
    """Whether calling *function* only makes a coroutine or an async generator, which cannot block."""
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (function, _called(function), getattr(function, "__wrapped__", None))
    )


def _called(function: object) -> object:
    """The method that a callable object is called by, or the function itself."""
    return function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
