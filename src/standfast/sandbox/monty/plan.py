"""What is to be run, and under what."""

from __future__ import annotations

from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty.program import Program, Site


class RunPlan:
    """What the engine is to run: the code, its limits, the session's names, and where it goes on."""

    __slots__ = (
        "borrowed", "filename", "inputs", "kept", "limits", "names", "paused_dump", "plain_keys", "program",
        "sites",
    )  # fmt: skip

    def __init__(
        self,
        *,
        program: Program,
        limits: SessionLimits,
        names: frozenset[str],
        sites: dict[str, list[Site]],
        inputs: dict[str, Json] | None = None,
        plain_keys: bool = True,
    ) -> None:
        self.program = program
        self.plain_keys = plain_keys and program.plain_keys
        """Whether neither the session nor the code can hash anything that has parts; see `plain_keys`."""
        self.limits = limits
        self.names = names
        self.sites = sites
        self.inputs = inputs
        self.paused_dump = b""
        self.filename = ""
        """What the engine calls the source of this run; known when it begins."""
        self.borrowed = list(inputs or ())
        """Inputs, whose names are given back when the run ends."""
        self.kept = [name for name in self.borrowed if name in self.names]
        """Names that had a value before the run and get it back."""
        if program.result_mode == "maybe" and "result" in names and "result" not in self.kept:
            self.kept.append("result")

    def standing(self, dump: bytes, filename: str, borrowed: list[str], kept: list[str]) -> RunPlan:
        """The same plan for a run that stands in the middle of this source."""
        self.paused_dump, self.filename = dump, filename
        self.borrowed, self.kept = borrowed, kept
        return self
