"""TypeScript cells on QuickJS."""

from __future__ import annotations

from collections.abc import Collection

from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.ports.cell_stepper import StepperHost
from standfast.ports.code_engine import CellFunctions, Check, Touched
from standfast.sandbox.cell_lifecycle import SteppedCells, text_problem
from standfast.sandbox.paused_cell import PausedCell
from standfast.sandbox.quickjs.cell_stepper import QuickJsStepper
from standfast.sandbox.quickjs.state import decode_state, read_cell
from standfast.sandbox.quickjs.workers import QuickJsWorkers
from standfast.sandbox.typescript.checks import check_script, touched_names
from standfast.sandbox.typescript.types import check_types


class QuickJsCells(SteppedCells):
    """Runs the cells of many sessions, from many threads. The first cell starts the engine's processes."""

    language = Language.TYPESCRIPT

    def __init__(self, *, capacity: int = 8) -> None:
        self._workers = QuickJsWorkers(capacity)
        super().__init__(self._workers)

    def stepper(self, host: StepperHost, dump: bytes) -> QuickJsStepper:
        return QuickJsStepper(host, self._workers, dump)

    def former_cell(self, data: bytes) -> PausedCell:
        return read_cell(data)

    def prepare(self) -> None:
        """Compile the guest, which takes seconds where nothing is in the cache."""
        self._workers.prepare()

    def names(self, state: bytes) -> list[str]:
        return list(decode_state(state).names)

    def touched(self, code: str, names: Collection[str]) -> Touched:
        return Touched(touched_names(code, names) if text_problem(code) is None else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        if (problem := text_problem(code)) is not None:
            return [problem]
        bound = frozenset(self.names(state))
        look = check_script if check == "calls" else check_types
        return look(code, bound=bound, functions=functions, inputs=inputs)

    def close(self) -> None:
        super().close()
        self._workers.close()
