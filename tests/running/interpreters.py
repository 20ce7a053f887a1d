"""Python processes at the price of a fork: a server imports Standfast once and forks for each program.

Theory of operation
-------------------
`Interpreter` is a `subprocess.Popen` for command lines of Python: `[sys.executable, "-c", script, ...]`, also
with `-m`, with a file, and after `nsenter`. It sends the command and its pipes to the server, which has no
threads. The server forks; the child takes over pipes, environment and directory, and runs the program as an
interpreter would. The server waits for its children and passes on their statuses.

Rule: the server only imports. It opens no store and calls nothing, so that no two children share state.

Not here: tests of interpreter start-up, imports or zombies. They use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from typing import IO, Any, NoReturn

import standfast

_PR_SET_PDEATHSIG = 1


class _Server:
    """The process that forks. It ends with this one."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._link, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )

    def fork(self, job: dict[str, Any], streams: list[int]) -> tuple[int, IO[str]]:
        """Fork a process. Return its id, and the file that will contain its status."""
        words = os.memfd_create("job")
        reads, writes = os.pipe()
        try:
            with os.fdopen(words, "w", closefd=False) as file:
                json.dump(job, file)
            socket.send_fds(self._link, [b"+"], [words, *streams, writes])
        finally:
            os.close(words)
            os.close(writes)
        news = os.fdopen(reads)
        what, pid = news.readline().split()
        assert what == "pid", f"the process ended at its start: {what} {pid}"
        return int(pid), news

    def close(self) -> None:
        self._link.close()
        self._process.kill()  # and with it everything that a test left running
        self._process.wait()


_server: _Server | None = None


def start() -> _Server:
    """Return the server of this process, or of the one it was forked from; start it if there is none."""
    global _server
    if _server is None:
        _server = _Server()
    return _server


def close() -> None:
    """End the server, if this process has started it."""
    global _server
    if _server is not None and _server.owner == os.getpid():
        _server.close()
        _server = None


class Interpreter(subprocess.Popen[str]):
    """A process that runs a Python program, forked from the server; for pipes of text."""

    _news: IO[str]

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        *rest: Any,
    ) -> None:
        """Start the process; `Popen` calls this method."""
        *_, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _, _, _, _, _, new_session, _ = rest
        program = args.index(sys.executable)
        assert args[:program] in ([], ["nsenter", "-t", *args[2:3], "-n", "-u"]), args
        job = {
            "host": args[2] if program else None,
            "args": [str(one) for one in args[program + 1 :]],
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": bool(new_session),
        }
        streams = [
            given if given >= 0 else number for number, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self.pid, self._news = start().fork(job, streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return the id and the status of the process, or zeros if it is running."""
        if wait_flags & os.WNOHANG and not select.select([self._news], [], [], 0)[0]:
            return 0, 0
        status = int(self._news.readline().removeprefix("status "))
        self._news.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(
    command: list[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    input: str | None = None,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Interpreter(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork for each job that arrives on *link*. Return the job in a child, and None after the last one."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    news: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([link.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
        while news and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with contextlib.suppress(BrokenPipeError):  # the client has gone
                os.write(news[ended[0]], b"status %d\n" % ended[1])
            os.close(news.pop(ended[0]))
        if link.fileno() not in ready:
            continue
        _, files, _, _ = socket.recv_fds(link, 1, 5)
        if not files:
            return None
        words, *streams, status = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (link.detach(), woken, wake, *news.values()):
                os.close(one)
            return _take_over(words, streams, status)
        news[pid] = status
        for one in (words, *streams):
            os.close(one)


def _take_over(words: int, streams: list[int], status: int) -> dict[str, Any]:
    """Turn this forked process into the requested one, and return its job."""
    os.lseek(words, 0, os.SEEK_SET)
    with os.fdopen(words) as file:
        job: dict[str, Any] = json.load(file)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives the server
    if job["new_session"]:
        os.setsid()
    if job["host"] is not None:
        for kind in ("net", "uts"):
            with open(f"/proc/{job['host']}/ns/{kind}") as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0, kind
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    random.seed()
    os.write(status, b"pid %d\n" % os.getpid())
    os.close(status)
    return job


def _run_and_exit(args: list[str]) -> NoReturn:
    """Run a program and end this process without destroying every module, which takes longest."""
    status = 0
    try:
        _play(args)
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        status = status or 120
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _play(args: list[str]) -> None:
    """Run a program as the interpreter would with these arguments."""
    while args[0] == "-W":
        warnings.simplefilter(args[1])  # type: ignore[arg-type]
        args = args[2:]
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if args[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *args[2:]], ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(args[1], "<string>", "exec"), main.__dict__)
    elif args[0] == "-m":
        sys.argv, sys.path[0] = args[1:], os.getcwd()
        sys.modules.pop(args[1], None)  # otherwise `runpy` warns that it is imported and run
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    for found in pkgutil.walk_packages(standfast.__path__, "standfast."):
        if not re.search(r"\.__main__|\.cpython\.guest|\.testing\.postgres", found.name):
            importlib.import_module(found.name)
    gc.collect()
    gc.freeze()
    if (job := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run_and_exit(job["args"])
