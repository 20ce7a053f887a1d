"""A TypeScript program as the JavaScript that the engine runs.

Theory of operation
-------------------
`read_script` parses the code once, refuses syntax that cannot be run, and writes JavaScript with the same
lines: types become blanks, declarations of the top level become names of the session. The engine evaluates
it as a global script in which `await` may be used at the top level; its value is that of its last expression.

Rules
-----
1. Each line of the source is the same line of the JavaScript. Columns stay as well, except after an edit;
   `Script.position` maps any place in the JavaScript to the source.
2. The engine counts columns in UTF-8 bytes; we count characters, from 1.
3. No code raises anything but `ScriptRefused`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Final

from standfast.errors import CallerError
from standfast.model.diagnostic import Diagnostic
from standfast.sandbox.typescript.edits import Edits, Moves
from standfast.sandbox.typescript.source import Source, Unreadable, line_starts, parse, place_of
from standfast.sandbox.typescript.stripper import Stripper
from standfast.sandbox.typescript.syntax import syntax_errors
from standfast.sandbox.typescript.top_level import RESULT, TopLevel, assigns_result

_SHORT_CHARS: Final = 20_000


class ScriptRefused(CallerError):
    """Code that cannot be run as it is written. `diagnostics` has all that was found, line by line."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        first = diagnostics[0]
        super().__init__(first.message, hint=first.hint, span=first.span)
        self.code = first.code
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class Script:
    """A program that can be run."""

    code: str
    javascript: str
    bound: frozenset[str]
    """The names that it binds at its top level."""
    binds_result: bool
    """Whether `result` is among them, or is assigned to without having been declared."""
    moves: Moves = field(repr=False)
    source: Source = field(repr=False, compare=False)

    def position(self, line: int, column: int) -> tuple[int, int]:
        """Return the place in the source of a place in `javascript`, as the engine reports it.

        The engine's columns count bytes, from 1; in the first line from 0, but it never says 0.
        """
        data = self.javascript.encode()
        starts = line_starts(data)
        line = max(1, min(line, len(starts)))
        end = starts[line] - 1 if line < len(starts) else len(data)
        if line > 1:
            column = max(column - 1, 0)
        elif column <= 1 and data[:1] not in (b" ", b"(", b"[", b";"):
            column = 0
        return self.source.place(self.moves.origin(min(starts[line - 1] + column, end)))

    def use_of(self, name: str, line: int = 1) -> tuple[int, int] | None:
        """Return the first place, from `line` on if there is one, at which the code uses `name`.

        The engine does not always report where it did not find a name.
        """
        found: tuple[int, int] | None = None
        wanted = re.compile(rf"(?<![\w$.]){re.escape(name)}(?![\w$])")
        for match in wanted.finditer(self.code):
            place = self.source.place(len(self.code[: match.start()].encode()))
            found = found or place
            if place[0] >= line:
                return place
        return found


def read_script(code: str) -> Script:
    """Return `code` as JavaScript; raise `ScriptRefused` with everything in it that cannot be run."""
    return _read_short(code) if len(code) <= _SHORT_CHARS else _read(code)


def _read(code: str) -> Script:
    try:
        source = parse(code)
    except Unreadable as problem:
        raise ScriptRefused([problem.diagnostic]) from None
    if not source.is_sound:
        raise ScriptRefused(syntax_errors(source))
    edits = Edits(source.data)
    top = TopLevel(source, edits)
    top.rewrite()
    stripper = Stripper(source, edits, top)
    stripper.strip()
    if refused := [*top.refused, *stripper.refused]:
        raise ScriptRefused(sorted(refused, key=place_of))
    javascript, moves = edits.apply()
    assigns = RESULT not in top.bound and RESULT in code and assigns_result(source)
    return Script(
        code=code,
        javascript=f"{javascript}\nvar {RESULT};" if assigns else javascript,
        bound=frozenset(top.bound | {RESULT} if assigns else top.bound),
        binds_result=assigns or RESULT in top.bound,
        moves=moves,
        source=source,
    )


_read_short: Final = functools.lru_cache(maxsize=64)(_read)
"""The same code is checked and then run."""
