"""Turns without a runtime: an in-memory runtime is created for the turn and closed after it.

If the model continues in a new frame, the run continues with it: its result has the usage, calls and messages
of all turns, and its limits apply to all of them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from standfast.durable.journal import task_input_id
from standfast.errors import ErrorObject, InvalidArgument, RuntimeRequired, TurnCode
from standfast.model.limits import UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Stopped, StopReason
from standfast.runtime.agent_definition import AgentDefinition, checked_limits
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Prompt, read_prompt, with_inputs
from standfast.runtime.result import FrameSwitchedTurn, StoppedTurn, TurnResult, WaitingTurn
from standfast.runtime.sessions.live_session import LiveSession
from standfast.runtime.turn import Turn, TurnRequest, new_turn_id

SESSION = "run"


def one_off_turn(
    agent: AgentDefinition[Any, Any],
    prompt: Prompt,
    *,
    inputs: Mapping[str, Any] | None = None,
    deps: Any = None,
    limits: UsageLimits | None = None,
) -> Turn[Any]:
    """Return a turn in a new session of its own."""
    content, blobs = with_inputs(*read_prompt(prompt), inputs)
    request = TurnRequest(
        message=UserMessage(content=content), blobs=blobs, deps=deps, limits=checked_limits(limits)
    )
    runtime = Runtime(models=agent.opened_models)

    async def run(turn: Turn[Any]) -> TurnResult[Any]:
        async with runtime:
            await runtime.session(SESSION, agent=agent)
            result = await _run_frames(runtime.live(SESSION), turn, limits or agent.limits)
        if isinstance(result, WaitingTurn):
            raise RuntimeRequired(", ".join(sorted({wait.kind for wait in result.waits})))
        if isinstance(result, FrameSwitchedTurn):
            raise InvalidArgument(
                f"the turn opened frame {result.outcome.switch.frame_id!r} without a task, but a run without "
                "a runtime has no next turn",
                hint='use a session: `async with Runtime("standfast.db") as runtime`',
            )
        return result

    async def cancel(turn_id: str) -> bool:
        if not runtime.is_open:
            return False
        return await runtime.live(SESSION).cancel(turn_id)

    return Turn(new_turn_id(), SESSION, request, run, cancel)


async def _run_frames(live: LiveSession, turn: Turn[Any], limits: UsageLimits) -> TurnResult[Any]:
    """Run a turn, then the turns that continue its work in new frames, with the remainder of its limits."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    live.queue.draining = asyncio.current_task()  # the task of a new frame is claimed below
    try:
        result = await live.run(turn)
        while isinstance(result, FrameSwitchedTurn) and result.outcome.switch.task is not None:
            used = result.usage
            left = limits.left(used, round((loop.time() - began) * 1000))
            left["max_iterations"] = limits.max_iterations - used.calls
            if min(left.values()) <= 0:
                error = ErrorObject(
                    code=TurnCode.TURN_BUDGET,
                    message="the run used up its limits before it could continue in a new frame",
                    hint="raise the limits: limits=UsageLimits(...)",
                )
                return StoppedTurn(
                    turn_id=result.turn_id,
                    session_id=result.session_id,
                    usage=result.usage,
                    calls=result.calls,
                    messages=result.messages,
                    outcome=Stopped(reason=StopReason.TURN_BUDGET, error=error),
                )
            assert turn.request is not None
            request = TurnRequest(
                message=UserMessage(content=result.outcome.switch.task),
                deps=turn.request.deps,
                limits=msgspec.structs.replace(limits, **left),
                consumes=task_input_id(turn.turn_id),
            )
            turn.continue_as(new_turn_id(), request)
            last = await live.run(turn)
            result = msgspec.structs.replace(
                last,
                usage=result.usage + last.usage,
                calls=result.calls + last.calls,
                messages=result.messages + last.messages,
            )
        return result
    finally:
        live.queue.draining = None
