"""What `MemorySessionStore` keeps: sessions, turns, inputs, approvals, tasks and blobs, as plain objects.

Rules
-----
1. Nothing here waits or locks; the store calls it under its own lock.
2. Whatever can be refused is refused before the first change.
3. What a session at rest does not have costs it nothing: empty places are None or the empty tuple.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from standfast.errors import InputNotFound, SessionNotFound
from standfast.graph.history import Branch, SessionGraph
from standfast.model.approval import Approval
from standfast.model.session import SessionHead, TurnRecord, split_node_id
from standfast.model.trigger import Trigger
from standfast.model.wait import Wait, WaitOutcome
from standfast.ports.session_store import Blob, JournalEntry, Lease, QueuedInput, StateRecord
from standfast.store import rules
from standfast.store.rules import (
    PlacedTask,
    Spot,
    StatePlace,
    before_leaf,
    held_at,
    needed_states,
    state_id,
    state_key,
)


@dataclass(slots=True)
class OpenTurn:
    """A turn that has not ended, with its journal."""

    record: TurnRecord
    input: bytes
    lease: Lease | None
    journal: list[JournalEntry] = field(default_factory=list)
    keys: set[tuple[str, str]] | None = field(default_factory=set)
    waits: tuple[Wait, ...] = ()
    approvals: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    completions: dict[str, WaitOutcome] | None = None

    def add_entries(self, entries: tuple[JournalEntry, ...]) -> None:
        """Add to the journal. A state replaces the one of its key; any other key twice is refused."""
        known = self.keys
        if known is None:
            known = {(entry.key, entry.kind) for entry in self.journal}
        new: set[tuple[str, str]] = set()
        for entry in entries:
            name = (entry.key, entry.kind)
            if entry.kind != "state" and (name in known or name in new):
                raise rules.already_journaled(self.record.turn_id, entry.key)
            new.add(name)
        for entry in entries:
            if (entry.key, entry.kind) in known:  # a later state of its key
                self.journal[:] = [it for it in self.journal if it.kind != "state" or it.key != entry.key]
            self.journal.append(entry)
            known.add((entry.key, entry.kind))
        self.keys = known

    def add_waits(self, waits: tuple[Wait, ...]) -> None:
        """Add waits; one that is there already is replaced."""
        new = {wait.wait_id for wait in waits}
        self.waits = (*(wait for wait in self.waits if wait.wait_id not in new), *waits)

    def complete(self, outcomes: dict[str, WaitOutcome]) -> None:
        """Keep how external completions ended."""
        if outcomes:
            self.completions = (self.completions or {}) | outcomes


@dataclass(slots=True)
class SessionRow:
    """A session, what waits for it, and what it appended.

    `input_ids` are those of all inputs that it ever had. Sessions that may share segments, a session and its
    forks, are a `family` and have one list of `segments` and one of `states`.
    """

    head: SessionHead
    turns: list[str] = field(default_factory=list)
    open: OpenTurn | None = None
    inputs: dict[str, QueuedInput] | None = None
    input_ids: list[str] | None = None
    segments: list[str] = field(default_factory=list)
    states: list[int] | None = None
    family: set[str] | None = None

    def injected(self) -> tuple[QueuedInput, ...]:
        """The messages for a checkpoint, oldest first."""
        if not self.inputs:
            return ()
        return tuple(item for item in self.inputs.values() if item.kind == "inject")

    def consumed(self, input_id: str | None) -> tuple[QueuedInput, ...]:
        """The input that a turn is for, if it is for one."""
        if input_id is None:
            return ()
        if self.inputs is None or input_id not in self.inputs:
            raise InputNotFound(input_id)
        return (self.inputs[input_id],)

    def stand_at(self, branch: Branch, now_ms: int, state: str | None) -> SessionHead:
        """Move the head to where the session stands in the graph, with the state that holds there."""
        moved = rules.head_at(self.head, branch)
        self.head = msgspec.structs.replace(moved, state=state, updated_at=now_ms)
        return self.head


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a session's variables; it outlives the session."""

    session_id: str
    created_at: int
    data: bytes


_NO_SESSION = ""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A state in its place."""

    record: StateRecord
    place: StatePlace


class MemoryStates:
    """All states of one store by key, and the ones that segments name."""

    def __init__(self, graph: SessionGraph) -> None:
        self._graph = graph
        self._states: dict[int, _Stored] = {}
        self._last = 0
        self.of_segments: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._states)

    def add(self, head: SessionHead, record: StateRecord) -> int:
        """Keep a state at the head's leaf; returns its key."""
        self._last += 1
        previous = before_leaf(self._find, head.state, head.leaf)
        place = StatePlace(head.session_id, previous, head.leaf, head.depth)
        self._states[self._last] = _Stored(record, place)
        return self._last

    def body(self, name: str) -> bytes | None:
        """The body of the state of that name."""
        found = self._states.get(state_key(name) or 0)
        return None if found is None else found.record.body

    def blobs(self) -> Iterator[str]:
        """The digests that states list."""
        for stored in self._states.values():
            yield from stored.record.blobs

    def name(self, segment_id: str, state: str | None) -> None:
        """Remember the state that holds at the end of a segment."""
        if (key := state_key(state)) is not None:
            self.of_segments[segment_id] = key

    def at_node(self, head: SessionHead, family: Sequence[int], node: str, depth: int) -> str | None:
        """The state that holds for a session at a node that it can reach. *family* are its family's."""
        for key in reversed(family):
            place = self._states[key].place
            if (place.session, place.node) == (head.session_id, node):
                return state_id(key)
        segment_id = split_node_id(node)[0]
        own = self._graph.segments[segment_id].session_id == head.session_id
        spot = Spot(node, depth, own, self.of_segments.get(segment_id))
        return state_id(held_at(self._find, state_key(head.state), spot))

    def disown(self, session_id: str, family: Iterable[int]) -> None:
        """Give up the states of a deleted session, so that a later session of its name does not have them."""
        for key in family:
            stored = self._states[key]
            if stored.place.session == session_id:
                self._states[key] = replace(stored, place=stored.place._replace(session=_NO_SESSION))

    def sweep(self, family: list[int], heads: Sequence[SessionHead], segments: Sequence[str]) -> None:
        """Delete the states of the family that neither its sessions nor its segments need."""
        places = {key: self._states[key].place for key in family}
        named = [state_key(head.state) for head in heads] + [self.of_segments.get(it) for it in segments]
        kept = needed_states(places, named, {head.session_id for head in heads}, set(segments))
        for key in places.keys() - kept:
            del self._states[key]
        family[:] = [key for key in family if key in kept]

    def _find(self, key: int) -> StatePlace | None:
        found = self._states.get(key)
        return None if found is None else found.place


class Tables:
    """All sessions of one store."""

    def __init__(self) -> None:
        self.graph = SessionGraph()
        self.sessions: dict[str, SessionRow] = {}
        self.turns: dict[str, TurnRecord] = {}
        self.open: dict[str, OpenTurn] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.inputs: dict[str, QueuedInput] = {}
        self.contents: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.states = MemoryStates(self.graph)
        self.plugin_records: dict[tuple[str, str], dict[str, bytes]] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.approvals: dict[str, tuple[str, Approval]] = {}
        self.children: dict[str, list[str]] = {}
        self.tasks: dict[str, dict[str, PlacedTask]] = {}
        self.triggers: dict[str, Trigger] = {}
        self.occurrences: dict[tuple[str, str], int] = {}

    def row(self, session_id: str) -> SessionRow:
        if (found := self.sessions.get(session_id)) is None:
            raise SessionNotFound(session_id)
        return found

    def add_session(self, head: SessionHead, branch: Branch) -> SessionRow:
        row = self.sessions[head.session_id] = SessionRow(head)
        self.graph.branches[head.session_id] = branch
        if (parent := rules.parent_of(head)) is not None:
            self.children.setdefault(parent, []).append(head.session_id)
        return row

    # Turns

    def open_turn(self, row: SessionRow, turn: OpenTurn) -> None:
        record = turn.record
        row.open = self.open[record.turn_id] = turn
        row.turns.append(record.turn_id)
        self.turns[record.turn_id] = record
        if record.idempotency_key is not None:
            self.keys[record.session_id, record.idempotency_key] = record.turn_id

    def change(self, turn: OpenTurn, record: TurnRecord) -> TurnRecord:
        """Give a turn another record."""
        turn.record = self.turns[record.turn_id] = record
        return record

    def move_waits(self, turn: OpenTurn, shift_ms: int) -> None:
        """Move the times of a turn's waits by how far the time of day was set."""
        turn.waits = tuple(rules.moved_along(wait, shift_ms) for wait in turn.waits)
        self.change(turn, rules.record_moved_along(turn.record, shift_ms))

    def close_turn(self, row: SessionRow, turn: OpenTurn) -> None:
        """Delete what only an unfinished turn has."""
        row.open = None
        del self.open[turn.record.turn_id]
        self.cancel_approvals(turn)

    def drop_turn(self, turn_id: str) -> None:
        record = self.turns.pop(turn_id)
        if record.idempotency_key is not None:
            del self.keys[record.session_id, record.idempotency_key]

    # Inputs and blobs

    def is_known(self, item: QueuedInput) -> bool:
        """Whether this input was put before, claimed or not; other content under its id is refused."""
        known = self.contents.get(item.input_id)
        if known is not None:
            rules.require_same_content(item, known)
        return known is not None

    def not_known(self, items: tuple[QueuedInput, ...]) -> list[QueuedInput]:
        """Those of the inputs that were never put, each once; what cannot be kept is refused."""
        new: dict[str, QueuedInput] = {}
        for item in items:
            self.row(item.session_id)
            rules.require_same_content(item, rules.input_content(new.get(item.input_id, item)))
            if not self.is_known(item):
                new.setdefault(item.input_id, item)
        return list(new.values())

    def add_input(self, row: SessionRow, item: QueuedInput) -> None:
        row.inputs, row.input_ids = row.inputs or {}, row.input_ids or []
        self.inputs[item.input_id] = row.inputs[item.input_id] = item
        self.contents[item.input_id] = rules.input_content(item)
        row.input_ids.append(item.input_id)

    def queue_injected(self, row: SessionRow) -> None:
        """What missed the last checkpoint becomes input for turns of its own, in its place."""
        for item in row.injected():
            assert row.inputs is not None
            queued = msgspec.structs.replace(item, kind="queue")
            self.inputs[item.input_id] = row.inputs[item.input_id] = queued

    def claim(self, row: SessionRow, items: tuple[QueuedInput, ...]) -> None:
        """Hand inputs out, for good. Their content stays known, so that a sender is not heard twice."""
        for item in items:
            assert row.inputs is not None
            del self.inputs[item.input_id], row.inputs[item.input_id]

    def withdraw(self, item: QueuedInput) -> None:
        row = self.row(item.session_id)
        self.claim(row, (item,))
        del self.contents[item.input_id]
        assert row.input_ids is not None
        row.input_ids.remove(item.input_id)

    def add_blobs(self, blobs: tuple[Blob, ...]) -> None:
        for blob in blobs:
            self.blobs.setdefault(blob.digest, blob.data)

    # States and records of plugins

    def add_state(self, row: SessionRow, state: StateRecord) -> None:
        """Give the session a state at its leaf."""
        key = self.states.add(row.head, state)
        row.states = [] if row.states is None else row.states
        row.states.append(key)
        row.head = msgspec.structs.replace(row.head, state=state_id(key))

    def state_at(self, row: SessionRow, branch: Branch) -> str | None:
        """The state that holds for a session where *branch* stands."""
        assert branch.leaf is not None
        return self.states.at_node(row.head, row.states or (), branch.leaf, branch.depth)

    def put_plugin_record(self, place: tuple[str, str], key: str, body: bytes | None) -> None:
        """Store *body* for a plugin and a scope; None deletes it."""
        if body is not None:
            self.plugin_records.setdefault(place, {})[key] = body
        elif (kept := self.plugin_records.get(place)) is not None:
            kept.pop(key, None)
            if not kept:
                del self.plugin_records[place]

    # Approvals and waits

    def check_approvals(self, approvals: tuple[Approval, ...]) -> None:
        seen: set[str] = set()
        for approval in approvals:
            if approval.approval_id in self.approvals or approval.approval_id in seen:
                raise rules.already_requested(approval.approval_id)
            seen.add(approval.approval_id)

    def add_approvals(self, turn: OpenTurn, approvals: tuple[Approval, ...]) -> None:
        for approval in approvals:
            self.approvals[approval.approval_id] = (turn.record.turn_id, copied(approval))
        turn.approvals += tuple(approval.approval_id for approval in approvals)

    def update_approval(self, approval_id: str, change: Callable[[Approval], Approval]) -> Approval:
        turn_id, approval = self.approvals[approval_id]
        after = change(approval)
        if after is not approval:
            self.approvals[approval_id] = (turn_id, after)
        return after

    def cancel_approvals(self, turn: OpenTurn) -> None:
        """Cancel the open approvals of a turn."""
        for approval_id in turn.approvals:
            self.update_approval(approval_id, rules.cancelled)

    def outcome(self, turn: OpenTurn, wait: Wait, now_ms: int) -> WaitOutcome | None:
        """Return how a wait ended; None while it has not."""
        found = self.approvals.get(wait.wait_id)
        return rules.outcome_of(
            wait,
            now_ms,
            approval=None if found is None else found[1],
            completion=(turn.completions or {}).get(wait.wait_id),
        )

    def outcomes(self, turn: OpenTurn, now_ms: int) -> dict[str, WaitOutcome]:
        """Return how the turn's waits and approvals ended. What has expired cannot be answered any more."""
        for approval_id in turn.approvals:
            self.update_approval(approval_id, lambda it: rules.expired(it, now_ms))
        asked = {key: rules.answer_of(self.approvals[key][1]) for key in turn.approvals}
        found = {wait.wait_id: self.outcome(turn, wait, now_ms) for wait in turn.waits}
        late = (wait for wait in turn.waits if wait.kind == "completion")
        turn.complete({wait.wait_id: over for wait in late if (over := found[wait.wait_id]) is not None})
        return {wait_id: it for wait_id, it in (found | asked).items() if it is not None}

    # Sessions that go

    def drop_session(self, session_id: str) -> None:
        """Delete a session, its turns and inputs, and the segments that no fork of it needs."""
        row = self.sessions.pop(session_id)
        self.tasks.pop(session_id, None)
        for name in [name for name, it in self.triggers.items() if it.session_id == session_id]:
            del self.triggers[name]
        if (parent := rules.parent_of(row.head)) is not None:
            self.children[parent].remove(session_id)
            if not self.children[parent]:
                del self.children[parent]
        if row.open is not None:
            self.close_turn(row, row.open)
        for turn_id in row.turns:
            self.drop_turn(turn_id)
        for input_id in row.input_ids or ():
            self.inputs.pop(input_id, None)
            del self.contents[input_id]
        del self.graph.branches[session_id]
        kept = self._needed_without(row) if row.family is not None else set[str]()
        self.drop_segments(set(row.segments) - kept)
        row.segments[:] = [segment_id for segment_id in row.segments if segment_id in kept]
        if row.states:
            self.states.disown(session_id, row.states)
            self.sweep_states(row)

    def share(self, row: SessionRow, fork: SessionRow) -> None:
        """Make a fork a member of the session's family."""
        row.family = row.family or {row.head.session_id}
        row.states = [] if row.states is None else row.states
        row.family.add(fork.head.session_id)
        fork.family, fork.segments, fork.states = row.family, row.segments, row.states

    def _needed_without(self, row: SessionRow) -> set[str]:
        """What the rest of the family can reach: active paths, and what its members appended themselves."""
        graph, rest = self.graph, row.family or set()
        rest.discard(row.head.session_id)
        segments = filter(None, map(graph.segments.get, row.segments))
        own = [segment.leaf for segment in segments if segment.session_id in rest]
        return graph.ancestry([*own, *(graph.branch(session_id).leaf for session_id in rest)])

    def drop_segments(self, segment_ids: set[str]) -> None:
        for segment_id in segment_ids:
            self.graph.segments.pop(segment_id, None)
            self.states.of_segments.pop(segment_id, None)

    def sweep_states(self, row: SessionRow) -> None:
        """Delete the states that the session's family no longer needs."""
        if row.states:
            members = row.family or {row.head.session_id}
            heads = [self.sessions[it].head for it in members if it in self.sessions]
            self.states.sweep(row.states, heads, row.segments)


def copied(approval: Approval) -> Approval:
    """An approval that shares no list or dict with *approval*."""
    args, kwargs = copy.deepcopy(approval.args), copy.deepcopy(approval.kwargs)
    return msgspec.structs.replace(approval, args=args, kwargs=kwargs)
