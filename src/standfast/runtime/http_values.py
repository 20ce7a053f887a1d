"""The types of the HTTP API that are not types of the runtime, shared by server and client."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from standfast.errors import ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import Capability, ExternalCallRecord
from standfast.model.code import Language
from standfast.model.events import Event
from standfast.model.grant import MAX_RULE_CHARS
from standfast.model.journal import JournalEdit
from standfast.model.limits import MAX_DURATION_S, Positive32, SessionLimits, Usage, UsageEntry, UsageLimits
from standfast.model.message import Message
from standfast.model.outcome import Ended, Finished, FrameSwitched, Stopped, Wait, Waiting
from standfast.model.session import (
    SESSION_ID_PATTERN,
    HoldsSessionIds,
    SessionIdField,
    TurnRecord,
    TurnState,
)
from standfast.model.trace_record import TraceRecord
from standfast.model.trigger import Schedule
from standfast.runtime.result import TurnResult
from standfast.runtime.session_views import SessionLine

Text = Annotated[str, msgspec.Meta(pattern=r"\S", max_length=900_000)]
Reason = Annotated[str, msgspec.Meta(max_length=2_000)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=500)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Status = Literal["running", "finished", "frame_switched", "waiting", "stopped"]


class Request(HoldsSessionIds, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body. Unknown fields are refused."""


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent of this server, and its tools."""

    name: str
    model: str
    protocol: str
    tools: tuple[Capability, ...] = ()


class OpenSession(Request, frozen=True, kw_only=True):
    """A session to create or open. `metadata` is passed to deps factories."""

    session_id: SessionIdField
    agent: Annotated[str, msgspec.Meta(pattern=SESSION_ID_PATTERN)]
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions, the most recently used first. `after` is the `next` of the previous page."""

    limit: Limit = 50
    after: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,15}\.[a-zA-Z0-9_-]{1,64}$")] | None = None
    agent: str | None = None
    state: Literal["idle", "running", "waiting", "interrupted", "blocked"] | None = None
    prefix: str | None = None


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of sessions. `next` is set if there may be more."""

    sessions: tuple[SessionLine, ...]
    next: str | None = None


class Fork(Request, frozen=True, kw_only=True):
    """The id of the new session, and its last node; by default the session's current leaf.

    With `input`, `at` is a turn, and the fork continues after that input of its journal, changed by `edit`.
    """

    session_id: SessionIdField
    at: str | None = None
    input: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    edit: JournalEdit | None = None


class Rewind(Request, frozen=True, kw_only=True):
    """The node to rewind to, or the number of turns to rewind by."""

    to: str | None = None
    turns: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class InputAttachment(Request, frozen=True, kw_only=True, tag="attachment"):
    """An uploaded attachment, by its digest."""

    digest: Digest


class InputText(Request, frozen=True, kw_only=True, tag="text"):
    """A piece of text."""

    text: Text


# msgspec 0.22 corrupts memory if a text with a pattern is in a union with an array; the server checks it.
_NOT_BLANK = msgspec.Meta(min_length=1, max_length=900_000, extra_json_schema={"pattern": r"\S"})
InputParts = Annotated[tuple[InputText | InputAttachment, ...], msgspec.Meta(min_length=1, max_length=100)]
TurnContent = Annotated[str, _NOT_BLANK] | InputParts


class CreateTurn(Request, frozen=True, kw_only=True):
    """The input of a turn: text, or a list of texts and uploaded attachments. `limits` apply to this turn."""

    input: TurnContent
    limits: UsageLimits | None = None


class SendInput(Request, frozen=True, kw_only=True):
    """A message for the running turn (`inject`) or for a turn of its own (`queue`).

    Sending the same id again has no effect.
    """

    input: TurnContent
    mode: Literal["inject", "queue"] = "queue"
    id: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None


class InputSent(msgspec.Struct, frozen=True, kw_only=True):
    input_id: str


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the input was withdrawn, because no turn had claimed it yet."""

    withdrawn: bool


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there was a turn or run to cancel."""

    cancelled: bool


class TurnQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds the server may wait for the turn to end or park before it responds."""

    wait_s: Annotated[int, msgspec.Meta(ge=0, le=60)] = 0


class TurnView(HoldsSessionIds, frozen=True, kw_only=True, tag="turn"):
    """A turn: `output` is its answer if it has finished, `waits` lists its waits, `error` is why it stopped.

    `messages` are those of this turn, including the user's own; a running turn has none yet.
    """

    turn_id: str
    session_id: SessionIdField
    status: Status
    output: Json = None
    text: str = ""
    waits: tuple[Wait, ...] = ()
    error: ErrorObject | None = None
    outcome: Ended | Waiting | None = None
    usage: Usage = Usage()
    calls: tuple[ExternalCallRecord, ...] = ()
    messages: tuple[Message, ...] = ()


def view_result(result: TurnResult[Any]) -> TurnView:
    """Return the view of a turn that has ended or is waiting."""
    return _view(
        result.turn_id, result.session_id, result.outcome, result.usage, result.calls, result.messages
    )


def view_record(record: TurnRecord, messages: tuple[Message, ...] = ()) -> TurnView:
    """Return the view of a stored turn."""
    summary = record.summary
    if summary is None or record.state is TurnState.RUNNING:
        return TurnView(turn_id=record.turn_id, session_id=record.session_id, status="running")
    return _view(record.turn_id, record.session_id, summary.outcome, summary.usage, summary.calls, messages)


def _view(
    turn_id: str,
    session_id: str,
    outcome: Ended | Waiting,
    usage: Usage,
    calls: tuple[ExternalCallRecord, ...],
    messages: tuple[Message, ...],
) -> TurnView:
    status: Status = "finished"
    output: Json = None
    match outcome:
        case Finished(text=text, value=value):
            output = text if value is None else value
        case Waiting():
            status = "waiting"
        case FrameSwitched():
            status = "frame_switched"
        case Stopped():
            status = "stopped"
    return TurnView(
        turn_id=turn_id,
        session_id=session_id,
        status=status,
        output=output,
        text=outcome.text if isinstance(outcome, Finished) else "",
        waits=outcome.waits if isinstance(outcome, Waiting) else (),
        error=outcome.error if isinstance(outcome, Stopped) else None,
        outcome=outcome,
        usage=usage,
        calls=calls,
        messages=messages,
    )


class ApprovalQuery(HoldsSessionIds, frozen=True, kw_only=True):
    """Filters of approvals: only those that can still be decided; only those of one session."""

    pending: bool = False
    session_id: SessionIdField | None = None


class Decide(Request, frozen=True, kw_only=True):
    """The decision about a call.

    `arguments`, if given, replace the call's. The owner of the credential is recorded as the decider.
    """

    approved: bool
    arguments: dict[str, Json] | None = None
    reason: Reason | None = None


class GrantQuery(HoldsSessionIds, frozen=True, kw_only=True):
    """Filters of grants: only those that are in force; only those that cover one session."""

    in_force: bool = False
    session_id: SessionIdField | None = None


class GiveGrant(Request, frozen=True, kw_only=True):
    """A grant for a session or an agent, until `expires_at`.

    The owner of the credential is recorded as giver.
    """

    capability: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    rule: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_RULE_CHARS)] | None = None
    session_id: SessionIdField | None = None
    agent: str | None = None
    reason: Reason | None = None


class Complete(Request, frozen=True, kw_only=True):
    """The result or failure of a call that a tool left to an external system, under the call's token."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    value: Json = None
    error: ErrorObject | None = None


class RunCode(Request, frozen=True, kw_only=True):
    """Code to run or check in a session."""

    code: Annotated[str, msgspec.Meta(max_length=900_000)]
    session_id: SessionIdField = "default"
    language: Language = Language.PYTHON
    inputs: dict[str, Json] = msgspec.field(default_factory=dict)
    timeout_ms: Positive32 | None = None
    limits: SessionLimits | None = None


class SnapshotMade(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_id: str


class Restore(Request, frozen=True, kw_only=True):
    """The snapshot to restore into the session in the path."""

    snapshot_id: Annotated[str, msgspec.Meta(pattern="^snap_[a-zA-Z0-9_-]{1,64}$")]


class Restored(HoldsSessionIds, frozen=True, kw_only=True):
    session_id: SessionIdField


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded attachment. A turn refers to it by its digest; an unused upload is kept for a day."""

    digest: str
    media_type: str
    size: int
    name: str | None = None


class UploadQuery(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of tasks: only those that have not ended."""

    live: bool = False


class PutTrigger(Request, frozen=True, kw_only=True):
    """A trigger: each occurrence at `source`, or time of a schedule, starts a turn of the session."""

    source: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,100}$")]
    session_id: SessionIdField
    prompt: Text = "{payload}"
    schedule: Schedule | None = None
    enabled: bool = True


class Occur(Request, frozen=True, kw_only=True):
    """An occurrence at a source. Reporting the same source and key again has no effect."""

    source: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,100}$")]
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    payload: Json = None


class Occurred(msgspec.Struct, frozen=True, kw_only=True):
    """How many turns the occurrence starts; 0 if it was reported before."""

    turns: int


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of usage: only sessions of one agent; only sessions used since a time in ms since 1970."""

    agent: str | None = None
    since_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of the sessions, in total and by source and model."""

    sessions: int
    total: Usage
    entries: tuple[UsageEntry, ...]


class TraceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of trace records: only those of one turn."""

    turn_id: str | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[TraceRecord, ...]


class Prune(Request, frozen=True, kw_only=True):
    """The data to delete: idle sessions and records of that age, old frames, abandoned branches."""

    older_than_s: Annotated[float, msgspec.Meta(ge=1, le=MAX_DURATION_S)] | None = None
    frames: bool = False
    branches: bool = False
    session_id: SessionIdField | None = None


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor to continue after, if the header `Last-Event-ID` is not sent."""

    after: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "draining", "unavailable"]


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The credential of the request."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    expires_at: int | None = None


class SignInQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The single-use code of a sign-in link."""

    code: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class SessionEvent(HoldsSessionIds, frozen=True, kw_only=True, tag="session_event"):
    """An event of a session, in the stream of all sessions. A `Gap` in it has no session."""

    session_id: SessionIdField | None
    event: Event


class OpenAiError(msgspec.Struct, frozen=True, kw_only=True):
    """An error as OpenAI's API describes it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed. `code` is stable; `hint` says what to do.

    `error` repeats this for clients of OpenAI's API; only the routes below `/openai` set it.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    error: OpenAiError | msgspec.UnsetType = msgspec.UNSET
