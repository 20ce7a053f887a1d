"""`--workers N`: run the tests in N forked processes, after importing and collecting them once.

Theory of operation
-------------------
The parent collects as usual and forks the workers. A worker inherits every test and receives the numbers of
those that it runs; it follows pytest's own protocol and sends back the reports, which the parent hands to its
reporters.

The parent deals out whole files, so that fixtures shared by a file are started once, and the longest
first, so that no worker is left with a long one at the end. An idle worker takes half of the tests that the
busiest one has left.

Rule 1: the parent has no threads when it forks, and runs no test itself.
Rule 2: a worker holds one test more than the one it runs, because pytest asks for the next test to decide
which fixtures to keep.
Rule 3: a worker that takes too long for a test, or to end, is aborted. `faulthandler`, which pytest enables,
then prints the stacks of its threads.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import itertools
import os
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pytest
from _pytest.runner import pytest_sessionfinish as end_session_fixtures
from times import ALONE_S

_PATIENCE_S = 20
"""How long a worker that is being stopped may take to finish its test."""


class Worker:
    """The parent's side of a worker."""

    def __init__(self, number: int, session: pytest.Session, others: Iterable[Connection]) -> None:
        self.queue: deque[int] = deque()
        self.held: deque[int] = deque()
        """What it was sent and has not reported: the test it runs, and the next."""
        self.last = 0
        """The test that it has reported last."""
        self.since = time.monotonic()
        self.closing = False
        self.link, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for link in (self.link, *others):  # or the workers would not notice that the parent has gone
                link.close()
            _work(number, session, theirs)
        theirs.close()

    def send(self, index: int | None) -> None:
        """Send the number of a test, or None if there are no more."""
        if index is None:
            self.closing = True
        else:
            self.held.append(index)
        with contextlib.suppress(ConnectionError):  # it has died, as the end of its reports will show
            self.link.send(index)

    def reap(self) -> int:
        """Wait for its end and return its exit code, negative for a signal."""
        self.link.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def stop(self) -> None:
        """Let it finish its current test and end what it started; kill it if that takes too long."""
        self.link.close()
        for _ in range(_PATIENCE_S * 20):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Parent:
    """Deals out the tests of a session and reports their outcomes.

    *expected* has the seconds that each test takes, as far as they are known. It affects only the order.
    A test that takes longer than *patience_s* fails.
    """

    def __init__(self, session: pytest.Session, expected: Sequence[float], patience_s: float) -> None:
        self._session = session
        self._expected = expected
        self._patience_s = patience_s
        self._files = deque(self._grouped())
        self._workers: list[Worker] = []
        self._numbers = itertools.count()
        self.seconds: dict[str, float] = {}
        """CPU seconds of each test, with those of the processes that it started and waited for."""

    def run(self, count: int) -> None:
        """Run every test, with *count* workers."""
        for _ in range(min(count, len(self._session.items))):
            self._start()
        try:
            while self._workers:
                ready = wait([worker.link for worker in self._workers], timeout=1)
                for worker in [worker for worker in self._workers if worker.link in ready]:
                    self._receive(worker)
                self._abort_overdue()
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._workers:
                worker.stop()

    def _grouped(self) -> list[list[int]]:
        """Return the tests of each file, the files that take longest first."""
        files: dict[object, list[int]] = {}
        for index, item in enumerate(self._session.items):
            key = item.nodeid if self._expected[index] >= ALONE_S else item.path
            files.setdefault(key, []).append(index)
        return sorted(files.values(), key=self._seconds_of, reverse=True)

    def _seconds_of(self, indices: Iterable[int]) -> float:
        return sum(self._expected[index] for index in indices)

    def _start(self) -> None:
        others = [worker.link for worker in self._workers]
        worker = Worker(next(self._numbers), self._session, others)
        self._workers.append(worker)
        self._feed(worker)
        self._feed(worker)

    def _feed(self, worker: Worker) -> None:
        """Send *worker* its next test, from its queue, the remaining files or the longest queue."""
        if worker.closing:
            return
        if not worker.queue and self._files:
            worker.queue.extend(self._files.popleft())
        if not worker.queue:
            busiest = max(self._workers, key=lambda one: (self._seconds_of(one.queue), len(one.queue)))
            for _ in range((len(busiest.queue) + 1) // 2):
                worker.queue.appendleft(busiest.queue.pop())
        worker.send(worker.queue.popleft() if worker.queue else None)

    def _abort_overdue(self) -> None:
        for worker in self._workers:
            if time.monotonic() - worker.since > self._patience_s:
                os.kill(worker.pid, signal.SIGABRT)

    def _receive(self, worker: Worker) -> None:
        """Receive a worker's reports of a test, or note that it has ended."""
        config = self._session.config
        try:
            reports, seconds = worker.link.recv()
        except (EOFError, ConnectionError):
            self._remove(worker)
            return
        worker.last = worker.held.popleft()
        worker.since = time.monotonic()
        item = self._session.items[worker.last]
        self.seconds[item.nodeid] = seconds
        self._feed(worker)
        config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            if isinstance(report, dict):
                report = config.hook.pytest_report_from_serializable(config=config, data=report)
            config.hook.pytest_runtest_logreport(report=report)
        config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _remove(self, worker: Worker) -> None:
        """Remove a worker that has ended. If it died, fail its test; start another for the remaining ones."""
        self._workers.remove(worker)
        status = worker.reap()
        if status == 0 and not worker.held:
            return
        died = self._session.items[worker.held.popleft() if worker.held else worker.last]
        report = pytest.TestReport(
            nodeid=died.nodeid,
            location=died.location,
            keywords={},
            outcome="failed",
            longrepr=f"the worker ended with status {status} while it ran {died.nodeid}",
            when="call",
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.held or worker.queue or self._files:
            self._files.appendleft([*worker.held, *worker.queue])
            self._start()


def _work(number: int, session: pytest.Session, link: Connection) -> NoReturn:
    """Run the tests whose numbers arrive on *link*, in this forked process, and end it."""
    status = 1
    try:
        _leave_the_parent(number, session.config)
        with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):  # the parent is stopping
            _run_tests(session, link)
        end_session_fixtures(session)
        atexit._run_exitfuncs()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_the_parent(number: int, config: pytest.Config) -> None:
    """Stop sharing files with the parent, and leave the terminal to it."""
    config.pluginmanager.unregister(name="terminalreporter")
    captured: Any = getattr(config.pluginmanager.getplugin("capturemanager"), "_global_capturing")  # noqa: B009
    for stream in (captured.out, captured.err):
        # Modules may have kept `sys.stderr`, so the object stays and gets its own file.
        with contextlib.suppress(AttributeError, io.UnsupportedOperation), TemporaryFile(buffering=0) as own:
            os.dup2(own.fileno(), stream.tmpfile.fileno(), inheritable=False)
    factory: Any = getattr(config, "_tmp_path_factory")  # noqa: B009 - pytest has it for its own fixture
    factory._basetemp = factory.getbasetemp() / f"worker-{number}"
    factory._basetemp.mkdir(mode=0o700)
    factory._exit_stack.pop_all()  # the parent deletes old directories


def _run_tests(session: pytest.Session, link: Connection) -> None:
    reports = _Reports(session.config)
    session.config.pluginmanager.register(reports)
    index = link.recv()
    while index is not None:
        following = link.recv()
        reports.taken = []
        before = _cpu_s()
        session.config.hook.pytest_runtest_protocol(
            item=session.items[index], nextitem=None if following is None else session.items[following]
        )
        link.send((reports.taken, _cpu_s() - before))
        index = following


class _Reports:
    """Collects pytest's reports about the running test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.taken: list[pytest.TestReport | dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.longrepr is None:
            self.taken.append(report)
        else:
            hook = self._config.hook
            self.taken.append(hook.pytest_report_to_serializable(config=self._config, report=report))


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
