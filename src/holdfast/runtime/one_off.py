"""Turns without a runtime: one is made for the turn, in memory, and closed after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import NobodyWaits
from holdfast.model.message import UserMessage
from holdfast.model.outcome import Waiting
from holdfast.model.usage import UsageLimits
from holdfast.runtime.agent import Agent, checked_limits
from holdfast.runtime.agent_runtime import Runtime
from holdfast.runtime.attachments import Prompt, read_prompt, with_inputs
from holdfast.runtime.result import TurnResult
from holdfast.runtime.turn import Turn, TurnRequest
from holdfast.runtime.workplace import new_turn_id

SESSION = "run"


def one_off_turn(
    agent: Agent[Any, Any],
    prompt: Prompt,
    *,
    inputs: Mapping[str, Any] | None = None,
    deps: Any = None,
    limits: UsageLimits | None = None,
) -> Turn[Any]:
    """A turn in a session of its own."""
    content, blobs = with_inputs(*read_prompt(prompt), inputs)
    request = TurnRequest(
        message=UserMessage(content=content), blobs=blobs, deps=deps, limits=checked_limits(limits)
    )
    runtime = Runtime(models=agent.opened_models)

    async def run(turn: Turn[Any]) -> TurnResult[Any]:
        async with runtime:
            await runtime.session(SESSION, agent=agent)
            result = await runtime.live(SESSION).run(turn)
        if isinstance(result.outcome, Waiting):
            raise NobodyWaits(", ".join(sorted({wait.kind for wait in result.waits})))
        return result

    async def cancel(turn_id: str) -> bool:
        if not runtime.is_open:
            return False
        return await runtime.live(SESSION).cancel(turn_id)

    return Turn(new_turn_id(), SESSION, request, run, cancel)
