"""The intents and outcomes of one run's calls, in the sandbox's store."""

from __future__ import annotations

from typing import Literal

from holdfast.model.call import SettledCall
from holdfast.ports.sandbox_store import SandboxStore
from holdfast.sandbox.run_order import RunOrder


class RunJournal:
    """A `CallJournal` under the run's id."""

    def __init__(self, store: SandboxStore, order: RunOrder) -> None:
        self._store = store
        self._order = order

    def intend(self, call_id: int, request_digest: str) -> None:
        self._store.intend(self._order.run_id, call_id, request_digest)

    def settle(self, call_id: int, settled: SettledCall) -> None:
        self._store.settle(self._order.run_id, call_id, settled)

    def found(self, call_id: int, request_digest: str) -> SettledCall | Literal[True] | None:
        return self._store.found(self._order.run_id, call_id, request_digest)
