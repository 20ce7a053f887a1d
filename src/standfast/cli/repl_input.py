"""Lines typed at a terminal: code entries, chat messages, answers to questions; history, completion.

A code entry ends where the language lets it end. A chat message ends with its line, but a paste is one
message. A terminal with bracketed paste tells readline where a paste begins and ends, and `input` returns all
of it. From other terminals the lines of a paste arrive like typed ones, only faster than a person types, so
after each line we check whether more has already arrived.
"""

from __future__ import annotations

import ast
import builtins
import codeop
import keyword
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from standfast.cli import typescript_input

_HISTORY_LINES = 2_000
_PASTE_S = 0.03


@dataclass(frozen=True, slots=True)
class Grammar:
    """The properties of a language that an interactive session needs."""

    prompt: str
    is_complete: Callable[[str], bool]
    bound_names: Callable[[str], set[str]]
    words: tuple[str, ...]


class EntryReader:
    """Reads entries from standard input, a terminal or not."""

    def __init__(self, grammar: Grammar | None = None, *, interactive: bool) -> None:
        self._grammar = grammar or GRAMMARS["python"]
        self._interactive = interactive

    def read(self) -> str | None:
        """Return the next entry, or None at the end of the input. Ctrl-C discards an unfinished entry."""
        lines: list[str] = []
        while True:
            try:
                lines.append(self._line("... " if lines else self._grammar.prompt))
            except EOFError:
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                lines.clear()
                continue
            entry = "\n".join(lines)
            if not entry.strip() or entry.startswith(":") or self._grammar.is_complete(entry):
                return entry

    def ask(self, question: str) -> str | None:
        """Read one line, None after Ctrl-C or Ctrl-D. Discard input typed before the question."""
        if self._interactive:
            import termios

            with suppress(termios.error, ValueError, OSError):
                termios.tcflush(sys.stdin, termios.TCIFLUSH)
        try:
            answer = self._line(question)
        except EOFError:
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            return None
        if self._interactive and answer:
            with suppress(ImportError, ValueError):
                import readline  # an answer is not an entry, so keep it out of the history

                readline.remove_history_item(readline.get_current_history_length() - 1)
        return answer.strip()

    def _line(self, prompt: str) -> str:
        if self._interactive:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


class ChatReader:
    """Reads messages. Lines that arrive together are one message; a trailing backslash continues a line.

    A line for which *is_command* is true is a message of its own.
    """

    def __init__(self, is_command: Callable[[str], bool]) -> None:
        self._is_command = is_command
        self._entries = EntryReader(interactive=True)
        self._ended = False
        if os.environ.get("TERM", "dumb") != "dumb":
            with suppress(ImportError):
                import readline

                if "libedit" not in (readline.__doc__ or ""):  # which does not support this setting
                    readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self) -> str:
        """Return the next message. Ctrl-C and Ctrl-D raise the errors of `input`."""
        if self._ended:
            raise EOFError
        lines = [input("> ")]
        if self._is_command(lines[0]):
            return lines[0].strip()
        try:
            while (pasted := bool(select.select([sys.stdin], [], [], _PASTE_S)[0])) or lines[-1].endswith(
                "\\"
            ):
                if not pasted:
                    lines[-1] = lines[-1][:-1]
                lines.append(input("… "))
        except EOFError:
            self._ended = True  # return the preceding lines first
        return "\n".join(lines).strip()

    def ask(self, question: str, prefilled: str = "") -> str | None:
        """Read one line in answer to a question, starting with *prefilled* text; None without an answer."""
        with suppress(ImportError):
            import readline

            readline.set_startup_hook(lambda: readline.insert_text(prefilled))
        try:
            answer = self._entries.ask(question)
        finally:
            with suppress(ImportError):
                import readline

                readline.set_startup_hook(None)
        if answer is None:
            sys.stdout.write("\n")
        return answer


def is_complete(source: str) -> bool:
    """Return whether Python would run *source* now, or reject it; the sandbox then reports why."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compiler(source, "<repl>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return True


def bound_names(source: str) -> set[str]:
    """Return the names that an entry binds at its top level."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
    return names


_PYTHON_WORDS = (*keyword.kwlist, *(name for name in dir(builtins) if not name.startswith("_")))
GRAMMARS = {
    "python": Grammar(">>> ", is_complete, bound_names, _PYTHON_WORDS),
    "typescript": Grammar(
        "> ", typescript_input.is_complete, typescript_input.bound_names, typescript_input.KEYWORDS
    ),
}


class Completer:
    """Completes names, and after `:` the commands of the interactive session."""

    def __init__(
        self,
        commands: Iterable[str],
        names: Callable[[], Iterable[str]],
        words: Iterable[str] = _PYTHON_WORDS,
    ) -> None:
        self._commands = tuple(commands)
        self._names = names
        self._words = tuple(words)
        self._matches: list[str] = []

    def complete(self, text: str, state: int) -> str | None:
        """Return match number *state* of *text*, as readline requests it."""
        if state == 0:
            import readline

            start = readline.get_line_buffer()[: readline.get_begidx()]
            self._matches = self.matches(text, start)
        return self._matches[state] if state < len(self._matches) else None

    def matches(self, text: str, before: str) -> list[str]:
        """Return the words that begin with *text* and can follow *before*."""
        if before == ":":
            return sorted(word for word in self._commands if word.startswith(text))
        if not text and not before.strip():
            return ["    "]
        known = {*self._words, *self._names()}
        return sorted(name for name in known if name.startswith(text)) if text else []


class SlashCompleter(Completer):
    """Completes the commands of a chat after `/`, and nothing else."""

    def matches(self, text: str, before: str) -> list[str]:
        return sorted(word for word in self._commands if word.startswith(text)) if before == "/" else []


@contextmanager
def line_editing(history: Path, completer: Completer) -> Iterator[None]:
    """Set up history and completion, if this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_completer(completer.complete)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    readline.clear_history()
    with suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_history_length(_HISTORY_LINES)
        with suppress(OSError):
            history.touch(mode=0o600)
            readline.write_history_file(history)
        readline.set_completer(None)
