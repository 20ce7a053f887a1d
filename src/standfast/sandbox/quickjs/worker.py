"""The program of a worker process, which holds a guest and handles the engine's requests.

Standard input and output are pipes that carry frames (see `worker_process` and `frames`). The main thread
reads a request, enters the guest, and replies. While the guest computes, a second thread checks the clock
every few milliseconds and advances wasmtime's epoch when the time is up, which makes the guest trap.

A stopped guest is not entered again, except once to get its output. A guest belongs to one session. When
standard input ends, the process exits, even while a guest computes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import sys
import threading
import time
from typing import Final, Literal

import msgspec

from standfast.sandbox.frames_between import Frames
from standfast.sandbox.quickjs import frames
from standfast.sandbox.quickjs.booting import CompiledGuest
from standfast.sandbox.quickjs.build import GuestMissing
from standfast.sandbox.quickjs.guest import Broken, Guest, GuestSnapshot, Trapped, load_snapshot

_STDIN: Final = 0
_TICK_S: Final = 0.004
_IDLE_TICKS: Final = 500
_FUEL_PER_MS: Final = 40_000_000
"""About four times the fuel that a guest uses in a millisecond, so that the clock normally stops it first."""
_RESCUE_BYTES: Final = 32 << 20
_RESCUE_FUEL: Final = 1_000_000_000
_SMALL_IMAGE: Final = 200_000
_DRAW_BYTES: Final = 64
_WAITS: Final = b'"waits",null]'
_LINGER_S: Final = 0.0001
"""Most requests that follow immediately arrive within this time."""


class GuestStopped(Exception):
    """The reason why a guest cannot continue, or cannot be created from an image."""

    def __init__(self, stop: frames.Stop, detail: str = "") -> None:
        super().__init__(detail)
        self.stop = stop
        self.detail = detail


class GuestClock:
    """Stops a guest whose time is up, and exits the process when the engine is gone."""

    def __init__(self, machine: CompiledGuest) -> None:
        self._machine = machine
        self._hangup = select.poll()
        self._hangup.register(_STDIN, select.POLLHUP)
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._running = False
        self._cpu_until = self._wall_until = 0.0
        self.reason: Literal["cpu", "wall"] = "cpu"
        make = getattr(
            time, "pthread_getcpuclockid", None
        )  # the CPU clock of the main thread; where it is missing, wall time is used
        self._cpu_clock: int = make(threading.get_ident()) if make is not None else time.CLOCK_MONOTONIC
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def begin(self, bounds: frames.Bounds) -> None:
        with self._lock:
            self._cpu_until = time.clock_gettime(self._cpu_clock) + bounds.cpu_ms / 1000
            self._wall_until = time.monotonic() + bounds.wall_ms / 1000
            self.reason = "cpu"
            self._running = True
        if not self._awake.is_set():
            self._awake.set()

    def end(self) -> None:
        with self._lock:
            self._running = False

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_TICK_S)
            with self._lock:
                idle = 0 if self._running else idle + 1
                if self._running:
                    if any(event & ~select.POLLIN for _, event in self._hangup.poll(0)):
                        os._exit(0)
                    if time.monotonic() >= self._wall_until:
                        self.reason = "wall"
                        self._machine.engine.increment_epoch()
                    elif time.clock_gettime(self._cpu_clock) >= self._cpu_until:
                        self._machine.engine.increment_epoch()
            if idle > _IDLE_TICKS:
                self._awake.clear()
                if not self._running:
                    self._awake.wait()
                idle = 0


class WorkerProgram:
    """Handles the engine's requests, with the guest of one session at a time."""

    def __init__(self, machine: CompiledGuest, line: Frames) -> None:
        self._machine = machine
        self._line = line
        self._clock = GuestClock(machine)
        self._arrivals = select.poll()
        self._arrivals.register(_STDIN, select.POLLIN)
        self._more_is_near = False
        self._guest: Guest | None = None
        self._opened: frames.Open | None = None
        self._refusal: frames.GuestReply | None = None
        self._snapshot: GuestSnapshot | None = None
        self._kept_bytes = 0
        self._opening_ns = 0
        self._fuel = 0
        self._seed = ""

    def serve(self) -> None:
        """Handle requests until the engine is gone."""
        while True:
            if self._more_is_near and not self._line.has_more:
                # Poll for the next request before sleeping: waking up takes as long as handling it.
                arrived, until = self._arrivals.poll, time.perf_counter() + _LINGER_S
                while not arrived(0) and time.perf_counter() < until:
                    os.sched_yield()
            question = frames.decode_question(self._line.receive())
            self._more_is_near = False
            match question:
                case frames.Open():
                    self._open(question)
                case frames.Run() | frames.Settle() | frames.Finish():
                    reply = self._entered(question)
                    if reply.more:
                        if not isinstance(question, frames.Finish) and question.early:
                            self._send(reply)
                            reply = frames.GuestReply()
                        reply = self._with_state(reply, question)
                    self._send(reply)
                case frames.Dump():
                    self._send(self._dumped())
                    self._forget()
                case _:
                    self._forget()

    def _send(self, reply: frames.GuestReply) -> None:
        """Send a reply, followed by the guest's memory if the reply has an image."""
        self._line.send(frames.encode(reply))
        if reply.image is not None and self._snapshot is not None:
            self._line.send_raw(self._snapshot.parts())
        self._snapshot = None

    def _open(self, question: frames.Open) -> None:
        """Prepare a guest for a run. A failure is reported in the reply to the run."""
        started = time.thread_time_ns()
        self._more_is_near = True
        self._opened, self._refusal = question, None
        self._clock.begin(question.bounds)
        try:
            guest = self._loaded(question.image, question.bounds)
            self._fuelled(guest, question)
            guest.now_ms, self._seed = question.now_ms, question.seed
            guest.call("open", question.functions, self._spec(question, [], False))
        except Exception as error:
            self._refusal = self._stopped(error, (time.thread_time_ns() - started) // 1000)
        finally:
            self._clock.end()
        self._opening_ns = time.thread_time_ns() - started

    def _entered(self, question: frames.Entry) -> frames.GuestReply:
        """Enter the guest within its bounds, and report the resources that it used."""
        started = time.thread_time_ns()
        if isinstance(question, frames.Run):
            if self._refusal is not None:
                return self._refusal
            started -= self._opening_ns
        self._clock.begin(question.bounds)
        try:
            image = None if isinstance(question, frames.Run) else question.image
            guest = self._loaded(image, question.bounds)
            fuel = self._fuel if isinstance(question, frames.Run) else self._fuelled(guest, question)
            stop, detail, poll = self._advance(guest, question)
            self._fuel = guest.fuel
            self._more_is_near = poll.endswith(_WAITS)  # the report of an ended run ends with its names
            ended = not self._more_is_near
            # Neither a script that cannot be parsed nor one that is stuck leaves a state.
            lost = ended and bool(stop or (poll and frames.decode_poll(poll).outcome == "stuck"))
            if lost:
                self._forget()
            return frames.GuestReply(
                stop=stop,
                detail=detail,
                poll=poll,
                memory_bytes=0 if lost else guest.size,
                instructions=max(0, fuel - self._fuel),
                cpu_us=(time.thread_time_ns() - started) // 1000,
                more=ended and not lost,
            )
        except Exception as error:
            return self._stopped(error, (time.thread_time_ns() - started) // 1000)
        finally:
            self._clock.end()

    def _fuelled(self, guest: Guest, question: frames.Open | frames.Settle | frames.Finish) -> int:
        """Set the guest's limits and return its fuel. A run that continues keeps its remaining fuel."""
        bounds = question.bounds
        if isinstance(question, frames.Settle) and question.image is None:
            guest.limit(memory=bounds.memory_bytes, depth=bounds.depth)
        else:
            self._fuel = _FUEL_PER_MS * max(1, bounds.cpu_ms)
            guest.limit(memory=bounds.memory_bytes, depth=bounds.depth, fuel=self._fuel)
        return self._fuel

    def _loaded(self, given: frames.Image | None, bounds: frames.Bounds) -> Guest:
        """Return the guest that the worker holds, or create one from the *given* image."""
        if given is None:
            if self._guest is None:
                raise GuestStopped("gone")
            return self._guest
        self._forget()
        self._kept_bytes = given.size
        pieces = self._line.receive_raw(given.size)
        try:
            self._guest = guest = self._machine.guest(bounds.memory_bytes)
            guest.ask = self.ask
            if given.size:
                if given.boot != self._machine.boot.digest:
                    raise GuestStopped("version")
                load_snapshot(guest, given.size, pieces)
        except ValueError as error:
            raise GuestStopped("corrupt", str(error)) from None
        finally:
            for _ in pieces:  # skip the rest of a rejected image
                pass
        return guest

    def _advance(self, guest: Guest, question: frames.Entry) -> tuple[frames.Stop, list[str], bytes]:
        """Enter the guest as requested; return the reason if it stopped, details, and the bridge's report."""
        if isinstance(question, frames.Finish):
            return "", [], b""
        if isinstance(question, frames.Run):
            opened = self._opened
            assert opened is not None
            if question.lazy or question.binds_result:  # rare; open it again with these
                guest.call("open", opened.functions, self._spec(opened, question.lazy, question.binds_result))
            for name, text in question.inputs.items():
                guest.call("bind", name.encode(), text.encode())
            if not guest.begin(question.code.encode()):
                return "syntax", guest.exception(), b""
            poll = b""
        else:
            guest.now_ms, self._seed = question.now_ms, question.seed
            for answer in question.answers:
                guest.call("settle", answer)
                guest.run_jobs()
            poll = guest.call("poll")
        while not poll:
            guest.run_jobs()
            poll = guest.call("poll")
        return "", [], poll

    @staticmethod
    def _spec(opened: frames.Open, lazy: list[str], binds_result: bool) -> bytes:
        return msgspec.json.encode((lazy, binds_result, opened.bounds.stdout_chars, opened.now_ms))

    def _with_state(self, reply: frames.GuestReply, question: frames.Entry) -> frames.GuestReply:
        """Add the state of an ended run to *reply*; if the state has grown, collect garbage first."""
        guest = self._guest
        assert guest is not None
        self._clock.begin(question.bounds)
        try:
            names = guest.call("close") if isinstance(question, frames.Finish) else b""
            snapshot = GuestSnapshot(guest)
            if snapshot.size > max(_SMALL_IMAGE, self._kept_bytes + self._kept_bytes // 4):
                guest.calls["run_gc"]()
                snapshot = GuestSnapshot(guest)
                self._kept_bytes = snapshot.size
            self._snapshot = snapshot
            kept = frames.Image(self._machine.boot.digest, size=snapshot.size)
            return msgspec.structs.replace(
                reply, more=False, names=names, image=kept, memory_bytes=guest.size
            )
        except Exception as error:
            return msgspec.structs.replace(self._stopped(error), instructions=0)
        finally:
            self._clock.end()

    def _dumped(self) -> frames.GuestReply:
        guest = self._guest
        if guest is None:
            return frames.GuestReply(stop="broken", detail=["the worker holds no guest"])
        try:
            self._snapshot = GuestSnapshot(guest)
        except (Trapped, Broken) as error:
            return frames.GuestReply(stop="broken", detail=[str(error)])
        kept = frames.Image(self._machine.boot.digest, size=self._snapshot.size)
        return frames.GuestReply(image=kept, memory_bytes=guest.size)

    def _stopped(self, error: Exception, cpu_us: int = 0) -> frames.GuestReply:
        """Report why the guest was stopped, with its output and its use of resources, and drop it."""
        self._clock.end()
        stop: frames.Stop = "broken"
        detail = ""
        match error:
            case Trapped(reason="interrupt"):
                stop = self._clock.reason
            case Trapped(reason="fuel"):
                stop = "cpu"
            case Trapped(reason="memory" | "stack" as reason):
                stop = reason
            case GuestStopped():
                stop, detail = error.stop, error.detail
            case _:
                detail = f"{type(error).__name__}: {error}"[:1000]
        guest, used, memory, poll = self._guest, 0, 0, b""
        if guest is not None:
            used = max(0, self._fuel - guest.fuel)
            if stop not in ("corrupt", "version"):
                with contextlib.suppress(Exception):  # it may be unable to return its output
                    guest.allow(guest.size + _RESCUE_BYTES, _RESCUE_FUEL)
                    text = guest.call("rest")
                    frames.decode_poll(text)
                    poll = text
            memory = guest.size
        self._forget()
        return frames.GuestReply(
            stop=stop, detail=[detail], poll=poll, memory_bytes=memory, instructions=used, cpu_us=cpu_us
        )

    def _forget(self) -> None:
        self._snapshot = None
        if self._guest is not None:
            self._guest.close()
            self._guest = None

    def ask(self, text: str) -> str:
        """Answer a question that the guest asks in the middle of an entry."""
        kind, _, about = text.partition(":")
        if kind == "draw":
            return hashlib.shake_256(f"{about}:{self._seed}".encode()).hexdigest(_DRAW_BYTES)
        if kind == "load":
            self._line.send(frames.encode(frames.NameRequested(about)))
            given = frames.decode_question(self._line.receive())
            return given.text if isinstance(given, frames.Given) else ""
        raise GuestStopped("flood")


def main() -> None:
    output = os.dup(1)  # for frames only; other output goes nowhere
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    line = Frames(_STDIN, output, 2**32 - 1)
    try:
        machine = CompiledGuest()
    except (GuestMissing, Broken) as error:
        line.send(frames.encode(frames.GuestReply(stop="broken", detail=[str(error)])))
        sys.exit(1)
    try:
        WorkerProgram(machine, line).serve()
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
