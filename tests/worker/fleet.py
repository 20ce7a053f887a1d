"""Worker processes for tests: started by the command line, signalled, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "running"))

from interpreters import Interpreter

from standfast import Runtime
from standfast.model.session import TurnRecord, TurnState
from standfast.runtime.agent_definition import AgentDefinition

T = TypeVar("T")
APP = Path(__file__).with_name("shop_app.py")
DEADLINE_S = 120.0
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Begins a command that the kernel ends when the thread that started it has ended."""


class Effect(NamedTuple):
    """One line of the ledger."""

    name: str
    order: str
    pid: int
    at: float


class WorkerProcess:
    """A `standfast worker` in its own process group."""

    def __init__(self, words: list[str], env: dict[str, str], log: Path, inside: tuple[str, ...]) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = Interpreter(
                [*inside, sys.executable, "-m", "standfast", "worker", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **env},
            )
        self.health = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_started(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "started" in line, f"{line}{self._log.read_text()}"
        self.health = line.rpartition("health on ")[2].strip() if "health on " in line else ""
        return line

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ask(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{self.health}{path}", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def wait_ended(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def close(self) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Fleet:
    """A store, its workers, and the ledger of their effects."""

    def __init__(self, home: Path, store: str) -> None:
        self.home = home
        self.store = store
        self.ledger = home / "ledger"
        self.ledger.touch()
        self.workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.close()

    def start(self, *words: object, **options: Any) -> WorkerProcess:
        """Start a worker and wait until it claims turns."""
        worker = self.launch(*words, **options)
        worker.wait_started()
        return worker

    def launch(
        self,
        *words: object,
        app: str = "agents",
        store: str | None = None,
        inside: tuple[str, ...] = (),
        **env: object,
    ) -> WorkerProcess:
        """Start a worker, *inside* a host if given, with the *store* as that host reaches it."""
        told = {"WORKER_LEDGER": str(self.ledger), **{key: str(value) for key, value in env.items()}}
        given = [app if ":" in app else f"{APP}:{app}", "--store", store or self.store, *map(str, words)]
        worker = WorkerProcess(given, told, self.home / f"worker-{len(self.workers)}.log", inside)
        self.workers.append(worker)
        return worker

    def effects(self, *names: str) -> list[Effect]:
        lines = (line.split() for line in self.ledger.read_text().splitlines())
        found = [Effect(name, order, int(pid), float(at)) for name, order, pid, at in lines]
        return [one for one in found if not names or one.name in names]

    def most_at_once(self, letter: str) -> int:
        """Return the largest number of orders with this first letter that were charged at the same time."""
        running = most = 0
        for effect in self.effects("charge", "charged"):
            if effect.order.startswith(letter):
                running += 1 if effect.name == "charge" else -1
                most = max(most, running)
        return most

    def open_gate(self) -> None:
        """Let hanging tools return."""
        self.ledger.with_suffix(".open").touch()

    def queue(self, *inputs: tuple[str, str], agent: AgentDefinition[Any, Any]) -> None:
        """Queue prompts for sessions, without running any."""

        async def put(runtime: Runtime) -> None:
            for session_id, prompt in inputs:
                await (await runtime.session(session_id, agent=agent)).queue(prompt)

        self.with_runtime(put)

    def turns(self) -> list[TurnRecord]:
        async def read(runtime: Runtime) -> list[TurnRecord]:
            return [
                turn
                for head in await runtime.sessions()
                for turn in await runtime.store.turns(head.session_id)
            ]

        return self.with_runtime(read)

    def ended(self) -> list[TurnRecord]:
        return [turn for turn in self.turns() if turn.state is TurnState.ENDED]

    def with_runtime(self, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Run *work* with a runtime that claims no turns."""

        async def run() -> T:
            async with Runtime(self.store, keeper=False) as runtime:
                return await work(runtime)

        return asyncio.run(run())


def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until *condition* holds, for example because another process has done something."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
