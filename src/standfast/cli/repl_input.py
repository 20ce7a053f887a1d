"""Entries of an interactive session: several lines where the language needs several, history, completion."""

from __future__ import annotations

import ast
import builtins
import codeop
import keyword
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from standfast.cli import typescript_input

_HISTORY_LINES = 2_000


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an interactive session knows of a language."""

    prompt: str
    is_complete: Callable[[str], bool]
    bound_names: Callable[[str], set[str]]
    words: tuple[str, ...]


class Entries:
    """Reads entries from standard input, a terminal or not. `None` is the end of it."""

    def __init__(self, grammar: Grammar | None = None, *, interactive: bool) -> None:
        self._grammar = grammar or GRAMMARS["python"]
        self._interactive = interactive

    def read(self) -> str | None:
        """The next entry. An interrupt throws away what was typed of it."""
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
        """One line in answer to a question; `None` if it was not answered (Ctrl-C, Ctrl-D).

        Rule: what was typed or pasted before the question was asked does not answer it.
        """
        if self._interactive:
            _forget_typed_ahead()
        try:
            answer = self._line(question)
        except EOFError:
            return None
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            return None
        if self._interactive and answer:
            _forget_last_in_history()
        return answer.strip()

    def _line(self, prompt: str) -> str:
        if self._interactive:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


def has_typed_ahead(wait_s: float) -> bool:
    """Whether more has been typed or pasted at the terminal, or is within *wait_s* seconds."""
    import select

    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def _forget_typed_ahead() -> None:
    """Throw away what was typed at the terminal and not read yet."""
    import termios

    with suppress(termios.error, ValueError, OSError):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def is_complete(source: str) -> bool:
    """Whether Python would run this now. What it would refuse counts as complete: the sandbox says why."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return compiler(source, "<repl>", "single") is not None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return True


def bound_names(source: str) -> set[str]:
    """The names that an entry binds at its top."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {name for statement in tree.body for name in _bound_by(statement)}


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


_PYTHON_WORDS = (*keyword.kwlist, *(name for name in dir(builtins) if not name.startswith("_")))
GRAMMARS = {
    "python": Grammar(">>> ", is_complete, bound_names, _PYTHON_WORDS),
    "typescript": Grammar(
        "> ", typescript_input.is_complete, typescript_input.bound_names, typescript_input.KEYWORDS
    ),
}


class Completer:
    """Completes names, and after `:` the words of the interactive session itself."""

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
        """What readline asks for: the match number *state*."""
        if state == 0:
            import readline

            start = readline.get_line_buffer()[: readline.get_begidx()]
            self._matches = self.matches(text, start)
        return self._matches[state] if state < len(self._matches) else None

    def matches(self, text: str, before: str) -> list[str]:
        """The words that begin with *text* and make sense after *before*."""
        if before == ":":
            return sorted(word for word in self._commands if word.startswith(text))
        if not text and not before.strip():
            return ["    "]
        known = {*self._words, *self._names()}
        return sorted(name for name in known if name.startswith(text)) if text else []


@contextmanager
def line_editing(history: Path, completer: Completer) -> Iterator[None]:
    """History and completion, where this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_completer(completer.complete)
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    _read_history(history)
    try:
        yield
    finally:
        _write_history(history)
        readline.set_completer(None)


def _read_history(history: Path) -> None:
    import readline

    readline.clear_history()
    with suppress(OSError):
        readline.read_history_file(history)


def _forget_last_in_history() -> None:
    """An answer to a question is no entry; nobody should find a `y` under the arrow keys."""
    with suppress(ImportError, ValueError):
        import readline

        readline.remove_history_item(readline.get_current_history_length() - 1)


def _write_history(history: Path) -> None:
    import readline

    readline.set_history_length(_HISTORY_LINES)
    with suppress(OSError):
        history.touch(mode=0o600)
        readline.write_history_file(history)
