"""Landlock: which files a process can open, where it cannot have a file system of its own.

Rules
-----
1. Everything that this kernel can refuse is refused, except reading the listed paths and writing below the
   private directory. Nothing can be executed.
2. Landlock does not cover a file's size, links' targets, owners and modes. The filter of system calls refuses
   to change them; they can be read.
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
    """Return the version of landlock that the kernel has; 0 if it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, int(found))


def restrict(listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> None:
    """Confine this process to the listed paths, for the rest of its life."""
    libc = ctypes.CDLL(None, use_errno=True)
    known = version()
    if not known:
        raise OSError("this kernel has no landlock")
    handled = (1 << _RIGHTS_OF_VERSION[min(known, 5)]) - 1
    scope = [handled, *([_ALL_TCP] if known >= 4 else []), *([_ALL_SCOPES] if known >= 6 else [])]
    data = struct.pack(f"={len(scope)}Q", *scope)
    created = libc.syscall(_CREATE, ctypes.c_char_p(data), ctypes.c_size_t(len(data)), ctypes.c_uint32(0))
    rules = _checked(created, "a ruleset cannot be made")
    for paths, rights in (
        (listable, _READ_DIR),
        (readable, _READ_FILE | _READ_DIR),
        (writable, (_READ_FILE | _READ_DIR | _WRITES | _TRUNCATE | _REFER) & handled),
    ):
        for path in paths:
            _allow(libc, rules, path, rights)
    no_new_privileges(libc)
    _checked(libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)), "the ruleset cannot be put on")
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """Allow `rights` at and below `path`; a path that does not exist needs no rule."""
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
