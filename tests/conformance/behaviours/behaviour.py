"""A behaviour: a sentence, the code that shows it in each language, and what must come of it.

Rules
-----
1. A cell of the table is an engine and a behaviour. It is filled (`ok`), refused with the code that the table
   says, or not applicable, because the behaviour is not of the engine's language. There is nothing else.
2. What an engine does wrong is no refusal: it is in `bugs`, and its cell is expected to fail until it is
   mended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from behaviours.stage import Stage

ENGINES: Final = {"monty": "python", "cpython": "python", "auto": "python", "quickjs": "typescript"}
"""Every column of the table with its language."""

_TELLS: Final = re.compile(r"(ModuleNotFound|Import|Attribute|Name|NotImplemented|Reference|Type)Error: .")
"""An exception of the language that says what is not there."""

Check = Callable[[Stage], None]
Texts = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One row. `py` and `ts` are the runs of one session, in their order; None: not of this language.

    `refused` are the engines that cannot do it, with the code that they answer with; `unpromised` those that
    do it otherwise and say so: their cell is not applicable. `fresh` behaviours need a session of their own;
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
        """What an engine is given, None if the behaviour is not one that it could have."""
        given = self.py if ENGINES[engine] == "python" else self.ts
        if engine in self.unpromised:
            return None
        return (given,) if isinstance(given, str) else given

    def cell(self, engine: str) -> str:
        """What the table says about an engine."""
        if self.texts(engine) is None:
            return "n/a"
        return f"refused: {self.refused[engine]}" if engine in self.refused else "ok"

    def show(self, stage: Stage) -> None:
        """See that an engine does what the table says."""
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
    """The last run has this value. *options* are those of the last run."""

    def check(stage: Stage) -> None:
        assert same(stage.last(**options).result, expected), (stage.ended.result, stage.ended.error)
        assert stage.ended.status == "ok", stage.ended.error

    return check


@dataclass(frozen=True)
class fails:
    """The last run ends with this error. What is not given is not looked at."""

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
    """Whether two values are the same JSON: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def sharing(*rows: Behaviour) -> list[Behaviour]:
    """Rows that do not mind what the others of their group have bound."""
    return [replace(row, fresh=False) for row in rows]
