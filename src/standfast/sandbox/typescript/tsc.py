"""The TypeScript compiler, where there is one.

Rules
-----
1. It is somebody else's program: it runs in a directory of its own that is deleted afterwards, without our
   environment, and for a limited time.
2. Versions 5 (on Node) and 7 (native) are asked in the same way: a project file, and messages as plain lines.
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
_LINE: Final = re.compile(rf"{re.escape(_CELL)}\((\d+),(\d+)\): error TS(\d+): (.*)")
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
    """One line of the compiler about the code. Lines count from 1, columns from 1 in UTF-16 units."""

    line: int
    column: int
    number: int
    text: str


class CompilerFailed(Exception):
    """The compiler could not be run, or did not answer in time."""


def find_tsc() -> list[str] | None:
    """How the compiler is called: as STANDFAST_TSC says, or where npm packages and programs are."""
    if chosen := os.environ.get(VARIABLE):
        found = shutil.which(chosen)
        return [found] if found else None
    for place in (Path.cwd(), Path(sys.prefix)):
        if found := shutil.which(str(place / "node_modules" / ".bin" / "tsc")):
            return [found]
    found = shutil.which("tsc")
    return [found] if found else None


def compile_messages(tsc: list[str], code: str, ambient: str) -> list[Message]:
    """What the compiler says about *code*, given declarations of what is there."""
    with tempfile.TemporaryDirectory(prefix="standfast-tsc-") as name:
        directory = Path(name)
        project = {"compilerOptions": _OPTIONS, "files": [_CELL, "ambient.d.ts"]}
        (directory / "tsconfig.json").write_text(json.dumps(project), encoding="utf-8")
        (directory / "ambient.d.ts").write_text(ambient, encoding="utf-8")
        (directory / _CELL).write_bytes(code.encode())
        return _messages(_run([*tsc, "--pretty", "false", "-p", "."], directory))


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
            _end(compiler)
    output = said.decode("utf-8", "replace")[:_MAX_OUTPUT_CHARS]
    if compiler.returncode and "error TS" not in output:
        raise CompilerFailed(f"the TypeScript compiler failed: {output.strip()[:200]}")
    return output


def _end(compiler: subprocess.Popen[bytes]) -> None:
    """End the compiler with the processes that it started: what npm installs is a program that starts it."""
    with contextlib.suppress(OSError):
        os.killpg(compiler.pid, signal.SIGKILL)


def _messages(output: str) -> list[Message]:
    """The messages about the code; what is said in several lines keeps its last, which says why."""
    found: list[Message] = []
    details: list[str] = []
    for line in output.splitlines():
        if start := _LINE.match(line):
            _explain(found, details)
            found.append(Message(int(start[1]), int(start[2]), int(start[3]), start[4]))
        elif line.startswith(" ") and found:
            details.append(line.strip())
    _explain(found, details)
    return found


def _explain(found: list[Message], details: list[str]) -> None:
    if found and details:
        last = found[-1]
        found[-1] = Message(last.line, last.column, last.number, f"{last.text} {details[-1]}")
    details.clear()
