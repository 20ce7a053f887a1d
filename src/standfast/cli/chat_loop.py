"""An interactive chat: reads lines, runs turns, asks for decisions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from standfast.cli.agent_host import AgentHost
from standfast.cli.agent_options import DEMO_NOTE
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.decisions import decide
from standfast.cli.follower import BackgroundLoop, Follower, InterruptedTwice, Terminated, sigterm_raises
from standfast.cli.options import Invocation
from standfast.cli.output import console, counted, error_console, show_error
from standfast.cli.repl_input import ChatReader, SlashCompleter, line_editing
from standfast.cli.report import ask_decision, facts_table, show_box, show_commands
from standfast.cli.transcript import show_conversation, usage_table
from standfast.cli.turn_report import TurnReport, left_unfinished, report_turn
from standfast.errors import InvalidArgument, StandfastError, TurnNotRunnable
from standfast.model.approval import Decision
from standfast.model.session import SessionId, TurnState
from standfast.runtime.agent_session import Session
from standfast.runtime.session_views import said_so_far

_LOOK_S = 0.2
_COMMANDS = {
    "help": "list these commands",
    "history": "show the conversation of this session",
    "usage": "show the tokens that this session used",
    "rewind": "[N]: go back by N turns, by default 1",
    "fork": "NEW: continue in a copy of this session",
    "session": "ID: continue in another session; without ID, show the id of this one",
    "cancel": "cancel the turn that waits",
    "quit": "leave, as Ctrl-D does",
}


def is_command(line: str) -> bool:
    return line.startswith("/") and line[1:].partition(" ")[0] in _COMMANDS


def talk(invocation: Invocation, session_id: str, host: AgentHost) -> int:
    """Chat until the user leaves, and return the exit status."""
    background = BackgroundLoop()
    chat = Chat(invocation, host, background)
    completer = SlashCompleter(_COMMANDS, list)
    with sigterm_raises(), line_editing(invocation.beside("chat_history"), completer):
        background.run(host.__aenter__())
        try:
            chat.loop(session_id)
        except (Terminated, InterruptedTwice):
            if chat.left_a_turn:
                left_unfinished(invocation).write(as_json=False)
                return 1
        finally:
            background.leave(host.__aexit__(None, None, None))
    return 0


class Chat:
    """One conversation at a time, with one agent."""

    _session: Session[str]

    def __init__(self, invocation: Invocation, host: AgentHost, background: BackgroundLoop) -> None:
        self.left_a_turn = False
        self._background = background
        self._follower = Follower(host, "", lambda _: None)
        self._invocation = invocation
        self._host = host
        self._screen = ChatScreen()
        self._lines = ChatReader(is_command)
        self._leaving = False

    def loop(self, session_id: str) -> None:
        """Read lines and run turns until the user leaves."""
        from standfast import __version__

        settings = self._host.settings
        self._screen.note(
            f"standfast {__version__} · {self._host.agent.model_id} · /help for help, Ctrl-D to leave"
        )
        if settings.is_demo:
            self._screen.note(f'{DEMO_NOTE} Say "help" to see what it knows.', "yellow")
        self._open(session_id)
        warned = False
        while not self._leaving:
            try:
                line = self._lines.read()
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                if warned:
                    return
                self._screen.note("Ctrl-C again, or Ctrl-D, leaves")
                warned = True
                continue
            warned = False
            try:  # no error ends the chat
                if line.startswith("/") and "\n" not in line:
                    word, _, rest = line[1:].strip().partition(" ")
                    self._obey(word, rest.strip())
                elif line:
                    before = self._unfinished()  # a turn that was interrupted or waits comes first
                    if before is None or self._see_through(before):
                        self._see_through(self._follow(self._session.turn(line).settled()))
                    else:
                        note = "not sent: the previous turn has not ended; /cancel cancels it"
                        self._screen.note(note, "yellow")
            except StandfastError as error:
                self._screen.end_line()
                show_error(str(error.code), error.message, error.hint)
            except KeyboardInterrupt:
                self._screen.note("interrupted")

    def _unfinished(self) -> TurnReport | None:
        async def look() -> TurnReport | None:
            record = await self._session.unfinished()
            return None if record is None else await report_turn(self._host.runtime, record.turn_id)

        return self._background.run(look())

    def _follow(self, work: Coroutine[Any, Any, Any], said: str = "cancelling") -> TurnReport | None:
        """Run *work* on the session and show its events. Ctrl-C cancels the turn."""
        follower = self._follower

        async def cancel() -> None:
            self._screen.note(said)
            await follower.cancel()

        try:
            return self._background.attend(follower.follow(work), cancel)
        except (Terminated, InterruptedTwice):
            self.left_a_turn = True
            raise
        finally:
            self._screen.end_line()

    def _see_through(self, report: TurnReport | None) -> bool:
        """Drive a turn as far as possible here; return False if it has not ended."""
        while report is not None and not report.ended:
            before = report
            if report.approvals:
                report = self._after_question(report)
            elif report.other_waits:
                report = self._after_wait(report)
            else:
                report = self._follow(self._resume()) or self._unfinished()
            if report is before or (report is None and self._unfinished() is not None):
                return False
        if report is not None:
            report.show_problem()
        return True

    async def _resume(self) -> None:
        turn = await self._session.resume()
        if turn is not None:
            await turn.settled()

    def _after_wait(self, report: TurnReport) -> TurnReport | None:
        """Wait for a timer or a completion. Ctrl-C stops waiting, but not the turn."""

        async def until_awake() -> None:
            store = self._host.runtime.store
            report.show_other_waits()
            self._screen.note("Ctrl-C stops waiting here")
            while True:
                turn = await store.turn(report.record.turn_id)
                if turn is None or turn.state is not TurnState.WAITING:
                    return
                await asyncio.sleep(_LOOK_S)

        return self._follow(until_awake(), "the turn still waits; /cancel cancels it")

    def _after_question(self, report: TurnReport) -> TurnReport | None:
        """Ask about the first waiting call and resume; return the same report if it is undecided."""
        approval, runtime = report.approvals[0], self._host.runtime

        async def settle(decision: Decision) -> None:
            await decide(runtime, approval, decision)
            await runtime.live(approval.session_id).turn_of(approval.run_id).settled()

        about = error_console()
        show_box(about, approval)
        try:
            decision = ask_decision(approval, self._lines.ask)
            if decision is None:
                show_commands(about, approval, self._invocation)
                return report
            return self._follow(settle(decision))
        except StandfastError as error:
            show_error(str(error.code), error.message, error.hint)
            return self._unfinished()

    def _obey(self, word: str, rest: str) -> None:
        """Run the command *word* with its argument *rest*."""
        run, session = self._background.run, self._session
        match word:
            case "help":
                console().print(facts_table((f"/{name}", text) for name, text in _COMMANDS.items()))
            case "history":
                nodes, current = run(said_so_far(session))
                show_conversation(console(), nodes, current, ids=False)
            case "usage":
                console().print(usage_table(run(session.usage())))
            case "rewind":
                if rest and not rest.isdecimal():
                    raise InvalidArgument(f"/rewind takes a number of turns, not {rest!r}")
                run(session.rewind(turns=int(rest or 1)))
                run(self._say_where())
            case "fork":
                if not rest:
                    raise InvalidArgument("/fork needs the id of the new session")
                self._open(run(session.fork(SessionId(rest))).session_id)
            case "session" if rest:
                self._open(SessionId(rest))
            case "session":
                run(self._say_where())
            case "cancel":

                async def cancel() -> None:
                    if not await session.cancel():
                        raise InvalidArgument("no turn waits in this session")

                report = self._follow(cancel())
                if report is not None:
                    report.show_problem()
            case "quit":
                self._leaving = True
            case _:
                raise InvalidArgument(f"there is no command /{word}", hint="/help lists the commands")

    def _open(self, session_id: str) -> None:
        """Open a session, and resume its unfinished turn."""

        async def enter() -> None:
            self._session = await self._host.session(session_id)
            await self._say_where()
            await self._resume()

        before = self._follower
        self._follower = Follower(self._host, session_id, self._screen.show)
        try:
            self._see_through(self._follow(enter()))
        except TurnNotRunnable as error:  # the session is open; only another agent can resume its turn
            self._screen.end_line()
            self._screen.note(f"{error.message}; /cancel cancels the turn", "yellow")
        except StandfastError:
            self._follower = before
            raise

    async def _say_where(self) -> None:
        count = len(await self._session.messages())
        so_far = f", {counted(count, 'message')} so far" if count else ""
        self._screen.note(f"session {self._session.session_id}{so_far}")
