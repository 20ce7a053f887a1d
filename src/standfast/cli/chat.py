"""`standfast chat`: talk to an agent."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from standfast.cli.agent_options import DEMO_NOTE, AgentSettings, agent_options
from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer, error_console, show_error

if TYPE_CHECKING:
    from standfast.cli.agent_host import AgentHost
    from standfast.cli.turn_report import TurnReport
    from standfast.errors import TurnUnfinished


@click.command(
    "chat",
    epilog="""\b
Examples:
  standfast chat
  standfast chat 'refund A1'
  echo 'what do you know about order A1?' | standfast chat --json
  standfast chat --protocol code --session in-code 'refund A1'
  standfast chat --model anthropic:claude-sonnet-4-5 'why is the sky blue?'
  standfast chat --model scripted:examples/support.json --tools examples/support.py --session support-42
""",
)
@click.argument("prompt", required=False)
@click.option(
    "--session", "session_id", default="chat", show_default=True, metavar="ID", help="Which conversation."
)
@click.option(
    "--trace", metavar="FILE", help="Keep a trace there, for `standfast trace`.  [default: STANDFAST_TRACE]"
)
@agent_options
@answers
def command(
    invocation: Invocation,
    *,
    prompt: str | None,
    session_id: str,
    trace: str | None,
    given: AgentSettings,
) -> Answer:
    """Talk to an agent; with PROMPT, or from a pipe, for one turn.

    A session keeps what was said, its model, tools, instructions and protocol; a turn that was interrupted
    goes on first. Ctrl-C cancels the turn, Ctrl-D leaves, /help lists the commands. A call that needs
    approval is asked about on the spot; for one turn only, it is left to `standfast approvals`.
    """
    from standfast.model import SessionId

    session = SessionId(session_id)
    if prompt is None and sys.stdin.isatty():
        return _interactive(invocation, session, given, trace)
    return _one_turn(invocation, session, given, _prompt(prompt), trace)


def _prompt(given: str | None) -> str:
    if given not in (None, "-"):
        text = given
    else:
        try:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise click.UsageError("standard input is not UTF-8 text") from None
    if text is None or not text.strip():
        raise click.UsageError("there is nothing to say: give a PROMPT, or text on standard input")
    return text.strip()


def _interactive(invocation: Invocation, session_id: str, given: AgentSettings, trace: str | None) -> Answer:
    if invocation.as_json:
        raise click.UsageError("--json needs a PROMPT, or text on standard input")
    from standfast.cli.chat_loop import talk

    host = _host(invocation, session_id, given, trace)
    return Answer(None, lambda: None, talk(invocation, session_id, host))


def _one_turn(
    invocation: Invocation, session_id: str, given: AgentSettings, prompt: str, trace: str | None
) -> Answer:
    from standfast.cli.background import Leave, Terminated, sigterm_raises
    from standfast.cli.turn_report import left_unfinished
    from standfast.errors import TurnUnfinished

    host = _host(invocation, session_id, given, trace)
    if host.settings.is_demo and not invocation.as_json:
        error_console().print(DEMO_NOTE, style="dim")
    try:
        with sigterm_raises():
            report = _say(host, session_id, prompt, quiet=invocation.as_json)
    except TurnUnfinished as error:
        return _unfinished(invocation, error)
    except (Terminated, Leave):
        return left_unfinished(invocation)
    return Answer({}, lambda: None, 1) if report is None else report.answer(invocation)


def _say(host: AgentHost, session_id: str, prompt: str, *, quiet: bool) -> TurnReport | None:
    from standfast.cli.chat_screen import ChatScreen
    from standfast.cli.follower import Follower, carry_out

    async def work() -> None:
        session = await host.session(session_id)
        await session.turn(prompt).settled()

    screen = ChatScreen(quiet=quiet)
    return carry_out(Follower(host, session_id, screen.show), work(), lambda: screen.note("cancelling"))


def _host(
    invocation: Invocation, session_id: str, given: AgentSettings, trace: str | None = None
) -> AgentHost:
    """The agent that was asked for, else the one that the session remembers."""
    from standfast.cli.agent_host import AgentHost, check_given
    from standfast.errors import InvalidArgument

    check_given(given)
    head = invocation.with_runtime(lambda runtime: runtime.store.head(session_id))
    if head is not None and head.code is not None:
        raise InvalidArgument(
            f"session {session_id!r} runs {head.code.language} code and has no model to talk to",
            hint="choose another with --session ID; `standfast run --session-id ID` runs code in this one",
        )
    settings = given.over(AgentSettings.from_record({} if head is None else head.host))
    chosen = settings if given.model else settings.or_default()
    return AgentHost(invocation.data_dir, chosen, trace=trace)


def _unfinished(invocation: Invocation, error: TurnUnfinished) -> Answer:
    """A turn before this one waits: say for what."""
    from standfast.cli.turn_report import report_turn

    report = invocation.with_runtime(lambda runtime: report_turn(runtime, error.turn_id))
    problem = error.error_object()

    def show() -> None:
        if report is not None:
            report.show(invocation)
        show_error(problem.code, problem.message, problem.hint)

    return Answer({"error": problem, "waiting": report and report.document()}, show, 1)
