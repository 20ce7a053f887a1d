"""What became of a subagent, as its parent is told."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, assert_never

import msgspec

from standfast.errors import ErrorObject, TurnCode
from standfast.model.canonical import Json
from standfast.model.host_requests import AssembledTurn
from standfast.model.limits import Usage
from standfast.model.outcome import Finished, FrameSwitched, Outcome, Stopped, StopReason, Waiting
from standfast.model.task import TaskState
from standfast.model.wait import Wait, WaitKind

Status = Literal["finished", "failed", "cancelled", "waiting", "running"]

MAX_FIXES: Final = 2
"""So often is a subagent told that its answer does not fit the schema."""

_WANTED: Final = "\n\nAnswer with JSON and nothing else. It must fit this JSON Schema:\n"
_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class SubagentWait(msgspec.Struct, frozen=True, kw_only=True):
    """What a subagent waits for. `id` is that of the approval, `capability` the tool that it is about."""

    id: str
    kind: WaitKind
    capability: str | None = None


class SubagentReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a subagent stands. `usage` is what it and its own subagents have used in all."""

    agent_id: str
    status: Status
    text: str = ""
    value: Json = None
    error: ErrorObject | None = None
    waits: list[SubagentWait] = []
    usage: Usage = Usage()


def status_of(outcome: Outcome) -> Status:
    """How a turn stands, in a word."""
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


def task_state_of(status: Status) -> TaskState:
    """The state of the task of a subagent: it runs until its turn has ended."""
    match status:
        case "finished":
            return TaskState.COMPLETED
        case "failed":
            return TaskState.FAILED
        case "cancelled":
            return TaskState.CANCELLED
        case "waiting" | "running":
            return TaskState.RUNNING
        case _:
            assert_never(status)


def waits_for_time(outcome: Outcome) -> bool:
    """Whether a turn goes on by itself after a while, without anybody's doing."""
    return isinstance(outcome, Waiting) and all(wait.kind == "timer" for wait in outcome.waits)


def report_of(
    agent_id: str,
    turn: AssembledTurn | None,
    *,
    schema: dict[str, Any] | None = None,
    usage: Usage = Usage(),
    capabilities: dict[str, str] | None = None,
) -> SubagentReport:
    """A report on a turn; without one it still runs. *capabilities* are the tools of calls, by call id."""
    if turn is None:
        return SubagentReport(agent_id=agent_id, status="running", usage=usage)
    outcome = turn.outcome
    status = status_of(outcome)
    value = outcome.value if isinstance(outcome, Finished) else None
    error = outcome.error if isinstance(outcome, Stopped) else None
    waits = _named(outcome.waits, capabilities or {}) if isinstance(outcome, Waiting) else []
    if schema is not None and isinstance(outcome, Finished):
        value, problem = read_value(turn.text, schema)
        status, error = ("finished", None) if problem is None else ("failed", _misfit(problem))
    return SubagentReport(
        agent_id=agent_id,
        status=status,
        text=turn.text,
        value=value,
        error=error,
        waits=waits,
        usage=usage,
    )


def read_value(text: str, schema: dict[str, Any]) -> tuple[Json, str | None]:
    """An answer as the value that was asked for, or what is wrong with it."""
    import jsonschema_rs  # imported where a subagent is asked for a value, and only there

    found = _FENCED.fullmatch(text.strip())
    try:
        value: Json = msgspec.json.decode(found.group(1) if found is not None else text)
        jsonschema_rs.validator_for(schema).validate(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return None, f"it must be JSON and nothing else ({error})"
    except jsonschema_rs.ValidationError as error:
        return None, f"it does not fit the schema: {error.message}"
    return value, None


def is_schema(schema: dict[str, Any]) -> bool:
    """Whether values can be checked against this at all."""
    import jsonschema_rs

    try:
        jsonschema_rs.validator_for(schema)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def task_words(task: str, schema: dict[str, Any] | None) -> str:
    """The message that a subagent begins with."""
    return task if schema is None else f"{task}{_WANTED}{msgspec.json.encode(schema).decode()}"


def schema_in(words: str) -> dict[str, Any] | None:
    """The schema that such a message asks an answer for."""
    _, wanted, written = words.rpartition(_WANTED)
    try:
        return msgspec.json.decode(written, type=dict[str, Any]) if wanted else None
    except msgspec.DecodeError:
        return None


def _named(waits: tuple[Wait, ...], capabilities: dict[str, str]) -> list[SubagentWait]:
    return [
        SubagentWait(id=wait.wait_id, kind=wait.kind, capability=capabilities.get(str(wait.call_id)))
        for wait in waits
    ]


def _misfit(problem: str) -> ErrorObject:
    return ErrorObject(
        code=TurnCode.OUTPUT_INVALID,
        message=f"the subagent's answer was refused: {problem}",
        hint="tell it with send_input, or do without",
    )
