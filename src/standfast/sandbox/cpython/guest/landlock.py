"""Landlock: what of the file system a process can open, where it cannot be given one of its own.

Rules
-----
1. Everything that this kernel can refuse is refused, but for reading what is listed and for writing below the
   private directory. Nothing can be executed.
2. Landlock knows nothing of looking at a file's size, of links' targets and of changing owners or modes; the
   filter of system calls refuses the changes, the looking remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Final

from .seccomp import no_new_privileges

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
"""Write files, remove and make directories and files, make symbolic links."""
_TRUNCATE: Final = 1 << 14
_FILE_RIGHTS: Final = _READ_FILE | 1 << 1 | _TRUNCATE | _IOCTL_DEV
_RIGHTS_OF_VERSION: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights each version knows; later ones know as many as the last."""
_ALL_TCP: Final = 3
_ALL_SCOPES: Final = 3


def version() -> int:
    """The version of landlock that the kernel has; 0 if it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, int(found))


def restrict(listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> int:
    """Shut this process in for ever; returns the version that did it."""
    libc = ctypes.CDLL(None, use_errno=True)
    known = version()
    if not known:
        raise OSError("this kernel has no landlock")
    handled = (1 << _RIGHTS_OF_VERSION[min(known, 5)]) - 1
    rules = _checked(libc.syscall(_CREATE, *_ruleset(known, handled)), "a ruleset cannot be made")
    for path in listable:
        _allow(libc, rules, path, _READ_DIR)
    for path in readable:
        _allow(libc, rules, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(libc, rules, path, (_READ_FILE | _READ_DIR | _WRITES | _TRUNCATE | _REFER) & handled)
    no_new_privileges(libc)
    _checked(libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)), "the ruleset cannot be put on")
    os.close(rules)
    return known


def _ruleset(known: int, handled: int) -> tuple[ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32]:
    parts = [handled]
    if known >= 4:
        parts.append(_ALL_TCP)
    if known >= 6:
        parts.append(_ALL_SCOPES)
    data = struct.pack(f"={len(parts)}Q", *parts)
    return ctypes.c_char_p(data), ctypes.c_size_t(len(data)), ctypes.c_uint32(0)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """Allow *rights* on what is at and below *path*; a path that there is not needs no rule."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = rights if os.path.isdir(path) else rights & _FILE_RIGHTS
            rule = struct.pack("=Qi", rights, handle)
            added = libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0))
            _checked(added, f"{path} cannot be allowed")
        finally:
            os.close(handle)


def _checked(result: int, problem: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), problem)
    return result
