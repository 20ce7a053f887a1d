"""The Monty engine, which runs Python cells, and the stepper of one cell.

The code stops at a plain call; a call that it awaits gets a future, and the code continues until all of its
tasks wait. A cell that was put aside is stored as the engine's dump, in the middle of its expression.

Rule: inputs, and names that were loaded, are unbound when the cell ends, so they are never part of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, ParamSpec

import msgspec

from standfast.errors import CellTooLarge, Code, EngineFailed, ErrorObject, StandfastError, TypeCheckFailed
from standfast.model.canonical import Json
from standfast.model.code import Diagnostic, Language, Severity
from standfast.ports.cell_stepper import (
    CellFailed,
    CellStopped,
    EngineCall,
    Step,
    StepBlocked,
    StepEnded,
    StepperHost,
)
from standfast.ports.code_engine import CallAnswer, CellCall, CellFunctions, Check, LastCall, NamesRead
from standfast.sandbox.cell_lifecycle import SteppedCells, text_problem
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import without_sources
from standfast.sandbox.monty.engine_run import OS_POLICY, EngineRun
from standfast.sandbox.monty.failures import MontyFailure, describe_failure
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, misread, parse
from standfast.sandbox.monty.workers import (
    EngineState,
    KnownError,
    MontyCellDump,
    MontyWorkers,
    decode_state,
    encode_dump,
    encode_state,
    read_former_cell,
)
from standfast.sandbox.run_errors import argument_not_json, by_line, request_too_large

if TYPE_CHECKING:
    from standfast.sandbox.monty.session_source import SessionSource
    from standfast.sandbox.monty.validate import Checkers

P = ParamSpec("P")
_CHECK_MS: Final = 10_000
_SMALL_CHARS: Final = 1_000
"""A cell's value stays in the session until the next cell if it is a text of at most this size."""
_LITTLE_BYTES: Final = 64 << 10
"""A session whose state is smaller has kept little memory of the runs before."""
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


class MontyStepper(EngineRun):
    """A `CellStepper`. The cell is in the worker while the code is `standing` at a snapshot."""

    _drops_value = False

    # ── stepping ─────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> Step:
        if (refused := self.program.refused) is not None:
            return StepEnded(error=msgspec.convert(refused, ErrorObject, from_attributes=True), refused=True)
        return self._step(self._begin)

    def proceed(self) -> Step:
        return self._step(self.promise)

    def answer(self, call_id: int, answer: CallAnswer) -> Step:
        return self._step(self.resume, call_id, answer)

    def raises_at_call(self, answer: CallAnswer) -> bool:
        return answer.exception is not None

    def _step(self, job: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Step:
        """Step the engine to its next call, wait or end; convert an exception into the cell's failure."""
        if self._host.stopped is not None:
            raise CellStopped
        try:
            snapshot = job(*args, **kwargs)
            self.standing = None
            while (kind := type(snapshot)) is not engine.MontyComplete:
                if kind is engine.FunctionSnapshot:
                    step = self.on_function(snapshot)
                elif kind is engine.FutureSnapshot:
                    step = StepBlocked(snapshot.pending_call_ids)
                else:
                    step = self.on_name(snapshot, snapshot.variable_name)
                if isinstance(step, (EngineCall, StepBlocked)):
                    self.standing = snapshot
                    return step
                snapshot = step
        except (StandfastError, CellStopped):
            raise
        except Exception as error:
            if self._host.stopped is not None:
                raise CellStopped from None
            return self._failed(describe_failure(error, self, self._limits))
        return self._ended(snapshot, None)

    def _failed(self, failure: MontyFailure) -> StepEnded:
        if failure.hard:
            raise CellFailed(failure.error)
        if failure.error.code in _REFUSALS:
            if self.worker is not None:
                self.worker.version = None  # the engine may have counted the source
            return StepEnded(error=failure.error, refused=True)
        return self._ended(None, failure.error)

    def _begin(self) -> Any:
        """Begin in a worker that has the session's state before the cell: the warm worker, or another."""
        request, worker = self._host.request, self.worker
        if worker is None or not worker.holds(request.state, request.limits):
            self.drop_worker()
            worker = self._workers.attach(self._before, request.limits, os_policy=OS_POLICY)
            worker.version = request.state
            self.put_worker(worker)
        if request.measured:
            worker.peak.reset()
        try:
            return self.feed(worker)
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
        limits = self._limits
        if self.standing is None:
            return
        try:
            self.paused_dump = self.standing.dump()
            self.standing = None
            self._workers.check_loads(self.paused_dump, limits, paused=True)
        except Exception as error:
            if "memory limit" not in str(error):
                raise EngineFailed(f"the cell cannot be suspended: {error}") from error
            raise CellTooLarge(limits.memory_mb) from error

    def dump(self) -> bytes:
        return encode_dump(
            MontyCellDump(
                dump=self.paused_dump,
                before=msgspec.structs.replace(self._before, dump=b"") if self._before else None,
                filename=self.filename,
                borrowed=self.borrowed,
                kept=self.kept,
                errors=[KnownError(*key, error) for key, error in self.call_errors.items()],
                draws=self.draws,
            )
        )

    def load(self) -> Step:
        def reload() -> Any:
            self.prepare()
            self.drop_worker()
            worker = self.put_worker(self._workers.attach_bare(self._limits, os_policy=OS_POLICY))
            if self._host.request.measured:
                worker.peak.reset()
            return self.reload(worker)

        return self._step(reload)

    def memory_peak_bytes(self) -> int | None:
        worker, request = self.worker, self._host.request
        if worker is None or not request.measured:
            return None
        keeps_little = self.program.reads_only is not None or len(request.state) <= _LITTLE_BYTES
        return worker.peak.bytes(was_brief=self.was_brief and keeps_little)

    def release(self, *, warm: bool) -> None:
        self.standing = None
        super().release(warm=warm)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, finished: engine.MontyComplete | None, error: ErrorObject | None) -> StepEnded:
        """Find the result of code that has *finished*, or failed with *error*."""
        program = self.program
        value: Json = None
        try:
            raw = self.value(finished)
            if finished is not None:
                value, error = self.as_json(raw)
        except Exception as problem:
            raise self._undone(problem) from problem
        if program.reads_only is None and program.result_mode != "always":
            self._drops_value = not (
                raw is None
                or isinstance(raw, (int, float))
                or (isinstance(raw, str) and len(raw) <= _SMALL_CHARS)
            )
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
        before = self._before
        try:
            if self.borrowed or self._drops_value:
                self.give_names_back(drop_value=self._drops_value)
            # Operators are harmless on values of built-in classes, and so are functions still built in.
            reads_only, had_classes = self.program.reads_only, before is not None and before.has_classes
            if reads_only is None or had_classes or reads_only & self.names:
                return self._state(had_classes)
        except Exception as problem:
            raise self._undone(problem) from problem
        worker = self.loaded
        worker.unsaved_feeds += 1
        if worker.unsaved_feeds > _MAX_UNSAVED_FEEDS:
            worker.version = None
        return None

    def _state(self, had_classes: bool) -> bytes:
        """Return the session's state; raise if it could not be loaded again."""
        before, worker, program = self._before, self.loaded, self.program
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
            sites[self.filename] = sorted(program.awaited)
        state = EngineState(
            dump=dump,
            limits=self._limits,
            names=sorted((self.names | program.bound) - (set(self.borrowed) - set(self.kept))),
            sites=sites,
            result_later=bool(before and before.result_later) or program.rebinds_result_later,
            feeds=feeds,
            has_classes=had_classes or program.defines_classes,
            plain_keys=self.plain_keys,
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
