"""Python cells on the Monty engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.language import Language
from standfast.ports.cell_stepper import StepperHost
from standfast.ports.code_engine import CellFunctions, Check, Touched
from standfast.sandbox.cell_lifecycle import SteppedCells, text_problem
from standfast.sandbox.monty.cell_check import DeclaredFunctions, by_line, check_calls, names_touched
from standfast.sandbox.monty.cell_stepper import MontyStepper
from standfast.sandbox.monty.session_source import SessionSource, session_source
from standfast.sandbox.monty.state import decode_state, read_former_cell
from standfast.sandbox.monty.syntax import MAX_READ_CHARS, misread, parse
from standfast.sandbox.monty.validate import Declared, TypeCheckFailed, Validator
from standfast.sandbox.monty.workers import MontyWorkers
from standfast.sandbox.paused_cell import PausedCell

_CHECK_MS: Final = 10_000


class MontyCells(SteppedCells):
    """Runs the cells of many sessions, from many threads. The first cell starts the engine's processes."""

    language = Language.PYTHON

    def __init__(self, workers: MontyWorkers | None = None, *, capacity: int = 8) -> None:
        self._workers = workers if workers is not None else MontyWorkers(capacity)
        super().__init__(self._workers)

    def stepper(self, host: StepperHost, dump: bytes) -> MontyStepper:
        return MontyStepper(host, self._workers, dump)

    def former_cell(self, data: bytes) -> PausedCell:
        return read_former_cell(data)

    def names(self, state: bytes) -> list[str]:
        known = decode_state(state)
        return list(known.names) if known else []

    def session_source(self, state: bytes, definitions: dict[str, str]) -> SessionSource:
        """Return the variables of a session as Python source, for another engine."""
        return session_source(decode_state(state), definitions, self._workers)

    def touched(self, code: str, names: Collection[str]) -> Touched:
        tree = parse(code)
        return Touched(names_touched(tree, names) if tree is not None else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        if (problem := text_problem(code)) is not None:
            return [problem]
        bound = frozenset(self.names(state))
        known = bound.union(inputs)
        if check == "session" and isinstance(functions, Declared):
            return Validator(self._workers, functions, self.watchdog).check(code, known, _CHECK_MS)
        tree = parse(code)
        found = check_calls(code, tree, bound, functions, inputs) if tree is not None else []
        found += misread(code, tree)
        if check == "calls" and (tree is not None or len(code) > MAX_READ_CHARS):
            return found
        validator = Validator(self._workers, DeclaredFunctions(functions, known), self.watchdog)
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
        """End every cell and every process."""
        super().close()
        self._workers.close()


def _covers(known: Diagnostic, other: Diagnostic) -> bool:
    """Return whether *known* reports the same as *other*, at a place around it."""
    outer, inner = known.span, other.span
    if inner is None or outer is None or known.code != other.code:
        return False
    end = (outer.end_line or outer.line, outer.end_column or outer.column)
    return (outer.line, outer.column) <= (inner.line, inner.column) <= end
