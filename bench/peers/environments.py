"""Virtual environments of the other frameworks, one each, made from the pinned `requirements`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent.parent / ".cache" / "peers"
QUIET = {
    "AGNO_TELEMETRY": "false",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LOGFIRE_SEND_TO_LOGFIRE": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "unused",
    "OTEL_SDK_DISABLED": "true",
}
"""Settings that keep frameworks from sending anything to their vendors."""


def interpreter_for(framework: str) -> Path:
    """Return the interpreter that has `framework`, after installing it if its pinned versions changed."""
    requirements = HERE / "requirements" / f"{framework}.txt"
    if not requirements.exists():
        return Path(sys.executable)
    home = HOME / framework
    python, installed = home / "bin" / "python", home / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements.read_text():
        print(f"installing {framework} into {home.relative_to(HERE.parent.parent)}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--requirement", requirements]
        subprocess.run(install, check=True)
        installed.write_text(requirements.read_text())
    return python


def environment() -> dict[str, str]:
    """Return the variables for a measured process: no telemetry, and bytecode kept as in an installation."""
    return {**os.environ, **QUIET, "PYTHONDONTWRITEBYTECODE": ""}
