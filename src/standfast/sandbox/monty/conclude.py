"""What is left to do when guest code has run: its result, the names it borrowed, and the session's state."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from standfast.errors import Code, EngineFailed, ErrorObject
from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine, shadow
from standfast.sandbox.monty.dump import stand_ins, without_sources
from standfast.sandbox.monty.failures import Failure
from standfast.sandbox.monty.feeding import UNREAD, feed_through, show
from standfast.sandbox.monty.plan import RunPlan
from standfast.sandbox.monty.program import MARK_NAME, VALUE_NAME, Program, last_expression
from standfast.sandbox.monty.state import EngineState
from standfast.sandbox.monty.steps import Finished, Unreadable, read_arguments
from standfast.sandbox.monty.values import json_of, type_of_stand_in
from standfast.sandbox.monty.workers import SMALL_FRAME_BYTES, TINY_FRAME_BYTES, MontyWorker, MontyWorkers
from standfast.sandbox.run_errors import not_serializable, result_too_large

_COMPACT_AFTER_FEEDS: Final = 32
_COMPACT_FROM_BYTES: Final = 2_048
_MAX_UNSAVED_FEEDS: Final = 256
"""A worker that was fed this often without being stored is loaded anew: the engine keeps all sources."""
_UNCHANGED: Final = frozenset({Code.SYNTAX_ERROR, Code.UNSUPPORTED_FEATURE})


def left_unchanged(outcome: Finished | Failure) -> bool:
    """Whether the code was refused before any of it ran."""
    return isinstance(outcome, Failure) and outcome.error.code in _UNCHANGED


def find_value(plan: RunPlan, worker: MontyWorker, outcome: Finished | Failure) -> object:
    """The run's value as the engine gave it."""
    value = _finished_value(plan, worker, outcome) if isinstance(outcome, Finished) else None
    if plan.program.result_mode == "maybe":
        bound, found = _find_result(plan, worker)
        value = found if bound else value
    return value


def _finished_value(plan: RunPlan, worker: MontyWorker, outcome: Finished) -> object:
    """The value of the last expression."""
    if not outcome.unread:
        return outcome.value
    program = plan.program
    named = program.ends_with_value or program.result_mode == "always"
    return _shown_value(worker, _value_expression(program)) if named else None


def _shown_value(worker: MontyWorker, expression: str) -> object:
    """The value of an expression of ours, read once a dump has told that it can be."""
    snapshot = show(worker, expression, None)
    given = read_arguments(snapshot, worker, small=worker.sent_bytes() <= TINY_FRAME_BYTES)
    snapshot.resume({"return_value": None})
    return given if isinstance(given, Unreadable) else given[0][0]


def give_names_back(plan: RunPlan, worker: MontyWorker, others: Iterable[str] = ()) -> None:
    """Give borrowed names what they had before the run, and unbind *others* as well."""
    names = [name for name in plan.borrowed if name != "result" or plan.program.result_mode != "maybe"]
    kept = [name for name in names if name in plan.kept]
    unbound = [*(name for name in names if name not in kept), *others]
    if kept or unbound:
        feed_through(worker, shadow.put_back(kept, unbound))


def state_after(
    plan: RunPlan, before: EngineState | None, worker: MontyWorker, workers: MontyWorkers
) -> tuple[EngineState, bool]:
    """The session's new state, and whether it was made smaller than what the worker holds.

    Raise as the engine does if the state could not be stored, or not be loaded again.
    """
    dump = worker.dump(worker.session)
    feeds = (before.feeds if before else 0) + 1
    compacted = feeds >= _COMPACT_AFTER_FEEDS and len(dump) >= _COMPACT_FROM_BYTES
    next_input = worker.next_input
    if compacted:
        dump, next_input = without_sources(dump)
        feeds = 0
    workers.check_loads(dump, plan.limits)
    sites = dict(before.sites) if before else {}
    program = plan.program
    if program.defines_functions and program.awaited:
        sites[plan.filename] = sorted(program.awaited)
    given_back = set(plan.borrowed) - set(plan.kept)
    state = EngineState(
        dump=dump,
        limits=plan.limits,
        names=sorted((plan.names | program.bound) - given_back),
        sites=sites,
        result_later=bool(before and before.result_later) or program.rebinds_result_later,
        feeds=feeds,
        has_classes=bool(before and before.has_classes) or program.defines_classes,
        plain_keys=plan.plain_keys,
        next_input=next_input,
    )
    return state, compacted


def value_as_json(value: object) -> tuple[Json, Failure | None]:
    """The value as JSON, or why it is not."""
    if value is None or type(value) is bool or (type(value) is int and value.bit_length() <= 64):
        return value, None
    if isinstance(value, Unreadable):
        limit = value.too_large
        return None, Failure(
            not_serializable(str(value.foreign)) if limit is None else result_too_large(limit)
        )
    clean, error = json_of(value)
    return clean, Failure(error) if error is not None else None


def stand_in_shown(worker: MontyWorker, program: Program, functions: Container[str]) -> str | None:
    """The type of something in the result that is only the text of what guest code had, if there is one.

    Hand the value of *program* to the host once more and look at how the engine does it.
    """
    try:
        snapshot = show(worker, _value_expression(program), functions)
        found = stand_ins(worker.dump(snapshot))
        snapshot.resume({"return_value": None})
    except engine.MontyError:
        return None
    return type_of_stand_in(found[0]) if found else None


def fed_without_storing(worker: MontyWorker) -> None:
    """Take note that the session is as it was, and that the engine has kept one more source."""
    worker.unsaved_feeds += 1
    if worker.unsaved_feeds > _MAX_UNSAVED_FEEDS:
        worker.version = None


def not_kept(error: Exception, limits: SessionLimits) -> ErrorObject:
    """Why what a run left could not be stored."""
    if "memory limit" not in str(error):
        return ErrorObject(code=Code.INTERRUPTED, message=f"the process that ran the code died: {error}")
    return ErrorObject(
        code=Code.MEMORY_EXCEEDED,
        message=f"what the run left in the session cannot be stored and loaded within {limits.memory_mb} MB",
        hint="that takes up to four times the memory of the values; keep less, or raise memory_mb",
    )


class CellTooLarge(EngineFailed):
    """A cell that waits cannot be suspended and loaded within the memory that it may have."""

    code = Code.MEMORY_EXCEEDED


def not_suspended(error: Exception, limits: SessionLimits) -> EngineFailed:
    """The reason why a cell that waits could not be suspended."""
    if "memory limit" not in str(error):
        return EngineFailed(f"the cell cannot be suspended: {error}")
    return CellTooLarge(
        f"the cell cannot be suspended and loaded again within {limits.memory_mb} MB",
        hint="hold less while a call is waited for, raise memory_mb, or allow more processes",
    )


def _value_expression(program: Program) -> str:
    """How the guest can name the run's value once more."""
    if program.reads_only is not None:
        return f"({last_expression(program.code)}\n)"
    return VALUE_NAME if program.result_mode == "never" else "result"


def _find_result(plan: RunPlan, worker: MontyWorker) -> tuple[bool, object]:
    """Whether the run bound `result`, and its value."""
    existed = "result" in plan.kept
    try:
        bound = not (existed and plan.program.reads_result) or _was_bound(worker)
        value = _result_value(plan, worker) if bound else None
    except engine.MontyRuntimeError as error:
        if "is not defined" not in str(error):
            raise
        bound, value = False, None
    if existed:
        give_back = shadow.forget(["result"]) if bound else shadow.put_back(["result"], [])
        feed_through(worker, give_back)
    return bound, value


def _result_value(plan: RunPlan, worker: MontyWorker) -> object:
    limit = SMALL_FRAME_BYTES if plan.plain_keys else TINY_FRAME_BYTES
    value = feed_through(worker, "result", max_frame_bytes=limit)
    return _shown_value(worker, "result") if value is UNREAD else value


def _was_bound(worker: MontyWorker) -> bool:
    """Whether a run that reads an earlier `result` bound it: a mark was left, or it is another object."""
    return bool(feed_through(worker, f"bool({MARK_NAME}) or result is not __standfast_kept_result"))
