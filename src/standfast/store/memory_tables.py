"""The tables of `MemorySessionStore`: sessions, turns, inputs, approvals, tasks and blobs, as plain objects.

Nothing here waits or locks, because the store holds its lock. A refusal is raised before the first change. An
idle session takes little memory: empty collections are None or the empty tuple.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from standfast.errors import InputNotFound, SessionNotFound
from standfast.graph.history import ancestry, moved_to
from standfast.model.approval import Approval
from standfast.model.outcome import Wait, WaitOutcome
from standfast.model.session import Segment, SessionHead, TurnRecord, split_node_id
from standfast.model.trigger import Trigger
from standfast.ports.session_store import Blob, JournalEntry, Lease, QueuedInput, StateRecord, TurnStates
from standfast.store import rules
from standfast.store.memory_archive import ArchiveTable, archive
from standfast.store.rules import PlacedTask, StatePlace, state_id, state_key

_NO_SESSION = ""
_MAX_JOURNALS: Final = 1_000
_MAX_JOURNAL_BYTES: Final = 256 << 10
"""How many journals of ended turns are kept, and how large they may be together."""
_MAX_IN_USE: Final = 256
"""How many sessions count as in use; the turns of the others are packed."""
_PACKED_TOGETHER: Final = 32
"""How many idle sessions are packed at once: the first takes three times as long as each that follows."""

Journal = tuple[bytes, tuple[JournalEntry, ...], int]
"""The first input of a turn, its journal, and the size of both."""


class OpenTurn(msgspec.Struct):
    """A turn that has not ended, with its journal."""

    record: TurnRecord
    input: bytes
    lease: Lease | None
    journal: list[JournalEntry] = []
    keys: set[tuple[str, str]] | None = msgspec.field(default_factory=set)
    waits: tuple[Wait, ...] = ()
    approvals: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    completions: dict[str, WaitOutcome] | None = None

    def add_entries(self, entries: tuple[JournalEntry, ...]) -> None:
        """Append entries. A state replaces the earlier one of its key; any other duplicate key is refused."""
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
        """Add waits, replacing those with the same id."""
        new = {wait.wait_id for wait in waits}
        self.waits = (*(wait for wait in self.waits if wait.wait_id not in new), *waits)

    def complete(self, outcomes: dict[str, WaitOutcome]) -> None:
        """Store the outcomes of external completions."""
        if outcomes:
            self.completions = (self.completions or {}) | outcomes


class SessionRow(msgspec.Struct, gc=False):
    """A session with its inputs, segments and states.

    `input_ids` are the ids of all inputs that it ever had. Sessions that may share segments, which are a
    session and its forks, form a `family` with one list of `segments` and one of `states`.
    """

    head: SessionHead
    turns: list[str] = []
    open: OpenTurn | None = None
    inputs: dict[str, QueuedInput] | None = None
    input_ids: list[str] | None = None
    segments: list[str] = []
    states: list[int] | None = None
    family: set[str] | None = None

    def injected(self) -> tuple[QueuedInput, ...]:
        """Return the messages for a checkpoint, oldest first."""
        if not self.inputs:
            return ()
        return tuple(item for item in self.inputs.values() if item.kind == "inject")

    def consumed(self, input_id: str) -> tuple[QueuedInput, ...]:
        """Return the queued input that a turn consumes."""
        if self.inputs is None or input_id not in self.inputs:
            raise InputNotFound(input_id)
        return (self.inputs[input_id],)


class KeptJournals(OrderedDict[str, Journal]):
    """The journals of the turns that ended last. They repeat the turns' nodes, so only a few are kept."""

    _bytes = 0

    def keep(self, turn_id: str, first: bytes, entries: tuple[JournalEntry, ...]) -> None:
        """Keep the journal of a turn that ends, and drop the oldest if there are too many."""
        size = len(first)
        for entry in entries:
            size += len(entry.body)
        self[turn_id] = (first, entries, size)
        self._bytes += size
        while len(self) > _MAX_JOURNALS or (self._bytes > _MAX_JOURNAL_BYTES and len(self) > 1):
            self.drop(next(iter(self)))

    def drop(self, turn_id: str) -> None:
        if (journal := self.pop(turn_id, None)) is not None:
            self._bytes -= journal[2]


class Tables:
    """All sessions of one store."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionRow] = {}
        self.turns: ArchiveTable[TurnRecord] = ArchiveTable(0)
        self.segments: ArchiveTable[Segment] = ArchiveTable(1)
        self._in_use: OrderedDict[str, SessionRow] = OrderedDict()
        """The sessions in which a turn has ended last."""
        self.open: dict[str, OpenTurn] = {}
        self.journals = KeptJournals()
        self.keys: dict[tuple[str, str], str] = {}
        self.inputs: dict[str, QueuedInput] = {}
        self.contents: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.states: dict[int, tuple[StateRecord, StatePlace]] = {}
        self.segment_states: dict[str, int] = {}
        """The state that is current at the end of each segment."""
        self.plugin_records: dict[tuple[str, str], dict[str, bytes]] = {}
        self.snapshots: dict[str, tuple[str, int, bytes]] = {}
        """The session, time and data of each snapshot. Snapshots outlive their session."""
        self.approvals: dict[str, Approval] = {}
        self.children: dict[str, list[str]] = {}
        self.tasks: dict[str, dict[str, PlacedTask]] = {}
        self.triggers: dict[str, Trigger] = {}
        self.occurrences: dict[tuple[str, str], int] = {}
        self._last_state = 0

    def row(self, session_id: str) -> SessionRow:
        if (found := self.sessions.get(session_id)) is None:
            raise SessionNotFound(session_id)
        return found

    def add_session(self, head: SessionHead) -> SessionRow:
        row = self.sessions[head.session_id] = SessionRow(head)
        if (parent := rules.parent_of(head)) is not None:
            self.children.setdefault(parent, []).append(head.session_id)
        return row

    # Turns

    def change(self, turn: OpenTurn, record: TurnRecord) -> TurnRecord:
        """Replace the record of a turn."""
        turn.record = self.turns[record.turn_id] = record
        return record

    def close_turn(self, row: SessionRow, turn: OpenTurn) -> None:
        """Delete the data that only an unfinished turn needs, and cancel its open approvals."""
        self._in_use[row.head.session_id] = row
        self._in_use.move_to_end(row.head.session_id)
        if len(self._in_use) > _MAX_IN_USE:
            for _ in range(min(_PACKED_TOGETHER, len(self._in_use))):
                archive(self.turns, self.segments, self._in_use.popitem(last=False)[1].turns)
        row.open = None
        del self.open[turn.record.turn_id]
        for approval_id in turn.approvals:
            self.approvals[approval_id] = rules.cancelled(self.approvals[approval_id])

    def drop_turn(self, turn_id: str) -> None:
        record = self.turns.pop(turn_id)
        self.journals.drop(turn_id)
        if record.idempotency_key is not None:
            del self.keys[record.session_id, record.idempotency_key]

    # Inputs and blobs

    def is_known(self, item: QueuedInput) -> bool:
        """Return whether this input was put before, claimed or not; raise if its content has changed."""
        known = self.contents.get(item.input_id)
        if known is not None:
            rules.require_same_content(item, known)
        return known is not None

    def not_known(self, items: tuple[QueuedInput, ...]) -> list[QueuedInput]:
        """Return the inputs that were never put, each once; raise if one cannot be put."""
        new: dict[str, QueuedInput] = {}
        for item in items:
            self.row(item.session_id)
            rules.require_same_content(item, rules.input_content(new.get(item.input_id, item)))
            if not self.is_known(item):
                new.setdefault(item.input_id, item)
        return list(new.values())

    def add_input(self, item: QueuedInput) -> None:
        row = self.sessions[item.session_id]
        row.inputs, row.input_ids = row.inputs or {}, row.input_ids or []
        self.inputs[item.input_id] = row.inputs[item.input_id] = item
        self.contents[item.input_id] = rules.input_content(item)
        row.input_ids.append(item.input_id)

    def claim(self, row: SessionRow, items: tuple[QueuedInput, ...]) -> None:
        """Claim inputs. Their content digests are kept, so that a repeated input is recognized."""
        for item in items:
            assert row.inputs is not None
            del self.inputs[item.input_id], row.inputs[item.input_id]

    def add_blobs(self, blobs: tuple[Blob, ...]) -> None:
        for blob in blobs:
            self.blobs.setdefault(blob.digest, blob.data)

    # States

    def state_body(self, name: str) -> bytes | None:
        found = self.states.get(state_key(name) or 0)
        return None if found is None else found[0].body

    def add_state(self, row: SessionRow, state: StateRecord) -> None:
        """Add a state of the session at its leaf."""
        head, self._last_state = row.head, self._last_state + 1
        previous = rules.before_leaf(self._state_place, head.state, head.leaf)
        place = StatePlace(head.session_id, previous, head.leaf, head.depth)
        self.states[self._last_state] = (state, place)
        row.states = [] if row.states is None else row.states
        row.states.append(self._last_state)
        row.head = msgspec.structs.replace(head, state=state_id(self._last_state))

    def moved_to(self, row: SessionRow, node: str) -> SessionHead:
        """Return the session's head with *node* as its leaf, and with the state that is current there."""
        head = moved_to(self.segments.get, row.head, node)
        for key in reversed(row.states or ()):
            place = self.states[key][1]
            if (place.session, place.node) == (head.session_id, node):
                return msgspec.structs.replace(head, state=state_id(key))
        segment_id = split_node_id(node)[0]
        own = self.segments[segment_id].session_id == head.session_id
        held = rules.held_at(
            self._state_place, head, own=own, segment_state=self.segment_states.get(segment_id)
        )
        return msgspec.structs.replace(head, state=state_id(held))

    def turn_states(self, turn_id: str) -> TurnStates | None:
        if turn_id not in self.segments:
            return None
        return rules.states_around(self._state_place, self.segment_states.get(turn_id), turn_id)

    def sweep_states(self, row: SessionRow) -> None:
        """Delete the states that neither the sessions nor the segments of the session's family need."""
        if not row.states:
            return
        members = row.family or {row.head.session_id}
        heads = [self.sessions[it].head for it in members if it in self.sessions]
        places = {key: self.states[key][1] for key in row.states}
        named = [state_key(head.state) for head in heads]
        named += [self.segment_states.get(segment_id) for segment_id in row.segments]
        sessions = {head.session_id for head in heads}
        kept = rules.needed_states(places, named, sessions, set(row.segments))
        for key in places.keys() - kept:
            del self.states[key]
        row.states[:] = [key for key in row.states if key in kept]

    def _state_place(self, key: int) -> StatePlace | None:
        found = self.states.get(key)
        return None if found is None else found[1]

    # Waits

    def update_approval(self, approval_id: str, change: Callable[[Approval], Approval]) -> Approval:
        after = self.approvals[approval_id] = change(self.approvals[approval_id])
        return after

    def outcome(self, turn: OpenTurn, wait: Wait, now_ms: int) -> WaitOutcome | None:
        """Return how a wait ended; None while it has not."""
        approval, completion = self.approvals.get(wait.wait_id), (turn.completions or {}).get(wait.wait_id)
        return rules.outcome_of(wait, now_ms, approval=approval, completion=completion)

    def outcomes(self, turn: OpenTurn, now_ms: int) -> dict[str, WaitOutcome]:
        """Return the outcomes of the turn's ended waits and approvals, and mark the expired ones as such."""
        asked = {
            key: rules.answer_of(self.update_approval(key, lambda it: rules.expired(it, now_ms)))
            for key in turn.approvals
        }
        found = {wait.wait_id: self.outcome(turn, wait, now_ms) for wait in turn.waits}
        late = (wait for wait in turn.waits if wait.kind == "completion")
        turn.complete({wait.wait_id: over for wait in late if (over := found[wait.wait_id]) is not None})
        return {wait_id: it for wait_id, it in (found | asked).items() if it is not None}

    # Deletion

    def drop_session(self, session_id: str) -> None:
        """Delete a session, its turns and inputs, and the segments that none of its forks needs."""
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
        self._in_use.pop(session_id, None)
        for turn_id in row.turns:
            self.drop_turn(turn_id)
        for input_id in row.input_ids or ():
            self.inputs.pop(input_id, None)
            del self.contents[input_id]
        kept = self._needed_without(row) if row.family is not None else set[str]()
        self.drop_segments(set(row.segments) - kept)
        row.segments[:] = [segment_id for segment_id in row.segments if segment_id in kept]
        for key in row.states or ():  # a later session with this id must not get its states
            state, place = self.states[key]
            if place.session == session_id:
                self.states[key] = (state, place._replace(session=_NO_SESSION))
        self.sweep_states(row)

    def _needed_without(self, row: SessionRow) -> set[str]:
        """Return the segments that other members of the family can reach: their paths and own segments."""
        rest = row.family or set()
        rest.discard(row.head.session_id)
        segments = filter(None, map(self.segments.get, row.segments))
        own = [segment.leaf for segment in segments if segment.session_id in rest]
        return self.reached(rest, own)

    def reached(self, session_ids: Iterable[str], nodes: Iterable[str] = ()) -> set[str]:
        """Return the segments on the active paths of these sessions, and on the paths to *nodes*."""
        leaves = (self.sessions[session_id].head.leaf for session_id in session_ids)
        return ancestry(self.segments.get, (*nodes, *leaves))

    def drop_segments(self, segment_ids: set[str]) -> None:
        for segment_id in segment_ids:
            self.segments.pop(segment_id, None)
            self.segment_states.pop(segment_id, None)


def copied(approval: Approval) -> Approval:
    """Return an approval that shares no list or dict with *approval*."""
    args, kwargs = copy.deepcopy(approval.args), copy.deepcopy(approval.kwargs)
    return msgspec.structs.replace(approval, args=args, kwargs=kwargs)
