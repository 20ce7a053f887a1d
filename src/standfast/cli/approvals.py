"""`standfast approvals`: list, show and decide the calls of agents and of code that wait for approval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import SandboxGrants, make_sandbox
from standfast.cli.options import (
    Invocation,
    JsonParameter,
    answers,
    grants_options,
    inherited_options,
    server_option,
)
from standfast.cli.output import CommandOutput, console, moment, styled, this_user
from standfast.cli.report import call_text, facts_table, show_table, show_waiting
from standfast.cli.sessions import Age

if TYPE_CHECKING:
    from rich.text import Text

    from standfast.model.approval import Approval
    from standfast.model.grant import Grant

decided_by_option = click.option(
    "--decided-by",
    default=this_user,
    show_default="your user name",
    metavar="NAME",
    help="The name that is stored with the decision.",
)

_COLOURS = {"pending": "yellow", "approved": "green", "denied": "red"}


@click.group(
    "approvals",
    epilog="""\b
Examples:
  standfast approvals list --pending
  standfast approvals approve apr_1234 --arguments '{"cents": 100, "order_id": "A1"}'
  standfast approvals deny apr_1234 --reason 'too much'
  standfast approvals grant refund --agent clerk --rule "kwargs['cents'] <= 1000" --for 7d
  standfast approvals revoke grt_1234
""",
)
@inherited_options
def command() -> None:
    """List, show and decide calls that wait for approval; grant some in advance."""


@command.command("list")
@click.option("--pending", is_flag=True, help="Only those that can still be decided.")
@click.option("--session-id", metavar="S", help="Only those of one session.")
@server_option
@answers
def list_approvals(invocation: Invocation, *, pending: bool, session_id: str | None) -> CommandOutput:
    """List approval requests, oldest first, with their state."""
    listed = invocation.ask(
        lambda client: client.approvals(session=session_id, pending=pending),
        lambda runtime: runtime.approvals(session=session_id, pending=pending),
    )

    def show() -> None:
        rows = [
            (
                one.approval_id,
                styled(one.state, _COLOURS.get(one.state, "dim")),
                one.session_id,
                _asked(one),
                _time_left(one.expires_at) if one.state == "pending" else "",
            )
            for one in listed
        ]
        headers = ("approval", "state", "session", "call", "expires")
        show_table(*headers, rows=rows, whole=(0, 4), empty="no approval requests")

    return CommandOutput(listed, show)


@command.command("show")
@click.argument("approval_id")
@server_option
@answers
def show_approval(invocation: Invocation, *, approval_id: str) -> CommandOutput:
    """Show one approval request with all of its arguments."""
    tools: tuple[str, ...] = ()
    if invocation.server is not None:
        with invocation.client() as client:
            approval = client.approval(approval_id)
    else:
        with make_sandbox(invocation.data_dir, SandboxGrants()) as box:
            approval = box.approval(approval_id)
            tools = SandboxGrants.from_record(box.approval_host(approval_id)).tools
    optional = (
        ("decided", moment(approval.decided_at) if approval.decided_at else None),
        ("decided by", approval.decided_by),
        ("grant", approval.grant or None),
        ("reason", repr(approval.reason) if approval.reason else None),
        ("edited", "the arguments were changed on approval" if approval.edited_digest else None),
    )
    facts = [
        ("state", str(approval.state)),
        ("session", approval.session_id),
        ("turn", approval.run_id),
        ("requested", moment(approval.requested_at)),
        ("expires", moment(approval.expires_at)),
        *((label, value) for label, value in optional if value),
        *(("tools", file) for file in tools),
    ]

    def show() -> None:
        if approval.state == "pending":
            show_waiting(console(), approval, invocation)
        else:
            console().print(styled(call_text(approval.capability, approval.args, approval.kwargs), "bold"))
        console().print(facts_table(facts))

    return CommandOutput(approval, show)


@command.command(
    "approve",
    epilog="""\b
Examples:
  standfast approvals approve apr_1234
  standfast approvals approve apr_1234 --args '["A1", 100]'
  standfast approvals approve apr_1234 --arguments '{"order_id": "A1", "cents": 100}'
""",
)
@click.argument("approval_id")
@click.option(
    "--args",
    "edited",
    type=JsonParameter(list, dict),
    metavar="JSON",
    help="Call with these arguments instead: an array by position, an object by name.",
)
@click.option(
    "--arguments", type=JsonParameter(dict), metavar="JSON", help="The same by name, for code and for agents."
)
@click.option("--reason", metavar="TEXT", help="Stored with the decision.")
@decided_by_option
@server_option
@grants_options
@answers
def approve(
    invocation: Invocation,
    *,
    approval_id: str,
    edited: Any,
    arguments: dict[str, Any] | None,
    reason: str | None,
    decided_by: str,
    grants: SandboxGrants,
) -> CommandOutput:
    """Approve the call, resume its turn and show the result.

    The tools, mounts and hosts come from the session's record; give them only if they have moved.
    """
    from standfast.cli.decisions import decide_and_continue
    from standfast.model.approval import Decision

    if edited is not None and arguments is not None:
        raise click.UsageError("give --args or --arguments, not both")
    chosen = edited if arguments is None else arguments
    if invocation.server is not None:
        if isinstance(chosen, list):
            raise click.UsageError("--server takes arguments by name: use --arguments '{...}'")
        with invocation.client() as client:
            return _decided(client.approve(approval_id, arguments=chosen, reason=reason))
    args, kwargs = ([], chosen) if isinstance(chosen, dict) else (chosen, None if chosen is None else {})
    decision = Decision(approved=True, reason=reason, args=args, kwargs=kwargs, decided_by=decided_by)
    return decide_and_continue(invocation, approval_id, decision, grants)


@command.command("deny")
@click.argument("approval_id")
@click.option("--reason", metavar="TEXT", help="Passed to the code or the model that made the call.")
@decided_by_option
@server_option
@grants_options
@answers
def deny(
    invocation: Invocation,
    *,
    approval_id: str,
    reason: str | None,
    decided_by: str,
    grants: SandboxGrants,
) -> CommandOutput:
    """Deny the call and resume its turn: code sees a PermissionError, a model an error result."""
    from standfast.cli.decisions import decide_and_continue
    from standfast.model.approval import Decision

    if invocation.server is not None:
        with invocation.client() as client:
            return _decided(client.deny(approval_id, reason=reason))
    decision = Decision(approved=False, reason=reason, decided_by=decided_by)
    return decide_and_continue(invocation, approval_id, decision, grants)


@command.command("grants")
@click.option("--in-force", is_flag=True, help="Only those that can approve a call now.")
@click.option("--session-id", metavar="S", help="Only those that cover one session.")
@server_option
@answers
def list_grants(invocation: Invocation, *, in_force: bool, session_id: str | None) -> CommandOutput:
    """List grants, oldest first, with the name of the person who gave each."""
    listed = invocation.ask(
        lambda client: client.grants(session=session_id, in_force=in_force),
        lambda runtime: runtime.grants(session=session_id, in_force=in_force),
    )
    return CommandOutput(listed, lambda: _show_grants(listed))


@command.command(
    "grant",
    epilog="""\b
Examples:
  standfast approvals grant refund --agent clerk --rule "kwargs['cents'] <= 1000" --for 7d
  standfast approvals grant send_mail --session-id support-42 --for 2h --reason 'newsletter'
""",
)
@click.argument("capability", metavar="TOOL")
@click.option("--session-id", metavar="S", help="Approve calls in this session.")
@click.option("--agent", metavar="NAME", help="Approve calls in all sessions of this agent.")
@click.option(
    "--rule",
    metavar="EXPR",
    help="Only calls for which this Python expression over args, kwargs and session_id is true.",
)
@click.option(
    "--for",
    "lasts",
    type=Age(),
    required=True,
    metavar="AGE",
    help="How long the grant lasts, such as 30m or 7d.",
)
@click.option("--reason", metavar="TEXT", help="Stored with the grant and with each call that it approves.")
@decided_by_option
@server_option
@answers
def grant(
    invocation: Invocation,
    *,
    capability: str,
    session_id: str | None,
    lasts: float,
    decided_by: str,
    **given: str | None,
) -> CommandOutput:
    """Approve calls of a tool in advance, for a session or an agent and a limited time.

    A call that a grant approves waits for no person; its record names the grant. With --server, the grant is
    given in the name of the token.
    """
    import time

    terms: dict[str, Any] = {"expires_at": int((time.time() + lasts) * 1000), "session": session_id, **given}
    made = invocation.ask(
        lambda client: client.grant(capability, **terms),
        lambda runtime: runtime.grant(capability, given_by=decided_by, **terms),
    )
    return CommandOutput(made, lambda: _show_grants([made]))


@command.command("revoke")
@click.argument("grant_id")
@decided_by_option
@server_option
@answers
def revoke(invocation: Invocation, *, grant_id: str, decided_by: str) -> CommandOutput:
    """Revoke a grant. Calls that it has approved already are not stopped."""
    revoked = invocation.ask(
        lambda client: client.revoke_grant(grant_id),
        lambda runtime: runtime.revoke_grant(grant_id, revoked_by=decided_by),
    )
    return CommandOutput.line(f"{grant_id} is revoked by {revoked.revoked_by}", revoked)


def _show_grants(grants: list[Grant]) -> None:
    rows = [
        (
            one.grant_id,
            styled(one.capability),
            styled(one.rule or "any arguments"),
            f"session {one.session_id}" if one.agent is None else f"agent {one.agent}",
            styled(one.given_by),
            "revoked" if one.revoked_at else moment(one.expires_at),
        )
        for one in grants
    ]
    headers = ("grant", "tool", "rule", "for", "given by", "until")
    show_table(*headers, rows=rows, whole=(0, 5), empty="no grants")


def _asked(approval: Approval) -> Text:
    """Return the call of an approval, with the question or the reason while it can still be decided."""
    shown = styled(call_text(approval.capability, approval.args, approval.kwargs))
    if approval.state == "pending" and approval.reason:
        shown.append_text(styled(f"\n{approval.reason}", "dim"))
    return shown


def _decided(approval: Approval) -> CommandOutput:
    """Report a decision that a server has recorded; the server resumes the turn."""
    return CommandOutput.line(f"{approval.state} by {approval.decided_by}", approval)


def _time_left(expires_at: int) -> str:
    import time

    minutes = max(0, int(expires_at / 1000 - time.time()) // 60)
    return f"in {minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"in {minutes} min"
