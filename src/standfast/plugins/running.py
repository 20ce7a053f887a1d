"""The hook runner: calls hooks with a deadline and converts everything they raise to `PluginFailed`.

Rules
-----
1. Anything a hook raises becomes `PluginFailed` with the plugin's id: exceptions, SystemExit, and a
   cancellation that the runtime did not request.
2. The hooks of one stage share one deadline. A hook that exceeds it is cancelled and counts as failed, never
   as agreeing. A hook that does not stop is abandoned. This holds even for a hook that never awaits, because
   it runs on a loop of its session's plugins (`PluginPlace.away`), unless its plugin declares otherwise.
3. A traced phase is ended before its error propagates.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

import msgspec

from standfast.errors import CallerError, PluginFailed, StandfastError
from standfast.plugins.runtime_settings import DEFAULT_TIMEOUT_S
from standfast.ports.trace import HookWatch, PhaseProbe
from standfast.tools.loop_threads import LoopThreads, SharedLoop
from standfast.tools.registry import ASKED
from standfast.tools.stalls import StallWatch, watched
from standfast.tools.threads import Spares, Started
from standfast.tools.tracebacks import described

T = TypeVar("T")

_CALLED: Final = (
    "action", "apply_session_extension", "configure_runtime_on_materialize", "validate_turn_extension",
)  # fmt: skip
"""Methods that receive values from the caller: a `CallerError` that they raise is passed on to the caller."""

_ENDED_ITSELF: Final = "it cancelled the task that it runs in"
_GRACE_S: Final = 0.2

_cancelled: set[asyncio.Task[Any]] = set()
"""Cancelled hooks that have not stopped yet, referenced here so that they are not garbage-collected."""


HOOK: Final[ContextVar[str]] = ContextVar("standfast_hook", default="")
"""The kind of the hook that this code runs in; empty outside of hooks."""


class NoAnswer(Exception):
    """Hooks exceeded the deadline or cancelled their own task. The message is the problem."""


class HookMemory(Protocol):
    """Captures a plugin's state after each of its hooks (`plugin_states.PluginMemory`)."""

    def hook_begins(self) -> None: ...

    def hook_ended(self) -> None: ...


class PluginPlace(msgspec.Struct, frozen=True):
    """Where the code of a plugin runs in one session: on the separate loop *away*, or on the runtime's.

    *stalls* watches code on the runtime's loop. A shipped plugin has neither. When a hook ends, *memory*
    captures its plugin's state.
    """

    away: SharedLoop | None = None
    stalls: StallWatch | None = None
    memory: HookMemory | None = None


AT_HOME: Final = PluginPlace()


class RegisteredHook(msgspec.Struct, frozen=True):
    """A hook and the plugin that registered it."""

    plugin_id: str
    kind: str
    function: Callable[..., Any]
    priority: int = 0
    place: PluginPlace = AT_HOME

    @property
    def phase(self) -> str:
        return f"plugin_hook.{self.kind}.{self.plugin_id}"

    def begin(self, *given: Any) -> Awaitable[Any]:
        """Start the hook on its plugin's loop; return an awaitable of its result."""
        place = self.place
        if place.away is not None:
            return place.away.run(lambda: self._remembered(self.function(*given)))
        work: Awaitable[Any] = self.function(*given)
        if place.stalls is not None:
            work = watched(work, place.stalls, self.described)
        return work if place.memory is None else self._remembered(work)

    async def _remembered(self, work: Awaitable[T]) -> T:
        """Await *work*, then capture the plugin's state on the same thread."""
        memory = self.place.memory
        if memory is None:
            return await work
        memory.hook_begins()
        try:
            return await work
        finally:
            memory.hook_ended()

    @property
    def described(self) -> str:
        return f"hook {self.kind} of plugin {self.plugin_id!r}"


class BuildStep(msgspec.Struct):
    """The plugin function that is being called while a session is opened, so that a timeout can name it."""

    plugin_id: str = "?"
    name: str = "build"

    def begin(self, plugin_id: str, name: str) -> None:
        self.plugin_id, self.name = plugin_id, name

    def late(self, problem: NoAnswer) -> PluginFailed:
        return PluginFailed(self.plugin_id, self.name, str(problem))


class HookRunner(msgspec.Struct):
    """Calls hooks, one stage at a time."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    probe: PhaseProbe | None = None
    spares: Spares = msgspec.field(default_factory=Spares)
    """Idle tasks in which hooks are started; the owner of the runner closes them."""
    watch: HookWatch | None = None
    loops: LoopThreads | None = None
    """The loops on which plugins' coroutines run; if None, the caller's loop."""
    stalls: StallWatch | None = None

    def call(self, hook: RegisteredHook, *given: Any) -> Coroutine[Any, Any, Any]:
        """Return the answer of a hook; raise `PluginFailed` if it has none."""
        return self._current().call(hook, *given)

    def call_plain(self, hook: RegisteredHook, *given: Any) -> Any:
        """Call a hook that is a plain function; return its answer."""
        if self.watch is None:
            return self._call_plain(hook, *given)
        with self.watch.watching(hook.plugin_id, hook.kind, given):
            return self._call_plain(hook, *given)

    def _call_plain(self, hook: RegisteredHook, *given: Any) -> Any:
        outer = HOOK.get()
        HOOK.set(hook.kind)
        if self.probe is not None:
            self.probe.begin_named(hook.phase)
        try:
            if hook.place.stalls is None or ASKED.get() is not None:
                return at_once(hook.function(*given))
            with hook.place.stalls.holding(hook.described):
                return at_once(hook.function(*given))
        except BaseException as error:
            raise _failed(hook, error) from error
        finally:
            HOOK.set(outer)
            if self.probe is not None:
                self.probe.end_named(hook.phase)

    async def stage(self, work: Callable[[RunningStage], Coroutine[Any, Any, T]]) -> T:
        """Run *work*, which calls the hooks of a stage, within the hook timeout."""
        current = self._current()
        started = Started(work(current), self.spares)
        if started.task is None:
            return started.result()
        try:
            return await awaited(self.timeout_s, started.task)
        except NoAnswer as problem:
            hook = current.hook
            plugin, kind = (hook.plugin_id, hook.kind) if hook is not None else ("?", "?")
            raise PluginFailed(plugin, kind, str(problem)) from None

    async def ask(self, hook: RegisteredHook, *given: Any) -> Any:
        """Return the answer of one hook, within the hook timeout."""
        return await self.stage(lambda at: at.call(hook, *given))

    def _current(self) -> RunningStage:
        return RunningStage(self) if self.watch is None else _TracedStage(self, self.watch)


class RunningStage:
    """The running stage, and the hook that is being called."""

    __slots__ = ("_probe", "hook")

    def __init__(self, runner: HookRunner) -> None:
        self._probe = runner.probe
        self.hook: RegisteredHook | None = None

    async def call(self, hook: RegisteredHook, *given: Any) -> Any:
        """Return the answer of a hook; raise `PluginFailed` if it has none."""
        self.hook = hook
        probe, outer = self._probe, HOOK.get()
        HOOK.set(hook.kind)
        if probe is not None:
            probe.begin_named(hook.phase)
        try:
            return await hook.begin(*given)
        except asyncio.CancelledError as error:
            if asyncio.current_task() in _cancelled:
                raise
            raise _failed(hook, error) from None
        except BaseException as error:
            raise _failed(hook, error) from error
        finally:
            HOOK.set(outer)
            if probe is not None:
                probe.end_named(hook.phase)


class _TracedStage(RunningStage):
    """A stage whose hooks are traced."""

    __slots__ = ("_watch",)

    def __init__(self, runner: HookRunner, watch: HookWatch) -> None:
        super().__init__(runner)
        self._watch = watch

    async def call(self, hook: RegisteredHook, *given: Any) -> Any:
        with self._watch.watching(hook.plugin_id, hook.kind, given):
            return await super().call(hook, *given)


async def within(timeout_s: float, work: Coroutine[Any, Any, T], spares: Spares | None = None) -> T:
    """Run *work* in its own task; raise `NoAnswer` if it takes longer than *timeout_s*."""
    started = Started(work, spares)
    return started.result() if started.task is None else await awaited(timeout_s, started.task)


async def awaited(timeout_s: float, task: asyncio.Task[T]) -> T:
    """Return the result of a task; raise `NoAnswer` if it takes longer than *timeout_s*."""
    try:
        await asyncio.wait((task,), timeout=timeout_s)
    except asyncio.CancelledError:
        await _give_up(task)
        raise
    if not task.done():
        await _give_up(task)
        raise NoAnswer(_late(timeout_s))
    if task.cancelled():
        raise NoAnswer(_ENDED_ITSELF)
    return task.result()


async def all_within(
    timeout_s: float, works: Iterable[Coroutine[Any, Any, None]], spares: Spares | None = None
) -> list[tuple[int, str]]:
    """Run all *works* concurrently; return the index of each that gave no answer, with the problem."""
    started = [Started(work, spares) for work in works]
    tasks = {one.task: place for place, one in enumerate(started) if one.task is not None}
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, timeout=timeout_s)
    finally:
        late = [task for task in tasks if not task.done()]
        ended = [task for task in tasks if task.done() and task.cancelled()]
        await _give_up(*late)
    return [
        *((tasks[task], _late(timeout_s)) for task in late),
        *((tasks[task], _ENDED_ITSELF) for task in ended),
    ]


def _late(timeout_s: float) -> str:
    return f"it did not answer within {timeout_s:g} s"


async def _give_up(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, and wait a moment for them to stop."""
    for task in tasks:
        _cancelled.add(task)
        task.add_done_callback(_discard)
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_GRACE_S)


def _discard(task: asyncio.Task[Any]) -> None:
    _cancelled.discard(task)
    if not task.cancelled():
        task.exception()


def _failed(hook: RegisteredHook, error: BaseException) -> StandfastError:
    if isinstance(error, PluginFailed) and error.plugin_id == hook.plugin_id:
        return error
    if hook.kind in _CALLED and isinstance(error, CallerError):
        return error  # the caller's error
    if hook.kind == "build_preamble" and isinstance(error, StandfastError):
        return error  # an error of a tool source
    return PluginFailed(hook.plugin_id, hook.kind, described(error))


def at_once(answer: T) -> T:
    """Return the answer of a plain function; raise TypeError if it has to be awaited."""
    if answer is not None and inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("it is `async def`, but its caller cannot await it")
    return answer
