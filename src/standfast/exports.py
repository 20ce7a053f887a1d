"""Names that a package exports and loads when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Its source lists the names once: every `from home import name as name`, which it has for type checkers.
    """
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
    lines = [line.split()[:6] for line in loader.get_source(package).splitlines() if " import " in line]
    home_of = {line[3]: line[1] for line in lines if line[4:] == ["as", *line[3:4]]}
    exported = sorted(home_of)

    def load(name: str) -> Any:
        if (home := home_of.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return exported, load, lambda: list(exported)
