"""Runs scenarios in processes of their own, at the price of a fork: it imports everything once.

It reads a JSON object a line: `scenario`, `home`, `crash_at`, `how`. For each it forks a child, waits for its
end and prints what came of it: the child's report, `killed`, or what it died of. It has no threads, so that
forking is safe.
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

from holdfast.testing.crash_points import CRASH_AT, CrashPoints

_PATIENCE_S = 30


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(job, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {"killed": True} if number == signal.SIGKILL else {"died": signal.Signals(number).name}
    return dict(json.loads(report))


def _child(job: dict[str, Any], writer: int) -> None:
    signal.alarm(_PATIENCE_S)
    os.environ.pop(CRASH_AT, None)
    if job.get("crash_at") is not None:
        os.environ[CRASH_AT] = str(job["crash_at"])
    points = CrashPoints.from_environment()
    try:
        report = asyncio.run(scenarios.play(job, points))
    except BaseException:
        report = {"raised": traceback.format_exc()}
    report["points"] = points.passed
    data = json.dumps(report).encode()
    while data:
        data = data[os.write(writer, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
