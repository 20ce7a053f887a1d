"""Forked workers run every test once, share the fixtures of a file, and report a worker that dies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import os, signal, sys, threading, time
import pytest

@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield
    print("module ends", file=sys.__stderr__)

@pytest.fixture(scope="session")
def ended():
    yield
    os.write(int(os.environ["ENDED"]), b"+")

@pytest.mark.parametrize("n", range(20))
def test_many(server, ended, tmp_path, n):
    print("said", n)
    os.write(1, b"written")
    assert n != 7

def test_skips(): pytest.skip("not here")

@pytest.mark.xfail(strict=True)
def test_expected(): assert 0

@pytest.fixture
def broken():
    yield
    raise ValueError("teardown")

def test_teardown(broken): pass

def test_dies(ended): os.kill(os.getpid(), signal.SIGKILL)

def test_after(ended): pass
"""
OTHER = """
import os, time

def test_other(): assert os.getpid() != int(os.environ["PARENT"])
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    here = Path(__file__).parent
    shutil.copy(here.with_name("conftest.py"), tmp_path)
    shutil.copytree(here, tmp_path / "running", ignore=shutil.ignore_patterns("test_*", "times.txt"))
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_other.py").write_text(OTHER)
    return tmp_path


def _run(suite: Path, *options: str) -> tuple[int, str, int]:
    """Run the suite with two workers; return the status, the output and how many workers exited cleanly."""
    ended, writes = os.pipe()
    environment = {**os.environ, "PARENT": str(os.getpid()), "ENDED": str(writes)}
    plugins = ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "ignore", *plugins, "--workers", "2", *options],
        cwd=suite,
        env=environment,
        pass_fds=[writes],
        capture_output=True,
        text=True,
    )
    os.close(writes)
    with os.fdopen(ended) as pipe:
        return done.returncode, done.stdout + done.stderr, len(pipe.read())


@pytest.mark.slow
def test_every_test_runs_once_and_is_reported(suite: Path) -> None:
    """Ours: outcomes, captured output and errors of fixtures arrive as if pytest had run the tests itself."""
    status, output, ended = _run(suite)
    assert status == 1
    assert re.search(r"2 failed, 22 passed, 1 skipped, 1 xfailed, 1 error in ", output), output
    assert "said 7" in output
    assert "written" in output
    assert "said 8" not in output
    assert "ValueError: teardown" in output
    assert "the worker ended with status -9 while it ran test_suite.py::test_dies" in output
    assert ended in (1, 2), "the worker that took over ends its fixtures; the one that was killed cannot"


@pytest.mark.slow
def test_after_the_first_failure_the_workers_clean_up(suite: Path) -> None:
    """Ours: `-x` must not leave servers behind."""
    (suite / "test_suite.py").write_text(SUITE.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass"))
    status, output, ended = _run(suite, "-x")
    assert status == 1
    assert re.search(r"stopping after \d failures|\d (failed|error)", output), output
    assert "Connection" not in output
    assert ended >= 1


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("where", ["test", "fixture", "fixture after a failure"])
def test_a_test_that_hangs_fails_and_shows_its_stack(suite: Path, where: str) -> None:
    """Bug: a test that waited for ever kept a CI run from ending, and nothing said which test it was."""
    wait = "    threading.Event().wait()\n"
    (suite / "test_suite.py").write_text(
        "import threading, pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def server():\n    yield\n" + ("" if where == "test" else wait) + "def test_hangs(server):\n"
        f"    assert {where != 'fixture after a failure'}\n" + (wait if where == "test" else "")
    )
    status, output, _ = _run(suite, "--patience", "2")
    assert status == 1
    assert re.search(r'test_suite.py", line \d in (test_hangs|server)', output), output
    assert "the worker ended with status -6 while it ran test_suite.py::test_hangs" in output
    assert "1 passed" in output


@pytest.mark.slow
def test_a_test_measured_as_slow_is_marked_slow(suite: Path) -> None:
    """Ours: the tests that `make test-fast` leaves out are measured, not guessed."""
    (suite / "test_other.py").write_text(
        "import pytest, time\n"
        "@pytest.mark.parametrize('text', ['a\\nb', 'é[x]'])\n"
        "def test_long(text):\n"
        "    end = time.process_time() + 0.15\n"
        "    while time.process_time() < end: pass\n"
    )
    assert _run(suite, "--write-times", "test_other.py")[0] == 0
    listed = (suite / "running" / "times.txt").read_text()
    assert re.fullmatch(r"0\.\d\d test_other.py::test_long\n", listed)
    assert "2 deselected" in _run(suite, "-m", "not slow", "test_other.py")[1]
