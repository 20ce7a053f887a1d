"""The deps of turns, which tools and hooks get as `ctx.deps`: their sources and their lifetime.

A turn has the deps that its caller passed, or else those with which its session was opened in this process.
Otherwise a factory creates them: that of its agent, of the agent above a subagent, or of the runtime.

Rules
-----
1. A factory is called each time a turn runs in this process: when it begins, and whenever it is resumed.
2. Resources that a factory holds open (as an async generator or async context manager) are released when the
   turn ends, parks or fails.
3. A factory does not delay other sessions: a plain one runs on a thread, an async one on an event loop of its
   own, which lives until its resources are released. With `@runtime_loop`, it runs on the runtime's loop.
4. If the agent declares `deps_type`, a turn without deps does not run and raises `DepsMissing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

from standfast.errors import DepsMissing, InstructionsFailed, InvalidArgument
from standfast.model.canonical import Json
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.plugins.runtime_services import RuntimeServices
from standfast.tools.context import RunContext
from standfast.tools.loop_threads import LoopJob, finished, outcome_here
from standfast.tools.stalls import watched
from standfast.tools.tracebacks import described

F = TypeVar("F", bound=Callable[..., Any])


def runtime_loop(function: F) -> F:
    """Run an async *function* (instructions, a deps factory) on the runtime's event loop.

    Use it for functions that need objects bound to that loop. If such a function blocks, every session waits.
    """
    if not is_async(function):
        raise InvalidArgument(
            f"@runtime_loop takes an async function or generator, not {function!r}",
            hint="leave it out: a plain function runs on a thread and needs no loop",
        )
    function.__standfast_loop__ = "runtime"  # type: ignore[attr-defined]
    return function


async def call_user_function(
    function: Callable[..., Any], given: object, what: str, services: RuntimeServices
) -> Any:
    """Call *function* with *given* and return its result, awaited if necessary.

    *what* names it in the log.
    """
    if on_runtime_loop(function):
        return await watched(function(given), services.stalls, what)
    if is_async(function):
        return await services.loops.run(lambda: function(given))
    made = await services.threads.run(lambda: function(given))
    return await services.loops.run(lambda: made) if inspect.isawaitable(made) else made


async def with_instructions(
    prompt: PromptLayer | None,
    function: Callable[[RunContext[Any]], Any],
    ctx: RunContext[Any],
    services: RuntimeServices,
) -> PromptLayer:
    """Return the turn's prompt layer with the instructions of *function*, journaled with the turn's input."""
    layer = prompt or PromptLayer()
    if PromptSlot.INTRO in layer.replaces:  # the turn replaces all instructions
        return layer
    timeout_s = services.settings.hook_timeout_s
    what = f"the agent's instructions function, for session {ctx.session_id},"
    try:
        async with asyncio.timeout(timeout_s) as limit:
            text = await call_user_function(function, ctx, what, services)
    except (Exception, SystemExit) as error:
        problem = f"it did not return within {timeout_s:g} s" if limit.expired() else described(error)
        raise InstructionsFailed(f"the agent's instructions function failed: {problem}") from error
    if not isinstance(text, str):
        raise InstructionsFailed(
            f"the agent's instructions function must return a str, got {type(text).__name__}"
        )
    said = PromptContribution(content=text, slot=PromptSlot.INTRO)
    return msgspec.structs.replace(layer, contributions=(said, *layer.contributions))


def on_runtime_loop(function: object) -> bool:
    return any(getattr(one, "__standfast_loop__", "") == "runtime" for one in (function, _called(function)))


def is_async(function: object) -> bool:
    """Return whether *function* is an async function or generator, so that calling it cannot block."""
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (function, _called(function), getattr(function, "__wrapped__", None))
    )


def _called(function: object) -> object:
    """Return the `__call__` method of a callable object, or the function itself."""
    return function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004


Deps = TypeVar("Deps")
T = TypeVar("T")


class DepsContext(msgspec.Struct, frozen=True, kw_only=True):
    """The turn for which a deps factory is called; `metadata` is that of its session or of the parent."""

    session_id: str
    turn_id: str
    agent: str
    metadata: Mapping[str, Json] = msgspec.field(default_factory=dict)
    parent_session_id: str | None = None


DepsFactory = Callable[
    [DepsContext], Deps | Awaitable[Deps] | AsyncIterator[Deps] | AbstractAsyncContextManager[Deps]
]
"""A factory of a turn's deps: a function, async function or async generator of a `DepsContext`."""


class OwnedFactory(msgspec.Struct, frozen=True):
    """A deps factory, and the agent or runtime it was passed to."""

    factory: DepsFactory[Any]
    owner: str


class HeldDeps:
    """The deps of a running turn. The caller that acquired them must release them."""

    __slots__ = ("_close", "value")

    def __init__(self, value: Any, close: Callable[[], Awaitable[object]] | None = None) -> None:
        self.value = value
        self._close = close

    async def release(self, timeout_s: float, report: Callable[[str], None]) -> None:
        """Let the factory clean up. Its errors are only reported, because the turn's result is final."""
        if self._close is None:
            return
        close, self._close = self._close, None
        try:
            async with asyncio.timeout(timeout_s):
                await close()
        except (Exception, SystemExit) as error:
            report(f"the deps of a turn could not be released: {described(error)}")


NO_DEPS: Final = HeldDeps(None)


class FactoryCall(msgspec.Struct, frozen=True):
    """One call of a deps factory."""

    given: OwnedFactory
    context: DepsContext
    timeout_s: float
    services: RuntimeServices

    async def held(self) -> HeldDeps:
        """Call the factory; raise `DepsMissing` if it fails."""
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                return await self._made()
        except (Exception, SystemExit) as error:
            if limit.expired():
                raise self._failed(f"did not return within {self.timeout_s:g} s") from None
            raise self._failed(f"failed: {described(error)}") from error

    async def _made(self) -> HeldDeps:
        """Call the factory on a separate thread or loop, unless it is declared to run on the runtime's."""
        factory = self.given.factory
        if on_runtime_loop(factory):
            value, manager = await self._watched(_opened(factory(self.context)))
            close = None if manager is None else lambda: self._watched(manager.__aexit__(None, None, None))
            return HeldDeps(value, close)
        if is_async(factory):
            return await self._held_apart(lambda: factory(self.context))
        made = await self.services.threads.run(lambda: factory(self.context))
        needs_loop = inspect.isawaitable(made) or inspect.isasyncgen(made)
        if needs_loop or isinstance(made, contextlib._AsyncGeneratorContextManager):
            return await self._held_apart(lambda: made)
        return HeldDeps(made)

    async def _held_apart(self, make: Callable[[], Any]) -> HeldDeps:
        """Create the deps on a loop of their own, which lives until the deps are released."""
        (opened, tell_opened), (over, tell_over) = outcome_here(), outcome_here()

        async def hold() -> None:
            value, manager = await _opened(make())
            released, loop = asyncio.Event(), asyncio.get_running_loop()
            release = None if manager is None else lambda: loop.call_soon_threadsafe(released.set)
            tell_opened((value, release), None)
            if manager is not None:
                try:
                    await released.wait()
                finally:
                    await manager.__aexit__(None, None, None)

        def ended(value: None, error: BaseException | None) -> None:
            tell_opened(None, error)  # ignored if the deps were already opened
            tell_over(None if error is None else error, None)

        job = LoopJob(hold, ended)
        self.services.loops.start(job)
        value, release = await finished(job, opened)

        async def close() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed with the runtime
                release()
            if (error := await finished(job, over)) is not None:
                raise error

        return HeldDeps(value, None if release is None else close)

    def _watched(self, work: Awaitable[T]) -> Awaitable[T]:
        return watched(work, self.services.stalls, f"the deps factory of {self.given.owner}")

    def _failed(self, problem: str) -> DepsMissing:
        return DepsMissing(
            f"the deps factory of {self.given.owner} {problem}",
            turn_id=self.context.turn_id,
            hint="fix the factory; the runtime calls it again later, and the turn is unchanged until then",
        )


async def _opened(made: Any) -> tuple[Any, AbstractAsyncContextManager[Any] | None]:
    """Return the deps from a factory's return value, and the context manager to close after their use."""
    if inspect.isawaitable(made):
        made = await made
    if inspect.isasyncgen(made):
        made = contextlib.asynccontextmanager(lambda: made)()
    if isinstance(made, contextlib._AsyncGeneratorContextManager):
        return await made.__aenter__(), made
    return made, None


def checked_factory(factory: object) -> Any:
    """Return *factory*; raise `InvalidArgument` if it cannot be a deps factory."""
    if factory is None or (callable(factory) and not inspect.isgeneratorfunction(factory)):
        return factory
    if callable(factory):
        raise InvalidArgument("deps= is a generator function", hint="make it async: `async def` with `yield`")
    raise InvalidArgument(
        f"deps= takes a function that makes the deps of a turn, not {type(factory).__name__}",
        hint="pass deps=lambda session: value; pass the deps of one turn or session to session() or turn()",
    )


def inherited_factory(agent: Any, above: OwnedFactory | None) -> OwnedFactory | None:
    """Return the factory for subagents that have none: the agent's, or the one above it."""
    return above if agent.deps is None else OwnedFactory(agent.deps, f"agent {agent.name!r}")


def needs_deps(deps_type: Any) -> bool:
    """Return whether turns of an agent with this `deps_type` cannot run with None."""
    if deps_type in (None, types.NoneType, Any, object):
        return False
    if get_origin(deps_type) in (Union, types.UnionType):
        return types.NoneType not in get_args(deps_type)
    return True


def fits(deps_type: Any, deps: Any) -> bool:
    """Return whether a subagent can use its parent's deps, as far as run-time checks can tell."""
    if deps is None:
        return False
    plain = get_origin(deps_type) or deps_type
    if plain in (None, Any, Union, types.UnionType):
        kinds = get_args(deps_type)
        return not kinds or any(fits(kind, deps) for kind in kinds if kind is not types.NoneType)
    try:
        return isinstance(deps, plain)
    except TypeError:  # for instance a protocol that is not runtime_checkable
        return True


def deps_missing(agent: Any, turn_id: str, *, returned_none: str = "") -> DepsMissing:
    """Return the error for a turn that lacks the deps that its agent declares."""
    wanted = getattr(agent.deps_type, "__name__", None) or str(agent.deps_type)
    why = f"the deps factory of {returned_none} returned None" if returned_none else "no deps are known here"
    return DepsMissing(
        f"agent {agent.name!r} needs deps of type {wanted} for turn {turn_id}, and {why}",
        turn_id=turn_id,
        hint="pass Runtime(deps=factory) or Agent(deps=factory), or deps= to runtime.session() or the turn",
    )
