"""A behaviour: a sentence, the code that shows it in each language, and the expected outcome.

Rules
-----
1. A cell of the table is an engine and a behaviour. It is supported (`ok`), refused with the code in the
   table, or not applicable, because the engine's language does not have the behaviour. There is nothing else.
2. An engine's fault is not a refusal: it is listed in `bugs`, and its cell is expected to fail until it is
   fixed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from behaviours.stage import Stage

ENGINES: Final = {"monty": "python", "cpython": "python", "auto": "python", "quickjs": "typescript"}
"""Every column of the table, with its language."""

_TELLS: Final = re.compile(r"(ModuleNotFound|Import|Attribute|Name|NotImplemented|Reference|Type)Error: .")
"""An exception of the language that names what is missing."""

Check = Callable[[Stage], None]
Texts = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One row. `py` and `ts` are the runs of one session, in order; None: not in this language.

    `refused` has the engines that do not support it, with their error code; `unpromised` those that behave
    differently and document it: their cell is not applicable. `fresh` behaviours need their own session;
    the others may share one where a session is expensive.
    """

    name: str
    check: Check
    py: Texts | None = None
    ts: Texts | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    bugs: Mapping[str, str] = field(default_factory=dict)
    unpromised: tuple[str, ...] = ()
    fresh: bool = True
    slow: bool = False

    def texts(self, engine: str) -> tuple[str, ...] | None:
        """Return the runs for an engine, or None if the behaviour does not apply to it."""
        given = self.py if ENGINES[engine] == "python" else self.ts
        if engine in self.unpromised:
            return None
        return (given,) if isinstance(given, str) else given

    def cell(self, engine: str) -> str:
        """Return the table's entry for an engine."""
        if self.texts(engine) is None:
            return "n/a"
        return f"refused: {self.refused[engine]}" if engine in self.refused else "ok"

    def show(self, stage: Stage) -> None:
        """Check that an engine behaves as the table says."""
        if stage.engine in self.refused:
            must_refuse(stage, self.refused[stage.engine])
        else:
            self.check(stage)


def must_refuse(stage: Stage, code: str) -> None:
    """Assert that the first run that fails has this code, and that the session stays usable."""
    for text in stage.texts:
        if (found := stage.run(text)).status != "ok":
            break
    assert found.error is not None, f"not refused: {found.result!r}"
    assert found.error.code == code, found.error
    assert code != "RUNTIME_ERROR" or _TELLS.match(found.error.message), found.error
    assert stage.value("1 + 1") == 2


def gives(expected: Any, **options: Any) -> Check:
    """Return a check that the last run has this value. *options* are those of the last run."""

    def check(stage: Stage) -> None:
        assert same(stage.last(**options).result, expected), (stage.ended.result, stage.ended.error)
        assert stage.ended.status == "ok", stage.ended.error

    return check


@dataclass(frozen=True)
class fails:
    """A check that the last run ends with this error. Fields that are not set are not compared."""

    code: str
    status: str | None = None
    message: str = ""
    hint: str = ""
    at: tuple[int, int | None] | Mapping[str, tuple[int, int | None]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, stage: Stage) -> None:
        ended = stage.last(**self.options)
        error = ended.error
        assert error is not None, ended.result
        assert (error.code, self.status or ended.status) == (self.code, ended.status), error
        assert self.message in error.message
        assert self.hint.lower() in (error.hint or "").lower(), error
        if self.at is not None:
            self._is_at(self.at[stage.language] if isinstance(self.at, Mapping) else self.at, stage)

    def _is_at(self, place: tuple[int, int | None], stage: Stage) -> None:
        assert stage.ended.error is not None
        span = stage.ended.error.span
        assert span is not None, "the error has no place"
        line, column = place
        assert (span.line, column or span.column) == (line, span.column), span


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def sharing(*rows: Behaviour) -> list[Behaviour]:
    """Return rows that are not affected by names that others of their group have bound."""
    return [replace(row, fresh=False) for row in rows]
