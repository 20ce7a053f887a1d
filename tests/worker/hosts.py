"""Machines for tests: network namespaces with their own names, on a bridge that leads nowhere else.

Hosts of one network reach each other and this machine, and have no default route. A number,
reserved by the name of a socket, makes names and addresses unique, even among test processes. The kernel
frees the number when the process ends, and everything that runs on a host ends with the process too; the next
owner of the number deletes the bridge.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from types import TracebackType

from fleet import WITH_PARENT

_NUMBERS = 256
_TOOLS = ("ip", "unshare", "nsenter", "setpriv")


def hosts_missing() -> str | None:
    """Return why hosts cannot be created here; None if they can."""
    if os.geteuid() != 0 or not all(map(shutil.which, _TOOLS)):
        return "network namespaces need root and iproute2"
    return None


class Network:
    """A bridge. `here` is this machine's address on it."""

    def __init__(self) -> None:
        self._number, self._lock = _reserve()
        self.name = f"sf{self._number}"
        self._net = f"198.18.{self._number}"  # a range that RFC 2544 reserves for tests
        self.here = f"{self._net}.1"
        self._hosts = 0

    def __enter__(self) -> Network:
        _run("ip", "link", "del", self.name, check=False)  # its last owner was killed
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "address", "add", f"{self.here}/24", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")
        return self

    def next_host(self) -> tuple[str, str]:
        """Return the name and the address of a new host."""
        self._hosts += 1
        return f"{self.name}-{self._hosts}", f"{self._net}.{self._hosts + 1}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("ip", "link", "del", self.name)
        self._lock.close()


class Host:
    """A machine on a network. `address` is its own; `inside` begins a command that runs there."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.name, self.address = network.next_host()
        script = f"hostname {self.name} && echo ready && exec sleep infinity"
        self._holder = subprocess.Popen(
            [*WITH_PARENT, "unshare", "--net", "--uts", "sh", "-c", script], stdout=subprocess.PIPE
        )
        self.inside = ("nsenter", "-t", str(self._holder.pid), "-n", "-u")

    def __enter__(self) -> Host:
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        peer = ("type", "veth", "peer", "name", "inside", "netns", str(self._holder.pid))
        _run("ip", "link", "add", self.name, *peer)
        _run("ip", "link", "set", self.name, "master", self.network.name, "up")
        _run(*self.inside, "ip", "address", "add", f"{self.address}/24", "dev", "inside")
        _run(*self.inside, "ip", "link", "set", "inside", "up")
        _run(*self.inside, "ip", "link", "set", "lo", "up")
        return self

    def cut(self, how: str = "down") -> None:
        """Cut the host off from the network; with "up", connect it again."""
        _run(*self.inside, "ip", "link", "set", "inside", how)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("ip", "link", "del", self.name, check=False)
        self._holder.kill()  # the namespace ends with its last process
        self._holder.wait(timeout=10)
        assert self._holder.stdout is not None
        self._holder.stdout.close()


def _reserve() -> tuple[int, socket.socket]:
    """Return the lowest number that no living process has reserved, and the socket whose name reserves it."""
    for number in range(_NUMBERS):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0standfast-network-{number}")  # an abstract name: as unique as that of a bridge
        except OSError:
            lock.close()
            continue
        return number, lock
    raise RuntimeError(f"all {_NUMBERS} networks for tests are in use")


def _run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, stderr=None if check else subprocess.DEVNULL)
