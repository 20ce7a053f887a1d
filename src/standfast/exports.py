"""Lazy exports of a package: a public name is imported on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` for *package*.

    *homes* maps each module to the names that it defines, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    exported = sorted(home_of)

    def load(name: str) -> Any:
        if (home := home_of.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return exported, load, lambda: list(exported)
