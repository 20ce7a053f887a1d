"""Background work over HTTP: tasks, monitors, triggers, occurrences, webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

from standfast.errors import Code, InvalidArgument, RequestRefused, TaskNotFound, TriggerNotFound
from standfast.model.monitor import MonitorSnapshot, MonitorSpec, MonitorUpdateBatch
from standfast.model.task import TaskRecord
from standfast.model.trigger import Trigger
from standfast.runtime.http_values import Occur, Occurred, PutTrigger, TaskQuery
from standfast.runtime.triggers import webhook_occurrence
from standfast.server.calls import Call, Routes
from standfast.server.credentials import Scope
from standfast.server.tenants import owned_id, owns_id

WEBHOOK_TOLERANCE_S: Final = 300
_MONITORS = "/v1/sessions/{session_id}/monitors"
_SIGNATURE = {
    "Webhook-Id": "The id of the delivery; received again, it has no effect.",
    "Webhook-Timestamp": "When it was signed, in seconds since 1970.",
    "Webhook-Signature": "`v1,` and the base64 of the HMAC-SHA256 of `ID.TIMESTAMP.BODY`.",
}
ROUTES: Final = Routes()


@ROUTES.add("GET", "/v1/tasks", Scope.READ, query=TaskQuery, answer=list[TaskRecord])
async def list_tasks(call: Call) -> list[TaskRecord]:
    """List the background tasks of all sessions, oldest first."""
    asked: TaskQuery = call.query
    mine = {head.session_id for head in await call.visible_heads()}
    found = await call.runtime.store.tasks(live=asked.live)
    return [task for task in found if task.session_id in mine]


@ROUTES.add("GET", "/v1/sessions/{session_id}/tasks", Scope.READ, query=TaskQuery, answer=list[TaskRecord])
async def session_tasks(call: Call) -> list[TaskRecord]:
    """List the background tasks of a session, oldest first."""
    asked: TaskQuery = call.query
    return await call.runtime.store.tasks(session_id=(await call.head()).session_id, live=asked.live)


@ROUTES.add("POST", "/v1/sessions/{session_id}/tasks/{task_id}/cancel", Scope.RUN, answer=TaskRecord)
async def cancel_task(call: Call) -> TaskRecord:
    """Cancel a background task."""
    head, task_id = await call.head(), call.path["task_id"]
    if await call.runtime.store.task(head.session_id, task_id) is None:
        raise TaskNotFound(head.session_id, task_id)
    return await call.runtime.tasks.cancel(head.session_id, task_id)


@ROUTES.add("GET", _MONITORS, Scope.READ, answer=MonitorSnapshot)
async def list_monitors(call: Call) -> MonitorSnapshot:
    """List the monitors of a session."""
    return await call.runtime.monitors.snapshot((await call.head()).session_id)


@ROUTES.add("POST", _MONITORS, Scope.ADMIN, body=MonitorSpec, answer=MonitorSnapshot, status=201)
async def start_monitor(call: Call) -> MonitorSnapshot:
    """Start a monitor, which runs a command on the server's machine."""
    spec: MonitorSpec = call.body
    call.server.require_serving()
    return await call.runtime.monitors.start((await call.head()).session_id, spec)


@ROUTES.add("POST", f"{_MONITORS}/{{monitor_id}}/stop", Scope.RUN, answer=MonitorSnapshot)
async def stop_monitor(call: Call) -> MonitorSnapshot:
    """Stop a monitor."""
    return await call.runtime.monitors.stop((await call.head()).session_id, call.path["monitor_id"])


@ROUTES.add("POST", "/v1/sessions/{session_id}/monitor-updates", Scope.RUN, answer=MonitorUpdateBatch)
async def take_updates(call: Call) -> MonitorUpdateBatch:
    """Take the pending updates of a session's monitors. Each update is returned once."""
    return await call.runtime.monitors.take_updates((await call.head()).session_id)


@ROUTES.add("GET", "/v1/triggers", Scope.READ, answer=list[Trigger])
async def list_triggers(call: Call) -> list[Trigger]:
    """List triggers by name."""
    return [one for one in await call.runtime.triggers() if owns_id(call.tenant, one.name)]


@ROUTES.add("PUT", "/v1/triggers/{name}", Scope.RUN, body=PutTrigger, answer=Trigger)
async def put_trigger(call: Call) -> Trigger:
    """Create a trigger, or replace the one with the same name."""
    asked: PutTrigger = call.body
    head = await call.head(asked.session_id)
    return await call.runtime.add_trigger(
        _owned_name(call, call.path["name"]),
        _owned_name(call, asked.source),
        head.session_id,
        prompt=asked.prompt,
        schedule=asked.schedule,
        enabled=asked.enabled,
    )


def _owned_name(call: Call, given: str) -> str:
    """Return the stored form of a trigger's or source's name."""
    stored = owned_id(call.tenant, given)
    if not owns_id(call.tenant, stored):
        raise InvalidArgument(
            f"{given[:80]!r} begins with the prefix of a tenant", hint="choose another name"
        )
    return stored


@ROUTES.add("DELETE", "/v1/triggers/{name}", Scope.RUN, status=204)
async def delete_trigger(call: Call) -> None:
    """Delete a trigger. Inputs that it has queued remain."""
    if not await call.runtime.remove_trigger(_owned_name(call, call.path["name"])):
        raise TriggerNotFound(call.path["name"])


@ROUTES.add("POST", "/v1/occurrences", Scope.RUN, body=Occur, answer=Occurred)
async def occur(call: Call) -> Occurred:
    """Report an occurrence at a source."""
    asked: Occur = call.body
    call.server.require_serving()
    source = _owned_name(call, asked.source)
    return Occurred(turns=await call.runtime.occur(source, asked.key, asked.payload))


@ROUTES.add("POST", "/v1/webhooks/{source}", Scope.SIGNED, body=bytes, answer=Occurred, headers=_SIGNATURE)
async def receive_webhook(call: Call) -> Occurred:
    """Receive a webhook that is signed over its id, timestamp and body, as in Standard Webhooks.

    A timestamp more than five minutes off is rejected; a repeated id has no effect.
    """
    call.server.require_serving()
    source, body, headers = call.path["source"], call.body, call.headers
    secret = call.server.webhook_secrets.get(source)
    delivery, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signature = headers.get("webhook-signature", "")
    if secret is None or not _is_signed(secret, delivery, sent_at, body, signature):
        raise _refused(f"the signature of a webhook from {source[:80]!r} is missing or wrong")
    age_s = call.runtime.now_ms() / 1000 - int(sent_at)
    if abs(age_s) > WEBHOOK_TOLERANCE_S:
        raise _refused(f"the webhook was signed {age_s:.0f} s ago")
    occurred = webhook_occurrence(source, body, f"webhook:{delivery}", call.runtime.now_ms())
    return Occurred(turns=await call.runtime.occur(source, occurred.key, occurred.payload))


def _is_signed(secret: str, delivery: str, sent_at: str, body: bytes, signatures: str) -> bool:
    """Return whether one of *signatures* matches this delivery, comparing in constant time."""
    if not 0 < len(delivery) <= 256 or not sent_at.isascii() or not sent_at.isdigit() or len(sent_at) > 12:
        return False
    key = secret.encode()
    if secret.startswith("whsec_"):
        key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{delivery}.{sent_at}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [one.removeprefix("v1,") for one in signatures.split()[:10]]
    return any(hmac.compare_digest(expected, one.encode("ascii", "replace").decode()) for one in given)


def _refused(message: str) -> RequestRefused:
    return RequestRefused(
        401,
        Code.UNAUTHENTICATED,
        message,
        hint="send Webhook-Id, Webhook-Timestamp and Webhook-Signature, as in Standard Webhooks",
        headers={"www-authenticate": "Signature"},
    )
