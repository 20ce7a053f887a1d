"""Endpoints for operators: health, metrics, usage, traces, the OpenAPI document, the credential itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
from starlette.responses import Response

from standfast.errors import InvalidArgument, StandfastError
from standfast.model.canonical import Json
from standfast.model.limits import Usage, UsageEntry, add_to_ledger
from standfast.ports.session_store import DayUsage, Pruned
from standfast.runtime.http_values import Health, Prune, Trace, TraceQuery, UsageQuery, UsageReport, WhoAmI
from standfast.runtime.operations import OperationsView
from standfast.server.calls import JSON, Call, Routes
from standfast.server.credentials import Scope
from standfast.trace.trace_reader import read_trace

ROUTES: Final = Routes()


@ROUTES.add("GET", "/healthz", Scope.PUBLIC, answer=Health)
async def healthz(call: Call) -> Health:
    """Report whether the process serves requests."""
    return Health(status="ok")


@ROUTES.add("GET", "/readyz", Scope.PUBLIC, answer=Health, other_statuses=(503,))
async def readyz(call: Call) -> Response:
    """Report whether the server accepts new work: 503 while it shuts down or cannot read its store."""

    status: Health = Health(status="ok")
    if call.server.draining:
        status = Health(status="draining")
    else:
        try:
            await call.runtime.store.head("standfast-ready")
        except StandfastError:
            status = Health(status="unavailable")
    return Response(msgspec.json.encode(status), 200 if status.status == "ok" else 503, None, JSON)


@ROUTES.add("GET", "/metrics", Scope.READ, answer=str, operator_only=True)
async def metrics(call: Call) -> Response:
    """Return counters and gauges in the Prometheus text format."""
    server = call.server
    lines = [
        "# TYPE standfast_responses_total counter",
        *(
            f'standfast_responses_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(server.counts.items())
        ),
        "# TYPE standfast_streams gauge",
        f"standfast_streams {len(server.streams.open)}",
        "# TYPE standfast_turns gauge",
        f"standfast_turns {len(server.turns)}",
        "# TYPE standfast_draining gauge",
        f"standfast_draining {int(server.draining)}",
    ]
    with suppress(StandfastError):  # the other metrics are useful without these
        counts = msgspec.structs.asdict(await call.runtime.turn_counts())
        lines += ["# TYPE standfast_store_turns gauge"]
        lines += [f'standfast_store_turns{{state="{state}"}} {count}' for state, count in counts.items()]
    return Response("\n".join(lines) + "\n", 200, None, "text/plain; version=0.0.4; charset=utf-8")


@ROUTES.add("GET", "/v1/usage", Scope.READ, query=UsageQuery, answer=UsageReport)
async def usage(call: Call) -> UsageReport:
    """Return the usage and cost of sessions, in total and by source and model."""
    asked: UsageQuery = call.query
    ledger: tuple[UsageEntry, ...] = ()
    total, count = Usage(), 0
    for head in await call.visible_heads():
        if asked.agent in (None, head.agent) and head.updated_at >= asked.since_ms:
            ledger = add_to_ledger(ledger, head.usage)
            count += 1
    for entry in ledger:
        total += entry.usage
    return UsageReport(sessions=count, total=total, entries=ledger)


@ROUTES.add("GET", "/v1/usage/days", Scope.READ, query=UsageQuery, answer=list[DayUsage])
async def usage_days(call: Call) -> list[DayUsage]:
    """Return the usage of turns by day, session and agent, latest day first."""
    asked: UsageQuery = call.query
    mine = {head.session_id for head in await call.visible_heads()}
    found = await call.runtime.usage_by_day(since_ms=asked.since_ms)
    return [one for one in found if one.session_id in mine and asked.agent in (None, one.agent)]


@ROUTES.add("GET", "/v1/sessions/{session_id}/trace", Scope.READ, query=TraceQuery, answer=Trace)
async def trace(call: Call) -> Trace:
    """Return the trace of a session, from the server's trace file if it has one.

    Without a file, the spans of one turn are derived from its journal.
    """
    asked: TraceQuery = call.query
    head, file = await call.head(), call.server.trace_file
    wanted = asked.turn_id
    if file is None:
        if wanted is None:
            raise InvalidArgument(
                "turn_id is missing", hint="pass turn_id, or start the server with --trace FILE"
            )
        session = call.runtime.session_handle(head.session_id)
        return Trace(records=tuple(await session.spans(wanted)))
    found = [
        record
        for record in read_trace(file)
        if record.session_id == head.session_id and wanted in (None, record.turn_id)
    ]
    return Trace(records=tuple(found))


@ROUTES.add("GET", "/v1/operations", Scope.ADMIN, answer=OperationsView, operator_only=True)
async def operations(call: Call) -> OperationsView:
    """Return leases, workers, queues, waits, stuck turns, triggers and the size of the store."""
    return await call.runtime.operations()


@ROUTES.add("POST", "/v1/prune", Scope.ADMIN, body=Prune, answer=Pruned, operator_only=True)
async def prune(call: Call) -> Pruned:
    """Delete records that are no longer needed, and free their space."""
    asked: Prune = call.body
    pruned = await call.runtime.prune(
        older_than_s=asked.older_than_s,
        frames=asked.frames,
        branches=asked.branches,
        session=asked.session_id,
    )
    freed = f"{pruned.sessions} sessions, {pruned.records} records, {pruned.bytes_freed} bytes"
    call.audit("pruned", asked.session_id or "store", freed)
    return pruned


@ROUTES.add("GET", "/v1/openapi.json", Scope.READ, answer=dict[str, Json])
async def openapi(call: Call) -> Response:
    """Return this document."""
    return Response(call.server.document, 200, None, JSON)


@ROUTES.add("GET", "/v1/whoami", Scope.READ, answer=WhoAmI)
async def who_am_i(call: Call) -> WhoAmI:
    """Return the credential of the request: its id, tenant and scopes."""
    one = call.credential
    return WhoAmI(
        id=one.id,
        name=one.name,
        tenant=one.tenant,
        scopes=tuple(sorted(one.scopes)),
        expires_at=one.expires_at,
    )
