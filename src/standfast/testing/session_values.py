"""Small values for tests of session stores: heads, turns, commits, waits.

Owners whose name begins with `dead` are dead: pass `is_dead` to the store under test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec
import pytest

from standfast.errors import Code, ErrorObject
from standfast.model.approval import Approval, ApprovalState
from standfast.model.canonical import Json, digest_bytes
from standfast.model.frame import FrameSwitch
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, AttachmentPart, UserMessage
from standfast.model.outcome import Finished, Outcome, Stopped, StopReason, Wait, Waiting, WaitKind
from standfast.model.session import Entry, FrameOpened, SessionHead, TurnSummary
from standfast.ports import session_store as port

T = TypeVar("T")

NOW: Final = 1_700_000_000_000
LEASE_MS: Final = 30_000
ANSWER: Final = "It is forty-two."
USAGE: Final = (UsageEntry(source="turn", model="m1", usage=Usage(input=10, output=5, calls=1)),)


class StoreContract:
    """The base of store test suites: runs each `async def test_…` of a subclass on an event loop.

    The suite's *sessions* are open when each of its tests begins.
    """

    def __init_subclass__(cls, sessions: tuple[str, ...] = ()) -> None:
        def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
            async def run(*args: Any, **fixtures: Any) -> None:
                for session_id in sessions:
                    await fixtures["store"].open_session(a_head(session_id))
                await test(*args, **fixtures)

            return functools.wraps(test)(lambda *args, **fixtures: asyncio.run(run(*args, **fixtures)))

        super().__init_subclass__()
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, on_loop(test))


def is_dead(owner: str) -> bool:
    """Return whether an owner is dead; pass this to the store under test."""
    return owner.startswith("dead")


def a_head(session_id: str = "s1", at_ms: int = NOW) -> SessionHead:
    """Return the head of a session that was never stored."""
    return SessionHead(session_id=session_id, created_at=at_ms, updated_at=at_ms)


def said(text: str = "What is it?", at_ms: int = NOW) -> Entry:
    return Entry(at_ms=at_ms, payload=UserMessage(content=text))


def replied(text: str = ANSWER, at_ms: int = NOW) -> Entry:
    return Entry(at_ms=at_ms, payload=AssistantMessage(text=text, model="m1"))


def opened(frame_id: str, at_ms: int = NOW) -> Entry:
    return Entry(at_ms=at_ms, payload=FrameOpened(switch=FrameSwitch(frame_id=frame_id)))


def claimant(owner: str = "w1", now_ms: int = NOW, lease_ms: int = LEASE_MS) -> port.Claimant:
    return port.Claimant(owner=owner, now_ms=now_ms, lease_ms=lease_ms)


def first_body(head: SessionHead, injected: tuple[port.QueuedInput, ...]) -> bytes:
    """Return the first journal body of a test's turn, which names the leaf and the claimed inputs."""
    return msgspec.json.encode([head.leaf, [item.input_id for item in injected]])


def new_turn(
    turn_id: str = "t1",
    session_id: str = "s1",
    *,
    key: str | None = None,
    input_digest: str = "d1",
    consumes: str | None = None,
    blobs: tuple[port.Blob, ...] = (),
) -> port.NewTurn:
    return port.NewTurn(
        session_id=session_id,
        turn_id=turn_id,
        agent="helper",
        make_input=first_body,
        input_digest=input_digest,
        idempotency_key=key,
        consumes=consumes,
        blobs=blobs,
    )


def an_entry(key: str, body: bytes = b"{}") -> port.JournalEntry:
    return port.JournalEntry(key=key, kind="input", body=body)


def a_state_entry(key: str, body: bytes = b"{}") -> port.JournalEntry:
    """Return a plugin's state in the middle of a turn."""
    return port.JournalEntry(key=key, kind="state", body=body)


def a_save(turn_id: str = "t1", *entries: port.JournalEntry) -> port.Save:
    return port.Save(turn_id=turn_id, entries=entries)


def a_checkpoint(key: str) -> Callable[[tuple[port.QueuedInput, ...]], port.JournalEntry]:
    """Return a function that creates a journal entry naming the claimed inputs."""
    return lambda claimed: an_entry(key, msgspec.json.encode([item.input_id for item in claimed]))


def finished(text: str = ANSWER, value: Json = None) -> TurnSummary:
    return TurnSummary(outcome=Finished(text=text, value=value), usage=USAGE[0].usage)


def stopped(reason: StopReason = StopReason.CANCELLED) -> TurnSummary:
    error = ErrorObject(code=Code.CANCELLED, message="the turn was cancelled")
    return TurnSummary(outcome=Stopped(reason=reason, error=error))


def waiting(*waits: Wait) -> TurnSummary:
    return TurnSummary(outcome=Waiting(waits=waits))


def a_commit(
    turn_id: str = "t1",
    summary: TurnSummary | None = None,
    entries: tuple[Entry, ...] | None = None,
    now_ms: int = NOW,
    enqueue: tuple[port.QueuedInput, ...] = (),
    state: port.StateRecord | None = None,
    blobs: tuple[port.Blob, ...] = (),
) -> port.TurnCommit:
    """Return the commit of a turn, by default with a question and its answer."""
    return port.TurnCommit(
        turn_id=turn_id,
        now_ms=now_ms,
        entries=(said(at_ms=now_ms), replied(at_ms=now_ms)) if entries is None else entries,
        summary=summary or finished(),
        model_calls=1,
        usage=USAGE,
        enqueue=enqueue,
        state=state,
        blobs=blobs,
    )


def a_state(body: bytes | str = b"{}", *blobs: port.Blob) -> port.StateRecord:
    """Return the state of plugins and tools, with the blobs it needs."""
    data = body.encode() if isinstance(body, str) else body
    return port.StateRecord(body=data, blobs=tuple(blob.digest for blob in blobs))


def an_input(
    input_id: str = "i1", kind: str = "queue", text: str = "and this", session_id: str = "s1"
) -> port.QueuedInput:
    return msgspec.convert(
        {
            "input_id": input_id,
            "session_id": session_id,
            "kind": kind,
            "message": {"type": "user", "content": text, "input_id": input_id},
            "created_at": NOW,
        },
        port.QueuedInput,
    )


def a_blob(data: bytes = b"\x89PNG") -> port.Blob:
    return port.Blob(digest=digest_bytes(data), data=data)


def attached(blob: port.Blob) -> AttachmentPart:
    return AttachmentPart(digest=blob.digest, media_type="image/png", size=len(blob.data))


def showing(blob: port.Blob) -> UserMessage:
    """Return a message with an attachment."""
    return UserMessage(content=(attached(blob),))


def a_wait(wait_id: str, kind: WaitKind = "timer", due_in_ms: int = 1_000, call_id: int = 1) -> Wait:
    return Wait(wait_id=wait_id, kind=kind, call_id=call_id, due_at=NOW + due_in_ms)


def an_approval(approval_id: str = "a1", turn_id: str = "t1", expires_in_ms: int = 1_000) -> Approval:
    """Return a turn's request to a person."""
    return Approval(
        approval_id=approval_id,
        state=ApprovalState.PENDING,
        session_id="s1",
        capability="pay",
        args=[],
        kwargs={"cents": 2**70, "to": "é"},
        requested_at=NOW,
        expires_at=NOW + expires_in_ms,
        binding="b",
        run_id=turn_id,
        call_id=1,
    )


async def begin(
    store: port.SessionStore,
    turn_id: str = "t1",
    session_id: str = "s1",
    claimed_by: port.Claimant | None = None,
) -> port.Begun:
    """Begin a turn in a session, which is created if needed."""
    await store.open_session(a_head(session_id))
    begun = await store.begin(new_turn(turn_id, session_id), claimed_by or claimant())
    assert isinstance(begun, port.Begun)
    return begun


async def take_turn(
    store: port.SessionStore,
    turn_id: str = "t1",
    session_id: str = "s1",
    entries: tuple[Entry, ...] | None = None,
    now_ms: int = NOW,
    state: port.StateRecord | None = None,
) -> SessionHead:
    """Begin a turn and finish it."""
    begun = await begin(store, turn_id, session_id, claimant(now_ms=now_ms))
    commit = a_commit(turn_id, entries=entries, now_ms=now_ms, state=state)
    head = await store.commit(begun.lease, commit)
    assert isinstance(head, SessionHead)
    return head


async def take_turns(store: port.SessionStore, *turn_ids: str, session_id: str = "s1") -> None:
    """Begin and finish turns, one after another."""
    for turn_id in turn_ids:
        await take_turn(store, turn_id, session_id)


async def put(store: port.SessionStore, *items: port.QueuedInput) -> None:
    """Queue inputs, in this order."""
    for item in items:
        await store.put_input(item)


async def park(
    store: port.SessionStore, *waits: Wait, turn_id: str = "t1", approvals: tuple[Approval, ...] = ()
) -> port.Lease:
    """Begin a turn and park it; return the lease that it had."""
    begun = await begin(store, turn_id)
    save = port.Save(turn_id=turn_id, entries=(an_entry("model.1"),), approvals=approvals, waits=waits)
    await store.park(begun.lease, save, waiting(*waits))
    return begun.lease


async def ask(store: port.SessionStore, *approval_ids: str) -> None:
    """Begin a turn and park it until these approvals are decided."""
    waits = (a_wait(approval_id, "approval") for approval_id in approval_ids)
    await park(store, *waits, approvals=tuple(map(an_approval, approval_ids)))


async def refuses(work: Awaitable[object], error: type[Exception], match: str | None = None) -> None:
    """Await *work*, which must raise *error*."""
    with pytest.raises(error, match=match):
        await work


def there(value: T | None) -> T:
    """Return a value that must not be None."""
    assert value is not None
    return value


def outcome_of(summary: TurnSummary | None) -> Outcome | None:
    return None if summary is None else summary.outcome
