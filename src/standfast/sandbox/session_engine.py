"""What sessions ask of whatever runs their code.

Theory of operation
-------------------
A session has a state, which only its engine understands: a value here, bytes in the store, None for a new
session. A run is ordered, driven until it has ended or waits for a person, and left when what came of it is
stored. The engine may then keep its worker warm for the session.

There are two kinds: Monty's own (`monty.session_engine`), which is as fast as it gets, and `cell_sessions`,
which runs every `CodeEngine`.

Rules
-----
1. Making an engine starts no process. One that cannot run here is refused when it is made.
2. A run that is opened is left, whatever happens. `stop` alone may come from another thread.
3. The state is replaced by whoever stores it, after the run has ended. Until then it is the state before.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from standfast.errors import ErrorObject
from standfast.model.approval import Approval
from standfast.model.call import ExternalCallRecord
from standfast.model.canonical import Json
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.sandbox.pump import Driven
from standfast.sandbox.run_calls import RunHost
from standfast.sandbox.run_order import RunOrder
from standfast.sandbox.snapshots import PausedRun


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A run is over. If it `changed` its session, `state` is the session's state now.

    After a *hard* stop the session is as it was before. `notes` are what the engine tells about the run.
    """

    value: Json = None
    error: ErrorObject | None = None
    hard: bool = False
    changed: bool = False
    state: Any = None
    records: dict[int, ExternalCallRecord] = {}
    calls_made: int = 0
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    wall_used_ms: int = 0
    memory_peak_bytes: int | None = None
    instructions: int | None = None
    notes: tuple[str, ...] = ()


class Parked(msgspec.Struct, frozen=True):
    """A run waits for a person: the engine's bytes, and what else must be known to continue it."""

    parked: bytes
    paused: PausedRun


class SessionRun(Protocol):
    """One run of a session."""

    def drive(self, decided: dict[int, Approval]) -> Driven[Ended | Parked]:
        """Run to the end. *decided* are decisions, by call, for a run that was parked."""

    def stop(self, error: ErrorObject) -> None:
        """End the run with *error*, wherever it stands. Harmless once it has ended."""

    def leave(self, version: object) -> None:
        """Let go of the worker. The session is at *version* now; None if that could not be stored."""


class SessionEngine(Protocol):
    """Runs the code of sessions. Blocking; used from many threads."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Names the build: what another one has stored is refused."""

    @property
    def language(self) -> Language: ...

    def decode(self, data: bytes) -> Any:
        """A state that was stored; None if *data* is empty."""

    def encode(self, state: Any) -> bytes:
        """A state as it is stored; empty for None."""

    def before(self, parked: bytes) -> Any:
        """The state that the session of a parked run had before it, and has."""

    def open(self, order: RunOrder, state: Any, version: object, host: RunHost) -> SessionRun:
        """A run from this state, which has this version here. Waits for a free worker."""

    def check(self, code: str, state: Any, inputs: Collection[str], timeout_ms: int) -> list[Diagnostic]:
        """Everything that is wrong with the code, found without running any of it."""

    def forget(self, session_id: str) -> None:
        """Drop what is kept warm for a session."""

    def close(self) -> None:
        """End the engine's processes."""
