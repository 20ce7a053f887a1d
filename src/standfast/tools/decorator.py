"""The decorator `@tool`, which makes a function a capability."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Union, overload

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.capability import ApprovalPolicy, Capability, SideEffect
from standfast.model.limits import CapabilityLimits
from standfast.tools.context import RunContext
from standfast.tools.registered_tool import OnInterrupted, OnTimeout, RegisteredTool, ToolLoop, owner_of
from standfast.tools.registry import ToolSource
from standfast.tools.schema import read_signature

P = ParamSpec("P")
R = TypeVar("R")
Instance = TypeVar("Instance")
Deps = TypeVar("Deps")
Function = TypeVar("Function")
Function_co = TypeVar("Function_co", covariant=True)
Needs_co = TypeVar("Needs_co", covariant=True)


class Tool(Generic[Function_co, Needs_co]):
    """A function that is also a capability. Calling it calls the function.

    `Needs_co` is `Callable[[Deps], None]`, where `Deps` is what the function requires of `RunContext.deps`:
    `object` if it takes no `RunContext`. Only type checkers use it.
    """

    def __init__(self, function: Callable[..., Any], registered: RegisteredTool) -> None:
        wrapper: Any = self  # type checkers see a property in the place of `__call__`
        functools.update_wrapper(wrapper, function)
        self.function = function
        self.registered = registered

    @property
    def capability(self) -> Capability:
        return self.registered.capability

    if TYPE_CHECKING:

        @property
        def __call__(self) -> Function_co: ...
    else:

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.registered.name}>"


class ToolMethod(Generic[P, R]):
    """A method that is also a capability of its object. Its contract is built once per class."""

    def __init__(self, function: Callable[P, R], registered: RegisteredTool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._registered = registered
        self._instance: Any = None

    def __get__(self, instance: Any, owner: type | None = None) -> ToolMethod[P, R]:
        if instance is None:
            return self
        bound = ToolMethod(self.function, self._registered)
        bound._instance = instance
        return bound

    @property
    def registered(self) -> RegisteredTool:
        """The tool whose handler is this object's bound method."""
        return self._registered.with_handler(types.MethodType(self.function, self._instance))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = types.MethodType(self.function, self._instance)(*args, **kwargs)
        return value

    def __repr__(self) -> str:
        return f"<tool method {self._registered.name}>"


class PlainFunction(Protocol):
    """A function without `@tool`. Type checkers do not compare its `RunContext` with the agent's deps."""

    @property
    def __name__(self) -> str: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


AnyTool = Union[Tool[Any, Callable[[Deps], None]], RegisteredTool, PlainFunction, ToolSource]  # noqa: UP007
"""A tool for an agent whose deps are `Deps`, in any form that users may pass."""


class ToolDecorator(Protocol):
    """The decorator that `tool(...)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a RunContext is never the object of a method
        self, function: Callable[Concatenate[RunContext[Deps], P], R], /
    ) -> Tool[Callable[Concatenate[RunContext[Deps], P], R], Callable[[Deps], None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Instance, RunContext[Deps], P], R], /
    ) -> Tool[Callable[Concatenate[Instance, RunContext[Deps], P], R], Callable[[Deps], None]]: ...
    @overload
    def __call__(self, function: Function, /) -> Tool[Function, Callable[[object], None]]: ...


@overload
def tool(  # type: ignore[overload-overlap]  # a RunContext is never the object of a method
    function: Callable[Concatenate[RunContext[Deps], P], R], /
) -> Tool[Callable[Concatenate[RunContext[Deps], P], R], Callable[[Deps], None]]: ...
@overload
def tool(
    function: Callable[Concatenate[Instance, RunContext[Deps], P], R], /
) -> Tool[Callable[Concatenate[Instance, RunContext[Deps], P], R], Callable[[Deps], None]]: ...
@overload
def tool(function: Function, /) -> Tool[Function, Callable[[object], None]]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: SideEffect | str = SideEffect.EXTERNAL_SYSTEM,
    approval: ApprovalPolicy = "none",
    idempotent: bool | None = None,
    limits: CapabilityLimits | None = None,
    isolate: bool = False,
    on_interrupted: OnInterrupted = "report",
    on_timeout: OnTimeout = "report",
    loop: ToolLoop = "own",
    expose_errors: bool = True,
) -> ToolDecorator: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Make a typed function a capability.

    The schema comes from the annotations, the description and the parameters' descriptions from the
    docstring. A function whose `side_effect` is not declared counts as one on an external system;
    `idempotent` is true by default only for `none` and `read`.

    Args:
        name: the name of the tool; by default the function's own.
        description: the description of the tool; by default the first part of the docstring.
        side_effect: none, read, write, network, database or external_system.
        approval: "none", "manual", or `auto_approval("rule")`.
        idempotent: whether a second call with the same arguments changes nothing.
        limits: `CapabilityLimits`, enforced by the host.
        isolate: run the function in a worker process, so that it can crash or exit without harm.
        on_interrupted: what happens to a call that is not idempotent and whose process died while it ran.
            "report" reports the interruption to the model, "ask" asks a person whether to run it again,
            "retry" runs it again; choose it only if that is safe.
        on_timeout: the same for a call that exceeds its timeout, whose outcome is unknown; "retry" runs it
            again at most twice.
        loop: the event loop that an `async` function runs on. "own" is a loop on a thread of its own, so that
            a function that blocks is still timed out and delays nothing else. "runtime" is the runtime's
            loop, for functions that use objects bound to that loop, such as a connection pool of the
            application; if such a function blocks, every session waits.
        expose_errors: whether the model and guest code see the message of an exception that the function
            raises. If not, they see only that the call failed, and its number; the details are in the log and
            in the record of the call.
    """
    if function is not None:
        return _tool_of(function, options)
    return lambda decorated: _tool_of(decorated, options)


def _tool_of(function: Any, options: dict[str, Any]) -> Tool[Any, Any] | ToolMethod[..., Any]:
    is_method = False  # a function in the body of a class, whose first parameter is `self`
    if inspect.isfunction(function):
        parent = function.__qualname__.rpartition(".")[0]
        parameters = list(inspect.signature(function).parameters)
        is_method = bool(parent) and not parent.endswith("<locals>") and parameters[:1] == ["self"]
    if not is_method:
        return _make(function, **options)
    if options.get("isolate"):
        raise InvalidArgument(f"tool {function.__name__}() is a method and cannot be isolated")
    made = _make(types.MethodType(function, object()), **options)
    return ToolMethod(function, made.registered)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: SideEffect | str = SideEffect.EXTERNAL_SYSTEM,
    approval: ApprovalPolicy = "none",
    idempotent: bool | None = None,
    limits: CapabilityLimits | None = None,
    isolate: bool = False,
    loop: ToolLoop = "own",
    **others: Any,
) -> Tool[Any, Any]:
    if not callable(function) or not hasattr(function, "__name__"):
        raise InvalidArgument(f"@tool needs a function, got {function!r}")
    called = name or function.__name__
    signature = read_signature(function, called)
    try:
        effect = SideEffect(side_effect)
    except ValueError:
        known = ", ".join(SideEffect)
        raise InvalidArgument(
            f"side_effect {side_effect!r} of tool {called}() is not one of {known}"
        ) from None
    if loop not in ("own", "runtime"):
        raise InvalidArgument(f"loop {loop!r} of tool {called}() is unknown", hint='use "own" or "runtime"')
    is_async = inspect.iscoroutinefunction(function)
    if loop == "runtime" and (isolate or not is_async):
        why = "is isolated" if isolate else "is not `async def`"
        raise InvalidArgument(
            f"tool {called}() {why} and cannot run on the runtime's loop", hint="leave out loop="
        )
    capability = Capability(
        name=called,
        description=description if description is not None else signature.docs.description,
        input_schema=signature.input_schema,
        output_schema=signature.output_schema,
        side_effect=effect,
        limits=limits or CapabilityLimits(),
        approval_policy=checked_approval(approval, called),
        idempotent=idempotent,
    )
    registered = RegisteredTool(
        capability,
        function,
        async_mode=is_async,
        owner=owner_of(function),
        signature=signature,
        isolate=isolate,
        loop=loop,
        **others,
    )
    if isolate and signature.takes_context:
        raise InvalidArgument(f"tool {called}() is isolated and cannot take a RunContext")
    if isolate:
        from standfast.tools.isolation import isolated

        registered = isolated(registered)
    return Tool(function, registered)


def as_registered(candidate: object) -> RegisteredTool:
    """Return the tool that *candidate* is, in any form that users may pass."""
    if isinstance(candidate, RegisteredTool):
        return candidate
    if isinstance(candidate, (Tool, ToolMethod)):
        return candidate.registered
    if callable(candidate):
        made: Tool[Any, Any] = tool(candidate)
        return made.registered
    raise InvalidArgument(f"{candidate!r} is not a tool", hint="pass functions, ideally decorated with @tool")


def built_in(*made: Tool[Any, Any]) -> list[RegisteredTool]:
    """Return built-in tools, with Standfast as their owner."""
    return [msgspec.structs.replace(each.registered, owner="standfast built-in") for each in made]


def collect_tools(namespace: Iterable[object]) -> list[RegisteredTool]:
    """Return the decorated tools among some values, such as those of a module."""
    found = {id(value): value.registered for value in namespace if isinstance(value, Tool)}
    return list(found.values())


def checked_approval(value: ApprovalPolicy, name: str) -> ApprovalPolicy:
    """Return an approval policy; raise `InvalidArgument` if it is unknown or its rule is invalid."""
    try:
        policy: ApprovalPolicy = msgspec.convert(msgspec.to_builtins(value), ApprovalPolicy)
    except (msgspec.ValidationError, TypeError):
        raise InvalidArgument(
            f"approval {value!r} of tool {name}() is unknown",
            hint='use "none", "manual" or auto_approval("rule")',
        ) from None
    try:
        if not isinstance(policy, str):
            compile(policy.auto.rule, "<rule>", "eval", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgument(
            f"the approval rule of tool {name}() is not a Python expression: {error}"
        ) from None
    return policy
