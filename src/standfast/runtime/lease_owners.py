"""Who holds leases: one name for each turn that runs in this process.

A name says which process it is of, so that others can tell whether that still runs. It ends with its turn: a
lease that could not be given back, because the disk was full for instance, keeps nobody waiting here.
"""

from __future__ import annotations

import itertools
from typing import Final

from standfast.runtime.process_identity import is_dead, this_process

_alive: Final[set[str]] = set()
_numbers: Final = itertools.count(1)


def new_owner(runtime: str) -> str:
    """A name for a turn that is about to run."""
    owner = f"{this_process()}/{runtime}.{next(_numbers)}"
    _alive.add(owner)
    return owner


def retire(owner: str) -> None:
    """The turn no longer runs here."""
    _alive.discard(owner)


def owner_is_dead(owner: str) -> bool:
    """Whether whoever had this name provably runs no more."""
    process = owner.rpartition("/")[0]
    if process == this_process():
        return owner not in _alive
    return is_dead(process)
