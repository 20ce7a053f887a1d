"""Python cells on CPython itself, in jailed processes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from standfast.errors import InvalidArgument
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.ports.cell_stepper import StepperHost
from standfast.ports.code_engine import CellFunctions, CellRequest, Check, Touched
from standfast.sandbox.cell_lifecycle import SteppedCell, SteppedCells, text_problem
from standfast.sandbox.cpython.analysis import UNTYPED, check_cell
from standfast.sandbox.cpython.cell_stepper import CPythonStepper
from standfast.sandbox.cpython.jail import Jail, JailKind
from standfast.sandbox.cpython.state import decode_state, read_cell
from standfast.sandbox.cpython.workers import CPythonWorkers
from standfast.sandbox.monty.cell_check import names_touched
from standfast.sandbox.monty.syntax import parse
from standfast.sandbox.paused_cell import PausedCell


class CPythonCells(SteppedCells):
    """Runs the cells of many sessions, from many threads. The first cell starts processes.

    `packages` are import names of installed packages that guest code may use, read-only. `kind` is the kind
    of jail; by default the best one that the machine allows.
    """

    language = Language.PYTHON

    def __init__(
        self, *, capacity: int = 8, packages: Sequence[str] = (), kind: JailKind | None = None
    ) -> None:
        super().__init__()
        self._capacity = capacity
        self._packages = tuple(packages)
        self._kind = kind
        self._opening = threading.Lock()
        self._workers: CPythonWorkers | None = None
        self._closed = False

    def open(self, request: CellRequest) -> SteppedCell:
        self._started()
        return super().open(request)

    def stepper(self, host: StepperHost, dump: bytes) -> CPythonStepper:
        return CPythonStepper(host, self._started(), self.watchdog, self._packages, dump)

    def former_cell(self, data: bytes) -> PausedCell:
        return read_cell(data)

    def names(self, state: bytes) -> list[str]:
        known = decode_state(state)
        return list(known.names) if known else []

    def touched(self, code: str, names: Collection[str]) -> Touched:
        tree = parse(code)
        return Touched(names_touched(tree, names) if tree is not None else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        if (problem := text_problem(code)) is not None:
            return [problem]
        found = check_cell(code, frozenset(self.names(state)), functions, inputs, self._packages)
        return [*found, UNTYPED] if check != "calls" else found

    def prepare(self) -> None:
        self._started().prepare()

    def close(self) -> None:
        """End every cell and every process."""
        with self._opening:
            self._closed = True
        super().close()
        if self._workers is not None:
            self._workers.close()

    def _started(self) -> CPythonWorkers:
        """Return the workers; the first call looks for a jail that this machine allows."""
        with self._opening:
            if self._closed:
                raise InvalidArgument("the sandbox is closed")
            if self._workers is None:
                self.slots = self._workers = CPythonWorkers(Jail(self._kind, self._packages), self._capacity)
            return self._workers
