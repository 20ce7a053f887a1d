"""What is to be run, and under what."""

from __future__ import annotations

import secrets

from holdfast.model.canonical import Json
from holdfast.model.limits import SessionLimits
from holdfast.sandbox.monty.program import Program, Site
from holdfast.sandbox.snapshots import PausedRun


class RunPlan:
    """One run: its code, its limits, the session's names, and where it goes on if it was parked."""

    __slots__ = (
        "borrowed", "filename", "inputs", "kept", "limits", "names", "paused", "paused_dump", "program",
        "return_snapshot", "run_id_if_known", "session_id", "sites",
    )  # fmt: skip

    def __init__(
        self,
        *,
        session_id: str,
        program: Program,
        limits: SessionLimits,
        names: frozenset[str],
        sites: dict[str, list[Site]],
        inputs: dict[str, Json] | None = None,
        return_snapshot: bool = False,
        all_inputs_end: bool = False,
    ) -> None:
        self.session_id = session_id
        self.program = program
        self.limits = limits
        self.names = names
        self.sites = sites
        self.inputs = inputs
        self.return_snapshot = return_snapshot
        self.paused: PausedRun | None = None
        self.paused_dump = b""
        self.run_id_if_known: str | None = None
        self.filename = ""
        """What the engine calls the source of this run; known when it begins."""
        self.borrowed = list(inputs or ()) if all_inputs_end else self._find_borrowed(list(inputs or ()))
        """Inputs whose names are given back when the run ends: all, or those that the code does not bind."""
        self.kept = self._find_kept()
        """Names that had a value before the run and get it back."""

    def going_on(self, paused: PausedRun, dump: bytes, run_id: str) -> RunPlan:
        """The same plan for a run that was parked."""
        self.paused, self.run_id_if_known = paused, run_id
        self.return_snapshot = paused.return_snapshot
        return self.standing(dump, paused.filename, self._find_borrowed(paused.input_names), paused.shadowed)

    def standing(self, dump: bytes, filename: str, borrowed: list[str], kept: list[str]) -> RunPlan:
        """The same plan for a run that stands in the middle of this source."""
        self.paused_dump, self.filename = dump, filename
        self.borrowed, self.kept = borrowed, kept
        return self

    @property
    def run_id(self) -> str:
        """Made when first asked for: most runs never need a name."""
        if self.run_id_if_known is None:
            self.run_id_if_known = new_run_id()
        return self.run_id_if_known

    @property
    def input_names(self) -> list[str]:
        return self.paused.input_names if self.paused else list(self.inputs or ())

    def _find_borrowed(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self.program.bound]

    def _find_kept(self) -> list[str]:
        kept = [name for name in self.borrowed if name in self.names]
        if self.program.result_mode == "maybe" and "result" in self.names and "result" not in kept:
            kept.append("result")
        return kept


def new_run_id() -> str:
    return f"run_{secrets.token_hex(12)}"
