"""Instructions that are a function: evaluated before a turn begins, and a part of the turn's input.

Rule: the text is journaled with the input, so a turn that is resumed elsewhere has the instructions that it
began with, whatever the function would return by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from standfast.errors import InstructionsFailed
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.plugins.running import described
from standfast.plugins.runtime_services import RuntimeServices
from standfast.runtime.user_functions import call_user_function
from standfast.tools.context import RunContext

_NO_LAYER = PromptLayer()


async def with_instructions(
    prompt: PromptLayer | None,
    function: Callable[[RunContext[Any]], Any],
    ctx: RunContext[Any],
    services: RuntimeServices,
) -> PromptLayer:
    """The turn's own layer of the prompt, with the text that *function* returns in front."""
    layer = prompt or _NO_LAYER
    if PromptSlot.INTRO in layer.replaces:  # the turn says something else in place of all instructions
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
