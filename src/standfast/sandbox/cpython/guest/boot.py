"""Where the jailed process begins: shut in, split in two, serve.

Theory of operation
-------------------
The process that the host started stays as a supervisor and does nothing but wait: for the host to hang up, or
for the guest to end. Either way both are gone then, whatever the guest computes and whichever lock it holds.
The guest is its child. In a process namespace the supervisor is its first process, so nothing outlives it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any, Final

_POLL_MS: Final = 200
_POLLRDHUP: Final = 0x2000


def main() -> None:
    config = json.loads(sys.argv[1])
    sys.argv[:] = [""]
    sys.orig_argv[:] = [""]
    child = os.fork()
    if child:
        code = _supervise(child)
        if code is None and config["kind"] == "landlock":
            from .clearing import remove

            remove(config["home"])  # since the host cannot any more
        os._exit(code or 0)
    handle = os.dup(0)
    os.dup2(1, 0)
    try:
        _serve(config, handle)
    except BaseException as error:
        told = json.dumps({"t": "failed", "message": f"{type(error).__name__}: {error}"}).encode()
        os.write(handle, (16 + len(told)).to_bytes(4, "big") + bytes(16) + told)  # of no run
        os._exit(70)


def _serve(config: dict[str, Any], handle: int) -> None:
    """Be the guest: everything that is needed is imported first, then the doors are shut."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from . import confine, packages

    confine.confine_files(config)
    packages.install(config["packages"])
    import threading

    threading.stack_size(1 << 20)
    _preload()
    from .session import Session

    os.environ._data.clear()  # type: ignore[attr-defined]
    session = Session(handle, config["home"])
    confine.confine_guest(config)
    session.serve()


def _preload() -> None:
    """Import what much code imports; while the process waits for work, it costs nobody anything."""
    import collections
    import concurrent.futures
    import dataclasses
    import enum
    import functools
    import itertools
    import math
    import queue
    import re
    import statistics
    import string
    import textwrap
    import typing

    del collections, concurrent, dataclasses, enum, functools, itertools, math, queue, re, statistics, string
    del textwrap, typing


def _supervise(child: int) -> int | None:
    """Wait until the guest or the host is gone; returns how the guest ended, None if it was killed here."""
    poll = select.poll()
    poll.register(0, _POLLRDHUP)
    with_handle = _watch_child(poll, child)
    while True:
        events = poll.poll(None if with_handle else _POLL_MS)
        if any(handle == 0 for handle, _ in events):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _watch_child(poll: select.poll, child: int) -> bool:
    try:
        poll.register(os.pidfd_open(child), select.POLLIN)
    except OSError:
        return False
    return True
