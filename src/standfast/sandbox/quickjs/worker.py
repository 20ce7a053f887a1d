"""The program of a worker process: holds a guest, and does with it what the engine asks.

Theory of operation
-------------------
Standard input and output are pipes with frames on them (see `worker_process` and `frames`). The main thread
reads a frame, enters the guest, and answers. A second thread looks at it every few milliseconds while it
computes, and moves the epoch of wasmtime when its time is over: then the guest traps.

Rules
-----
1. A guest that was stopped is never entered again, except once to find out what it had printed.
2. A guest belongs to one session. Another session gets a new one.
3. When standard input ends, so does the process, also while a guest computes.
"""

from __future__ import annotations

import hashlib
import os
import select
import sys
import threading
import time
from typing import Final, Literal

import msgspec

from standfast.sandbox.frames_between import PipeFrames
from standfast.sandbox.quickjs import image
from standfast.sandbox.quickjs.build import GuestMissing
from standfast.sandbox.quickjs.frames import (
    Answer,
    Bounds,
    Dump,
    Finish,
    Given,
    Image,
    Open,
    Question,
    Reply,
    Run,
    Stop,
    Surroundings,
    Wanted,
    decode_poll,
    decode_question,
    encode,
)
from standfast.sandbox.quickjs.guest import Broken, Guest, Trapped
from standfast.sandbox.quickjs.machine import Machine

_STDIN: Final = 0
_TICK_S: Final = 0.004
_IDLE_TICKS: Final = 500
_FUEL_PER_MS: Final = 40_000_000
"""About four times what a millisecond of computing takes: the clock ends a run first, unless it cannot."""
_RESCUE_BYTES: Final = 32 << 20
_RESCUE_FUEL: Final = 1_000_000_000
_SMALL_IMAGE: Final = 200_000
_DRAW_BYTES: Final = 64
_WAITS: Final = b'"waits",null]'
_LINGER_S: Final = 0.0001
"""Most answers that come at once come within this."""


class Flooded(Exception):
    """The guest printed far more than is kept."""


class Gone(Exception):
    """The worker holds no guest."""


class Refused(Exception):
    """An image that cannot become a guest; the reason is one of `frames.Stop`."""

    def __init__(self, stop: Literal["corrupt", "version"], detail: str) -> None:
        super().__init__(detail)
        self.stop: Literal["corrupt", "version"] = stop


class Watch:
    """Stops a guest whose time is over, and the process when the engine is gone."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._hangup = select.poll()
        self._hangup.register(_STDIN, select.POLLHUP)
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._running = False
        self._cpu_until = self._wall_until = 0.0
        self.reason: Literal["cpu", "wall"] = "cpu"
        self._cpu_clock = _cpu_clock()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def begin(self, bounds: Bounds) -> None:
        with self._lock:
            self._cpu_until = self._cpu() + bounds.cpu_ms / 1000
            self._wall_until = time.monotonic() + bounds.wall_ms / 1000
            self.reason = "cpu"
            self._running = True
        if not self._awake.is_set():
            self._awake.set()

    def end(self) -> None:
        with self._lock:
            self._running = False

    def _cpu(self) -> float:
        return time.clock_gettime(self._cpu_clock)

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_TICK_S)
            with self._lock:
                idle = 0 if self._running else idle + 1
                if self._running and self._is_late():
                    self._machine.engine.increment_epoch()
            if idle > _IDLE_TICKS:
                self._awake.clear()
                if not self._running:
                    self._awake.wait()
                idle = 0

    def _is_late(self) -> bool:
        if any(event & ~select.POLLIN for _, event in self._hangup.poll(0)):
            os._exit(0)
        if time.monotonic() >= self._wall_until:
            self.reason = "wall"
            return True
        return self._cpu() >= self._cpu_until


def _cpu_clock() -> int:
    """The clock of what the main thread has computed; of what has passed where there is none."""
    make = getattr(time, "pthread_getcpuclockid", None)
    return int(make(threading.get_ident())) if make is not None else time.CLOCK_MONOTONIC


class Worker:
    """Does what the engine asks, with the guest of one session at a time."""

    def __init__(self, machine: Machine, line: PipeFrames) -> None:
        self._machine = machine
        self._line = line
        self._watch = Watch(machine)
        self._arrivals = select.poll()
        self._arrivals.register(_STDIN, select.POLLIN)
        self._more_is_near = False
        self._guest: Guest | None = None
        self._opened: Open | None = None
        self._refusal: Reply | None = None
        self._snapshot: image.Snapshot | None = None
        self._kept_bytes = 0
        self._opening_ns = 0
        self._fuel = 0
        self._seed = ""

    def serve(self) -> None:
        """Answer until the engine is gone."""
        while True:
            if self._more_is_near and not self._line.has_more:
                self._linger()
            question = decode_question(self._line.receive())
            self._more_is_near = False
            reply = self._answer(question)
            if reply is not None and reply.more and not getattr(question, "early", False):
                reply = _whole(reply, self._left(question))
            if reply is not None:
                self._send(reply)
                if reply.more:
                    self._send(self._left(question))
            if isinstance(question, Dump):
                self._forget()

    def _send(self, reply: Reply) -> None:
        """Send a reply, and behind it the memory of the guest if that belongs to it."""
        self._line.send(encode(reply))
        if reply.image is not None and self._snapshot is not None:
            self._line.send_raw(self._snapshot.parts())
        self._snapshot = None

    def _linger(self) -> None:
        """Look for the next question for a moment before going to sleep: to be woken takes as long again.

        Whoever else wants this processor has it meanwhile.
        """
        arrived, until = self._arrivals.poll, time.perf_counter() + _LINGER_S
        while not arrived(0) and time.perf_counter() < until:
            os.sched_yield()

    def _answer(self, question: Question) -> Reply | None:
        match question:
            case Open():
                self._open(question)
                return None
            case Run() | Answer() | Finish():
                return self._bounded(question)
            case Dump():
                return self._dumped()
            case _:
                self._forget()
                return None

    def _open(self, question: Open) -> None:
        """Make a guest ready for a run. What goes wrong is the answer to the run."""
        started = time.thread_time_ns()
        self._more_is_near = True
        self._opened, self._refusal = question, None
        self._watch.begin(question.bounds)
        try:
            guest = self._loaded(question.image, question.bounds)
            self._fuelled(guest, question)
            self._surround(guest, question.around)
            guest.call("open", question.functions, self._spec(question, [], False))
        except Exception as error:
            self._refusal = self._stopped(error, (time.thread_time_ns() - started) // 1000)
        finally:
            self._watch.end()
        self._opening_ns = time.thread_time_ns() - started

    def _bounded(self, question: Run | Answer | Finish) -> Reply:
        """Enter the guest under its bounds, and tell what it used."""
        started = time.thread_time_ns()
        if isinstance(question, Run):
            if self._refusal is not None:
                return self._refusal
            started -= self._opening_ns
        self._watch.begin(question.bounds)
        try:
            guest = self._loaded(None if isinstance(question, Run) else question.image, question.bounds)
            fuel = self._fuel if isinstance(question, Run) else self._fuelled(guest, question)
            stop, detail, poll = self._enter(guest, question)
            self._fuel = guest.fuel
            ends = self._ends(stop, poll)
            self._more_is_near = ends == "waits"
            if ends == "lost":
                self._forget()
            return Reply(
                stop=stop,
                detail=detail,
                poll=poll,
                memory_bytes=0 if ends == "lost" else guest.size,
                instructions=max(0, fuel - self._fuel),
                cpu_us=(time.thread_time_ns() - started) // 1000,
                more=ends == "whole",
            )
        except Exception as error:
            return self._stopped(error, (time.thread_time_ns() - started) // 1000)
        finally:
            self._watch.end()

    def _fuelled(self, guest: Guest, question: Open | Answer | Finish) -> int:
        """Set the guest's limits; what it may compute. A run that goes on has what is left of it."""
        bounds = question.bounds
        if isinstance(question, Answer) and question.image is None:
            guest.limit_size(memory=bounds.memory_bytes, depth=bounds.depth)
        else:
            self._fuel = _FUEL_PER_MS * max(1, bounds.cpu_ms)
            guest.limit(memory=bounds.memory_bytes, depth=bounds.depth, fuel=self._fuel)
        return self._fuel

    def _ends(self, stop: Stop, poll: bytes) -> Literal["waits", "whole", "lost"]:
        """Whether a run waits, or has ended and leaves something: not if it cannot be read, or hangs."""
        if poll.endswith(_WAITS):  # nothing else ends so: a run that has ended tells names last
            return "waits"
        outcome = decode_poll(poll).outcome if poll else "value"
        return "lost" if stop or outcome == "stuck" else "whole"

    def _loaded(self, given: Image | None, bounds: Bounds) -> Guest:
        """The guest that is meant: the one there is, or one made of an image."""
        if given is None:
            if self._guest is None:
                raise Gone
            return self._guest
        self._forget()
        self._kept_bytes = given.size
        pieces = self._line.receive_raw(given.size)
        try:
            self._guest = guest = self._machine.guest(bounds.memory_bytes)
            guest.outside = self
            if given.size:
                if given.boot != self._machine.boot.digest:
                    raise Refused("version", "")
                image.load(guest, given.size, pieces)
        except ValueError as error:
            raise Refused("corrupt", str(error)) from None
        finally:
            for _ in pieces:  # what was not wanted must not be taken for the next question
                pass
        return guest

    def _enter(self, guest: Guest, question: Run | Answer | Finish) -> tuple[Stop, list[str], bytes]:
        """Let the guest do what is asked: why it cannot, about what, and where it stands."""
        if isinstance(question, Finish):
            return "", [], b""
        if isinstance(question, Run):
            self._prepare(guest, question)
            if not guest.begin(question.code.encode()):
                return "syntax", list(guest.exception()), b""
            return "", [], self._polled(guest)
        self._surround(guest, question.around)
        for answer in question.answers:
            guest.call("settle", answer)
            guest.run_jobs()
        return "", [], guest.call("poll") or self._polled(guest)

    def _prepare(self, guest: Guest, run: Run) -> None:
        """Tell the guest what only whoever has read the code can know."""
        opened = self._opened
        assert opened is not None
        if run.lazy or run.binds_result:  # few do; it is opened once more
            guest.call("open", opened.functions, self._spec(opened, run.lazy, run.binds_result))
        for name, text in run.inputs.items():
            guest.call("bind", name.encode(), text.encode())

    @staticmethod
    def _spec(opened: Open, lazy: list[str], binds_result: bool) -> bytes:
        return msgspec.json.encode((lazy, binds_result, opened.bounds.stdout_chars, opened.around.now_ms))

    def _surround(self, guest: Guest, around: Surroundings) -> None:
        guest.now_ms = around.now_ms
        self._seed = around.seed

    def _polled(self, guest: Guest) -> bytes:
        """Let the guest do what it can, and see where it stands."""
        text = b""
        while not text:
            guest.run_jobs()
            text = guest.call("poll")
        return text

    def _left(self, question: Question) -> Reply:
        """The state of a run that has ended."""
        guest = self._guest
        assert guest is not None
        assert isinstance(question, Run | Answer | Finish)
        self._watch.begin(question.bounds)
        try:
            names = guest.call("close") if isinstance(question, Finish) else b""
            return Reply(names=names, image=self._taken(guest), memory_bytes=guest.size)
        except Exception as error:
            return msgspec.structs.replace(self._stopped(error), instructions=0)
        finally:
            self._watch.end()

    def _dumped(self) -> Reply:
        guest = self._guest
        if guest is None:
            return Reply(stop="broken", detail=["the worker holds no guest"])
        try:
            self._snapshot = image.Snapshot(guest)
        except (Trapped, Broken) as error:
            return Reply(stop="broken", detail=[str(error)])
        kept = Image(self._machine.boot.digest, size=self._snapshot.size)
        return Reply(image=kept, memory_bytes=guest.size)

    def _taken(self, guest: Guest) -> Image:
        """What is left of a run, without garbage if there is more of it than there was before."""
        snapshot = image.Snapshot(guest)
        if snapshot.size > max(_SMALL_IMAGE, self._kept_bytes + self._kept_bytes // 4):
            guest.collect_garbage()
            snapshot = image.Snapshot(guest)
            self._kept_bytes = snapshot.size
        self._snapshot = snapshot
        return Image(self._machine.boot.digest, size=snapshot.size)

    def _stopped(self, error: Exception, cpu_us: int = 0) -> Reply:
        """What ended the guest, what it had printed, and what it had computed."""
        self._watch.end()
        guest = self._guest
        stop, detail = self._why(error)
        used = max(0, self._fuel - guest.fuel) if guest is not None else 0
        poll = self._rescued(guest) if guest is not None and stop not in ("corrupt", "version") else b""
        memory = guest.size if guest is not None else 0
        self._forget()
        return Reply(
            stop=stop, detail=[detail], poll=poll, memory_bytes=memory, instructions=used, cpu_us=cpu_us
        )

    def _why(self, error: Exception) -> tuple[Stop, str]:
        match error:
            case Trapped(reason="interrupt"):
                return self._watch.reason, ""
            case Trapped(reason="fuel"):
                return "cpu", ""
            case Trapped(reason="memory" | "stack" as reason):
                return reason, ""
            case Flooded():
                return "flood", ""
            case Refused(stop=stop):
                return stop, str(error)
            case Gone():
                return "gone", ""
        return "broken", f"{type(error).__name__}: {error}"[:1000]

    def _rescued(self, guest: Guest) -> bytes:
        """What a stopped guest had printed, if it can still tell."""
        try:
            guest.allow(guest.size + _RESCUE_BYTES, _RESCUE_FUEL)
            text = guest.call("rest")
            decode_poll(text)
        except Exception:
            return b""
        return text

    def _forget(self) -> None:
        self._snapshot = None
        if self._guest is not None:
            self._guest.close()
            self._guest = None

    # ── what a guest asks for ────────────────────────────────────────────────────────────────────

    def ask(self, text: str) -> str:
        """Answer the guest in the middle of an entry."""
        kind, _, about = text.partition(":")
        if kind == "draw":
            return hashlib.shake_256(f"{about}:{self._seed}".encode()).hexdigest(_DRAW_BYTES)
        if kind == "load":
            self._line.send(encode(Wanted(about)))
            given = decode_question(self._line.receive())
            return given.text if isinstance(given, Given) else ""
        raise Flooded


def _whole(reply: Reply, left: Reply) -> Reply:
    """What came of a run with what it left, or what kept that from being taken."""
    if left.stop:
        return left
    return msgspec.structs.replace(
        reply, more=False, image=left.image, names=left.names, memory_bytes=left.memory_bytes
    )


def _own_output() -> int:
    """Where frames go: standard output, which nobody else writes to from here on."""
    handle = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return handle


def main() -> None:
    line = PipeFrames(_STDIN, _own_output(), 2**32 - 1)
    try:
        machine = Machine()
    except (GuestMissing, Broken) as error:
        line.send(encode(Reply(stop="broken", detail=[str(error)])))
        sys.exit(1)
    try:
        Worker(machine, line).serve()
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
