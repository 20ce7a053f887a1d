"""What guest code prints, under a cap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from standfast.ports.code_engine import CellOutput

FLOOD_FACTOR: Final = 16
"""Output this many times past the cap ends the run."""


class Output:
    """Collects printed text; drops what is past the cap and calls *on_flood* far past it."""

    def __init__(self, cap: int, on_flood: Callable[[], None], stdout: str = "", stderr: str = "") -> None:
        self._cap = cap
        self._on_flood = on_flood
        self.forget(stdout, stderr)

    def forget(self, stdout: str = "", stderr: str = "") -> None:
        """Start with this and nothing else."""
        self._parts: dict[str, list[str]] = {"stdout": [stdout], "stderr": [stderr]}
        self._bytes = len(stdout.encode()) + len(stderr.encode())
        self._kept = self._bytes
        self.truncated = False

    def __call__(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._bytes += len(data)
        room = self._cap - self._kept
        if len(data) <= room:
            self._parts[stream].append(text)
            self._kept += len(data)
        else:
            self.truncated = True
            if room > 0:
                kept = data[:room].decode("utf-8", "ignore")
                self._parts[stream].append(kept)
                self._kept = self._cap
        if self._bytes > FLOOD_FACTOR * self._cap:
            self._on_flood()

    def so_far(self) -> CellOutput:
        return CellOutput(self.stdout, self.stderr, self.truncated)

    @property
    def stdout(self) -> str:
        return "".join(self._parts["stdout"])

    @property
    def stderr(self) -> str:
        return "".join(self._parts["stderr"])
