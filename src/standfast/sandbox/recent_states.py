"""States of sessions that were just written or read, so that nobody reads them again.

A cell reads its session's state more than once, and mostly it is what the cell before it left: the very same
bytes. They are known by their identity, which says more than their content and is told at once.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Final, Generic, TypeVar

S = TypeVar("S")

MAX_STATES: Final = 32
MAX_BYTES: Final = 64 << 10
"""A larger state is not remembered."""


class RecentStates(Generic[S]):
    """A few small states by their bytes. Single operations on a dict, so that threads need no lock."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[bytes, S]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, data: bytes) -> S | None:
        known = self._known.get(id(data))
        return known[1] if known is not None and known[0] is data else None

    def remember(self, data: bytes, state: S) -> None:
        if len(data) > MAX_BYTES:
            return
        self._known[id(data)] = (data, state)
        while len(self._known) > MAX_STATES:
            with contextlib.suppress(KeyError):  # another thread was faster
                self._known.popitem(last=False)
