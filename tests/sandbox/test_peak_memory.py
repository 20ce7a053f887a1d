"""The peak memory of a process since the last reset."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from standfast.sandbox.workers import PeakMemory

MB = 1 << 20
CHILD = """
import mmap, sys
for line in sys.stdin:
    if size := int(line):
        with mmap.mmap(-1, size) as held:
            for page in range(0, size, 4096):
                held[page] = 1
    print(flush=True)
"""


@pytest.fixture
def allocate() -> Iterator[Callable[[int], int]]:
    """Return a function that resets the peak, has a process use memory, and returns the peak."""
    child = subprocess.Popen(
        [sys.executable, "-Ic", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    stdin, stdout, memory = child.stdin, child.stdout, PeakMemory(child.pid)

    def run(size: int) -> int:
        memory.reset()
        stdin.write(f"{size}\n")
        stdin.flush()
        stdout.readline()
        peak = memory.bytes()
        assert peak is not None
        assert memory.bytes() == peak  # read again, as when a cell is suspended
        return peak

    yield run
    memory.close()
    stdin.close()
    child.wait()
    stdout.close()


def test_every_run_has_its_own_peak(allocate: Callable[[int], int]) -> None:
    """Ours: a run that allocates no new memory reuses a known peak, but never that of a larger run."""
    allocate(0)
    small = max(allocate(0) for _ in range(5))
    for size in (20 * MB, 0, 40 * MB, 0, 0, 0, 20 * MB, 20 * MB, 0, 0):
        taken = allocate(size) - small
        assert size - MB < taken < size + MB, size


def test_the_peak_of_an_ended_process_is_the_last_known_one() -> None:
    """Ours: a run that was killed still has metrics."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    memory = PeakMemory(child.pid)
    known = memory.bytes()
    child.kill()
    child.wait()
    assert known is not None
    assert memory.bytes() == known
    memory.close()
    assert memory.bytes() == known
    assert child.stdin is not None
    child.stdin.close()
