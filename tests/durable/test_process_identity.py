"""Whether a process that owns a lease is provably dead, as other processes see it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from standfast.durable.process_identity import is_dead, machine, process_name

_SOURCE = """
import os, sys
from standfast.durable.process_identity import is_dead, process_name
print(process_name(os.getpid()), flush=True)
for line in sys.stdin:
    print(is_dead(line.strip()), flush=True)
"""
_ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
in_containers = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="pid namespaces need root and unshare"
)


class Container:
    """A process in a pid namespace of its own, with this machine's host name."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self.name = self._output.readline().strip()

    def sees_dead(self, name: str) -> bool:
        print(name, file=self._input, flush=True)
        return self._output.readline() == "True\n"


@contextlib.contextmanager
def running() -> Iterator[Container]:
    command = [*_ALONE, sys.executable, "-c", _SOURCE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Container(process)


@in_containers
@pytest.mark.slow
def test_a_live_process_in_another_container_is_not_dead() -> None:
    """Bug: workers in containers that share the host's name took each other's running turns over, forever."""
    with running() as one, running() as two:
        assert one.name.rsplit(":", 2)[1] == two.name.rsplit(":", 2)[1] == "1"
        assert not one.sees_dead(two.name)
        assert not two.sees_dead(one.name)
        assert not is_dead(one.name)
        assert one.sees_dead(one.name.rpartition(":")[0] + ":0"), "an earlier process of this container"


def test_a_container_of_the_same_name_on_another_machine_is_not_dead() -> None:
    """Ours: only outside of containers does a host name identify a machine."""
    host = machine().partition("/")[0].partition("@")[0]
    assert not is_dead(f"{host}@4026532178/another-boot:1:1")


def test_a_process_of_this_machine_is_dead_once_it_has_ended() -> None:
    """Ours: it is replaced at once; its lease need not expire."""
    assert not is_dead(process_name(os.getpid()))
    with subprocess.Popen(["true"]) as process:
        name = process_name(process.pid)
    assert is_dead(name)
