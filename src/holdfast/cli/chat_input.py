"""Lines of a chat, typed at a terminal, and answers to questions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.cli.repl_input import Completer, Entries


class SlashCompleter(Completer):
    """Completes the commands of a chat after `/`, and nothing else."""

    def matches(self, text: str, before: str) -> list[str]:
        if before != "/":
            return []
        return sorted(word for word in self._commands if word.startswith(text))


class ChatLines:
    """Reads what is said. A line that ends with a backslash goes on in the next."""

    def __init__(self) -> None:
        self._entries = Entries(interactive=True)

    def read(self) -> str:
        """The next thing said. Ctrl-C and Ctrl-D raise what `input` raises for them."""
        lines = [input("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input("… "))
        return "\n".join(lines).strip()

    def ask(self, question: str, prefilled: str = "") -> str | None:
        """One line in answer to a question; `None` if it was not answered."""
        with _prefilled(prefilled):
            answer = self._entries.ask(question)
        if answer is None:
            sys.stdout.write("\n")
        return answer


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
