"""Sessions as Restate virtual objects. Restate decides where and when their turns run.

Theory of operation
-------------------
Each session is an object whose key is the session's id. A turn is one durable step. If Restate retries the
step, on this worker or another, the turn has the same idempotency key, so the retry finds it: it returns the
result of a turn that has ended, joins one that is still running, and takes over one whose worker is dead or
whose lease has expired, resuming at the end of its journal.

Rules
-----
1. `turn` and `wake` are exclusive and run turns. All other handlers are shared: they write to the store and
   send `wake`. As exclusive handlers they would wait behind the very turn that waits for them.
2. Only errors that a retry can fix are retried, because the retry holds the session's lock: the store is
   unreachable, or another worker has the session. Every other error is terminal.
3. The runtime itself starts only the turns of subagents. A parked turn has a `wake` at its next due time; a
   sweep sends one for turns and inputs whose invocation was lost.
4. Restate never aborts a step: only the worker's death, or the turn's own limits, end it early.
5. Waiting code resumes on the engine build that suspended it. Each build is its own object type, so that
   Restate still finds the workers that have it after a newer version was registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec
from hypercorn.asyncio import serve
from hypercorn.config import Config
from restate import ObjectContext, ObjectSharedContext, RunOptions, TerminalError, VirtualObject, app
from restate.retry_policy import InvocationRetryPolicy
from restate.serde import BytesSerde

from standfast.errors import (
    ApprovalAlreadyDecided,
    Code,
    EngineMismatch,
    InputNotFound,
    InvalidArgument,
    LeaseLost,
    NotConfigured,
    RuntimeClosed,
    SessionNotFound,
    StandfastError,
    TokenAlreadyUsed,
    TokenNotFound,
)
from standfast.model.approval import ApprovalState
from standfast.model.canonical import Json, digest_bytes
from standfast.model.outcome import Wait, Waiting
from standfast.model.session import TurnState
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.agent_session import Session
from standfast.runtime.result import TurnResult
from standfast.runtime.sessions.live_session import LiveSession, TurnSlots
from standfast.store.rules import turn_of_token
from standfast.worker.restate_api import SERVICE, RestateApi

log: Final = logging.getLogger("standfast")
T = TypeVar("T")
Answer = dict[str, Any]

_ABORT: Final = timedelta(days=365)
_INACTIVITY: Final = timedelta(minutes=1)
_KEPT: Final = timedelta(days=1)
_RETRY: Final = InvocationRetryPolicy(
    initial_interval=timedelta(milliseconds=50),
    exponentiation_factor=2.0,
    max_interval=timedelta(seconds=5),
    max_attempts=10_000,
    on_max_attempts="kill",  # not "pause": this frees the lock, and a sweep finds the turn
)
_NOT_FOUND: Final = (Code.SESSION_NOT_FOUND, Code.APPROVAL_NOT_FOUND, Code.TOKEN_NOT_FOUND)
_EARLY_MS: Final = 1_000
_CLOSE_S: Final = 0.5


class TurnSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt for a session. `agent` defaults to the session's own, or to the only one."""

    prompt: str
    agent: str | None = None
    idempotency_key: str | None = None


class SubmittedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about an approval request."""

    approval_id: str
    approved: bool
    reason: str | None = None
    decided_by: str | None = None
    arguments: dict[str, Json] | None = None


class SubmittedCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call that a tool left to an external system."""

    token: str
    value: Json = None


class SessionObject:
    """The handlers of all sessions, over one runtime, running as many turns at once as *slots* allows."""

    def __init__(self, runtime: Runtime, api: RestateApi, slots: TurnSlots) -> None:
        self._runtime = runtime
        self._api = api
        self._slots = slots
        self._freed = asyncio.Event()
        slots.freed = self._freed.set
        self._draining = False
        self._steps = 0
        self._idle = asyncio.Event()

    def definitions(self) -> list[VirtualObject]:
        """Return the sessions object, and one object for each engine build installed here."""
        sessions = _new_object(SERVICE)
        _add(sessions, self.turn, TurnSubmission)
        _add(sessions, self.wake)
        _add(sessions, self.queue, TurnSubmission, shared=True)
        _add(sessions, self.inject, TurnSubmission, shared=True)
        _add(sessions, self.decide, SubmittedDecision, shared=True)
        _add(sessions, self.complete, SubmittedCompletion, shared=True)
        _add(sessions, self.cancel, shared=True)
        _add(sessions, self.show, shared=True)
        builds = [_new_object(_service_of(build)) for build in self._runtime.engine_builds()]
        for build in builds:
            _add(build, self.wake)
        return [sessions, *builds]

    # Exclusive: they run turns

    async def turn(self, ctx: ObjectContext, request: TurnSubmission) -> Answer:
        """Run a turn and return its result."""
        session_id, key = ctx.key(), _key(ctx, request)

        async def take(session: Session[Any]) -> Answer:
            async with self._slot(self._runtime.live(session_id)):
                answer = self._answer(await session.turn(request.prompt, idempotency_key=key).settled())
            inputs = [] if answer["status"] == "waiting" else await self._runtime.store.inputs(session_id)
            return {**answer, "queued": any(item.kind == "queue" for item in inputs)}

        async def run() -> Answer:
            if (session := self._open_session(session_id, request)) is not None:
                with contextlib.suppress(SessionNotFound):  # another process has deleted it
                    return await take(session)
            return await take(await self._session(session_id, request))

        # One step, because each step costs a round trip to Restate and a journal entry.
        answer = await self._step(ctx, "turn", run)
        if answer.pop("queued", False):
            self._wake_at(ctx, session_id, 0)
        elif answer["status"] == "waiting":
            self._wake_at(ctx, session_id, answer["due_ms"])
        return answer

    async def wake(self, ctx: ObjectContext) -> Answer:
        """Resume the session's turn if it can continue, then run its queued inputs, each as one step."""
        session_id, ran = ctx.key(), 0
        while True:
            answer = await self._step(ctx, "turn", lambda: self._next_turn(session_id))
            if answer["status"] in ("idle", "parked", "waiting", "elsewhere"):
                break
            ran += 1
        # A turn that was already parked has a wake scheduled; only a slightly early wake needs another.
        if answer["status"] == "waiting" or answer.get("due_ms", _EARLY_MS) < _EARLY_MS:
            self._wake_at(ctx, session_id, answer["due_ms"])
        return {"ran": ran, "status": answer["status"]}

    async def _next_turn(self, session_id: str) -> Answer:
        """Run the unfinished turn if it can continue, else the next queued input; `idle` if there is none."""
        live = await self._runtime.at_work(session_id)
        store = self._runtime.store
        if (record := await store.open_turn(session_id)) is not None:
            over = record.cancel_requested or await store.ended_waits(record.turn_id, self._runtime.now_ms())
            if record.state is TurnState.WAITING and record.summary is not None and not over:
                assert isinstance(record.summary.outcome, Waiting)
                return {"status": "parked", "due_ms": self._due_ms(record.summary.outcome.waits)}
            try:
                async with self._slot(live):
                    return self._answer(await live.turn_of(record.turn_id).settled())
            except EngineMismatch as error:
                once = f"build.{digest_bytes(msgspec.json.encode(record))[:32]}"
                if not await self._api.wake(session_id, once, service=_service_of(error.needed)):
                    raise  # no worker with that build was ever registered
                return {"status": "elsewhere"}
        queued = [item for item in await store.inputs(session_id) if item.kind == "queue"]
        if not queued:
            return {"status": "idle"}
        with contextlib.suppress(InputNotFound):  # the input was withdrawn
            async with self._slot(live):
                return self._answer(await live.run_input(queued[0]))
        return {"status": "withdrawn"}

    # Shared: they write to the store, and wake the session

    async def queue(self, ctx: ObjectSharedContext, request: TurnSubmission) -> Answer:
        """Queue a turn: like `turn`, without waiting for its result."""
        session_id, input_id = ctx.key(), _key(ctx, request)

        async def put() -> Answer:
            session = await self._session(session_id, request)
            return {"input_id": await session.queue(request.prompt, id=input_id)}

        return await self._then_wake(ctx, put)

    async def inject(self, ctx: ObjectSharedContext, request: TurnSubmission) -> Answer:
        """Inject a message into the running turn at its next checkpoint, or into the next turn."""
        session_id, input_id = ctx.key(), _key(ctx, request)

        async def put() -> Answer:
            session = self._runtime.session_handle(session_id)
            return {"input_id": await session.inject(request.prompt, id=input_id)}

        return await self._step(ctx, "inject", put)

    async def decide(self, ctx: ObjectSharedContext, request: SubmittedDecision) -> Answer:
        """Decide an approval."""
        approval_id, about = request.approval_id, {"reason": request.reason, "decided_by": request.decided_by}

        async def decide() -> Answer:
            try:
                if request.approved:
                    await self._runtime.approve(approval_id, arguments=request.arguments, **about)
                else:
                    await self._runtime.deny(approval_id, **about)
            except ApprovalAlreadyDecided:
                made = await self._runtime.store.approval(approval_id)
                wanted = ApprovalState.APPROVED if request.approved else ApprovalState.DENIED
                same = made is not None and (made.state, made.decided_by) == (wanted, request.decided_by)
                if not same:  # unless an earlier attempt of this very call was stored
                    raise
            return {"approval_id": approval_id, "approved": request.approved}

        return await self._then_wake(ctx, decide)

    async def complete(self, ctx: ObjectSharedContext, request: SubmittedCompletion) -> Answer:
        """Deliver the result of a call.

        A used token is not an error, nor is one whose turn has ended, because Restate may repeat a request.
        """

        async def complete() -> Answer:
            try:
                await self._runtime.complete(request.token, request.value)
            except TokenAlreadyUsed:
                pass
            except TokenNotFound:
                turn = await self._runtime.store.turn(turn_of_token(request.token))
                if turn is None or turn.state is not TurnState.ENDED:
                    raise
            return {"token": request.token}

        return await self._then_wake(ctx, complete)

    async def cancel(self, ctx: ObjectSharedContext) -> Answer:
        """Request cancellation of the unfinished turn; the worker that runs it, or else a wake, ends it."""
        session_id = ctx.key()

        async def cancel() -> Answer:
            record = await self._runtime.store.open_turn(session_id)
            return {"cancelled": record is not None and await self._runtime.store.cancel(record.turn_id)}

        return await self._then_wake(ctx, cancel)

    async def show(self, ctx: ObjectSharedContext) -> Answer:
        """Return the state of the session's last turn. It is not a step, so every call reads the store."""
        turns = await self._runtime.store.turns(ctx.key())
        if not turns:
            return {"state": "new"}
        last = turns[-1]
        summary = None if last.summary is None else msgspec.to_builtins(last.summary.outcome)
        return {"turn_id": last.turn_id, "state": str(last.state), "outcome": summary}

    # Steps

    async def _step(
        self, ctx: ObjectContext | ObjectSharedContext, name: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Do *work* as a durable step; errors that a retry cannot fix become terminal."""

        async def attempt() -> T:
            self._require_working(ctx.key())
            self._steps += 1
            try:
                with _terminal_errors():
                    return await work()
            finally:
                self._steps -= 1
                if not self._steps:
                    self._idle.set()

        return await ctx.run_typed(name, attempt, RunOptions())

    def _require_working(self, session_id: str) -> None:
        if self._draining:
            raise RuntimeClosed(f"of session {session_id}")

    @contextlib.asynccontextmanager
    async def _slot(self, live: LiveSession) -> AsyncIterator[None]:
        """Hold a slot for a turn of a session, waiting until one is free."""
        agent = live.require_agent().agent
        while (free := self._slots.take(agent, below=live.is_below)) is None:
            self._freed.clear()
            await self._freed.wait()
            self._require_working(live.session_id)
        try:
            yield
        finally:
            free(None)

    async def drain(self, timeout_s: float) -> None:
        """Reject new steps, which Restate then retries elsewhere, and wait for running ones."""
        self._draining = self._runtime.slots.is_closed = True
        self._freed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._steps:
                    self._idle.clear()
                    await self._idle.wait()

    async def _then_wake(self, ctx: ObjectSharedContext, write: Callable[[], Awaitable[Answer]]) -> Answer:
        answer = await self._step(ctx, "write", write)
        self._wake_at(ctx, ctx.key(), 0)
        return answer

    def _wake_at(self, ctx: ObjectContext | ObjectSharedContext, session_id: str, delay_ms: int) -> None:
        delay = timedelta(milliseconds=delay_ms) if delay_ms > 0 else None
        ctx.generic_send(SERVICE, "wake", b"", key=session_id, send_delay=delay)

    def _answer(self, result: TurnResult[Any]) -> Answer:
        """Return a result as JSON; if it waits, with `due_ms`, the time until its next wait is due."""
        due = {"due_ms": self._due_ms(result.waits)} if result.waits else {}
        outcome = msgspec.to_builtins(result.outcome)
        return {
            "turn_id": result.turn_id,
            "status": result.status,
            "text": result.text,
            "outcome": outcome,
            **due,
        }

    def _due_ms(self, waits: tuple[Wait, ...]) -> int:
        return max(0, min(wait.due_at for wait in waits) - self._runtime.now_ms()) + 1

    def _open_session(self, session_id: str, request: TurnSubmission) -> Session[Any] | None:
        """Return the session without reading the store, if it is open here with the requested agent."""
        prepared = self._runtime.live(session_id).prepared
        wanted = None if request.agent is None else self._runtime.agents.get(request.agent)
        if prepared is None or (request.agent is not None and prepared.agent is not wanted):
            return None
        return self._runtime.session_handle(session_id)

    async def _session(self, session_id: str, request: TurnSubmission) -> Session[Any]:
        """Open the session with the requested agent, else its own, else the only one."""
        name, agents = request.agent, self._runtime.agents
        if name is not None and name not in agents:
            raise InvalidArgument(f"there is no agent {name!r}", hint=f"use one of {', '.join(agents)}")
        if name is None and len(agents) == 1 and await self._runtime.store.head(session_id) is None:
            name = next(iter(agents))
        return await self._runtime.session(session_id, agent=None if name is None else agents[name])


@contextlib.contextmanager
def _terminal_errors() -> Iterator[None]:
    """Convert errors that a retry cannot fix to `TerminalError`."""
    try:
        yield
    except StandfastError as error:
        # After a lost lease another worker has the turn; the retry joins it.
        if error.retryable or isinstance(error, (RuntimeClosed, LeaseLost)):
            raise
        seen = error.error_object()
        status = 404 if seen.code in _NOT_FOUND else 409 if seen.code.endswith("CONFLICT") else 400
        raise TerminalError(f"{seen.code}: {error}", status_code=status) from error
    except Exception as error:
        log.exception("a step failed with an error that a retry cannot fix")
        raise TerminalError(f"{type(error).__name__}: {error}", status_code=500) from error


def _service_of(build: str) -> str:
    """Return the object type of the workers that have an engine build."""
    return f"{SERVICE}_{digest_bytes(build.encode())[:16]}"


def _new_object(name: str) -> VirtualObject:
    return VirtualObject(
        name,
        inactivity_timeout=_INACTIVITY,
        abort_timeout=_ABORT,
        idempotency_retention=_KEPT,
        invocation_retry_policy=_RETRY,
    )


def _add(
    to: VirtualObject,
    method: Callable[..., Awaitable[Answer]],
    request: type[msgspec.Struct] | None = None,
    *,
    shared: bool = False,
) -> None:
    """Register *method* as a plain function, as Restate requires; *request* is the type of its JSON body."""

    async def alone(ctx: ObjectContext) -> Answer:
        return await method(ctx)

    async def asked(ctx: ObjectContext, body: bytes) -> Answer:
        try:
            given = msgspec.json.decode(body, type=request)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TerminalError(f"{Code.INVALID_ARGUMENT}: {error}", status_code=400) from None
        return await method(ctx, given)

    add = to.handler(method.__name__, kind="shared" if shared else "exclusive", input_serde=BytesSerde())
    add(alone if request is None else asked)


def _key(ctx: ObjectContext | ObjectSharedContext, request: TurnSubmission) -> str:
    """Return the request's idempotency key, else the invocation's id, which retries share.

    The key in the ingress header is Restate's own: calls with the same key reach the handler once.
    """
    return request.idempotency_key or ctx.request().id


# Serving


def listen_for_restate(address: tuple[str, int]) -> socket.socket:
    """Return a socket listening on *address*, which other workers on this machine can share.

    The kernel distributes connections among them.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind(address)
        listening.listen()
    except OSError as error:
        listening.close()
        where = f"{address[0]}:{address[1]}"
        raise NotConfigured(f"cannot listen on {where}: {error.strerror or error}") from None
    return listening


async def serve_sessions(
    sessions: SessionObject,
    listening: socket.socket,
    stop: Callable[[], Awaitable[object]],
    grace_s: float,
) -> None:
    """Serve *sessions* to Restate until *stop* returns; give running steps *grace_s* to end."""
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.keep_alive_max_requests = 10**9  # or every 1,000th request breaks the connection for all others
    config.h2_max_concurrent_streams = 10_000
    config.graceful_timeout = _CLOSE_S  # Restate keeps its connections open
    config.loglevel = "WARNING"
    config.accesslog = None

    async def stopped() -> None:
        await stop()
        await sessions.drain(grace_s)

    await serve(app(sessions.definitions()), config, shutdown_trigger=stopped)
