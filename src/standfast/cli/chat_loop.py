"""An interactive chat: reads lines, runs turns, asks for decisions.

Theory of operation
-------------------
The event loop runs while a turn does, and stands still while somebody types: a turn that waits holds nothing
that would need it. So lines are read by the plain `input`, with its editing and its history.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from standfast.cli.agent_host import AgentHost, said_so_far
from standfast.cli.agent_options import DEMO_NOTE
from standfast.cli.background import Background, Leave, Terminated, sigterm_raises
from standfast.cli.chat_input import ChatLines, SlashCompleter
from standfast.cli.chat_screen import ChatScreen
from standfast.cli.decisions import decide
from standfast.cli.follower import Follower
from standfast.cli.options import Invocation
from standfast.cli.output import console, error_console, give, show_error
from standfast.cli.repl_input import line_editing
from standfast.cli.report import facts_table, show_box, show_commands
from standfast.cli.short_text import counted
from standfast.cli.transcript import show_conversation, usage_table
from standfast.cli.turn_report import TurnReport, left_unfinished, report_turn
from standfast.cli.user import this_user
from standfast.errors import InvalidArgument, StandfastError, TurnNotRunnable
from standfast.model.approval import Approval, Decision
from standfast.model.ids import SessionId
from standfast.model.turn import TurnState
from standfast.runtime.agent_session import Session

T = TypeVar("T")

_LOOK_S = 0.2


def talk(invocation: Invocation, session_id: str, host: AgentHost) -> int:
    """Chat until the user leaves; returns the exit status."""
    background = Background()
    chat = Chat(invocation, host, background)
    with sigterm_raises(), line_editing(invocation.beside("chat_history"), chat.completer()):
        background.run(host.__aenter__())
        try:
            chat.loop(session_id)
        except (Terminated, Leave):
            if chat.left_a_turn:
                give(left_unfinished(invocation), as_json=False)
                return 1
        finally:
            background.leave(host.__aexit__(None, None, None))
    return 0


class Chat:
    """One conversation at a time, with one agent."""

    _session: Session[str]

    def __init__(self, invocation: Invocation, host: AgentHost, background: Background) -> None:
        self.left_a_turn = False
        self._background = background
        self._follower = Follower(host, "", lambda _: None)
        self._invocation = invocation
        self._host = host
        self._screen = ChatScreen()
        self._lines = ChatLines(self._is_command)
        self._leaving = False
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self._help, "this list"),
            "history": (self._history, "what was said in this session"),
            "usage": (self._usage, "what the model calls of this session used"),
            "rewind": (self._rewind, "[N]: go back by N turns, 1 if not said"),
            "fork": (self._fork, "NEW: go on in a copy of this session"),
            "session": (self._switch, "ID: go on in another session; without ID, say which it is"),
            "cancel": (self._cancel, "give up the turn that waits"),
            "quit": (self._quit, "leave, as Ctrl-D does"),
        }

    def completer(self) -> SlashCompleter:
        return SlashCompleter(self._commands, list)

    def loop(self, session_id: str) -> None:
        """Read and answer until there is no more."""
        self._greet()
        self._open(session_id)
        warned = False
        while not self._leaving:
            try:
                line = self._lines.read()
            except EOFError:
                sys.stdout.write("\n")
                return
            except KeyboardInterrupt:
                if warned:
                    sys.stdout.write("\n")
                    return
                sys.stdout.write("\n")
                self._screen.note("Ctrl-C again, or Ctrl-D, leaves")
                warned = True
                continue
            warned = False
            self._attend(line)

    def _greet(self) -> None:
        from standfast import __version__

        model = self._host.settings.model
        self._screen.note(f"standfast {__version__} · {model} · /help for help, Ctrl-D to leave")
        if self._host.settings.is_demo:
            self._screen.note(f'{DEMO_NOTE} Say "help" to see what it knows.', "yellow")

    def _attend(self, line: str) -> None:
        """Do what a line says. Nothing that goes wrong ends the chat."""
        try:
            if line.startswith("/") and "\n" not in line:
                self._obey(line[1:])
            elif line:
                self._say(line)
        except StandfastError as error:
            self._screen.end_line()
            show_error(str(error.code), error.message, error.hint)
        except KeyboardInterrupt:
            self._screen.note("interrupted")

    # ── turns ────────────────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        if not self._finish_earlier():
            self._screen.note("not sent: the turn before it has not ended; /cancel gives it up", "yellow")
            return
        self._see_through(self._follow(self._session.turn(text).settled()))

    def _finish_earlier(self) -> bool:
        """Take up a turn that was left or waits; false if it still has not ended."""
        report = self._unfinished()
        return report is None or self._see_through(report)

    def _unfinished(self) -> TurnReport | None:
        async def look() -> TurnReport | None:
            record = await self._session.unfinished()
            return None if record is None else await report_turn(self._host.runtime, record.turn_id)

        return self._background.run(look())

    def _follow(self, work: Coroutine[Any, Any, Any], said: str = "cancelling") -> TurnReport | None:
        """Do some work on the session and show what happens. Ctrl-C ends the turn."""
        follower = self._follower

        async def cancel() -> None:
            self._screen.note(said)
            await follower.cancel()

        try:
            return self._background.attend(follower.follow(work), cancel)
        except (Terminated, Leave):
            self.left_a_turn = True
            raise
        finally:
            self._screen.end_line()

    def _see_through(self, report: TurnReport | None) -> bool:
        """Carry a turn as far as it goes here; false if it still has not ended."""
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
        """Wait for a time or for somebody outside. Ctrl-C ends the waiting, not the turn."""

        async def until_awake() -> None:
            store = self._host.runtime.store
            report.show_other_waits()
            self._screen.note("Ctrl-C stops waiting here")
            while True:
                turn = await store.turn(report.record.turn_id)
                if turn is None or turn.state is not TurnState.WAITING:
                    return
                await asyncio.sleep(_LOOK_S)

        return self._follow(until_awake(), "it keeps waiting; /cancel gives it up")

    # ── decisions ────────────────────────────────────────────────────────────────────────────────

    def _after_question(self, report: TurnReport) -> TurnReport | None:
        """Ask about the first call that waits, and go on; the same report if it is left for later."""
        approval = report.approvals[0]
        about = error_console()
        show_box(about, approval)
        if approval.reason:
            self._screen.note(approval.reason, "yellow")
        try:
            decision = self._ask(approval)
            if decision is None:
                show_commands(about, approval, self._invocation)
                return report
            return self._follow(self._decide(approval, decision))
        except StandfastError as error:
            show_error(str(error.code), error.message, error.hint)
            return self._unfinished()

    def _ask(self, approval: Approval) -> Decision | None:
        """Yes, no with a reason, or yes with other arguments; nothing if it is left for later."""
        user = this_user()
        while True:
            answer = self._lines.ask("Approve? [y]es, [n]o, [e]dit, [l]ater: ")
            match answer and answer.lower():
                case "y" | "yes":
                    return Decision(approved=True, decided_by=user)
                case "n" | "no":
                    reason = self._lines.ask("Reason, told to the model: ")
                    return Decision(approved=False, reason=reason or None, decided_by=user)
                case "e" | "edit":
                    given = json.dumps(approval.arguments, ensure_ascii=False)
                    edited = self._lines.ask("Arguments as JSON: ", given)
                    if edited is None:
                        return None
                    return Decision(approved=True, kwargs=_object(edited), decided_by=user)
                case None | "l" | "later":
                    return None

    async def _decide(self, approval: Approval, decision: Decision) -> None:
        runtime = self._host.runtime
        await decide(runtime, approval, decision)
        await runtime.live(approval.session_id).turn_of(approval.run_id).settled()

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def _is_command(self, line: str) -> bool:
        return line.startswith("/") and line[1:].partition(" ")[0] in self._commands

    def _obey(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word not in self._commands:
            raise InvalidArgument(f"there is no command /{word}", hint="/help lists them")
        self._commands[word][0](rest.strip())

    def _help(self, _: str) -> None:
        commands = self._commands.items()
        console().print(facts_table((f"/{name}", text) for name, (_function, text) in commands))

    def _history(self, _: str) -> None:
        nodes, current = self._background.run(said_so_far(self._session))
        show_conversation(console(), nodes, current, ids=False)

    def _usage(self, _: str) -> None:
        console().print(usage_table(self._background.run(self._session.usage())))

    def _rewind(self, turns: str) -> None:
        if turns and not turns.isdecimal():
            raise InvalidArgument(f"/rewind takes a number of turns, not {turns!r}")
        self._background.run(self._session.rewind(turns=int(turns or 1)))
        self._background.run(self._say_where())

    def _fork(self, new_id: str) -> None:
        if not new_id:
            raise InvalidArgument("/fork needs the id of the new session")
        forked = self._background.run(self._session.fork(SessionId(new_id)))
        self._open(forked.session_id)

    def _switch(self, session_id: str) -> None:
        if session_id:
            self._open(SessionId(session_id))
        else:
            self._background.run(self._say_where())

    def _open(self, session_id: str) -> None:
        """Go to a session, say what is there, and take up what was left in it."""
        before = self._follower
        self._follower = Follower(self._host, session_id, self._screen.show)
        try:
            self._see_through(self._follow(self._enter(session_id)))
        except TurnNotRunnable as error:  # the session is open; its turn is its own agent's to continue
            self._screen.end_line()
            self._screen.note(f"{error.message}; /cancel gives it up", "yellow")
        except StandfastError:
            self._follower = before
            raise

    async def _enter(self, session_id: str) -> None:
        self._session = await self._host.session(session_id)
        await self._say_where()
        await self._resume()

    async def _say_where(self) -> None:
        count = len(await self._session.messages())
        so_far = f", {counted(count, 'message')} so far" if count else ""
        self._screen.note(f"session {self._session.session_id}{so_far}")

    def _cancel(self, _: str) -> None:
        async def give_up() -> None:
            if not await self._session.cancel():
                raise InvalidArgument("no turn waits in this session")

        report = self._follow(give_up())
        if report is not None:
            report.show_problem()

    def _quit(self, _: str) -> None:
        self._leaving = True


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"this is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument("arguments are a JSON object, by name")
    return value
