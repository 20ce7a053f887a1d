"""What a monitor runs, and what it sees of the runtime's environment: enough to run programs, and no keys."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from standfast.errors import Code, OutsideError

MARK: Final = "STANDFAST_MONITOR"
"""The variable by which everything that a monitor started can be recognised."""

PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
)  # fmt: skip


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


def command_environment(extra: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of a command: what is passed on, then *extra*, then the mark."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **kept, **extra, MARK: token}
