"""State that outlives a process: sessions, waiting runs and decisions, under SIGKILL and across processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONSOLE = """
import json, os, sys, time
from standfast import BlockingSandbox, CapabilityLimits, tool
from standfast.errors import StandfastError

DATA, LEDGER = sys.argv[1], sys.argv[2]

def note(line):
    handle = os.open(LEDGER, os.O_WRONLY | os.O_APPEND)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)

LONG = CapabilityLimits(timeout_ms=60_000)

@tool(side_effect="read")
def fee(n: int = 1) -> int:
    note(f"fee {n}")
    return 10 * n

@tool(approval="manual")
def pay(order: str) -> str:
    note(f"pay {order}")
    return f"paid {order}"

def gate(path):
    while os.path.exists(path):
        time.sleep(0.01)

@tool(approval="manual", limits=LONG)
def pay_slowly(order: str) -> str:
    note(f"pay_slowly {order}")
    gate(LEDGER + ".hang")
    return f"paid {order}"

@tool(approval="manual", idempotent=True, limits=LONG)
def put_slowly(order: str) -> str:
    note(f"put_slowly {order}")
    gate(LEDGER + ".hang")
    return f"put {order}"

@tool(limits=LONG)
def hang(name: str = "x") -> str:
    note(f"hang {name}")
    gate(LEDGER + ".hang")
    return "back"

with BlockingSandbox(tools=[fee, pay, pay_slowly, put_slowly, hang], data_dir=DATA) as box:
    print("ready", flush=True)
    for line in sys.stdin:
        name, args, kwargs = json.loads(line)
        try:
            answer = getattr(box, name)(*args, **kwargs)
        except StandfastError as error:
            answer = {"raised": type(error).__name__, "code": str(error.code), "message": str(error)}
        import msgspec
        print(json.dumps(msgspec.to_builtins(answer)), flush=True)
"""

pytestmark = pytest.mark.slow


class Console:
    """A process with an open sandbox that executes the test's commands."""

    def __init__(self, child: Any) -> None:
        self.child = child
        assert child.line() == "ready"

    def send(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.child.process.stdin.write(json.dumps([name, args, kwargs]) + "\n")
        self.child.process.stdin.flush()

    def receive(self) -> Any:
        return json.loads(self.child.line())

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.send(name, *args, **kwargs)
        return self.receive()

    def run(self, code: str, session: str = "s", **kwargs: Any) -> Any:
        return self("run", code, session=session, **kwargs)

    def asked(self, session: str = "s") -> list[str]:
        return [item["approval_id"] for item in self("approvals", session=session, pending=True)]

    def kill(self) -> None:
        self.child.kill()


@pytest.fixture
def console(child: Callable[..., Any], tmp_path: Path, ledger: Path) -> Callable[[], Console]:
    return lambda: Console(child(CONSOLE, tmp_path / "data", ledger))


@pytest.fixture
def gate(ledger: Path) -> Path:
    """Return a file; while it exists, slow tools do not return."""
    path = Path(f"{ledger}.hang")
    path.touch()
    return path


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().split("\n")[:-1]


def _wait_for(ledger: Path, line: str, count: int = 1) -> None:
    deadline = time.monotonic() + 15
    while _lines(ledger).count(line) < count:
        assert time.monotonic() < deadline, _lines(ledger)
        time.sleep(0.01)


def test_another_process_resumes_a_run_paused_in_an_expression_after_sigkill(
    console: Callable[[], Console], ledger: Path
) -> None:
    """Ours: calls made before the pause are not repeated."""
    first = console()
    first.run("x = 1\ndef twice(n):\n    return 2 * n")
    waiting = first.run("x += 1\ntotal = fee() + len(pay('A')) + twice(fee(2))\n[x, total]")
    assert waiting["status"] == "waiting_for_approval"
    (approval,) = first.asked()
    first.kill()
    second = console()
    assert second.asked() == [approval]
    done = second("approve", approval)
    assert (done["status"], done["result"]) == ("ok", [2, 10 + len("paid A") + 40])
    assert _lines(ledger) == ["fee 1", "pay A", "fee 2"]
    assert second("approve", approval)["raised"] == "ApprovalAlreadyDecided"
    second.kill()
    third = console()
    assert third.run("[x, total]")["result"] == [2, 56]
    assert third("approve", approval)["raised"] == "ApprovalAlreadyDecided"
    assert _lines(ledger) == ["fee 1", "pay A", "fee 2"]


def test_a_session_continues_in_another_process(console: Callable[[], Console]) -> None:
    """Ours: a session survives the death of its process."""
    first = console()
    first.run(
        "import math\nx = [1]\nclass A:\n    def __init__(self):\n        self.v = 7\n"
        "a = A()\ndef f():\n    return a.v + len(x)"
    )
    first.kill()
    assert console().run("x.append(2)\n[x, f(), math.floor(1.5)]")["result"] == [[1, 2], 9, 1]


def test_a_run_cut_off_by_sigkill_ends_before_the_next_one_begins(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: SPEC §7, its running call is settled as interrupted, and its code sees that as an exception."""
    first = console()
    first.run("x = 1")
    first.send("run", "x = 2\nhang()\nx = 3", session="s")
    _wait_for(ledger, "hang x")
    first.kill()
    gate.unlink()
    second = console()
    assert second.run("x")["result"] == 2
    assert second.run("hang('again')")["result"] == "back"


def test_two_processes_that_share_a_session_lose_nothing(console: Callable[[], Console]) -> None:
    """Ours: SPEC §5, two runs on one session queue and never lose state."""
    boxes = [console(), console()]
    boxes[0].run("n = 0\nseen = []")
    for index in range(10):
        assert boxes[index % 2].run("n += 1\nn")["result"] == index + 1

    def storm(box: Console, name: str) -> None:
        for _ in range(15):
            assert box.run(f"n += 1\nseen.append('{name}')\nn")["status"] == "ok"

    threads = [threading.Thread(target=storm, args=(box, f"p{i}")) for i, box in enumerate(boxes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = boxes[0].run("[n, len(seen)]")
    assert last["result"] == [40, 30]
    assert Counter(boxes[1].run("seen")["result"]) == {"p0": 15, "p1": 15}


def test_racing_approvers_in_several_processes_make_one_call(
    console: Callable[[], Console], ledger: Path
) -> None:
    """Ours: SPEC §4, deciding is a compare-and-set, even across processes."""
    boxes = [console() for _ in range(3)]
    assert boxes[0].run("pay('A')")["status"] == "waiting_for_approval"
    (approval,) = boxes[0].asked()
    for box in boxes:
        box.send("approve", approval)
    answers = [box.receive() for box in boxes]
    won = [answer for answer in answers if answer.get("status") == "ok"]
    lost = [answer["raised"] for answer in answers if "raised" in answer]
    # A process that finds the request decided may resume the turn; the deciding one then gets the result.
    assert len(won) in (1, 2)
    assert lost == ["ApprovalAlreadyDecided"] * (3 - len(won))
    assert {answer["result"] for answer in won} == {"paid A"}
    assert _lines(ledger) == ["pay A"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_waits_in_a_gather_can_be_decided_in_different_processes(
    console: Callable[[], Console], ledger: Path, order: tuple[int, int]
) -> None:
    """Ours: each process resumes the run as far as the decisions permit."""
    first = console()
    code = "import asyncio\nawait asyncio.gather(fee(1), pay('A'), pay('B'), fee(2))"
    assert first.run(code)["status"] == "waiting_for_approval"
    asked = first.asked()
    assert len(asked) == 2
    first.kill()
    second = console()
    assert second("approve", asked[order[0]])["status"] == "waiting_for_approval"
    second.kill()
    done = console()("approve", asked[order[1]])
    assert done["result"] == [10, "paid A", "paid B", 20]
    assert sorted(_lines(ledger)) == ["fee 1", "fee 2", "pay A", "pay B"]


def test_a_call_that_was_running_when_the_process_died_is_not_repeated(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: SPEC §7 (3), a second decision settles the call as INTERRUPTED, which guest code may catch."""
    first = console()
    code = "try:\n    result = pay_slowly('A')\nexcept RuntimeError as e:\n    result = str(e)"
    assert first.run(code)["status"] == "waiting_for_approval"
    (approval,) = first.asked()
    first.send("approve", approval)
    _wait_for(ledger, "pay_slowly A")
    first.kill()
    gate.unlink()
    second = console()
    settled = second("approve", approval)
    assert settled.get("status") == "ok", settled
    assert "INTERRUPTED" in settled["result"]
    assert settled["external_calls"][0]["error"]["code"] == "INTERRUPTED"
    assert _lines(ledger) == ["pay_slowly A"]
    assert second("session", "s")["state"] == "idle"
    assert second("approve", approval)["raised"] == "ApprovalAlreadyDecided"


def test_an_uncaught_interrupted_call_ends_the_run_as_interrupted(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: SPEC §3, INTERRUPTED is a separate status."""
    first = console()
    first.run("x = 1\npay_slowly('A')\nx = 2")
    (approval,) = first.asked()
    first.send("approve", approval)
    _wait_for(ledger, "pay_slowly A")
    first.kill()
    gate.unlink()
    settled = console()("resume", "s")
    assert (settled["status"], settled["error"]["code"]) == ("interrupted", "INTERRUPTED")
    assert _lines(ledger) == ["pay_slowly A"]


def test_an_idempotent_call_that_was_running_is_repeated(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: SPEC §7 (4), an idempotent call is repeated after a crash."""
    first = console()
    first.run("put_slowly('A')")
    (approval,) = first.asked()
    first.send("approve", approval)
    _wait_for(ledger, "put_slowly A")
    first.kill()
    gate.unlink()
    settled = console()("approve", approval)
    assert (settled["status"], settled["result"]) == ("ok", "put A")
    assert _lines(ledger) == ["put_slowly A"] * 2


def test_a_new_run_on_a_session_whose_approved_run_died_does_not_repeat_the_call(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: SPEC §12, an interrupted tool must not make a session unusable."""
    first = console()
    first.run("x = 1")
    first.run("x = 2\npay_slowly('A')")
    (approval,) = first.asked()
    first.send("approve", approval)
    _wait_for(ledger, "pay_slowly A")
    first.kill()
    gate.unlink()
    second = console()
    result = second.run("1 + 1")
    if result["status"] == "waiting_for_approval":
        second("resume", "s")
        result = second.run("1 + 1")
    assert (result["status"], result["result"]) == ("ok", 2)
    assert _lines(ledger) == ["pay_slowly A"]


def test_a_run_that_another_live_process_continues_is_left_to_it(
    console: Callable[[], Console], ledger: Path, gate: Path
) -> None:
    """Ours: one writer per session; the second decision gets an error, and no call is made twice."""
    first, second = console(), console()
    first.run("pay_slowly('A')")
    (approval,) = first.asked()
    first.send("approve", approval)
    _wait_for(ledger, "pay_slowly A")
    second.send("approve", approval)
    time.sleep(0.2)
    gate.unlink()
    assert first.receive()["result"] == "paid A"
    assert second.receive()["raised"] == "ApprovalAlreadyDecided"
    assert _lines(ledger) == ["pay_slowly A"]


def test_a_denial_and_an_expiry_reach_a_run_of_a_dead_process(
    console: Callable[[], Console], ledger: Path
) -> None:
    """Ours: any process can decide in any way."""
    first = console()
    first.run("try:\n    pay('A')\nexcept PermissionError as e:\n    result = str(e)")
    (approval,) = first.asked()
    first.kill()
    denied = console()("deny", approval, reason="not today")
    assert "not today" in denied["result"]
    assert _lines(ledger) == []


def test_a_snapshot_can_be_restored_in_another_process_and_under_another_id(
    console: Callable[[], Console], ledger: Path
) -> None:
    """Ours: SPEC §5, snapshots outlive their process and their session."""
    first = console()
    first.run("x = 'kept'")
    name = first("snapshot", "s")
    first.run("x = 'changed'\npay('A')")
    paused = first("snapshot", "s")
    first.kill()
    second = console()
    assert second("restore", name, session="copy") == "copy"
    assert second.run("x", session="copy")["result"] == "kept"
    assert second("restore", paused, session="other") == "other"
    (new,) = second.asked("other")
    assert second("approve", new)["result"] == "paid A"
    assert second.run("x", session="other")["result"] == "changed"
    assert _lines(ledger) == ["pay A"]


def test_a_session_destroyed_by_one_process_is_gone_for_the_other(console: Callable[[], Console]) -> None:
    """Ours: no process may recreate a session that another one has destroyed."""
    first, second = console(), console()
    first.run("x = 1")
    assert second.run("x")["result"] == 1
    assert second("destroy", "s") is True
    assert first.run("x")["status"] == "runtime_error"
    assert first.run("x = 5\nx")["result"] == 5
    assert second.run("x")["result"] == 5


def test_a_reset_by_one_process_takes_effect_in_the_other(console: Callable[[], Console]) -> None:
    """Ours: the store decides, not the memory of a process."""
    first, second = console(), console()
    first.run("x = 1")
    second("reset", "s")
    assert first.run("x")["status"] == "runtime_error"
    assert "raised" in first("create", "s")


def test_sigkill_at_any_moment_leaves_a_readable_store(console: Callable[[], Console]) -> None:
    """Ours: every acknowledged result is on disk afterwards."""
    box = console()
    box.run("n = 0")
    acknowledged = 0
    for delay in (0.0, 0.004, 0.011):
        for _ in range(5):
            acknowledged = box.run("n += 1\nn")["result"]
        box.send("run", "n += 1\nn", session="s")
        time.sleep(delay)
        box.kill()
        box = console()
        found = box.run("n")["result"]
        assert found in (acknowledged, acknowledged + 1)
        acknowledged = found


def test_no_engine_process_outlives_a_killed_host(console: Callable[[], Console]) -> None:
    """Ours: guest code cannot continue without its host process."""
    box = console()
    box.run("1")
    pid = box.child.process.pid
    children = [
        int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()
    ]
    assert children
    box.send("run", "while True:\n    pass", session="s")
    os.kill(pid, signal.SIGKILL)
    box.child.process.wait(timeout=10)
    deadline = time.monotonic() + 5
    while any(_runs(one) for one in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_runs(one) for one in children)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
