"""Many sessions in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast import BlockingSandbox
from standfast.runtime import code_sessions

pytestmark = pytest.mark.slow


def test_an_evicted_session_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: memory is bounded by the sessions in use, and callers do not notice an eviction."""
    monkeypatch.setattr(code_sessions, "_CACHED_SESSIONS", 3)
    with BlockingSandbox(data_dir=tmp_path / "data", workers=2) as box:
        for n in range(10):
            box.run(f"x = {n}", session=f"s{n}")
        assert len(box._runs.sessions.all_cached()) <= 3
        assert [box.run("x + 1", session=f"s{n}").result for n in range(10)] == list(range(1, 11))
        assert box.validate("x + 1", session="s0").status == "ok"
        assert box.fork("s1", "copy") == "copy"
        assert box.run("x", session="copy").result == 1
        assert box.restore(box.snapshot("s2"), session="again") == "again"
        assert box.run("x", session="again").result == 2
