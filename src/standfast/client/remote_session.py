"""A session and a turn on a server, with the methods of `Session` and `Turn`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.client.connection import ServerConnection
from standfast.errors import Code, RequestRefused, TurnStopped
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.events import Event, TurnBegan
from standfast.model.journal import JournalEdit, JournalStep
from standfast.model.limits import UsageEntry, UsageLimits
from standfast.model.message import Message
from standfast.model.outcome import Finished, FrameSwitched, Stopped, Waiting
from standfast.model.session import CurrentTurn, Node, SessionHead, TurnRecord
from standfast.ports.session_store import QueuedInput
from standfast.runtime.agent_session import Attachment
from standfast.runtime.http_values import Cancelled, InputSent, TurnView, Uploaded, Withdrawn
from standfast.runtime.result import (
    AwaitedResult,
    FinishedTurn,
    FrameSwitchedTurn,
    StoppedTurn,
    TurnResult,
    WaitingTurn,
)
from standfast.runtime.session_views import SessionExport, SessionView
from standfast.runtime.sessions.observation import Cursor, Observed

_event: Final = msgspec.json.Decoder(Event).decode
_view: Final = msgspec.json.Decoder(TurnView).decode
RemotePrompt = str | Attachment | Sequence[str | Attachment]


class RemoteTurn:
    """A turn on a server. It starts when awaited or iterated over, and keeps running if this program ends.

    `async for event in turn` yields its events and reconnects if the stream breaks; `await turn` gives the
    result and raises `TurnStopped` if the turn ended without an answer.
    """

    def __init__(self, session: RemoteSession, request: Mapping[str, Any] | None, turn_id: str = "") -> None:
        self.session_id = session.session_id
        self.turn_id = turn_id
        self._session = session
        self._request = request
        self._result: TurnView | None = None

    async def settled(self) -> TurnResult[Json]:
        """Return the result of any kind: like `await turn`, but without raising `TurnStopped`."""
        async for _ in self:
            pass
        assert self._result is not None
        return result_of(self._result)

    async def cancel(self) -> bool:
        """Cancel the turn; return False if it had already ended."""
        path = f"{self._session.path}/turns/{self.turn_id}/cancel"
        return (await self._session.connection.call("POST", path, Cancelled)).cancelled

    def __await__(self) -> Generator[Any, None, AwaitedResult[Json]]:
        return self.result().__await__()

    async def result(self) -> AwaitedResult[Json]:
        """Return the result; raise `TurnStopped` if the turn ended without an answer."""
        result = await self.settled()
        if isinstance(result, StoppedTurn):
            raise TurnStopped(result)
        return result

    async def __aiter__(self) -> AsyncIterator[Event]:
        if self._result is not None:
            return
        path, moved = f"{self._session.path}/turns", list[str]()
        start = None
        if self._request is None:
            path = f"{path}/{self.turn_id}"
        else:
            key, limits = str(self._request["idempotency_key"]), self._request["limits"]
            content = await _uploaded(self._session.connection, self._request["input"])
            body = {"input": content} if limits is None else {"input": content, "limits": limits}
            start = {
                "method": "POST",
                "url": path,
                "content": msgspec.json.encode(body),
                "headers": {"content-type": "application/json", "idempotency-key": key},
            }
        async for event in self._session.connection.events(path, start=start, moved=moved):
            if event.name == "result":
                self._result = _view(event.data)
                self.turn_id = self._result.turn_id
                return
            decoded = _event(event.data)
            if isinstance(decoded, TurnBegan) and not self.turn_id:
                self.turn_id = decoded.turn_id
            yield decoded


class RemoteSession:
    """One session on a server."""

    def __init__(self, connection: ServerConnection, session_id: str) -> None:
        self.session_id = session_id
        self.path = f"/v1/sessions/{session_id}"
        self.connection = connection

    # Turns

    def turn(
        self, prompt: RemotePrompt, *, limits: UsageLimits | None = None, idempotency_key: str | None = None
    ) -> RemoteTurn:
        """Return a turn with this input. The same key and prompt identify the same turn."""
        key = idempotency_key or f"client-{secrets.token_hex(12)}"
        return RemoteTurn(self, {"input": prompt, "limits": limits, "idempotency_key": key})

    def follow(self, turn_id: str) -> RemoteTurn:
        """Return the turn with this id; awaiting it gives its result."""
        return RemoteTurn(self, None, turn_id)

    async def resume(self) -> RemoteTurn | None:
        """Resume the unfinished turn and return it, None if there is none."""
        record = await self.unfinished()
        if record is None:
            return None
        await self.connection.send("POST", f"{self.path}/turns/{record.turn_id}/resume", patient=True)
        return self.follow(record.turn_id)

    async def unfinished(self) -> TurnRecord | None:
        """Return the turn that runs, waits or was interrupted, if there is one."""
        return (await self.view()).unfinished

    async def turns(self) -> list[TurnRecord]:
        """Return all turns, oldest first."""
        return await self.connection.get(f"{self.path}/turns", list[TurnRecord])

    async def cancel(self) -> bool:
        """Cancel the unfinished turn, if there is one."""
        return (await self.connection.call("POST", f"{self.path}/cancel", Cancelled)).cancelled

    # Approvals

    async def approvals(self, *, pending: bool = False) -> list[Approval]:
        """Return the approval requests of this session, oldest first."""
        asked = {"session_id": self.session_id, "pending": pending}
        return await self.connection.get("/v1/approvals", list[Approval], **asked)

    async def approve(
        self, approval_id: str, *, arguments: Mapping[str, Json] | None = None, reason: str | None = None
    ) -> AwaitedResult[Json]:
        """Approve a call, and return its turn's result once it has ended or waits again."""
        body = {"approved": True, "arguments": arguments, "reason": reason}
        return await self._continued(await decide(self.connection, approval_id, body))

    async def deny(self, approval_id: str, *, reason: str | None = None) -> AwaitedResult[Json]:
        """Deny a call, and return its turn's result once it has ended or waits again."""
        body = {"approved": False, "reason": reason}
        return await self._continued(await decide(self.connection, approval_id, body))

    async def _continued(self, approval: Approval) -> AwaitedResult[Json]:
        path = f"{self.path}/turns/{approval.run_id}/resume"
        view = await self.connection.call("POST", path, TurnView, patient=True, repeatable=True)
        result = result_of(view)
        if isinstance(result, StoppedTurn):
            raise TurnStopped(result)
        return result

    # Input while a turn runs

    async def inject(self, prompt: RemotePrompt, *, id: str | None = None) -> str:
        """Inject a message into the running turn at its next checkpoint; if none runs, into the next turn."""
        return await self._send_input(prompt, "inject", id)

    async def queue(self, prompt: RemotePrompt, *, id: str | None = None) -> str:
        """Queue a message that starts its own turn once the session is free."""
        return await self._send_input(prompt, "queue", id)

    async def _send_input(self, prompt: RemotePrompt, mode: str, input_id: str | None) -> str:
        content = await _uploaded(self.connection, prompt)
        body = {"input": content, "mode": mode, "id": input_id or secrets.token_hex(12)}
        sent = await self.connection.call("POST", f"{self.path}/inputs", InputSent, body, repeatable=True)
        return sent.input_id

    async def inputs(self) -> list[QueuedInput]:
        """Return the unclaimed inputs, oldest first."""
        return await self.connection.get(f"{self.path}/inputs", list[QueuedInput])

    async def withdraw(self, input_id: str) -> bool:
        """Withdraw an input; return False if a turn has claimed it."""
        found = await self.connection.call("DELETE", f"{self.path}/inputs/{input_id}", Withdrawn)
        return found.withdrawn

    # History

    async def view(self) -> SessionView:
        """Return the session with its history, turns and waits."""
        return await self.connection.get(self.path, SessionView)

    async def export(self) -> SessionExport:
        """Return the session as one document."""
        return await self.connection.get(f"{self.path}/export", SessionExport)

    async def head(self) -> SessionHead:
        return (await self.view()).head

    async def nodes(self) -> list[Node]:
        """Return the whole active path, oldest first."""
        return (await self.view()).nodes

    async def messages(self) -> list[Message]:
        """Return the messages of the active path, followed by those of an unfinished turn."""
        view = await self.view()
        said: list[Message] = [node.payload for node in view.nodes if isinstance(node.payload, Message)]
        return [*said, *(() if view.current is None else view.current.messages)]

    async def current_turn(self) -> CurrentTurn | None:
        """Return the unfinished turn, if there is one, with its messages so far."""
        return (await self.view()).current

    async def usage(self) -> tuple[UsageEntry, ...]:
        """Return the usage of model calls, one entry per source and model."""
        return (await self.head()).usage

    async def attachment(self, digest: str) -> bytes:
        """Return the bytes of an attachment."""
        return await self.connection.get(f"{self.path}/attachments/{digest}", bytes)

    async def journal(self, turn_id: str) -> list[JournalStep]:
        """Return each input of a turn's machine, with the machine's state and decisions after it."""
        return await self.connection.get(f"{self.path}/turns/{turn_id}/journal", list[JournalStep])

    async def fork(
        self, new_id: str, *, at: str | None = None, input: int | None = None, edit: JournalEdit | None = None
    ) -> RemoteSession:
        """Create a session over the same history, up to the node *at* if given.

        With *input*, *at* is a turn, and the fork continues after that input of it, modified by *edit*.
        """
        body = {"session_id": new_id, "at": at, "input": input, "edit": edit}
        head = await self.connection.call("POST", f"{self.path}/fork", SessionHead, body)
        return RemoteSession(self.connection, head.session_id)

    async def rewind(self, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Rewind to the node *to*, or by a number of turns."""
        body = {"to": to, "turns": turns}
        return await self.connection.call("POST", f"{self.path}/rewind", SessionHead, body)

    # Observation

    async def observe(self, after: Cursor | str | None = None) -> AsyncIterator[Observed]:
        """Yield everything after a cursor: committed nodes, then live events. It never ends."""
        cursor = None if after is None else str(after)
        async for event in self.connection.events(f"{self.path}/events", cursor):
            yield Observed(_event(event.data), Cursor.parse(event.id))

    def __repr__(self) -> str:
        return f"<RemoteSession {self.session_id}>"


async def _uploaded(connection: ServerConnection, prompt: RemotePrompt) -> Any:
    """Return *prompt* as the server reads it, after uploading its attachments."""
    if isinstance(prompt, str):
        return prompt
    parts: list[dict[str, Any]] = []
    for part in [prompt] if isinstance(prompt, Attachment) else prompt:
        if isinstance(part, Attachment):
            digest = (await upload(connection, part)).digest
            parts.append({"type": "attachment", "digest": digest})
        else:
            parts.append({"type": "text", "text": part})
    return parts


async def upload(connection: ServerConnection, attachment: Attachment) -> Uploaded:
    """Upload an attachment, which a turn then refers to by its digest."""
    response = await connection.send(
        "POST",
        "/v1/attachments",
        content=attachment.data,
        query={"name": attachment.name},
        headers={"content-type": attachment.media_type},
        repeatable=True,
    )
    return msgspec.json.decode(response.content, type=Uploaded)


async def decide(connection: ServerConnection, approval_id: str, body: dict[str, Any]) -> Approval:
    """Decide an approval."""
    path = f"/v1/approvals/{approval_id}/decision"
    return await connection.call("POST", path, Approval, body, patient=True)


def result_of(view: TurnView) -> TurnResult[Json]:
    """Convert a turn's view into a result object."""
    facts: dict[str, Any] = {
        "turn_id": view.turn_id,
        "session_id": view.session_id,
        "usage": view.usage,
        "calls": view.calls,
        "messages": view.messages,
    }
    match view.outcome:
        case Finished():
            return FinishedTurn(outcome=view.outcome, output=view.output, **facts)
        case FrameSwitched():
            return FrameSwitchedTurn(outcome=view.outcome, **facts)
        case Waiting():
            return WaitingTurn(outcome=view.outcome, **facts)
        case Stopped():
            return StoppedTurn(outcome=view.outcome, **facts)
        case None:
            raise RequestRefused(409, Code.SESSION_BUSY, f"turn {view.turn_id} has not ended")
