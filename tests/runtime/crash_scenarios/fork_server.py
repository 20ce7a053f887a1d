"""Runs scenarios in separate processes at the cost of a fork: it imports everything once.

It reads one JSON object per line: `scenario`, `home`, `crash_at`, `how`. For each it forks a child, waits for
its end and prints the outcome: the child's report, `killed`, or the signal it died of. It has no threads, so
that forking is safe.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any

import scenarios

import standfast.store.postgres.sessions
import standfast.store.sqlite.sessions  # noqa: F401 (what is imported here is not imported by each child)
from standfast.testing.crash_points import CRASH_AT, CrashPoints

_PATIENCE_S = 30


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        report = _with_stopped_owner(job) if job.get("stops") else _Child(job).report()
        print(json.dumps(report), flush=True)


class _Child:
    """A process that runs a scenario."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            _play(job, writer)
        os.close(writer)

    def report(self) -> dict[str, Any]:
        """Return the report of the process after it has ended."""
        with os.fdopen(self._reader, "rb") as pipe:
            report = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return {"killed": True} if number == signal.SIGKILL else {"died": signal.Signals(number).name}
        return dict(json.loads(report))


def _with_stopped_owner(job: dict[str, Any]) -> dict[str, Any]:
    """Stop a process at its point, let another one finish, continue the first, and let a third one report."""
    owner = _Child(job)
    stopped = os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert stopped is not None
    if stopped.si_code != os.CLD_STOPPED:
        return {"stopped": False, **owner.report()}
    after = {**job, "stops": False, "crash_at": None, "how": job["heir"]}
    heir = _Child(after).report()
    os.kill(owner.pid, signal.SIGCONT)
    old = owner.report()
    return {"stopped": True, "heir": heir, "old": old, "last": _Child({**after, "how": "request"}).report()}


def _play(job: dict[str, Any], writer: int) -> None:
    signal.alarm(_PATIENCE_S)
    os.environ.pop(CRASH_AT, None)
    if job.get("crash_at") is not None:
        os.environ[CRASH_AT] = str(job["crash_at"])
    points = CrashPoints.from_environment()
    if job.get("stops"):
        points = CrashPoints(points.crash_at, stops=True)
    try:
        report = asyncio.run(scenarios.play(job, points))
    except BaseException as error:
        report = {"raised": type(error).__name__, "traceback": traceback.format_exc()}
    report["points"] = points.passed
    data = json.dumps(report).encode()
    while data:
        data = data[os.write(writer, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
