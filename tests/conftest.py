"""What several test files share: fresh session ids, a clock that stands still, child processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from standfast.testing.clock import FakeClock

_numbers = itertools.count()

# How long an example takes says nothing on a busy machine; Hypothesis's own profile for CI does the same.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for whatever a script starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children would inherit it


class Child:
    """A Python process of its own group, so that it can be killed with everything it started."""

    def __init__(self, script: str, *args: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )

    def line(self) -> str:
        """The next line it prints."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            assert self.process.stderr is not None
            raise AssertionError(f"the child ended early: {self.process.stderr.read()}")
        return text.rstrip("\n")

    def output(self, timeout: float = 30) -> str:
        """Everything it prints, once it has ended well."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        return out

    def kill(self) -> None:
        """SIGKILL the whole group; harmless once it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_developer() -> Iterator[None]:
    """Keep the keys and directories of the developer who runs the tests out of them."""
    saved = {name: os.environ.pop(name, None) for name in ("STANDFAST_SNAPSHOT_KEY", "STANDFAST_HOME")}
    yield
    os.environ.update({name: value for name, value in saved.items() if value is not None})


@pytest.fixture
def sid() -> str:
    """A session id that no other test uses."""
    return f"s{next(_numbers)}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python processes and sees to it that none is left."""
    started: list[Child] = []

    def start(script: str, *args: object, env: dict[str, str] | None = None) -> Child:
        started.append(Child(script, *map(str, args), env=env))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A file to which tools of any process append a line for each effect."""
    path = tmp_path / "ledger"
    path.touch()
    return path
