"""A capability with its handler, the checks of its arguments and results, and admitted calls.

A provider sends a tool's arguments as one JSON object. A contract whose schema is an array is therefore
offered as an object with the list under `args`, and the list is extracted before the call is checked. From
there on, a native call and a call by code are the same, with the same digest.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.capability import Capability, SettledCall, ToolCallContext
from standfast.model.limits import SANDBOX_TIMEOUT_MS
from standfast.tools.context import RunContext

if TYPE_CHECKING:
    from standfast.tools.docstrings import DocstringTexts

Handler = Callable[..., Any]

ARGS: Final = "args"
"""The name under which a native call passes positional arguments."""

OnInterrupted = Literal["report", "ask", "retry"]
"""What happens to a call that is not idempotent and was running when its process died."""

OnTimeout = Literal["report", "ask", "retry"]
"""What happens to a call that is not idempotent and exceeded its timeout."""

ToolLoop = Literal["own", "runtime"]
"""Where an async tool runs: on a loop of its own, or on the runtime's, which it must never block."""


class CheckedArguments(msgspec.Struct, frozen=True):
    """Checked arguments, in the form that the handler takes."""

    args: list[Any]
    kwargs: dict[str, Any]


def is_pydantic(type_: Any) -> bool:
    return hasattr(type_, "__pydantic_validator__") and hasattr(type_, "model_validate")


class _ReadsItself(type):
    """A metaclass that makes `isinstance` true for any value, since msgspec checks what its hooks return."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class CustomType(metaclass=_ReadsItself):
    """A type that msgspec does not know, which converts JSON itself, to values of any type."""

    @classmethod
    def from_json(cls, value: Json) -> Any:
        """Convert *value*; raise `ValueError` if it is not valid for this type."""
        raise NotImplementedError

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of the values that `from_json` accepts, with definitions under `$defs`."""
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


_NOT_CONVERTED = (bytes, bytearray, memoryview)
"""msgspec would write these as base64; they are not JSON, so they are left for the JSON check to refuse."""


def encode_output(value: Any) -> object:
    """Convert dataclasses, structs, models, enums and dates to JSON data; leave other values unchanged."""
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        import dataclasses  # slow to import, and few tools use one

        # msgspec leaves out fields that only the class has a value for: those with init=False and a default.
        value = dataclasses.asdict(value)
    return msgspec.to_builtins(value, builtin_types=_NOT_CONVERTED, str_keys=True, enc_hook=_encode_custom)


def _encode_custom(value: Any) -> Any:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a value of type {type(value).__name__} is not JSON")


class Signature(msgspec.Struct, frozen=True):
    """The parameters and the result of a plain function."""

    name: str
    parameters: tuple[str, ...]
    positional: int
    positional_only: int
    struct: type[msgspec.Struct]
    checks: type[msgspec.Struct] | None
    returns: Any
    docs: DocstringTexts
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    takes_context: bool = False
    runs_code: bool = False
    """Whether converting arguments or a result runs Python code of the types, which may block."""

    def bind(self, args: list[Json], kwargs: dict[str, Json]) -> CheckedArguments:
        """Check the arguments of a call and convert them to the types of the function's annotations."""
        values = self._converted(self._named(args, kwargs) if args or self.positional_only else kwargs)
        only = self.parameters[: self.positional_only] if self.positional_only else ()
        return CheckedArguments([values.pop(name) for name in only] if only else [], values)

    def view(self, args: list[Json], kwargs: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments of a call by name, with the defaults of those that were not passed."""
        named = self._named(args, kwargs)
        return {**self._converted(named), **named}

    def _named(self, args: list[Json], kwargs: dict[str, Json]) -> dict[str, Json]:
        if len(args) > self.positional:
            raise InvalidArgument(
                f"{self.name}() takes {self.positional} positional arguments but {len(args)} were given",
                hint=f"its parameters are: {', '.join(self.parameters) or 'none'}",
            )
        named = dict(zip(self.parameters, args, strict=False))
        for key, value in kwargs.items():
            if key in self.parameters[: self.positional_only]:
                raise InvalidArgument(f"{self.name}() takes {key!r} by position only")
            if key in named:
                raise InvalidArgument(f"{self.name}() got multiple values for argument {key!r}")
            named[key] = value
        return named

    def _converted(self, named: dict[str, Json]) -> dict[str, Any]:
        try:
            if self.checks is not None:
                msgspec.convert(named, self.checks, dec_hook=decode_custom)
            return msgspec.structs.asdict(msgspec.convert(named, self.struct, dec_hook=decode_custom))
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"{self.name}(): {error}", hint=f"its parameters are: {', '.join(self.parameters) or 'none'}"
            ) from None

    def check_output(self, value: Json) -> None:
        """Raise `InvalidArgument` if a result does not match the function's return annotation."""
        if not self.output_schema or type(value) is self.returns:
            return
        try:
            msgspec.convert(value, self.returns, dec_hook=decode_custom)
        except msgspec.ValidationError as error:
            raise InvalidArgument(
                f"{self.name}() returned a value that does not match its declared type: {error}"
            ) from None


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
    """The name in the contract. Like the fields below, it is derived and cannot be passed."""
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
        """Make a tool from a contract and a function of the call's context, which runs on a thread."""
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
        """Return a tool with the same contract and another *handler*."""
        made = copy.copy(self)
        msgspec.structs.force_setattr(made, "handler", handler)
        return made

    def with_contract(self, **changes: Any) -> RegisteredTool:
        """Return the tool with *changes* to its contract."""
        return msgspec.structs.replace(self, capability=msgspec.structs.replace(self.capability, **changes))

    def bind(self, context: ToolCallContext) -> CheckedArguments:
        """Check a call's arguments against the contract."""
        if self.signature is None:
            check_against_schema(self.capability, context)
            return CheckedArguments([context], {})
        bound = self.signature.bind(context.args, context.kwargs)
        # The worker process of an isolated tool converts the values; only JSON crosses the pipe.
        return CheckedArguments([context], {}) if self.isolate else bound

    def view(self, context: ToolCallContext) -> tuple[list[Json], dict[str, Json]]:
        """Return a call's checked arguments by position and by name, as approval rules see them."""
        if self.signature is not None:
            named: dict[str, Json] | None = self.signature.view(context.args, context.kwargs)
        else:
            named = check_against_schema(self.capability, context)
        return (context.args, {}) if named is None else (list(named.values()), named)

    def call(self, context: ToolCallContext) -> Any:
        """Check the arguments and call the handler; for an async tool, return an awaitable."""
        bound = self.bind(context)
        return self.handler(*bound.args, **bound.kwargs)

    def check_output(self, value: Json) -> None:
        """Check a result against the contract."""
        if self.signature is not None:
            self.signature.check_output(value)
        elif self.capability.output_schema:
            _validate(
                self.capability.output_schema,
                value,
                f"{self.name}() returned a value that does not match its declared type",
            )


def owner_of(function: Callable[..., Any]) -> str:
    """Return where a handler was defined, for messages."""
    module = getattr(function, "__module__", None) or "?"
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"


def check_against_schema(capability: Capability, context: ToolCallContext) -> dict[str, Json] | None:
    """Check a call against the contract's JSON Schema: positional arguments for an array, else named.

    Return the arguments by name, in the schema's order, if they have names.
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
    """Raise `InvalidArgument` unless *schema* is the JSON Schema of an object without external references."""
    import jsonschema_rs

    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise InvalidArgument(f"{what} is not described by the JSON Schema of an object")
    try:
        if refers_outside(schema):
            raise InvalidArgument(f"{what}: its JSON Schema refers to another document")
        jsonschema_rs.validator_for(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what}: its JSON Schema is invalid: {str(error)[:200]}") from None


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
    """Raise `InvalidArgument`, with *what* at its beginning, if *answer* does not match its schema."""
    _validate(schema, answer, what)


_MAX_VALIDATORS: Final = 1024
_validators: Final[dict[int, tuple[dict[str, Any], Any]]] = {}
"""Compiled schemas by the `id()` of the schema, which is kept so that its `id()` is not reused."""


def _validate(schema: dict[str, Any], value: Json, what: str) -> None:
    import jsonschema_rs  # slow to import, and needed only for a contract with its own schema

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
    """Return whether the contract takes its arguments by position."""
    return capability.input_schema.get("type") == "array"


def native_contract(capability: Capability) -> Capability:
    """Return the contract in the form for a model's provider, whose schema is always that of an object."""
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
    """Return the positional arguments in a native call's object."""
    args = arguments.get(ARGS, [])
    if not isinstance(args, list) or arguments.keys() - {ARGS}:
        raise InvalidArgument(
            f'{capability.name}() takes its arguments by position, as a list: {{"{ARGS}": [...]}}',
            hint=f"put every argument into {ARGS}, in order",
        )
    return args


@final
class Admitted(msgspec.Struct, frozen=True):
    """A call that may be executed now. `attempt` counts its executions in a turn, and its waits, from 1."""

    tool: RegisteredTool
    context: ToolCallContext
    bound: CheckedArguments
    session_id: str
    call_id: int
    request_digest: str
    run_context: RunContext[Any] | None = None
    timeout_ms: int = SANDBOX_TIMEOUT_MS
    attempt: int = 1


@final
class NeedsApproval(msgspec.Struct, frozen=True):
    """A call that waits for a person."""

    call: Admitted


Admission = Admitted | NeedsApproval | SettledCall
