"""Where the functions run that a user passes to an agent or a runtime: instructions and deps factories.

A plain function runs in a thread, an async one on an event loop of its own thread (`tools/loop_threads.py`),
so that one that blocks delays no other session. An async function that is declared with `@runtime_loop` runs
on the runtime's loop, where the log names it if it blocks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from standfast.errors import InstructionsFailed, InvalidArgument
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.plugins.running import described
from standfast.plugins.runtime_services import RuntimeServices
from standfast.tools.context import RunContext
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


async def with_instructions(
    prompt: PromptLayer | None,
    function: Callable[[RunContext[Any]], Any],
    ctx: RunContext[Any],
    services: RuntimeServices,
) -> PromptLayer:
    """Return the turn's own layer of the prompt, with the text that *function* returns in front.

    The text is journaled with the turn's input: a turn that is resumed keeps the instructions it began with.
    """
    layer = prompt or PromptLayer()
    if PromptSlot.INTRO in layer.replaces:  # the turn replaces all instructions
        return layer
    timeout_s = services.settings.hook_timeout_s
    what = f"the function of the agent's instructions, for session {ctx.session_id},"
    try:
        async with asyncio.timeout(timeout_s) as limit:
            text = await call_user_function(function, ctx, what, services)
    except (Exception, SystemExit) as error:
        problem = f"it did not return within {timeout_s:g} s" if limit.expired() else described(error)
        raise InstructionsFailed(f"the function of the agent's instructions failed: {problem}") from error
    if not isinstance(text, str):
        raise InstructionsFailed(
            f"the function of the agent's instructions returned {type(text).__name__}, not a text"
        )
    said = PromptContribution(content=text, slot=PromptSlot.INTRO)
    return msgspec.structs.replace(layer, contributions=(said, *layer.contributions))


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
