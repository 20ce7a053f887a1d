"""Python cells on CPython itself, in jailed processes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Sequence
from typing import Final

from standfast.errors import InvalidArgument
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.ports.code_engine import CellFunctions, CellRequest, Check, Touched
from standfast.sandbox.cpython.cell_run import CPythonCellRun
from standfast.sandbox.cpython.check import check_cell, untyped
from standfast.sandbox.cpython.guest_run import CellHost
from standfast.sandbox.cpython.jail import Jail, JailKind
from standfast.sandbox.cpython.state import decode_state
from standfast.sandbox.cpython.workers import Workers
from standfast.sandbox.monty.cell_check import names_touched
from standfast.sandbox.monty.syntax import parse
from standfast.sandbox.run_errors import cancelled_error
from standfast.sandbox.source_text import is_text, no_text, require_text
from standfast.sandbox.watchdog import Watchdog


class CPythonCells:
    """Runs the cells of many sessions, from many threads. The first cell starts processes.

    `packages` are import names of installed packages that guest code may use, read-only. `kind` asks for one
    kind of jail; without it the best one that the machine allows is taken.
    """

    language: Final = Language.PYTHON

    def __init__(
        self, *, capacity: int = 8, packages: Sequence[str] = (), kind: JailKind | None = None
    ) -> None:
        self._capacity = capacity
        self._packages = tuple(packages)
        self._kind = kind
        self._opening = threading.Lock()
        self._closed = False

    def open(self, request: CellRequest) -> CPythonCellRun:
        """A cell that is to be started. Code or a state that cannot be read is refused here."""
        require_text(request.code)
        return CPythonCellRun(request, self._started())

    def names(self, state: bytes) -> list[str]:
        """The names that a state binds."""
        known = decode_state(state)
        return list(known.names) if known else []

    def touched(self, code: str, names: Collection[str]) -> Touched:
        """Which of *names* the code reads."""
        tree = parse(code)
        return Touched(names_touched(tree, names) if tree is not None else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """Everything that is wrong with the code, found without running any of it."""
        if not is_text(code):
            return [no_text()]
        found = check_cell(code, frozenset(self.names(state)), functions, inputs, self._packages)
        return [*found, untyped()] if check == "types" else found

    def prepare(self) -> None:
        """Start a process before it is needed."""
        self._started().workers.prepare()

    def forget(self, key: str) -> None:
        """End the process that is kept warm for a session."""
        if "_host" in self.__dict__:
            self._host.workers.forget(key)

    def close(self) -> None:
        """End every cell and every process."""
        with self._opening:
            self._closed = True
            if "_host" not in self.__dict__:
                return
        for run in list(self._host.live):
            run.stop(cancelled_error())
            run.hand_back()  # nobody else reaps the process of a cell that stands
        self._host.watchdog.close()
        self._host.workers.close()

    def _started(self) -> CellHost:
        with self._opening:
            if self._closed:
                raise InvalidArgument("the sandbox is closed")
            return self._host

    @functools.cached_property
    def _host(self) -> CellHost:
        jail = Jail(self._kind, self._packages)
        return CellHost(Workers(jail, self._capacity), Watchdog(), self._packages)
