"""The intents and outcomes of one run's calls, in the sandbox's store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

from standfast.errors import StoreUnavailable
from standfast.model.call import SettledCall
from standfast.ports.sandbox_store import SandboxStore
from standfast.sandbox.run_order import RunOrder

_FIRST_RETRY_S: Final = 0.05
_PATIENCE_S: Final = 5.0
"""How long to go on trying to write an outcome. A run has no lease, but its limit of time goes on."""


class RunJournal:
    """A `CallJournal` under the run's id."""

    def __init__(
        self, store: SandboxStore, order: RunOrder, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._order = order
        self._sleep = sleep

    def intend(self, call_id: int, request_digest: str) -> None:
        self._store.intend(self._order.run_id, call_id, request_digest)

    def settle(self, call_id: int, settled: SettledCall) -> None:
        """Write the outcome of a call. One failed write does not make a known outcome unknown."""
        waited_s, pause_s = 0.0, _FIRST_RETRY_S
        while True:
            try:
                return self._store.settle(self._order.run_id, call_id, settled)
            except StoreUnavailable as error:
                if not error.retryable or waited_s >= _PATIENCE_S:
                    raise
            self._sleep(pause_s)
            waited_s, pause_s = waited_s + pause_s, 2 * pause_s

    def found(self, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        return self._store.found(self._order.run_id, call_id, request_digest)
