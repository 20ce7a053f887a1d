"""Keeps the engine from searching for a tracer that is not installed.

Whenever it is fed, the engine imports `opentelemetry`, so that a trace can go on in the guest. Where there is
no such package, searching for it takes longer than feeding: the search is answered at once, for the engine
alone.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TRACER: Final = "opentelemetry"
_feeding: set[int] = set()
_looking: Final = Lock()
_is_absent: bool | None = None


def untraced(feed: Callable[..., T], *args: Any, **options: Any) -> T:
    """Feed the engine."""
    if not (_look() if _is_absent is None else _is_absent):
        return feed(*args, **options)
    thread = get_ident()
    _feeding.add(thread)
    try:
        return feed(*args, **options)
    finally:
        _feeding.discard(thread)


class _Absent:
    """Tells whoever feeds the engine that the package is not there, and everybody else nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _TRACER and get_ident() in _feeding:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _look() -> bool:
    """Whether the package is missing; looked up once."""
    global _is_absent
    with _looking:
        if _is_absent is None:
            _is_absent = _TRACER not in sys.modules and importlib.util.find_spec(_TRACER) is None
            if _is_absent:
                sys.meta_path.insert(0, _Absent())
        return _is_absent
