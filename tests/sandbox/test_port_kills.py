"""Runs on engines behind the port that survive SIGKILL of their processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CONSOLE = """
import json, os, sys, time
import msgspec
from standfast import BlockingSandbox, CapabilityLimits, tool

data, ledger, engine, language = sys.argv[1:]

def note(line):
    with open(ledger, "a") as file:
        file.write(line + "\\n")

@tool(side_effect="external_system")
def fee(n: int = 1) -> int:
    note(f"fee {n}")
    return 10 * n

@tool(approval="manual")
def pay(order: str) -> str:
    note(f"pay {order}")
    return f"paid {order}"

@tool(limits=CapabilityLimits(timeout_ms=60_000))
def hang() -> str:
    note("hang")
    time.sleep(30)
    return "back"

with BlockingSandbox(tools=[fee, pay, hang], data_dir=data, engine=engine, language=language) as box:
    print("ready", flush=True)
    for line in sys.stdin:
        name, args, kwargs = json.loads(line)
        print(json.dumps(msgspec.to_builtins(getattr(box, name)(*args, **kwargs))), flush=True)
"""


class Console:
    """A process with an open sandbox that executes the test's commands."""

    def __init__(self, child: Any) -> None:
        self.child = child
        assert child.line() == "ready"

    def send(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.child.process.stdin.write(json.dumps([name, args, kwargs]) + "\n")
        self.child.process.stdin.flush()

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.send(name, *args, **kwargs)
        return json.loads(self.child.line())


PYTHON = ("total = fee() + len(pay('A'))\nhang()", "total")
TYPESCRIPT = ("const total = await fee() + (await pay('A')).length\nawait hang()", "total")
GUESTS = {
    "monty": ("python", PYTHON),
    "quickjs": ("typescript", TYPESCRIPT),
    "cpython": ("python", PYTHON),
    "auto": ("python", PYTHON),
}


@pytest.mark.parametrize("engine", GUESTS)
def test_a_run_resumes_after_both_the_requesting_and_the_approving_process_were_killed(
    child: Callable[..., Any], tmp_path: Path, ledger: Path, engine: str
) -> None:
    """Ours: no call is repeated, and a call that was running is reported."""
    language, (code, read) = GUESTS[engine]

    def console() -> Console:
        return Console(child(CONSOLE, tmp_path / "data", ledger, engine, language))

    first = console()
    assert first("run", code, session="s")["status"] == "waiting_for_approval"
    first.child.kill()
    second = console()
    (asked,) = second("approvals", session="s", pending=True)
    second.send("approve", asked["approval_id"])
    _wait_for(ledger, "hang")
    second.child.kill()
    third = console()
    ended = third("approve", asked["approval_id"])
    assert ended["error"]["code"] == "INTERRUPTED"
    assert [call["status"] for call in ended["external_calls"]] == ["ok", "ok", "error"]
    assert ledger.read_text().splitlines() == ["fee 1", "pay A", "hang"]
    assert third("run", read, session="s")["result"] == 10 + len("paid A")
    assert third("session", "s")["state"] == "idle"


def _wait_for(ledger: Path, line: str) -> None:
    deadline = time.monotonic() + 20
    while line not in ledger.read_text().splitlines():
        assert time.monotonic() < deadline, ledger.read_text()
        time.sleep(0.01)
