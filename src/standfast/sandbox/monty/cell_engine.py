"""The Monty engine, which runs Python cells, and the stepper of one cell.

The code stops at a plain call; a call that it awaits gets a future, and the code continues until all of its
tasks wait. A cell that was put aside is stored as the engine's dump, in the middle of its expression.

Rule: inputs, and names that were loaded, are unbound when the cell ends, so they are never part of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, ParamSpec

import msgspec

from standfast.errors import CellTooLarge, Code, EngineFailed, ErrorObject, StandfastError, TypeCheckFailed
from standfast.model.canonical import Json
from standfast.model.code import Diagnostic, Language, Severity
from standfast.ports.cell_stepper import CellFailed, CellStopped, Step, StepEnded, StepperHost
from standfast.ports.code_engine import CallAnswer, CellCall, CellFunctions, Check, LastCall, NamesRead
from standfast.sandbox.cell_lifecycle import SteppedCells, text_problem
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import without_sources
from standfast.sandbox.monty.engine_run import OS_POLICY, CodeFinished, EngineRun, RunStep
from standfast.sandbox.monty.failures import MontyFailure, describe_failure
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, misread, parse
from standfast.sandbox.monty.workers import (
    EngineState,
    KnownError,
    MontyCellDump,
    MontyWorker,
    MontyWorkers,
    decode_dump,
    decode_state,
    encode_dump,
    encode_state,
    read_former_cell,
)
from standfast.sandbox.run_errors import argument_not_json, by_line, request_too_large
from standfast.sandbox.workers import SlotStepper

if TYPE_CHECKING:
    from standfast.sandbox.monty.session_source import SessionSource
    from standfast.sandbox.monty.validate import Checkers

P = ParamSpec("P")
_CHECK_MS: Final = 10_000
_SMALL_CHARS: Final = 1_000
"""A cell's value stays in the session until the next cell if it is a text of at most this size."""
_COMPACT_AFTER_FEEDS: Final = 32
_COMPACT_FROM_BYTES: Final = 2_048
_MAX_UNSAVED_FEEDS: Final = 256
"""The engine keeps the source of every feed, so a worker is reloaded after this many without a new state."""
_REFUSALS: Final = frozenset({Code.SYNTAX_ERROR, Code.UNSUPPORTED_FEATURE})
"""The error codes of code that the engine rejects before running any of it."""


class MontyCells(SteppedCells):
    """Runs the cells of many sessions, from many threads. The first cell starts the engine's processes."""

    language = Language.PYTHON
    former_cell = staticmethod(read_former_cell)

    def __init__(self, workers: MontyWorkers | None = None, *, capacity: int = 8) -> None:
        self._workers = workers if workers is not None else MontyWorkers(capacity)
        self._checkers: Checkers | None = None
        super().__init__(self._workers)

    def stepper(self, host: StepperHost, dump: bytes) -> MontyStepper:
        return MontyStepper(host, self._workers, dump)

    def names(self, state: bytes) -> list[str]:
        known = decode_state(state)
        return list(known.names) if known else []

    def session_source(self, state: bytes, definitions: dict[str, str]) -> SessionSource:
        """Return the variables of a session as Python source, for another engine."""
        from standfast.sandbox.monty.session_source import session_source

        return session_source(decode_state(state), definitions, self._workers)

    def touched(self, code: str, names: Collection[str]) -> NamesRead:
        from standfast.sandbox.monty.cell_check import names_touched

        return names_touched(code, names)

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        from standfast.sandbox.monty.cell_check import DeclaredFunctions, check_calls
        from standfast.sandbox.monty.validate import Checkers, Declared, Validator

        if (problem := text_problem(code)) is not None:
            return [problem]
        if self._checkers is None:
            self._checkers = Checkers(self._workers)
        bound = frozenset(self.names(state))
        known = bound.union(inputs)
        if check == "session" and isinstance(functions, Declared):
            return Validator(self._checkers, functions, self.watchdog).check(code, known, _CHECK_MS)
        tree = parse(code)
        found = check_calls(code, tree, bound, functions, inputs) if tree is not None else []
        found += misread(code, tree)
        if check == "calls" and (tree is not None or len(code) > MAX_READ_CHARS):
            return found
        validator = Validator(self._checkers, DeclaredFunctions(functions, known), self.watchdog)
        try:
            if check == "calls":  # this Python cannot parse it, but the engine's may be newer
                return validator.refusals(code, _CHECK_MS)
            others = validator.check(code, known, _CHECK_MS)
        except TypeCheckFailed as error:
            warning = Diagnostic(
                severity=Severity.WARNING, code=str(error.code), message=error.message, hint=error.hint
            )
            return [*found, warning]
        new = [one for one in others if not any(_covers(earlier, one) for earlier in found)]
        return sorted([*found, *new], key=by_line)

    def close(self) -> None:
        if self._checkers is not None:
            self._checkers.close()
        super().close()


class MontyStepper(SlotStepper[MontyWorker]):
    """A `CellStepper`. The cell is in the worker while the run is `standing` at a snapshot."""

    def __init__(self, host: StepperHost, workers: MontyWorkers, dump: bytes) -> None:
        paused = decode_dump(dump) if dump else None
        super().__init__(host, workers)
        self._workers = workers
        state = host.request.state
        self._before = paused.before if paused else (decode_state(state) if state else None)
        self._run = EngineRun(host, self._before, paused)
        self._measures = host.request.measured
        self._drops_value = False

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Step:
        if (refused := self._run.program.refused) is not None:
            return StepEnded(error=msgspec.convert(refused, ErrorObject, from_attributes=True), refused=True)
        return self._step(self._begin)

    def proceed(self) -> Step:
        return self._step(self._run.promise)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        return self._step(self._run.answer, call_id, answer)

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return answer.exception is not None

    def _step(self, job: Callable[P, RunStep], *args: P.args, **kwargs: P.kwargs) -> Step:
        """Step the engine, and convert an exception that it raises into the cell's failure."""
        if self._host.stopped is not None:
            raise CellStopped
        outcome: RunStep | MontyFailure
        try:
            outcome = job(*args, **kwargs)
        except (StandfastError, CellStopped):
            raise
        except Exception as error:
            if self._host.stopped is not None:
                raise CellStopped from None
            outcome = describe_failure(error, self._run, self._limits)
        if isinstance(outcome, CodeFinished):
            return self._ended(outcome, None)
        if not isinstance(outcome, MontyFailure):
            return outcome
        if outcome.hard:
            raise CellFailed(outcome.error)
        if outcome.error.code in _REFUSALS:
            if self.worker is not None:
                self.worker.version = None  # the engine may have counted the source
            return StepEnded(error=outcome.error, refused=True)
        return self._ended(None, outcome.error)

    def _begin(self) -> RunStep:
        """Begin in a worker that has the session's state before the cell: the warm worker, or another."""
        request, worker = self._host.request, self.worker
        if worker is None or not worker.holds(request.state, request.limits):
            self.drop_worker()
            worker = self._workers.attach(self._before, request.limits, os_policy=OS_POLICY)
            worker.version = request.state
            self.put_worker(worker)
        if self._measures:
            worker.peak.reset()
        try:
            return self._run.begin(worker)
        except engine.MontyCrashedError as error:
            if self._host.stopped is not None or error.timed_out or not worker.warm:
                raise
        # The warm worker died while it was idle. A cell has no effect outside of its worker before its first
        # step ends, so it can safely begin again.
        worker.version = None
        self._host.output.forget()
        return self._begin()

    # ── the worker ───────────────────────────────────────────────────────────────────────────────

    def put_aside(self) -> None:
        run, limits = self._run, self._limits
        if run.standing is None:
            return
        try:
            run.paused_dump = run.standing.dump()
            run.standing = None
            self._workers.check_loads(run.paused_dump, limits, paused=True)
        except Exception as error:
            if "memory limit" not in str(error):
                raise EngineFailed(f"the cell cannot be suspended: {error}") from error
            raise CellTooLarge(limits.memory_mb) from error

    def dump(self) -> bytes:
        run = self._run
        return encode_dump(
            MontyCellDump(
                dump=run.paused_dump,
                before=msgspec.structs.replace(self._before, dump=b"") if self._before else None,
                filename=run.filename,
                borrowed=run.borrowed,
                kept=run.kept,
                errors=[KnownError(*key, error) for key, error in run.call_errors.items()],
                draws=run.draws,
            )
        )

    def load(self) -> Step:
        def reload() -> RunStep:
            self.take_worker()
            self.drop_worker()
            worker = self.put_worker(self._workers.attach_bare(self._limits, os_policy=OS_POLICY))
            if self._measures:
                worker.peak.reset()
            return self._run.reload(worker)

        return self._step(reload)

    def memory_peak_bytes(self) -> int | None:
        worker = self.worker
        if worker is None or not self._measures:
            return None
        run = self._run
        return worker.peak.bytes(was_brief=run.was_brief and run.program.reads_only is not None)

    def release(self, *, warm: bool) -> None:
        self._run.standing = None
        super().release(warm=warm)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, finished: CodeFinished | None, error: ErrorObject | None) -> StepEnded:
        """Find the result of code that has *finished*, or failed with *error*."""
        run, program = self._run, self._run.program
        value: Json = None
        try:
            raw = run.value(finished)
            if finished is not None:
                value, error = run.as_json(raw)
        except Exception as problem:
            raise self._undone(problem) from problem
        small = (
            raw is None
            or isinstance(raw, (int, float))
            or (isinstance(raw, str) and len(raw) <= _SMALL_CHARS)
        )
        self._drops_value = not (small or program.reads_only is not None or program.result_mode == "always")
        if finished is None or program.last_call is None:
            return StepEnded(result=value, error=error)
        name, span = program.last_call
        if error is None:
            return StepEnded(last_call=LastCall(CellCall(number=0, name=name, args=[value]), span))
        if error.code == Code.RESULT_NOT_SERIALIZABLE:
            error = argument_not_json(name, str(error.hint))
        elif error.code == Code.RESPONSE_TOO_LARGE:
            error = request_too_large(name, error.message.removeprefix("the result is too large: "))
        return StepEnded(last_call=LastCall(CellCall(number=0, name=name, problem=error), span))

    def keep(self) -> bytes | None:
        run, before = self._run, self._before
        try:
            if run.borrowed or self._drops_value:
                run.give_names_back(drop_value=self._drops_value)
            # Operators are harmless on values of built-in classes, and so are functions still built in.
            reads_only, had_classes = run.program.reads_only, before is not None and before.has_classes
            if reads_only is None or had_classes or reads_only & run.names:
                return self._state(had_classes)
        except Exception as problem:
            raise self._undone(problem) from problem
        worker = run.worker
        worker.unsaved_feeds += 1
        if worker.unsaved_feeds > _MAX_UNSAVED_FEEDS:
            worker.version = None
        return None

    def _state(self, had_classes: bool) -> bytes:
        """Return the session's state; raise if it could not be loaded again."""
        run, before = self._run, self._before
        worker, program = run.worker, run.program
        dump = worker.dump(worker.session)
        feeds = (before.feeds if before else 0) + 1
        compacted = feeds >= _COMPACT_AFTER_FEEDS and len(dump) >= _COMPACT_FROM_BYTES
        next_input = worker.next_input
        if compacted:
            dump, next_input = without_sources(dump)
            feeds = 0
        self._workers.check_loads(dump, self._limits)
        sites = dict(before.sites) if before else {}
        if program.defines_functions and program.awaited:
            sites[run.filename] = sorted(program.awaited)
        state = EngineState(
            dump=dump,
            limits=self._limits,
            names=sorted((run.names | program.bound) - (set(run.borrowed) - set(run.kept))),
            sites=sites,
            result_later=bool(before and before.result_later) or program.rebinds_result_later,
            feeds=feeds,
            has_classes=had_classes or program.defines_classes,
            plain_keys=run.plain_keys,
            next_input=next_input,
        )
        data = encode_state(state)
        decode_state.remember(data, state)
        worker.version = None if compacted else data
        worker.unsaved_feeds = 0
        return data

    def _undone(self, error: Exception) -> CellFailed:
        """Return the failure of a cell whose code has run, but whose value or state could not be read."""
        message = f"the cell could not be completed: {error}"
        code, hint = Code.INTERRUPTED, None
        if isinstance(error, engine.MontyError):
            message = f"the process that ran the code died: {error}"
            if "memory limit" in str(error):
                code, limit = Code.MEMORY_EXCEEDED, f"{self._limits.memory_mb} MB"
                message = f"the session's variables cannot be stored and loaded within {limit}"
                hint = "that takes up to four times the memory of the values; keep less or raise memory_mb"
        return CellFailed(ErrorObject(code=code, message=message, hint=hint))


def _covers(known: Diagnostic, other: Diagnostic) -> bool:
    """Return whether *known* reports the same problem as *other*, for a span that contains it."""
    outer, inner = known.span, other.span
    if inner is None or outer is None or known.code != other.code:
        return False
    end = (outer.end_line or outer.line, outer.end_column or outer.column)
    return (outer.line, outer.column) <= (inner.line, inner.column) <= end
