"""The jail: which kind is used, what is visible inside, and that it ends with its host."""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import CodeExecutionUnavailable, InvalidArgument
from standfast.ports.code_engine import CellEnd, CellRequest
from standfast.sandbox.cpython import jail
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.cpython.jail import JailReport, jail_report

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]


@pytest.fixture
def fresh_report() -> Iterator[None]:
    jail_report.cache_clear()
    yield
    jail_report.cache_clear()


def test_the_report_says_which_kind_is_used_and_why() -> None:
    """Ours: the report shows the kind and the reason."""
    report = jail_report()
    assert (report.kind, report.reason) == ("bubblewrap", "namespaces are allowed")
    assert jail_report("landlock").kind == "landlock"


@pytest.mark.usefixtures("fresh_report")
def test_landlock_is_used_where_bubblewrap_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed: landlock with seccomp is used where namespaces are not permitted."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    report = jail_report()
    assert report.kind == "landlock"
    assert report.reason == "bubblewrap cannot be used: bwrap is not installed"


@pytest.mark.usefixtures("fresh_report")
def test_code_is_refused_where_no_jail_is_available(
    monkeypatch: pytest.MonkeyPatch, request_of: Request
) -> None:
    """Seed: without any jail, code is refused with a clear message."""
    monkeypatch.setattr(jail, "_try_bubblewrap", lambda: "setting up uid map: Permission denied")
    monkeypatch.setattr(jail, "_try_landlock", lambda: "the kernel has no landlock")
    cells = CPythonCells()
    with pytest.raises(CodeExecutionUnavailable) as refused:
        cells.open(request_of("1"))
    assert (
        "setting up uid map: Permission denied; landlock: the kernel has no landlock" in refused.value.message
    )
    assert refused.value.hint is not None
    cells.close()


def test_threads_can_look_for_the_interpreter_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: "the Python engine cannot be started: 'userbase'", because `sysconfig` is not thread-safe."""
    fill_in = getattr(sysconfig, "_init_posix")  # noqa: B009
    monkeypatch.setattr(sysconfig, "_init_posix", lambda found: (time.sleep(0.1), fill_in(found)))
    monkeypatch.setattr(sysconfig, "_CONFIG_VARS", None)
    monkeypatch.setattr(sysconfig, "_CONFIG_VARS_INITIALIZED", False, raising=False)
    jail._find_interpreter.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: jail._interpreter(), range(4)))
    assert len(set(map(id, found))) == 1


def test_code_is_refused_on_a_machine_without_a_system_call_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: no code runs without a system call filter."""
    monkeypatch.setattr("standfast.sandbox.cpython.jail.seccomp.knows", lambda machine: False)
    report = jail_report.__wrapped__()
    assert report.kind is None
    with pytest.raises(CodeExecutionUnavailable):
        report.require()
    assert isinstance(report, JailReport)


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_selected_packages_can_be_imported_but_not_changed(kind: str, request_of: Request) -> None:
    """Seed: selected packages can be imported and are read-only."""
    cells = CPythonCells(kind=kind, packages=("msgspec",), capacity=1)  # type: ignore[arg-type]
    try:
        code = "import msgspec\nP = msgspec.defstruct('P', ['x'])\nmsgspec.json.encode(P(1)).decode()"
        end = cells.open(request_of(code)).start()
        assert isinstance(end, CellEnd)
        assert end.result == '{"x":1}'
        broken = cells.open(request_of("import msgspec\nopen(msgspec.__file__, 'a')")).start()
        assert isinstance(broken, CellEnd)
        assert broken.error is not None
        missing = cells.open(request_of("import pytest")).start()
        assert isinstance(missing, CellEnd)
        assert missing.error is not None
        assert missing.error.hint == "the sandbox has Python's standard library, msgspec"
    finally:
        cells.close()


@pytest.mark.parametrize("name", ["no_such_package", "os.path", "../x", "", "sys"])
def test_an_unknown_package_is_refused(name: str, request_of: Request) -> None:
    """Ours: a misspelt package is reported when the engine is created, not when code fails."""
    cells = CPythonCells(packages=(name,))
    with pytest.raises(InvalidArgument):
        cells.open(request_of("1"))
    cells.close()


HOST = """
import sys, threading
from standfast.model.capability import Capability
from standfast.model.limits import SessionLimits
from standfast.ports.code_engine import CallAnswer, CellRequest
from standfast.sandbox.cpython.cell_engine import CPythonCells

class Functions:
    def __contains__(self, name): return name == "add"
    def names(self): return ["add"]
    def capability(self, name): return Capability(name=name, description="", input_schema={})

def told(call):
    process = run._stepper.worker.process
    print(process.guest_pid, process.pid, process.home or "/none", flush=True)
    return CallAnswer()

cells = CPythonCells(kind=sys.argv[1])
limits = SessionLimits(cpu_ms=600_000, wall_ms=600_000)
request = CellRequest(key="s", code=sys.argv[2], limits=limits, functions=Functions(), answer_now=told)
run = cells.open(request)
thread = threading.Thread(target=run.start, daemon=True)
thread.start()
sys.stdin.read()
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        os.sched_yield()
    return condition()


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
@pytest.mark.parametrize(
    "code", ["open('x', 'w')\nadd()\nsum(range(10**15))", "add()\nimport threading\nthreading.Event().wait()"]
)
def test_a_guest_dies_with_its_host(child: Callable[..., Any], kind: str, code: str) -> None:
    """Seed: SIGKILL of the host ends its guests, even one that computes and holds every lock."""
    host = child(HOST, kind, code)
    *pids, home = [int(pid) if pid.isdigit() else pid for pid in host.line().split()]
    assert not any(gone(pid) for pid in pids)
    os.kill(host.process.pid, 9)
    assert wait_until(lambda: all(gone(pid) for pid in pids))
    assert wait_until(lambda: not os.path.exists(home))


def test_a_guest_survives_the_thread_that_started_it(engine: CPythonCells, request_of: Request) -> None:
    """Bug: the parent-death signal is sent when the parent's thread ends."""
    import threading

    state: list[bytes | None] = []

    def first() -> None:
        end = engine.open(request_of("x = 5", key="threads")).start()
        assert isinstance(end, CellEnd)
        state.append(end.state)

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    worker = engine._workers._warm["threads"]
    assert not wait_until(lambda: gone(worker.process.guest_pid), 0.2)
    end = engine.open(request_of("x", key="threads", state=state[0])).start()
    assert isinstance(end, CellEnd)
    assert end.result == 5


def test_killing_the_supervisor_kills_its_guest(locked: CPythonCells, request_of: Request) -> None:
    """Ours: without a process namespace, nothing else would kill the guest."""
    end = locked.open(request_of("x = 5", key="orphan")).start()
    assert isinstance(end, CellEnd)
    process = locked._workers._warm["orphan"].process
    os.kill(process.pid, 9)
    assert wait_until(lambda: gone(process.guest_pid))
    again = locked.open(request_of("x", key="orphan", state=end.state)).start()
    assert isinstance(again, CellEnd)
    assert again.result == 5
