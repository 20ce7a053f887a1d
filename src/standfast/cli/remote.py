"""Commands on a server: the client for `--server URL`, and a chat with one of the server's agents."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.output import CommandOutput, error_console, show_error
from standfast.errors import InvalidArgument, NotConfigured, StandfastError

if TYPE_CHECKING:
    from standfast.cli.options import Invocation
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

    def talk(self, ask: Callable[[str], str | None]) -> int:
        """Read lines and run turns until the user leaves, asking for approvals on the spot."""
        self._screen.note(f"session {self._session.session_id} · Ctrl-D to leave")
        while (line := ask("> ")) is not None:
            try:
                if line.strip():
                    self.say(line.strip())
                while pending := self._session.approvals(pending=True):
                    if not self._decided(pending[0], ask):
                        break
            except StandfastError as error:
                self._screen.end_line()
                show_error(str(error.code), error.message, error.hint)
        return 0

    def _decided(self, approval: Approval, ask: Callable[[str], str | None]) -> bool:
        from standfast.cli.report import answer_fields, show_box

        show_box(error_console(), approval)
        fields = answer_fields(approval)
        answer = (ask(f"{'Answer' if fields else 'Approve'}? [y]es, [n]o, [l]ater: ") or "l").strip().lower()
        if answer in ("y", "yes"):
            arguments = _json_object(ask("Answer as JSON: ") or "{}") if fields else None
            result = self._session.approve(approval.approval_id, arguments=arguments)
        elif answer in ("n", "no"):
            result = self._session.deny(
                approval.approval_id, reason=ask("Reason, shown to the model: ") or None
            )
        else:
            return False
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
            return CommandOutput(None, lambda: None, chat.talk(_read_line))
        document = chat.say(prompt)
    waiting = document["state"] == "waiting"
    note = f"the turn waits: standfast approvals list --server {url}"
    ended_well = document.get("summary", {}).get("outcome", {}).get("type") in ("finished", "frame_switched")

    def show() -> None:
        if waiting:
            error_console().print(note, style="yellow", soft_wrap=True)

    return CommandOutput(document, show, 0 if ended_well else 1)


def _json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*; raise `InvalidArgument` if it is none."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"the answer is not JSON: {error}", hint='write {"name": "value"}') from None
    if not isinstance(found, dict):
        raise InvalidArgument("the answer must be a JSON object", hint='write {"name": "value"}')
    return found


def _read_line(prompt: str) -> str | None:
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")
        return None
