"""Event loops on threads of their own, for coroutines that may block.

Theory of operation
-------------------
A coroutine that calls `time.sleep`, computes for a second or waits for a lock blocks the loop that it runs
on. So the code of tools and plugins does not run on the runtime's loop: each coroutine gets a thread with a
loop of its own. Threads are daemons, are created on demand and reused; the most recently used one is taken
first.

A coroutine takes its first step as a task of a loop that is not running yet. Most coroutines end there: they
have awaited nothing and left nothing on the loop, so the next coroutine can use it. Otherwise the loop is run
now, and closed with its coroutine, as by `asyncio.run`: remaining tasks are cancelled and async generators
closed. Two coroutines never share a running loop by accident, so using an object bound to another loop fails
always, not just occasionally.

Rules
-----
1. The outcome of a coroutine is reported once, from its thread, before the loop is cleaned up. The receiver
   is woken last, because a thread that has woken another has to wait for the GIL.
2. No exception of the coroutine ends the thread, not even `SystemExit`.
3. A thread that does not return is abandoned; `cancel` cancels its coroutine and does not wait.
4. If no thread or loop can be created, work waits until a thread becomes free.
5. `at_home`: a service of the runtime runs on the runtime's loop, with the caller's context variables. A
   cancellation of either side reaches the other. On the runtime's loop it is a plain await.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, TypeVarTuple, cast

from standfast.durable.prompt_future import PromptFuture
from standfast.errors import ServiceUnavailable
from standfast.tools.threads import DaemonThreads, settler


class LoopThread:
    """One event loop on a daemon thread, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="standfast-tools", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(lambda: loop.create_task(_cancel_all(loop)))
        thread.join(timeout=0.5)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        while True:
            try:
                loop.run_forever()
                return
            except (SystemExit, KeyboardInterrupt):  # raised by a task; its awaiter gets it too
                continue
    finally:
        loop.close()


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks, then stop the loop. A task that ignores its cancellation keeps its daemon thread."""
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    loop.stop()


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def at_home(
    home: asyncio.AbstractEventLoop | None,
    function: Callable[P, Awaitable[R]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> R:
    """Await *function* on the loop *home*, or on the caller's if that is None."""
    if home is None or asyncio.get_running_loop() is home:
        return await function(*args, **kwargs)

    async def call() -> R:
        return await function(*args, **kwargs)

    work = call()
    try:
        future = asyncio.run_coroutine_threadsafe(work, home)
    except RuntimeError:
        work.close()
        raise ServiceUnavailable("the runtime", "its event loop has ended") from None
    return await asyncio.wrap_future(future)


def homed(home: asyncio.AbstractEventLoop, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Return a wrapper of *function* that can be awaited on any loop and runs on *home*."""

    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return await at_home(home, function, *args, **kwargs)

    return call


class HomeIterator(Generic[T]):
    """An async iterator of the loop *home*, to be read on any loop."""

    __slots__ = ("_home", "_items")

    def __init__(self, home: asyncio.AbstractEventLoop, items: AsyncIterator[T]) -> None:
        self._home = home
        self._items = items

    def __aiter__(self) -> HomeIterator[T]:
        return self

    async def __anext__(self) -> T:
        async def take() -> list[T]:
            async for item in self._items:
                return [item]
            return []  # a future cannot have a StopAsyncIteration

        found = await at_home(self._home, take)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def aclose(self) -> None:
        close: Any = getattr(self._items, "aclose", None)
        if close is not None:
            await at_home(self._home, close)


Work = Callable[[], Awaitable[T]]
Then = Callable[[], object]
Done = Callable[[T | None, BaseException | None], Then | None]
"""Receives the value of a coroutine, or its exception, on the coroutine's thread; must not raise.

It may return a function that wakes the receiver, which is called as soon as the thread is free.
"""

MAX_IDLE: Final = 16
GRACE_S: Final = 0.1
"""How long a cancelled caller waits for its coroutine to stop; shorter than the grace period of hooks."""
_TIDY_S: Final = 1.0
"""How long the remaining tasks of a coroutine may take to stop."""


class LoopJob(Generic[T]):
    """A coroutine that runs, or will run, on a loop of its own."""

    _context: Context | None
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None
    _must_stop = False
    _is_cancelled = False
    _then: Then | None = None
    holds_wake_up = False
    """Whether the receiver of the report is woken only by `wake_receiver`."""

    def __init__(self, work: Work[T], done: Done[T], context: Context | None = None) -> None:
        self._work = work
        self._done = done
        self._context = copy_context() if context is None else context

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread. One that blocks stops when it next awaits."""
        self._must_stop = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the job is over
                self._loop.call_soon_threadsafe(self._cancel_task)

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Create a task of *loop* for the coroutine. Called on the loop's thread."""
        task = self._task = asyncio.Task(self.outcome(), loop=loop, context=self._context)
        self._loop = loop
        if self._must_stop:
            self._cancel_task()
        return task

    async def outcome(self) -> None:
        """Run the coroutine and report its value or exception. Never raises."""
        try:
            value = await self._work()
        except BaseException as error:
            self.report(None, error)
        else:
            self.report(value, None)

    def report(self, value: T | None, error: BaseException | None) -> None:
        done, self._done = self._done, _ignore
        self._then = done(value, error)
        if not self.holds_wake_up:
            self.wake_receiver()

    def wake_receiver(self) -> None:
        """Wake the receiver of the report, if that was held back."""
        self.holds_wake_up, then, self._then = False, self._then, None
        if then is not None:
            then()

    def _cancel_task(self) -> None:
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()


class LoopThreads:
    """A set of reusable daemon threads, each with an event loop."""

    def __init__(self, name: str = "standfast-loop", *, max_idle: int = MAX_IDLE) -> None:
        self._name = name
        self._max_idle = max_idle
        self._made = 0
        self._lock = threading.Lock()
        self._idle: list[_LoopThread] = []
        self._busy: dict[_LoopThread, LoopJob[Any]] = {}
        self._waiting: deque[LoopJob[Any]] = deque()
        self._is_closed = False
        self._executor = _ThreadExecutor()

    def start(self, job: LoopJob[Any]) -> None:
        """Run *job* on a free thread, or on a new one."""
        with self._lock:
            thread = self._idle.pop() if self._idle else self._make()
            if thread is None:
                self._waiting.append(job)
                return
            self._busy[thread] = job
        thread.jobs.put(job)

    @property
    def busy(self) -> bool:
        """Whether a thread is running a job."""
        return bool(self._busy)

    async def run(self, work: Work[T]) -> T:
        """Await *work* on a loop of its own. Cancelling cancels it, without delay even if it blocks."""
        future, report = outcome_here()
        job: LoopJob[T] = LoopJob(work, report)
        self.start(job)
        return await finished(job, future)

    def close(self, wait_s: float = 0.0) -> None:
        """Cancel all running work, end idle threads, and wait up to *wait_s* seconds for the others."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy.values())
        for thread in idle:
            thread.jobs.put(None)
        for job in busy:
            job.cancel()
        until = time.monotonic() + wait_s
        while wait_s and self._busy and time.monotonic() < until:
            time.sleep(0.005)
        self._executor.close()

    def free(self, thread: _LoopThread) -> None:
        """Give a thread that has finished its job the next one, or mark it idle; end surplus threads."""
        with self._lock:
            self._busy.pop(thread, None)
            if self._waiting:
                job = self._busy[thread] = self._waiting.popleft()
                thread.jobs.put(job)
            elif self._is_closed or len(self._idle) >= self._max_idle:
                thread.jobs.put(None)
            else:
                self._idle.append(thread)

    def wait_again(self, thread: _LoopThread, job: LoopJob[Any]) -> bool:
        """Put *job* back in the queue if another thread that has a loop will become free."""
        with self._lock:
            self._busy.pop(thread, None)
            others = any(one.loop is not None for one in (*self._busy, *self._idle))
            if others and not self._idle:
                self._waiting.appendleft(job)
                return True
            if others:
                other = self._idle.pop()
                self._busy[other] = job
                other.jobs.put(job)
                return True
            return False

    def new_loop(self) -> _OwnLoop:
        loop = _OwnLoop()
        loop.set_default_executor(self._executor)
        return loop

    def _make(self) -> _LoopThread | None:
        thread = _LoopThread(self)
        try:
            threading.Thread(target=thread.serve, name=f"{self._name}-{self._made + 1}", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            if not self._busy:
                raise
            return None
        self._made += 1
        return thread


_NO_HANDLE: Final = cast(asyncio.Handle, None)


class _OwnLoop(asyncio.SelectorEventLoop):
    """The loop of one thread. It takes the first step of a job without running, because cycles are costly."""

    _first: Callable[[], object] | None = None
    _is_beginning = False
    _steps = False
    is_used = False
    """Whether something was scheduled on it since the job began, other than the job's first step."""

    def begin(self, job: LoopJob[Any]) -> asyncio.Task[None]:
        """Create a task for *job* and take its first step."""
        self.is_used, self._is_beginning = False, True
        task = job.begin(self)
        assert self._first is not None
        first, self._first = self._first, None
        asyncio._set_running_loop(self)
        self._steps = True
        try:
            first()
        finally:
            self._steps = False
            asyncio._set_running_loop(None)
        return task

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._is_beginning and context is not None:
            self._is_beginning = False
            self._first = partial(context.run, callback, *args)
            return _NO_HANDLE  # the new task, which calls this, does not use it
        self.is_used = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.is_used = True
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.is_used = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        self.is_used = True
        super().stop()

    def is_running(self) -> bool:
        return self._steps or super().is_running()


class _LoopThread:
    """One thread: takes jobs from its queue, and runs each to its end."""

    __slots__ = ("_pool", "jobs", "loop")

    def __init__(self, pool: LoopThreads) -> None:
        self._pool = pool
        self.loop: _OwnLoop | None = None
        self.jobs: queue.SimpleQueue[LoopJob[Any] | None] = queue.SimpleQueue()

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            if not self._run(job):
                return
            del job  # an idle thread must not keep its last turn in memory
        if self.loop is not None:
            self.loop.close()

    def _run(self, job: LoopJob[Any]) -> bool:
        """Run one job; return False if this thread got no loop and has put the job back in the queue."""
        loop = self.loop
        if loop is None:
            try:
                loop = self.loop = self._pool.new_loop()
            except OSError as error:  # out of file descriptors
                if self._pool.wait_again(self, job):
                    return False
                job.report(None, error)
                self._end(job)
                return True
            sys.set_asyncgen_hooks(loop._asyncgen_firstiter_hook, loop._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        job.holds_wake_up = True
        try:
            task = loop.begin(job)
            if not loop.is_used and task.done():
                self._end(job)
                return True
            job.wake_receiver()
            loop.run_until_complete(task)
        except BaseException as error:  # a task of the job raised SystemExit, or the loop was stopped
            job.report(None, error)
        self.loop = None
        _tidy(loop)
        self._end(job)
        return True

    def _end(self, job: LoopJob[Any]) -> None:
        self._pool.free(self)
        job.wake_receiver()


class SharedLoop:
    """Runs the coroutines of one owner on one loop, so that only one of them runs at a time.

    The loop's thread is taken from *threads* for the first coroutine, and returned after the last. A
    coroutine that blocks delays only those of its owner, and only until its caller abandons it; later
    coroutines then get another thread.
    """

    def __init__(self, threads: LoopThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._room: _OwnerJobs | None = None

    async def run(self, work: Work[T]) -> T:
        """Await *work* on the owner's loop."""
        future, report = outcome_here()
        job: LoopJob[T] = LoopJob(work, report)
        with self._lock:
            room, is_new = self._room, False
            if room is None or not room.take(job):
                room, is_new = _OwnerJobs(job, self._close), True
                self._room = room
        if is_new:
            self._threads.start(room.job)
        try:
            return await finished(job, future)
        finally:
            if not future.done():  # that thread does not return: use another from now on
                with self._lock:
                    if self._room is room:
                        self._room = None

    def _close(self, room: _OwnerJobs) -> bool:
        """End *room* unless more work has arrived."""
        with self._lock:
            if room.has_work:
                return False
            if self._room is room:
                self._room = None
            return True


class _OwnerJobs:
    """A thread while it serves one owner: it runs the first job directly, and later ones as tasks."""

    def __init__(self, first: LoopJob[Any], close: Callable[[_OwnerJobs], bool]) -> None:
        self._first = first
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._new: list[LoopJob[Any]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.Event | None = None
        self.job: LoopJob[None] = LoopJob(self._serve, _ignore, first._context)

    @property
    def has_work(self) -> bool:
        return bool(self._new or self._tasks)

    def take(self, job: LoopJob[Any]) -> bool:
        """Add a job, with the owner's lock held; return False if the loop is closed."""
        self._new.append(job)
        if self._loop is None:
            return True  # `_serve` starts it when it begins
        try:
            self._loop.call_soon_threadsafe(self._begin_new)
        except RuntimeError:
            self._new.remove(job)
            return False
        return True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin_new()
        self._first._loop, self._first._task = self._loop, asyncio.current_task()
        if not self._first._must_stop:
            await self._first.outcome()
        else:
            self._first.report(None, asyncio.CancelledError())
        self._first._task = None
        while not self._close(self):
            self._wake = asyncio.Event()
            await self._wake.wait()

    def _begin_new(self) -> None:
        assert self._loop is not None
        while self._new:
            job = self._new[0]
            task = job.begin(self._loop)
            self._tasks.add(task)
            task.add_done_callback(partial(self._end, job))
            del self._new[0]

    def _end(self, job: LoopJob[Any], task: asyncio.Task[None]) -> None:
        job.report(None, asyncio.CancelledError())  # unless it was reported: it was cancelled before it began
        self._tasks.discard(task)
        if self._wake is not None:
            self._wake.set()


def outcome_here() -> tuple[asyncio.Future[Any], Done[Any]]:
    """Return a future of the running loop, and the function that settles it from any thread."""
    future: PromptFuture[Any] = PromptFuture()
    settle = settler(future)

    def report(value: Any, error: BaseException | None) -> None:
        if isinstance(error, StopIteration):  # a future cannot have one
            error = RuntimeError(f"StopIteration: {error}")
        settle(value, error)

    return future, report


async def finished(job: LoopJob[T], future: asyncio.Future[T]) -> T:
    """Await the outcome of *job*.

    If the caller is cancelled, cancel the job and wait a moment for it to stop.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not future.done():
            job.cancel()
            await asyncio.wait((future,), timeout=GRACE_S)
        raise
    finally:
        if future.done() and not future.cancelled():
            future.exception()


class _ThreadExecutor(ThreadPoolExecutor):
    """The default executor of these loops, for `asyncio.to_thread` and name resolution, on daemon threads."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._daemons = DaemonThreads("standfast-loop-worker")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._daemons.start(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: every loop that closes calls this, while other loops still use the threads."""

    def close(self) -> None:
        self._daemons.close()


def _tidy(loop: asyncio.AbstractEventLoop) -> None:
    """End the remaining tasks and generators of a coroutine's loop, and close the loop."""
    if loop.is_closed():
        return
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_TIDY_S))
        for task in left:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it ignored its cancellation
            elif not task.cancelled() and (error := task.exception()) is not None:
                message = "a task that a tool left behind raised while it was cancelled"
                loop.call_exception_handler({"message": message, "exception": error, "task": task})
        loop.run_until_complete(loop.shutdown_asyncgens())
    except BaseException as error:  # a task that was left raised SystemExit, for instance
        loop.call_exception_handler(
            {"message": "a tool's event loop could not be cleaned up", "exception": error}
        )
    finally:
        loop.close()


def _ignore(value: object, error: BaseException | None) -> None:
    """Ignore the outcome."""
