"""Code over HTTP: runs, validation, snapshots."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from standfast.errors import Code, RequestRefused, SessionExists
from standfast.model.limits import lowered, require_allowed
from standfast.model.run import RunRequest, RunResult
from standfast.runtime.http_values import Restore, Restored, RunCode, SnapshotMade
from standfast.server.calls import BINARY, Call, Routes
from standfast.server.credentials import Scope
from standfast.server.tenants import new_session_id

_OWNER: Final = "standfast.server"
ROUTES: Final = Routes()


@ROUTES.add(
    "POST",
    "/v1/runs",
    Scope.RUN,
    body=RunCode,
    answer=RunResult,
    headers={"Idempotency-Key": "Repeated with its key, a run returns the stored result and runs nothing."},
)
async def run_code(call: Call) -> RunResult:
    """Run code in a session, which is created if needed. The result also reports failures of the code."""
    return await _execute(call, validate_only=False)


@ROUTES.add("POST", "/v1/validations", Scope.RUN, body=RunCode, answer=RunResult)
async def validate_code(call: Call) -> RunResult:
    """Check code without running it."""
    return await _execute(call, validate_only=True)


async def _execute(call: Call, *, validate_only: bool) -> RunResult:
    asked: RunCode = call.body
    box = call.server.require_sandbox()
    call.server.require_serving()
    session_id = new_session_id(call.tenant, asked.session_id)
    head = await call.runtime.store.head(session_id)
    if head is not None and (head.tenant != call.tenant or head.code is None):
        raise SessionExists(asked.session_id)
    limits = asked.limits
    if not call.credential.allows(Scope.ADMIN):
        allowed = box.options.limits
        limits = None if limits is None else lowered(limits, allowed)
        if asked.timeout_ms is not None:
            require_allowed("timeout_ms", asked.timeout_ms, allowed.wall_ms)
    request = RunRequest(
        session_id=session_id,
        language=asked.language,
        code=asked.code,
        inputs=asked.inputs,
        timeout_ms=asked.timeout_ms,
        limits=limits,
        validate_only=validate_only,
        idempotency_key=call.headers.get("idempotency-key") or None,
    )
    with call.server.limiter.use_turn(call.credential.id):
        return await box.execute(request)


@ROUTES.add("POST", "/v1/sessions/{session_id}/snapshots", Scope.RUN, answer=SnapshotMade, status=201)
async def make_snapshot(call: Call) -> SnapshotMade:
    """Store a snapshot of a session that runs code."""
    head = await call.head()
    snapshot_id = await call.server.require_sandbox().snapshot(head.session_id)
    now = call.runtime.now_ms()
    await call.runtime.store.put_plugin_record(
        _OWNER, _scope(call), snapshot_id, head.session_id.encode(), now
    )
    return SnapshotMade(snapshot_id=snapshot_id)


@ROUTES.add("GET", "/v1/snapshots/{snapshot_id}", Scope.READ, answer=bytes)
async def read_snapshot(call: Call) -> Response:
    """Return the signed bytes of a stored snapshot."""
    box, snapshot_id = call.server.require_sandbox(), call.path["snapshot_id"]
    await _require_snapshot(call, snapshot_id)
    return Response(await box.export_snapshot(snapshot_id), 200, None, BINARY)


@ROUTES.add("POST", "/v1/sessions/{session_id}/restore", Scope.RUN, body=Restore, answer=Restored)
async def restore(call: Call) -> Restored:
    """Restore a stored snapshot into a session."""
    asked: Restore = call.body
    box = call.server.require_sandbox()
    await _require_snapshot(call, asked.snapshot_id)
    session_id = new_session_id(call.tenant, call.path["session_id"])
    head = await call.runtime.store.head(session_id)
    if head is not None and (head.tenant != call.tenant or head.code is None):
        raise SessionExists(call.path["session_id"])
    return Restored(session_id=await box.restore(asked.snapshot_id, session=session_id))


async def _require_snapshot(call: Call, snapshot_id: str) -> None:
    if await call.runtime.store.plugin_record(_OWNER, _scope(call), snapshot_id) is None:
        raise RequestRefused(404, Code.INPUT_NOT_FOUND, f"there is no snapshot {snapshot_id[:80]!r}")


def _scope(call: Call) -> str:
    return f"snapshots:{call.tenant}"
