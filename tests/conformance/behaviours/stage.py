"""Where behaviours are shown: a sandbox for each engine, and the tools that guest code calls."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from standfast import Approval, BlockingSandbox, CapabilityLimits, RunResult, ToolError, tool
from standfast.testing.clock import FakeClock

_numbers = itertools.count()


class Host:
    """A sandbox with one engine, a log of its tools, and a clock that the test moves."""

    def __init__(self, engine: str, language: str, **options: Any) -> None:
        self.done: list[Any] = []
        self.clock = FakeClock()
        self.let_go = threading.Event()
        self.meetings: dict[str, threading.Barrier] = {}
        self.passed: dict[str, threading.Event] = {}
        self._meeting = threading.Lock()
        self.options: dict[str, Any] = {
            "engine": engine,
            "language": language,
            "clock": self.clock,
            "approval_ttl_s": 600,
            "limits": {"wall_ms": 30_000},
            "tools": [*reading_tools(self), *asking_tools(self)],
            **options,
        }
        self.box = BlockingSandbox(**self.options)

    def meet(self, place: str, size: int) -> None:
        """Wait until *size* callers are here."""
        with self._meeting:
            barrier = self.meetings.setdefault(place, threading.Barrier(size))
        barrier.wait(timeout=10)

    def event(self, name: str) -> threading.Event:
        with self._meeting:
            return self.passed.setdefault(name, threading.Event())

    @contextmanager
    def opened(self) -> Iterator[Host]:
        with self.box:
            try:
                yield self
            finally:
                self.let_go.set()


def reading_tools(host: Host) -> list[Any]:
    """Return tools that need no approval."""

    @tool(side_effect="read")
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        host.done.append(("add", a, b))
        return a + b

    @tool(side_effect="read")
    async def add_later(a: int, b: int = 1) -> int:
        """Add two numbers, later."""
        return a + b

    @tool(side_effect="read")
    def echo(value: Any) -> Any:
        """Give back what came in."""
        return value

    @tool(side_effect="read")
    def note(value: Any = None) -> None:
        """Write something down."""
        host.done.append(value)

    @tool(side_effect="read")
    def meet(place: str, size: int, value: int) -> int:
        """Come back when all are here."""
        host.meet(place, size)
        return value

    @tool(side_effect="read")
    def after(place: str, earlier: str | None = None) -> str:
        """Come back when another has."""
        if earlier is not None:
            assert host.event(earlier).wait(timeout=10)
        host.event(place).set()
        return place

    @tool(side_effect="read")
    def fail(kind: str = "ValueError") -> None:
        """Fail as told."""
        if kind == "OUT_OF_STOCK":
            raise ToolError("OUT_OF_STOCK", "none left")
        raise {"ValueError": ValueError, "KeyError": KeyError}[kind]("told so")

    @tool(side_effect="read", limits=CapabilityLimits(timeout_ms=60_000))
    def hang() -> None:
        """Come back when let go."""
        host.let_go.wait(timeout=30)

    return [add, add_later, echo, note, meet, after, fail, hang]


def asking_tools(host: Host) -> list[Any]:
    """Return tools that require approval."""

    @tool(side_effect="external_system", approval="manual")
    def refund(order: str, cents: int = 100) -> str:
        """Pay an order back."""
        host.done.append((order, cents))
        return f"paid {cents} for {order}"

    return [refund]


@dataclass
class Stage:
    """One engine and the code of one behaviour, in a session with this name."""

    host: Host
    engine: str
    language: str
    texts: tuple[str, ...]
    session: str
    host_at: Callable[[str, str], Host]
    ended: RunResult = field(default_factory=RunResult)

    @property
    def box(self) -> BlockingSandbox:
        return self.host.box

    @property
    def done(self) -> list[Any]:
        return self.host.done

    @property
    def code(self) -> str:
        """Return the code of a behaviour that has one run."""
        (text,) = self.texts
        return text

    def other(self) -> str:
        """Return the name of another session."""
        return f"{self.session}-{next(_numbers)}"

    def run(self, code: str, **options: Any) -> RunResult:
        self.ended = self.box.run(code, session=options.pop("session", self.session), **options)
        return self.ended

    def value(self, code: str, **options: Any) -> Any:
        """Return the value of a run that must succeed."""
        ended = self.run(code, **options)
        assert ended.status == "ok", ended.error
        return ended.result

    def last(self, **options: Any) -> RunResult:
        """Run all of the code; the runs before the last must succeed."""
        *before, last = self.texts
        for text in before:
            self.value(text)
        return self.run(last, **options)

    def fails(self, code: str, **options: Any) -> str:
        """Return the error code of a run that must fail."""
        ended = self.run(code, **options)
        assert ended.error is not None, ended.result
        return str(ended.error.code)

    def waits(self, code: str, **options: Any) -> list[Approval]:
        """Return the approvals that a run requests; it must wait."""
        ended = self.run(code, **options)
        assert ended.status == "waiting_for_approval", (ended.status, ended.error)
        return self.asked()

    def asked(self, session: str | None = None) -> list[Approval]:
        return self.box.approvals(session=session or self.session, pending=True)

    def here(self) -> Stage:
        """Return the same behaviour in a sandbox over a directory."""
        return replace(self, host=self.host_at(self.engine, "here"))

    def there(self) -> Stage:
        """Return the same in another sandbox over that directory, with its own processes."""
        return replace(self, host=self.host_at(self.engine, "there"))

    def snapshot_key(self) -> bytes:
        return (Path(self.host.options["data_dir"]) / "snapshot.key").read_bytes()
