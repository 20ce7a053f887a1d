"""The TypeScript compiler, where it is installed.

Rules
-----
1. It is a foreign program: it runs in a temporary directory of its own, without our environment, and for a
   limited time.
2. Versions 5 (on Node) and 7 (native) are called alike: a project file, and messages as plain lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "STANDFAST_TSC"
_TIMEOUT_S: Final = 30.0
_CELL: Final = "cell.ts"
_MESSAGE: Final = re.compile(rf"^{re.escape(_CELL)}\((\d+),(\d+)\): error TS(\d+): (.*)(?:\n +(.*))*", re.M)
_MAX_OUTPUT_CHARS: Final = 1_000_000
_OPTIONS: Final = {
    "noEmit": True,
    "strict": False,
    "noImplicitAny": False,
    "target": "es2022",
    "lib": ["es2023"],
    "module": "esnext",
    "moduleResolution": "bundler",
    "moduleDetection": "force",
    "types": [],
    "skipLibCheck": True,
    "allowUnreachableCode": True,
    "allowUnusedLabels": True,
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message about the code. Lines count from 1, columns from 1 in UTF-16 units."""

    line: int
    column: int
    number: int
    text: str


class CompilerFailed(Exception):
    """The compiler could not be run, or did not answer in time."""


def find_tsc() -> list[str] | None:
    """Return the command of the compiler: STANDFAST_TSC, or `tsc` among npm packages and programs."""
    if chosen := os.environ.get(VARIABLE):
        found = shutil.which(chosen)
        return [found] if found else None
    for place in (Path.cwd(), Path(sys.prefix)):
        if found := shutil.which(str(place / "node_modules" / ".bin" / "tsc")):
            return [found]
    found = shutil.which("tsc")
    return [found] if found else None


def compile_messages(tsc: list[str], code: str, ambient: str) -> list[Message]:
    """Return the compiler's messages about `code`, given declarations of everything around it.

    A message of several lines keeps its first and its last, which says why.
    """
    with tempfile.TemporaryDirectory(prefix="standfast-tsc-") as name:
        directory = Path(name)
        project = {"compilerOptions": _OPTIONS, "files": [_CELL, "ambient.d.ts"]}
        (directory / "tsconfig.json").write_text(json.dumps(project), encoding="utf-8")
        (directory / "ambient.d.ts").write_text(ambient, encoding="utf-8")
        (directory / _CELL).write_bytes(code.encode())
        output = _run([*tsc, "--pretty", "false", "-p", "."], directory)
    return [
        Message(int(found[1]), int(found[2]), int(found[3]), " ".join(filter(None, (found[4], found[5]))))
        for found in _MESSAGE.finditer(output)
    ]


def _run(command: list[str], directory: Path) -> str:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory)}
    try:
        compiler = subprocess.Popen(  # noqa: S603 - the compiler that the user installed
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        raise CompilerFailed(f"the TypeScript compiler cannot be run: {problem}") from None
    with compiler:
        try:
            said, _ = compiler.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CompilerFailed(f"the TypeScript compiler took more than {_TIMEOUT_S:.0f} s") from None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(compiler.pid, signal.SIGKILL)  # npm's tsc is a program that starts the compiler
    output = said.decode("utf-8", "replace")[:_MAX_OUTPUT_CHARS]
    if compiler.returncode and "error TS" not in output:
        raise CompilerFailed(f"the TypeScript compiler failed: {output.strip()[:200]}")
    return output
