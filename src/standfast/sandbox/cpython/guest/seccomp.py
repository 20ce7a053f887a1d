"""The filter of system calls, as a program of the kernel's packet filter, and how it is put on.

Theory of operation
-------------------
The kernel runs the program at every system call and does what it answers. It sees the number of the call and
its arguments, not what they point to: so `clone3`, whose flags are in memory, does not exist for the guest
(the C library falls back to `clone`), and rules about arguments are rules about numbers.

Rules
-----
1. Another architecture, or the second calling convention of x86_64, ends the process.
2. What is refused fails with EPERM, which Python shows as a PermissionError; nothing else is told.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping
from typing import Final

from . import syscalls

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
ERRNO: Final = 0x00050000
EPERM: Final = 1
ENOSYS: Final = 38

_ARCHES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The number that the kernel gives to an architecture, and its column in `syscalls`."""
_X32: Final = 0x40000000
_LD: Final = 0x20
_AND: Final = 0x54
_JEQ: Final = 0x15
_JGE: Final = 0x35
_RET: Final = 0x06
_NUMBER: Final = 0
_ARCH: Final = 4
_CLONE_THREAD: Final = 0x00010000
_CLONE_NAMESPACES: Final = 0x7E020000
_PR_NAMES: Final = (15, 16)
_FCNTL_NEVER: Final = (8, 10, 15, 1024, 1026)
"""Who gets the signals of a file, and which; leases, which make others wait for it; watching directories."""
_IOCTL_NEVER: Final = (0x5452, 0x8901, 0x8902)
"""The same for the signals of a socket."""
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

Instruction = tuple[int, int, int, int]


def filter_for(machine: str, pid: int, *, owners: bool) -> bytes:
    """The program for *machine*. *pid* is who it is for; *owners* refuses to change files by their path."""
    arch, column = _ARCHES[machine]
    refused: Mapping[str, tuple[int, int]] = {**syscalls.NEVER, **(syscalls.OWNERS if owners else {})}
    program = [*_preamble(arch), *_with_arguments(column, pid)]
    for numbers in refused.values():
        if numbers[column] >= 0:
            program += [(_JEQ, 0, 1, numbers[column]), (_RET, 0, 0, ERRNO | EPERM)]
    program.append((_RET, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *one) for one in program)


def knows(machine: str) -> bool:
    """Whether there is a filter for this architecture."""
    return machine in _ARCHES


def install(program: bytes) -> None:
    """Put the filter on this process, for ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges(libc)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls cannot be installed")


def no_new_privileges(libc: ctypes.CDLL) -> None:
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _preamble(arch: int) -> list[Instruction]:
    unknown = syscalls.LAST_KNOWN + 1
    return [
        (_LD, 0, 0, _ARCH),
        (_JEQ, 1, 0, arch),
        (_RET, 0, 0, KILL_PROCESS),
        (_LD, 0, 0, _NUMBER),
        (_JGE, 0, 1, _X32),
        (_RET, 0, 0, KILL_PROCESS),
        (_JGE, 0, 1, unknown),
        (_RET, 0, 0, ERRNO | ENOSYS),
    ]


def _with_arguments(column: int, pid: int) -> list[Instruction]:
    """The calls that are judged by what they are given. Each part leaves the number loaded."""
    return [
        (_JEQ, 0, 1, syscalls.CLONE3[column]),
        (_RET, 0, 0, ERRNO | ENOSYS),
        *_judge(syscalls.CLONE[column], _thread_only()),
        *_judge(syscalls.KILL[column], _first_argument_in(pid)),
        *_judge(syscalls.TGKILL[column], _first_argument_in(pid)),
        *_judge(syscalls.PRCTL[column], _first_argument_in(*_PR_NAMES)),
        *_judge(syscalls.PRLIMIT64[column], _looks_only()),
        *_judge(syscalls.FCNTL[column], _second_argument_not_in(*_FCNTL_NEVER)),
        *_judge(syscalls.IOCTL[column], _second_argument_not_in(*_IOCTL_NEVER)),
    ]


def _judge(number: int, verdict: list[Instruction]) -> list[Instruction]:
    return [(_JEQ, 0, len(verdict), number), *verdict]


def _thread_only() -> list[Instruction]:
    return [
        (_LD, 0, 0, _argument(0)),
        (_AND, 0, 0, _CLONE_THREAD),
        (_JEQ, 4, 0, 0),
        (_LD, 0, 0, _argument(0)),
        (_AND, 0, 0, _CLONE_NAMESPACES),
        (_JEQ, 0, 1, 0),
        (_RET, 0, 0, ALLOW),
        (_RET, 0, 0, ERRNO | EPERM),
    ]


def _first_argument_in(*values: int) -> list[Instruction]:
    tests = [(_JEQ, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_LD, 0, 0, _argument(0)), *tests, (_RET, 0, 0, ERRNO | EPERM), (_RET, 0, 0, ALLOW)]


def _second_argument_not_in(*values: int) -> list[Instruction]:
    tests = [(_JEQ, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [(_LD, 0, 0, _argument(1)), *tests, (_RET, 0, 0, ALLOW), (_RET, 0, 0, ERRNO | EPERM)]


def _looks_only() -> list[Instruction]:
    """Limits of this process may be read: the pid is 0 and there is no new limit."""
    checks = (_argument(0), _argument(2), _argument(2) + 4)
    body = [
        step for at, offset in enumerate(checks) for step in ((_LD, 0, 0, offset), (_JEQ, 0, 5 - 2 * at, 0))
    ]
    return [*body, (_RET, 0, 0, ALLOW), (_RET, 0, 0, ERRNO | EPERM)]


def _argument(index: int) -> int:
    """Where the lower half of an argument is; both architectures are little endian."""
    return 16 + 8 * index
