"""Sessions and waiting runs stored when sandbox runs on Monty had a separate format.

`former_runs.json` holds signed snapshots and their key, as the commit before that change wrote them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast import BlockingSandbox, tool
from standfast.errors import SnapshotRefused

STORED = json.loads((Path(__file__).parent / "former_runs.json").read_text())


@tool(approval="manual", side_effect="external_system")
def pay(order: str) -> str:
    return f"paid {order}"


@tool(side_effect="read")
def fee(n: int = 1) -> int:
    return 10 * n


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BlockingSandbox]:
    (tmp_path / "snapshot.key").write_bytes(base64.b64decode(STORED["key"]))
    with BlockingSandbox(tools=[pay, fee], data_dir=tmp_path) as opened:
        yield opened


def _restored(box: BlockingSandbox, name: str) -> None:
    box.restore(base64.b64decode(STORED[name]))


def test_a_session_stored_in_the_former_format_opens(box: BlockingSandbox) -> None:
    """Ours: stored data stays readable."""
    _restored(box, "idle")
    assert box.run("kept + await both()", session="idle").result == [1, 2, 10, 20]


@pytest.mark.parametrize("name", ["plain", "gather"])
def test_a_waiting_run_in_the_former_format_is_refused(box: BlockingSandbox, name: str) -> None:
    """Ours: the error says what to do, and no session is created."""
    with pytest.raises(SnapshotRefused) as refused:
        _restored(box, name)
    assert refused.value.code == "SNAPSHOT_VERSION_MISMATCH"
    assert "decide or cancel the run there" in str(refused.value.hint)
    assert box.sessions() == []
