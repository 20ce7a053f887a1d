"""`@tool(isolate=True)`: runs the function in a process of its own, where it can crash or hang safely.

A call takes an idle worker process or starts one, sends the arguments as JSON and waits for the response. A
worker that responded is kept for the next call, so a module is loaded once and its globals last as long as
the worker. A worker that times out, dies or returns too much is killed together with the processes it
started.

Rules
-----
1. Only JSON crosses the pipe. Nothing is unpickled; exceptions are rebuilt by name from a fixed list.
2. A worker serves one call at a time, and ends with its host process.
3. A function that another process could not import is refused when it is decorated.
4. A response contains the nonce of its request. A worker that sends anything else is killed.
"""

from __future__ import annotations

import inspect
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from standfast.errors import Code, InvalidArgument, ToolError
from standfast.model.canonical import Json
from standfast.model.capability import Capability, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.tracebacks import PASSED_ON, with_traceback

HEADER: Final = struct.Struct(">I")
"""A frame is its length and then that many bytes of JSON."""
MAX_IDLE: Final = 2
_SLACK_BYTES: Final = 65_536
_CHUNK_BYTES: Final = 1 << 16
_LAST_WORDS_S: Final = 1.0


class FunctionLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tool's function is, and the contract that it was registered with. `path` is `sys.path`."""

    name: str
    file: str
    module: str
    qualname: str
    digest: str
    path: list[str]


class IsolatedCall(msgspec.Struct, frozen=True, kw_only=True):
    nonce: str
    target: FunctionLocation
    args: list[Json]
    kwargs: dict[str, Json]


class ProcessFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure in a worker: `code` if it has an error code, otherwise `type`, the exception's class name."""

    message: str
    code: str | None = None
    type: str | None = None
    hint: str | None = None
    traceback: str | None = None


class ProcessAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    nonce: str
    value: Json = None
    error: ProcessFailure | None = None


def isolated(tool: RegisteredTool) -> RegisteredTool:
    """Return *tool* with a handler that runs it in a worker process; raise if that could not import it."""
    function = inspect.unwrap(tool.handler)
    qualname = getattr(function, "__qualname__", "<unknown>")
    names = getattr(function, "__globals__", {})
    file = names.get("__file__")
    if "<" in qualname or not isinstance(file, str) or not os.path.isfile(file):
        raise InvalidArgument(
            f"tool {tool.name}() cannot be isolated: {qualname} cannot be imported by another process",
            hint="define it with def at the top level of a module that is in a file",
        )
    spec = names.get("__spec__")
    target = FunctionLocation(
        name=tool.name,
        file=os.path.abspath(file),
        module=spec.name if spec is not None else str(names.get("__name__", "__main__")),
        qualname=qualname,
        digest=tool.digest,
        path=[],
    )
    handler = _Workers(target, tool.capability).call
    return msgspec.structs.replace(tool, handler=handler, async_mode=False, isolate=True)


class _Died(Exception):
    """The worker's pipe was closed before its response was complete."""


class _TooLarge(Exception):
    """The response is larger than the limit."""


class _Workers:
    """The worker processes of one tool."""

    def __init__(self, target: FunctionLocation, capability: Capability) -> None:
        self._target = target
        self._name = capability.name
        self._limits = capability.limits
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        weakref.finalize(self, _kill_all, self._idle)  # also at exit

    def call(self, context: ToolCallContext, *, timeout_ms: int | None = None) -> Json:
        """Run one call; if the worker fails, raise `ToolError`."""
        timeout_ms = timeout_ms or self._limits.timeout_ms or SANDBOX_TIMEOUT_MS
        deadline = time.monotonic() + timeout_ms / 1000
        target = msgspec.structs.replace(self._target, path=list(sys.path))
        nonce = secrets.token_hex(16)
        request = IsolatedCall(nonce=nonce, target=target, args=context.args, kwargs=context.kwargs)
        worker = self._take()
        try:
            max_bytes = self._limits.max_response_bytes * 2 + _SLACK_BYTES
            data = worker.ask(msgspec.json.encode(request), max_bytes, deadline)
            answer = msgspec.json.decode(data, type=ProcessAnswer)
            if answer.nonce != nonce:
                raise msgspec.DecodeError("the response does not belong to the request")
        except BaseException as error:
            status = worker.end(deadline if isinstance(error, _Died) else 0)
            self._explain(error, status, timeout_ms)
        with self._lock:
            keep = len(self._idle) < MAX_IDLE
            if keep:
                self._idle.append(worker)
        if not keep:
            worker.end()
        failure = answer.error
        if failure is None:
            return answer.value
        kind, message = failure.type or "RuntimeError", failure.message
        raised: Exception = RuntimeError(f"{kind}: {message}" if message else kind)
        if failure.code is not None:
            raised = ToolError(failure.code, message, hint=failure.hint)
        elif kind in PASSED_ON:
            raised = PASSED_ON[kind](message)
        raise with_traceback(raised, failure.traceback)

    def _explain(self, error: BaseException, status: str, timeout_ms: int) -> NoReturn:
        match error:
            case _Died():
                raise ToolError(Code.TOOL_ERROR, f"{self._name}() ended its process ({status})") from None
            case TimeoutError():
                message = f"{self._name}() did not answer within {timeout_ms} ms"
                raise ToolError(Code.TIMEOUT_TOOL, message) from None
            case _TooLarge():
                raise ToolError(
                    Code.RESPONSE_TOO_LARGE,
                    f"{self._name}() returned {error} bytes, the limit is {self._limits.max_response_bytes}",
                ) from None
            case msgspec.MsgspecError():
                raise ToolError(Code.TOOL_ERROR, f"the worker of {self._name}() broke its protocol") from None
            case _:
                raise error

    def _take(self) -> _Worker:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return _Worker()
            if worker.usable():
                return worker
            worker.end()


class _Worker:
    """One worker process and the pipes to it, which never block past a deadline."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "standfast.tools.isolation_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._host_pid = os.getpid()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)

    def usable(self) -> bool:
        """Whether the worker is alive, idle and started by this process, not by one that forked it."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        return self._host_pid == os.getpid() and self._process.poll() is None and not poll.poll(0)

    def ask(self, data: bytes, max_bytes: int, deadline: float) -> bytes:
        """Send one frame and return the response frame."""
        view = memoryview(HEADER.pack(len(data)) + data)
        try:
            while view:
                _wait_for(self._in, select.POLLOUT, deadline)
                with suppress(BlockingIOError):
                    view = view[os.write(self._in, view) :]
        except BrokenPipeError:
            raise _Died from None
        size = HEADER.unpack(self._read(HEADER.size, deadline))[0]
        if size > max_bytes:
            raise _TooLarge(size)
        return self._read(size, deadline)

    def end(self, wait_until: float = 0) -> str:
        """Kill the process and its descendants, unless it ends before *wait_until*; return its status."""
        if self._host_pid != os.getpid():
            return "unknown"
        if wait_until:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(min(_LAST_WORDS_S, max(0, wait_until - time.monotonic())))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        status = self._process.returncode
        if status >= 0:
            return f"exit status {status}"
        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait_for(self._out, select.POLLIN, deadline)
            chunk = os.read(self._out, min(_CHUNK_BYTES, size - len(data)))
            if not chunk:
                raise _Died
            data += chunk
        return bytes(data)


def _wait_for(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    remaining_ms = (deadline - time.monotonic()) * 1000
    if remaining_ms <= 0 or not poll.poll(remaining_ms):
        raise TimeoutError


def _kill_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()
