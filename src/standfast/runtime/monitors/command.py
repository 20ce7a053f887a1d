"""What a monitor runs, and that it cannot be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from standfast.errors import Code, OutsideError


class CommandNotStarted(OutsideError):
    """A monitor's command cannot be run."""

    code = Code.IO_ERROR

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the command cannot be started: {why}", hint="look at `command`, `cwd` and PATH in `env`"
        )


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. A text is for the shell."""

    command: str | Sequence[str]
    cwd: str | None
    env: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        return ["/bin/sh", "-c", self.command] if isinstance(self.command, str) else list(self.command)
