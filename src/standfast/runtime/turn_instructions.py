"""Instructions that are a function: evaluated before a turn begins, and a part of the turn's input.

Rule: the text is journaled with the input, so a turn that is resumed elsewhere has the instructions that it
began with, whatever the function would return by then.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from standfast.errors import InstructionsFailed
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.plugins.running import described
from standfast.tools.stalls import StallWatch, watched

if TYPE_CHECKING:
    from standfast.tools.context import RunContext
    from standfast.tools.threads import DaemonThreads

_NO_LAYER = PromptLayer()


async def with_instructions(
    prompt: PromptLayer | None,
    function: Callable[[RunContext[Any]], Any],
    ctx: RunContext[Any],
    *,
    threads: DaemonThreads,
    stalls: StallWatch,
    timeout_s: float,
) -> PromptLayer:
    """The turn's own layer of the prompt, with the text that *function* returns in front."""
    layer = prompt or _NO_LAYER
    if PromptSlot.INTRO in layer.replaces:  # the turn says something else in place of all instructions
        return layer
    try:
        async with asyncio.timeout(timeout_s):
            text = await _called(function, ctx, threads, stalls)
    except (Exception, SystemExit) as error:
        raise InstructionsFailed(
            f"the function of the agent's instructions failed: {described(error)}"
        ) from error
    if not isinstance(text, str):
        raise InstructionsFailed(
            f"the function of the agent's instructions returned {type(text).__name__}, not a text"
        )
    said = PromptContribution(content=text, slot=PromptSlot.INTRO)
    return msgspec.structs.replace(layer, contributions=(said, *layer.contributions))


async def _called(
    function: Callable[..., Any], ctx: RunContext[Any], threads: DaemonThreads, stalls: StallWatch
) -> Any:
    """Call an async function here, watched, and any other in a thread, where it may block."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        what = f"the function of the agent's instructions, for session {ctx.session_id},"
        return await watched(function(ctx), stalls, what)
    made = await threads.run(lambda: function(ctx))
    return await made if inspect.isawaitable(made) else made
