"""Who this process is and which leases it holds, so that another can tell whether the holder is still alive.

The holder of a lease is one turn in one process. Its name ends with the turn: a lease that could not be given
back, because the disk was full for instance, keeps nobody waiting here.
"""

from __future__ import annotations

import itertools
import os
import socket
from functools import cache
from typing import Final

_holders: Final[set[str]] = set()
_numbers: Final = itertools.count(1)


@cache
def machine() -> str:
    """This machine since its last boot."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        boot = "?"
    return f"{socket.gethostname()}/{boot}"


def this_process() -> str:
    """`machine:pid:start`, where the start time keeps a reused pid apart."""
    return _process(os.getpid())


@cache
def _process(pid: int) -> str:
    return f"{machine()}:{pid}:{_start_time(pid)}"


def new_owner(runtime: str) -> str:
    """Return a name for a turn that is about to run."""
    owner = f"{this_process()}/{runtime}.{next(_numbers)}"
    _holders.add(owner)
    return owner


def retire(owner: str) -> None:
    """Note that the turn of this name no longer runs here."""
    _holders.discard(owner)


def owner_is_dead(owner: str) -> bool:
    """Whether the turn of this name provably runs no more."""
    process = owner.rpartition("/")[0]
    if process == this_process():
        return owner not in _holders
    return is_dead(process)


def is_dead(owner: str) -> bool:
    """Whether *owner* provably no longer runs: same machine, at an earlier boot or without its process."""
    try:
        where, pid, started = owner.rsplit(":", 2)
        if where != machine():
            return _was_here_before(where)
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return started != "?" and _start_time(int(pid)) != started


def _was_here_before(where: str) -> bool:
    """Whether *where* is this machine at an earlier boot."""
    (host, _, boot), (our_host, _, our_boot) = where.rpartition("/"), machine().rpartition("/")
    return host == our_host and "?" not in (boot, our_boot) and boot != our_boot


def boot_id() -> str:
    """Which boot of which machine this is. Containers of one machine have the same, and the same clock."""
    host, _, boot = machine().rpartition("/")
    return host if boot == "?" else boot


def _start_time(pid: int) -> str:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return "gone" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return "?"


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
