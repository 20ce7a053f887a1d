"""A capability with its handler, the checks of its arguments and results, and calls before they run.

A provider sends a tool's arguments as one JSON object. A contract whose schema is an array is therefore
offered as an object with the list under `args`, and the list is taken out again before the call is checked:
from there on a native call and one that code made are the same call, with the same digest.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability, SettledCall, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.context import RunContext
from standfast.tools.docstrings import Docs

Handler = Callable[..., Any]

ARGS: Final = "args"
"""The name under which a native call passes positional arguments."""

OnInterrupted = Literal["report", "ask", "retry"]
"""What becomes of a call that is not idempotent and was under way when its process died."""

OnTimeout = Literal["report", "ask", "retry"]
"""What becomes of a call that is not idempotent and exceeded its time-out."""

ToolLoop = Literal["own", "runtime"]
"""Where an async tool runs: on a loop of its own, or on the runtime's, which it must never block."""


class Bound(msgspec.Struct, frozen=True):
    """Checked arguments: what the handler takes, and the same by position and by name for rules."""

    args: list[Any]
    kwargs: dict[str, Any]
    view_args: list[Json]
    view_kwargs: dict[str, Json]


def is_pydantic(type_: Any) -> bool:
    return hasattr(type_, "__pydantic_validator__") and hasattr(type_, "model_validate")


class _ReadsItself(type):
    """msgspec asks whether what a hook made is an instance; only the type knows, and it made it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class CustomType(metaclass=_ReadsItself):
    """A type that msgspec does not know and that reads JSON by itself, as values of any type."""

    @classmethod
    def from_json(cls, value: Json) -> Any:
        """*value* as this type has it; `ValueError` if it does not fit."""
        raise NotImplementedError

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of what `from_json` takes, with definitions under `$defs`."""
        raise NotImplementedError


def decode_custom(type_: type, value: Any) -> Any:
    if issubclass(type_, CustomType):
        return type_.from_json(value)
    if is_pydantic(type_):
        try:
            return type_.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(re.sub(r"\s*For further information visit \S+", "", str(error))) from None
    if isinstance(value, type_):
        return value
    raise NotImplementedError(f"cannot convert to {type_!r}")


class Signature(msgspec.Struct, frozen=True):
    """The parameters and the result of a plain function."""

    name: str
    parameters: tuple[str, ...]
    positional: int
    positional_only: int
    struct: type[msgspec.Struct]
    checks: type[msgspec.Struct] | None
    returns: Any
    docs: Docs
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    takes_context: bool = False
    runs_code: bool = False
    """Whether reading arguments or a result runs Python code of the types, which may block."""

    def bind(self, args: list[Json], kwargs: dict[str, Json]) -> Bound:
        """Check the arguments of a call and convert them to the types of the function's annotations."""
        if len(args) > self.positional:
            raise InvalidArgument(
                f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given",
                hint=f"its parameters are: {', '.join(self.parameters) or 'none'}",
            )
        named = kwargs
        if args or self.positional_only:
            named = dict(zip(self.parameters, args, strict=False))
            for key, value in kwargs.items():
                if key in self.parameters[: self.positional_only]:
                    raise InvalidArgument(f"{self.name}() takes {key!r} by position only")
                if key in named:
                    raise InvalidArgument(f"{self.name}() got multiple values for argument {key!r}")
                named[key] = value
        try:
            if self.checks is not None:
                msgspec.convert(named, self.checks, dec_hook=decode_custom)
            decoded = msgspec.convert(named, self.struct, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"{self.name}(): {error}", hint=f"its parameters are: {', '.join(self.parameters) or 'none'}"
            ) from None
        values = {name: getattr(decoded, name) for name in self.parameters}
        known = {**values, **named}
        only = self.parameters[: self.positional_only]
        by_position = [values.pop(name) for name in only] if only else []
        return Bound(by_position, values, list(known.values()), known)

    def check_output(self, value: Json) -> None:
        """Refuse a result that is not what the function says it returns."""
        if not self.output_schema:
            return
        try:
            msgspec.convert(value, self.returns, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{self.name}() returned something else than declared: {error}") from None


if TYPE_CHECKING:

    class _Options(TypedDict, total=False):
        on_interrupted: OnInterrupted
        on_timeout: OnTimeout


class RegisteredTool(msgspec.Struct, frozen=True):
    """A contract and its handler.

    With a `signature` the handler is a plain typed function; without one it takes the `ToolCallContext`, and
    the contract's schemas check its arguments. An isolated tool has both: the signature checks the call. A
    handler that `wants_context` gets the `RunContext` before the `ToolCallContext`.
    """

    capability: Capability
    handler: Handler
    async_mode: bool
    owner: str
    signature: Signature | None = None
    isolate: bool = False
    on_interrupted: OnInterrupted = "report"
    on_timeout: OnTimeout = "report"
    loop: ToolLoop = "own"
    expose_errors: bool = True
    wants_context: bool = False
    name: str = ""
    """The name in the contract; like the fields below it follows from the others and cannot be given."""
    digest: str = ""
    takes_context: bool = False
    """Whether the handler's first parameter is a `RunContext`."""
    runs_code: bool = False
    """Whether checking arguments or a result runs Python code of the tool's types, which may block."""

    def __post_init__(self) -> None:
        set_field, signature = msgspec.structs.force_setattr, self.signature
        set_field(self, "name", self.capability.name)
        for option in ("on_interrupted", "on_timeout"):
            if (value := getattr(self, option)) not in ("report", "ask", "retry"):
                raise InvalidArgument(
                    f"{option} {value!r} of tool {self.name}() is unknown",
                    hint='use "report", "ask" or "retry"',
                )
        set_field(self, "digest", self.capability.digest())
        typed = signature is not None and signature.takes_context and not self.isolate
        set_field(self, "takes_context", self.wants_context if signature is None else typed)
        set_field(self, "runs_code", signature is not None and signature.runs_code)

    @classmethod
    def sync(
        cls,
        capability: Capability,
        handler: Callable[[ToolCallContext], Json],
        *,
        owner: str = "",
        **options: Unpack[_Options],
    ) -> RegisteredTool:
        """Make a tool from a contract and a function of the call's context, run in a thread."""
        return cls(capability, handler, async_mode=False, owner=owner or owner_of(handler), **options)

    @classmethod
    def asynchronous(
        cls,
        capability: Capability,
        handler: Callable[[ToolCallContext], Awaitable[Json]],
        *,
        owner: str = "",
        loop: ToolLoop = "own",
        **options: Unpack[_Options],
    ) -> RegisteredTool:
        """Make a tool from a contract and a coroutine function of the call's context."""
        owner = owner or owner_of(handler)
        return cls(capability, handler, async_mode=True, owner=owner, loop=loop, **options)

    def with_handler(self, handler: Handler) -> RegisteredTool:
        """The same contract, carried out by *handler*."""
        made = copy.copy(self)
        msgspec.structs.force_setattr(made, "handler", handler)
        return made

    def with_contract(self, **changes: Any) -> RegisteredTool:
        """The same tool, with *changes* of its contract."""
        return msgspec.structs.replace(self, capability=msgspec.structs.replace(self.capability, **changes))

    def bind(self, context: ToolCallContext) -> Bound:
        """Check a call's arguments against the contract."""
        if self.signature is not None:
            bound = self.signature.bind(context.args, context.kwargs)
            if self.isolate:  # the worker process converts the values; JSON is what crosses the pipe
                return Bound([context], {}, bound.view_args, bound.view_kwargs)
            return bound
        named = check_against_schema(self.capability, context)
        if named is None:
            return Bound([context], {}, list(context.args), {})
        return Bound([context], {}, list(named.values()), named)

    def call(self, context: ToolCallContext) -> Any:
        """Check the arguments and call the handler; of an async tool, what is to be awaited."""
        bound = self.bind(context)
        return self.handler(*bound.args, **bound.kwargs)

    def check_output(self, value: Json) -> None:
        """Check a result against the contract."""
        if self.signature is not None:
            self.signature.check_output(value)
        elif self.capability.output_schema:
            _validate(
                self.capability.output_schema, value, f"{self.name}() returned something else than declared"
            )


def owner_of(function: Callable[..., Any]) -> str:
    """Where a handler was defined, for messages."""
    module = getattr(function, "__module__", None) or "?"
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"


def check_against_schema(capability: Capability, context: ToolCallContext) -> dict[str, Json] | None:
    """Check a call by the contract's JSON Schema: an array schema takes positions, an object schema names.

    Returns the arguments by name, in the schema's order, if they have names.
    """
    if capability.input_schema.get("type") == "array":
        if context.kwargs:
            raise InvalidArgument(f"{capability.name}() takes no keyword arguments")
        _validate(capability.input_schema, context.args, f"{capability.name}()")
        return None
    names = list(capability.input_schema.get("properties", {}))
    if len(context.args) > len(names):
        raise InvalidArgument(
            f"{capability.name}() takes {len(names)} arguments, {len(context.args)} were given"
        )
    by_position = dict(zip(names, context.args, strict=False))
    if twice := sorted(set(by_position) & set(context.kwargs)):
        raise InvalidArgument(f"{capability.name}() got multiple values for argument {twice[0]!r}")
    given = {**by_position, **context.kwargs}
    _validate(capability.input_schema, given, f"{capability.name}()")
    return {
        name: given[name] for name in [*names, *(key for key in given if key not in names)] if name in given
    }


def check_schema(schema: Json, what: str) -> None:
    """Raise `InvalidArgument` unless *schema* is the JSON Schema of an object and complete in itself."""
    import jsonschema_rs

    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidArgument(f"{what} is not described by the JSON Schema of an object")
    try:
        if refers_outside(schema):
            raise InvalidArgument(f"{what}: its JSON Schema refers to another document")
        jsonschema_rs.validator_for(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what}: its JSON Schema is wrong: {str(error)[:200]}") from None


def refers_outside(schema: Json) -> bool:
    """Return whether a schema refers to another document, which a validator would fetch."""
    if isinstance(schema, list):
        return any(refers_outside(part) for part in schema)
    if not isinstance(schema, dict):
        return False
    return any(
        (key in ("$ref", "$dynamicRef", "$recursiveRef", "$schema") and _is_foreign(key, part))
        or refers_outside(part)
        for key, part in schema.items()
    )


def _is_foreign(key: str, reference: Json) -> bool:
    if not isinstance(reference, str):
        return False  # a property of this name
    known = (
        "http://json-schema.org/draft-",
        "https://json-schema.org/draft",
        "http://json-schema.org/schema",
    )
    return not reference.startswith(known if key == "$schema" else "#")


def validate_answer(schema: dict[str, Any], answer: Json, what: str = "the answer does not fit") -> None:
    """Raise `InvalidArgument`, which begins with *what*, if *answer* does not fit its schema."""
    _validate(schema, answer, what)


_MAX_VALIDATORS: Final = 1024
_validators: Final[dict[int, tuple[dict[str, Any], Any]]] = {}
"""Compiled schemas by identity, each with its schema, so that no other can get the same identity."""


def _validate(schema: dict[str, Any], value: Json, what: str) -> None:
    import jsonschema_rs  # imported where a contract brings its own schema, and only there

    known = _validators.get(id(schema))
    if known is None:
        if len(_validators) >= _MAX_VALIDATORS:
            _validators.clear()
        known = _validators[id(schema)] = (schema, jsonschema_rs.validator_for(schema))
    try:
        known[1].validate(value)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"[{part!r}]" for part in error.instance_path)
        raise InvalidArgument(f"{what}: {error.message}{' at ' + where if where else ''}") from None


def is_positional(capability: Capability) -> bool:
    """Whether the contract takes its arguments by position."""
    return capability.input_schema.get("type") == "array"


def native_contract(capability: Capability) -> Capability:
    """The contract as it is offered to a model's provider: its schema is that of an object."""
    if not is_positional(capability):
        return capability
    positions = {key: value for key, value in capability.input_schema.items() if key != "$defs"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {ARGS: {"description": "the arguments, in order", "items": {}, **positions}},
        "required": [ARGS] if positions.get("minItems", 0) else [],
        "additionalProperties": False,
    }
    if "$defs" in capability.input_schema:
        schema["$defs"] = capability.input_schema["$defs"]
    return msgspec.structs.replace(capability, input_schema=schema)


def from_native(capability: Capability, arguments: dict[str, Json]) -> list[Json]:
    """Take the arguments of a positional contract out of a native call's object."""
    args = arguments.get(ARGS, [])
    if not isinstance(args, list) or arguments.keys() - {ARGS}:
        raise InvalidArgument(
            f'{capability.name}() takes its arguments by position, as a list: {{"{ARGS}": [...]}}',
            hint=f"put every argument into {ARGS}, in order",
        )
    return args


class Admitted(msgspec.Struct, frozen=True):
    """A call that may be executed now. `attempt` counts its executions in a turn, and its waits, from 1."""

    tool: RegisteredTool
    context: ToolCallContext
    bound: Bound
    session_id: str
    call_id: int
    request_digest: str
    run_context: RunContext[Any] | None = None
    timeout_ms: int = SANDBOX_TIMEOUT_MS
    attempt: int = 1


class NeedsApproval(msgspec.Struct, frozen=True):
    """A call that waits for a person."""

    call: Admitted


Admission = Admitted | NeedsApproval | SettledCall
