"""What a turn leaves for the garbage collector."""

from __future__ import annotations

import subprocess
import sys

_TEN_RUNS = """
import gc
from standfast import BlockingSandbox

with BlockingSandbox() as box:
    for _ in range(3):
        box.run("1 + 1")
    gc.collect()
    gc.disable()
    for _ in range(10):
        box.run("1 + 1")
    print(gc.collect())
"""


def test_a_run_leaves_no_reference_cycles() -> None:
    """Ours: the collector took a fifth of a warm run to free the turns before it."""
    # In a process of its own: what other tests have left behind is collected here, too.
    done = subprocess.run([sys.executable, "-c", _TEN_RUNS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # one cycle in each run was 680
