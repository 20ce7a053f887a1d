"""The example of background tasks does what it says."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import interpreters
import pytest

from standfast import Runtime

EXAMPLE = Path(__file__).parents[2] / "examples" / "builds.py"


@pytest.mark.slow
def test_one_build_finishes_and_the_other_is_interrupted_when_the_program_closes(tmp_path: Path) -> None:
    """Ours: a task is never left running."""
    done = interpreters.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "build-docs: completed, docs is built" in done.stdout

    async def states() -> list[str]:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            return [str(task.state) for task in await runtime.store.tasks()]

    assert asyncio.run(states()) == ["completed", "failed"]
