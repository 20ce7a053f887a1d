"""`standfast approvals`: list, show and decide the calls of agents and of code that wait for approval."""

from __future__ import annotations

from typing import Any

import click

from standfast.cli.host import Grants, make_sandbox
from standfast.cli.options import Invocation, JsonParameter, answers, grants_options, inherited_options
from standfast.cli.output import CommandOutput, console, moment, styled, this_user
from standfast.cli.report import call_text, facts_table, show_table, show_waiting

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
""",
)
@inherited_options
def command() -> None:
    """List, show and decide calls that wait for approval."""


@command.command("list")
@click.option("--pending", is_flag=True, help="Only those that can still be decided.")
@click.option("--session-id", metavar="S", help="Only those of one session.")
@answers
def list_approvals(invocation: Invocation, *, pending: bool, session_id: str | None) -> CommandOutput:
    """List approval requests, oldest first, with their state."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        listed = box.approvals(session=session_id, pending=pending)

    def show() -> None:
        rows = [
            (
                one.approval_id,
                styled(one.state, _COLOURS.get(one.state, "dim")),
                one.session_id,
                styled(call_text(one.capability, one.args, one.kwargs)),
                _time_left(one.expires_at) if one.state == "pending" else "",
            )
            for one in listed
        ]
        headers = ("approval", "state", "session", "call", "expires")
        show_table(*headers, rows=rows, whole=(0, 4), empty="no approval requests")

    return CommandOutput(listed, show)


@command.command("show")
@click.argument("approval_id")
@answers
def show_approval(invocation: Invocation, *, approval_id: str) -> CommandOutput:
    """Show one approval request with all of its arguments."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        approval = box.approval(approval_id)
        tools = Grants.from_record(box.approval_host(approval_id)).tools
    optional = (
        ("decided", moment(approval.decided_at) if approval.decided_at else None),
        ("decided by", approval.decided_by),
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
    grants: Grants,
) -> CommandOutput:
    """Approve the call, resume its turn and show the result.

    The tools, mounts and hosts come from the session's record; give them only if they have moved.
    """
    from standfast.cli.decisions import decide_and_continue
    from standfast.model.approval import Decision

    if edited is not None and arguments is not None:
        raise click.UsageError("give --args or --arguments, not both")
    chosen = edited if arguments is None else arguments
    args, kwargs = ([], chosen) if isinstance(chosen, dict) else (chosen, None if chosen is None else {})
    decision = Decision(approved=True, reason=reason, args=args, kwargs=kwargs, decided_by=decided_by)
    return decide_and_continue(invocation, approval_id, decision, grants)


@command.command("deny")
@click.argument("approval_id")
@click.option("--reason", metavar="TEXT", help="Passed to the code or the model that made the call.")
@decided_by_option
@grants_options
@answers
def deny(
    invocation: Invocation, *, approval_id: str, reason: str | None, decided_by: str, grants: Grants
) -> CommandOutput:
    """Deny the call and resume its turn: code sees a PermissionError, a model an error result."""
    from standfast.cli.decisions import decide_and_continue
    from standfast.model.approval import Decision

    decision = Decision(approved=False, reason=reason, decided_by=decided_by)
    return decide_and_continue(invocation, approval_id, decision, grants)


def _time_left(expires_at: int) -> str:
    import time

    minutes = max(0, int(expires_at / 1000 - time.time()) // 60)
    return f"in {minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"in {minutes} min"
