"""Confinement of the guest process, before it runs any guest code.

Landlock denies everything that this kernel's version of it can deny, except reading the listed paths and
writing below the private directory. Nothing can be executed. Landlock does not cover the sizes, link targets,
owners and modes of files: they can be read, but the filter of system calls denies changing them.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Iterable
from typing import Any, Final

from . import seccomp

_CREATE: Final = 444
_ADD_RULE: Final = 445
_RESTRICT: Final = 446
_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_REFER: Final = 1 << 13
_IOCTL_DEV: Final = 1 << 15
_WRITES: Final = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12
"""Write files; create and remove files and directories; create symbolic links."""
_TRUNCATE: Final = 1 << 14
_FILE_RIGHTS: Final = _READ_FILE | 1 << 1 | _TRUNCATE | _IOCTL_DEV
_RIGHTS_OF_VERSION: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""The number of access rights in each version of landlock; later versions have as many as the last."""
_ALL_TCP: Final = 3
_ALL_SCOPES: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_PR_CAPBSET_DROP: Final = 24
_PR_CAP_AMBIENT: Final = 47
_CLEAR_ALL: Final = 4
_CAPABILITIES: Final = 0x20080522
_LAST_CAPABILITY: Final = 63
_SIGKILL: Final = 9
_STACK: Final = 64 << 20
_FILES: Final = 64
_THREADS: Final = 64


def confine_files(config: dict[str, Any]) -> None:
    """Hide the file system if no namespace does; the interpreter and the packages remain readable."""
    if config["kind"] == "landlock":
        os.chdir(config["home"])
        _restrict(config["listable"], config["readable"], config["writable"])


def confine_guest(config: dict[str, Any]) -> None:
    """Drop capabilities, limit resources and filter system calls, in the process that runs guest code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # sent when the only thread of the supervisor ends
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for number in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    _limit(resource.RLIMIT_CORE, 0)  # the host sets the limits of memory and CPU time for each run
    _limit(resource.RLIMIT_NOFILE, _FILES)
    _limit(resource.RLIMIT_FSIZE, config["max_file_bytes"])
    _limit(resource.RLIMIT_MEMLOCK, 0)
    shared = config["kind"] == "landlock"
    if not shared:  # with landlock, the user's other processes would count too
        _limit(resource.RLIMIT_NPROC, _THREADS)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    seccomp.install(seccomp.filter_for(os.uname().machine, os.getpid(), owners=shared))


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))


# ── landlock ─────────────────────────────────────────────────────────────────────────────────────────


def landlock_version() -> int:
    """Return the kernel's version of landlock; 0 if the kernel has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, int(found))


def _restrict(listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> None:
    """Irrevocably restrict this process to the given paths."""
    libc = ctypes.CDLL(None, use_errno=True)
    known = landlock_version()
    if not known:
        raise OSError("this kernel has no landlock")
    handled = (1 << _RIGHTS_OF_VERSION[min(known, 5)]) - 1
    scope = [handled, *([_ALL_TCP] if known >= 4 else []), *([_ALL_SCOPES] if known >= 6 else [])]
    data = struct.pack(f"={len(scope)}Q", *scope)
    created = libc.syscall(_CREATE, ctypes.c_char_p(data), ctypes.c_size_t(len(data)), ctypes.c_uint32(0))
    rules = _checked(created, "the landlock ruleset cannot be created")
    for paths, rights in (
        (listable, _READ_DIR),
        (readable, _READ_FILE | _READ_DIR),
        (writable, (_READ_FILE | _READ_DIR | _WRITES | _TRUNCATE | _REFER) & handled),
    ):
        for path in paths:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:  # nothing to allow
                continue
            rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & _FILE_RIGHTS, handle)
            added = libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0))
            _checked(added, f"{path} cannot be allowed")
            os.close(handle)
    seccomp.no_new_privileges(libc)
    _checked(libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)), "the landlock ruleset cannot be applied")
    os.close(rules)


def _checked(result: int, problem: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), problem)
    return result
