"""Worker processes: limited in number, warm, never shared, replaced when they die, gone with the engine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import Code
from standfast.ports.code_engine import CallAnswer, CellEnd, CellPause, CellRequest, CellStep
from standfast.sandbox.cpython import messages, workers
from standfast.sandbox.cpython.cell_engine import CPythonCells
from standfast.sandbox.cpython.jail import Jail, JailProcess
from standfast.sandbox.worker_process import WorkerDied

pytestmark = pytest.mark.slow

Request = Callable[..., CellRequest]


def ended(step: CellStep) -> CellEnd:
    assert isinstance(step, CellEnd), step
    return step


def value(of: Any) -> CallAnswer:
    return CallAnswer(value=of)


def children(pid: int) -> list[int]:
    """Return all live descendants of this process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes(worker: workers.CPythonWorker) -> list[int]:
    """Return all processes of a jail."""
    return [worker.process.pid, *children(worker.process.pid)]


@pytest.mark.slow
def test_waiting_cells_let_others_run(other: CPythonCells, request_of: Request) -> None:
    """Ours: two slots are enough for any number of sessions that wait for slow calls."""
    runs = [
        other.open(request_of(f"print('k{n}')\nx = add({n})\ny = await fetch(x)\n[{n}, x, y]", key=f"k{n}"))
        for n in range(5)
    ]
    for run in runs:
        assert isinstance(run.start(), CellPause)
    for n, run in reversed(list(enumerate(runs))):
        assert isinstance(run.answer(1, value(n * 10)), CellPause)
    for n, run in enumerate(runs):
        end = ended(run.answer(2, value("y")))
        assert (end.result, end.stdout) == ([n, n * 10, "y"], f"k{n}\n")


@pytest.mark.slow
def test_a_cell_waits_for_a_slot_until_another_cell_pauses(request_of: Request) -> None:
    """Ours: sessions whose calls need cells must not deadlock."""
    cells = CPythonCells(capacity=1)
    try:
        with ThreadPoolExecutor(6) as pool:

            def nested(depth: int) -> int:
                run = cells.open(request_of(f"add({depth}) + 1", key=f"d{depth}"))
                run.start()
                inner = pool.submit(nested, depth - 1).result(20) if depth else 0
                return int(ended(run.answer(1, value(inner))).result)

            assert pool.submit(nested, 3).result(20) == 4
    finally:
        cells.close()


def test_abandoned_cells_free_their_workers(other: CPythonCells, request_of: Request) -> None:
    """Ours: a turn that ends early must not lose a worker."""
    for n in range(4):
        run = other.open(request_of("add(1)", key=f"k{n}"))
        run.start()
        run.close()
        run.close()
    assert ended(other.open(request_of("1")).start()).result == 1


def test_a_worker_that_died_while_idle_is_replaced(engine: CPythonCells, request_of: Request) -> None:
    """Ours: a worker's data is always also in the stored state."""
    end = ended(engine.open(request_of("x = 1", key="dies")).start())
    worker = engine._workers._warm["dies"]
    os.kill(worker.process.guest_pid, signal.SIGKILL)
    assert ended(engine.open(request_of("x", key="dies", state=end.state)).start()).result == 1


def test_a_process_is_kept_warm_for_its_session_and_never_serves_another(
    engine: CPythonCells, request_of: Request
) -> None:
    """Ours: two sessions never share a worker."""
    code = "import sys\nsys.secret = getattr(sys, 'secret', '') + 'x'\nsys.secret"
    first = ended(engine.open(request_of(code, key="one")).start())
    assert ended(engine.open(request_of(code, key="one", state=first.state)).start()).result == "xx"
    assert ended(engine.open(request_of(code, key="two")).start()).result == "x"
    assert ended(engine.open(request_of(code, key="three", state=first.state)).start()).result == "x"


def test_an_idle_process_does_nothing(engine: CPythonCells, request_of: Request) -> None:
    """Ours: a thread that code left behind does not run in the background."""
    ended(engine.open(request_of("x = 1", key="idle")).start())
    worker = engine._workers._warm["idle"]
    status = Path(f"/proc/{worker.process.guest_pid}/status")
    deadline = time.monotonic() + 10
    while "State:\tT" not in status.read_text():
        assert time.monotonic() < deadline
        os.sched_yield()
    code = "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()"
    end = ended(engine.open(request_of(code, key="busy")).start())
    assert end.error is None
    assert "busy" not in engine._workers._warm


def test_a_process_with_unread_output_is_not_used_again(engine: CPythonCells, request_of: Request) -> None:
    """Bug: frames that one run had written were read by the next."""
    first = ended(engine.open(request_of("x = 1", key="talks")).start())
    worker = engine._workers._warm["talks"]
    worker.process._frames._rest = b"\0"  # as if it had arrived with the last frame
    assert ended(engine.open(request_of("x", key="talks", state=first.state)).start()).result == 1
    assert engine._workers._warm["talks"] is not worker


def test_every_run_has_its_own_nonce(engine: CPythonCells, request_of: Request) -> None:
    """Ours: a frame is valid only in the run that wrote it."""
    seen, state = set(), b""
    for n in range(4):
        end = ended(engine.open(request_of(f"x = {n}", key="nonce", state=state)).start())
        state = end.state or state
        seen.add(engine._workers._warm["nonce"].nonce)
    assert len(seen) == 4
    assert messages.NO_RUN not in seen


def test_a_process_with_an_uncounted_thread_is_not_kept(engine: CPythonCells, request_of: Request) -> None:
    """Bug: threads that code started without `threading` kept running in the next run."""
    code = "import _thread\nstarts, ends = _thread.allocate_lock(), _thread.allocate_lock()\n"
    code += "starts.acquire()\nends.acquire()\ndef go():\n    starts.release()\n    ends.acquire()\n"
    code += "_thread.start_new_thread(go, ())\nstarts.acquire()\ndel starts, ends, go"
    assert ended(engine.open(request_of(code, key="hidden")).start()).error is None
    assert "hidden" not in engine._workers._warm


def test_a_process_is_replaced_after_its_maximum_number_of_runs(
    engine: CPythonCells, request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: a process is recycled after a number of runs."""
    monkeypatch.setattr(workers, "MAX_RUNS", 3)
    pids, state = set(), b""
    for n in range(5):
        end = ended(engine.open(request_of(f"x = {n}", key="old", state=state)).start())
        state = end.state or state
        pids.add(engine._workers._warm["old"].process.guest_pid)
    assert len(pids) == 2


def test_many_sessions_run_concurrently(engine: CPythonCells, request_of: Request) -> None:
    """Ours: one engine serves many threads."""

    def session(n: int) -> list[int]:
        state, seen = b"", []
        for step in range(3):
            run = engine.open(request_of(f"x = add({n})\nx", key=f"m{n}", state=state))
            run.start()
            end = ended(run.answer(1, value(n * 100 + step)))
            state = end.state or state
            seen.append(end.result)
        return seen

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(session, range(6)))
    assert results == [[n * 100 + step for step in range(3)] for n in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_closing_the_engine_leaves_nothing_behind(kind: Any, request_of: Request, tmp_path: Path) -> None:
    """Seed: shutdown leaves no process behind, even after a fork bomb and in the middle of a run."""
    cells = CPythonCells(capacity=3, kind=kind)
    ended(cells.open(request_of("x = 1", key="warm")).start())
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    standing = cells.open(request_of("add(1)", key="stands"))
    standing.start()
    running = cells.open(request_of(bomb, key="bomb"))
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(running.start)
        while running not in cells.live or running._stepper.worker is None:  # type: ignore[attr-defined]
            os.sched_yield()
        used = [cells._workers._warm["warm"], standing._stepper.worker, running._stepper.worker]  # type: ignore[attr-defined]
        homes = [worker.process.home for worker in used if worker is not None]
        pids = [pid for worker in used if worker is not None for pid in processes(worker)]
        cells.close()
        end = ended(step.result(10))
        assert end.error is not None
        assert (end.error.code, end.hard) == (Code.CANCELLED, True)
    stood = ended(standing.answer(1, value(None)))
    assert stood.error is not None
    assert stood.error.code == Code.CANCELLED
    assert len(pids) >= 6
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not any(home is not None and Path(home).exists() for home in homes)


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
def test_closing_a_jail_waits_until_all_its_processes_are_gone(kind: Any) -> None:
    """Bug: on a busy machine, the supervisor was still exiting when `close` returned."""
    jail = Jail(kind)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(5):
            process = jail.start()
            process.wait_until_ready()
            pids = [process.pid, *children(process.pid)]
            process.close()
            assert len(pids) >= 2
            assert [pid for pid in pids if is_alive(pid)] == []
    finally:
        for other in busy:
            other.kill()
            other.wait()


def test_closing_the_engine_reaps_the_process_of_a_paused_cell(request_of: Request) -> None:
    """Bug: the process was killed but stayed a zombie until the host ended."""
    cells = CPythonCells(capacity=2)
    run = cells.open(request_of("add(1)", key="stands"))
    assert isinstance(run.start(), CellPause)
    worker = run._stepper.worker  # type: ignore[attr-defined]
    assert worker is not None
    cells.close()
    assert not Path(f"/proc/{worker.process.pid}").exists()
    assert ended(run.answer(1, value(2))).error is not None


SILENT = "import threading\nprint('up')\nthreading.Event().wait()"


def test_the_wall_limit_holds_after_the_jail_is_killed_from_outside(
    jailed: CPythonCells, request_of: Request
) -> None:
    """Bug: once the host's direct child had died, the guest was never killed."""
    run = jailed.open(request_of(SILENT, key="orphan", limits={"wall_ms": 3_000}))
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.start)
        while not run.printed().stdout:
            os.sched_yield()
        worker = run._stepper.worker  # type: ignore[attr-defined]
        assert worker is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        try:
            error = ended(step.result(30)).error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.guest_pid, signal.SIGKILL)
    assert error is not None
    assert error.code in (Code.TIMEOUT_WALL, Code.INTERRUPTED)
    assert not is_alive(worker.process.guest_pid)


def test_a_stop_does_not_wait_for_a_process_that_does_not_exit(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the caller waited until the kernel had removed the jail, however long that took."""
    gone = threading.Event()
    close = JailProcess.close

    def slow(self: JailProcess) -> None:
        assert gone.wait(30)
        close(self)

    cells = CPythonCells(capacity=1)
    monkeypatch.setattr(JailProcess, "end", lambda self, patience_s: self.kill())
    monkeypatch.setattr(JailProcess, "close", slow)
    workers = cells._started()
    end = ended(cells.open(request_of(SILENT, limits={"wall_ms": 1_500})).start())
    assert end.error is not None
    assert end.error.code == Code.TIMEOUT_WALL
    assert (workers.ending(), workers._free) == (1, 0), "it counts until it is gone"
    gone.set()
    monkeypatch.undo()
    assert ended(cells.open(request_of("1")).start()).result == 1, "its slot is free again"
    cells.close()
    assert workers.ending() == 0


def test_a_kill_closes_the_connection_even_if_the_process_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a process may hang in the kernel, where nothing can kill it for a while."""
    process = Jail().start()
    process.wait_until_ready()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: None)
            patch.setattr(signal, "pidfd_send_signal", lambda *_: None)
            process.kill()
            with pytest.raises(WorkerDied):
                process.receive()
    finally:
        process.close()


def test_a_stop_ends_the_wait_for_a_jail_that_does_not_start(
    request_of: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run whose jail was still starting ended only once it had started, or a minute later."""
    monkeypatch.setattr(Jail, "start", lambda self: JailProcess(["sleep", "1000"], None))
    cells = CPythonCells(capacity=1)
    end = ended(cells.open(request_of("1", limits={"wall_ms": 200})).start())
    assert end.error is not None
    assert end.error.code == Code.TIMEOUT_WALL
    cells.prepare()
    cells.close()


def test_an_unused_engine_starts_no_process() -> None:
    """Ours: creating an engine costs nothing."""
    cells = CPythonCells()
    cells.close()
    assert cells._workers is None


def test_a_process_is_started_before_it_is_needed(request_of: Request) -> None:
    """Seed: a spare process hides the cold start."""
    cells = CPythonCells(capacity=1)
    try:
        cells.prepare()
        making = cells._workers._making
        if making is not None:
            making.join()
        spare = cells._workers._spare
        assert spare is not None
        run = cells.open(request_of("1 + add(1)"))
        run.start()
        assert run._stepper.worker is spare  # type: ignore[attr-defined]
        assert ended(run.answer(1, value(1))).result == 2
    finally:
        cells.close()
