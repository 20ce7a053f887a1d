"""`BlockingClient`: the same client for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from standfast.client.client import Client
from standfast.client.remote_session import RemotePrompt, RemoteSession
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.events import Event
from standfast.model.grant import Grant
from standfast.model.journal import JournalEdit, JournalStep
from standfast.model.limits import UsageEntry, UsageLimits
from standfast.model.message import Message
from standfast.model.run import RunResult
from standfast.model.session import SessionHead, TurnRecord
from standfast.model.task import TaskRecord
from standfast.model.trigger import Schedule, Trigger
from standfast.ports.session_store import DayUsage
from standfast.runtime.http_values import AgentView, SessionEvent, UsageReport, WhoAmI
from standfast.runtime.result import AwaitedResult
from standfast.runtime.session_views import SessionExport, SessionLine, SessionView
from standfast.runtime.sessions.observation import Cursor, Observed
from standfast.tools.loop_threads import LoopThread
from standfast.tools.threads import interruptible_result

T = TypeVar("T")


class _Loop:
    """Runs coroutines on a dedicated thread and waits for them. Ctrl-C cancels them."""

    def __init__(self) -> None:
        self._thread = LoopThread()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        try:
            return interruptible_result(future)
        except BaseException:
            future.cancel()
            raise

    def iterate(self, events: AsyncIterator[T]) -> Iterator[T]:
        async def close() -> None:
            await events.aclose()  # type: ignore[attr-defined]

        async def step() -> tuple[T] | None:
            try:
                return (await anext(events),)
            except StopAsyncIteration:
                return None

        try:
            while (found := self.run(step())) is not None:
                yield found[0]
        finally:
            with suppress(RuntimeError):  # the loop may be closed already
                self.run(close())

    def close(self) -> None:
        self._thread.close()


class BlockingClient:
    """A server, with the methods of `Runtime`. Use it as `with BlockingClient(url, token=...) as client`."""

    def __init__(
        self, url: str, *, token: str | None = None, retry_s: float = 60.0, timeout_s: float = 60.0
    ) -> None:
        async def made() -> Client:  # must run on the loop that uses it
            return Client(url, token=token, retry_s=retry_s, timeout_s=timeout_s)

        self._loop = _Loop()
        self._client = self._loop.run(made())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.run(self._client.close())
        self._loop.close()

    def who_am_i(self) -> WhoAmI:
        """Return the credential's id, tenant and scopes."""
        return self._loop.run(self._client.who_am_i())

    def agents(self) -> list[AgentView]:
        """Return the server's agents."""
        return self._loop.run(self._client.agents())

    def session(
        self, session_id: str = "default", *, agent: str, metadata: Mapping[str, Json] | None = None
    ) -> BlockingRemoteSession:
        """Open a session with the agent of this name, creating it if needed."""
        opened = self._loop.run(self._client.session(session_id, agent=agent, metadata=metadata))
        return BlockingRemoteSession(self._loop, opened)

    def session_handle(self, session_id: str) -> BlockingRemoteSession:
        """Return a session by its id, without a request to the server."""
        return BlockingRemoteSession(self._loop, self._client.session_handle(session_id))

    def sessions(
        self, *, agent: str | None = None, state: str | None = None, prefix: str | None = None
    ) -> list[SessionLine]:
        """Return all sessions, most recently used first."""
        return self._loop.run(self._client.sessions(agent=agent, state=state, prefix=prefix))

    def delete(self, session_id: str) -> None:
        """Delete a session."""
        self._loop.run(self._client.delete(session_id))

    def events(self, after: str | None = None) -> Iterator[tuple[str, SessionEvent]]:
        """Yield a cursor and an event for everything that happens in any session. It never ends."""
        return self._loop.iterate(self._client.events(after))

    def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return the approval requests, oldest first; with *pending*, those that can still be decided."""
        return self._loop.run(self._client.approvals(session=session, pending=pending))

    def approval(self, approval_id: str) -> Approval:
        """Return one approval request."""
        return self._loop.run(self._client.approval(approval_id))

    def approve(
        self, approval_id: str, *, arguments: Mapping[str, Json] | None = None, reason: str | None = None
    ) -> Approval:
        """Approve a call, with other arguments if given. The server resumes its turn."""
        return self._loop.run(self._client.approve(approval_id, arguments=arguments, reason=reason))

    def deny(self, approval_id: str, *, reason: str | None = None) -> Approval:
        """Deny a call. The server resumes its turn, and the model gets the reason."""
        return self._loop.run(self._client.deny(approval_id, reason=reason))

    def grants(self, *, session: str | None = None, in_force: bool = False) -> list[Grant]:
        """Return the grants, oldest first, optionally only those that cover a session or are in force."""
        return self._loop.run(self._client.grants(session=session, in_force=in_force))

    def grant(
        self,
        capability: str,
        *,
        expires_at: int,
        rule: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        reason: str | None = None,
    ) -> Grant:
        """Approve calls of a tool in advance, for a session or an agent, until *expires_at*."""
        given = self._client.grant(
            capability, expires_at=expires_at, rule=rule, session=session, agent=agent, reason=reason
        )
        return self._loop.run(given)

    def revoke_grant(self, grant_id: str) -> Grant:
        """Revoke a grant, effective immediately."""
        return self._loop.run(self._client.revoke_grant(grant_id))

    def complete(self, token: str, value: Json = None) -> None:
        """Deliver the result of a call that a tool left to an external system."""
        self._loop.run(self._client.complete(token, value))

    def run(self, code: str, *, session: str = "default", **options: Any) -> RunResult:
        """Run code in a session; *options* are those of `Sandbox.run`."""
        return self._loop.run(self._client.run(code, session=session, **options))

    def validate(self, code: str, *, session: str = "default", **options: Any) -> RunResult:
        """Check code without running it."""
        return self._loop.run(self._client.validate(code, session=session, **options))

    def tasks(self, *, live: bool = False) -> list[TaskRecord]:
        """Return the background tasks of all sessions, oldest first."""
        return self._loop.run(self._client.tasks(live=live))

    def cancel_task(self, session_id: str, task_id: str) -> TaskRecord:
        """Cancel a background task."""
        return self._loop.run(self._client.cancel_task(session_id, task_id))

    def add_trigger(
        self,
        name: str,
        source: str,
        session_id: str,
        *,
        prompt: str = "{payload}",
        schedule: Schedule | None = None,
    ) -> Trigger:
        """Queue a turn of a session for each occurrence at a source, replacing a trigger of this name."""
        adding = self._client.add_trigger(name, source, session_id, prompt=prompt, schedule=schedule)
        return self._loop.run(adding)

    def remove_trigger(self, name: str) -> None:
        """Delete a trigger. Inputs that it has queued remain."""
        self._loop.run(self._client.remove_trigger(name))

    def triggers(self) -> list[Trigger]:
        """Return all triggers by name."""
        return self._loop.run(self._client.triggers())

    def occur(self, source: str, key: str, payload: Json = None) -> int:
        """Report an occurrence at a source; return the number of turns it starts."""
        return self._loop.run(self._client.occur(source, key, payload))

    def usage_by_day(self, *, agent: str | None = None, since_ms: int = 0) -> list[DayUsage]:
        """Return the usage of turns by day, session and agent, latest day first."""
        return self._loop.run(self._client.usage_by_day(agent=agent, since_ms=since_ms))

    def usage(self, *, agent: str | None = None, since_ms: int = 0) -> UsageReport:
        """Return the usage and cost of sessions."""
        return self._loop.run(self._client.usage(agent=agent, since_ms=since_ms))


class BlockingRemoteSession:
    """One session on a server."""

    def __init__(self, loop: _Loop, session: RemoteSession) -> None:
        self._loop = loop
        self._session = session
        self.session_id = session.session_id

    def turn(
        self, prompt: RemotePrompt, *, limits: UsageLimits | None = None, idempotency_key: str | None = None
    ) -> AwaitedResult[Json]:
        """Run a turn with this input until it ends or waits; raise `TurnStopped` if it stops."""
        turn = self._session.turn(prompt, limits=limits, idempotency_key=idempotency_key)
        return self._loop.run(turn.result())

    def stream(
        self, prompt: RemotePrompt, *, limits: UsageLimits | None = None, idempotency_key: str | None = None
    ) -> Iterator[Event]:
        """Start a turn with this input and yield its events until it ends or waits."""
        turn = self._session.turn(prompt, limits=limits, idempotency_key=idempotency_key)
        return self._loop.iterate(turn.__aiter__())

    def follow(self, turn_id: str) -> AwaitedResult[Json]:
        """Wait for the turn with this id, and return its result."""
        return self._loop.run(self._session.follow(turn_id).result())

    def turns(self) -> list[TurnRecord]:
        """Return all turns, oldest first."""
        return self._loop.run(self._session.turns())

    def cancel(self) -> bool:
        """Cancel the unfinished turn, if there is one."""
        return self._loop.run(self._session.cancel())

    def approvals(self, *, pending: bool = False) -> list[Approval]:
        """Return the approval requests of this session, oldest first."""
        return self._loop.run(self._session.approvals(pending=pending))

    def approve(
        self, approval_id: str, *, arguments: Mapping[str, Json] | None = None, reason: str | None = None
    ) -> AwaitedResult[Json]:
        """Approve a call, and return its turn's result once it has ended or waits again."""
        return self._loop.run(self._session.approve(approval_id, arguments=arguments, reason=reason))

    def deny(self, approval_id: str, *, reason: str | None = None) -> AwaitedResult[Json]:
        """Deny a call, and return its turn's result once it has ended or waits again."""
        return self._loop.run(self._session.deny(approval_id, reason=reason))

    def inject(self, prompt: RemotePrompt, *, id: str | None = None) -> str:
        """Inject a message into the running turn at its next checkpoint; if none runs, into the next turn."""
        return self._loop.run(self._session.inject(prompt, id=id))

    def queue(self, prompt: RemotePrompt, *, id: str | None = None) -> str:
        """Queue a message that starts its own turn once the session is free."""
        return self._loop.run(self._session.queue(prompt, id=id))

    def withdraw(self, input_id: str) -> bool:
        """Withdraw an input; return False if a turn has claimed it."""
        return self._loop.run(self._session.withdraw(input_id))

    def view(self) -> SessionView:
        """Return the session with its history, turns and waits."""
        return self._loop.run(self._session.view())

    def export(self) -> SessionExport:
        """Return the session as one document."""
        return self._loop.run(self._session.export())

    def messages(self) -> list[Message]:
        """Return the messages of the active path, followed by those of an unfinished turn."""
        return self._loop.run(self._session.messages())

    def usage(self) -> tuple[UsageEntry, ...]:
        """Return the usage of model calls, one entry per source and model."""
        return self._loop.run(self._session.usage())

    def attachment(self, digest: str) -> bytes:
        """Return the bytes of an attachment."""
        return self._loop.run(self._session.attachment(digest))

    def journal(self, turn_id: str) -> list[JournalStep]:
        """Return each input of a turn's machine, with the machine's state and decisions after it."""
        return self._loop.run(self._session.journal(turn_id))

    def fork(
        self, new_id: str, *, at: str | None = None, input: int | None = None, edit: JournalEdit | None = None
    ) -> BlockingRemoteSession:
        """Create a session over the same history, up to the node *at* if given.

        With *input*, *at* is a turn, and the fork continues after that input of it, modified by *edit*.
        """
        forked = self._loop.run(self._session.fork(new_id, at=at, input=input, edit=edit))
        return BlockingRemoteSession(self._loop, forked)

    def rewind(self, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Rewind to the node *to*, or by a number of turns."""
        return self._loop.run(self._session.rewind(to, turns=turns))

    def observe(self, after: Cursor | str | None = None) -> Iterator[Observed]:
        """Yield everything after a cursor: committed nodes, then live events. It never ends."""
        return self._loop.iterate(self._session.observe(after))
