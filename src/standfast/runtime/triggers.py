"""Triggers and timers: what occurs at a source becomes a queued input of every session that hears of it.

Theory of operation
-------------------
An occurrence is told by somebody outside (`Runtime.occur`, or a signed webhook) or by the clock. Either way
it has a key, and the store keeps it and the inputs it becomes in one transaction, once. From there it is a
queued input like any other: the keeper of a runtime that knows the session's agent runs its turn, and a turn
takes its input exactly once. So a source may tell everything twice, and to two runtimes over one store.

A timer is a trigger whose source occurs by itself. Its key is made of the trigger's name and the time that
was due, and the trigger moves on to its next time in the same transaction. So of all the runtimes that see it
due, one delivers it.

Rules
-----
1. What is delivered is decided by the triggers that there are when the occurrence is told.
2. A time that passed while nobody ran is made up for once (`catch_up="once"`), however many passed, or not at
   all (`"skip"`). Up to `GRACE_MS` late is in time.
3. A signature is checked before anything of the body is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import msgspec

from standfast.errors import CallerError, Code, InvalidArgument
from standfast.model.bounds import check_bounds
from standfast.model.canonical import Json, canonical_json, digest_bytes, encode_sorted, to_json
from standfast.model.ids import SessionId
from standfast.model.message import UserMessage
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.ports.session_store import QueuedInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.ports.session_store import SessionStore

GRACE_MS: Final = 60_000
"""How late a time may be noticed and still not be missed."""

MAX_PAYLOAD_BYTES: Final = 1 << 20
MAX_MISSED: Final = 1_000
"""So many missed times are counted; nobody needs to know how many more there were."""

S = TypeVar("S", bound=msgspec.Struct)


class SignatureRefused(CallerError):
    """A webhook's signature is not the one that its body and the secret have."""

    code = Code.PERMISSION_DENIED

    def __init__(self, source: str) -> None:
        super().__init__(
            f"the signature of a message from {source[:128]!r} is wrong",
            hint="it is the HMAC-SHA256 of the raw body in hex; both sides must have the same secret",
        )


# Making triggers


async def put_trigger(store: SessionStore, wanted: Trigger, now_ms: int) -> Trigger:
    """Keep a trigger in place of the one of its name.

    A schedule that it has already goes on where it is: a program may add its triggers at every start without
    losing what was missed in between.
    """
    trigger = msgspec.structs.replace(_checked(wanted), session_id=SessionId(wanted.session_id))
    if not trigger.prompt.strip():
        raise InvalidArgument(f"trigger {trigger.name!r} has no prompt", hint="say what the turn is about")
    before = await store.trigger(trigger.name)
    if before is not None and (before.schedule, before.enabled) == (trigger.schedule, trigger.enabled):
        trigger = msgspec.structs.replace(trigger, next_at=before.next_at, created_at=before.created_at)
    else:
        first = None if trigger.schedule is None else first_time(trigger.schedule, now_ms)
        trigger = msgspec.structs.replace(trigger, next_at=first, created_at=now_ms)
    await store.put_trigger(trigger)
    return trigger


def first_time(schedule: Schedule, now_ms: int) -> int | None:
    """When a schedule that begins now is due for the first time. A time in the past is due at once."""
    _require_one_kind(schedule)
    if schedule.at_ms is not None:
        return schedule.at_ms
    return next(_times(schedule, now_ms, now_ms), None)


def _require_one_kind(schedule: Schedule) -> None:
    given = [name for name in ("cron", "every_ms", "at_ms") if getattr(schedule, name) is not None]
    if len(given) != 1:
        raise InvalidArgument(
            f"a schedule has exactly one of cron, every_ms and at_ms, not {' and '.join(given) or 'none'}",
            hint='write Schedule(cron="0 7 * * *", timezone="Europe/Berlin") or Schedule(every_ms=60_000)',
        )


def _times(schedule: Schedule, origin_ms: int, after_ms: int) -> Iterator[int]:
    """The times of a schedule after *after_ms*. Spans are counted from *origin_ms*."""
    if schedule.cron is not None:
        from standfast.runtime.cron import times_after

        yield from times_after(schedule.cron, after_ms, schedule.timezone)
    elif schedule.every_ms is not None:
        time = after_ms + schedule.every_ms - (after_ms - origin_ms) % schedule.every_ms
        while True:
            yield time
            time += schedule.every_ms


# What occurs outside


def occurrence(source: str, key: str, payload: Json, now_ms: int) -> Occurrence:
    """What occurred, checked."""
    clean, size = to_json(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidArgument(
            f"what occurred at {source[:128]!r} has {size:,} bytes, and may have {MAX_PAYLOAD_BYTES:,}",
            hint="tell where it is to be found instead",
        )
    told = _checked(Occurrence(source=source, key=key, at_ms=now_ms))
    return msgspec.structs.replace(told, payload=clean)


async def listeners(store: SessionStore, source: str) -> list[Trigger]:
    """The triggers that hear of what occurs at a source."""
    return [one for one in await store.triggers() if one.source == source and one.enabled]


async def deliver(
    store: SessionStore, told: Occurrence, heard_by: Iterable[Trigger], advance: Trigger | None = None
) -> list[str]:
    """Queue what occurred for each of the triggers; the sessions that have it now, none if it was known."""
    inputs = tuple(_input(trigger, told) for trigger in heard_by)
    new = await store.occur(told, inputs, advance)
    return [item.session_id for item in inputs] if new else []


def _input(trigger: Trigger, told: Occurrence) -> QueuedInput:
    place = digest_bytes(canonical_json([trigger.name, told.source, told.key]))
    words = trigger.prompt.replace("{payload}", encode_sorted(told.payload).decode())
    return QueuedInput(
        input_id=f"trg_{place[:32]}",
        session_id=trigger.session_id,
        kind="queue",
        message=UserMessage(content=words),
        created_at=told.at_ms,
    )


# Webhooks


def verify_webhook(source: str, body: bytes, signature: str, secret: str | bytes) -> None:
    """Refuse a body whose signature is not its HMAC-SHA256 under *secret*, in hex, with `sha256=` or without.

    How long that takes tells nothing about the right one.
    """
    key = secret.encode() if isinstance(secret, str) else secret
    if not key:
        raise InvalidArgument("the secret of a webhook is empty", hint="anybody could sign with it")
    expected = hmac.new(key, body, hashlib.sha256).hexdigest()
    given = signature.strip().lower().removeprefix("sha256=")
    if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
        raise SignatureRefused(source)


def webhook_occurrence(source: str, body: bytes, key: str | None, now_ms: int) -> Occurrence:
    """A body whose signature was checked. Without a key of its own it is known by its digest."""
    return occurrence(source, key or f"sha3-256:{digest_bytes(body)}", _read_body(source, body), now_ms)


def _read_body(source: str, body: bytes) -> Json:
    """JSON as what it says, other text as it is."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"what {source[:128]!r} sent is neither JSON nor text") from None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return text


# Timers


async def fire_due(store: SessionStore, now_ms: int) -> list[str]:
    """Deliver every timer that is due; the sessions that have something to do now."""
    known = await store.triggers()
    woken: list[str] = []
    for trigger in known:
        if trigger.enabled and trigger.next_at is not None and trigger.next_at <= now_ms:
            with contextlib.suppress(
                CallerError
            ):  # its time zone is unknown here: another runtime may know it
                woken += await _fire(store, known, trigger, now_ms)
    return woken


async def reschedule(store: SessionStore, now_ms: int) -> None:
    """Bring timers forward whose next time is too late, because the clock was set back after it was chosen.

    A time that was delivered already is not delivered again: it is known by its key. A clock that was set
    forward needs nothing: what it passed over counts as missed.
    """
    for trigger in await store.triggers():
        if not trigger.enabled or trigger.schedule is None or trigger.next_at is None:
            continue
        with contextlib.suppress(CallerError):  # its time zone is unknown here
            sooner = next(_times(trigger.schedule, trigger.created_at, now_ms), None)
            if sooner is not None and sooner < trigger.next_at:
                await store.replace_trigger(trigger, msgspec.structs.replace(trigger, next_at=sooner))


async def _fire(store: SessionStore, known: list[Trigger], trigger: Trigger, now_ms: int) -> list[str]:
    """Deliver a timer, or pass over it if it is too late, and move it on to its next time."""
    assert trigger.schedule is not None
    assert trigger.next_at is not None
    due, schedule = trigger.next_at, trigger.schedule
    times = _times(schedule, trigger.created_at, due)
    missed = sum(1 for _ in islice(takewhile(lambda time: time <= now_ms, times), MAX_MISSED))
    told = Occurrence(
        source=trigger.source,
        key=f"{trigger.name}@{due}",
        at_ms=now_ms,
        payload={"due": due, "now": now_ms, "missed": missed},
    )
    later = next(_times(schedule, trigger.created_at, now_ms), None)
    moved = msgspec.structs.replace(trigger, next_at=later)
    return await deliver(store, told, _hearing(known, trigger, now_ms), moved)


def _hearing(known: list[Trigger], timer: Trigger, now_ms: int) -> list[Trigger]:
    """Who hears of a timer: its own trigger, and those of its source that have no schedule of their own."""
    assert timer.schedule is not None
    assert timer.next_at is not None
    match timer.schedule.catch_up:
        case "skip" if now_ms - timer.next_at > GRACE_MS:
            return []
        case "once" | "skip":
            others = [one for one in known if one.source == timer.source and one.schedule is None]
            return [timer, *(one for one in others if one.enabled)]
        case _:
            assert_never(timer.schedule.catch_up)


def _checked(value: S) -> S:
    """The same, read as the store reads it; what it could not read is refused here."""
    check_bounds(value)
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"{type(value).__name__.lower()}: {error}") from None
