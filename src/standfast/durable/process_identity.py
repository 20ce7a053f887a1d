"""Names of processes by which one process can tell whether another is still alive.

Rule: a container counts as a machine of its own, because it cannot look up the processes of other containers,
even of those that have its host name. The number of its pid namespace follows the host name.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import Final

_OUTSIDE: Final = "pid:[4026531836]"
"""The pid namespace of processes outside of containers, which has the same number on every Linux."""


@cache
def machine() -> str:
    """Return this machine's host name, in a container with its pid namespace, and boot id."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        boot = "?"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = _OUTSIDE
    container = "" if namespace == _OUTSIDE else f"@{namespace[5:-1]}"
    return f"{socket.gethostname()}{container}/{boot}"


@cache
def process_name(pid: int) -> str:
    """Return `machine:pid:start`; the start time distinguishes processes that had the same pid."""
    return f"{machine()}:{pid}:{_start_time(pid)}"


def is_dead(process: str) -> bool:
    """Return whether *process* ran on this machine and has provably ended, for example by a reboot."""
    try:
        where, pid, started = process.rsplit(":", 2)
        if where != machine():
            (host, _, boot), (our_host, _, our_boot) = where.rpartition("/"), machine().rpartition("/")
            if "@" in host:  # a container of this name may run on several machines
                return False
            return host == our_host and "?" not in (boot, our_boot) and boot != our_boot
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return started != "?" and _start_time(int(pid)) != started


def boot_id() -> str:
    """Return an id of this machine's current boot. Containers on one machine share it, and the boot clock."""
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
