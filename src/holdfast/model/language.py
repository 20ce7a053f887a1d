"""The languages guest code may be written in."""

from __future__ import annotations

import enum


class Language(enum.StrEnum):
    PYTHON = "python"
    TYPESCRIPT = "typescript"
