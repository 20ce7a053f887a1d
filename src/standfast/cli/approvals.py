"""`standfast approvals`: the calls that wait for a person, and the decision.

Sessions of agents and of code ask in the same way; what a decided turn answers with depends on its session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import Grants, make_sandbox
from standfast.cli.options import Invocation, JsonParameter, answers, grants_options, inherited_options
from standfast.cli.output import Answer, console, moment
from standfast.cli.report import call_text, facts_table, plain_table, show_waiting
from standfast.cli.user import this_user

if TYPE_CHECKING:
    from standfast.model import Approval

decided_by_option = click.option(
    "--decided-by",
    default=this_user,
    show_default="your user name",
    metavar="NAME",
    help="Who decides; kept with the decision.",
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
    """List, show and decide calls that wait for a person."""


@command.command("list")
@click.option("--pending", is_flag=True, help="Only those that can still be decided.")
@click.option("--session-id", metavar="S", help="Only those of one session.")
@answers
def list_approvals(invocation: Invocation, *, pending: bool, session_id: str | None) -> Answer:
    """List approval requests, oldest first, with their state."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        listed = box.approvals(session=session_id, pending=pending)
    return Answer(listed, lambda: _show_list(listed))


@command.command("show")
@click.argument("approval_id")
@answers
def show_approval(invocation: Invocation, *, approval_id: str) -> Answer:
    """Show one approval request with all of its arguments."""
    with make_sandbox(invocation.data_dir, Grants()) as box:
        approval = box.approval(approval_id)
        tools = Grants.from_record(box.approval_host(approval_id)).tools
    return Answer(approval, lambda: _show(approval, tools, invocation))


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
    "--arguments",
    type=JsonParameter(dict),
    metavar="JSON",
    help="The same by name, for code and for agents.",
)
@click.option("--reason", metavar="TEXT", help="Kept with the decision.")
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
) -> Answer:
    """Let the call happen, continue its turn and show the result.

    The tools, mounts and hosts of the session are taken from its record; give them only if they have
    moved.
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
@click.option("--reason", metavar="TEXT", help="Told to the code that made the call.")
@decided_by_option
@grants_options
@answers
def deny(
    invocation: Invocation, *, approval_id: str, reason: str | None, decided_by: str, grants: Grants
) -> Answer:
    """Refuse the call and continue: code sees a PermissionError, a model is told."""
    from standfast.cli.decisions import decide_and_continue
    from standfast.model.approval import Decision

    decision = Decision(approved=False, reason=reason, decided_by=decided_by)
    return decide_and_continue(invocation, approval_id, decision, grants)


def _show_list(approvals: list[Approval]) -> None:
    from rich.text import Text

    if not approvals:
        console().print("no approval requests", style="dim")
        return
    table = plain_table("approval", "state", "session", "call", "expires")
    table.columns[0].no_wrap = table.columns[4].no_wrap = True
    for item in approvals:
        state = Text(item.state, _COLOURS.get(item.state, "dim"))
        call = Text(call_text(item.capability, item.args, item.kwargs))
        expires = _time_left(item.expires_at) if item.state == "pending" else ""
        table.add_row(item.approval_id, state, item.session_id, call, expires)
    console().print(table)


def _time_left(expires_at: int) -> str:
    import time

    minutes = max(0, int(expires_at / 1000 - time.time()) // 60)
    return f"in {minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"in {minutes} min"


def _show(approval: Approval, tools: tuple[str, ...], invocation: Invocation) -> None:
    from rich.text import Text

    shown = console()
    if approval.state == "pending":
        show_waiting(shown, approval, invocation)
    else:
        shown.print(Text(call_text(approval.capability, approval.args, approval.kwargs), "bold"))
    shown.print(facts_table(_facts(approval, tools)))


def _facts(approval: Approval, tools: tuple[str, ...]) -> list[tuple[str, str]]:
    facts = [
        ("state", str(approval.state)),
        ("session", approval.session_id),
        ("turn", approval.run_id),
        ("requested", moment(approval.requested_at)),
        ("expires", moment(approval.expires_at)),
    ]
    if approval.decided_at:
        facts.append(("decided", moment(approval.decided_at)))
    if approval.decided_by:
        facts.append(("decided by", approval.decided_by))
    if approval.reason:
        facts.append(("reason", repr(approval.reason)))
    if approval.edited_digest:
        facts.append(("edited", "the arguments were changed by whoever approved"))
    facts.extend(("tools", file) for file in tools)
    return facts
