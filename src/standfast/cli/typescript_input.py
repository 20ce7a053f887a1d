"""TypeScript entries: when one is complete, and which names it binds.

No parser is used: an interactive session needs an answer at every line, even without the engine installed.
"""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_DECLARED: Final = re.compile(r"\b(?:const|let|var|function\*?|class|enum|namespace)\s+([A-Za-z_$][\w$]*)")
_PATTERN: Final = re.compile(r"\b(?:const|let|var)\s*[\[{]([^=]*)[\]}]\s*=")
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*")
_WAITS: Final = re.compile(r"(?:=>|&&|\|\||\?\?|[=,.?:*/%<|&^!~]|(?<!\+)\+|(?<!-)-)$")
"""Operators that an expression cannot end with."""
_REGEX_AFTER: Final = re.compile(
    r"(?:^|[=(,\[{};:!&|?+*%<>~^-]|\b(?:return|typeof|case|in|of|await|void))\s*$"
)
"""The text before a `/` that begins a regular expression."""

KEYWORDS: Final = (
    "async", "await", "break", "case", "catch", "class", "const", "continue", "default", "delete", "do",
    "else", "enum", "export", "extends", "false", "finally", "for", "function", "if", "import", "in",
    "instanceof", "interface", "let", "new", "null", "of", "return", "static", "super", "switch",
    "this", "throw", "true", "try", "type", "typeof", "undefined", "var", "void", "while", "with",
    "yield", "Array", "Boolean", "Date", "Error", "JSON", "Map", "Math", "Number", "Object", "Promise",
    "RegExp", "Set", "String", "Symbol", "console",
)  # fmt: skip


def is_complete(source: str) -> bool:
    """Return whether nothing is left open: no bracket, template, comment or operator at the end.

    A surplus closing bracket counts as complete: the sandbox reports it.
    """
    scan = _Scan(source)
    return scan.is_closed and not _WAITS.search(scan.code.rstrip())


def bound_names(source: str) -> set[str]:
    """Return the names that an entry declares, as far as they can be found without a parser."""
    code = _Scan(source).code
    names = set(_DECLARED.findall(code))
    for pattern in _PATTERN.findall(code):
        names.update(_NAME.findall(pattern))
    return names


class _Scan:
    """The source without comments and quoted text, and whether everything in it is closed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._open: list[str] = []
        self._unfinished = False
        self._parts: list[str] = []
        while self._at < len(source):
            char = source[self._at]
            if source.startswith("//", self._at):
                self._skip_to("\n", required=False)
            elif source.startswith("/*", self._at):
                self._skip_to("*/", required=True)
            elif char in "'\"":
                self._quoted(char)
            elif char == "`" or (char == "}" and self._open and self._open[-1] == "`}"):
                self._template(char)
            elif char == "/" and _REGEX_AFTER.search(source[: self._at].rpartition("\n")[2]):
                self._quoted("/")
            else:
                if char in _OPENING:
                    self._open.append(_OPENING[char])
                elif self._open and char == self._open[-1]:
                    self._open.pop()
                self._parts.append(char)
                self._at += 1
        self.code = "".join(self._parts)
        self.is_closed = not self._open and not self._unfinished

    def _skip_to(self, end: str, *, required: bool) -> None:
        found = self._source.find(end, self._at + 2)
        self._unfinished = self._unfinished or (required and found < 0)
        self._at = len(self._source) if found < 0 else found + (len(end) if required else 0)

    def _quoted(self, quote: str) -> None:
        """Skip a string or a regular expression, which ends with its line; a backslash continues a string."""
        source, place = self._source, self._at + 1
        while place < len(source) and source[place] not in (quote, "\n"):
            place += 2 if source[place] == "\\" else 1
        is_continued = (len(source) - len(source.rstrip("\\"))) % 2 == 1
        self._unfinished = self._unfinished or (place >= len(source) and is_continued)
        self._parts.append("''")
        self._at = place + 1

    def _template(self, char: str) -> None:
        """Skip a template to its end, or to the next expression in it."""
        if char == "}":
            self._open.pop()
        place = self._at + 1
        while place < len(self._source) and self._source[place] != "`":
            if self._source.startswith("${", place):
                self._open.append("`}")
                self._at = place + 2
                return
            place += 2 if self._source[place] == "\\" else 1
        self._unfinished = self._unfinished or place >= len(self._source)
        self._parts.append("''")
        self._at = place + 1
