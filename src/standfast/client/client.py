"""`Client`: a Standfast server, for programs with an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final

import msgspec

from standfast.client.connection import ServerConnection
from standfast.client.remote_session import RemoteSession, decide, upload
from standfast.errors import StandfastError
from standfast.model.approval import Approval
from standfast.model.canonical import Json
from standfast.model.grant import Grant
from standfast.model.monitor import MonitorSnapshot, MonitorSpec
from standfast.model.run import RunResult
from standfast.model.session import SessionHead
from standfast.model.task import TaskRecord
from standfast.model.trigger import Schedule, Trigger
from standfast.ports.session_store import DayUsage
from standfast.runtime.agent_session import Attachment
from standfast.runtime.http_values import (
    AgentView,
    Occurred,
    SessionEvent,
    SessionPage,
    Uploaded,
    UsageReport,
    WhoAmI,
)
from standfast.runtime.session_views import SessionLine

_event: Final = msgspec.json.Decoder(SessionEvent).decode


class DecisionClient:
    """Decisions about the calls of a server's turns: approvals, grants, results from external systems."""

    connection: ServerConnection

    async def approvals(self, *, session: str | None = None, pending: bool = False) -> list[Approval]:
        """Return the approval requests, oldest first; with *pending*, those that can still be decided."""
        return await self.connection.get("/v1/approvals", list[Approval], session_id=session, pending=pending)

    async def approval(self, approval_id: str) -> Approval:
        """Return one approval request."""
        return await self.connection.get(f"/v1/approvals/{approval_id}", Approval)

    async def approve(
        self, approval_id: str, *, arguments: Mapping[str, Json] | None = None, reason: str | None = None
    ) -> Approval:
        """Approve a call, with other arguments if given. The server resumes its turn."""
        body = {"approved": True, "arguments": arguments, "reason": reason}
        return await decide(self.connection, approval_id, body)

    async def deny(self, approval_id: str, *, reason: str | None = None) -> Approval:
        """Deny a call. The server resumes its turn, and the model gets the reason."""
        return await decide(self.connection, approval_id, {"approved": False, "reason": reason})

    async def grants(self, *, session: str | None = None, in_force: bool = False) -> list[Grant]:
        """Return the grants, oldest first, optionally only those that cover a session or are in force."""
        return await self.connection.get("/v1/grants", list[Grant], session_id=session, in_force=in_force)

    async def grant(
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
        body = {
            "capability": capability,
            "expires_at": expires_at,
            "rule": rule,
            "session_id": session,
            "agent": agent,
            "reason": reason,
        }
        return await self.connection.call("POST", "/v1/grants", Grant, body)

    async def revoke_grant(self, grant_id: str) -> Grant:
        """Revoke a grant, effective immediately."""
        path = f"/v1/grants/{grant_id}/revoke"
        return await self.connection.call("POST", path, Grant, repeatable=True)

    async def complete(self, token: str, value: Json = None) -> None:
        """Deliver the result of a call that a tool left to an external system."""
        await self.connection.send("POST", "/v1/completions", body={"token": token, "value": value})

    async def fail(self, token: str, error: StandfastError) -> None:
        """Deliver the failure of a call that a tool left to an external system."""
        body = {"token": token, "error": error.error_object()}
        await self.connection.send("POST", "/v1/completions", body=body)


class Client(DecisionClient):
    """A server, with the methods of `Runtime`. Use it as `async with Client(url, token=...) as client`.

    Args:
        url: the server's URL, such as `http://127.0.0.1:8000`.
        token: from `standfast tokens create`.
        retry_s: how long to retry an unreachable server before a request or a stream fails.
        timeout_s: the time limit for a response that does not wait for a turn.
    """

    def __init__(
        self, url: str, *, token: str | None = None, retry_s: float = 60.0, timeout_s: float = 60.0
    ) -> None:
        self.connection = ServerConnection(url, token, retry_s=retry_s, timeout_s=timeout_s)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    async def who_am_i(self) -> WhoAmI:
        """Return the credential's id, tenant and scopes."""
        return await self.connection.get("/v1/whoami", WhoAmI)

    async def agents(self) -> list[AgentView]:
        """Return the server's agents."""
        return await self.connection.get("/v1/agents", list[AgentView])

    # Sessions

    async def session(
        self, session_id: str = "default", *, agent: str, metadata: Mapping[str, Json] | None = None
    ) -> RemoteSession:
        """Open a session with the agent of this name, creating it if needed."""
        body = {"session_id": session_id, "agent": agent, "metadata": dict(metadata or {})}
        head = await self.connection.call("POST", "/v1/sessions", SessionHead, body, repeatable=True)
        return RemoteSession(self.connection, head.session_id)

    def session_handle(self, session_id: str) -> RemoteSession:
        """Return a session by its id, without a request to the server."""
        return RemoteSession(self.connection, session_id)

    async def sessions(
        self, *, agent: str | None = None, state: str | None = None, prefix: str | None = None
    ) -> list[SessionLine]:
        """Return all sessions, most recently used first."""
        found: list[SessionLine] = []
        after = None
        while True:
            asked = {"agent": agent, "state": state, "prefix": prefix, "after": after, "limit": 200}
            page = await self.connection.get("/v1/sessions", SessionPage, **asked)
            found += page.sessions
            after = page.next
            if after is None:
                return found

    async def fork(self, session_id: str, new_id: str, *, at: str | None = None) -> RemoteSession:
        """Create a session over the same history."""
        return await self.session_handle(session_id).fork(new_id, at=at)

    async def rewind(self, session_id: str, to: str | None = None, *, turns: int = 1) -> SessionHead:
        """Rewind a session to the node *to*, or by a number of turns."""
        return await self.session_handle(session_id).rewind(to, turns=turns)

    async def delete(self, session_id: str) -> None:
        """Delete a session."""
        await self.connection.send("DELETE", f"/v1/sessions/{session_id}")

    async def events(self, after: str | None = None) -> AsyncIterator[tuple[str, SessionEvent]]:
        """Yield a cursor and an event for everything in any session. It reconnects and never ends."""
        async for event in self.connection.events("/v1/events", after):
            yield event.id, _event(event.data)

    # Code

    async def run(self, code: str, *, session: str = "default", **options: Any) -> RunResult:
        """Run code in a session; *options* are those of `Sandbox.run`."""
        body = {"code": code, "session_id": session, **options}
        return await self.connection.call("POST", "/v1/runs", RunResult, body, patient=True)

    async def validate(self, code: str, *, session: str = "default", **options: Any) -> RunResult:
        """Check code without running it."""
        body = {"code": code, "session_id": session, **options}
        return await self.connection.call("POST", "/v1/validations", RunResult, body, patient=True)

    async def upload(self, attachment: Attachment) -> Uploaded:
        """Upload an attachment, which a turn then refers to by its digest."""
        return await upload(self.connection, attachment)

    # Background

    async def tasks(self, *, live: bool = False) -> list[TaskRecord]:
        """Return the background tasks of all sessions, oldest first."""
        return await self.connection.get("/v1/tasks", list[TaskRecord], live=live)

    async def cancel_task(self, session_id: str, task_id: str) -> TaskRecord:
        """Cancel a background task."""
        path = f"/v1/sessions/{session_id}/tasks/{task_id}/cancel"
        return await self.connection.call("POST", path, TaskRecord)

    async def start_monitor(self, session_id: str, spec: MonitorSpec) -> MonitorSnapshot:
        """Start a monitor on the server's machine."""
        path = f"/v1/sessions/{session_id}/monitors"
        return await self.connection.call("POST", path, MonitorSnapshot, spec)

    async def triggers(self) -> list[Trigger]:
        """Return all triggers by name."""
        return await self.connection.get("/v1/triggers", list[Trigger])

    async def add_trigger(
        self,
        name: str,
        source: str,
        session_id: str,
        *,
        prompt: str = "{payload}",
        schedule: Schedule | None = None,
        enabled: bool = True,
    ) -> Trigger:
        """Queue a turn of a session for each occurrence at a source, replacing a trigger of this name."""
        body = {
            "source": source,
            "session_id": session_id,
            "prompt": prompt,
            "schedule": schedule,
            "enabled": enabled,
        }
        return await self.connection.call("PUT", f"/v1/triggers/{name}", Trigger, body, repeatable=True)

    async def remove_trigger(self, name: str) -> None:
        """Delete a trigger. Inputs that it has queued remain."""
        await self.connection.send("DELETE", f"/v1/triggers/{name}")

    async def occur(self, source: str, key: str, payload: Json = None) -> int:
        """Report an occurrence at a source; return the number of turns it starts."""
        body = {"source": source, "key": key, "payload": payload}
        return (await self.connection.call("POST", "/v1/occurrences", Occurred, body, repeatable=True)).turns

    async def usage_by_day(self, *, agent: str | None = None, since_ms: int = 0) -> list[DayUsage]:
        """Return the usage of turns by day, session and agent, latest day first."""
        return await self.connection.get("/v1/usage/days", list[DayUsage], agent=agent, since_ms=since_ms)

    async def usage(self, *, agent: str | None = None, since_ms: int = 0) -> UsageReport:
        """Return the usage and cost of sessions."""
        return await self.connection.get("/v1/usage", UsageReport, agent=agent, since_ms=since_ms)
