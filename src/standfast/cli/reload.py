"""Restarts a command whenever a Python file beside its APP changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

_LOOK_S = 0.5


def run_reloading(app: str | None) -> int:
    """Run this command without `--reload`, restarting it on changes, until it ends, Ctrl-C or SIGTERM."""
    words = [word for word in sys.argv[1:] if word != "--reload"]
    directory = (
        Path(app.partition(":")[0]).parent if app and app.partition(":")[0].endswith(".py") else Path()
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends the child too
    while True:
        seen = _times(directory)
        child = subprocess.Popen([sys.executable, "-m", "standfast", *words])  # noqa: S603
        try:
            while child.poll() is None and _times(directory) == seen:
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGTERM)
            return child.wait()
        if child.poll() is not None and _times(directory) == seen:
            return child.returncode
        child.send_signal(signal.SIGTERM)
        child.wait()


def _times(directory: Path) -> dict[str, float]:
    """Return the modification time of each Python file below *directory*."""
    found = (file for file in directory.rglob("*.py") if ".venv" not in file.parts)
    return {str(file): file.stat().st_mtime for file in found if file.exists()}
