"""Decisions about approvals, which resume their turns. One is recorded even if its turn cannot run here."""

from __future__ import annotations

import click

from standfast.cli.agent_host import AgentHost, check_given, recorded_settings
from standfast.cli.agent_options import AgentSettings
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.follower import Follower, InterruptedTwice, Terminated, carry_out
from standfast.cli.host import SandboxGrants, make_recorded_sandbox
from standfast.cli.options import Invocation
from standfast.cli.output import CommandOutput, error_console
from standfast.cli.run import continue_run
from standfast.cli.turn_report import left_unfinished
from standfast.errors import ApprovalNotFound, StandfastError, TurnNotRunnable, WrongAgent
from standfast.model.approval import Approval, Decision
from standfast.model.run import RunResult
from standfast.model.session import SessionHead
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.blocking import BlockingSandbox


def decide_and_continue(
    invocation: Invocation, approval_id: str, decision: Decision, grants: SandboxGrants
) -> CommandOutput:
    """Decide an approval and resume its turn; *grants* replace recorded ones whose files have moved."""
    reason, decided_by = decision.reason, decision.decided_by

    async def read(runtime: Runtime) -> tuple[Approval, SessionHead | None]:
        found = await runtime.store.approval(approval_id)
        if found is None:
            raise ApprovalNotFound(approval_id)
        return found, await runtime.store.head(found.session_id)

    def decide_run(box: BlockingSandbox) -> RunResult:
        if not decision.approved:
            return box.deny(approval_id, reason=reason, decided_by=decided_by)
        args, kwargs = decision.args, decision.kwargs
        return box.approve(approval_id, args=args, kwargs=kwargs, reason=reason, decided_by=decided_by)

    approval, head = invocation.with_runtime(read)
    if head is not None and head.code is not None:
        box = make_recorded_sandbox(invocation.data_dir, grants, head.host)
        return continue_run(invocation, approval.session_id, box, decide_run)
    if decision.args:
        raise click.UsageError("an agent's call takes its arguments by name: use --arguments '{...}'")
    if grants.mounts or grants.allow_hosts or grants.allow_private_hosts:
        raise click.UsageError(
            "an agent's turn uses only tools; mounts and hosts are for sessions that run code"
        )
    given = AgentSettings(tools=grants.tools)
    check_given(given)
    settings = None
    try:
        settings = given.over(recorded_settings({} if head is None else head.host))
        host = AgentHost(invocation.data_dir, settings)
    except StandfastError as error:
        decided = invocation.with_runtime(lambda runtime: decide(runtime, approval, decision))
        return _recorded(
            invocation,
            decided,
            error,
            agent="" if head is None else head.agent,
            can_recover=settings is not None,
        )
    return _continue_agent(invocation, host, approval, decision)


async def decide(runtime: Runtime, approval: Approval, decision: Decision) -> Approval:
    """Record a decision about a call of an agent's turn."""
    approval_id, reason, decided_by = approval.approval_id, decision.reason, decision.decided_by
    if not decision.approved:
        return await runtime.deny(approval_id, reason=reason, decided_by=decided_by)
    arguments = decision.kwargs
    return await runtime.approve(approval_id, arguments=arguments, reason=reason, decided_by=decided_by)


def _continue_agent(
    invocation: Invocation, host: AgentHost, approval: Approval, decision: Decision
) -> CommandOutput:
    decided = approval

    async def work() -> None:
        nonlocal decided
        await host.session(approval.session_id)
        decided = await decide(host.runtime, approval, decision)
        await host.settle(approval.session_id, approval.run_id)

    screen = ChatScreen(quiet=invocation.as_json)
    follower = Follower(host, approval.session_id, screen.show)
    try:
        report = carry_out(follower, work(), lambda: screen.note("cancelling"))
    except (Terminated, InterruptedTwice):
        return left_unfinished(invocation)
    except TurnNotRunnable as error:
        owner = error.owner if isinstance(error, WrongAgent) else host.agent.name
        return _recorded(invocation, decided, error, agent=owner, can_recover=False)
    if report is not None:
        return report.output(invocation)
    text = "the decision is recorded; another process resumes the turn"
    document = {"approval_id": approval.approval_id, "continued": False}
    return CommandOutput(document, lambda: error_console().print(text, style="dim"))


def _recorded(
    invocation: Invocation, decided: Approval, why: StandfastError, *, agent: str, can_recover: bool
) -> CommandOutput:
    """Report that the decision is recorded, why the turn cannot be resumed here, and how it can be.

    With *can_recover*, `standfast recover` can resume the turn once the problem is corrected. Otherwise only
    a program that has the *agent* can.
    """
    words: tuple[str, ...]
    if can_recover:
        how, words = "correct this, then run", ("recover", "--session", decided.session_id)
    else:
        how, words = f"a program that has agent {agent!r} resumes it, such as", ("worker", "APP")
    command = invocation.command(*words)

    def show() -> None:
        about = error_console()
        about.print(f"{decided.state}: the decision about {decided.capability}() is recorded", style="green")
        about.print(f"its turn cannot be resumed here: {why.message}", style="yellow", soft_wrap=True)
        about.print(how, style="dim", soft_wrap=True)
        about.print(f"  {command}", style="dim", soft_wrap=True)

    document = {"approval": decided, "continued": False, "problem": why.error_object(), "command": command}
    return CommandOutput(document, show)
