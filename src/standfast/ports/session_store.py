"""The port of stores: sessions, their turns, and everything that a turn must not lose.

Rules
-----
1. Every method is atomic, and durable when it returns. Methods are coroutines: none of them blocks the loop
   for longer than a commit to a fast local disk takes.
2. A session has one writer. `begin` and `take_over` hand out a `Lease` whose `fence` is higher than any
   before; every write of a turn carries it, and one with another fence than the session's is `LeaseLost` and
   writes nothing. A lease ends with `commit` or `park`, when its time is over, or when its owner is provably
   dead.
3. A session has at most one turn that is not `ended`.
4. The journal of a turn holds opaque bodies in the order in which they were saved; of each kind it never has
   one key twice. An input or an intent of a key that is there is refused; a state replaces the earlier one of
   its key, at the end of the order. When the turn ends, the graph and the session's state have everything
   that later turns need. The journal is then deleted, or kept as one record for those who look back at the
   turn, until `drop_journals`, or until the turn's record goes.
5. `commit` is one transaction: nodes, head, usage, the state of plugins and tools, the turn's end, its
   journal, waits and open approvals.
6. What is read is checked against the digest it was written with; a mismatch is `RecordCorrupt` and names it.
7. Callables that a method is given run inside its transaction, possibly on another thread and more than once,
   so they must be pure.
8. A state belongs to the node that was the session's leaf when it was written, a commit's to the last node of
   its segment. The state at a node is the newest that the session wrote there, or else the one of the nearest
   node before it. So sessions that share history share its states, and a state that one of them writes after
   they have parted is its own.
9. A blob stays as long as something names it: a node, a waiting input, a state, the journal of a turn; and
   one that a save brought, until its turn ends.
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
    """The right to write a session until `until_ms`. It is kept in memory only."""

    session_id: str
    owner: str
    fence: int
    until_ms: int


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """Who claims a lease, when, for how long. Leases go by `lease_now_ms` (`see_clock`), else `now_ms`."""

    owner: str
    now_ms: int
    lease_ms: int
    lease_now_ms: int | None = None


CLOCK_TOLERANCE_MS: Final = 1_000
"""How far the time of day may drift since it was last seen without counting as set."""


WORK: Final = "work"
"""What a store announces when a turn may begin or continue."""


class SeenClock(msgspec.Struct, frozen=True, kw_only=True):
    """How the clocks of this machine stand to each other.

    The time that leases go by is the boot-time clock plus `lease_offset_ms`, the same for every program on
    this boot. `shift_ms` tells how far the time of day was set since a program last looked.
    """

    lease_offset_ms: int
    shift_ms: int = 0


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a turn's journal.

    An `intent` says that an effect is about to happen; a `state` is what a plugin is in the middle of the
    turn, and a later one of its key replaces it. `past` is the state that the next entry replaces, empty if
    there was none; recovery needs none of them.
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

    Inside a store, `data` of a blob that is `apart` names the object that has the bytes.
    """

    digest: str
    data: bytes
    apart: bool = False


class BlobPart(msgspec.Struct, frozen=True, kw_only=True):
    """A range of the bytes of a blob that has `size` bytes; it begins at `start`."""

    data: bytes
    start: int
    size: int

    @classmethod
    def of(cls, data: bytes, start: int, stop: int | None) -> BlobPart:
        """Return the range of a blob whose bytes are *data*."""
        first, last, _ = slice(start, stop).indices(len(data))
        return cls(data=data[first:last], start=first, size=len(data))


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of plugins and tools: `body` is opaque to the store, `blobs` are digests of what it needs."""

    body: bytes
    blobs: tuple[str, ...] = ()


class TurnStates(msgspec.Struct, frozen=True):
    """The names of the states that a session had before and after a turn; None where it had none."""

    before: str | None
    after: str | None


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to begin. `make_input` makes its first journal body of the injected messages it claims.

    With `consumes` the turn is that queued input's, which is gone with the begin.
    """

    session_id: str
    turn_id: str
    agent: str
    make_input: Callable[[SessionHead, tuple[QueuedInput, ...]], bytes]
    input_digest: str
    idempotency_key: str | None = None
    consumes: str | None = None
    blobs: tuple[Blob, ...] = ()


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that may run now, its first journal body, and the head it runs on."""

    lease: Lease
    head: SessionHead
    record: TurnRecord
    input: bytes


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """The idempotency key and the content are those of this turn; nothing was begun."""

    record: TurnRecord


class Takeover(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that another process left, or that waited, with its journal after the first input."""

    lease: Lease
    head: SessionHead
    record: TurnRecord
    input: bytes
    journal: tuple[JournalEntry, ...]


class JournaledTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with its first input and its journal after that, all of one moment."""

    record: TurnRecord
    input: bytes
    journal: tuple[JournalEntry, ...]


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn must make durable before it continues.

    `make_checkpoint`, if given, makes one more entry of the injected messages that are claimed with it.
    `blobs` are kept at least until the turn ends, whatever names them.
    """

    turn_id: str
    entries: tuple[JournalEntry, ...]
    approvals: tuple[Approval, ...] = ()
    waits: tuple[Wait, ...] = ()
    blobs: tuple[Blob, ...] = ()
    make_checkpoint: Callable[[tuple[QueuedInput, ...]], JournalEntry] | None = None


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """`cancel_requested`: a caller has asked for the turn's end; `checkpoint` is the entry that was made."""

    cancel_requested: bool
    checkpoint: JournalEntry | None = None


class TurnCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn.

    `entries` become one segment, named after the turn, under the session's leaf. `model_calls` and `usage`
    are added to the head's. `enqueue` becomes queued inputs, in this order. Without a `state` the session
    keeps the one it has. A `Finished` outcome is refused while an injected message or a request to cancel is
    there; any other turns what was injected into queued inputs. With `journal`, the entries that were not
    saved, the turn's journal is kept.
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
    """A message or a cancellation arrived before the turn could finish; nothing was written."""

    reason: Literal["injected", "cancelled"]


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions whose lease is lost, and turns whose end a caller has asked for."""

    lost: frozenset[str]
    cancelled: frozenset[str]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A session with something to do: the turn to take over, or None if an input waits to begin one."""

    session_id: str
    turn_id: str | None


class SessionOutline(msgspec.Struct, frozen=True, kw_only=True):
    """How many turns a session has, and the one of them that has not ended."""

    turns: int = 0
    open_turn: TurnRecord | None = None


class TurnCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many inputs wait to begin a turn, and how many turns are in each state; each counts once.

    `running`: a live owner runs it. `waiting`: for something that is not over. `stuck`: it could continue,
    and no process runs it, because its owner is gone or no process may run it. A turn is `stuck` for a moment
    whenever a wait ends.
    """

    queued: int = 0
    running: int = 0
    waiting: int = 0
    stuck: int = 0


class DayUsage(HoldsSessionIds, frozen=True, kw_only=True):
    """What the turns of a session that ended on one day used. `day` counts days since 1970, in UTC.

    `model` is the session's; the ledger of the session's head has every model that it used.
    """

    day: int
    session_id: SessionIdField
    agent: str
    model: str
    turns: int
    usage: Usage


class HeldLease(HoldsSessionIds, frozen=True, kw_only=True):
    """A lease as the store has it: its owner's name, and the time, of the store's clock, when it ends."""

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

    class Description(TypedDict):
        """The agent that works on a session. Without `metadata` or `code`, or with None, those stay."""

        agent: str
        model: str
        host: dict[str, Json]
        metadata: NotRequired[dict[str, Json] | None]
        code: NotRequired[CodeSettings | None]


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session to make, with all that it begins with.

    With `fork_of` it stands over that session's history, up to the node `at`. `entries` become one segment
    `segment_id` under that. `make_state` makes its state of the one that holds there (None: it keeps that
    one). `first` waits for the caller that starts the session's first turn. `turn` is an unfinished turn with
    this `journal`, which no process runs yet.
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
    """What may go. Nothing that a session can still reach on its active path goes by `branches`.

    sessions_before_ms: idle sessions not used since then, and decided approvals, records of ended turns,
    snapshots and occurrences that are older. now_ms: sessions whose `expires_at` is past then, unless a turn
    of theirs runs. frames: what lies before the current frame of a session. branches: nodes that are on no
    session's active path. session_id: of this session alone.
    """

    sessions_before_ms: int | None = None
    now_ms: int | None = None
    frames: bool = False
    branches: bool = False
    session_id: SessionIdField | None = None


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """How many records were deleted, and by how many bytes the file shrank."""

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
        """Return the session of this id, or make it from *head* if there is none."""

    async def head(self, session_id: str) -> SessionHead | None: ...

    async def heads(
        self,
        *,
        agent: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int | None = None,
        active: bool = False,
    ) -> list[SessionHead]:
        """Return sessions, the latest used first; of those used at the same time, the last by id.

        With *agent*, those of that agent. With *after*, `updated_at` and id of a session, those that follow
        it. At most *limit*. With *active*, those that have an unfinished turn or a queued input; the others
        are not read.
        """

    async def describe(self, session_id: str, **description: Unpack[Description]) -> None:
        """Record the agent that works on the session now; `SessionNotFound` if there is none."""

    async def note_blocked(self, session_id: str, blocked: Blocked | None) -> None:
        """Record why the session's next turn cannot run; None clears the note. A missing session is fine."""

    async def delete_session(self, session_id: str) -> bool:
        """Delete the session, its turns and waiting inputs; `SessionBusy` while a live owner runs a turn."""

    async def frame(self, leaf: str, *, known: str | None = None) -> tuple[Segment, ...]:
        """Return the path to *leaf*, oldest first, from the segment that opens its frame.

        The last segment is cut after *leaf*. With *known*, return only the nodes after that one, or all if it
        is not on the path.
        """

    async def path(self, leaf: str, *, after_depth: int = 0) -> tuple[Segment, ...]:
        """Return the segments of the path to *leaf* with nodes past `after_depth`, oldest first."""

    async def append(
        self, session_id: str, segment_id: str, entries: tuple[Entry, ...], requires: str | None, now_ms: int
    ) -> SessionHead:
        """Add nodes under the leaf; `StaleBranch` if *requires* is not on the active path."""

    async def fork(
        self,
        session_id: str,
        new_id: str,
        at: str | None,
        now_ms: int,
        *,
        charter: SessionCharter | None = None,
    ) -> SessionHead:
        """Make a session whose leaf is *at*, or this one's, at the same cost for any length of history.

        It has no parent unless *charter* names one. `SessionNotFound`, `SessionExists`, `NodeNotFound`.
        """

    async def make_session(self, new: NewSession) -> SessionHead:
        """Make a session with a charter, or return the one that was made with the same charter.

        `SessionExists` if it has another one; `SessionNotFound`, `NodeNotFound` for the fork's source.
        """

    async def add_usage(
        self, session_id: str, usage: tuple[UsageEntry, ...], model_calls: int, now_ms: int
    ) -> SessionHead:
        """Add *usage* outside of turns to the head's ledger. The leaf and the revision stay."""

    async def rewind(self, session_id: str, to: str, now_ms: int) -> SessionHead:
        """Move the leaf to a node of this session's own history. `SessionBusy` while a turn is unfinished."""

    async def set_state(
        self, session_id: str, state: StateRecord, blobs: tuple[Blob, ...], now_ms: int
    ) -> SessionHead:
        """Give the session another state; its leaf stays. `SessionBusy` while a turn is unfinished."""

    async def state(self, state_id: str) -> bytes | None:
        """Return the body of the state that a head names; None if it was pruned."""

    async def turn_states(self, turn_id: str) -> TurnStates | None:
        """Return the states before and after an ended turn; None if it left no nodes, or they were pruned."""

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
        """Take the lease of a turn that waits or has no live owner. `SessionBusy`, `TurnNotFound`."""

    async def save(self, lease: Lease, save: Save) -> Saved:
        """Add to the turn's journal."""

    async def park(self, lease: Lease, save: Save, summary: TurnSummary) -> None:
        """Save, mark the turn as waiting and give the lease back."""

    async def commit(self, lease: Lease, commit: TurnCommit) -> SessionHead | CommitRefused: ...

    async def renew(self, leases: tuple[Lease, ...], now_ms: int, lease_ms: int) -> Renewed: ...

    async def turn(self, turn_id: str) -> TurnRecord | None: ...

    async def turns(self, session_id: str) -> list[TurnRecord]:
        """Return the session's turns, oldest first."""

    async def open_turn(self, session_id: str) -> TurnRecord | None:
        """Return the session's unfinished turn, if there is one."""

    async def outlines(self, session_ids: tuple[str, ...]) -> dict[str, SessionOutline]:
        """Return what a list shows of these sessions; those without a turn are left out."""

    async def open_turn_journal(self, session_id: str) -> JournaledTurn | None:
        """Return the session's unfinished turn with all that it has saved; takes no lease."""

    async def turn_journal(self, turn_id: str) -> JournaledTurn | None:
        """Return a turn with its journal: all that an unfinished one has saved, or what was kept of one that
        has ended. None if there is no such turn, or if its journal was not kept."""

    async def drop_journals(self, before_ms: int) -> int:
        """Delete the kept journals of turns that ended before then; return how many."""

    async def see_clock(self, boot: str, offset_ms: int) -> SeenClock:
        """Record that the time of day is *offset_ms* ahead of the boot-time clock of *boot*.

        If the time of day was set by more than a second since the last call, timers and the time limits of
        external completions move with it, so that they last as long as they were meant to. Approvals stay.
        """

    async def unfinished(self, now_ms: int, *, lease_now_ms: int | None = None) -> list[TurnRecord]:
        """Return the turns that no process runs and that can continue now: their owner is gone, a wait of
        theirs is over, or they wait and a caller has asked for their end."""

    async def turn_counts(self, now_ms: int, *, lease_now_ms: int | None = None) -> TurnCounts:
        """Count queued inputs and unfinished turns."""

    async def cancel(self, turn_id: str) -> bool:
        """Ask for the turn's end. False if it has ended already: the cancellation came too late."""

    async def cancelled(self, turn_ids: tuple[str, ...]) -> frozenset[str]:
        """Return the turns among these that a caller has cancelled."""

    # Input for a session

    async def put_input(self, item: QueuedInput, blobs: tuple[Blob, ...] = ()) -> None:
        """Store a message for the session. The same id and content twice is one input.

        Errors: `SessionNotFound`; `IdempotencyConflict` for other content under the same id.
        """

    async def withdraw_input(self, input_id: str) -> bool:
        """Delete an input; false if it was claimed."""

    async def inputs(self, session_id: str) -> list[QueuedInput]:
        """Return the inputs that wait, oldest first."""

    async def blob(self, digest: str) -> bytes | None: ...

    async def blob_part(self, digest: str, start: int, stop: int | None = None) -> BlobPart | None:
        """Return the bytes that `data[start:stop]` would be, without reading much more than them."""

    # Waits

    async def ended_waits(self, turn_id: str, now_ms: int) -> tuple[tuple[str, WaitOutcome], ...]:
        """Return id and outcome of each wait of the turn that is over. Approvals expire here."""

    async def complete(self, token: str, outcome: WaitOutcome, now_ms: int) -> TurnRecord:
        """End an external completion, once. `TokenNotFound`, `TokenAlreadyUsed`.

        A token may be completed before its wait is saved, as long as its turn is unfinished.
        """

    async def approvals(
        self, *, session_id: str | None = None, turn_id: str | None = None
    ) -> list[Approval]: ...

    async def approval(self, approval_id: str) -> Approval | None: ...

    async def decide(
        self, approval_id: str, decision: Decision, *, now_ms: int, edited_digest: str | None
    ) -> Approval:
        """Leave `pending`, once. After `expires_at` the state becomes `expired`, whatever was decided."""

    # Sessions that others made

    async def children(self, session_id: str) -> list[SessionHead]:
        """Return the sessions whose charter names this one as their parent, oldest first."""

    async def with_queued(self) -> list[str]:
        """Return the sessions with a waiting input of kind `queue` and without an unfinished turn."""

    # Tasks

    async def add_task(self, record: TaskRecord) -> None:
        """Store a task; it replaces one of its id that is over. `TaskExists`, `SessionNotFound`."""

    async def change_task(
        self, session_id: str, task_id: str, change: Callable[[TaskRecord], TaskRecord]
    ) -> TaskRecord:
        """Apply *change* to a task unless it is over; return the task. `TaskNotFound`."""

    async def task(self, session_id: str, task_id: str) -> TaskRecord | None: ...

    async def tasks(self, *, session_id: str | None = None, live: bool = False) -> list[TaskRecord]:
        """Return tasks, oldest first; with *live*, those that are not over."""

    async def move_tasks(self, from_id: str, to_id: str, task_ids: tuple[str, ...], now_ms: int) -> None:
        """Give tasks to another session, all or none. `TaskNotFound`, `TaskExists`, `SessionNotFound`."""

    async def remove_task(self, session_id: str, task_id: str) -> bool:
        """Delete a task; false if there is none."""

    # Triggers

    async def put_trigger(self, trigger: Trigger, *, seen: Trigger | None = None) -> bool:
        """Store a trigger; it replaces the one of its name. `SessionNotFound`.

        With *seen*, only if that is still stored; false if it was deleted or changed since.
        """

    async def trigger(self, name: str) -> Trigger | None: ...

    async def triggers(self) -> list[Trigger]:
        """Return all triggers, by name."""

    async def remove_trigger(self, name: str) -> bool: ...

    async def occur(
        self, occurrence: Occurrence, inputs: tuple[QueuedInput, ...], advance: Trigger | None = None
    ) -> bool:
        """Store an occurrence and the inputs made of it in one transaction; false if it was stored before.

        With *advance*, a trigger that has the same `next_at` as before is replaced by it as well, also if the
        occurrence was known. Inputs for sessions that are gone are left out.
        """

    # Records of plugins: what a plugin keeps beyond one session

    async def put_plugin_record(
        self, plugin_id: str, scope: str, key: str, body: bytes | None, now_ms: int, *, replace: bool = True
    ) -> None:
        """Store *body* in place of the record of that key; None deletes it.

        Without *replace*, a record that is there already stays.
        """

    async def plugin_record(self, plugin_id: str, scope: str, key: str) -> bytes | None: ...

    async def plugin_records(self, plugin_id: str, scope: str) -> list[tuple[str, bytes]]:
        """Return the records of the plugin in this scope, ordered by key."""

    # Other processes

    async def offer(
        self, now_ms: int, offer_ms: int, agents: tuple[str, ...], limit: int, without: tuple[str, ...] = ()
    ) -> list[Work]:
        """Return up to *limit* sessions of these agents that have something to do.

        A store for many machines offers none of them to another caller for *offer_ms*. An offer is no lease.
        Turns with code that is suspended on one of the engine builds *without* are left out.
        """

    def listen(self, hear: Callable[[str], None]) -> Callable[[], None]:
        """Call *hear*, from any thread, with what other processes announce; return what ends it.

        A store for many machines announces `WORK` when a turn may begin or continue. Announcements can get
        lost, and other stores make none: callers poll as well.
        """

    async def announce(self, text: str) -> None:
        """Tell every process that listens, and store nothing. *text* has up to 7,000 bytes and no NUL."""

    # The rest

    async def usage_by_day(self, since_ms: int) -> list[DayUsage]:
        """Return what turns that ended since then used, by day, session and agent; the latest day first."""

    async def survey(self) -> StoreSurvey:
        """Return what an operator wants to know. Its cost grows with the store."""

    async def prune(self, request: PruneRequest) -> Pruned: ...

    async def close(self) -> None: ...
