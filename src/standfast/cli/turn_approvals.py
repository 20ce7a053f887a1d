"""Deciding what a turn of an agent asks, and going on with the turn.

Rule: a decision is worth more than the process that takes it. If the agent cannot be made here, the decision
is recorded all the same, and it is said who goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from standfast.cli.agent_host import AgentHost, open_sessions, recorded_host, recorded_settings
from standfast.cli.agent_options import AgentSettings
from standfast.cli.background import Leave, Terminated, sigterm_raises
from standfast.cli.chat import left_unfinished
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.options import Invocation
from standfast.cli.output import Answer, error_console
from standfast.cli.turn_follow import Follower, carry_out
from standfast.errors import StandfastError, TurnNotRunnable
from standfast.model.approval import Approval, Decision
from standfast.runtime.agent_runtime import Runtime


def decide_turn(
    invocation: Invocation, approval: Approval, decision: Decision, given: AgentSettings
) -> Answer:
    """Decide, go on with the turn here if that is possible, and tell what came of it."""
    try:
        recorded = asyncio.run(recorded_host(invocation.data_dir, approval.session_id))
        host = AgentHost(invocation.data_dir, given.over(recorded_settings(recorded)))
    except StandfastError as error:
        return asyncio.run(_record_only(invocation, approval, decision, error))
    return _go_on(invocation, host, approval, decision)


async def decide(runtime: Runtime, approval: Approval, decision: Decision) -> Approval:
    """Take a decision, once."""
    if not decision.approved:
        return await runtime.deny(
            approval.approval_id, reason=decision.reason, decided_by=decision.decided_by
        )
    return await runtime.approve(
        approval.approval_id,
        arguments=decision.kwargs,
        reason=decision.reason,
        decided_by=decision.decided_by,
    )


async def _record_only(
    invocation: Invocation, approval: Approval, decision: Decision, why: StandfastError
) -> Answer:
    async with open_sessions(invocation.data_dir) as runtime:
        return _recorded(invocation, await decide(runtime, approval, decision), why)


def _recorded(invocation: Invocation, decided: Approval, why: StandfastError) -> Answer:
    """The decision is taken, and the turn goes on elsewhere."""
    goes_on = invocation.command("recover", "--session", decided.session_id)
    document = {"approval": decided, "continued": False, "problem": why.error_object(), "command": goes_on}
    return Answer(document, lambda: _show_recorded(decided, why, goes_on))


def _show_recorded(decided: Approval, why: StandfastError, goes_on: str) -> None:
    about = error_console()
    about.print(f"{decided.state}: the decision about {decided.capability}() is recorded", style="green")
    about.print(f"its turn does not go on here: {why.message}", style="yellow", soft_wrap=True)
    about.print("the process that has the session goes on with it, or", style="dim")
    about.print(f"  {goes_on}", style="dim", soft_wrap=True)


def _go_on(invocation: Invocation, host: AgentHost, approval: Approval, decision: Decision) -> Answer:
    decided = approval

    async def work() -> None:
        nonlocal decided
        await host.session(approval.session_id)
        decided = await decide(host.runtime, approval, decision)
        await host.runtime.live(approval.session_id).turn_of(approval.run_id).settled()

    screen = ChatScreen(quiet=invocation.as_json)
    follower = Follower(host, approval.session_id, screen.show)
    try:
        with sigterm_raises():
            standing = carry_out(follower, work(), lambda: screen.note("cancelling"))
    except (Terminated, Leave):
        return left_unfinished(invocation)
    except TurnNotRunnable as error:
        return _recorded(invocation, decided, error)
    if standing is None:
        return _elsewhere(approval)
    return standing.answer(invocation)


def _elsewhere(approval: Approval) -> Answer:
    """Another process was faster: the decision counts, and that process has the turn."""
    document: dict[str, Any] = {"approval_id": approval.approval_id, "continued": False}
    said = "the decision is recorded; another process goes on with the turn"
    return Answer(document, lambda: error_console().print(said, style="dim"))
