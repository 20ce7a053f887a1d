"""What is to be run in a session, and under what."""

from __future__ import annotations

import secrets

from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.sandbox.snapshots import PausedRun


class RunOrder:
    """One run, as it was asked for. One that was parked goes on from `parked`, the engine's own bytes."""

    __slots__ = (
        "code", "inputs", "limits", "parked", "paused", "return_snapshot", "run_id_if_known",
        "session_id", "session_limits",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        code: str,
        limits: SessionLimits,
        inputs: dict[str, Json] | None = None,
        return_snapshot: bool = False,
    ) -> None:
        self.session_id = session_id
        self.code = code
        self.limits = limits
        self.session_limits = limits
        self.inputs = inputs
        self.return_snapshot = return_snapshot
        self.paused: PausedRun | None = None
        self.parked = b""
        self.run_id_if_known: str | None = None

    @classmethod
    def going_on(cls, session_id: str, run_id: str, paused: PausedRun, parked: bytes) -> RunOrder:
        """The order of a run that was parked."""
        order = cls(session_id, paused.code, paused.limits, return_snapshot=paused.return_snapshot)
        order.run_id_if_known, order.paused, order.parked = run_id, paused, parked
        return order

    @property
    def run_id(self) -> str:
        """Made when first asked for: most runs never need a name."""
        if self.run_id_if_known is None:
            self.run_id_if_known = new_run_id()
        return self.run_id_if_known


def new_run_id() -> str:
    return f"run_{secrets.token_hex(12)}"
