"""Which process this is, so that another one can tell whether it is still alive."""

from __future__ import annotations

import os
import socket
from functools import cache


@cache
def machine() -> str:
    """Return the name of this machine since its last boot."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        boot = "?"
    return f"{socket.gethostname()}/{boot}"


@cache
def process_name(pid: int) -> str:
    """Return `machine:pid:start`, where the start time tells a reused pid apart."""
    return f"{machine()}:{pid}:{_start_time(pid)}"


def is_dead(process: str) -> bool:
    """Return whether a process of this machine provably no longer runs: gone, or of an earlier boot."""
    try:
        where, pid, started = process.rsplit(":", 2)
        if where != machine():
            (host, _, boot), (our_host, _, our_boot) = where.rpartition("/"), machine().rpartition("/")
            return host == our_host and "?" not in (boot, our_boot) and boot != our_boot
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, ValueError):
        return False
    return started != "?" and _start_time(int(pid)) != started


def boot_id() -> str:
    """Return which boot of which machine this is. Containers of one machine share it, and its clock."""
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
