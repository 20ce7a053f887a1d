"""A jail for a server that is a child process: the namespaces of the sandbox's jail, with other files.

The server sees the system's programs and libraries, an empty `/tmp`, and the paths that the user lists; it
sees no other process, and has no network unless the user allows it. Rule: without a working jail, the server
is not started.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from standfast.errors import InvalidArgument

_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip
_NETWORK: Final = (
    "/etc/ssl", "/etc/ca-certificates", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf",
)  # fmt: skip
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpJail:
    """What a jailed server may use besides the system's programs.

    Args:
        readable: files and directories that it may read, such as those of its own program.
        writable: files and directories that it may also change.
        network: whether it may use the network.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False

    def __post_init__(self) -> None:
        for name in ("readable", "writable"):
            given = getattr(self, name)
            if isinstance(given, (str, bytes)):
                raise InvalidArgument(
                    f"{name} of a jail must be a list, got {given!r}", hint=f'use {name}=["/srv/files"]'
                )
            paths = tuple(os.path.abspath(os.path.expanduser(os.fspath(path))) for path in given)
            object.__setattr__(self, name, paths)

    def wrapped(self, command: Sequence[str], cwd: str | None) -> list[str]:
        """Return *command* wrapped in the jail; raise `CodeExecutionUnavailable` if this machine has none."""
        from standfast.sandbox.cpython.jail import NAMESPACES, jail_report

        jail_report("bubblewrap").require()
        made = [shutil.which("bwrap") or "bwrap", *NAMESPACES, "--die-with-parent"]
        if self.network:
            made.remove("--unshare-net")
        made += ["--tmpfs", "/tmp"]  # noqa: S108 - first, because it would hide what is named below it
        for path in (*_SYSTEM, *(_NETWORK if self.network else ()), *self.readable):
            made += ["--ro-bind-try", path, path]
        for path in _DEVICES:
            made += ["--dev-bind", path, path]
        for path in self.writable:
            made += ["--bind", path, path]
        where = "/tmp" if cwd is None else os.path.abspath(cwd)  # noqa: S108
        return [*made, "--chdir", where, "--", *command]
