"""Reports on subagents for their parent."""

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
from standfast.model.wait import WaitKind

Status = Literal["finished", "failed", "cancelled", "waiting", "running"]

MAX_FIXES: Final = 2
"""How often a subagent may correct an answer that does not fit the schema."""

_WANTED: Final = "\n\nAnswer with JSON and nothing else. It must fit this JSON Schema:\n"
_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class SubagentWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait of a subagent. `id` is that of the approval, `capability` the tool it is about."""

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
    """Report on a turn, or on a running one if it is None. *capabilities* are the tools of calls, by id."""
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
                    message=f"the subagent's answer was refused: {problem}",
                    hint="correct it with send_input, or do without",
                ),
            )
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
    """Return an answer as a value of *schema*, or the problem with it."""
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
    """Return the schema in a message of `task_words`; None without one."""
    _, wanted, written = words.rpartition(_WANTED)
    try:
        return msgspec.json.decode(written, type=dict[str, Any]) if wanted else None
    except msgspec.DecodeError:
        return None
