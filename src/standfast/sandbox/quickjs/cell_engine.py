"""TypeScript cells on QuickJS."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.ports.code_engine import CellFunctions, CellRequest, Check, Touched
from standfast.sandbox.quickjs.cell_run import CellHost, QuickJsCellRun
from standfast.sandbox.quickjs.state import decode_state
from standfast.sandbox.quickjs.workers import Workers
from standfast.sandbox.run_errors import cancelled_error
from standfast.sandbox.source_text import is_text, no_text, require_text
from standfast.sandbox.typescript.checks import check_script, touched_names
from standfast.sandbox.typescript.types import check_types
from standfast.sandbox.watchdog import Watchdog


class QuickJsCells:
    """Runs the cells of many sessions, from many threads. The first cell starts the engine's processes."""

    language: Final = Language.TYPESCRIPT

    def __init__(self, *, capacity: int = 8) -> None:
        self._workers = Workers(capacity)
        self._watchdog = Watchdog()
        self._host = CellHost(self._workers, self._watchdog, set())

    def prepare(self) -> None:
        """Have the guest compiled, which takes seconds where nothing is in the cache."""
        self._workers.prepare()

    def open(self, request: CellRequest) -> QuickJsCellRun:
        """A cell that is to be started. A state that cannot be read is refused here."""
        require_text(request.code)
        return QuickJsCellRun(request, self._host)

    def names(self, state: bytes) -> list[str]:
        """The names that a state binds."""
        return list(decode_state(state).names)

    def touched(self, code: str, names: Collection[str]) -> Touched:
        """Which of *names* the code reads."""
        return Touched(touched_names(code, names) if is_text(code) else {})

    def check(
        self, code: str, *, state: bytes, functions: CellFunctions, inputs: Collection[str], check: Check
    ) -> list[Diagnostic]:
        """Everything that is wrong with the code, found without running any of it."""
        if not is_text(code):
            return [no_text()]
        bound = frozenset(self.names(state))
        look = check_script if check == "calls" else check_types
        return look(code, bound=bound, functions=functions, inputs=inputs)

    def forget(self, key: str) -> None:
        """Let go of the worker that is kept warm for a session."""
        self._workers.forget(key)

    def close(self) -> None:
        """End every cell and every process."""
        for run in list(self._host.live):
            run.stop(cancelled_error())
        self._watchdog.close()
        self._workers.close()
