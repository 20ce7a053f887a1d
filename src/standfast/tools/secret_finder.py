"""Finds secrets in text and JSON, including text that is still arriving.

Rule: text that is released in pieces, each up to `safe_length`, gives the same result as text that is
redacted as a whole. This holds for secrets and for the patterns in this module, in words of up to 4,096
characters; for other patterns it holds within a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json

DEFAULT_PATTERNS: Final = (
    r"sk-(?<![A-Za-z0-9]...)[A-Za-z0-9_-]{16,}",
    r"A[KS]IA(?<![A-Za-z0-9]....)[A-Z0-9]{16,}",
    r"gh[pousr]_(?<![A-Za-z0-9]....)[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"xox[a-z]-(?<![A-Za-z0-9].....)[A-Za-z0-9-]{10,}",
    r"AIza(?<![A-Za-z0-9]....)[A-Za-z0-9_-]{30,}",
    r"gsk_(?<![A-Za-z0-9]....)[A-Za-z0-9]{20,}",
    r"eyJ(?<![A-Za-z0-9]...)[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}",
    r"[Bb](?i:earer)\s+(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{8,}",
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"(?:[\s\S]{0,20000}?-----END [A-Z ]{0,40}PRIVATE KEY-----|(?:\\[nr]|[A-Za-z0-9+/=\s])*)",
)
"""Patterns of keys of common services, tokens and private keys.

Each begins with letters, for a fast search.
"""

_INK: Final = "".join(map(chr, range(0x21, 0x7F)))
"""The characters of keys: printable ASCII without spaces."""

_LONGEST_KEY: Final = 4_096
_BEARER: Final = re.compile(r"[Bb](?i:earer)\s*\Z")
_PEM_BEGIN: Final = re.compile(r"-----BEGIN [A-Z ]{0,55}(?:PRIVATE KEY-----|-{0,5}\Z)")
_PEM_END: Final = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")


class SecretFinder:
    """Secrets and patterns of secrets, and the text that replaces them."""

    def __init__(self, patterns: Sequence[str], secrets: Sequence[str], replacement: str) -> None:
        for name, given in (("patterns", patterns), ("secrets", secrets)):
            if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
                raise InvalidArgument(f"{name} of plugin 'redact' is not a list of strings")
        if not isinstance(replacement, str):
            raise InvalidArgument("replacement of plugin 'redact' is not a string")
        if any(len(secret) < 4 for secret in secrets):
            problem = "a secret of plugin 'redact' is shorter than 4 characters"
            raise InvalidArgument(problem, hint="use a longer one, which does not occur in ordinary words")
        self._replacement = replacement
        forms = {form for one in secrets for form in (one, msgspec.json.encode(one).decode()[1:-1])}
        self._secrets = sorted(forms)  # also as JSON writes them
        self._searched = [re.compile(re.escape(one)) for one in self._secrets] + [*map(_pattern, patterns)]
        self._by_line = not set(patterns) <= set(DEFAULT_PATTERNS)

    def clean_text(self, text: str) -> str:
        """Return the text with each secret replaced; overlapping secrets count as one."""
        clean, done = [], 0
        for start, end in sorted(self._spans(text)):
            if start >= done:
                clean += [text[done:start], self._replacement]
            done = max(done, end)
        return "".join(clean) + text[done:] if done else text

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        for pattern in self._searched:
            for found in pattern.finditer(text):
                if found[0]:
                    yield found.span()

    def clean(self, value: Json, secret_names: re.Pattern[str] | None = None) -> Json:
        """Return JSON without secrets, also in keys; the value of a key in *secret_names* is a secret."""
        if isinstance(value, str):
            return self.clean_text(value)
        if isinstance(value, list):
            return [self.clean(one, secret_names) for one in value]
        if not isinstance(value, dict):
            return value
        made: dict[str, Json] = {}
        for key, one in value.items():
            name = free = self.clean_text(key)
            number = 1
            while free in made:  # two keys that are equal once redacted
                number += 1
                free = f"{name} {number}"
            is_secret = secret_names is not None and one not in (None, "") and secret_names.match(key)
            made[free] = self._replacement if is_secret else self.clean(one, secret_names)
        return made

    def safe_length(self, text: str) -> int:
        """Return how many characters of a text can be shown before more of it has arrived."""
        word = len(text) - len(text.rstrip(_INK))
        end = len(text) - min(word, _LONGEST_KEY)
        if self._by_line:
            end = min(end, text.rfind("\n") + 1)
        for secret in self._secrets:  # the end of the text may be the beginning of a secret
            most = min(len(secret) - 1, len(text))
            begun = next((count for count in range(most, 0, -1) if text.endswith(secret[:count])), 0)
            end = min(end, len(text) - begun)
        if (bearer := _BEARER.search(text, 0, end)) is not None:
            end = bearer.start()
        closed = max((found.end() for found in _PEM_END.finditer(text)), default=0)
        if (key := _PEM_BEGIN.search(text, closed)) is not None:
            end = min(end, key.start())
        return self._outside(text, end)

    def _outside(self, text: str, end: int) -> int:
        """Return the last position up to *end* that is not inside a secret."""
        if end == 0:
            return 0
        inside = [start for start, stop in self._spans(text) if start < end < stop]
        return self._outside(text, min(inside)) if inside else end


def _pattern(given: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(given)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidArgument(f"{given!r} is not a regular expression: {error}") from None
    if compiled.search("") is not None:
        raise InvalidArgument(f"the pattern {given!r} matches an empty string, and so every text")
    return compiled
