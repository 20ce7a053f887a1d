"""Triggers and timers: an occurrence at a source becomes a queued input of each session with a trigger.

Theory of operation
-------------------
An occurrence is reported from outside (`Runtime.occur`, or a signed webhook) or by the clock. Either
way it has a key, and the store saves it together with its inputs in one transaction, once. From there on,
each is an ordinary queued input: a runtime that knows the session's agent runs its turn, and exactly one turn
claims it. So a source may report every occurrence twice, even to two runtimes over one store.

A timer is a trigger whose source is the clock. The occurrence's key consists of the trigger's name and the
due time, and the trigger advances to its next time in the same transaction. So if several runtimes find it
due, only one delivers it.

Rules
-----
1. The triggers that exist when an occurrence is reported determine the sessions to which it is delivered.
2. For times missed while no runtime was running, there is one occurrence (`catch_up="once"`) or none
   (`"skip"`). A time that is noticed up to `GRACE_MS` late is not missed.
3. A webhook's signature is checked before its body is parsed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, TypeVar, assert_never

import msgspec

from standfast.errors import CallerError, InvalidArgument, SignatureRefused
from standfast.model.canonical import Json, canonical_json, check_bounds, digest_bytes, encode_sorted, to_json
from standfast.model.message import UserMessage
from standfast.model.session import SessionId
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.ports.session_store import QueuedInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.ports.session_store import SessionStore

GRACE_MS: Final = 60_000
"""How late a due time may be noticed without counting as missed."""

MAX_PAYLOAD_BYTES: Final = 1 << 20
MAX_MISSED: Final = 1_000
"""The most missed times that are counted."""

S = TypeVar("S", bound=msgspec.Struct)


async def put_trigger(store: SessionStore, wanted: Trigger, now_ms: int) -> Trigger:
    """Store a trigger, replacing one of the same name. An unchanged schedule keeps its next time."""
    trigger = msgspec.structs.replace(_checked(wanted), session_id=SessionId(wanted.session_id))
    if not trigger.prompt.strip():
        raise InvalidArgument(f"trigger {trigger.name!r} has no prompt", hint="pass the input of its turns")
    before = await store.trigger(trigger.name)
    if before is not None and (before.schedule, before.enabled) == (trigger.schedule, trigger.enabled):
        trigger = msgspec.structs.replace(trigger, next_at=before.next_at, created_at=before.created_at)
    else:
        first, schedule = None, trigger.schedule
        if schedule is not None:
            given = [name for name in ("cron", "every_ms", "at_ms") if getattr(schedule, name) is not None]
            if len(given) != 1:
                chosen = " and ".join(given) or "none"
                raise InvalidArgument(
                    f"a schedule must have exactly one of cron, every_ms and at_ms, got {chosen}",
                    hint='write Schedule(cron="0 7 * * *", timezone="Europe/Berlin") or '
                    "Schedule(every_ms=60_000)",
                )
            first = schedule.at_ms  # a time in the past is due immediately
            if first is None:
                first = next(_times(schedule, now_ms, now_ms), None)
        trigger = msgspec.structs.replace(trigger, next_at=first, created_at=now_ms)
    await store.put_trigger(trigger)
    return trigger


def _times(schedule: Schedule, origin_ms: int, after_ms: int) -> Iterator[int]:
    """Yield the times of a schedule after `after_ms`. Intervals are counted from `origin_ms`."""
    if schedule.cron is not None:
        from standfast.runtime.cron import times_after

        yield from times_after(schedule.cron, after_ms, schedule.timezone)
    elif schedule.every_ms is not None:
        time = after_ms + schedule.every_ms - (after_ms - origin_ms) % schedule.every_ms
        while True:
            yield time
            time += schedule.every_ms


def occurrence(source: str, key: str, payload: Json, now_ms: int) -> Occurrence:
    """Return a validated occurrence."""
    clean, size = to_json(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidArgument(
            f"the payload of {source[:128]!r} has {size:,} bytes, the limit is {MAX_PAYLOAD_BYTES:,}",
            hint="pass a reference to the data instead",
        )
    return msgspec.structs.replace(_checked(Occurrence(source=source, key=key, at_ms=now_ms)), payload=clean)


async def listeners(store: SessionStore, source: str) -> list[Trigger]:
    """Return the enabled triggers of a source."""
    return [one for one in await store.triggers() if one.source == source and one.enabled]


async def deliver(
    store: SessionStore, occurred: Occurrence, triggers: Iterable[Trigger], advance: Trigger | None = None
) -> list[str]:
    """Queue an occurrence for each of `triggers`; return the sessions that got it, none for a duplicate."""
    inputs = []
    for trigger in triggers:
        digest = digest_bytes(canonical_json([trigger.name, occurred.source, occurred.key]))
        text = trigger.prompt.replace("{payload}", encode_sorted(occurred.payload).decode())
        inputs.append(
            QueuedInput(
                input_id=f"trg_{digest[:32]}",
                session_id=trigger.session_id,
                kind="queue",
                message=UserMessage(content=text),
                created_at=occurred.at_ms,
            )
        )
    new = await store.occur(occurred, tuple(inputs), advance)
    return [item.session_id for item in inputs] if new else []


def verify_webhook(source: str, body: bytes, signature: str, secret: str | bytes) -> None:
    """Raise `SignatureRefused` unless `signature` is the body's HMAC-SHA256, in hex or `sha256=` and hex."""
    import hmac  # few runtimes receive webhooks

    key = secret.encode() if isinstance(secret, str) else secret
    if not key:
        raise InvalidArgument(
            "the secret of a webhook is empty", hint="pass the secret that the sender signs with"
        )
    expected = hmac.new(key, body, hashlib.sha256).hexdigest()
    given = signature.strip().lower().removeprefix("sha256=")
    if not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
        raise SignatureRefused(source)


def webhook_occurrence(source: str, body: bytes, key: str | None, now_ms: int) -> Occurrence:
    """Return the occurrence of a verified body: its JSON, or its text. The default key is its digest."""
    try:
        payload: Json = body.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the body from {source[:128]!r} is neither JSON nor text") from None
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        payload = msgspec.json.decode(body)
    return occurrence(source, key or f"sha3-256:{digest_bytes(body)}", payload, now_ms)


async def fire_due(store: SessionStore, known: list[Trigger], now_ms: int) -> list[str]:
    """Deliver every timer among all *known* triggers that is due; return the sessions with a new input."""
    woken: list[str] = []
    for trigger in known:
        if trigger.enabled and trigger.next_at is not None and trigger.next_at <= now_ms:
            with contextlib.suppress(CallerError):  # its time zone is unknown on this system
                woken += await _fire(store, known, trigger, now_ms)
    return woken


async def reschedule(store: SessionStore, known: list[Trigger], now_ms: int) -> None:
    """Correct timers whose next time is too late because the clock was set back; none fires twice."""
    for trigger in known:
        if not trigger.enabled or trigger.schedule is None or trigger.next_at is None:
            continue
        with contextlib.suppress(CallerError):  # its time zone is unknown on this system
            sooner = next(_times(trigger.schedule, trigger.created_at, now_ms), None)
            if sooner is not None and sooner < trigger.next_at:
                await store.put_trigger(msgspec.structs.replace(trigger, next_at=sooner), seen=trigger)


async def _fire(store: SessionStore, known: list[Trigger], timer: Trigger, now_ms: int) -> list[str]:
    """Deliver a timer to all triggers of its source, or skip it if it is too late; then advance it."""
    assert timer.schedule is not None
    assert timer.next_at is not None
    due, schedule = timer.next_at, timer.schedule
    times = _times(schedule, timer.created_at, due)
    missed = sum(1 for _ in islice(takewhile(lambda time: time <= now_ms, times), MAX_MISSED))
    occurred = Occurrence(
        source=timer.source,
        key=f"{timer.name}@{due}",
        at_ms=now_ms,
        payload={"due": due, "now": now_ms, "missed": missed},
    )
    heard_by: list[Trigger] = []
    match schedule.catch_up:
        case "skip" if now_ms - due > GRACE_MS:
            pass
        case "once" | "skip":
            others = (one for one in known if one.source == timer.source and one.schedule is None)
            heard_by = [timer, *(one for one in others if one.enabled)]
        case _:
            assert_never(schedule.catch_up)
    later = next(_times(schedule, timer.created_at, now_ms), None)
    return await deliver(store, occurred, heard_by, msgspec.structs.replace(timer, next_at=later))


def _checked(value: S) -> S:
    """Return `value` after encoding and decoding it as the store does; raise `InvalidArgument` on failure."""
    check_bounds(value)
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"{type(value).__name__.lower()}: {error}") from None
