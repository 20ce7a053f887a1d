"""Errors that name the process which is stopped inside a write transaction and blocks other writers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from page_damage import COMPONENTS

from standfast.errors import StoreUnavailable
from standfast.store.sqlite import database as database_module
from standfast.store.sqlite.connection import LockWait
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.lock_holders import find_lock_holder

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux")

_HOLDER = """
import os, signal, sys
from page_damage import open_database
from pathlib import Path

def stop(db):
    db.execute("CREATE TABLE never (a)")
    print("inside", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

database = open_database(Path(sys.argv[1]))
database.write(stop)
database.close()
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is stopped in the middle of a transaction."""
    command = [sys.executable, "-c", textwrap.dedent(_HOLDER), str(tmp_path / "standfast.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    assert process.stdout is not None
    assert process.stdout.readline() == "inside\n"
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    yield process
    process.kill()
    process.communicate()


def test_an_error_names_the_process_that_is_stopped_inside_a_transaction(
    tmp_path: Path, stopped: subprocess.Popen[str]
) -> None:
    """Bug: writers got an error that the file was locked, without the process that locked it."""
    path = tmp_path / "standfast.db"
    with contextlib.closing(Database(path, COMPONENTS, busy_timeout_ms=50)) as database:
        with pytest.raises(StoreUnavailable, match=f"process {stopped.pid} .*stopped") as raised:
            database.write(lambda db: None)
        assert f"kill -CONT {stopped.pid}" in (raised.value.hint or "")
        assert database.read(lambda db: db.execute("SELECT count(*) FROM turns").get) == 0
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.wait(60) == 0
        database.write(lambda db: None)
        assert find_lock_holder(path) is None


def test_killing_the_lock_holder_frees_the_file_and_rolls_back_its_transaction(
    tmp_path: Path, stopped: subprocess.Popen[str]
) -> None:
    """Ours: killing the stopped process is enough to let the others write."""
    with contextlib.closing(Database(tmp_path / "standfast.db", COMPONENTS, busy_timeout_ms=50)) as database:
        stopped.kill()
        stopped.wait(60)
        database.write(lambda db: None)
        found = database.read(lambda db: db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'never'").get)
        assert found is None


def test_an_error_names_the_program_that_keeps_a_file_from_being_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: an operator who upgrades must know which program to stop."""
    import apsw

    path = tmp_path / "old.db"
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE t (a)")
    monkeypatch.setattr(database_module, "UPGRADE_TIMEOUT_MS", 50)
    script = (
        "import apsw, sys; db = apsw.Connection(sys.argv[1]); db.execute('BEGIN EXCLUSIVE'); "
        "print('has it', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(StoreUnavailable, match=f"locked by process {other.pid} "):
            Database(path, busy_timeout_ms=50)
        other.communicate("\n")
    Database(path).close()


def test_after_a_timeout_waits_are_short_for_as_long_as_that_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours: writes behind a stopped process do not wait ten seconds each."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slept(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "sleep", slept)
    patience = LockWait(10_000)

    def waited() -> float:
        began = now
        for attempt in count():
            if not patience(attempt):
                return now - began
        raise AssertionError

    assert waited() == pytest.approx(10, abs=0.01)
    assert waited() == pytest.approx(1, abs=0.01)
    now += 9.5
    assert waited() == pytest.approx(1, abs=0.01)
    now += 10
    assert waited() == pytest.approx(10, abs=0.01)
