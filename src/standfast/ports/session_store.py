"""The port of stores: sessions, their turns, and everything that a turn must not lose.

Rules
-----
1. Every method is atomic, and durable when it returns. Methods are coroutines: none of them blocks the loop
   for longer than a commit to a fast local disk takes.
2. A session has one writer. `begin` and `take_over` return a `Lease` whose `fence` is higher than any before.
   Every write of a turn carries it; a write whose fence is not the session's raises `LeaseLost` and changes
   nothing. A lease ends with `commit` or `park`, when it expires, or when its owner is provably dead.
3. A session has at most one turn that is not `ended`.
4. The journal of a turn holds opaque bodies in the order in which they were saved. Within a kind, keys are
   unique: an input or an intent whose key exists is refused; a state replaces the earlier one of its key and
   moves to the end. When the turn ends, the graph and the session's state hold everything that later turns
   need. The journal is then deleted, or kept as one record for later inspection until `drop_journals`, or
   until the turn's record is deleted.
5. `commit` is one transaction: nodes, head, usage, the state of plugins and tools, the turn's end, its
   journal, waits and open approvals.
6. Every record is checked on reading against the digest it was written with; a mismatch raises
   `RecordCorrupt`, which names the record.
7. Callables passed to a method run inside its transaction, possibly on another thread and more than once, so
   they must be pure.
8. A state belongs to the node that was the session's leaf when it was written; the state of a commit, to the
   last node of its segment. The state at a node is the newest that the session wrote there, or else that of
   the nearest node before it. So sessions that share history share its states, and a state that one of them
   writes after the fork is its own.
9. A blob is kept as long as a node, a waiting input, a state or the journal of a turn names it; a blob stored
   by a save, at least until its turn ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NotRequired, Protocol, TypedDict, Unpack

import msgspec

from standfast.model.approval import Approval, Decision
from standfast.model.canonical import Json
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import UserMessage
from standfast.model.outcome import Wait, WaitOutcome
from standfast.model.session import (
    Blocked,
    CodeSettings,
    Entry,
    HoldsSessionIds,
    Segment,
    SessionCharter,
    SessionHead,
    SessionIdField,
    TurnRecord,
    TurnSummary,
)
from standfast.model.task import TaskRecord

if TYPE_CHECKING:
    from standfast.model.trigger import Occurrence, Trigger


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive right to write to a session until `until_ms`, as its holder keeps it in memory."""

    session_id: str
    owner: str
    fence: int
    until_ms: int


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a new lease, the current time and the lease's duration.

    The lease expires by the clock of `lease_now_ms` (`see_clock`), or of `now_ms` if that is None.
    """

    owner: str
    now_ms: int
    lease_ms: int
    lease_now_ms: int | None = None


CLOCK_TOLERANCE_MS: Final = 1_000
"""How far the time of day may drift since it was last seen without counting as set."""


WORK: Final = "work"
"""The text of the announcement that some turn may begin or continue."""


class SeenClock(msgspec.Struct, frozen=True, kw_only=True):
    """The offset between the clocks of this machine.

    Leases expire by the boot-time clock plus `lease_offset_ms`, which is the same for every program until the
    machine reboots. `shift_ms` is how far the time of day was set since the last call of `see_clock`.
    """

    lease_offset_ms: int
    shift_ms: int = 0


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a turn's journal.

    An `intent` records that an effect is about to happen. A `state` is the state of a plugin during the turn;
    a later one of its key replaces it. `past` is the state that the next entry replaces, empty if there was
    none; recovery does not need these entries.
    """

    key: str
    kind: Literal["input", "intent", "state", "past"]
    body: bytes = b""


class QueuedInput(HoldsSessionIds, frozen=True, kw_only=True):
    """A message that waits: `inject` for a checkpoint of a turn, `queue` to start a turn of its own.

    `first` waits for the caller that starts the session's first turn; no turn claims it by itself.
    """

    input_id: str
    session_id: SessionIdField
    kind: Literal["inject", "queue", "first"]
    message: UserMessage
    created_at: int


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of an attachment, stored once under their digest.

    Inside a store, the `data` of a blob that is `apart` is the name of the object that holds the bytes.
    """

    digest: str
    data: bytes
    apart: bool = False


class BlobPart(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a blob's bytes that begins at `start`. `size` is that of the whole blob."""

    data: bytes
    start: int
    size: int

    @classmethod
    def of(cls, data: bytes, start: int, stop: int | None) -> BlobPart:
        """Return the range `data[start:stop]` of a blob whose bytes are *data*."""
        first, last, _ = slice(start, stop).indices(len(data))
        return cls(data=data[first:last], start=first, size=len(data))


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of plugins and tools: `body` is opaque to the store, `blobs` are the digests in it."""

    body: bytes
    blobs: tuple[str, ...] = ()


class TurnStates(msgspec.Struct, frozen=True):
    """The ids of the states that a session had before and after a turn; None where it had none."""

    before: str | None
    after: str | None


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to begin. `make_input` builds its first journal body from the injected messages that it claims.

    `consumes` is the id of the queued input that the turn is for; `begin` claims it.
    """

    session_id: str
    turn_id: str
    agent: str
    make_input: Callable[[SessionHead, tuple[QueuedInput, ...]], bytes]
    input_digest: str
    idempotency_key: str | None = None
    consumes: str | None = None
    blobs: tuple[Blob, ...] = ()


class Begun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A turn that has begun: its lease, its record, its first journal body, and the head it runs on."""

    lease: Lease
    head: SessionHead
    record: TurnRecord
    input: bytes


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier turn has the same idempotency key and input, so no turn was begun."""

    record: TurnRecord


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that waited or lost its owner, with its journal after the first input."""

    lease: Lease
    head: SessionHead
    record: TurnRecord
    input: bytes
    journal: tuple[JournalEntry, ...]


class JournaledTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with its first input and its journal after that, read consistently."""

    record: TurnRecord
    input: bytes
    journal: tuple[JournalEntry, ...]


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a turn must make durable before it continues.

    `make_checkpoint`, if given, builds one more entry from the injected messages that the save claims.
    `blobs` are kept at least until the turn ends, even if nothing names them.
    """

    turn_id: str
    entries: tuple[JournalEntry, ...]
    approvals: tuple[Approval, ...] = ()
    waits: tuple[Wait, ...] = ()
    blobs: tuple[Blob, ...] = ()
    make_checkpoint: Callable[[tuple[QueuedInput, ...]], JournalEntry] | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a save: whether the turn was cancelled, and the `checkpoint` entry if one was built."""

    cancel_requested: bool
    checkpoint: JournalEntry | None = None


class TurnCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn.

    `entries` become one segment, named after the turn, under the session's leaf. `model_calls` and `usage`
    are added to the head's. `enqueue` becomes queued inputs, in this order. Without a `state` the session
    keeps its current one. A `Finished` outcome is refused while an injected message or a cancellation is
    pending; any other outcome converts pending injected messages to queued inputs. If `journal`, the entries
    that were not saved yet, is given, the turn's journal is kept.
    """

    turn_id: str
    now_ms: int
    entries: tuple[Entry, ...]
    summary: TurnSummary
    model_calls: int
    usage: tuple[UsageEntry, ...] = ()
    enqueue: tuple[QueuedInput, ...] = ()
    state: StateRecord | None = None
    blobs: tuple[Blob, ...] = ()
    journal: tuple[JournalEntry, ...] | None = None


class CommitRefused(msgspec.Struct, frozen=True, kw_only=True):
    """An injected message or a cancellation arrived before the turn could finish; nothing was written."""

    reason: Literal["injected", "cancelled"]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions whose lease is lost, and the turns that a caller has cancelled."""

    lost: frozenset[str]
    cancelled: frozenset[str]


class SessionWork(msgspec.Struct, frozen=True, kw_only=True):
    """A session with something to do: the turn to take over, or None if an input waits to begin one."""

    session_id: str
    turn_id: str | None


class SessionOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a session's turns, and the one that has not ended."""

    turns: int = 0
    open_turn: TurnRecord | None = None


class TurnCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of inputs that wait to begin a turn, and of turns in each state. A turn is in one state.

    `running`: a live owner runs it. `waiting`: none of its waits has ended. `stuck`: it could continue, but
    no process runs it, because its owner is gone or no process may run it. A turn is `stuck` for a moment
    whenever a wait ends.
    """

    queued: int = 0
    running: int = 0
    waiting: int = 0
    stuck: int = 0


class DayUsage(HoldsSessionIds, frozen=True, kw_only=True):
    """The usage of a session's turns that ended on one day. `day` counts days since 1970, in UTC.

    `model` is the session's current model; the ledger of its head lists every model that it used.
    """

    day: int
    session_id: SessionIdField
    agent: str
    model: str
    turns: int
    usage: Usage


class HeldLease(HoldsSessionIds, frozen=True, kw_only=True):
    """A lease as it is stored: its owner, and when it expires by the clock of leases."""

    session_id: SessionIdField
    owner: str
    until_ms: int


class StoreSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The leases that are held, the turns that have not ended, and the size of the store."""

    leases: tuple[HeldLease, ...]
    turns: tuple[TurnRecord, ...]
    rows: dict[str, int]
    bytes: int | None


if TYPE_CHECKING:

    class SessionDescription(TypedDict):
        """The agent that works on a session. `metadata` and `code` stay unchanged if missing or None."""

        agent: str
        model: str
        host: dict[str, Json]
        metadata: NotRequired[dict[str, Json] | None]
        code: NotRequired[CodeSettings | None]


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session to create, with its initial contents.

    With `fork_of` it continues that session's history, up to the node `at`. `entries` become one segment
    `segment_id` below it. `make_state` gets the body of the state at that node and returns the session's own
    (None: keep that one). `first` waits for the caller that starts the session's first turn. `turn` is an
    unfinished turn with this `journal`, which no process runs yet.
    """

    head: SessionHead
    fork_of: str | None = None
    at: str | None = None
    segment_id: str = ""
    entries: tuple[Entry, ...] = ()
    make_state: Callable[[bytes | None], StateRecord | None] = lambda held: None
    blobs: tuple[Blob, ...] = ()
    first: QueuedInput | None = None
    turn: NewTurn | None = None
    journal: tuple[JournalEntry, ...] = ()


class PruneRequest(HoldsSessionIds, frozen=True, kw_only=True):
    """The data to delete.

    sessions_before_ms: idle sessions not used since then, and decided approvals, records of ended turns,
    snapshots and occurrences that are older. now_ms: sessions that have expired by then (`expires_at`),
    unless a turn of theirs runs. frames: segments before the current frame of a session. branches: segments
    that are on no session's active path. session_id: prune only this session.
    """

    sessions_before_ms: int | None = None
    now_ms: int | None = None
    frames: bool = False
    branches: bool = False
    session_id: SessionIdField | None = None


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """The number of records deleted, and of bytes by which the database file shrank."""

    sessions: int = 0
    segments: int = 0
    states: int = 0
    blobs: int = 0
    records: int = 0
    bytes_freed: int = 0


class SessionStore(Protocol):
    durable: bool
    """Whether written data outlives the process."""

    # Sessions and their history

    async def open_session(self, head: SessionHead) -> SessionHead:
        """Return the session with the id of *head*; create it, and return *head* itself, if there is none."""

    async def head(self, session_id: str) -> SessionHead | None: ...

    async def heads(
        self,
        *,
        agent: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        active: bool = False,
    ) -> list[SessionHead]:
        """Return up to *limit* sessions, the most recently used first; ties are in descending order of id.

        With *agent*, only those of that agent. With *after*, the `updated_at` and id of a session, only those
        that follow it. With *active*, only those that have an unfinished turn or a queued input; the others
        are not read.
        """

    async def describe(self, session_id: str, **description: Unpack[SessionDescription]) -> None:
        """Record the agent that now works on the session; raise `SessionNotFound` if it does not exist."""

    async def note_blocked(self, session_id: str, blocked: Blocked | None) -> None:
        """Record why the session's next turn cannot run; None clears the note. Ignore a missing session."""

    async def delete_session(self, session_id: str) -> bool:
        """Delete the session, its turns and inputs; return False if it does not exist.

        Raise `SessionBusy` while a live owner runs a turn of it.
        """

    async def frame(self, leaf: str, *, known: str | None = None) -> tuple[Segment, ...]:
        """Return the path to *leaf*, oldest first, from the segment that opens its frame.

        The last segment is cut after *leaf*. With *known*, return only the nodes after that one, or all if it
        is not on the path.
        """

    async def path(self, leaf: str, *, after_depth: int = 0) -> tuple[Segment, ...]:
        """Return the segments of the path to *leaf* with nodes deeper than *after_depth*, oldest first."""

    async def append(
        self, session_id: str, segment_id: str, entries: tuple[Entry, ...], requires: str | None, now_ms: int
    ) -> SessionHead:
        """Add nodes under the leaf; raise `StaleBranch` if *requires* is not on the active path."""

    async def fork(
        self,
        session_id: str,
        new_id: str,
        at: str | None,
        now_ms: int,
        *,
        charter: SessionCharter | None = None,
    ) -> SessionHead:
        """Create a session whose leaf is *at*, by default this session's leaf.

        The cost does not depend on the length of the history. The fork has no parent unless *charter* names
        one. Errors: `SessionNotFound`, `SessionExists`, `NodeNotFound`.
        """

    async def make_session(self, new: NewSession) -> SessionHead:
        """Create a session, or return the existing one if it was created with the same charter.

        Errors: `SessionExists` if the existing one has no charter or another; `SessionNotFound` and
        `NodeNotFound` for the fork's source.
        """

    async def add_usage(
        self, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
    ) -> SessionHead:
        """Add *usage* from outside a turn to the head's ledger. The leaf does not change."""

    async def rewind(self, session_id: str, to: str, now_ms: int) -> SessionHead:
        """Move the leaf to a node of the session's history; raise `SessionBusy` if a turn is unfinished."""

    async def set_state(
        self, session_id: str, state: StateRecord, blobs: tuple[Blob, ...], now_ms: int
    ) -> SessionHead:
        """Set the session's state at its current leaf; raise `SessionBusy` while a turn is unfinished."""

    async def state(self, state_id: str) -> bytes | None:
        """Return the body of a state; None if it was pruned."""

    async def turn_states(self, turn_id: str) -> TurnStates | None:
        """Return the states before and after an ended turn; None if it added no nodes or they were pruned."""

    async def put_snapshot(self, snapshot_id: str, session_id: str, data: bytes, now_ms: int) -> None:
        """Store a snapshot of a session under *snapshot_id*. It outlives the session."""

    async def snapshot(self, snapshot_id: str) -> bytes | None: ...

    # Turns

    async def begin(self, turn: NewTurn, claimant: Claimant) -> Begun | Repeated:
        """Make a turn's input durable and take the session's lease.

        Errors: `SessionNotFound`; `IdempotencyConflict`; `SessionBusy` while a live owner has the lease;
        `TurnUnfinished` if a turn waits or was left by its owner; `InputNotFound` if `consumes` is gone.
        """

    async def take_over(self, turn_id: str, claimant: Claimant) -> Takeover:
        """Take the lease of a turn that waits or has no live owner. Errors: `SessionBusy`, `TurnNotFound`."""

    async def save(self, lease: Lease, save: Save) -> Saved:
        """Write *save* to the turn's journal."""

    async def park(self, lease: Lease, save: Save, summary: TurnSummary) -> None:
        """Save, mark the turn as waiting and release the lease."""

    async def commit(self, lease: Lease, commit: TurnCommit) -> SessionHead | CommitRefused: ...

    async def renew(self, leases: tuple[Lease, ...], now_ms: int, lease_ms: int) -> Renewed: ...

    async def turn(self, turn_id: str) -> TurnRecord | None: ...

    async def turns(self, session_id: str) -> list[TurnRecord]:
        """Return the session's turns, oldest first."""

    async def open_turn(self, session_id: str) -> TurnRecord | None:
        """Return the session's unfinished turn, if there is one."""

    async def outlines(self, session_ids: tuple[str, ...]) -> dict[str, SessionOutline]:
        """Return the outlines of these sessions; those without a turn are left out."""

    async def open_turn_journal(self, session_id: str) -> JournaledTurn | None:
        """Return the session's unfinished turn with its journal so far, without taking the lease."""

    async def turn_journal(self, turn_id: str) -> JournaledTurn | None:
        """Return a turn with its journal: so far, if it is unfinished; the kept one, if it has ended.

        Return None if the turn does not exist or its journal was not kept.
        """

    async def drop_journals(self, before_ms: int) -> int:
        """Delete the kept journals of turns that ended before *before_ms*; return their number."""

    async def see_clock(self, boot: str, offset_ms: int) -> SeenClock:
        """Record that the time of day is *offset_ms* ahead of the boot-time clock of *boot*.

        If the time of day was set by more than a second since the last call, timers and the time limits of
        external completions are shifted by the same amount, so that they keep their durations. Approvals
        keep their times.
        """

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        """Return the turns that no process runs and that can continue now.

        Their owner is gone, one of their waits is over, or they wait and a caller has cancelled them.
        """

    async def turn_counts(self, now_ms: int, *, lease_now_ms: int | None = None) -> TurnCounts:
        """Count queued inputs and unfinished turns."""

    async def cancel(self, turn_id: str) -> bool:
        """Request the turn's cancellation; return False if it has already ended."""

    async def cancelled(self, turn_ids: tuple[str, ...]) -> frozenset[str]:
        """Return those of *turn_ids* that a caller has cancelled."""

    # Input for a session

    async def put_input(self, item: QueuedInput, blobs: tuple[Blob, ...] = ()) -> None:
        """Store a message for the session. Storing the same id and content again has no effect.

        Errors: `SessionNotFound`; `IdempotencyConflict` for other content under the same id.
        """

    async def withdraw_input(self, input_id: str) -> bool:
        """Delete an input; return False if it was claimed or does not exist."""

    async def inputs(self, session_id: str) -> list[QueuedInput]:
        """Return the session's waiting inputs, oldest first."""

    async def blob(self, digest: str) -> bytes | None: ...

    async def blob_part(self, digest: str, start: int, stop: int | None = None) -> BlobPart | None:
        """Return the range `[start:stop]` of a blob's bytes, without reading much more than that."""

    # Waits

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        """Return the id and outcome of each wait of the turn that is over. Expire overdue approvals."""

    async def complete(self, token: str, outcome: WaitOutcome, now_ms: int) -> TurnRecord:
        """End an external completion, once, and return its turn. Errors: `TokenNotFound`, `TokenAlreadyUsed`.

        A token may be completed before its wait is saved, as long as its turn is unfinished.
        """

    async def approvals(
        self, *, session_id: str | None = None, turn_id: str | None = None
    ) -> list[Approval]: ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        """Record the decision on a pending approval once; after `expires_at` it becomes `expired` instead."""

    # Sessions of other sessions

    async def children(self, session_id: str) -> list[SessionHead]:
        """Return the sessions whose charter names this one as their parent, oldest first."""

    async def with_queued(self) -> list[str]:
        """Return the sessions with a waiting input of kind `queue` and without an unfinished turn."""

    # Tasks

    async def add_task(self, record: TaskRecord) -> None:
        """Store a task, replacing one of its id that is over. Errors: `TaskExists`, `SessionNotFound`."""

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        """Apply *change* to a task unless it is over; return the task. Errors: `TaskNotFound`."""

    async def task(self, session_id: str, task_id: str) -> TaskRecord | None: ...

    async def tasks(self, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
        """Return tasks, oldest first; with *live*, only those that are not over."""

    async def move_tasks(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        """Move tasks to another session, all or none.

        Errors: `TaskNotFound`, `TaskExists`, `SessionNotFound`.
        """

    async def remove_task(self, session_id: str, task_id: str) -> bool:
        """Delete a task; return False if it does not exist."""

    # Triggers

    async def put_trigger(self, trigger: Trigger, *, seen: Trigger | None = None) -> bool:
        """Store a trigger, replacing the one of its name. Errors: `SessionNotFound`.

        With *seen*, store it only if *seen* is still stored; return False if that was deleted or changed.
        """

    async def trigger(self, name: str) -> Trigger | None: ...

    async def triggers(self) -> list[Trigger]:
        """Return all triggers, ordered by name."""

    async def remove_trigger(self, name: str) -> bool: ...

    async def occur(
        self, occurrence: Occurrence, inputs: tuple[QueuedInput, ...], advance: Trigger | None = None
    ) -> bool:
        """Store an occurrence and its inputs in one transaction; return False if it was stored before.

        Also store *advance*, the trigger with its next time, unless the stored trigger was changed otherwise
        or is already at that time; even if the occurrence was stored before. Inputs for deleted sessions are
        left out.
        """

    # Records of plugins, which are not bound to one session

    async def put_plugin_record(
        self, plugin_id: str, scope: str, key: str, body: bytes | None, now_ms: int, *, replace: bool = True
    ) -> None:
        """Store *body* as the record of *key*; None deletes the record.

        Without *replace*, leave an existing record unchanged.
        """

    async def plugin_record(self, plugin_id: str, scope: str, key: str) -> bytes | None: ...

    async def plugin_records(self, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
        """Return the records of the plugin in this scope, ordered by key."""

    # Other processes

    async def offer(
        self, now_ms: int, offer_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...] = ()
    ) -> list[SessionWork]:
        """Return up to *limit* sessions of these agents that have a turn to begin or to continue.

        A store for many machines does not offer them to another caller for *offer_ms*. An offer is not a
        lease. Turns with code that is suspended on one of the engine builds *without* are left out.
        """

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Call *hear*, from any thread, with each announcement; return a function that stops it.

        A store for many machines announces `WORK` when a turn may begin or continue. Announcements can get
        lost, and other stores send none, so callers must poll as well.
        """

    async def announce(self, text: str) -> None:
        """Send *text* to every listening process, storing nothing. *text* has at most 7,000 bytes, no NUL."""

    # Statistics and maintenance

    async def usage_by_day(self, since_ms: int) -> list[DayUsage]:
        """Return the usage of turns ended since *since_ms*, by day, session and agent; latest day first."""

    async def survey(self) -> StoreSurvey:
        """Return the store's leases, unfinished turns and size. The cost grows with the store."""

    async def prune(self, request: PruneRequest) -> Pruned: ...

    async def close(self) -> None: ...
