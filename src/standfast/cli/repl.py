"""`standfast repl`: run code entry by entry, with approvals asked on the spot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from standfast.cli.host import Grants, make_sandbox
from standfast.cli.options import (
    Invocation,
    answers,
    grants_options,
    language_options,
    session_option,
    session_or_usual,
)
from standfast.cli.output import Answer, console, error_console, show_error
from standfast.cli.repl_input import GRAMMARS, Completer, Entries, Grammar, line_editing
from standfast.cli.report import (
    RunReport,
    call_text,
    facts_table,
    plain_table,
    show_box,
    show_commands,
    show_streams,
)
from standfast.cli.run import waiting_in
from standfast.cli.user import this_user

if TYPE_CHECKING:
    from standfast.model import Approval, RunResult
    from standfast.runtime.blocking import BlockingSandbox


@click.command(
    "repl",
    epilog="""\b
Examples:
  standfast repl
  standfast repl --tools examples/refunds.py --session-id support-42
  printf 'x = 20\\nx + 1\\n' | standfast repl --json
  standfast repl --language typescript
""",
)
@session_option
@language_options
@grants_options
@answers
def command(
    invocation: Invocation, *, session_id: str | None, grants: Grants, language: str, engine: str | None
) -> Answer:
    """Run code entry by entry in a session.

    Ctrl-C cancels running code or clears the line, Ctrl-D leaves, :help lists the commands. With
    --json nothing is shown but, at the end, an array with the result of every entry.
    """
    from standfast.model import SessionId

    history = "repl_history" if language == "python" else f"repl_history_{language}"
    with make_sandbox(invocation.data_dir, grants, language, engine) as box:
        repl = Repl(
            box, invocation, SessionId(session_or_usual(session_id, language, engine)), GRAMMARS[language]
        )
        with line_editing(invocation.beside(history), repl.completer()):
            repl.loop()
    failed = any(result.status != "ok" for result in repl.results)
    return Answer(repl.results, lambda: None, int(failed and not repl.interactive))


class Repl:
    """One interactive session. `results` has one result per entry of code, the last it came to."""

    def __init__(self, box: BlockingSandbox, invocation: Invocation, session: str, grammar: Grammar) -> None:
        self.results: list[RunResult] = []
        self.interactive = sys.stdin.isatty() and not invocation.as_json
        self._box = box
        self._invocation = invocation
        self._session = session
        self._names: set[str] = set()
        self._grammar = grammar
        self._entries = Entries(grammar, interactive=self.interactive)
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self._help, "this list"),
            "tools": (self._tools, "what code may call"),
            "session": (self._switch, "NAME: go on in another session; without NAME, say which it is"),
            "reset": (self._reset, "forget the session's variables"),
            "approvals": (self._approvals, "what waits for a person here"),
            "approve": (self._approve, "[ID]: let the waiting call happen"),
            "deny": (self._deny, "[ID]: refuse the waiting call"),
            "quit": (self._quit, "leave, as Ctrl-D does"),
        }
        self._leaving = False

    def completer(self) -> Completer:
        tools = {capability.name for capability in self._box.capabilities()}
        return Completer(self._commands, lambda: tools | self._names, self._grammar.words)

    def loop(self) -> None:
        """Read and run entries until there are no more."""
        self._greet()
        while not self._leaving:
            entry = self._entries.read()
            if entry is None:
                break
            if entry.startswith(":"):
                self._obey(entry[1:])
            elif entry.strip():
                self._run(entry)

    def _greet(self) -> None:
        if self.interactive:
            from standfast import __version__

            text = f"standfast {__version__} · session {self._session} · :help for help, Ctrl-D to leave"
            error_console().print(text, style="dim")

    # ── running ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, code: str) -> None:
        self._names |= self._grammar.bound_names(code)
        result = self._result_of(lambda: self._box.run(code, session=self._session))
        self.results.append(result)
        self._show(result, code)
        self._ask_about(result)

    def _ask_about(self, result: RunResult) -> None:
        """Ask for decisions right here, as long as this run needs any and somebody can answer."""
        while self.interactive and _is_parked(result):
            waiting = waiting_in(self._box, self._session, result)
            if not waiting:
                return
            approved = self._asked(waiting[0])
            if approved is None:
                show_commands(error_console(), waiting[0], self._invocation)
                return
            result = self._decide(waiting[0], approved=approved)

    def _asked(self, approval: Approval) -> bool | None:
        """Yes, no, or later. Only words that mean it decide anything."""
        call = call_text(approval.capability, approval.args, approval.kwargs)
        while True:
            answer = self._entries.ask(f"Approve {call}? [y/N/later] ")
            match answer and answer.lower():
                case "y" | "yes":
                    return True
                case "" | "n" | "no":
                    return False
                case None | "l" | "later":
                    return None

    def _decide(self, approval: Approval, *, approved: bool) -> RunResult:
        identity, user = approval.approval_id, this_user()
        box = self._box
        result = self._result_of(
            lambda: (
                box.approve(identity, decided_by=user)
                if approved
                else box.deny(identity, reason="denied in the repl", decided_by=user)
            )
        )
        if self.results and _is_parked(self.results[-1]):
            self.results[-1] = result
        else:
            self.results.append(result)
        self._show(result, None)
        return result

    def _result_of(self, work: Callable[[], RunResult]) -> RunResult:
        from standfast.errors import StandfastError
        from standfast.model import RunResult

        try:
            return work()
        except StandfastError as error:
            return RunResult.failed(error.error_object())

    def _show(self, result: RunResult, code: str | None) -> None:
        if self._invocation.as_json:
            return
        waiting = waiting_in(self._box, self._session, result)
        if self.interactive and waiting and _is_parked(result):
            show_streams(result)
            show_box(error_console(), waiting[0])
        else:
            RunReport(result, self._invocation, code, waiting).show_briefly()

    # ── commands ─────────────────────────────────────────────────────────────────────────────────

    def _obey(self, line: str) -> None:
        from standfast.errors import StandfastError

        word, _, rest = line.strip().partition(" ")
        if word not in self._commands:
            show_error("INVALID_ARGUMENT", f"there is no command :{word}", ":help lists them")
            return
        try:
            self._commands[word][0](rest.strip())
        except StandfastError as error:
            show_error(str(error.code), error.message, error.hint)

    def _help(self, _: str) -> None:
        commands = self._commands.items()
        console().print(facts_table((f":{name}", text) for name, (_function, text) in commands))

    def _tools(self, _: str) -> None:
        table = plain_table("tool", "side effect", "description")
        for capability in self._box.capabilities():
            first_line = capability.description.strip().partition("\n")[0]
            table.add_row(capability.name, capability.side_effect, first_line)
        console().print(table)

    def _switch(self, name: str) -> None:
        from standfast.model import SessionId

        if name:
            self._session = SessionId(name)
            self._names.clear()
        console().print(f"session {self._session}", style="dim")

    def _reset(self, _: str) -> None:
        self._box.reset(self._session)
        self._names.clear()

    def _approvals(self, _: str) -> None:
        waiting = self._box.approvals(session=self._session, pending=True)
        for item in waiting:
            console().print(f"{item.approval_id}  {call_text(item.capability, item.args, item.kwargs)}")
        if not waiting:
            console().print("nothing waits", style="dim")

    def _approve(self, identity: str) -> None:
        self._ask_about(self._decide(self._waiting(identity), approved=True))

    def _deny(self, identity: str) -> None:
        self._ask_about(self._decide(self._waiting(identity), approved=False))

    def _waiting(self, identity: str) -> Approval:
        """The request with this id, or the first that waits."""
        from standfast.errors import InvalidArgument

        if identity:
            return self._box.approval(identity)
        waiting = self._box.approvals(session=self._session, pending=True)
        if not waiting:
            raise InvalidArgument(f"nothing waits in session {self._session!r}")
        return waiting[0]

    def _quit(self, _: str) -> None:
        self._leaving = True


def _is_parked(result: RunResult) -> bool:
    """Whether this very run waits, and not one before it that keeps the session."""
    return result.status == "waiting_for_approval" and result.snapshot_id is not None
