"""The filter of system calls, as a program for the kernel's packet filter, and how it is installed.

Theory of operation
-------------------
The kernel runs the program at every system call and obeys its answer. The program sees the number of the call
and its arguments, but no memory: so `clone3`, whose flags are in memory, does not exist for the guest (the C
library falls back to `clone`), and rules about arguments are rules about numbers.

Rules
-----
1. Another architecture, or the second calling convention of x86_64, ends the process.
2. A refused call fails with EPERM, which Python shows as a PermissionError.
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
"""Signals of a file; leases, which make other processes wait for it; watching directories."""
_IOCTL_NEVER: Final = (0x5452, 0x8901, 0x8902)
"""The same for the signals of a socket."""
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2

Instruction = tuple[int, int, int, int]
"""Operation, how many instructions to skip if true and if false, operand."""
_ALLOW_CALL: Final[Instruction] = (_RET, 0, 0, ALLOW)
_REFUSE_CALL: Final[Instruction] = (_RET, 0, 0, ERRNO | EPERM)
_NO_SUCH_CALL: Final[Instruction] = (_RET, 0, 0, ERRNO | ENOSYS)
_END_PROCESS: Final[Instruction] = (_RET, 0, 0, KILL_PROCESS)


def filter_for(machine: str, pid: int, *, owners: bool) -> bytes:
    """Return the program for the process `pid`; `owners` refuses to change files by their path."""
    arch, column = _ARCHES[machine]
    refused: Mapping[str, tuple[int, int]] = {**syscalls.NEVER, **(syscalls.OWNERS if owners else {})}
    program = [
        *((_LD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), _END_PROCESS),
        *((_LD, 0, 0, _NUMBER), (_JGE, 0, 1, _X32), _END_PROCESS),
        *((_JGE, 0, 1, syscalls.LAST_KNOWN + 1), _NO_SUCH_CALL),
        *_by_arguments(column, pid),
    ]
    for numbers in refused.values():
        if numbers[column] >= 0:
            program += [(_JEQ, 0, 1, numbers[column]), _REFUSE_CALL]
    return b"".join(struct.pack("=HBBI", *one) for one in (*program, _ALLOW_CALL))


def knows(machine: str) -> bool:
    """Whether there is a filter for this architecture."""
    return machine in _ARCHES


def install(program: bytes) -> None:
    """Install the filter in this process, for the rest of its life."""
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges(libc)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls cannot be installed")


def no_new_privileges(libc: ctypes.CDLL) -> None:
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _by_arguments(column: int, pid: int) -> list[Instruction]:
    """Return the rules for calls that are judged by their arguments. Each leaves the call's number loaded."""
    flags, limits = _argument(0), (_argument(0), _argument(2), _argument(2) + 4)
    threads_only = [
        *((_LD, 0, 0, flags), (_AND, 0, 0, _CLONE_THREAD), (_JEQ, 4, 0, 0)),
        *((_LD, 0, 0, flags), (_AND, 0, 0, _CLONE_NAMESPACES), (_JEQ, 0, 1, 0)),
        *(_ALLOW_CALL, _REFUSE_CALL),
    ]
    # Limits of this process may be read: the pid is 0, and there is no new limit.
    reads_only: list[Instruction] = []
    for at, offset in enumerate(limits):
        reads_only += [(_LD, 0, 0, offset), (_JEQ, 0, 5 - 2 * at, 0)]
    rules = (
        (syscalls.CLONE3, [_NO_SUCH_CALL]),
        (syscalls.CLONE, threads_only),
        (syscalls.KILL, _if_argument(0, (pid,), _ALLOW_CALL, _REFUSE_CALL)),
        (syscalls.TGKILL, _if_argument(0, (pid,), _ALLOW_CALL, _REFUSE_CALL)),
        (syscalls.PRCTL, _if_argument(0, _PR_NAMES, _ALLOW_CALL, _REFUSE_CALL)),
        (syscalls.PRLIMIT64, [*reads_only, _ALLOW_CALL, _REFUSE_CALL]),
        (syscalls.FCNTL, _if_argument(1, _FCNTL_NEVER, _REFUSE_CALL, _ALLOW_CALL)),
        (syscalls.IOCTL, _if_argument(1, _IOCTL_NEVER, _REFUSE_CALL, _ALLOW_CALL)),
    )
    return [one for call, rule in rules for one in ((_JEQ, 0, len(rule), call[column]), *rule)]


def _if_argument(
    index: int, values: tuple[int, ...], then: Instruction, otherwise: Instruction
) -> list[Instruction]:
    tests = [(_JEQ, len(values) - at, 0, value) for at, value in enumerate(values)]
    return [(_LD, 0, 0, _argument(index)), *tests, otherwise, then]


def _argument(index: int) -> int:
    """Return the offset of the lower half of an argument; both architectures are little endian."""
    return 16 + 8 * index
