"""How task records change. Pure: the store runs these inside its transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, InvalidArgument, StandfastError
from standfast.model.canonical import Json, check_bounds, to_json
from standfast.model.task import TaskRecord, TaskSpec, TaskState
from standfast.plugins.running import described

MAX_RESULT_BYTES: Final = 64 * 1024
"""So large may a task's body and its result be, as JSON."""

Change = Callable[[TaskRecord], TaskRecord]

_replace = msgspec.structs.replace


def registered(spec: TaskSpec, session_id: str, owner: str, now_ms: int) -> TaskRecord:
    """Return the record of a task that begins now."""
    check_bounds(spec)
    try:
        spec = msgspec.convert(msgspec.to_builtins(spec), TaskSpec)
        body, size = to_json(spec.body)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"this is no task: {error}") from None
    if size > MAX_RESULT_BYTES:
        raise InvalidArgument(
            f"the body of task {spec.id!r} has {size:,} bytes, and may have {MAX_RESULT_BYTES:,}"
        )
    return TaskRecord(
        session_id=session_id,
        id=spec.id,
        kind=spec.kind,
        state=TaskState.RUNNING,
        created_at=now_ms,
        updated_at=now_ms,
        label=spec.label,
        owner=owner,
        body=body,
        handle=spec.handle,
    )


def became(state: TaskState, now_ms: int, *, result: Json = None, error: ErrorObject | None = None) -> Change:
    """Change the task's state."""
    return lambda task: _replace(task, state=state, updated_at=now_ms, result=result, error=error)


def cancel_asked(now_ms: int) -> Change:
    """Request the task's cancellation."""

    def change(task: TaskRecord) -> TaskRecord:
        if task.state is TaskState.CANCEL_REQUESTED:
            return task
        return _replace(task, state=TaskState.CANCEL_REQUESTED, updated_at=now_ms)

    return change


def progressed(state: TaskState, now_ms: int) -> Change:
    """Record that the task runs, or is idle; a requested cancellation stays."""

    def change(task: TaskRecord) -> TaskRecord:
        if task.state in (state, TaskState.CANCEL_REQUESTED):
            return task
        return _replace(task, state=state, updated_at=now_ms)

    return change


def finished(value: object, now_ms: int) -> Change:
    """End the task with a value; one that cannot be stored is a failure."""
    try:
        result, size = to_json(value)
    except StandfastError as error:
        told = ErrorObject(code=Code.RESULT_NOT_SERIALIZABLE, message=error.message, hint=error.hint)
        return became(TaskState.FAILED, now_ms, error=told)
    if size > MAX_RESULT_BYTES:
        message = f"the result has {size:,} bytes, and may have {MAX_RESULT_BYTES:,}"
        return became(
            TaskState.FAILED,
            now_ms,
            error=ErrorObject(
                code=Code.RESPONSE_TOO_LARGE, message=message, hint="keep it elsewhere and tell where"
            ),
        )
    return became(TaskState.COMPLETED, now_ms, result=result)


def broke(error: BaseException, now_ms: int) -> Change:
    """End the task with an exception."""
    if isinstance(error, StandfastError):
        return became(TaskState.FAILED, now_ms, error=error.error_object())
    told = ErrorObject(code=Code.RUNTIME_ERROR, message=described(error))
    return became(TaskState.FAILED, now_ms, error=told)


def interrupted(why: str, now_ms: int) -> Change:
    """End a task whose process is gone, or ends, if no other process can continue it."""
    told = ErrorObject(code=Code.INTERRUPTED, message=why, hint="start the task again, if it is still wanted")

    def change(task: TaskRecord) -> TaskRecord:
        if task.state is TaskState.CANCEL_REQUESTED:
            return _replace(task, state=TaskState.CANCELLED, updated_at=now_ms)
        return _replace(task, state=TaskState.FAILED, updated_at=now_ms, error=told)

    return change


def owned_by(owner: str, now_ms: int) -> Change:
    """Let the process *owner* look after the task."""
    return lambda task: _replace(task, owner=owner, updated_at=now_ms)


def touched(owner: str, now_ms: int) -> Change:
    """Note that *owner* is alive, unless the task is over or another process has it by now."""
    return lambda task: (
        _replace(task, updated_at=now_ms) if task.owner == owner and not task.state.is_terminal else task
    )
