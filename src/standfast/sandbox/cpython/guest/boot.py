"""The entry point of the jailed process: confine, fork, serve.

The process that the host started becomes the supervisor; the guest is its child. The supervisor only waits
until the host closes its end of the socket or the guest exits, and then ends both processes, whatever the
guest is computing and whichever locks it holds. In a PID namespace the supervisor is the first process, so
nothing outlives it.
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
_PRELOADED: Final = (
    "collections", "concurrent.futures", "dataclasses", "enum", "functools", "itertools", "math", "queue",
    "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip
"""Modules that guest code often imports. They are imported while the process waits for its first run."""


def main() -> None:
    config = json.loads(sys.argv[1])
    sys.argv[:] = [""]
    sys.orig_argv[:] = [""]
    child = os.fork()
    if child:
        code = _supervise(child)
        if code is None and config["kind"] == "landlock":
            from .clearing import remove

            remove(config["home"])  # the host, which usually does this, is gone
        os._exit(code or 0)
    handle = os.dup(0)
    os.dup2(1, 0)
    try:
        _serve(config, handle)
    except BaseException as error:
        text = json.dumps({"t": "failed", "message": f"{type(error).__name__}: {error}"}).encode()
        os.write(handle, (16 + len(text)).to_bytes(4, "big") + bytes(16) + text)  # the nonce of no run
        os._exit(70)


def _serve(config: dict[str, Any], handle: int) -> None:
    """Run the guest: import everything it needs, confine the process, then serve runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from . import confine

    confine.confine_files(config)
    import importlib.util
    import threading

    files = config["packages"]

    class ChosenPackages:
        """Finds the packages that guest code may import, outside of the interpreter's directories."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            file = files.get(name)
            return None if file is None else importlib.util.spec_from_file_location(name, file)

    sys.meta_path.append(ChosenPackages)
    threading.stack_size(1 << 20)
    for name in _PRELOADED:
        __import__(name)
    from .session import GuestSession

    os.environ._data.clear()  # type: ignore[attr-defined]
    session = GuestSession(handle, config["home"])
    confine.confine_guest(config)
    session.serve()


def _supervise(child: int) -> int | None:
    """Wait until the guest or the host is gone; return the guest's exit code, None if it was killed here."""
    poll = select.poll()
    poll.register(0, _POLLRDHUP)
    timeout_ms: int | None = None
    try:
        poll.register(os.pidfd_open(child), select.POLLIN)
    except OSError:  # the kernel does not support pidfds
        timeout_ms = _POLL_MS
    while True:
        events = poll.poll(timeout_ms)
        if any(handle == 0 for handle, _ in events):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
