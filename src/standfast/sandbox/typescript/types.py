"""Type checks by the TypeScript compiler; if it is not installed, one diagnostic says so.

The compiler gets the unchanged code, with declarations of the functions that the code may call, of the
guest's built-in objects, and of the session's names, whose types are unknown. The checks that need no
compiler run first, and a position that they report is not reported again. Strict options are off, and
messages about types declared by earlier programs, which a session does not keep, are dropped.

Rule: the compiler is a third-party program. It runs in its own temporary directory, without our environment,
with a time limit. Versions 5 (on Node) and 7 (native) are called in the same way.
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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from standfast.errors import Code, Span
from standfast.model.code import Diagnostic, Severity
from standfast.ports.code_engine import CellFunctions
from standfast.sandbox.run_errors import by_line, diagnose
from standfast.sandbox.typescript.checks import check_script
from standfast.sandbox.typescript.source import Source, parse
from standfast.tools.stubs import overloads_of

VARIABLE: Final = "STANDFAST_TSC"
_TIMEOUT_S: Final = 30.0
_MAX_OUTPUT_CHARS: Final = 1_000_000
_MAX_REPORTED: Final = 30
_CELL: Final = "cell.ts"
_OPTIONS: Final = {
    "noEmit": True, "strict": False, "noImplicitAny": False, "target": "es2022", "lib": ["es2023"],
    "module": "esnext", "moduleResolution": "bundler", "moduleDetection": "force", "types": [],
    "skipLibCheck": True, "allowUnreachableCode": True, "allowUnusedLabels": True,
}  # fmt: skip
_MESSAGE: Final = re.compile(rf"^{re.escape(_CELL)}\((\d+),(\d+)\): error TS(\d+): (.*)(?:\n +(.*))*", re.M)
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_DECLARED: Final = re.compile(r"^declare (?:var|function|class) (\w+)", re.M)
_TYPE_MESSAGES: Final = frozenset({2304, 2315, 2503, 2552, 2694, 2709, 2749})
"""The numbers of messages about types that the compiler does not know, or knows only as values."""
_HARMLESS: Final = frozenset({1108, 1148, 2300, 2393, 2451, 2528, 2580, 2584, 2588, 2669, 7016})
"""The numbers of messages about code that is valid here: redeclared names, changed top-level constants."""


@dataclass(frozen=True, slots=True)
class CompilerMessage:
    """One message about the code. Lines count from 1, columns from 1 in UTF-16 units."""

    line: int
    column: int
    number: int
    text: str


class CompilerFailed(Exception):
    """The compiler could not be run, or did not finish in time."""


def check_types(
    code: str, *, bound: Collection[str], functions: CellFunctions, inputs: Collection[str]
) -> list[Diagnostic]:
    """Return the problems that `check_script` finds, and those that the compiler finds at other positions."""
    found = check_script(code, bound=bound, functions=functions, inputs=inputs)
    if any(item.code in (Code.SYNTAX_ERROR, Code.UNSUPPORTED_FEATURE) for item in found):
        return found
    tsc = find_tsc()
    if tsc is None:
        hint = f"install it with `npm install typescript`, or set {VARIABLE} to its path"
        return [*found, _unchecked("the TypeScript compiler is not installed", hint)]
    guest, own = _guest_declarations()
    hidden = {name for name in (*bound, *inputs) if _NAME.fullmatch(name)}
    called = [name for name in functions.names() if name not in hidden and name not in own]
    ambient = "\n".join([
        guest,
        *(overloads_of(functions.capability(name)) for name in called),
        *(f"declare var {name}: any; type {name} = any;" for name in sorted(hidden - own)),
    ])  # fmt: skip
    try:
        messages = compile_messages([tsc], code, ambient)
    except CompilerFailed as problem:
        return [*found, _unchecked(str(problem), None)]
    spans = [item.span for item in found if item.span]
    others = [
        item
        for item in _diagnostics(parse(code), messages)
        if not any(
            (span.line, span.column) <= by_line(item)
            and by_line(item) <= (span.end_line or span.line, span.end_column or span.column)
            for span in spans
        )
    ]
    return sorted([*found, *others[:_MAX_REPORTED]], key=by_line)


def _unchecked(why: str, hint: str | None) -> Diagnostic:
    message = f"syntax and calls were checked, types were not: {why}"
    return Diagnostic(severity=Severity.INFO, code=Code.TYPE_ERROR, message=message, hint=hint)


@cache
def _guest_declarations() -> tuple[str, frozenset[str]]:
    text = resources.files(__package__).joinpath("guest.d.ts").read_text("utf-8")
    return text, frozenset(_DECLARED.findall(text))


def _diagnostics(source: Source, messages: list[CompilerMessage]) -> Iterator[Diagnostic]:
    starts = source.starts
    for message in messages:
        if message.number in _HARMLESS:
            continue
        line = max(1, min(message.line, len(starts)))
        text = source.data[starts[line - 1] : starts[line] if line < len(starts) else None]
        utf16 = text.decode("utf-8", "replace").encode("utf-16-le")[: 2 * (message.column - 1)]
        start = starts[line - 1] + len(utf16.decode("utf-16-le", "ignore").encode())
        node = source.root.named_descendant_for_byte_range(start, start)
        if message.number in _TYPE_MESSAGES and node is not None and node.type != "identifier":
            continue
        span = source.between(start, start)
        if node is not None and start == node.start_byte < node.end_byte:
            span = source.span(node)
        else:
            span = Span(line=span.line, column=span.column)
        yield diagnose(Code.TYPE_ERROR, f"{message.text} (TS{message.number})", span)


# ── the compiler ─────────────────────────────────────────────────────────────────────────────────────


def find_tsc() -> str | None:
    """Return the path of the compiler: STANDFAST_TSC, or `tsc` among npm packages and on PATH."""
    if chosen := os.environ.get(VARIABLE):
        return shutil.which(chosen)
    places = [str(place / "node_modules" / ".bin" / "tsc") for place in (Path.cwd(), Path(sys.prefix))]
    return next(filter(None, map(shutil.which, [*places, "tsc"])), None)


def compile_messages(tsc: list[str], code: str, ambient: str) -> list[CompilerMessage]:
    """Return the compiler's messages about `code`; of a long message, the first and the last line."""
    with tempfile.TemporaryDirectory(prefix="standfast-tsc-") as name:
        directory = Path(name)
        project = {"compilerOptions": _OPTIONS, "files": [_CELL, "ambient.d.ts"]}
        (directory / "tsconfig.json").write_text(json.dumps(project), encoding="utf-8")
        (directory / "ambient.d.ts").write_text(ambient, encoding="utf-8")
        (directory / _CELL).write_bytes(code.encode())
        output = _run([*tsc, "--pretty", "false", "-p", "."], directory)
    return [
        CompilerMessage(
            int(found[1]), int(found[2]), int(found[3]), " ".join(filter(None, found.groups()[3:]))
        )
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
                os.killpg(compiler.pid, signal.SIGKILL)  # npm's tsc starts the compiler as a child process
    output = said.decode("utf-8", "replace")[:_MAX_OUTPUT_CHARS]
    if compiler.returncode and "error TS" not in output:
        raise CompilerFailed(f"the TypeScript compiler failed: {output.strip()[:200]}")
    return output
