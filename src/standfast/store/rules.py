"""The decisions that all stores share, as pure functions of values.

Theory of operation
-------------------
In one transaction, a store reads records, calls a function of this module that returns the changed records or
raises a refusal, and writes the result. So the stores in memory, in a SQLite file and on a server make the
same decisions, and a rule can be tested without any of them. How a branch grows and forks is in
`standfast.graph`.

Rules
-----
1. Nothing here reads a clock, a file or a table. Times and records are arguments.
2. A refusal is the error of the port (`SessionStore`), raised before anything is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Unpack

import msgspec

from standfast import errors
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.limits import Usage, UsageEntry, add_to_ledger
from standfast.model.outcome import Approved, Denied, Elapsed, Expired, Finished, Wait, Waiting, WaitOutcome
from standfast.model.session import (
    SessionCharter,
    SessionHead,
    TurnRecord,
    TurnState,
    TurnSummary,
    split_node_id,
)
from standfast.model.task import TaskRecord
from standfast.model.trigger import Trigger
from standfast.ports import session_store as port

IsDead = Callable[[str], bool]
"""Returns whether the owner of a lease is known to have died."""

TOKEN_PREFIX = "cpl_"  # noqa: S105 (the form of a token, none itself)

_DIGEST_CHARS: Final = 64
_HEX: Final = bytes(48 if chr(byte) in "0123456789abcdef" else 32 for byte in range(256))
"""Turns every byte that may be part of a digest into a zero, because a search for zeros is fast."""
_ZEROS: Final = b"0" * _DIGEST_CHARS

_replace = msgspec.structs.replace
_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


# Usage

_DAY_MS: Final = 86_400_000


def usage_by_day(turns: Iterable[TurnRecord], models: Mapping[str, str]) -> list[port.DayUsage]:
    """Sum the usage of *turns* by day, session and agent; *models* are the models of their sessions."""
    found: dict[tuple[int, str, str], tuple[int, Usage]] = {}
    for turn in turns:
        if turn.summary is not None and turn.ended_at is not None:
            place = (turn.ended_at // _DAY_MS, turn.session_id, turn.agent)
            count, usage = found.get(place, (0, Usage()))
            found[place] = (count + 1, usage + turn.summary.usage)
    return [
        port.DayUsage(
            day=day,
            session_id=session_id,
            agent=agent,
            model=models.get(session_id, ""),
            turns=count,
            usage=usage,
        )
        for (day, session_id, agent), (count, usage) in sorted(
            found.items(), key=lambda item: (-item[0][0], *item[0][1:])
        )
    ]


# Kept journals


def journal_texts(first: bytes, entries: tuple[port.JournalEntry, ...]) -> list[bytes]:
    """Return all data in a journal that could refer to a blob."""
    return [first, *(entry.body for entry in entries)]


# Sessions


def head_order(head: SessionHead) -> tuple[int, str]:
    """Return the sort key of a session: by last use, then id. Lists are in descending order."""
    return head.updated_at, head.session_id


def parent_of(head: SessionHead) -> str | None:
    """Return the id of the parent session, if there is one."""
    return None if head.charter is None else head.charter.parent_session_id


def used(head: SessionHead, now_ms: int, usage: tuple[UsageEntry, ...] = ()) -> SessionHead:
    """Return *head* with *now_ms* as its last use, and with *usage* added to its ledger."""
    ledger = add_to_ledger(head.usage, usage) if usage else head.usage
    return _replace(head, updated_at=now_ms, usage=ledger)


def forked(head: SessionHead, new_id: str, now_ms: int, charter: SessionCharter | None) -> SessionHead:
    """Return the head of a fork at the leaf of *head*. Usage and notes are not copied."""
    return _replace(
        head,
        session_id=new_id,
        created_at=now_ms,
        updated_at=now_ms,
        revision=0,
        forked_from=head.session_id,
        usage=(),
        charter=charter,
        blocked=None,
    )


def described(head: SessionHead, **description: Unpack[port.SessionDescription]) -> SessionHead:
    """Return *head* with another description."""
    changes = {name: value for name, value in description.items() if value is not None}
    return _replace(head, **changes | {"host": dict(description["host"])})


def described_as(head: SessionHead, like: SessionHead) -> SessionHead:
    """Return *head* with the description of *like*, but its own settings for code."""
    return described(head, agent=like.agent, model=like.model, host=like.host, metadata=like.metadata)


def require_same_session(found: SessionHead, new: SessionHead) -> None:
    """Raise `SessionExists` unless the existing session was created with the same charter."""
    if new.charter is None or found.charter != new.charter:
        raise errors.SessionExists(new.session_id)


def require_no_owner(session_id: str, owner: str | None, is_dead: IsDead) -> None:
    """Raise `SessionBusy` while a live owner runs a turn of the session."""
    if owner is not None and not is_dead(owner):
        raise errors.SessionBusy(session_id, owner)


def require_at_rest(session_id: str, owner: str | None, open_turn: str | None) -> None:
    """Raise `SessionBusy` if the session has the unfinished turn *open_turn*."""
    if open_turn is not None:
        raise errors.SessionBusy(session_id, owner or f"turn {open_turn}")


def may_be_pruned(head: SessionHead, request: port.PruneRequest, *, idle: bool, running: bool) -> bool:
    """Return whether a session is deleted by age: idle and long unused, or expired and not running."""
    expires_at = None if head.code is None else head.code.expires_at
    if request.now_ms is not None and expires_at is not None and expires_at <= request.now_ms:
        return not running
    return idle and request.sessions_before_ms is not None and head.updated_at < request.sessions_before_ms


# Leases


def is_free(owner: str | None, until_ms: int, now_ms: int, is_dead: IsDead) -> bool:
    """Return whether a lease until *until_ms* has no live owner.

    *now_ms* is the time of the leases' clock.
    """
    return owner is None or until_ms <= now_ms or is_dead(owner)


def lease_time(claimant: port.Claimant) -> int:
    """Return the claimant's current time on the clock of leases."""
    return claimant.now_ms if claimant.lease_now_ms is None else claimant.lease_now_ms


def lease_for(session_id: str, claimant: port.Claimant, fence: int) -> port.Lease:
    until_ms = lease_time(claimant) + claimant.lease_ms
    return port.Lease(session_id=session_id, owner=claimant.owner, fence=fence, until_ms=until_ms)


def seen_clock(known: tuple[int, int] | None, offset_ms: int) -> port.SeenClock:
    """Compare an offset with the known lease offset and last offset; small shifts count as none."""
    lease_offset_ms, seen_ms = known or (offset_ms, offset_ms)
    shift_ms = offset_ms - seen_ms
    return port.SeenClock(
        lease_offset_ms=lease_offset_ms, shift_ms=shift_ms if abs(shift_ms) > port.CLOCK_TOLERANCE_MS else 0
    )


# Turns


def new_record(turn: port.NewTurn, now_ms: int) -> TurnRecord:
    """Return the record of a turn that begins."""
    return TurnRecord(
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        state=TurnState.RUNNING,
        created_at=now_ms,
        agent=turn.agent,
        idempotency_key=turn.idempotency_key,
        input_digest=turn.input_digest,
    )


def taken_over(record: TurnRecord) -> TurnRecord:
    return _replace(record, state=TurnState.RUNNING, summary=None)


def parked(record: TurnRecord, summary: TurnSummary) -> TurnRecord:
    return _replace(record, state=TurnState.WAITING, summary=summary)


def ended(record: TurnRecord, summary: TurnSummary, now_ms: int) -> TurnRecord:
    return _replace(record, state=TurnState.ENDED, ended_at=now_ms, summary=summary)


def require_same_input(record: TurnRecord, turn: port.NewTurn) -> None:
    """Raise `IdempotencyConflict` if *turn* has the idempotency key of *record* but another input."""
    if record.input_digest != turn.input_digest:
        raise errors.IdempotencyConflict(turn.idempotency_key or "")


def refuse_second_turn(
    record: TurnRecord, owner: str | None, free: bool
) -> errors.SessionBusy | errors.TurnUnfinished:
    """Return the error for a turn that cannot begin because of the unfinished *record*.

    *free* means that no live owner has the lease.
    """
    if record.state is not TurnState.WAITING and not free:
        return errors.SessionBusy(record.session_id, owner or "")
    waits = record.state is TurnState.WAITING
    return errors.TurnUnfinished(record.session_id, record.turn_id, waits=waits)


def require_takeable(turn_id: str, record: TurnRecord | None, owner: str | None, free: bool) -> None:
    """Raise `TurnNotFound` or `SessionBusy` unless the turn can be taken over."""
    if record is None or record.state is TurnState.ENDED:
        raise errors.TurnNotFound(turn_id)
    if not free:
        raise errors.SessionBusy(record.session_id, owner or "")


def can_continue(record: TurnRecord, *, free: bool, wait_over: bool) -> bool:
    """Return whether an unfinished turn, which no process runs, can be resumed now."""
    if record.state is TurnState.RUNNING:
        return free
    return record.cancel_requested or wait_over


def refuse_commit(commit: port.TurnCommit, cancelled: bool, injected: bool) -> port.CommitRefused | None:
    """Return why a turn may not finish now; None if it may. Other outcomes are never refused."""
    if not isinstance(commit.summary.outcome, Finished):
        return None
    if cancelled:
        return port.CommitRefused(reason="cancelled")
    return port.CommitRefused(reason="injected") if injected else None


def already_journaled(turn_id: str, *keys: str) -> errors.StaleState:
    """Return the error for entries of which the journal already has one or more."""
    return errors.StaleState(f"the journal of turn {turn_id} already has {' or '.join(map(repr, keys))}")


# Inputs and blobs


def input_content(item: port.QueuedInput) -> bytes:
    """Return the digest of an input's content. It is stored, so this function must never change."""
    return hashlib.sha256(_pack((item.session_id, item.kind, _encode(item.message)))).digest()[:16]


def require_same_content(item: port.QueuedInput, known: bytes) -> None:
    """Raise `IdempotencyConflict` if *item* repeats the id of an input with other content."""
    if known != input_content(item):
        raise errors.IdempotencyConflict(item.input_id)


def blob_digests(text: bytes) -> list[bytes]:
    """Return everything in *text* that may be the digest of a blob; a blob is kept while a text names it."""
    found: list[bytes] = []
    digits = text.translate(_HEX)
    at = digits.find(_ZEROS)
    while at >= 0:
        end = at + _DIGEST_CHARS
        found.append(text[at:end])
        at = digits.find(_ZEROS, end)
    return found


# Approvals


def approval_order(approval: Approval) -> tuple[int, str, int, str]:
    """Return the sort key of an approval: oldest first, concurrent calls in the order of the code."""
    return approval.requested_at, approval.run_id, approval.call_id, approval.approval_id


def already_requested(approval_id: str) -> errors.StaleState:
    return errors.StaleState(f"approval {approval_id} was already requested")


def decided(approval: Approval, decision: Decision, *, now_ms: int, edited_digest: str | None) -> Approval:
    """Return *approval* after *decision*. Only an approval can replace the arguments.

    Raise `ApprovalAlreadyDecided` if it is not pending. After `expires_at` it expires, whatever the decision.
    """
    if approval.state != ApprovalState.PENDING:
        raise errors.ApprovalAlreadyDecided(approval.approval_id, approval.state)
    if now_ms >= approval.expires_at:
        return expired(approval, now_ms)
    after = _replace(
        approval,
        state=ApprovalState.APPROVED if decision.approved else ApprovalState.DENIED,
        decided_at=now_ms,
        reason=decision.reason,
        decided_by=decision.decided_by,
    )
    if not decision.approved or (decision.args is None and decision.kwargs is None):
        return after
    return _replace(
        after,
        args=approval.args if decision.args is None else decision.args,
        kwargs=approval.kwargs if decision.kwargs is None else decision.kwargs,
        edited_digest=edited_digest,
    )


def expired(approval: Approval, now_ms: int) -> Approval:
    """Return the approval with its state at *now_ms*; the same object if it has not expired."""
    if approval.state != ApprovalState.PENDING or now_ms < approval.expires_at:
        return approval
    return _replace(approval, state=ApprovalState.EXPIRED, decided_at=now_ms)


def cancelled(approval: Approval) -> Approval:
    """Return the approval after its turn has ended; the same object if it was decided."""
    if approval.state != ApprovalState.PENDING:
        return approval
    return _replace(approval, state=ApprovalState.CANCELLED)


def approval_is_old(approval: Approval, before_ms: int) -> bool:
    """Return whether a decided approval is old enough to be deleted; its turn must have ended."""
    decided_at = approval.decided_at or approval.requested_at
    return approval.state != ApprovalState.PENDING and decided_at < before_ms


# Waits


def answer_of(approval: Approval) -> WaitOutcome | None:
    """Return the outcome of a decision for the waiting call; None while it is pending."""
    match approval.state:
        case ApprovalState.PENDING:
            return None
        case ApprovalState.APPROVED:
            if approval.answer_schema is not msgspec.UNSET:
                return Approved(answer=approval.kwargs, by=approval.decided_by)
            if approval.edited_digest is None:
                return Approved(by=approval.decided_by, grant=approval.grant or None)
            args = approval.args or None
            return Approved(arguments=approval.kwargs, args=args, by=approval.decided_by)
        case ApprovalState.DENIED:
            return Denied(reason=approval.reason, by=approval.decided_by)
        case ApprovalState.EXPIRED | ApprovalState.CANCELLED:
            return Expired()


def outcome_of(
    wait: Wait, now_ms: int, *, approval: Approval | None, completion: WaitOutcome | None
) -> WaitOutcome | None:
    """Return the outcome of a wait, by its answer or its due time; None while it is open."""
    if completion is not None:
        return completion
    if approval is not None:
        return answer_of(expired(approval, now_ms))
    if now_ms < wait.due_at:
        return None
    return Elapsed() if wait.kind == "timer" else Expired()


def waited_for(record: TurnRecord, saved: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Return the waits that can resume a waiting turn: those of its outcome, or all *saved* ones."""
    outcome = None if record.summary is None else record.summary.outcome
    return outcome.waits if isinstance(outcome, Waiting) and outcome.waits else saved


def turn_of_token(token: str) -> str:
    """Return the turn that a completion token (`cpl_<turn_id>.<anything>`) belongs to."""
    turn_id, dot, rest = token.removeprefix(TOKEN_PREFIX).partition(".")
    if not token.startswith(TOKEN_PREFIX) or not (turn_id and dot and rest):
        raise errors.TokenNotFound(token)
    return turn_id


def require_completable(token: str, wait: Wait | None, completion: WaitOutcome | None, now_ms: int) -> None:
    """Raise `TokenAlreadyUsed` if the call was already completed, or its wait has expired."""
    if completion is not None or (wait is not None and now_ms >= wait.due_at):
        raise errors.TokenAlreadyUsed(token)


def moved_along(wait: Wait, shift_ms: int) -> Wait:
    """Return the wait after the system clock was set by *shift_ms*; an approval keeps its announced time."""
    if wait.kind == "approval":
        return wait
    return _replace(wait, due_at=max(0, wait.due_at + shift_ms))


def record_moved_along(record: TurnRecord, shift_ms: int) -> TurnRecord:
    """Return the record with the waits of its outcome shifted; the same object if it has none."""
    summary = record.summary
    if summary is None or not isinstance(summary.outcome, Waiting):
        return record
    waits = tuple(moved_along(wait, shift_ms) for wait in summary.outcome.waits)
    return _replace(record, summary=_replace(summary, outcome=_replace(summary.outcome, waits=waits)))


# Tasks and triggers

TaskChange = Callable[[TaskRecord], TaskRecord]


class PlacedTask(NamedTuple):
    """A task, and its position among tasks of the same time."""

    record: TaskRecord
    seq: int


def task_order(placed: PlacedTask) -> tuple[int, int]:
    """Return the sort key of a task: oldest first. A task keeps its position when it changes or moves."""
    return placed.record.created_at, placed.seq


def changed_task(record: TaskRecord, change: TaskChange) -> TaskRecord:
    """Apply *change* to a task; do nothing if it has ended, and raise if the change would replace its id."""
    if record.state.is_terminal:
        return record
    after = change(record)
    if (after.session_id, after.id) != (record.session_id, record.id):
        raise errors.InvalidArgument(f"task {record.id!r} cannot become another one", hint="use `move_tasks`")
    return after


def moved_task(record: TaskRecord, to_id: str, now_ms: int) -> TaskRecord:
    return _replace(record, session_id=to_id, updated_at=now_ms)


def require_room(there: TaskRecord | None) -> None:
    """Raise `TaskExists` if a live task has the id."""
    if there is not None and not there.state.is_terminal:
        raise errors.TaskExists(there.session_id, there.id)


def due_at(trigger: Trigger) -> int | None:
    """Return the trigger's next scheduled time; None if it has none."""
    return trigger.next_at if trigger.enabled else None


def moves_on(stored: Trigger | None, advance: Trigger) -> bool:
    """Return whether *advance* only moves the stored trigger forward, so that no change is undone."""
    if stored is None or (due := due_at(stored)) is None:
        return False
    seen = _replace(stored, next_at=advance.next_at, enabled=advance.enabled)
    return seen == advance and (advance.next_at is None or due < advance.next_at)


# States of plugins and tools
#
# A state belongs to the node that was the leaf when it was written, and refers to the previous state. So the
# states that led to a session's current one form a line along its path, and the depth of a node determines
# which of them was current there. Where paths branch, lines branch. A head refers to the end of its session's
# line. A segment refers to the state at its end when it was appended, so that the line of an abandoned branch
# is found.
#
# 1. For a session, the current state at a node is the last one that it wrote there itself, or else the one
#    given by the line through the node. So no session gets a state that another wrote on shared history after
#    a fork.
# 2. A missing state was pruned; its line begins after it.
# 3. A state is needed while a head or a segment refers to it, while it is the last that a session wrote at a
#    node that still exists, and while it precedes a needed state and its own node still exists.

_STATE_PREFIX: Final = "state_"


class StatePlace(NamedTuple):
    """A state without its body: its session, the previous state, and its node, which has this `depth`."""

    session: int | str
    previous: int | None
    node: str | None
    depth: int


FindState = Callable[[int], StatePlace | None]
"""Returns the place of a state, or None if it was pruned."""


def state_id(key: int | None) -> str | None:
    """Return the name of a state outside of its store."""
    return None if key is None else f"{_STATE_PREFIX}{key}"


def state_key(name: str | None) -> int | None:
    """Return the number that `state_id` converted to *name*; None for any other name."""
    if name is None or not name.startswith(_STATE_PREFIX):
        return None
    number = name[len(_STATE_PREFIX) :]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 19 else None


def held_at(find: FindState, head: SessionHead, *, own: bool, segment_state: int | None) -> int | None:
    """Return the state that was current at the leaf of *head*, which was just moved there.

    It is found on the session's own line, which ends with the head's state, if that passes the leaf. A node
    that is the session's *own*, because it appended the segment, may be on another branch; then the segment
    refers to the state.
    """
    found = _held(find, state_key(head.state), head.depth)
    place = None if found is None else find(found)
    if own and (place is None or place.node != head.leaf):
        return _held(find, segment_state, head.depth)
    return found


def _held(find: FindState, end: int | None, depth: int) -> int | None:
    """Return the last state of a line that is not deeper than *depth*."""
    while end is not None and (place := find(end)) is not None:
        if place.depth <= depth:
            return end
        end = place.previous
    return None


def states_around(find: FindState, end: int | None, segment_id: str) -> port.TurnStates:
    """Return the states before and after a segment, at whose end the state *end* was current."""
    place, before = None if end is None else find(end), end
    if place is not None and place.node is not None and split_node_id(place.node)[0] == segment_id:
        before = place.previous
    return port.TurnStates(state_id(before), state_id(end))


def before_leaf(find: FindState, state: str | None, leaf: str | None) -> int | None:
    """Return the predecessor of a new state at *leaf*, which replaces a *state* already written there."""
    key = state_key(state)
    place = None if key is None else find(key)
    return place.previous if place is not None and place.node == leaf else key


def needed_states(
    places: Mapping[int, StatePlace],
    named: Iterable[int | None],
    sessions: Collection[int | str],
    segments: Collection[str],
) -> set[int]:
    """Return the states that are still needed. *named* are those that heads and segments refer to."""
    last = {(it.session, it.node): key for key, it in sorted(places.items()) if it.session in sessions}
    own = (key for (_, node), key in last.items() if node is not None and _is_there(node, segments))
    kept: set[int] = set()
    for step in (*named, *own):
        while step is not None and step in places and step not in kept:
            kept.add(step)
            step = places[step].previous if _is_there(places[step].node, segments) else None
    return kept


def _is_there(node: str | None, segments: Collection[str]) -> bool:
    return node is None or split_node_id(node)[0] in segments
