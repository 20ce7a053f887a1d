"""Derives a contract from a Python signature, and converts JSON to the values that a function expects.

A function's parameters become one msgspec struct. Its JSON Schema is the contract's input schema, and
arguments are checked by decoding into it, so that description and check always agree. Constraints of other
packages are translated first (`constraints.py`). If a class has such constraints in its fields, `checks` is a
struct with a shadow of that class, and the arguments have to match both. pydantic models are supported
through hooks; pydantic is never imported unless a user's signature has a model.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Final

import msgspec
import msgspec.inspect

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.tools.constraints import checked_type, checked_types, field_default
from standfast.tools.context import is_run_context, without_later
from standfast.tools.docstrings import DocstringTexts, read_docstring
from standfast.tools.registered_tool import CustomType, Signature, decode_custom, is_pydantic

_JSON: Final = (str, int, float, bool, list, tuple, dict, set, frozenset, enum.Enum, type(None))
_BINARY: Final = (
    msgspec.inspect.BytesType, msgspec.inspect.ByteArrayType, msgspec.inspect.MemoryViewType,
    msgspec.inspect.ExtType, msgspec.inspect.RawType,
)  # fmt: skip


def type_without_json(type_: Any) -> str | None:
    """Name the first type within *type_* none of whose values is JSON; None if msgspec finds no such type."""
    try:
        info = msgspec.inspect.type_info(type_)
    except TypeError:
        return None
    for node in _nodes(info):
        if isinstance(node, _BINARY):
            return type(node).__name__.removesuffix("Type").lower()
        if isinstance(node, msgspec.inspect.CustomType) and not hasattr(node.cls, "model_dump"):
            with contextlib.suppress(TypeError):  # raised for a protocol that is not runtime_checkable
                if not issubclass(node.cls, _JSON) and not any(issubclass(one, node.cls) for one in _JSON):
                    return node.cls.__name__
    return None


def _nodes(*types_: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type | msgspec.inspect.Field]:
    """Yield types and everything in them, including fields of classes, which may be recursive."""
    waiting: list[Any] = [*types_]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)


_NOT_READING = (
    "serialization", "metadata", "computed_fields", "config", "cls", "default", "expected", "members",
)  # fmt: skip
"""The parts of pydantic's core schema that run no user code when a value is validated."""


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """Derive the contract of *function*; raise now, not at the first call, if it cannot be described."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidArgument(
            f"the annotations of tool {name}() cannot be read: {error}",
            hint="import the types in annotations at module level",
        ) from None
    docs = read_docstring(function)
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and is_run_context(hints.get(parameters[0].name))
    if takes_context:
        del parameters[0]
    for parameter in parameters:
        if is_run_context(hints.get(parameter.name)):
            raise InvalidArgument(
                f"{parameter.name} of tool {name}() is a RunContext, but only the first parameter can be one"
            )
    struct, checks, input_schema = _input_structs(
        [_field(one, hints, docs, name) for one in parameters], name
    )
    kinds = [parameter.kind for parameter in parameters]
    returns, output_schema = _output(hints.get("return", Any), name)
    return Signature(
        name=name,
        parameters=tuple(parameter.name for parameter in parameters),
        positional=sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds),
        positional_only=sum(kind is inspect.Parameter.POSITIONAL_ONLY for kind in kinds),
        struct=struct,
        checks=checks,
        returns=returns,
        docs=docs,
        input_schema=input_schema,
        output_schema=output_schema,
        takes_context=takes_context,
        runs_code=runs_code(struct, *([returns] if output_schema else ())),
    )


def _input_structs(
    fields: list[Any], name: str
) -> tuple[type[msgspec.Struct], type[msgspec.Struct] | None, dict[str, Any]]:
    """Return the struct of the arguments, a second one that checks them if needed, and their schema."""
    checked = _checked([field[1] for field in fields], f"a parameter of tool {name}()")
    try:
        described = _struct(
            name, [(field[0], type_, *field[2:]) for field, type_ in zip(fields, checked, strict=True)]
        )
        schema = schema_of(described)
        shadowed = not _classes_in(checked) <= _classes_in([field[1] for field in fields])
        return (_struct(name, fields), described, schema) if shadowed else (described, None, schema)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"a parameter of tool {name}() has a type that JSON cannot carry, or a constraint that its type "
            f"cannot have: {error}",
            hint="use JSON types, dataclasses, TypedDict, Literal, Enum, msgspec structs or pydantic models",
        ) from None


def _output(annotation: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """Return the type of the result and its schema, which is empty if any value is allowed."""
    (returns,) = _checked([without_later(annotation)], f"the result of tool {name}()")
    if (refused := type_without_json(returns)) is not None:
        raise InvalidArgument(
            f"tool {name}() returns {refused}, which has no JSON form",
            hint="return text (base64 for bytes), JSON types, dataclasses or pydantic models",
        )
    if returns is not Any and returns is not inspect.Signature.empty:
        with contextlib.suppress(TypeError):
            return returns, schema_of(returns)
    return returns, {}


def schema_of(type_: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, with its definitions under `$defs` at the root."""
    (schema,), definitions = msgspec.json.schema_components(
        (checked_type(type_),), schema_hook=_custom_schema, ref_template="#/$defs/{name}"
    )
    reference = schema.get("$ref", "")
    name = reference.removeprefix("#/$defs/")
    if name in definitions and not _mentions(definitions, reference):
        schema = definitions.pop(name)
    schema = {key: value for key, value in schema.items() if key != "title"}
    if definitions:
        schema["$defs"] = definitions
    found: dict[str, Any] = {}

    def lift(node: Any) -> Any:
        """Move `$defs` of embedded models to the root, where their references point."""
        if isinstance(node, list):
            return [lift(value) for value in node]
        if not isinstance(node, dict):
            return node
        for key, value in node.get("$defs", {}).items():
            found[key] = lift(value)
        return {key: lift(value) for key, value in node.items() if key != "$defs"}

    root: dict[str, Any] = lift(schema)
    if found:
        root["$defs"] = found
    return root


def convert(value: Json, type_: Any) -> Any:
    """Convert JSON data to *type_*; raise `msgspec.ValidationError`, with the location, if it is invalid."""
    if (checked := checked_type(type_)) is not type_:
        msgspec.convert(value, checked, dec_hook=decode_custom)
    return msgspec.convert(value, type_, dec_hook=decode_custom)


def runs_code(*types_: Any) -> bool:
    """Return whether converting JSON to one of *types_* runs Python code of a user, which may block.

    This includes pydantic validators, `__post_init__`, `_missing_` of an enum, and default factories.
    """
    for node in _nodes(*msgspec.inspect.multi_type_info(types_)):
        if isinstance(node, msgspec.inspect.CustomType):
            runs = not is_pydantic(node.cls) or _validates_in_python(node.cls)
        elif isinstance(node, msgspec.inspect.EnumType):
            runs = _looks_up_by_itself(node.cls)
        elif isinstance(node, msgspec.inspect.Field):  # a factory that is neither built in nor created here
            factory = node.default_factory
            runs = callable(factory) and getattr(factory, "__module__", "") not in ("builtins", __name__)
        else:
            runs = hasattr(getattr(node, "cls", None), "__post_init__")
        if runs:
            return True
    return False


def _validates_in_python(model: Any) -> bool:
    """Return whether validating a pydantic model runs Python code other than pydantic's own."""
    if not model.model_validate.__module__.startswith("pydantic."):
        return True
    waiting: list[Any] = [model.__pydantic_core_schema__]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if part.get("post_init") or part.get("custom_init"):
                return True
            if part.get("type") == "enum" and _looks_up_by_itself(part["cls"]):
                return True
            waiting.extend(value for key, value in part.items() if key not in _NOT_READING)
        elif isinstance(part, (list, tuple)):
            waiting.extend(part)
        elif isinstance(part, type):
            continue
        elif callable(part):
            module = getattr(part, "__module__", None) or ""
            if not module.startswith(("pydantic.", "pydantic_core.")):
                return True
        elif not isinstance(part, (str, int, float, bytes, frozenset, set, NoneType)):
            return True  # for instance a schema that is built later
    return False


def _looks_up_by_itself(kind: Any) -> bool:
    """Return whether an enum has code of its own for values that are not members."""
    return kind._missing_.__func__ is not Enum._missing_.__func__  # type: ignore[attr-defined]


def _field(
    parameter: inspect.Parameter, hints: dict[str, Any], docs: DocstringTexts, name: str
) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise InvalidArgument(
            f"tool {name}() takes *{parameter.name}, which has no schema",
            hint="name every parameter; use a list or a dict for a variable number of values",
        )
    annotation = hints.get(parameter.name, Any)
    if text := docs.parameters.get(parameter.name):
        annotation = Annotated[annotation, msgspec.Meta(description=text)]
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, annotation)
    meta, given = field_default(parameter.default)
    if meta is not None:
        annotation = Annotated[annotation, meta]
    if "default_factory" in given:
        return (parameter.name, annotation, msgspec.field(default_factory=given["default_factory"]))
    if not given:
        return (parameter.name, annotation)
    default = given["default"]
    if isinstance(default, (list, dict, set, bytearray)) and default:
        return (parameter.name, annotation, msgspec.field(default_factory=lambda: copy.deepcopy(default)))
    return (parameter.name, annotation, default)


def _struct(name: str, fields: list[Any]) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, frozen=True)


def _checked(types_: list[Any], what: str) -> list[Any]:
    try:
        return checked_types(types_)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error.message}", hint=error.hint) from None


def _classes_in(types_: Iterable[Any]) -> set[type]:
    """Return the classes that some types refer to, without those in their fields."""
    found: set[type] = set()
    for type_ in types_:
        if isinstance(type_, typing.NewType):
            type_ = type_.__supertype__
        if typing.get_origin(type_) is Annotated:
            found |= _classes_in([type_.__origin__])
        elif args := typing.get_args(type_):
            found |= _classes_in(args)
        elif isinstance(type_, type):
            found.add(type_)
    return found


def _custom_schema(type_: type) -> dict[str, Any]:
    if issubclass(type_, CustomType):
        return type_.json_schema()
    if is_pydantic(type_):
        schema: dict[str, Any] = type_.model_json_schema(ref_template="#/$defs/{model}")  # type: ignore[attr-defined]
        return schema
    raise NotImplementedError


def _mentions(node: Any, reference: str) -> bool:
    if isinstance(node, dict):
        return node.get("$ref") == reference or any(_mentions(value, reference) for value in node.values())
    return isinstance(node, list) and any(_mentions(value, reference) for value in node)
