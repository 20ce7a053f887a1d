"""Shared by several test files: samples of large tables, fresh session ids, a clock, child processes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "running"))

import interpreters
import times
from forked_workers import Parent
from interpreters import Interpreter

from standfast.testing.clock import FakeClock
from standfast.testing.postgres_server import PostgresServer
from standfast.testing.s3_server import S3Server

_numbers = itertools.count()
_times = times.read()
_SERVERS = {"postgres", "s3"}

SEED = os.environ.setdefault("STANDFAST_TEST_SEED", str(date.today().toordinal()))
"""The number that selects a run's sample of large tables and crash points; `all` selects everything.

It changes every day, so that `make test` reaches every case in time. Workers inherit the variable.
"""


def places(name: str, step: int) -> tuple[int, int]:
    """Return the first position, from 0, in the sample of the table *name*, and the distance to the next."""
    return (0, 1) if SEED == "all" else ((int(SEED) + zlib.crc32(name.encode())) % step, step)


@pytest.hookimpl(trylast=True)  # tests selected by name or mark form their own table
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep every n-th case of a test marked `sampled(n)`, and at least one for each value of `each`."""
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            params: dict[str, Any] = getattr(item, "callspec").params  # noqa: B009 - only of parametrized tests
            each = [str(params[name]) for name in mark.kwargs.get("each", "").split()]
            tables[" ".join([item.nodeid.partition("[")[0], *each])].append(item)
    dropped: set[pytest.Item] = set()
    for name, cases in tables.items():
        start, step = places(name, cases[0].get_closest_marker("sampled").args[0])
        dropped |= set(cases) - set(cases[start % len(cases) :: step])
    if dropped:
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run the tests in this many forked processes")
    parser.addoption(
        "--patience", type=float, default=600, help="with --workers: stop a test that takes as many seconds"
    )
    parser.addoption("--write-times", action="store_true", help="with --workers: list the slow tests anew")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers; without `--workers`, pytest runs them in this process."""
    option = session.config.option
    if not option.workers or option.collectonly or option.usepdb or session.testsfailed:
        return None
    parent = Parent(session, [times.of(item, _times) for item in session.items], option.patience)
    interpreters.start()  # one for all workers
    try:
        parent.run(option.workers)
    finally:
        interpreters.close()
    if option.write_times:
        times.write(parent.seconds)
    return True


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as slow if it is listed as such, or needs a PostgreSQL or S3 server."""
    needs = set(getattr(item, "fixturenames", ()))
    if (
        spec := getattr(item, "callspec", None)
    ) is not None:  # a fixture may request the one that its parameter names
        needs.update(value for value in spec.params.values() if isinstance(value, str))
    if times.of(item, _times) > 0 or not needs.isdisjoint(_SERVERS):
        item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from every later garbage collection: 19,000 tests live to the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if SEED == "all":
        terminalreporter.write_line("every crash point and every case of the large tables")
    else:
        terminalreporter.write_line(
            f"a sample of the crash points and large tables, STANDFAST_TEST_SEED={SEED}; "
            "`make test-all` takes all"
        )


@pytest.fixture
def sampled(request: pytest.FixtureRequest) -> Callable[[int], slice]:
    """Return a function that slices a list to this test's sample: every *step*-th item, or all."""

    def every(step: int) -> slice:
        start, distance = places(request.node.nodeid, step)
        return slice(start, None, distance)

    return every


@pytest.fixture
def load() -> Callable[[int, int], int]:
    """Return the function that selects a load: *whole* in `make test-all`, *part* in `make test`."""
    return lambda whole, part: whole if SEED == "all" else part


# The duration of an example means nothing on a busy machine; Hypothesis's own CI profile does the same.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if SEED == "all" else 30,
)
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's background processes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children would inherit it


class Child:
    """A Python process in its own group, so that it can be killed with everything it started.

    It is forked from one that has imported Standfast, unless it must be a *fresh* child of this process.
    """

    def __init__(
        self, script: str, *args: str, env: dict[str, str] | None = None, fresh: bool = False
    ) -> None:
        kind = subprocess.Popen if fresh else Interpreter
        self.process = kind(
            [sys.executable, "-c", textwrap.dedent(script), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            raise AssertionError(f"the child ended early: {self.process.stderr.read()}")
        return text.rstrip("\n")

    def output(self, timeout: float = 30) -> str:
        """Return its whole output once it has ended successfully."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        return out

    def kill(self) -> None:
        """Kill the whole group with SIGKILL; harmless if it has already ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL server for all tests of this process."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")  # rclone scans its directories every few milliseconds, even when idle
def s3() -> Iterator[S3Server]:
    """Start an S3 server for the tests of a module."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _without_developer_settings() -> Iterator[None]:
    """Keep the keys and directories of the developer who runs the tests out of them."""
    names = ("STANDFAST_SNAPSHOT_KEY", "STANDFAST_HOME", "STANDFAST_STORE", "STANDFAST_BLOBS")
    saved = {name: os.environ.pop(name, None) for name in names}
    yield
    os.environ.update({name: value for name, value in saved.items() if value is not None})


@pytest.fixture(scope="session", autouse=True)
def _interpreters() -> Iterator[None]:
    """End the process that others were forked from."""
    yield
    interpreters.close()


@pytest.fixture
def sid() -> str:
    """Return a session id that no other test uses."""
    return f"s{next(_numbers)}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Return a function that starts Python processes; none is left after the test."""
    started: list[Child] = []

    def start(script: str, *args: object, env: dict[str, str] | None = None, fresh: bool = False) -> Child:
        started.append(Child(script, *map(str, args), env=env, fresh=fresh))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Return a file to which tools of any process append a line for each effect."""
    path = tmp_path / "ledger"
    path.touch()
    return path
