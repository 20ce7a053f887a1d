"""A key that is used and never shown.

Rules
-----
1. No `repr`, `str` or format of a secret holds it, and it cannot be copied into a record or pickled.
2. Whatever is said about a call goes through `scrub` first.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn
from urllib.parse import quote, quote_plus

from standfast.errors import NotConfigured

_SHOWN: Final = "[key]"
_SHORTEST: Final = 8
"""A shorter key is a word that some local server wants to hear; to blot it out would hide nothing."""
_TELLING: Final = 16
"""So much of a key is too much. Less is how vendors name a key without telling it."""
_AFTER_A_CUT: Final = 8
"""What may follow a text that was cut off: an ellipsis, a quote, a bracket."""


class Secret:
    """A key, or none. `reveal` is for the one place that sends it."""

    __slots__ = ("_forms", "_key")

    def __init__(self, key: str | None) -> None:
        key = (key or "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise NotConfigured("the API key holds characters that no key has", hint="was it copied whole?")
        self._key = key
        self._forms = _forms_of(key) if len(key) >= _SHORTEST else ()

    def __bool__(self) -> bool:
        return bool(self._key)

    def __repr__(self) -> str:
        return f"Secret({_SHOWN if self._key else ''})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def reveal(self) -> str:
        return self._key

    def scrub(self, text: str) -> str:
        """The text without the key, in whatever form and case it is there, whole or cut off with the text."""
        clean, done = [], 0
        for start, end in sorted(span for form in self._forms for span in _spans(form, text)):
            if start >= done:
                clean += [text[done:start], _SHOWN]
            done = max(done, end)
        return "".join(clean) + text[done:]


def _forms_of(key: str) -> tuple[str, ...]:
    in_json = json.dumps(key)[1:-1]
    in_urls = (quote(key), quote(key, safe=""), quote_plus(key))
    return tuple({key, *in_urls, in_json, in_json.replace("/", "\\/"), html.escape(key), repr(key)[1:-1]})


def _spans(form: str, text: str) -> Iterator[tuple[int, int]]:
    """Where a form of the key is in the text, or its beginning with nothing behind it."""
    for found in re.finditer(re.escape(form[:_TELLING]), text, re.IGNORECASE):
        start = found.start()
        length = _in_common(form, text[start : start + len(form)])
        if length == len(form) or start + length >= len(text) - _AFTER_A_CUT:
            yield start, start + length


def _in_common(one: str, other: str) -> int:
    """How many characters two texts begin with alike, in any case."""
    pairs = zip(one, other, strict=False)
    return next(
        (place for place, (a, b) in enumerate(pairs) if a.lower() != b.lower()), min(len(one), len(other))
    )
