"""Processes that were left by a runtime which is gone: found by what they carry, and ended.

Rules
-----
1. A process is ended only if it carries the mark of the monitor in its environment, or descends from one that
   does. The mark is random, so no other process that was given an old pid is ever meant.
2. Who is killed is held by a handle and looked at once more, so that its pid cannot change hands meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from standfast.durable.process_identity import machine
from standfast.model.limits import U64
from standfast.runtime.monitors.command import MARK

_ROUNDS: Final = 200
_PAUSE_S: Final = 0.005


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor of a command, and the token that everything below it carries."""

    machine: str
    pid: U64
    started: str
    token: str


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: str


def mark_of(pid: int, token: str) -> ProcessMark:
    found = _look_at(pid)
    return ProcessMark(machine=machine(), pid=pid, started=found.started if found else "?", token=token)


def is_alive(mark: ProcessMark) -> bool:
    """Whether the supervisor still is that very process."""
    found = _look_at(mark.pid) if mark.machine == machine() else None
    return found is not None and found.started == mark.started and _carries(mark.pid, mark.token)


def end_orphans(mark: ProcessMark) -> int:
    """Kill what still runs of a monitor on this machine; how many there were. It blocks."""
    killed: set[int] = set()
    for _ in range(_ROUNDS if mark.machine == machine() else 0):
        found = _left_of(mark)
        if not found:
            break
        # Its supervisor comes last: as long as it lives, nobody can slip out from under it.
        for process in [one for one in found if one.pid != mark.pid] or found:
            _kill(process)
            killed.add(process.pid)
        time.sleep(_PAUSE_S)
    return len(killed)


def marked(token: str) -> list[int]:
    """The pids of the processes that carry a token."""
    return [process.pid for process in _processes() if _carries(process.pid, token)]


def _left_of(mark: ProcessMark) -> list[_Process]:
    everybody = {process.pid: process for process in _processes()}
    chosen = {pid for pid in everybody if _carries(pid, mark.token)}
    grown = -1
    while grown != len(chosen):
        grown = len(chosen)
        chosen |= {process.pid for process in everybody.values() if process.parent in chosen}
    return [everybody[pid] for pid in chosen - {os.getpid()}]


def _processes() -> Iterable[_Process]:
    names = os.listdir("/proc") if sys.platform == "linux" else []
    seen = (_look_at(int(name)) for name in names if name.isdigit())
    return [process for process in seen if process is not None]


def _look_at(pid: int) -> _Process | None:
    """A process that lives; None if it is gone or only its exit code is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].decode().split()
        return None if fields[0] in "ZX" else _Process(pid, int(fields[1]), fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _carries(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={token}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _kill(process: _Process) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if _same(process):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _same(process: _Process) -> bool:
    now = _look_at(process.pid)
    return now is not None and now.started == process.started
