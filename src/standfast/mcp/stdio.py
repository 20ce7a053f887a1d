"""A server that is a child process: its environment, limits, pipes and termination.

The SDK's own transport inherits variables of the host and reads lines of any length, so this one replaces it.

Rules
-----
1. The child sees only `PATH` and the variables that the user names. It leads its own session and process
   group, which is killed as a whole. Its limits are set before its program starts, so that its own children
   inherit them.
2. A message has at most `MAX_MESSAGE_BYTES`. Between two calls a server may send at most `MAX_MESSAGES`
   messages and `MAX_BYTES` bytes; a server that sends more is terminated.
3. Lines that are not JSON-RPC are dropped, but count. The last `STDERR_BYTES` of the child's stderr are kept
   for error messages.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.mcp.jail import McpJail

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES: Final = 16 << 20
MAX_MESSAGES: Final = 10_000
MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 4096
STDERR_BYTES: Final = 4096
GRACE_S: Final = 1.0
"""The grace period for a server to exit after its stdin is closed, and again after SIGTERM."""


@dataclass(slots=True)
class Allowance:
    """The remaining allowance of a server until the next call, and why it was cut off."""

    messages: int = MAX_MESSAGES
    size: int = MAX_BYTES
    problem: str = ""

    def renew(self) -> None:
        self.messages, self.size = MAX_MESSAGES, MAX_BYTES

    def take(self, size: int) -> bool:
        """Count a message; return whether it was within the allowance."""
        self.messages -= 1
        self.size -= size
        if self.messages < 0 or self.size < 0:
            self.problem = f"sent more than {MAX_MESSAGES} messages or {MAX_BYTES} bytes for one call"
        return not self.problem


_LAUNCHER: Final = """
import json, os, resource, sys
given = json.loads(sys.argv[1])
for name, most in given["limits"].items():
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
env = {name: os.environ[name] for name in given["env"] if name in os.environ}
os.execve(sys.argv[2], sys.argv[2:], env)
"""
"""Sets limits and execs the server. A shell would add variables, and `preexec_fn` can deadlock."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a server and each of its children: data memory, CPU time, open files."""

    memory_mb: int | None = None
    cpu_s: int | None = None
    files: int = MAX_FILES

    def wrapped(self, command: Sequence[str], names: Iterable[str]) -> list[str]:
        """Return *command* wrapped to start under these limits, with only the variables *names*."""
        wanted = {
            "RLIMIT_CORE": 0,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_DATA": None if self.memory_mb is None else self.memory_mb << 20,
        }
        given = {"limits": {key: one for key, one in wanted.items() if one is not None}, "env": list(names)}
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, json.dumps(given), *command]


@dataclass(slots=True)
class ServerProcess:
    """How to start a server, and its state while it runs."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    jail: McpJail | None = None
    allowance: Allowance = field(default_factory=Allowance)
    stderr: bytes = b""
    pid: int | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Start the command; raise `OSError` if it cannot be started."""
        env = {"PATH": os.environ.get("PATH", os.defpath), **self.env}
        command = [self._program(env["PATH"]), *self.command[1:]]
        if self.jail is not None:
            command = await asyncio.to_thread(self.jail.wrapped, command, self.cwd)
        process = await asyncio.create_subprocess_exec(
            *self.limits.wrapped(command, env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=self.cwd,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        self.pid = process.pid
        return process

    def _program(self, path: str) -> str:
        """Return the file of the program, as *path* leads to it; raise `OSError` if it cannot be executed."""
        program = self.command[0]
        named = os.path.join(self.cwd or "", program) if "/" in program else program
        if (found := shutil.which(named, path=path)) is None:
            code = errno.EACCES if "/" in program and os.path.exists(named) else errno.ENOENT
            raise OSError(code, os.strerror(code), program)
        return found

    def last_words(self) -> str:
        """Return the last line on stderr that names an error, else the last one, for an error message."""
        lines = [one for one in self.stderr.decode("utf-8", "replace").splitlines() if one.strip()]
        errors = [one for one in lines if "error" in one.lower()]
        return (errors or lines or [""])[-1].strip()[:300]


class IncomingMessages:
    """The messages that the child writes, until it exits, floods, or the session is gone.

    It is the read stream of the SDK's session, which takes the messages straight from the pipe.
    """

    def __init__(self, stdout: asyncio.StreamReader, allowance: Allowance, ended: asyncio.Event) -> None:
        from mcp_types import jsonrpc_message_adapter

        self._stdout = stdout
        self._allowance = allowance
        self._ended = ended
        self._parse = jsonrpc_message_adapter.validate_json
        self.take_reply: Callable[[bytes], Awaitable[bool]] | None = None
        """Takes a line that is not for the session, and returns True."""
        self.on_end: Callable[[], None] | None = None

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def __aiter__(self) -> IncomingMessages:
        return self

    async def __anext__(self) -> SessionMessage:
        from mcp.shared.message import SessionMessage

        while not self._ended.is_set():
            try:
                line = await self._stdout.readline()
            except ValueError:
                self._allowance.problem = f"sent a message of more than {MAX_MESSAGE_BYTES} bytes"
                break
            except ConnectionError:
                break
            if not line or not self._allowance.take(len(line)):
                break
            try:
                if self.take_reply is None or not await self.take_reply(line):
                    return SessionMessage(self._parse(line, by_name=False))
            except (ValueError, RecursionError):
                await asyncio.sleep(0)  # a flood of noise must not delay other sessions
        await self.aclose()
        raise StopAsyncIteration

    async def receive(self) -> SessionMessage:
        return await anext(self)

    async def aclose(self) -> None:
        self._ended.set()
        if self.on_end is not None:
            self.on_end()

    async def __aenter__(self) -> IncomingMessages:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class OutgoingMessages:
    """The write stream of the SDK's session, which writes messages straight to the pipe.

    A child that stops reading, or has closed its end, ends the connection.
    """

    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin
        self.listing_meta: dict[str, Any] = {}
        """The `_meta` with which the session listed the tools; all its requests have the same."""

    async def send(self, item: SessionMessage) -> None:
        if getattr(item.message, "method", "") == "tools/list":
            self.listing_meta = (getattr(item.message, "params", None) or {}).get("_meta") or {}
        await self._send(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def write(self, message: dict[str, Any]) -> None:
        """Send a message that is not the session's; raise `BrokenResourceError` if it cannot be sent."""
        await self._send(msgspec.json.encode(message))

    def write_soon(self, message: dict[str, Any]) -> None:
        """Send a message without waiting; drop it if the pipe is closed."""
        with suppress(OSError, RuntimeError):
            self._stdin.write(msgspec.json.encode(message) + b"\n")

    async def _send(self, text: bytes) -> None:
        from anyio import BrokenResourceError

        try:
            self._stdin.write(text + b"\n")
            await self._stdin.drain()
        except (OSError, RuntimeError):
            raise BrokenResourceError from None

    async def aclose(self) -> None:
        self._stdin.close()

    async def __aenter__(self) -> OutgoingMessages:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


@asynccontextmanager
async def stdio_transport(
    server: ServerProcess, ended: asyncio.Event
) -> AsyncIterator[tuple[IncomingMessages, OutgoingMessages]]:
    """Start the server and connect to its pipes; terminate its whole process group on exit.

    *ended* is set when the server has closed its output, or was cut off.
    """
    process = await server.start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = process.stderr

    async def read_stderr() -> None:
        with suppress(ConnectionError):
            while chunk := await stderr.read(STDERR_BYTES):
                server.stderr = (server.stderr + chunk)[-STDERR_BYTES:]

    errors = asyncio.create_task(read_stderr())
    try:
        yield IncomingMessages(process.stdout, server.allowance, ended), OutgoingMessages(process.stdin)
    finally:
        await asyncio.shield(asyncio.ensure_future(_end(process, errors)))


async def _end(process: asyncio.subprocess.Process, errors: asyncio.Task[None]) -> None:
    """Close stdin, then send SIGTERM and SIGKILL to the process group, each after a grace period."""
    assert process.stdin is not None
    process.stdin.close()
    await _exited(process)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)  # orphaned children are still in its group
            await _exited(process)
    errors.cancel()
    await asyncio.gather(errors, return_exceptions=True)
    process._transport.close()  # type: ignore[attr-defined]  # a grandchild may hold the pipes open


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Wait up to `GRACE_S` for the process to exit; `Process.wait` would also wait for its pipes."""
    deadline = asyncio.get_running_loop().time() + GRACE_S
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
