"""The languages guest code may be written in, and the engines that run them."""

from __future__ import annotations

import enum
from typing import Final


class Language(enum.StrEnum):
    PYTHON = "python"
    TYPESCRIPT = "typescript"


class EngineName(enum.StrEnum):
    """An engine for guest code. `auto` begins on Monty and moves to CPython for what Monty lacks."""

    MONTY = "monty"
    CPYTHON = "cpython"
    AUTO = "auto"
    QUICKJS = "quickjs"

    @property
    def language(self) -> Language:
        return Language.TYPESCRIPT if self is EngineName.QUICKJS else Language.PYTHON


def language_of(engine: str) -> Language | None:
    """Return the language of an engine that ships with Standfast; None for one of another package."""
    return EngineName(engine).language if engine in EngineName.__members__.values() else None


USUAL_ENGINE: Final = {Language.PYTHON: EngineName.MONTY, Language.TYPESCRIPT: EngineName.QUICKJS}
"""The engine that runs a language unless another is asked for."""
