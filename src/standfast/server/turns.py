"""Turns over HTTP: start, follow, inject, queue, cancel; and external completions.

Rule: a turn runs in the runtime. A request only starts it, waits for it or watches it; if the client
disconnects, the turn continues, and any other request can follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from starlette.responses import Response

from standfast.errors import StandfastError, TokenNotFound, TurnNotFound
from standfast.model.canonical import Json
from standfast.model.events import TurnBlocked, TurnCommitted, TurnParked
from standfast.model.journal import JournalStep
from standfast.model.limits import UsageLimits, lowered
from standfast.model.session import TurnRecord, TurnState
from standfast.ports.session_store import QueuedInput
from standfast.runtime.agent_session import Attachment, Prompt, Session
from standfast.runtime.http_values import (
    Cancelled,
    Complete,
    CreateTurn,
    InputAttachment,
    InputSent,
    SendInput,
    TurnContent,
    TurnQuery,
    TurnView,
    Withdrawn,
    view_record,
    view_result,
)
from standfast.runtime.sessions.observation import Cursor, Observed, messages_of_turn
from standfast.runtime.turn import Turn
from standfast.server.attachments import load_upload
from standfast.server.calls import JSON, Call, Routes
from standfast.server.credentials import Scope
from standfast.server.problems import malformed
from standfast.server.sessions import last_event_id, sse_of, stream
from standfast.server.streams import EventStream, sse

_LOOK_S = 0.5
_QUIET_S = 0.25
_TURN = "/v1/sessions/{session_id}/turns/{turn_id}"
ROUTES: Final = Routes()


@ROUTES.add(
    "POST",
    "/v1/sessions/{session_id}/turns",
    Scope.RUN,
    body=CreateTurn,
    answer=TurnView,
    streams=True,
    headers={
        "Idempotency-Key": "The same key and input name the same turn; another input is a conflict.",
        "Prefer": "`respond-async` answers as soon as the turn is stored.",
    },
    other_statuses=(202,),
)
async def create_turn(call: Call) -> Any:
    """Start a turn and return its result, or with `Accept: text/event-stream` its events and then its result.

    With `Prefer: respond-async`, respond as soon as the turn is stored.
    """
    asked: CreateTurn = call.body
    session = await call.working_session()
    before = await session.cursor() if call.wants_stream else None
    turn = await start_turn(
        call,
        session,
        await read_content(call, asked.input),
        limits=_allowed_limits(call, session, asked.limits),
        key=call.headers.get("idempotency-key") or None,
    )
    if before is not None:
        return follow_turn(call, session, turn.turn_id, before)
    if "respond-async" in call.headers.get("prefer", ""):
        view = TurnView(turn_id=turn.turn_id, session_id=session.session_id, status="running")
        return Response(msgspec.json.encode(view), 202, {"location": _address(call, turn.turn_id)}, JSON)
    return view_result(await turn.settled())


def _allowed_limits(call: Call, session: Session[Any], asked: UsageLimits | None) -> UsageLimits | None:
    """Return the limits of a turn, which only an `admin` credential may raise above those of the agent."""
    prepared = call.runtime.live(session.session_id).prepared
    if asked is None or prepared is None or call.credential.allows(Scope.ADMIN):
        return asked
    return lowered(asked, prepared.agent.limits)


async def start_turn(
    call: Call,
    session: Session[Any],
    prompt: Prompt,
    *,
    limits: UsageLimits | None = None,
    key: str | None = None,
    system: Sequence[str] = (),
    settings: Mapping[str, Json] | None = None,
) -> Turn[Any]:
    """Start a turn, return it once it is stored, and count it for the credential until it ends or waits.

    The same *key* and prompt identify the same turn. *system* and *settings* are as for `Session.turn`.
    """
    call.server.require_serving()
    turn = session.turn(prompt, limits=limits, idempotency_key=key, system=system or None, settings=settings)
    turns, counted = call.server.turns, call.server.limiter.use_turn(call.credential.id)
    running = turn.start()
    turns.add(running)

    def ended(task: asyncio.Task[Any]) -> None:
        turns.discard(task)
        counted.close()

    running.add_done_callback(ended)
    await turn.begun()
    if turn.done:
        await turn.settled()  # raises the error that kept it from beginning
    return turn


async def read_content(call: Call, content: TurnContent) -> Any:
    """Convert a turn's input for `Session.turn`, loading uploaded attachments."""
    if isinstance(content, str):
        if not content.strip():
            raise malformed("the input is blank")
        return content
    parts: list[str | Attachment] = []
    for part in content:
        if isinstance(part, InputAttachment):
            parts.append(await load_upload(call, part.digest))
        else:
            parts.append(part.text)
    return parts


def follow_turn(call: Call, session: Session[Any], turn_id: str, after: Cursor) -> EventStream:
    """Stream the session's events after a cursor until a turn ends or waits, then the turn's result."""

    async def chunks() -> AsyncIterator[bytes]:
        record = await turn_record(call, session.session_id, turn_id)
        events = session.observe(after)
        if record.state is not TurnState.RUNNING:
            events = _until_quiet(events)
        async for observed in events:
            yield sse_of(observed)
            event = observed.event
            if isinstance(event, (TurnCommitted, TurnParked, TurnBlocked)) and event.turn_id == turn_id:
                break
        yield sse(await _view(call, session.session_id, turn_id), name="result")

    async def may_end() -> bool:
        """Return whether the turn is over although the stream is quiet, because another process ran it."""
        return (await turn_record(call, session.session_id, turn_id)).state is not TurnState.RUNNING

    location = (b"location", _address(call, turn_id).encode())
    return stream(call, chunks(), [location], may_end)


async def _until_quiet(events: AsyncIterator[Observed]) -> AsyncIterator[Observed]:
    """Yield the events that are already available."""
    with suppress(TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(events), _QUIET_S)


@ROUTES.add(
    "GET",
    _TURN,
    Scope.READ,
    query=TurnQuery,
    answer=TurnView,
    streams=True,
    headers={"Last-Event-ID": "The cursor of the last event that the client has."},
)
async def read_turn(call: Call) -> Any:
    """Read a turn as JSON, or as an event stream until it ends or waits.

    With `wait_s`, the JSON response is delayed until the turn ends or waits, or until that time has passed.
    """
    session = await call.session()
    turn_id = call.path["turn_id"]
    record = await turn_record(call, session.session_id, turn_id)
    if call.wants_stream:
        cursor = last_event_id(call)
        after = Cursor(depth=(await session.head()).depth) if cursor is None else Cursor.parse(cursor)
        return follow_turn(call, session, turn_id, after)
    asked: TurnQuery = call.query
    until = asyncio.get_running_loop().time() + asked.wait_s
    while record.state is TurnState.RUNNING and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_LOOK_S)
        record = await turn_record(call, session.session_id, turn_id)
    return await _view(call, session.session_id, turn_id)


@ROUTES.add("GET", "/v1/sessions/{session_id}/turns", Scope.READ, answer=list[TurnRecord])
async def list_turns(call: Call) -> list[TurnRecord]:
    """List the turns of a session, oldest first."""
    return await (await call.session()).turns()


@ROUTES.add("GET", f"{_TURN}/journal", Scope.READ, answer=list[JournalStep])
async def read_journal(call: Call) -> list[JournalStep]:
    """Read a turn's journal: each input of its machine, with the machine's state and decisions after it."""
    return await (await call.session()).journal(call.path["turn_id"])


@ROUTES.add("POST", f"{_TURN}/cancel", Scope.RUN, answer=Cancelled)
async def cancel_turn(call: Call) -> Cancelled:
    """Cancel a turn."""
    session = await call.session()
    record = await turn_record(call, session.session_id, call.path["turn_id"])
    return Cancelled(cancelled=await call.runtime.cancel(record.turn_id))


@ROUTES.add("POST", f"{_TURN}/resume", Scope.RUN, answer=TurnView)
async def resume_turn(call: Call) -> TurnView:
    """Resume a waiting or interrupted turn, and return it once it ends or waits again."""
    call.server.require_serving()
    session = await call.working_session()
    record = await turn_record(call, session.session_id, call.path["turn_id"])
    if record.state is TurnState.ENDED:
        return await _view(call, session.session_id, record.turn_id)
    return view_result(await session.follow(record.turn_id).settled())


@ROUTES.add(
    "POST", "/v1/sessions/{session_id}/inputs", Scope.RUN, body=SendInput, answer=InputSent, status=202
)
async def send_input(call: Call) -> InputSent:
    """Inject a message into the running turn, or queue it for its own turn."""
    asked: SendInput = call.body
    call.server.require_serving()
    session = await call.working_session()
    content = await read_content(call, asked.input)
    input_id = None if asked.id is None else f"{session.session_id}.{asked.id}"
    send = session.inject if asked.mode == "inject" else session.queue
    return InputSent(input_id=await send(content, id=input_id))


@ROUTES.add("GET", "/v1/sessions/{session_id}/inputs", Scope.READ, answer=list[QueuedInput])
async def list_inputs(call: Call) -> list[QueuedInput]:
    """List the inputs that no turn has claimed yet."""
    return await (await call.session()).inputs()


@ROUTES.add("DELETE", "/v1/sessions/{session_id}/inputs/{input_id}", Scope.RUN, answer=Withdrawn)
async def withdraw_input(call: Call) -> Withdrawn:
    """Withdraw an input that no turn has claimed."""
    session = await call.session()
    mine = any(item.input_id == call.path["input_id"] for item in await session.inputs())
    return Withdrawn(withdrawn=mine and await session.withdraw(call.path["input_id"]))


@ROUTES.add("POST", "/v1/completions", Scope.RUN, body=Complete, status=204)
async def complete(call: Call) -> None:
    """Deliver the result, or the failure, of a call that waits for an external system."""
    asked: Complete = call.body
    turn_id = asked.token.removeprefix("cpl_").partition(".")[0]
    if await call.turn(turn_id) is None:
        raise TokenNotFound(asked.token)
    if asked.error is None:
        await call.runtime.complete(asked.token, asked.value)
    else:
        failure = StandfastError(asked.error.message, hint=asked.error.hint)
        failure.code = asked.error.code
        await call.runtime.fail(asked.token, failure)


async def turn_record(call: Call, session_id: str, turn_id: str) -> TurnRecord:
    """Return the record of a session's turn; raise `TurnNotFound` if the session has no such turn."""
    record = await call.runtime.store.turn(turn_id)
    if record is None or record.session_id != session_id:
        raise TurnNotFound(turn_id)
    return record


async def _view(call: Call, session_id: str, turn_id: str) -> TurnView:
    record = await turn_record(call, session_id, turn_id)
    return view_record(record, await messages_of_turn(call.runtime.store, record))


def _address(call: Call, turn_id: str) -> str:
    return f"/v1/sessions/{call.path['session_id']}/turns/{turn_id}"
