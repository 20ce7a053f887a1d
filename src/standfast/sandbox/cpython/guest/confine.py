"""Takes from the process whatever it does not need, before any guest code runs."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from typing import Any, Final

from . import landlock, seccomp

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
    """Hide the file system where no namespace does; the interpreter and packages stay readable."""
    if config["kind"] == "landlock":
        os.chdir(config["home"])
        landlock.restrict(config["listable"], config["readable"], config["writable"])


def confine_guest(config: dict[str, Any]) -> None:
    """The rest, for the process that will run guest code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # its parent is the supervisor, which has one thread
    _drop_capabilities(libc)
    _limit_resources(config)
    shared = config["kind"] == "landlock"
    seccomp.install(seccomp.filter_for(os.uname().machine, os.getpid(), owners=shared))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Be nobody in particular, also where the process belongs to root."""
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for number in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def _limit_resources(config: dict[str, Any]) -> None:
    """Limits that hold for the life of the process; the host sets memory and computing for every run."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _FILES)
    _limit(resource.RLIMIT_FSIZE, config["max_file_bytes"])
    _limit(resource.RLIMIT_MEMLOCK, 0)
    if config["kind"] == "bubblewrap":  # elsewhere the user's other processes would count
        _limit(resource.RLIMIT_NPROC, _THREADS)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK if hard == resource.RLIM_INFINITY else min(_STACK, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (most, most))
