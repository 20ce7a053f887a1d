"""Commands on a server: the client for `--server URL`, and a chat with one of the server's agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.output import CommandOutput, error_console, show_error
from standfast.errors import NotConfigured, StandfastError

if TYPE_CHECKING:
    from standfast.cli.options import Invocation
    from standfast.cli.repl_input import ChatReader
    from standfast.client import BlockingClient, BlockingRemoteSession
    from standfast.model.approval import Approval
    from standfast.runtime.agent_runtime import Runtime

T = TypeVar("T")

TOKEN_VARIABLE = "STANDFAST_TOKEN"  # noqa: S105 - the name of a variable


def remote_client(url: str) -> BlockingClient:
    """Return a client of the server at *url*, with the token in the environment."""
    from standfast.client import BlockingClient

    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise NotConfigured(
            f"--server needs a token in {TOKEN_VARIABLE}",
            hint="create one with `standfast tokens create`, on the machine that has the server's data",
        )
    return BlockingClient(url, token=token, retry_s=5.0)


def ask_server_or_store(
    invocation: Invocation,
    server: str | None,
    remote: Callable[[BlockingClient], T],
    local: Callable[[Runtime], Awaitable[T]],
) -> T:
    """Return the result of *remote* on *server*, or without one that of *local* on the data directory."""
    if server is None:
        return invocation.with_runtime(local)
    with remote_client(server) as client:
        return remote(client)


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


def chat_remotely(
    url: str, agent: str, session_id: str, prompt: str | None, *, as_json: bool
) -> CommandOutput:
    """Talk to an agent of a server: for one turn with a *prompt*, else until the user leaves."""
    with remote_client(url) as client:
        session = client.session(session_id, agent=agent)
        chat = RemoteChat(session, quiet=as_json)
        if prompt is None:
            from standfast.cli.repl_input import ChatReader

            return CommandOutput(None, lambda: None, chat.talk(ChatReader(lambda line: False)))
        document = chat.say(prompt)
    waiting = document["state"] == "waiting"
    note = f"the turn waits: standfast approvals list --server {url}"
    ended_well = document.get("summary", {}).get("outcome", {}).get("type") in ("finished", "frame_switched")

    def show() -> None:
        if waiting:
            error_console().print(note, style="yellow", soft_wrap=True)

    return CommandOutput(document, show, 0 if ended_well else 1)
