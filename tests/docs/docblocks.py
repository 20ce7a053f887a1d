"""The fenced blocks of a Markdown page, and how each kind is executed.

```` ```python ````             the blocks of one page form one script, run in an empty directory
```` ```python title="x.py" ```` a file in that directory, also for the commands that follow it
```` ```console ````            `$ ` commands, run in order with bash, each followed by its expected output

A block that contains fences starts and ends with more backticks than they have.

In expected output, `...` matches any text. Ids (`apr_…`, `grt_…`, `snap_…`) stand for the id printed in their
place, there and in every later command. `# exit 1` after a command gives its expected exit status;
a command that is killed by signal 9 has the status 137 and prints `Killed`, as in an interactive shell.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import interpreters
import pytest

from standfast.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^(```+)(\w*) ?([^\n]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b(apr|grt|snap|run)_[0-9a-f]+\b")
_EXIT = re.compile(r"# exit (\d+)$")
_SHELL = re.compile(r"[|&;<>`$*~\\]|\A\w+=")
_ALONE = ("tour", "serve", "worker", "mcp", "new", "daemon", "acp")
"""Commands that start servers or other processes, or create projects; each runs in its own process."""
_FILE = re.compile(r'title="([\w.-]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is the line of the page on which its content starts."""

    language: str
    info: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Return the name of the file that holds this block, or None."""
        found = _FILE.match(self.info)
        return found[1] if found else None

    def write_to(self, directory: Path) -> None:
        """Write the block to its file in *directory*, if it has one."""
        if self.file is not None:
            compile(self.text, self.file, "exec")
            (directory / self.file).write_text(self.text, encoding="utf-8")


@dataclass(frozen=True)
class Command:
    """A command of a transcript and its expected output."""

    text: str
    output: str
    line: int

    @property
    def exit_status(self) -> int:
        found = _EXIT.search(self.text)
        return int(found[1]) if found else 0


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[2], found[3].strip(), found[4], text.count("\n", 0, found.start()) + 2)
        for found in _FENCE.finditer(text)
    ]


def commands(page: Path) -> list[Command]:
    return [step for step in steps(page) if isinstance(step, Command)]


def steps(page: Path) -> Iterator[Block | Command]:
    """Yield the files and the commands of a page, in the order in which a reader meets them."""
    for block in blocks(page):
        if block.language == "console":
            yield from _split_transcript(block)
        elif block.file is not None:
            yield block


def script(page: Path) -> str:
    """Return the Python blocks of a page as one script with the page's line numbers."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and not block.info:
            lines += [""] * (block.line - 1 - len(lines))
            lines += block.text.split("\n")
    return "\n".join(lines)


def run_script(page: Path, directory: Path, database_url: str) -> None:
    """Run a page's Python blocks in *directory*."""
    for block in blocks(page):
        block.write_to(directory)
    path = directory / f"{page.stem.replace('-', '_')}_snippets.py"
    path.write_text(script(page), encoding="utf-8")
    done = interpreters.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=directory,
        env=_environment(directory, database_url),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stdout}{done.stderr}"


class Shell:
    """Runs the commands of one page in one directory and remembers the ids that they print."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self._directory = directory
        self._database_url = database_url
        self._ids: dict[str, str] = {}
        (directory / "examples").symlink_to(ROOT / "examples")

    def check(self, command: Command) -> None:
        """Run a command; compare its status and its output with the expected ones."""
        text = _ID.sub(lambda found: self._ids.get(found[0], found[0]), command.text)
        words = text.split()
        is_plain = words[0] == "standfast" and words[1] not in _ALONE and not _SHELL.search(text)
        status, printed = self._run_here(text) if is_plain else self._run(text)
        if status == -signal.SIGKILL:
            status, printed = 128 + signal.SIGKILL, printed + "Killed\n"
        where = f"line {command.line}: {text}\n{printed}"
        assert status == command.exit_status, f"exit {status}, {where}"
        if command.output:
            self._compare(command.output, printed, where)

    def _run(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self._directory,
            env=_environment(self._directory, self._database_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout

    def _run_here(self, text: str) -> tuple[int, str]:
        """Run a command that needs no shell in this process, which has already imported Standfast."""
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        environment = _environment(self._directory, self._database_url)
        with (
            contextlib.chdir(self._directory),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.multiple(sys, stdin=io.StringIO(), stdout=printed, stderr=printed),
            pytest.raises(SystemExit) as ended,
        ):
            main(shlex.split(text, comments=True)[1:], prog_name="standfast")
        printed.seek(0)
        return int(ended.value.code or 0), printed.read()

    def _compare(self, expected: str, actual: str, where: str) -> None:
        pattern, names = self._pattern(expected)
        found = re.fullmatch(pattern, _trim(actual), re.DOTALL)
        assert found is not None, f"{where}\n--- does not match\n{expected}"
        self._ids.update({name: found[group] for group, name in names.items()})

    def _pattern(self, expected: str) -> tuple[str, dict[str, str]]:
        """Return the expected output as a regular expression, and which of its groups is which new id."""
        groups: dict[str, str] = {}
        parts: list[str] = []
        for piece in re.split(rf"({_ID.pattern.replace('(', '(?:')}|\.\.\.)", _trim(expected)):
            if piece == "...":
                parts.append(".*")
            elif not _ID.fullmatch(piece):
                parts.append(re.escape(piece))
            elif piece in self._ids:
                parts.append(re.escape(self._ids[piece]))
            elif piece in groups.values():
                parts.append(f"(?P={next(key for key, name in groups.items() if name == piece)})")
            else:
                group = f"id{len(groups)}"
                groups[group] = piece
                parts.append(
                    f"(?P<{group}>{piece.partition('_')[0]}_[0-9a-f]{{{len(piece.partition('_')[2])}}})"
                )
        return "".join(parts), groups


def _split_transcript(block: Block) -> Iterator[Command]:
    lines = block.text.rstrip("\n").split("\n")
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        text = "\n".join(lines[start : last + 1]).removeprefix("$ ")
        yield Command(text, "\n".join(lines[last + 1 : end]), block.line + start)


def _trim(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n")).rstrip()


def _environment(directory: Path, database_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STANDFAST_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DATABASE_URL": database_url,
        "STANDFAST_HOME": str(directory / "standfast-home"),
        "PYTHONUNBUFFERED": "1",  # the output of the two streams appears in order, as on a terminal
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
