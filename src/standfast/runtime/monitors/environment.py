"""What a monitor's command sees of the runtime's environment: enough to run programs, and no keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

MARK: Final = "STANDFAST_MONITOR"
"""The variable by which everything that a monitor started can be recognised."""

PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
)  # fmt: skip


def command_environment(extra: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of a command: what is passed on, then *extra*, then the mark."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **kept, **extra, MARK: token}
