"""Removal of secrets from records before they are written.

Hardly any record contains a secret, and searching each of its texts for all patterns would cost more than
writing it. So a text is first searched for the fixed parts of the patterns, and short texts without any are
cached: most records have the same ones. Only a suspicious record is decoded and cleaned, after the caller's
own function has changed it; one that cannot be cleaned is written without its body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.trace_record import TraceRecord
from standfast.tools.secret_finder import DEFAULT_PATTERNS, SecretFinder

Redactor = Callable[[TraceRecord], TraceRecord | None]
"""Returns the record to write, or None to omit it."""

REPLACEMENT: Final = "[redacted]"
_SHORTEST: Final = 4

_KEY_NAMES: Final = (
    "password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    "|authorization|cookie|credentials?"
)
_SECRET_KEY: Final = re.compile(rf"(?i).*(?:{_KEY_NAMES})\Z", re.DOTALL)
_SUSPICIOUS: Final = (
    "sk-", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "bearer",
    "-----begin",
)  # fmt: skip
"""Every text that matches a pattern contains one of these, in lower case."""

_SHORT: Final = 64
_REMEMBERED: Final = 4_096

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(TraceRecord).decode


class Redaction:
    """Finds and replaces secrets in records.

    Args:
        function: further changes to records.
        patterns: regular expressions of secrets besides the default ones.
        secrets: texts that are secret, such as the values of environment variables.
    """

    def __init__(
        self, function: Redactor | None = None, *, patterns: Sequence[str] = (), secrets: Sequence[str] = ()
    ) -> None:
        if any(len(one) < _SHORTEST for one in secrets):
            raise InvalidArgument(
                f"a secret is shorter than {_SHORTEST} characters", hint="it would be found in ordinary words"
            )
        self._function = function
        self._finder = SecretFinder([*DEFAULT_PATTERNS, *patterns], list(secrets), REPLACEMENT)
        self._always = bool(patterns or secrets)
        self._harmless: set[str] = set()

    def clean(self, record: TraceRecord) -> TraceRecord | None:
        """Return the record to write, None if it must be omitted."""
        line = self.line(record)
        return None if line is None else _decode(line)

    def line(self, record: TraceRecord) -> bytes | None:
        """Return the record to write as JSON, None if it must be omitted."""
        try:
            if self._function is not None:
                changed = self._function(record)
                if changed is None:
                    return None
                record = changed
            line = _encode(record)
            texts = (record.name, record.session_id, record.plugin_id, record.body)
            if not self._always and all(map(self._has_none, texts)):
                return line
            return _encode(self._finder.clean(msgspec.json.decode(line), _SECRET_KEY))
        except Exception as error:
            body = {"left_out": f"the record could not be redacted: {type(error).__name__}"}
            return _encode(msgspec.structs.replace(record, name=record.kind, plugin_id="", body=body))

    def _has_none(self, value: Json) -> bool:
        harmless = self._harmless
        if isinstance(value, str):
            return value in harmless or self._is_clean_text(value)
        if isinstance(value, dict):
            for key, one in value.items():
                if f"{key}:" not in harmless:
                    if _SECRET_KEY.match(key) is not None or not self._is_clean_text(key):
                        return False
                    self._remember(f"{key}:")
                if type(one) is not int and not self._has_none(one):
                    return False
            return True
        if isinstance(value, list):
            return all(map(self._has_none, value))
        return value is None or isinstance(value, (int, float))

    def _is_clean_text(self, text: str) -> bool:
        small = text.lower()
        return not any(word in small for word in _SUSPICIOUS) and self._remember(text)

    def _remember(self, text: str) -> bool:
        if len(text) <= _SHORT and len(self._harmless) < _REMEMBERED:
            self._harmless.add(text)
        return True
