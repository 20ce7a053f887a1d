"""Finds the chosen packages, which lie outside of the interpreter's own directories."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any


class ChosenPackages(importlib.abc.MetaPathFinder):
    """Knows packages by the file they begin with."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def install(files: Mapping[str, str]) -> None:
    sys.meta_path.append(ChosenPackages(files))
