"""`standfast worker`: wrong options. What workers do is tested in `tests/worker`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--admin", "restate:9070"),
        ("--ingress", "http://one:8080,two:8080"),
        ("--advertise", "worker:9080"),
        ("--listen", "worker"),
        ("--health", "8081:worker"),
        ("--queues", "default,:2"),
    ],
)
def test_an_option_that_cannot_be_understood_is_wrong_usage(
    standfast: Any, tmp_path: Any, option: str, value: str
) -> None:
    """Bug: a URL without http:// was an internal error, or failed unnoticed whenever Restate was needed."""
    (tmp_path / "shop.py").write_text("from standfast import Agent\nclerk = Agent('demo', name='clerk')\n")
    shown = standfast("worker", f"{tmp_path}/shop.py:clerk", "--engine", "restate", option, value)
    assert shown.status == 2
    assert f"{option} {value!r} must look like" in shown.stderr
