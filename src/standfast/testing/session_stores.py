"""The contract of session stores, as tests: inherit the suite and give it a `store` fixture.

class TestMine(SessionStoreContract):
    @pytest.fixture
    def store(self) -> SessionStore:
        return MyStore(owner_is_dead=is_dead)
"""

from __future__ import annotations

import pytest

from standfast.ports.session_store import SessionStore
from standfast.testing.session_store_children import (
    ChildContract,
    CreationContract,
    PluginRecordsContract,
    SnapshotContract,
)
from standfast.testing.session_store_history import HistoryContract
from standfast.testing.session_store_journals import JournalContract, SurveyContract
from standfast.testing.session_store_prune import PruneContract
from standfast.testing.session_store_states import StateContract, StateRetentionContract
from standfast.testing.session_store_tasks import TaskContract, TriggerContract
from standfast.testing.session_store_turns import LeaseContract, TurnContract, TurnEndContract
from standfast.testing.session_store_waits import InputContract, WaitContract
from standfast.testing.session_values import is_dead

__all__ = ["SessionStoreContract", "is_dead"]


class SessionStoreContract(
    HistoryContract,
    StateContract,
    StateRetentionContract,
    TurnContract,
    LeaseContract,
    TurnEndContract,
    JournalContract,
    SurveyContract,
    InputContract,
    WaitContract,
    ChildContract,
    CreationContract,
    TaskContract,
    TriggerContract,
    PluginRecordsContract,
    SnapshotContract,
    PruneContract,
):
    """The rules of `SessionStore`. Every test gets its own store, which uses `is_dead`."""

    @pytest.fixture
    def store(self) -> SessionStore:
        raise NotImplementedError("give the suite a store")
