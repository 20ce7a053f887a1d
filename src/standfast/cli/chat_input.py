"""Messages of a chat, typed or pasted at a terminal, and answers to questions.

Theory of operation
-------------------
A terminal that knows bracketed paste tells readline where a paste begins and ends, and `input` returns the
whole of it, line breaks included. From any other terminal the lines of a paste come like typed ones, only
faster. So after each line we look whether more has arrived already: nobody types that fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from standfast.cli.repl_input import Completer, Entries, has_typed_ahead

_PASTE_S: Final = 0.03


class SlashCompleter(Completer):
    """Completes the commands of a chat after `/`, and nothing else."""

    def matches(self, text: str, before: str) -> list[str]:
        if before != "/":
            return []
        return sorted(word for word in self._commands if word.startswith(text))


class ChatLines:
    """Reads messages. Lines that arrive together are one message; a backslash at its end continues a line.

    *is_command* tells lines that stand alone, whatever was typed behind them.
    """

    def __init__(self, is_command: Callable[[str], bool]) -> None:
        self._is_command = is_command
        self._entries = Entries(interactive=True)
        self._ended = False
        _ask_for_bracketed_paste()

    def read(self) -> str:
        """The next message. Ctrl-C and Ctrl-D raise what `input` raises for them."""
        if self._ended:
            raise EOFError
        lines = [input("> ")]
        if self._is_command(lines[0]):
            return lines[0].strip()
        try:
            while (pasted := has_typed_ahead(_PASTE_S)) or lines[-1].endswith("\\"):
                if not pasted:
                    lines[-1] = lines[-1][:-1]
                lines.append(input("… "))
        except EOFError:
            self._ended = True  # what came before it is said first
        return "\n".join(lines).strip()

    def ask(self, question: str, prefilled: str = "") -> str | None:
        """One line in answer to a question; `None` if it was not answered."""
        with _prefilled(prefilled):
            answer = self._entries.ask(question)
        if answer is None:
            sys.stdout.write("\n")
        return answer


def _ask_for_bracketed_paste() -> None:
    """Let the terminal mark what is pasted. Python has this switched off; libedit does not know it."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return
    with suppress(ImportError):
        import readline

        if "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")


@contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Let the line begin with *text*, to be edited, where this Python has readline."""
    if not text:
        yield
        return
    with suppress(ImportError):
        import readline

        readline.set_startup_hook(lambda: readline.insert_text(text))
        try:
            yield
        finally:
            readline.set_startup_hook(None)
        return
    yield
