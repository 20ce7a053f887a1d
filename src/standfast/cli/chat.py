"""`standfast chat`: talk to an agent."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.agent_options import DEMO_NOTE, AgentSettings, agent_options
from standfast.cli.options import Invocation, answers, server_option
from standfast.cli.output import CommandOutput, error_console, show_error

if TYPE_CHECKING:
    from standfast.cli.agent_host import AgentHost


_APP = re.compile(r"[\w./~-]+\.py(:[\w.]+)?|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


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
  standfast chat shop.py:agent
  standfast chat --server http://127.0.0.1:8000 --agent demo 'refund A1'
""",
)
@click.argument("words", nargs=-1, metavar="[APP] [PROMPT]")
@click.option("--agent", default="", metavar="NAME", help="The agent of APP or of the server.")
@server_option
@click.option(
    "--session", "session_id", default="chat", show_default=True, metavar="ID", help="The session to use."
)
@click.option(
    "--trace", metavar="FILE", help="Write a trace, for `standfast trace`.  [default: STANDFAST_TRACE]"
)
@agent_options
@answers
def command(
    invocation: Invocation,
    *,
    words: tuple[str, ...],
    agent: str,
    session_id: str,
    trace: str | None,
    given: AgentSettings,
) -> CommandOutput:
    """Talk to an agent; with PROMPT, or from a pipe, for one turn.

    APP, as module:name or file.py:name, is your own agent; --server uses an agent of that server.
    A session keeps its conversation, model, tools, instructions and protocol; an interrupted turn is
    resumed first. Ctrl-C cancels the turn, Ctrl-D leaves, /help lists the commands. The chat asks for
    approvals on the spot; a single turn leaves them to `standfast approvals`.
    """
    from standfast.model.session import SessionId

    session = SessionId(session_id)
    app, prompt = _app_and_prompt(words)
    if app is not None:
        if given.model or given.tools or given.instructions or given.protocol or invocation.server:
            raise click.UsageError(
                "APP defines the agent; leave out --server and the options that describe an agent"
            )
        given = replace(given, app=app, agent=agent)
    elif agent and invocation.server is None:
        raise click.UsageError("--agent selects an agent of APP or of --server; give one of them")
    if prompt is None and sys.stdin.isatty():
        if invocation.as_json:
            raise click.UsageError("--json needs a PROMPT, or text on standard input")
        if invocation.server is not None:
            from standfast.cli.remote import chat_remotely

            return chat_remotely(invocation, agent or "demo", session, None)
        from standfast.cli.chat_loop import talk

        status = talk(invocation, session, _host(invocation, session, given, trace))
        return CommandOutput(None, lambda: None, status)
    if prompt in (None, "-"):
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise click.UsageError("standard input is not UTF-8 text") from None
    if not (prompt or "").strip():
        raise click.UsageError("there is no prompt: give a PROMPT, or text on standard input")
    if invocation.server is not None:
        from standfast.cli.remote import chat_remotely

        return chat_remotely(invocation, agent or "demo", session, str(prompt).strip())
    return _one_turn(invocation, _host(invocation, session, given, trace), session, str(prompt).strip())


def _app_and_prompt(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Separate APP from PROMPT: APP is `file.py`, `file.py:name` or `module:name`, without spaces."""
    app, rest = None, words
    if words and _APP.fullmatch(words[0]):
        app, rest = words[0], words[1:]
        place, colon, name = app.partition(":")
        if place.endswith(".py"):
            app = f"{Path(place).absolute()}{colon}{name}"
    if len(rest) > 1:
        raise click.UsageError(f"{rest[1]!r} is one word too many; put the prompt in quotes")
    return app, rest[0] if rest else None


def _one_turn(invocation: Invocation, host: AgentHost, session_id: str, prompt: str) -> CommandOutput:
    from standfast.cli.chat_screen import ChatScreen
    from standfast.cli.follower import Follower, InterruptedTwice, Terminated, carry_out
    from standfast.cli.turn_report import left_unfinished, report_turn
    from standfast.errors import TurnUnfinished

    async def work() -> None:
        session = await host.session(session_id)
        await session.turn(prompt).settled()

    if host.settings.is_demo and not invocation.as_json:
        error_console().print(DEMO_NOTE, style="dim")
    screen = ChatScreen(quiet=invocation.as_json)
    follower = Follower(host, session_id, screen.show)
    try:
        report = carry_out(follower, work(), lambda: screen.note("cancelling"))
    except (Terminated, InterruptedTwice):
        return left_unfinished(invocation)
    except TurnUnfinished as error:
        turn_id, problem = error.turn_id, error.error_object()
    else:
        return CommandOutput({}, lambda: None, 1) if report is None else report.output(invocation)
    earlier = invocation.with_runtime(lambda runtime: report_turn(runtime, turn_id))

    def show() -> None:
        if earlier is not None:
            earlier.show(invocation)
        show_error(problem.code, problem.message, problem.hint)

    return CommandOutput({"error": problem, "waiting": earlier and earlier.document()}, show, 1)


def _host(invocation: Invocation, session_id: str, given: AgentSettings, trace: str | None) -> AgentHost:
    """Return a host for the given agent, or for the one in the session's record."""
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
