"""Monty sessions, stored or loaded in a worker process, and the transfer of values from a worker.

The engine converts a value to Python objects in one step, holding the GIL, and hashes keys and items of sets
while it does. A large value, or a key that is a tuple of shared tuples, would block the host. So the size of
the engine's message is checked first (`sent_bytes`). Unless it is small, a dump shows how many parts the
value has and what would be hashed (`dump.check_arguments`). `sandbox.workers` describes how runs share
processes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Container
from typing import Any, Final, ParamSpec, TypeVar

import msgspec

from standfast.errors import Code, EngineFailed, ErrorObject, SnapshotRefused, StateTooLarge, ValueTooLarge
from standfast.model.canonical import MAX_VALUE_BYTES, Json
from standfast.model.limits import SessionLimits
from standfast.sandbox import cell_lifecycle
from standfast.sandbox.cell_lifecycle import PausedCell, StateReader, decoded
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.dump import MAX_SUSPENSIONS, check_arguments, with_limits
from standfast.sandbox.monty.syntax import Site
from standfast.sandbox.workers import PeakMemory, WorkerSlots

ENGINE: Final = "monty"
ENGINE_VERSION: Final = "1.4.0"


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's dump, and facts about it.

    `sites` has, for each earlier source, the positions at which its functions await calls. `result_later`
    means that one of these functions may bind `result`, `plain_keys` that no code of the session could hash a
    value that has parts. `feeds` counts runs since the dump was last compacted. `next_input` is the number of
    the next source.
    """

    dump: bytes
    limits: SessionLimits
    names: list[str] = msgspec.field(default_factory=list)
    sites: dict[str, list[Site]] = msgspec.field(default_factory=dict)
    result_later: bool = False
    has_classes: bool = False
    plain_keys: bool = False
    feeds: int = 0
    next_input: int = 0
    engine: str = ENGINE
    version: str = ENGINE_VERSION


class KnownError(msgspec.Struct, frozen=True, array_like=True):
    """The error behind an exception that the guest sees."""

    type: str
    message: str
    error: ErrorObject


class MontyCellDump(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's dump of a waiting cell. `before` is the session before the cell, without its dump."""

    dump: bytes
    before: EngineState | None
    filename: str
    borrowed: list[str]
    kept: list[str]
    errors: list[KnownError]
    draws: int
    engine: str = ENGINE
    version: str = ENGINE_VERSION


Stored = TypeVar("Stored", EngineState, MontyCellDump)
encode_state: Final[Callable[[EngineState], bytes]] = msgspec.msgpack.Encoder().encode
encode_dump: Final[Callable[[MontyCellDump], bytes]] = msgspec.msgpack.Encoder().encode


@StateReader
def decode_state(data: bytes) -> EngineState | None:
    """Decode a state; raise `SnapshotRefused` if another version of the engine wrote it."""
    return _read(EngineState, data, "session's state") if data else None


def decode_dump(data: bytes) -> MontyCellDump:
    """Decode a suspended cell; raise `SnapshotRefused` if another version of the engine wrote it."""
    return _read(MontyCellDump, data, "suspended cell")


def _read(kind: type[Stored], data: bytes, what: str) -> Stored:
    stored = decoded(kind, data, what)
    if (stored.engine, stored.version) != (ENGINE, ENGINE_VERSION):
        raise SnapshotRefused(
            Code.SNAPSHOT_VERSION_MISMATCH,
            f"the session was stored by {stored.engine} {stored.version}, this is {ENGINE} {ENGINE_VERSION}",
            hint="reset the session, or use the Standfast release that wrote it",
        )
    return stored


def read_former_cell(data: bytes) -> PausedCell:
    """Read a cell of the former format, in which `at` was the engine's id of a call."""
    cell = cell_lifecycle.read_former_cell(data, encode_dump(decode_dump(data)))
    at = next((number for number, call_id in cell.calls.items() if call_id == cell.at), None)
    return msgspec.structs.replace(cell, at=at)


P = ParamSpec("P")
T = TypeVar("T")

KILL_GRACE_S: Final = 0.4
"""How long the engine may take to stop by itself after its time limit, before it is killed."""
_SLEEPS_WHOLE: Final = {"sleep_system_max": float("inf")}
"""Disables the engine's limit on sleeps, ten seconds, because the host limits how long code may run."""
_LOADING_FACTOR: Final = 16
"""Loading a dump takes at most eight times its size (measured: many small strings, lists or functions)."""
TINY_FRAME_BYTES: Final = 128
"""A value that arrives in this many bytes is hashed quickly: counting repetitions, it has 100,000 parts."""
SMALL_FRAME_BYTES: Final = 32 << 10
"""Few enough parts to convert directly, and too few large integers for a dict slowed by equal hashes."""
_SHOW: Final = "__standfast_show"
_TRACER: Final = "opentelemetry"
_STUBS: dict[str, Callable[..., None]] = {}


class Unreadable(msgspec.Struct, frozen=True):
    """A value that is not converted: it contains a *foreign* type, or it is *too_large*."""

    foreign: str | None = None
    too_large: str | None = None


UNREAD: Final = Unreadable()
NO_HASH: Final = Unreadable(foreign="dict or set with objects as keys")
"""The value if a key or an item of a set is an instance of a guest's class, which cannot be hashed here."""


class MontyWorker:
    """A session loaded in a worker process.

    `version` names the state that it holds, `next_input` is the number of the next source, `unsaved_feeds`
    counts the feeds since its state was last stored. `warm` means that it was kept for this session.
    """

    def __init__(self, session: engine.MontySession, pid: int, limits: SessionLimits) -> None:
        self.session = session
        self.feed: Callable[..., Any] = untraced(session.feed_start)
        """Runs code in the session until it needs the host."""
        self.pid = pid
        self.limits = limits
        self.version: object = None
        self.next_input = self.unsaved_feeds = 0
        self.warm = False
        self.peak = PeakMemory(pid)
        self._io, self._sent = -1, 0
        with contextlib.suppress(OSError):
            self._io = os.open(f"/proc/{self.pid}/io", os.O_RDONLY)

    def fits(self, limits: SessionLimits) -> bool:
        """Return whether the limits that the engine enforces are the same."""
        mine = self.limits
        return limits is mine or (
            limits.memory_mb == mine.memory_mb
            and limits.cpu_ms == mine.cpu_ms
            and limits.max_stack_depth == mine.max_stack_depth
        )

    def holds(self, version: object, limits: SessionLimits) -> bool:
        """Return whether a run from this version of the session, under these limits, can begin here."""
        return self.version == version and (limits is self.limits or self.fits(limits))

    def evaluate(
        self, code: str, inputs: dict[str, Json] | None = None, max_frame_bytes: int = TINY_FRAME_BYTES
    ) -> object:
        """Run code of the host, which calls nothing; return its value, or `UNREAD` if it is too large."""
        self.next_input += 1
        self.sent_bytes()  # answers before this one may not have been counted
        snapshot: Any = self.feed(code, inputs=inputs, print_callback=ignore_output)
        while isinstance(snapshot, engine.NameLookupSnapshot):
            snapshot = snapshot.resume()
        if not isinstance(snapshot, engine.MontyComplete):
            raise TypeError(f"the engine answered with {snapshot!r}")
        return UNREAD if self.sent_bytes() > max_frame_bytes else read_value(lambda: snapshot.output)

    def show(self, expression: str, functions: Container[str] | None) -> Any:
        """Make the guest pass the value of *expression* to the host as the argument of a call.

        Return the snapshot at that call: its dump describes the argument before it is converted. An unbound
        name is treated as a function if it is in *functions*, or if *functions* is None.
        """
        self.next_input += 1
        snapshot: Any = self.feed(f"{_SHOW}({expression})", print_callback=ignore_output)
        while isinstance(snapshot, engine.NameLookupSnapshot):
            name = snapshot.variable_name
            known = functions is None or name in functions
            snapshot = snapshot.resume(value=stub(name)) if known else snapshot.resume()
        return snapshot

    def arguments(
        self, snapshot: engine.FunctionSnapshot, *, small: bool, max_bytes: int = MAX_VALUE_BYTES
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | Unreadable:
        """Convert the arguments of a call; unless they are *small*, check a dump of them first."""
        if not small:
            try:
                foreign = check_arguments(self.dump(snapshot), max_bytes)
            except ValueTooLarge as error:
                return Unreadable(too_large=error.limit)
            if foreign is not None:
                return Unreadable(foreign=foreign)
            given: Any = read_value(lambda: (snapshot.args, snapshot.kwargs))
            return given  # type: ignore[no-any-return]
        try:
            return snapshot.args, snapshot.kwargs
        except TypeError:
            return NO_HASH

    def sent_bytes(self) -> int:
        """Return the bytes that the process wrote since the last call, minus dumps; `sys.maxsize` if unknown.

        The process wrote the engine's message last, so this is an upper bound for a value in the message.
        """
        before = self._sent
        try:
            self._sent = int(os.pread(self._io, 64, 0).split(None, 4)[3])
        except (OSError, IndexError, ValueError):
            return sys.maxsize
        return self._sent - before

    def dump(self, standing: Any) -> bytes:
        """Dump the session, or a snapshot of it, without counting the dump in `sent_bytes`."""
        dumped: bytes = standing.dump()
        self._sent += len(dumped)  # without the frame around it, of some 30 bytes
        return dumped

    def kill(self) -> None:
        self.peak.bytes()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Return the process to the engine's pool."""
        self.peak.close()
        if self._io >= 0:
            os.close(self._io)
            self._io = -1
        with contextlib.suppress(Exception):
            self.session.__exit__(None, None, None)


class MontyWorkers(WorkerSlots[MontyWorker]):
    """The worker processes of the engine's own pool."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._pool: engine.Monty | None = None
        self._starting = threading.Lock()
        self._closed = False

    def attach(self, state: EngineState | None, limits: SessionLimits, **options: Any) -> MontyWorker:
        """Load a session into a new or reused process; *options* are for an empty session. Blocking."""
        worker = self.attach_bare(limits, **options)
        if state is None:
            return worker
        try:
            dump = state.dump if worker.fits(state.limits) else with_limits(state.dump, limits)
            worker.session.load_session(dump)
            worker.next_input = state.next_input
        except Exception as error:
            worker.close()
            if "memory limit" in str(error):
                raise StateTooLarge(limits.memory_mb) from error
            raise EngineFailed(f"the session's state cannot be loaded: {error}") from error
        return worker

    def check_loads(self, dump: bytes, limits: SessionLimits, *, paused: bool = False) -> None:
        """Raise the engine's error if *dump* is large and cannot be loaded within *limits*. Blocking."""
        if len(dump) * _LOADING_FACTOR <= limits.memory_mb << 20:
            return
        worker = self.attach_bare(limits)
        try:
            if paused:
                worker.session.load_snapshot(dump)
            else:
                worker.session.load_session(dump)
        finally:
            worker.close()

    def attach_bare(self, limits: SessionLimits, **options: Any) -> MontyWorker:
        """Return a worker with an empty session, for checks, rules and suspended cells. Blocking."""
        engine_limits: Any = {
            "max_memory": limits.memory_mb << 20,
            "max_feed_duration_secs": limits.cpu_ms / 1000,
            "max_recursion_depth": limits.max_stack_depth,
            "max_suspensions": MAX_SUSPENSIONS,
        }
        with self._starting:
            if self._closed:
                raise EngineFailed("the sandbox is closed")
            if self._pool is None:
                self._pool = _start_pool(self.capacity)
            pool = self._pool
        session = pool.checkout(limits=engine_limits, **{"os_policy": _SLEEPS_WHOLE, **options})
        session.__enter__()
        return MontyWorker(session, session.worker_pid or 0, limits)

    def close(self) -> None:
        """End every process. Blocking."""
        self._closed = True
        super().close()
        with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.__exit__(None, None, None)


def _start_pool(capacity: int) -> engine.Monty:
    try:
        # Three more than our slots: rules and checks must not wait for runs that wait for them, and one
        # worker keeps the type checker loaded.
        pool = engine.Monty(
            binary_path=_program(),
            min_processes=1,
            max_processes=capacity + 3,
            feed_duration_limit_grace=KILL_GRACE_S,
        )
        pool.__enter__()
    except Exception as error:
        raise EngineFailed(
            f"the Python engine cannot be started: {error}", hint="run `standfast doctor` to find the reason"
        ) from error
    return pool


def _program() -> str | None:
    """Return the engine's program in this virtual environment; None makes the engine search for it."""
    if "MONTY_BIN" in os.environ or sys.prefix == sys.base_prefix:
        return None
    path = os.path.join(sys.prefix, "bin", "monty")
    return path if os.path.isfile(path) else None


def read_value(read: Callable[[], object]) -> object:
    """Return the value that *read* converts; `NO_HASH` if a key or an item of a set cannot be hashed."""
    pauses = gc.isenabled()
    if pauses:  # the collector would scan all the new objects again and again
        gc.disable()
    try:
        return read()
    except TypeError:
        return NO_HASH
    finally:
        if pauses:
            gc.enable()


def stub(name: str) -> Callable[..., None]:
    """Return a function of this name; the engine keeps only the name."""
    if (known := _STUBS.get(name)) is None:

        def known() -> None: ...

        known.__name__ = name
        _STUBS[name] = known
    return known


def ignore_output(stream: str, text: str) -> None:
    """Discard output of code that the host runs."""


_feeding: set[int] = set()
_looking: Final = threading.Lock()
_is_absent: bool | None = None


def untraced(feed: Callable[P, T]) -> Callable[P, T]:
    """Wrap *feed* so that the engine does not search for `opentelemetry` where it is not installed.

    The engine imports `opentelemetry` at every feed. If the package is missing, searching for it takes longer
    than the feed. So a finder reports it as missing immediately, to the feeding threads only.
    """
    global _is_absent
    if _is_absent is None:
        with _looking:
            if _is_absent is None:
                _is_absent = _TRACER not in sys.modules and importlib.util.find_spec(_TRACER) is None
                if _is_absent:
                    sys.meta_path.insert(0, _Absent())
    if not _is_absent:
        return feed

    def feed_untraced(*args: P.args, **options: P.kwargs) -> T:
        thread = threading.get_ident()
        _feeding.add(thread)
        try:
            return feed(*args, **options)
        finally:
            _feeding.discard(thread)

    return feed_untraced


class _Absent:
    """A finder that reports the tracer as missing to threads that feed the engine."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _TRACER and threading.get_ident() in _feeding:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_LIMITS: Final = SessionLimits(memory_mb=32, cpu_ms=200)
_MAX_FRAME_BYTES: Final = 32_768
"""The limit for a rule's messages to the host: its value, and each name that it looks up."""


class MontyRules:
    """Evaluates rules in an empty sandbox of their own, without capabilities."""

    def __init__(self, workers: MontyWorkers) -> None:
        self._workers = workers

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        """Return whether *rule* is `True`; an error or any other value counts as false."""
        worker = self._workers.attach_bare(_LIMITS)
        try:
            inputs = {"args": args, "kwargs": kwargs, "session_id": session_id}
            return worker.evaluate(f"({rule}\n)", inputs, _MAX_FRAME_BYTES) is True
        except Exception:
            return False
        finally:
            worker.close()
