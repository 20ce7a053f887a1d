"""The subagents of one session: their records, the state of their work, their usage.

A subagent is a child session, and a task of its parent's session under the child's id. The task's body names
the turn that the subagent is working on. Nothing else is stored: the state of the work is the state of that
turn, so that after a crash a parent in another process finds every subagent in its current state.

A subagent that opens a new frame, or gets a message while its turn ends, continues in another turn by itself.
The last node of its history names that turn. A parent that dies right after it has started a turn does not
know the turn's id; it requests the same turn again, and gets it when that turn has ended or waits.

Rules
-----
1. Every model call is in the ledger of the session that made it, and in no other. The usage of a subagent is
   the sum over its session and those below it, so it is correct even after crashes.
2. A task ends when the subagent's turn ends, with the same result. Reporting the end twice has no effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, assert_never

import msgspec

from standfast.errors import ErrorObject, InvalidArgument, InvalidSessionId, TurnCode
from standfast.model.canonical import Json
from standfast.model.host_requests import AssembledTurn, TurnInput
from standfast.model.limits import Usage, UsageLimits
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, FrameSwitched, Outcome, Stopped, StopReason, Waiting, WaitKind
from standfast.model.session import HoldsSessionIds, SessionHead, SessionIdField, split_node_id
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState
from standfast.ports.host import PluginActionHost, SessionTurnHandle

Status = Literal["finished", "failed", "cancelled", "waiting", "running"]

MAX_FIXES: Final = 2
"""How often a subagent may correct an answer that does not match the schema."""

_WANTED: Final = "\n\nAnswer with JSON and nothing else. It must fit this JSON Schema:\n"
_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class SubagentWait(msgspec.Struct, frozen=True, kw_only=True):
    """A subagent's wait for an approval. `id` is the approval's id, `capability` the tool to approve."""

    id: str
    kind: WaitKind
    capability: str | None = None


class SubagentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a subagent. `usage` includes that of its own subagents."""

    agent_id: str
    status: Status
    text: str = ""
    value: Json = None
    error: ErrorObject | None = None
    waits: list[SubagentWait] = []
    usage: Usage = Usage()


def status_of(outcome: Outcome) -> Status:
    """Return the status of a turn."""
    match outcome:
        case Finished() | FrameSwitched():
            return "finished"
        case Waiting():
            return "waiting"
        case Stopped(reason=StopReason.CANCELLED):
            return "cancelled"
        case Stopped():
            return "failed"
        case _:
            assert_never(outcome)


_TASK_STATES: Final[dict[Status, TaskState]] = {
    "finished": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "cancelled": TaskState.CANCELLED,
}


def task_state_of(status: Status) -> TaskState:
    """Return the state of a subagent's task: it runs until the subagent's turn has ended."""
    return _TASK_STATES.get(status, TaskState.RUNNING)


def waits_for_time(outcome: Outcome) -> bool:
    """Return whether a turn waits only for timers."""
    return isinstance(outcome, Waiting) and all(wait.kind == "timer" for wait in outcome.waits)


def report_of(
    agent_id: str,
    turn: AssembledTurn | None,
    *,
    schema: dict[str, Any] | None = None,
    usage: Usage = Usage(),
    capabilities: dict[str, str] | None = None,
) -> SubagentReport:
    """Return a report on a turn; None means that it is running.

    *capabilities* are the tools of calls, by id.
    """
    if turn is None:
        return SubagentReport(agent_id=agent_id, status="running", usage=usage)
    outcome = turn.outcome
    status = status_of(outcome)
    value = outcome.value if isinstance(outcome, Finished) else None
    error = outcome.error if isinstance(outcome, Stopped) else None
    tools = capabilities or {}
    waits = [
        SubagentWait(id=wait.wait_id, kind=wait.kind, capability=tools.get(str(wait.call_id)))
        for wait in (outcome.waits if isinstance(outcome, Waiting) else ())
    ]
    if schema is not None and isinstance(outcome, Finished):
        value, problem = read_value(turn.text, schema)
        if problem is not None:
            status, error = (
                "failed",
                ErrorObject(
                    code=TurnCode.OUTPUT_INVALID,
                    message=f"the subagent's answer is invalid: {problem}",
                    hint="ask for a correction with send_input, or continue without it",
                ),
            )
    return SubagentReport(
        agent_id=agent_id, status=status, text=turn.text, value=value, error=error, waits=waits, usage=usage
    )


def read_value(text: str, schema: dict[str, Any]) -> tuple[Json, str | None]:
    """Parse an answer and validate it against *schema*; return its value, or the problem with it."""
    import jsonschema_rs  # slow to import, and needed only with an output schema

    found = _FENCED.fullmatch(text.strip())
    try:
        value: Json = msgspec.json.decode(found.group(1) if found is not None else text)
        jsonschema_rs.validator_for(schema).validate(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return None, f"it must be JSON and nothing else ({error})"
    except jsonschema_rs.ValidationError as error:
        return None, f"it does not match the schema: {error.message}"
    return value, None


def is_schema(schema: dict[str, Any]) -> bool:
    """Return whether this is a valid JSON Schema."""
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for(schema)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def task_words(task: str, schema: dict[str, Any] | None) -> str:
    """Return the first message of a subagent."""
    return task if schema is None else f"{task}{_WANTED}{msgspec.json.encode(schema).decode()}"


def schema_in(words: str) -> dict[str, Any] | None:
    """Return the schema in a message made by `task_words`; None if it has none."""
    _, wanted, written = words.rpartition(_WANTED)
    try:
        return msgspec.json.decode(written, type=dict[str, Any]) if wanted else None
    except msgspec.DecodeError:
        return None


PLUGIN_ID: Final = "subagents"
POLL_S: Final = 0.2
"""How often a waiting subagent is polled."""

_SHOWN_CHARS: Final = 2_000


class Child(HoldsSessionIds, frozen=True, kw_only=True, omit_defaults=True):
    """A subagent, as stored in its task's body.

    `turn_id` is the turn that it is working on, if known; `after` is the last turn of its history before
    that. `parent_turn` is the parent's turn that gave it work, `before` its usage when that turn first did
    so, and `limits` the limits that it was given.
    """

    session_id: SessionIdField
    turn_id: str = ""
    after: str | None = None
    agent: str | None = None
    task: str = ""
    parent_turn: str = ""
    output_schema: dict[str, Any] | None = None
    before: Usage = Usage()
    limits: UsageLimits | None = None

    def spec(self) -> TaskSpec:
        """Return the task to register."""
        label = " ".join(self.task.split())
        body = msgspec.structs.replace(self, task=self.task[:_SHOWN_CHARS])
        return TaskSpec(
            id=self.session_id,
            kind=TaskKind.SUBAGENT,
            label=label if len(label) <= 80 else f"{label[:79]}…",
            body=msgspec.to_builtins(body),
        )


class KnownChild(msgspec.Struct, frozen=True):
    """A subagent, and whether its task is still live."""

    child: Child
    live: bool


class Children:
    """The subagents of the session *session_id*, through its host."""

    def __init__(self, host: PluginActionHost, session_id: str) -> None:
        self.host = host
        self.session_id = session_id

    async def all(self) -> dict[str, KnownChild]:
        """Return all subagents by id, the oldest first."""
        tasks = await self.host.list_background_tasks(self.session_id)
        return {
            task.id: KnownChild(child, not task.state.is_terminal) for task in tasks if (child := _read(task))
        }

    async def rests(self, child: Child, *, for_people: bool = False) -> AssembledTurn:
        """Wait until the subagent's turn ends or, unless *for_people*, waits for a person; return it."""
        turn_id = child.turn_id or (await self.begin_first(child)).turn_id
        while True:
            turn = await self.host.await_turn(turn_id)
            waits = isinstance(turn.outcome, Waiting)
            if waits_for_time(turn.outcome) or (waits and for_people):
                await asyncio.sleep(POLL_S)
                continue
            if waits:
                return turn
            last = await self.last_turn(child.session_id)
            while last in (None, turn.turn_id) and isinstance(turn.outcome, FrameSwitched):
                await asyncio.sleep(POLL_S)  # the new frame's turn begins by itself
                last = await self.last_turn(child.session_id)
            if last is None or last == turn.turn_id:
                return turn
            turn_id = last

    async def begin_first(self, child: Child) -> SessionTurnHandle:
        """Start the first turn of a subagent; if it was already started, wait until it has ended or waits."""
        charter = (await self.host.snapshot_session(child.session_id)).head.charter
        words = task_words(child.task, child.output_schema) if charter is None else charter.task
        asked = TurnInput(
            message=UserMessage(content=words),
            limits=child.limits,
            idempotency_key=f"{child.session_id}.first",
        )
        return await self.host.start_turn_stream(child.session_id, asked)

    async def last_turn(self, session_id: str) -> str | None:
        """Return the last turn of a subagent's history."""
        return last_turn((await self.host.snapshot_session(session_id)).head)

    async def settle(self, child: Child, turn: AssembledTurn) -> None:
        """End the subagent's task with the final status of its turn."""
        state = task_state_of(status_of(turn.outcome))
        if state.is_terminal:
            await self.host.complete_background_task(self.session_id, child.session_id, state)

    async def report(
        self, child: Child, turn: AssembledTurn | None, running: Usage = Usage()
    ) -> SubagentReport:
        """Report on the subagent. *running* is the known usage of its running turn."""
        waits, tools = turn is not None and isinstance(turn.outcome, Waiting), None
        if turn is not None:
            running = turn.usage if waits else Usage()
        if waits:  # the subagent's own plugin, if any, knows the tools of its calls
            state = (await self.host.snapshot_session(child.session_id)).state
            entry = state.plugins.plugins.get(PLUGIN_ID)
            kept = None if entry is None else entry.meta.state
            tools = dict(kept.get("calls", {})) if isinstance(kept, Mapping) else {}
        return report_of(
            child.session_id,
            turn,
            schema=child.output_schema,
            usage=await self.usage(child) + running,
            capabilities=tools,
        )

    async def usage(self, child: Child) -> Usage:
        """Return the usage in the ledgers of the subagent and of all subagents below it."""
        return await tree_usage(self.host, child.session_id)


async def tree_usage(host: PluginActionHost, session_id: str) -> Usage:
    """Return the committed usage of a session and its subagents."""
    total, todo, seen = Usage(), [session_id], {session_id}
    for one in todo:
        head = (await host.snapshot_session(one)).head
        total = sum((line.usage for line in head.usage), total)
        below = [task.id for task in await host.list_background_tasks(one) if _read(task) is not None]
        todo += [task_id for task_id in below if task_id not in seen]
        seen.update(below)
    return total


def last_turn(head: SessionHead) -> str | None:
    """Return the last turn of a session's history."""
    if head.leaf is None:
        return None
    segment = split_node_id(head.leaf)[0]
    return segment if segment.startswith("t_") else None


def require_child(known: Mapping[str, KnownChild], agent_id: str) -> KnownChild:
    """Return the subagent with this id; if there is none, raise `InvalidArgument`, which the model reads."""
    found = known.get(agent_id)
    if found is None:
        there = ", ".join(known) or "none"
        raise InvalidArgument(f"there is no subagent {agent_id[:80]!r}", hint=f"the subagents are: {there}")
    return found


def _read(task: TaskRecord) -> Child | None:
    """Return the subagent of a task; None if it is another kind of task."""
    if task.kind is not TaskKind.SUBAGENT:
        return None
    try:
        return msgspec.convert(task.body, Child)
    except (InvalidSessionId, msgspec.ValidationError):
        return None
