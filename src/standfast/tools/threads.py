"""Execution of work: daemon threads, eagerly started tasks, and a loop for callers that have none.

*Threads.* A tool that hangs keeps its thread forever; the standard executor would then hang the interpreter
at exit. `DaemonThreads` are daemons, are created on demand, and wait for more work when they are done.

*Tasks.* Most hooks never await anything, and a task for each would cost more than the hook. `Started` runs
the first step of the work immediately, as if a task did (Python 3.12 supports that natively). If that ends
the work, the task is reused for the next one (`Spares`). If not, it continues after that step.

*A loop without I/O.* `run_blocking` runs one coroutine to its end on the calling thread. Everything that the
coroutine awaits is a future that a callback settles: a scheduled one, a timer, or one posted by another
thread. There is no selector and no wake-up pipe, so a coroutine that never waits costs little more than a
function call. One thread at a time drives a `BlockingLoop`; others may only call `call_soon_threadsafe`.

*Calls that may hang.* The thread that called `run_blocking` must return even if a tool hangs, so it never
runs one. At the first call it lends the loop to a helper, which from then on drives the loop and runs the
calls between its steps, without changing threads. If something becomes due while the helper is in a call (a
timer, or a callback of another thread), the caller takes the loop back and drives it; the helper then only
posts the result of its call. The lock `_calling`, made for each call, decides between a caller that takes the
loop back and a helper that returns from its call.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import logging
import math
import queue
import threading
import time
import types
from asyncio import current_task, get_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from standfast.durable.prompt_future import PromptFuture

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
_Then = Callable[[], object]
_Job = Callable[[], _Then | None]
_Jobs = queue.SimpleQueue[_Job]

_SIGNAL_CHECK_S: Final = 0.1


def _stop() -> None:
    """A job that ends its thread; compared by identity."""


class DaemonThreads:
    """Reusable daemon threads, the last used first. With *at_most*, further jobs wait for a thread."""

    def __init__(self, name: str = "standfast", *, at_most: int | None = None) -> None:
        self._name = name
        self._at_most = at_most
        self._made = 0
        self._idle: list[_Jobs] = []
        self._waiting: deque[_Job] = deque()
        self._closed = False

    def start(self, job: _Job) -> None:
        """Run *job* on a thread; it must not raise. Call the function it returns once the thread is free."""
        try:
            jobs = self._idle.pop()
        except IndexError:
            if self._at_most is not None and self._made >= self._at_most:
                self._waiting.append(job)
                self._hand_out()  # a thread may have become idle in the meantime
                return
            jobs = self._make()
        jobs.put(job)

    async def run(self, job: Callable[[], T]) -> T:
        """Run *job* on a thread and await its result."""
        future: PromptFuture[T] = PromptFuture()
        self.start(lambda: hand_over(future, job))
        return await future

    def close(self) -> None:
        """End idle threads. Busy threads end with their job."""
        self._closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().put(_stop)

    def _make(self) -> _Jobs:
        self._made += 1
        jobs: _Jobs = queue.SimpleQueue()
        name = f"{self._name}-{self._made}"
        threading.Thread(target=self._serve, args=(jobs,), name=name, daemon=True).start()
        return jobs

    def _serve(self, jobs: _Jobs) -> None:
        while (job := jobs.get()) is not _stop:
            then = job()
            del job
            self._idle.append(jobs)
            if then is not None:
                then()
            del then
            self._hand_out()
            if self._closed:
                self.close()

    def _hand_out(self) -> None:
        """Assign waiting jobs to idle threads. Called whenever a job or a thread has begun to wait."""
        while self._waiting:
            try:
                jobs = self._idle.pop()
            except IndexError:
                if not self._closed:
                    return
                jobs = self._make()  # the others may have ended
            try:
                jobs.put(self._waiting.popleft())
            except IndexError:  # another thread took it
                self._idle.append(jobs)


def hand_over(future: PromptFuture[T], job: Callable[[], T]) -> _Then:
    """Run *job* and return the function that settles *future* on its loop."""
    try:
        return functools.partial(settler(future), job(), None)
    except BaseException as error:
        return functools.partial(settler(future), None, error)


def settler(future: PromptFuture[T]) -> Callable[[T | None, BaseException | None], None]:
    """Return a function that settles *future* from any thread, unless its loop has ended or it is settled."""

    def on_loop(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error, at_once=True)
        else:
            future.set_result(value, at_once=True)  # type: ignore[arg-type]

    def settle(value: T | None, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(on_loop, value, error)

    return settle


_NOT_OVER: Any = object()


class Started(Generic[T]):
    """Work that has begun. `task` is set if the work is not over yet."""

    __slots__ = ("_error", "_value", "task")

    def __init__(self, work: Coroutine[Any, Any, T], spares: Spares | None = None) -> None:
        self.task: asyncio.Task[T] | None = None
        self._value: T = _NOT_OVER
        self._error: BaseException | None = None
        loop = get_running_loop()
        outer = current_task(loop)
        rest = _Rest(loop) if spares is None else spares.take(loop)
        if outer is not None:
            _leave_task(loop, outer)
        try:
            rest.begin(work)
            self.task = rest.task
        except StopIteration as stop:
            self._value = stop.value
        except KeyboardInterrupt:  # pressed by the user of this thread
            raise
        except BaseException as error:
            self._error = error
        finally:
            if outer is not None:
                _enter_task(loop, outer)
            if self.task is None:
                rest.let_go() if spares is None else spares.put_back(rest)

    @property
    def over(self) -> bool:
        return self.task is None

    def result(self) -> T:
        """Return the value of finished work, or raise its exception."""
        if self.task is not None:
            return self.task.result()
        if self._error is not None:
            raise self._error
        return self._value


class Spares:
    """Idle tasks for reuse. Their owner closes them."""

    __slots__ = ("_free", "put_back")

    def __init__(self) -> None:
        self._free: list[_Rest] = []
        self.put_back = self._free.append

    def take(self, loop: asyncio.AbstractEventLoop) -> _Rest:
        while self._free:
            rest = self._free.pop()
            if rest.loop is loop and not rest.task.cancelling():
                return rest
        return _Rest(loop)

    async def close(self) -> None:
        free = self._free.copy()
        self._free.clear()
        loop = asyncio.get_running_loop()
        tasks = [rest.task for rest in free if rest.loop is loop and not rest.task.cancelling()]
        for rest in free:
            rest.let_go()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Rest:
    """A task's coroutine, which waits for work that has begun and runs the rest of it."""

    __slots__ = ("_context", "_pending", "_wake", "_work", "loop", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._wake: asyncio.Future[None] = loop.create_future()
        self._pending: Any = _NOT_OVER
        self._work: Coroutine[Any, Any, Any]
        self._context: Context
        run = self._run()
        run.send(None)  # start it, so that an early cancellation reaches the work
        self.task: asyncio.Task[Any] = loop.create_task(run, context=Context())

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run the first step of *work* as the task, which then continues it.

        If *work* ends with this step, raise its error, or `StopIteration` with its value.
        """
        context = copy_context()
        _enter_task(self.loop, self.task)
        try:
            pending = context.run(work.send, None)
        finally:
            _leave_task(self.loop, self.task)
        self._work, self._context, self._pending = work, context, pending
        self.let_go()

    def let_go(self) -> None:
        """Wake the task, which continues the work it was given, or ends."""
        if not self._wake.done() and not self.loop.is_closed():
            self._wake.set_result(None)

    async def _run(self) -> Any:
        return await self._continue()

    @types.coroutine
    def _continue(self) -> Generator[Any, Any, Any]:
        """Continue work in the middle, as `yield from` would from its beginning."""
        step, given = "", None
        try:
            yield
            yield from self._wake
        except BaseException as error:
            step, given = "throw", error
            if self._pending is _NOT_OVER:
                raise
        if self._pending is _NOT_OVER:
            return None  # no work needed it
        pending = self._pending
        while True:
            try:
                if step:
                    pending = self._context.run(getattr(self._work, step), given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = "send", (yield pending)
            except BaseException as error:
                step, given = "throw", error


log: Final = logging.getLogger("standfast")

_loops: Final = threading.local()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end on this thread. An event loop running on it, as in a notebook, is blocked."""
    loop: BlockingLoop | None = getattr(_loops, "loop", None)
    if loop is None or loop.running:
        loop = _loops.loop = BlockingLoop()  # type: ignore[abstract]
    return loop.run(work)


class BlockingLoop(asyncio.AbstractEventLoop):
    """A minimal loop, which implements only the methods that futures and tasks need."""

    _job: _Job | None = None
    _helpers: DaemonThreads
    _lent = False
    _wants_back = False
    _calling: threading.Lock | None = None
    _due = _planned = math.inf
    """The first timer when the helper entered its call, and the time until which the caller waits."""
    _failure: BaseException | None = None

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._posted: queue.SimpleQueue[asyncio.Handle] = queue.SimpleQueue()
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self.running = False
        self._spare: _Rest | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end, and every callback that is due until then."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        self.running = True
        rest, self._spare = self._spare or _Rest(self), None
        try:
            rest.begin(work)
            return self._outcome(rest.task)  # type: ignore[no-any-return]
        except StopIteration as stop:  # most work ends with its first step
            if not rest.task.cancelling():
                self._spare = rest
            return stop.value  # type: ignore[no-any-return]
        finally:
            while self._ready and not self._lent:  # let tasks that the work has cancelled end
                self._step()
            self.running = self._lent  # a loop that was not given back cannot be used again
            asyncio._set_running_loop(outer)

    def _outcome(self, task: asyncio.Task[T]) -> T:
        try:
            self._run_until_done(task)
        except BaseException:  # Ctrl-C: end the work, then raise it to the caller
            task.cancel()
            self._run_until_done(task)
            raise
        return task.result()

    def call_next(self, job: _Job, helpers: DaemonThreads) -> bool:
        """Run *job*, which may hang, on a helper as soon as nothing else is due; False if one is waiting."""
        if self._job is not None:
            return False
        self._job, self._helpers = job, helpers
        return True

    def _run_until_done(self, task: asyncio.Task[Any]) -> None:
        while not task.done():
            if self._job is None or self._idle_until() <= 0:
                self._step()
            else:
                self._lend(task)

    def _idle_until(self) -> float:
        """Return the time of the first timer, or 0 if something is due now."""
        if self._ready or not self._posted.empty():
            return 0.0
        first = self._first_timer()
        return first if first > time.monotonic() else 0.0

    def _first_timer(self) -> float:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf

    def _step(self) -> None:
        """Run the callbacks that are due, or wait until one is."""
        ready = self._ready
        if not ready:
            first = self._first_timer()
            timeout = None if first == math.inf else max(0.0, first - time.monotonic())
            try:
                ready.append(self._posted.get(timeout=timeout))
            except queue.Empty:
                ready.append(heapq.heappop(self._timers)[2])
        while not self._posted.empty():
            ready.append(self._posted.get())
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _lend(self, task: asyncio.Task[Any]) -> None:
        """Let a helper drive the loop until *task* is done or the loop is taken back from a call."""
        self._lent = True
        self._planned = self._due = self._first_timer()
        asyncio._set_running_loop(None)
        self._helpers.start(lambda: self._help(task))
        try:
            self._await_return()
        except BaseException:  # Ctrl-C
            self._wants_back = True
            self.call_soon_threadsafe(bool)
            self._await_return()
            raise
        finally:
            self._wants_back = False
            asyncio._set_running_loop(self)
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    def _await_return(self) -> None:
        """Wait until the helper has returned the loop, or take it back if something is due during a call."""
        due = self._due
        while self._lent:
            self._planned = due
            if self._due >= due or self._calling is None:  # both threads write first, then read
                with contextlib.suppress(queue.Empty):
                    self._signals.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic()))
            calling, due = self._calling, self._due
            is_due = due <= time.monotonic()
            if calling is None:
                # The next call probably waits for the same timer; without this plan it would have to signal.
                due = math.inf if is_due else due
            elif (is_due or self._wants_back or not self._posted.empty()) and calling.acquire(blocking=False):
                self._calling, self._lent = None, False

    def _help(self, task: asyncio.Task[Any]) -> _Then | None:
        """Drive the loop and run its calls until *task* is done or the caller takes the loop back."""
        asyncio._set_running_loop(self)
        try:
            while not task.done() and not self._wants_back:
                if (job := self._job) is None or (due := self._idle_until()) <= 0:
                    self._step()
                    continue
                self._job = None
                calling = threading.Lock()
                self._due, self._calling = due, calling
                if due < self._planned or self._wants_back or not self._posted.empty():
                    self._signals.put(None)
                asyncio._set_running_loop(None)
                then = job()
                if not calling.acquire(blocking=False):
                    return then
                self._calling = None
                asyncio._set_running_loop(self)
                if then is not None:
                    then()
        except BaseException as error:
            self._failure = error
        asyncio._set_running_loop(None)
        self._lent = False
        self._signals.put(None)
        return None

    # The methods that asyncio calls

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._posted.put(handle)
        if self._calling is not None:
            self._signals.put(None)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it becomes the next one."""

    def time(self) -> float:
        return time.monotonic()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # spares wait as long as the loop lives
        return task

    get_debug = bool  # false, without a call: every handle asks

    def is_running(self) -> bool:
        return self.running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        log.error("%s", context.get("message"), exc_info=context.get("exception"))


def interruptible_result(future: Future[T]) -> T:
    """Wait for *future* on the main thread; return its result."""
    # Wait in short periods: a signal to another thread does not wake this one, which has to raise Ctrl-C.
    from concurrent.futures import wait

    while not future.done():
        wait((future,), _SIGNAL_CHECK_S)
    return future.result()
