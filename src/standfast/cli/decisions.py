"""Decides approvals, and continues the turns that asked for them.

Rule: a decision is worth more than the process that makes it. If the agent of a turn cannot be made here, the
decision is recorded all the same, and the answer names the command that continues the turn.
"""

from __future__ import annotations

import click

from standfast.cli.agent_host import AgentHost, check_given, recorded_settings
from standfast.cli.agent_options import AgentSettings
from standfast.cli.background import Leave, Terminated, sigterm_raises
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.follower import Follower, carry_out
from standfast.cli.host import Grants, make_recorded_sandbox
from standfast.cli.options import Invocation
from standfast.cli.output import Answer, error_console
from standfast.cli.run import continue_run
from standfast.cli.turn_report import left_unfinished
from standfast.errors import ApprovalNotFound, StandfastError, TurnNotRunnable
from standfast.model.approval import Approval, Decision
from standfast.model.head import SessionHead
from standfast.model.run import RunResult
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.blocking import BlockingSandbox


def decide_and_continue(
    invocation: Invocation, approval_id: str, decision: Decision, grants: Grants
) -> Answer:
    """Decide an approval, drive its turn to its end or its next wait, and answer with the outcome.

    *grants* replace what the session has on record, for files that have moved.
    """

    async def read(runtime: Runtime) -> tuple[Approval, SessionHead | None]:
        found = await runtime.store.approval(approval_id)
        if found is None:
            raise ApprovalNotFound(approval_id)
        return found, await runtime.store.head(found.session_id)

    approval, head = invocation.with_runtime(read)
    if head is not None and head.code is not None:

        def decide_run(box: BlockingSandbox) -> RunResult:
            if not decision.approved:
                return box.deny(approval_id, reason=decision.reason, decided_by=decision.decided_by)
            return box.approve(
                approval_id,
                args=decision.args,
                kwargs=decision.kwargs,
                reason=decision.reason,
                decided_by=decision.decided_by,
            )

        box = make_recorded_sandbox(invocation.data_dir, grants, head.host)
        return continue_run(invocation, approval.session_id, box, decide_run)
    if decision.args:
        raise click.UsageError("the calls of a turn have their arguments by name: use --arguments '{...}'")
    if grants.mounts or grants.allow_hosts or grants.allow_private_hosts:
        raise click.UsageError("a turn of an agent has tools only; mounts and hosts are for code sessions")
    given = AgentSettings(tools=grants.tools)
    check_given(given)
    try:
        settings = given.over(recorded_settings({} if head is None else head.host))
        host = AgentHost(invocation.data_dir, settings)
    except StandfastError as error:
        decided = invocation.with_runtime(lambda runtime: decide(runtime, approval, decision))
        return _recorded(invocation, decided, error)
    return _continue_agent(invocation, host, approval, decision)


async def decide(runtime: Runtime, approval: Approval, decision: Decision) -> Approval:
    """Record a decision about a call of an agent's turn."""
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


def _continue_agent(
    invocation: Invocation, host: AgentHost, approval: Approval, decision: Decision
) -> Answer:
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
            report = carry_out(follower, work(), lambda: screen.note("cancelling"))
    except (Terminated, Leave):
        return left_unfinished(invocation)
    except TurnNotRunnable as error:
        return _recorded(invocation, decided, error)
    if report is not None:
        return report.answer(invocation)
    said = "the decision is recorded; another process goes on with the turn"
    return Answer(
        {"approval_id": approval.approval_id, "continued": False},
        lambda: error_console().print(said, style="dim"),
    )


def _recorded(invocation: Invocation, decided: Approval, why: StandfastError) -> Answer:
    """Answer that the decision is recorded, and that the turn cannot be continued here."""
    goes_on = invocation.command("recover", "--session", decided.session_id)

    def show() -> None:
        about = error_console()
        about.print(f"{decided.state}: the decision about {decided.capability}() is recorded", style="green")
        about.print(f"its turn does not go on here: {why.message}", style="yellow", soft_wrap=True)
        about.print("the process that has the session goes on with it, or", style="dim")
        about.print(f"  {goes_on}", style="dim", soft_wrap=True)

    document = {"approval": decided, "continued": False, "problem": why.error_object(), "command": goes_on}
    return Answer(document, show)
