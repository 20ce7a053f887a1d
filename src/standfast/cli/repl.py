"""`standfast repl`: run code entry by entry, and decide approvals on the spot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from standfast.cli import report
from standfast.cli.host import SandboxGrants, make_sandbox
from standfast.cli.options import (
    Invocation,
    answers,
    grants_options,
    language_options,
    session_option,
    session_or_usual,
)
from standfast.cli.output import CommandOutput, console, error_console, show_error, this_user
from standfast.cli.repl_input import GRAMMARS, Completer, EntryReader, Grammar, line_editing
from standfast.cli.run import waiting_in
from standfast.errors import InvalidArgument, StandfastError

if TYPE_CHECKING:
    from standfast.model.approval import Approval
    from standfast.model.run import RunResult
    from standfast.runtime.blocking import BlockingSandbox


_COMMANDS = {
    "help": "list these commands",
    "tools": "list the tools that code may call",
    "session": "NAME: continue in another session; without NAME, show the name of this one",
    "reset": "forget the session's variables",
    "approvals": "list the calls that wait for approval",
    "approve": "[ID]: approve the waiting call",
    "deny": "[ID]: deny the waiting call",
    "quit": "leave, as Ctrl-D does",
}


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
    invocation: Invocation,
    *,
    session_id: str | None,
    grants: SandboxGrants,
    language: str,
    engine: str | None,
) -> CommandOutput:
    """Run code entry by entry in a session.

    Ctrl-C cancels running code or clears the line, Ctrl-D leaves, :help lists the commands. With --json
    the only output, at the end, is an array with the result of every entry.
    """
    from standfast.model.session import SessionId

    history = "repl_history" if language == "python" else f"repl_history_{language}"
    with make_sandbox(invocation.data_dir, grants, language, engine) as box:
        repl = Repl(
            box, invocation, SessionId(session_or_usual(session_id, language, engine)), GRAMMARS[language]
        )
        tools = {capability.name for capability in box.capabilities()}
        completer = Completer(_COMMANDS, lambda: tools | repl.names, GRAMMARS[language].words)
        with line_editing(invocation.beside(history), completer):
            repl.loop()
    failed = any(result.status != "ok" for result in repl.results)
    return CommandOutput(repl.results, lambda: None, int(failed and not repl.interactive))


class Repl:
    """One interactive session: the last result of each entry, and the names that entries bound."""

    def __init__(self, box: BlockingSandbox, invocation: Invocation, session: str, grammar: Grammar) -> None:
        self.results: list[RunResult] = []
        self.names: set[str] = set()
        self.interactive = sys.stdin.isatty() and not invocation.as_json
        self._box = box
        self._invocation = invocation
        self._session = session
        self._grammar = grammar
        self._entries = EntryReader(grammar, interactive=self.interactive)
        self._leaving = False

    def loop(self) -> None:
        """Read and run entries until there are no more."""
        if self.interactive:
            from standfast import __version__

            text = f"standfast {__version__} · session {self._session} · :help for help, Ctrl-D to leave"
            error_console().print(text, style="dim")
        while not self._leaving:
            entry = self._entries.read()
            if entry is None:
                break
            if entry.startswith(":"):
                word, _, rest = entry[1:].strip().partition(" ")
                try:
                    self._obey(word, rest.strip())
                except StandfastError as error:
                    show_error(str(error.code), error.message, error.hint)
            elif entry.strip():
                self.names |= self._grammar.bound_names(entry)
                result = self._result_of(partial(self._box.run, entry, session=self._session))
                self.results.append(result)
                self._show(result, entry)
                self._ask_about(result)

    def _ask_about(self, result: RunResult) -> None:
        """Ask for the decisions that this run waits for. Only an explicit answer decides."""
        while self.interactive and _is_parked(result):
            waiting = waiting_in(self._box, self._session, result)
            if not waiting:
                return
            call = report.call_text(waiting[0].capability, waiting[0].args, waiting[0].kwargs)
            answer = self._entries.ask(f"Approve {call}? [y/N/later] ")
            match answer and answer.lower():
                case "y" | "yes":
                    result = self._decide(waiting[0], approved=True)
                case "" | "n" | "no":
                    result = self._decide(waiting[0], approved=False)
                case None | "l" | "later":
                    report.show_commands(error_console(), waiting[0], self._invocation)
                    return

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
        from standfast.model.run import RunResult

        try:
            return work()
        except StandfastError as error:
            return RunResult.failed(error.error_object())

    def _show(self, result: RunResult, code: str | None) -> None:
        if self._invocation.as_json:
            return
        waiting = waiting_in(self._box, self._session, result)
        if self.interactive and waiting and _is_parked(result):
            report.show_streams(result)
            report.show_box(error_console(), waiting[0])
        else:
            report.RunReport(result, self._invocation, code, waiting).show_briefly()

    def _obey(self, word: str, rest: str) -> None:
        """Run the command *word* with its argument *rest*."""
        shown, box = console(), self._box
        match word:
            case "help":
                shown.print(report.facts_table((f":{name}", text) for name, text in _COMMANDS.items()))
            case "tools":
                rows = [
                    (one.name, one.side_effect, one.description.strip().partition("\n")[0])
                    for one in box.capabilities()
                ]
                shown.print(report.plain_table("tool", "side effect", "description", rows=rows))
            case "session":
                if rest:
                    from standfast.model.session import SessionId

                    self._session = SessionId(rest)
                    self.names.clear()
                shown.print(f"session {self._session}", style="dim")
            case "reset":
                box.reset(self._session)
                self.names.clear()
            case "approvals":
                waiting = box.approvals(session=self._session, pending=True)
                for one in waiting:
                    shown.print(
                        f"{one.approval_id}  {report.call_text(one.capability, one.args, one.kwargs)}"
                    )
                if not waiting:
                    shown.print("nothing waits", style="dim")
            case "approve" | "deny":
                if rest:
                    approval = box.approval(rest)
                elif waiting := box.approvals(session=self._session, pending=True):
                    approval = waiting[0]
                else:
                    raise InvalidArgument(f"no approval is pending in session {self._session!r}")
                self._ask_about(self._decide(approval, approved=word == "approve"))
            case "quit":
                self._leaving = True
            case _:
                raise InvalidArgument(f"there is no command :{word}", hint=":help lists the commands")


def _is_parked(result: RunResult) -> bool:
    """Return whether this run waits, rather than an earlier one that blocks the session."""
    return result.status == "waiting_for_approval" and result.snapshot_id is not None
