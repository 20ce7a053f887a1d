"""A chat with an agent of a server: `standfast chat --server URL`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.output import CommandOutput, error_console, show_error
from standfast.errors import StandfastError

if TYPE_CHECKING:
    from standfast.cli.options import Invocation
    from standfast.cli.repl_input import ChatReader
    from standfast.client import BlockingRemoteSession
    from standfast.model.approval import Approval


class RemoteChat:
    """A conversation with an agent of a server."""

    def __init__(self, session: BlockingRemoteSession, *, quiet: bool = False) -> None:
        from standfast.cli.chat_screen import ChatScreen

        self._session = session
        self._screen = ChatScreen(quiet=quiet)

    def say(self, prompt: str) -> dict[str, Any]:
        """Run one turn, showing its events, and return its last record."""
        import msgspec

        try:
            for event in self._session.stream(prompt):
                self._screen.show(event)
        except KeyboardInterrupt:
            self._screen.note("cancelling")
            self._session.cancel()
        finally:
            self._screen.end_line()
        document: dict[str, Any] = msgspec.to_builtins(self._session.turns()[-1])
        return document

    def talk(self, lines: ChatReader) -> int:
        """Read messages and run turns until the user leaves, asking for approvals on the spot."""
        self._screen.note(f"session {self._session.session_id} · Ctrl-D to leave")
        while True:
            try:
                line = lines.read()
            except (EOFError, KeyboardInterrupt):
                sys.stdout.write("\n")
                return 0
            try:
                if line:
                    self.say(line)
                while pending := self._session.approvals(pending=True):
                    if not self._decided(pending[0], lines):
                        break
            except StandfastError as error:
                self._screen.end_line()
                show_error(str(error.code), error.message, error.hint)

    def _decided(self, approval: Approval, lines: ChatReader) -> bool:
        from standfast.cli.report import ask_decision, show_box

        show_box(error_console(), approval)
        decision = ask_decision(approval, lines.ask)
        if decision is None:
            return False
        approval_id, reason = approval.approval_id, decision.reason
        if decision.approved:
            result = self._session.approve(approval_id, arguments=decision.kwargs, reason=reason)
        else:
            result = self._session.deny(approval_id, reason=reason)
        if result.text:
            click.echo(result.text)
        return True


def chat_remotely(invocation: Invocation, agent: str, session_id: str, prompt: str | None) -> CommandOutput:
    """Talk to an agent of a server: for one turn with a *prompt*, else until the user leaves."""
    with invocation.client() as client:
        session = client.session(session_id, agent=agent)
        chat = RemoteChat(session, quiet=invocation.as_json)
        if prompt is None:
            from standfast.cli.repl_input import ChatReader

            return CommandOutput(None, lambda: None, chat.talk(ChatReader(lambda line: False)))
        document = chat.say(prompt)
    waiting = document["state"] == "waiting"
    note = f"the turn waits: standfast approvals list --server {invocation.server}"
    ended_well = document.get("summary", {}).get("outcome", {}).get("type") in ("finished", "frame_switched")

    def show() -> None:
        if waiting:
            error_console().print(note, style="yellow", soft_wrap=True)

    return CommandOutput(document, show, 0 if ended_well else 1)
