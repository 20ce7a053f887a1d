"""The in-memory session store, whose data is lost when the process ends.

Rule: a method does all its work under one lock without awaiting, so it is atomic on every loop and thread.
Values are frozen and stored without copying, except for approvals, which a person may edit.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sized
from typing import Unpack

import msgspec

from standfast import errors
from standfast.graph.history import frame_path, grown, path, require_append
from standfast.model.approval import Approval, Decision
from standfast.model.limits import UsageEntry
from standfast.model.outcome import Waiting, WaitOutcome
from standfast.model.session import (
    Blocked,
    Entry,
    Segment,
    SessionCharter,
    SessionHead,
    SessionId,
    TurnRecord,
    TurnState,
    TurnSummary,
)
from standfast.model.task import TaskRecord
from standfast.model.trigger import Occurrence, Trigger
from standfast.ports import session_store as port
from standfast.store import rules
from standfast.store.local_work import LocalWork
from standfast.store.memory_prune import prune
from standfast.store.memory_tables import OpenTurn, SessionRow, Tables, copied
from standfast.store.rules import PlacedTask


class MemorySessionStore(LocalWork):
    """A `SessionStore` that keeps its data in dicts."""

    durable = False

    def __init__(self, *, owner_is_dead: Callable[[str], bool] = lambda owner: False) -> None:
        self._lock = threading.Lock()
        self._tables = Tables()
        self._owner_is_dead = owner_is_dead
        self._clocks: dict[str, tuple[int, int]] = {}
        self._fence = 0
        self._task_seq = itertools.count(1)

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    # Sessions and their history

    async def open_session(self, head: SessionHead) -> SessionHead:
        with self._lock:
            if (row := self._tables.sessions.get(head.session_id)) is not None:
                return row.head
            return self._tables.add_session(head).head

    async def head(self, session_id: str) -> SessionHead | None:
        row = self._tables.sessions.get(session_id)
        return None if row is None else row.head

    async def heads(
        self,
        *,
        agent: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        active: bool = False,
    ) -> list[SessionHead]:
        with self._lock:
            heads = [row.head for row in self._tables.sessions.values()]
            if active:
                busy = {it.session_id for it in self._tables.inputs.values() if it.kind == "queue"}
                open_ = {head.session_id for head in heads if self._tables.sessions[head.session_id].open}
                heads = [head for head in heads if head.session_id in busy | open_]
        found = [
            head
            for head in heads
            if agent in (None, head.agent) and (after is None or rules.head_order(head) < after)
        ]
        return sorted(found, key=rules.head_order, reverse=True)[:limit]

    async def describe(self, session_id: str, **description: Unpack[port.SessionDescription]) -> None:
        with self._lock:
            row = self._tables.row(session_id)
            row.head = rules.described(row.head, **description)

    async def note_blocked(self, session_id: str, blocked: Blocked | None) -> None:
        with self._lock:
            if (row := self._tables.sessions.get(session_id)) is not None:
                row.head = msgspec.structs.replace(row.head, blocked=blocked)

    async def delete_session(self, session_id: str) -> bool:
        with self._lock:
            if (row := self._tables.sessions.get(session_id)) is None:
                return False
            rules.require_no_owner(session_id, _owner(row.open), self._owner_is_dead)
            self._tables.drop_session(session_id)
            return True

    async def frame(self, leaf: str, *, known: str | None = None) -> tuple[Segment, ...]:
        with self._lock:
            return tuple(frame_path(self._tables.segments.get, leaf, known=known))

    async def path(self, leaf: str, *, after_depth: int = 0) -> tuple[Segment, ...]:
        with self._lock:
            return tuple(path(self._tables.segments.get, leaf, after_depth=after_depth))

    async def append(
        self, session_id: str, segment_id: str, entries: tuple[Entry, ...], requires: str | None, now_ms: int
    ) -> SessionHead:
        with self._lock:
            return self._append(self._tables.row(session_id), segment_id, entries, now_ms, requires=requires)

    async def fork(
        self,
        session_id: str,
        new_id: str,
        at: str | None,
        now_ms: int,
        *,
        charter: SessionCharter | None = None,
    ) -> SessionHead:
        SessionId(new_id)
        with self._lock:
            return self._fork(session_id, new_id, at, now_ms, charter)

    def _fork(
        self, session_id: str, new_id: str, at: str | None, now_ms: int, charter: SessionCharter | None
    ) -> SessionHead:
        tables, row = self._tables, self._tables.row(session_id)
        if new_id in tables.sessions:
            raise errors.SessionExists(new_id)
        head = row.head if at is None or at == row.head.leaf else tables.moved_to(row, at)
        fork = tables.add_session(rules.forked(head, new_id, now_ms, charter))
        row.family = row.family or {session_id}
        row.states = [] if row.states is None else row.states
        row.family.add(new_id)
        fork.family, fork.segments, fork.states = row.family, row.segments, row.states
        return fork.head

    async def make_session(self, new: port.NewSession) -> SessionHead:
        with self._lock:
            head = new.head
            if (found := self._tables.sessions.get(head.session_id)) is not None:
                rules.require_same_session(found.head, head)
                return found.head
            if new.fork_of is None:
                self._tables.add_session(head)
            else:
                self._fork(new.fork_of, head.session_id, new.at, head.created_at, head.charter)
            row = self._tables.row(head.session_id)
            row.head = rules.described_as(row.head, head)
            try:
                self._equip(row, new)
            except BaseException:
                self._tables.drop_session(head.session_id)
                raise
            return row.head

    def _equip(self, row: SessionRow, new: port.NewSession) -> None:
        """Write the initial contents of a new session."""
        tables = self._tables
        if new.entries:
            self._append(row, new.segment_id, new.entries, new.head.created_at)
        tables.add_blobs(new.blobs)
        held = row.head.state
        state = new.make_state(None if held is None else tables.state_body(held))
        if state is not None:
            tables.add_state(row, state)
        if new.first is not None and not tables.is_known(new.first):
            tables.add_input(new.first)
        if (turn := new.turn) is not None:
            record = rules.new_record(turn, new.head.created_at)
            row.open = tables.open[turn.turn_id] = OpenTurn(record, turn.make_input(row.head, ()), None)
            row.open.add_entries(new.journal)
            row.turns.append(turn.turn_id)
            tables.turns[turn.turn_id] = record

    async def add_usage(
        self, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
    ) -> SessionHead:
        with self._lock:
            row = self._tables.row(session_id)
            self._append(row, "", (), now_ms, model_calls=model_calls)
            row.head = rules.used(row.head, now_ms, usage)
            return row.head

    async def rewind(self, session_id: str, to: str, now_ms: int) -> SessionHead:
        with self._lock:
            row = self._at_rest(session_id)
            row.head = rules.used(self._tables.moved_to(row, to), now_ms)
            return row.head

    async def set_state(
        self, session_id: str, state: port.StateRecord, blobs: tuple[port.Blob, ...], now_ms: int
    ) -> SessionHead:
        with self._lock:
            row = self._at_rest(session_id)
            self._tables.add_blobs(blobs)
            row.head = msgspec.structs.replace(row.head, updated_at=now_ms)
            self._tables.add_state(row, state)
            return row.head

    async def state(self, state_id: str) -> bytes | None:
        with self._lock:
            return self._tables.state_body(state_id)

    async def turn_states(self, turn_id: str) -> port.TurnStates | None:
        with self._lock:
            return self._tables.turn_states(turn_id)

    async def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, now_ms: int) -> None:
        self._tables.snapshots[snapshot_id] = (session_id, now_ms, data)

    async def snapshot(self, snapshot_id: str) -> bytes | None:
        found = self._tables.snapshots.get(snapshot_id)
        return None if found is None else found[2]

    def _at_rest(self, session_id: str) -> SessionRow:
        """Return the session; raise `SessionBusy` if it has an unfinished turn."""
        row = self._tables.row(session_id)
        open_turn = None if row.open is None else row.open.record.turn_id
        rules.require_at_rest(session_id, _owner(row.open), open_turn)
        return row

    def _append(
        self,
        row: SessionRow,
        segment_id: str,
        entries: tuple[Entry, ...],
        now_ms: int,
        *,
        requires: str | None = None,
        model_calls: int = 0,
        usage: tuple[UsageEntry, ...] = (),
        state: port.StateRecord | None = None,
    ) -> SessionHead:
        tables = self._tables
        require_append(tables.segments.get, row.head.leaf, segment_id, requires)
        head, segment = grown(row.head, segment_id, entries, model_calls)
        row.head = rules.used(head, now_ms, usage)
        if state is not None:
            tables.add_state(row, state)
        if segment is not None:
            tables.segments[segment_id] = segment
            row.segments.append(segment_id)
            if row.head.state is not None and (key := rules.state_key(row.head.state)) is not None:
                tables.segment_states[segment_id] = key
        return row.head

    # Turns

    async def begin(self, turn: port.NewTurn, claimant: port.Claimant) -> port.Begun | port.Repeated:
        tables, key = self._tables, turn.idempotency_key
        with self._lock:
            row = tables.row(turn.session_id)
            if key is not None and (known := tables.keys.get((turn.session_id, key))) is not None:
                rules.require_same_input(tables.turns[known], turn)
                return port.Repeated(record=tables.turns[known])
            if turn.turn_id in tables.turns:
                raise errors.IdempotencyConflict(turn.turn_id)
            if (unfinished := row.open) is not None:
                free = self._is_free(unfinished, rules.lease_time(claimant))
                raise rules.refuse_second_turn(unfinished.record, _owner(unfinished), free)
            consumed = () if turn.consumes is None else row.consumed(turn.consumes)
            injected = row.injected() if row.inputs else ()
            if consumed and injected:
                injected = tuple(item for item in injected if item not in consumed)
            body = turn.make_input(row.head, injected)
            if turn.blobs:
                tables.add_blobs(turn.blobs)
            if consumed or injected:
                tables.claim(row, consumed + injected)
            record, lease = rules.new_record(turn, claimant.now_ms), self._lease(turn.session_id, claimant)
            row.open = tables.open[turn.turn_id] = OpenTurn(record, body, lease)
            row.turns.append(turn.turn_id)
            tables.turns[turn.turn_id] = record
            if key is not None:
                tables.keys[turn.session_id, key] = turn.turn_id
            return port.Begun(lease=lease, head=row.head, record=record, input=body)

    async def take_over(self, turn_id: str, claimant: port.Claimant) -> port.Takeover:
        with self._lock:
            if (turn := self._tables.open.get(turn_id)) is None:
                raise errors.TurnNotFound(turn_id)
            row = self._tables.row(turn.record.session_id)
            free = self._is_free(turn, rules.lease_time(claimant))
            rules.require_takeable(turn_id, turn.record, _owner(turn), free)
            turn.lease = lease = self._lease(row.head.session_id, claimant)
            record = self._tables.change(turn, rules.taken_over(turn.record))
            return port.Takeover(
                lease=lease, head=row.head, record=record, input=turn.input, journal=tuple(turn.journal)
            )

    async def save(self, lease: port.Lease, save: port.Save) -> port.Saved:
        with self._lock:
            return self._save(*self._held(lease, save.turn_id), save)

    async def park(self, lease: port.Lease, save: port.Save, summary: TurnSummary) -> None:
        with self._lock:
            row, turn = self._held(lease, save.turn_id)
            self._save(row, turn, save)
            if isinstance(summary.outcome, Waiting):
                turn.add_waits(summary.outcome.waits)
            self._tables.change(turn, rules.parked(turn.record, summary))
            turn.lease = turn.keys = None

    async def commit(self, lease: port.Lease, commit: port.TurnCommit) -> SessionHead | port.CommitRefused:
        with self._lock:
            row, turn = self._held(lease, commit.turn_id)
            injected = bool(row.inputs and row.injected())
            refused = rules.refuse_commit(commit, turn.record.cancel_requested, injected)
            return refused or self._commit(row, turn, commit)

    async def renew(self, leases: tuple[port.Lease, ...], now_ms: int, lease_ms: int) -> port.Renewed:
        lost: set[str] = set()
        cancelled: set[str] = set()
        with self._lock:
            for lease in leases:
                turn = self._turn_held(lease)
                if turn is None:
                    lost.add(lease.session_id)
                    continue
                turn.lease = msgspec.structs.replace(lease, until_ms=now_ms + lease_ms)
                if turn.record.cancel_requested:
                    cancelled.add(turn.record.turn_id)
        return port.Renewed(lost=frozenset(lost), cancelled=frozenset(cancelled))

    async def turn(self, turn_id: str) -> TurnRecord | None:
        return self._tables.turns.get(turn_id)

    async def cancelled(self, turn_ids: tuple[str, ...]) -> frozenset[str]:
        found = map(self._tables.turns.get, turn_ids)
        return frozenset(turn.turn_id for turn in found if turn is not None and turn.cancel_requested)

    async def turns(self, session_id: str) -> list[TurnRecord]:
        with self._lock:
            row = self._tables.sessions.get(session_id)
            return [] if row is None else [self._tables.turns[turn_id] for turn_id in row.turns]

    async def open_turn(self, session_id: str) -> TurnRecord | None:
        with self._lock:
            row = self._tables.sessions.get(session_id)
            return None if row is None or row.open is None else row.open.record

    async def outlines(self, session_ids: tuple[str, ...]) -> dict[str, port.SessionOutline]:
        with self._lock:
            rows = {name: self._tables.sessions.get(name) for name in session_ids}
            return {
                name: port.SessionOutline(
                    turns=len(row.turns), open_turn=None if row.open is None else row.open.record
                )
                for name, row in rows.items()
                if row is not None and row.turns
            }

    async def open_turn_journal(self, session_id: str) -> port.JournaledTurn | None:
        with self._lock:
            row = self._tables.sessions.get(session_id)
            turn = None if row is None else row.open
            if turn is None:
                return None
            return port.JournaledTurn(record=turn.record, input=turn.input, journal=tuple(turn.journal))

    async def turn_journal(self, turn_id: str) -> port.JournaledTurn | None:
        with self._lock:
            record, turn = self._tables.turns.get(turn_id), self._tables.open.get(turn_id)
            if record is not None and turn is not None:
                return port.JournaledTurn(record=record, input=turn.input, journal=tuple(turn.journal))
            kept = self._tables.journals.get(turn_id)
            if record is None or kept is None:
                return None
            return port.JournaledTurn(record=record, input=kept[0], journal=kept[1])

    async def drop_journals(self, before_ms: int) -> int:
        with self._lock:
            turns, kept = self._tables.turns, self._tables.journals
            old = [turn_id for turn_id in kept if (turns[turn_id].ended_at or 0) < before_ms]
            for turn_id in old:
                kept.drop(turn_id)
            return len(old)

    async def see_clock(self, boot: str, offset_ms: int) -> port.SeenClock:
        with self._lock:
            seen = rules.seen_clock(self._clocks.get(boot), offset_ms)
            self._clocks[boot] = (seen.lease_offset_ms, offset_ms)
            for turn in self._tables.open.values() if seen.shift_ms else ():
                turn.waits = tuple(rules.moved_along(wait, seen.shift_ms) for wait in turn.waits)
                self._tables.change(turn, rules.record_moved_along(turn.record, seen.shift_ms))
            return seen

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        with self._lock:
            unfinished = self._tables.open.values()
            return [turn.record for turn in unfinished if self._can_continue(turn, now_ms, lease_ms)]

    async def turn_counts(self, now_ms: int, *, lease_now_ms: int | None = None) -> port.TurnCounts:
        lease_ms = now_ms if lease_now_ms is None else lease_now_ms
        with self._lock:
            turns = list(self._tables.open.values())
            stuck = {turn.record.turn_id for turn in turns if self._can_continue(turn, now_ms, lease_ms)}
            states = [turn.record.state for turn in turns if turn.record.turn_id not in stuck]
            return port.TurnCounts(
                queued=sum(item.kind == "queue" for item in self._tables.inputs.values()),
                running=states.count(TurnState.RUNNING),
                waiting=states.count(TurnState.WAITING),
                stuck=len(stuck),
            )

    async def cancel(self, turn_id: str) -> bool:
        with self._lock:
            if (turn := self._tables.open.get(turn_id)) is None:
                return False
            self._tables.change(turn, msgspec.structs.replace(turn.record, cancel_requested=True))
            return True

    def _lease(self, session_id: str, claimant: port.Claimant) -> port.Lease:
        self._fence += 1
        return rules.lease_for(session_id, claimant, self._fence)

    def _is_free(self, turn: OpenTurn, now_ms: int) -> bool:
        until_ms = 0 if turn.lease is None else turn.lease.until_ms
        return rules.is_free(_owner(turn), until_ms, now_ms, self._owner_is_dead)

    def _turn_held(self, lease: port.Lease) -> OpenTurn | None:
        """Return the turn that may be written under the lease; None if the lease is lost."""
        row = self._tables.sessions.get(lease.session_id)
        turn = None if row is None else row.open
        if turn is None or turn.lease is None or turn.lease.fence != lease.fence:
            return None
        return turn

    def _held(self, lease: port.Lease, turn_id: str) -> tuple[SessionRow, OpenTurn]:
        if (turn := self._turn_held(lease)) is None:
            raise errors.LeaseLost(lease.session_id)
        if turn.record.turn_id != turn_id:
            raise errors.TurnNotFound(turn_id)
        return self._tables.sessions[lease.session_id], turn

    def _save(self, row: SessionRow, turn: OpenTurn, save: port.Save) -> port.Saved:
        tables, entries, approvals = self._tables, save.entries, dict[str, Approval]()
        claimed: tuple[port.QueuedInput, ...] = ()
        checkpoint: port.JournalEntry | None = None
        if save.make_checkpoint is not None:
            claimed = row.injected()
            checkpoint = save.make_checkpoint(claimed)
            entries = (*entries, checkpoint)
        for approval in save.approvals:
            if approval.approval_id in tables.approvals or approval.approval_id in approvals:
                raise rules.already_requested(approval.approval_id)
            approvals[approval.approval_id] = copied(approval)
        turn.add_entries(entries)
        if save.blobs:
            tables.add_blobs(save.blobs)
            turn.blobs += tuple(blob.digest for blob in save.blobs)
        if claimed:
            tables.claim(row, claimed)
        if approvals:
            tables.approvals |= approvals
            turn.approvals += tuple(approvals)
        if save.waits:
            turn.add_waits(save.waits)
        return port.Saved(cancel_requested=turn.record.cancel_requested, checkpoint=checkpoint)

    def _commit(self, row: SessionRow, turn: OpenTurn, commit: port.TurnCommit) -> SessionHead:
        tables = self._tables
        enqueued = tables.not_known(commit.enqueue) if commit.enqueue else []
        self._append(
            row,
            commit.turn_id,
            commit.entries,
            commit.now_ms,
            model_calls=commit.model_calls,
            usage=commit.usage,
            state=commit.state,
        )
        if commit.blobs:
            tables.add_blobs(commit.blobs)
        tables.change(turn, rules.ended(turn.record, commit.summary, commit.now_ms))
        if commit.journal is not None:
            tables.journals.keep(commit.turn_id, turn.input, (*turn.journal, *commit.journal))
        tables.close_turn(row, turn)
        # A message that missed the last checkpoint starts a turn of its own.
        for item in row.injected() if row.inputs else ():
            assert row.inputs is not None
            queued = msgspec.structs.replace(item, kind="queue")
            tables.inputs[item.input_id] = row.inputs[item.input_id] = queued
        for item in enqueued:
            tables.add_input(item)
        return row.head

    def _can_continue(self, turn: OpenTurn, now_ms: int, lease_now_ms: int) -> bool:
        waits = rules.waited_for(turn.record, turn.waits)
        over = any(self._tables.outcome(turn, wait, now_ms) is not None for wait in waits)
        return rules.can_continue(turn.record, free=self._is_free(turn, lease_now_ms), wait_over=over)

    # Input for a session

    async def put_input(self, item: port.QueuedInput, blobs: tuple[port.Blob, ...] = ()) -> None:
        with self._lock:
            self._tables.row(item.session_id)
            if not self._tables.is_known(item):
                self._tables.add_input(item)
                self._tables.add_blobs(blobs)

    async def withdraw_input(self, input_id: str) -> bool:
        tables = self._tables
        with self._lock:
            if (item := tables.inputs.get(input_id)) is None:
                return False
            row = tables.row(item.session_id)
            tables.claim(row, (item,))
            del tables.contents[input_id]
            assert row.input_ids is not None
            row.input_ids.remove(input_id)
            return True

    async def inputs(self, session_id: str) -> list[port.QueuedInput]:
        with self._lock:
            row = self._tables.sessions.get(session_id)
            return [] if row is None or row.inputs is None else list(row.inputs.values())

    async def blob(self, digest: str) -> bytes | None:
        return self._tables.blobs.get(digest)

    async def blob_part(self, digest: str, start: int, stop: int | None = None) -> port.BlobPart | None:
        data = self._tables.blobs.get(digest)
        return None if data is None else port.BlobPart.of(data, start, stop)

    # Waits

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        with self._lock:
            if (turn := self._tables.open.get(turn_id)) is None:
                return ()
            return tuple(self._tables.outcomes(turn, now_ms).items())

    async def complete(self, token: str, outcome: WaitOutcome, now_ms: int) -> TurnRecord:
        with self._lock:
            if (turn := self._tables.open.get(rules.turn_of_token(token))) is None:
                raise errors.TokenNotFound(token)
            wait = next((wait for wait in turn.waits if wait.wait_id == token), None)
            rules.require_completable(token, wait, (turn.completions or {}).get(token), now_ms)
            turn.complete({token: outcome})
            return turn.record

    async def approvals(self, *, session_id: str | None = None, turn_id: str | None = None) -> list[Approval]:
        with self._lock:
            found = [
                copied(approval)
                for approval in self._tables.approvals.values()
                if session_id in (None, approval.session_id) and turn_id in (None, approval.run_id)
            ]
        return sorted(found, key=rules.approval_order)

    async def approval(self, approval_id: str) -> Approval | None:
        found = self._tables.approvals.get(approval_id)
        return None if found is None else copied(found)

    async def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        with self._lock:
            if approval_id not in self._tables.approvals:
                raise errors.ApprovalNotFound(approval_id)
            after = self._tables.update_approval(
                approval_id,
                lambda it: copied(rules.decided(it, decision, now_ms=now_ms, edited_digest=edited_digest)),
            )
        return copied(after)

    # Child sessions

    async def children(self, session_id: str) -> list[SessionHead]:
        with self._lock:
            found = [self._tables.sessions[it].head for it in self._tables.children.get(session_id, ())]
        return sorted(found, key=lambda head: head.created_at)

    async def with_queued(self) -> list[str]:
        with self._lock:
            queued = {it.session_id: None for it in self._tables.inputs.values() if it.kind == "queue"}
            return [session_id for session_id in queued if self._tables.sessions[session_id].open is None]

    # Tasks. A refusal is raised before the first change.

    async def add_task(self, record: TaskRecord) -> None:
        with self._lock:
            self._tables.row(record.session_id)
            tasks = self._tables.tasks.setdefault(record.session_id, {})
            there = tasks.get(record.id)
            rules.require_room(None if there is None else there.record)
            tasks[record.id] = PlacedTask(record, next(self._task_seq))

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        with self._lock:
            placed = self._placed_task(session_id, task_id)
            after = rules.changed_task(placed.record, change)
            self._tables.tasks[session_id][task_id] = PlacedTask(after, placed.seq)
            return after

    async def task(self, session_id: str, task_id: str) -> TaskRecord | None:
        with self._lock:
            placed = self._tables.tasks.get(session_id, {}).get(task_id)
            return None if placed is None else placed.record

    async def tasks(self, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
        with self._lock:
            found = [
                placed
                for owner, tasks in self._tables.tasks.items()
                if session_id in (None, owner)
                for placed in tasks.values()
                if not live or not placed.record.state.is_terminal
            ]
        return [placed.record for placed in sorted(found, key=rules.task_order)]

    async def move_tasks(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        with self._lock:
            self._tables.row(from_id)
            self._tables.row(to_id)
            target = self._tables.tasks.setdefault(to_id, {})
            found = [self._placed_task(from_id, task_id) for task_id in dict.fromkeys(task_ids)]
            if from_id == to_id:
                return
            for record, _ in found:
                there = target.get(record.id)
                rules.require_room(None if there is None else there.record)
            for record, seq in found:
                del self._tables.tasks[from_id][record.id]
                target[record.id] = PlacedTask(rules.moved_task(record, to_id, now_ms), seq)

    async def remove_task(self, session_id: str, task_id: str) -> bool:
        with self._lock:
            return self._tables.tasks.get(session_id, {}).pop(task_id, None) is not None

    def _placed_task(self, session_id: str, task_id: str) -> PlacedTask:
        if (found := self._tables.tasks.get(session_id, {}).get(task_id)) is None:
            raise errors.TaskNotFound(session_id, task_id)
        return found

    # Triggers

    async def put_trigger(self, trigger: Trigger, *, seen: Trigger | None = None) -> bool:
        with self._lock:
            if seen is not None and self._tables.triggers.get(seen.name) != seen:
                return False
            self._tables.row(trigger.session_id)
            self._tables.triggers[trigger.name] = trigger
            return True

    async def trigger(self, name: str) -> Trigger | None:
        return self._tables.triggers.get(name)

    async def triggers(self) -> list[Trigger]:
        with self._lock:
            return [trigger for _, trigger in sorted(self._tables.triggers.items())]

    async def remove_trigger(self, name: str) -> bool:
        with self._lock:
            return self._tables.triggers.pop(name, None) is not None

    async def occur(
        self, occurrence: Occurrence, inputs: tuple[port.QueuedInput, ...], advance: Trigger | None = None
    ) -> bool:
        tables, place = self._tables, (occurrence.source, occurrence.key)
        with self._lock:
            known = place in tables.occurrences
            if not known:
                there = tuple(item for item in inputs if item.session_id in tables.sessions)
                for item in tables.not_known(there):
                    tables.add_input(item)
                tables.occurrences[place] = occurrence.at_ms
            if advance is not None and rules.moves_on(tables.triggers.get(advance.name), advance):
                tables.triggers[advance.name] = advance
            return not known

    # Records of plugins

    async def put_plugin_record(
        self, plugin_id: str, scope: str, key: str, body: bytes | None, now_ms: int, *, replace: bool = True
    ) -> None:
        records, place = self._tables.plugin_records, (plugin_id, scope)
        with self._lock:
            if not replace and key in records.get(place, {}):
                return
            if body is not None:
                records.setdefault(place, {})[key] = body
            elif (kept := records.get(place)) is not None:
                kept.pop(key, None)
                if not kept:
                    del records[place]

    async def plugin_record(self, plugin_id: str, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._tables.plugin_records.get((plugin_id, scope), {}).get(key)

    async def plugin_records(self, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
        with self._lock:
            return sorted(self._tables.plugin_records.get((plugin_id, scope), {}).items())

    # Statistics and maintenance

    async def usage_by_day(self, since_ms: int) -> list[port.DayUsage]:
        with self._lock:
            ended = [it for it in self._tables.turns.values() if (it.ended_at or -1) >= since_ms]
            models = {name: row.head.model for name, row in self._tables.sessions.items()}
        return rules.usage_by_day(ended, models)

    async def survey(self) -> port.StoreSurvey:
        with self._lock:
            tables = self._tables
            opened = list(tables.open.values())
            leases = sorted(
                (turn.lease for turn in opened if turn.lease is not None), key=lambda it: it.session_id
            )
            counted: dict[str, Sized] = {
                "sessions": tables.sessions,
                "segments": tables.segments,
                "turns": tables.turns,
                "journals": tables.journals,
                "inputs": tables.inputs,
                "blobs": tables.blobs,
                "states": tables.states,
                "approvals": tables.approvals,
                "triggers": tables.triggers,
            }
            return port.StoreSurvey(
                leases=tuple(
                    port.HeldLease(session_id=it.session_id, owner=it.owner, until_ms=it.until_ms)
                    for it in leases
                ),
                turns=tuple(turn.record for turn in opened),
                rows={name: len(table) for name, table in counted.items()},
                bytes=None,
            )

    async def prune(self, request: port.PruneRequest) -> port.Pruned:
        with self._lock:
            return prune(self._tables, request)


def _owner(turn: OpenTurn | None) -> str | None:
    """Return the owner of a turn's lease."""
    return None if turn is None or turn.lease is None else turn.lease.owner
