"""`standfast mcp http` as a process, for tests of its clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import interpreters

TOKEN = "a-token-for-tests-only"


@contextmanager
def mcp_http_server(home: Path, *options: str, port: int = 0) -> Iterator[str]:
    """Run the server over the data in *home* and yield its URL."""
    if not port:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
    command = [sys.executable, "-m", "standfast", "mcp", "http", *options]
    process = interpreters.Interpreter(
        [*command, "--listen", f"127.0.0.1:{port}", "--data-dir", str(home)],
        env={**os.environ, "STANDFAST_MCP_TOKEN": TOKEN},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        assert process.wait(30) in (0, -15)
