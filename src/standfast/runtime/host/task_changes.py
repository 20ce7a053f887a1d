"""Changes of task records. They are pure functions, because the store applies them inside transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject, InvalidArgument, StandfastError
from standfast.model.canonical import Json, check_bounds, to_json
from standfast.model.task import TaskRecord, TaskSpec, TaskState
from standfast.tools.tracebacks import described

MAX_RESULT_BYTES: Final = 64 * 1024
"""The largest body and the largest result of a task, as JSON."""

Change = Callable[[TaskRecord], TaskRecord]

_replace = msgspec.structs.replace


def registered(spec: TaskSpec, session_id: str, owner: str, now_ms: int) -> TaskRecord:
    """Return the record of a task that begins now."""
    check_bounds(spec)
    try:
        spec = msgspec.convert(msgspec.to_builtins(spec), TaskSpec)
        body, size = to_json(spec.body)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument(f"the task is invalid: {error}") from None
    if size > MAX_RESULT_BYTES:
        raise InvalidArgument(
            f"the body of task {spec.id!r} has {size:,} bytes, the limit is {MAX_RESULT_BYTES:,}"
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
    """Record that the task is running or idle; keep a requested cancellation."""

    def change(task: TaskRecord) -> TaskRecord:
        if task.state in (state, TaskState.CANCEL_REQUESTED):
            return task
        return _replace(task, state=state, updated_at=now_ms)

    return change


def finished(value: object, now_ms: int) -> Change:
    """End the task with a value, or with a failure if the value cannot be stored."""
    try:
        result, size = to_json(value)
    except StandfastError as error:
        told = ErrorObject(code=Code.RESULT_NOT_SERIALIZABLE, message=error.message, hint=error.hint)
        return became(TaskState.FAILED, now_ms, error=told)
    if size > MAX_RESULT_BYTES:
        message = f"the result has {size:,} bytes, the limit is {MAX_RESULT_BYTES:,}"
        return became(
            TaskState.FAILED,
            now_ms,
            error=ErrorObject(
                code=Code.RESPONSE_TOO_LARGE, message=message, hint="store it elsewhere, return a reference"
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
    """End a task that no other process can continue, because its process has died or is closing."""
    told = ErrorObject(code=Code.INTERRUPTED, message=why, hint="start the task again if it is still needed")

    def change(task: TaskRecord) -> TaskRecord:
        if task.state is TaskState.CANCEL_REQUESTED:
            return _replace(task, state=TaskState.CANCELLED, updated_at=now_ms)
        return _replace(task, state=TaskState.FAILED, updated_at=now_ms, error=told)

    return change


def owned_by(owner: str, now_ms: int) -> Change:
    """Make the process *owner* the owner of the task."""
    return lambda task: _replace(task, owner=owner, updated_at=now_ms)


def touched(owner: str, now_ms: int) -> Change:
    """Record that *owner* is alive, unless the task has ended or another process now owns it."""
    return lambda task: (
        _replace(task, updated_at=now_ms) if task.owner == owner and not task.state.is_terminal else task
    )
