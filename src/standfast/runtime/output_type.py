"""The output type of an agent: text, or a value of a Python type."""

from __future__ import annotations

import operator
import re
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Union, get_args, get_origin

import msgspec

from standfast.errors import InvalidArgument
from standfast.machine.inputs import OutputCheck
from standfast.model.canonical import Json
from standfast.tools.registered_tool import CustomType, encode_output
from standfast.tools.schema import convert, runs_code, schema_of

_MAX_PROBLEM: Final = 300
_WORDS: Final = ("title", "description", "default", "examples")
"""Keywords that do not constrain a value."""


class ModelUnion(CustomType):
    """A union of `members`: a value becomes the member that has the most of its fields, or the first such."""

    members: ClassVar[tuple[Any, ...]]

    @classmethod
    def from_json(cls, value: Json) -> Any:
        """Convert the value to one of the members; raise `ValueError` if it matches none of them."""
        found: list[tuple[tuple[int, int], Any]] = []
        problems: list[str] = []
        for member in cls.members:
            try:
                made = convert(value, member)
            except Exception as error:  # a user's own type may raise anything
                problem = " ".join(str(error).split()) or type(error).__name__
                problems.append(f"{name_of(member)}: {problem[:_MAX_PROBLEM]}")
            else:
                found.append((_fields_met(value, made, member), made))
        if not found:
            names = ", ".join(map(name_of, cls.members))
            raise ValueError(f"it is none of {names} ({'; '.join(problems)})")
        return max(found, key=operator.itemgetter(0))[1]

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return `anyOf` of the members' schemas, with definitions renamed so that they do not collide."""
        parts: list[dict[str, Any]] = []
        definitions: dict[str, Any] = {}
        for member in cls.members:
            schema = schema_of(member)
            if schema.get("type") == "object":
                schema = {"title": name_of(member), **schema}
            parts.append(_with_own_names(schema, definitions))
        return {"anyOf": parts, **({"$defs": definitions} if definitions else {})}


def with_model_unions(type_: Any) -> Any:
    """Return *type_* with each union that msgspec does not support replaced by a `ModelUnion`."""
    if type(type_).__name__ == "TypeAliasType":  # `type Answer = A | B`, from Python 3.12
        return with_model_unions(type_.__value__)
    origin, given = get_origin(type_), get_args(type_)
    if origin is Annotated:
        inner = with_model_unions(given[0])
        return type_ if inner is given[0] else inner
    if origin is Literal or not given:
        return type_
    changed = tuple(one if one is Ellipsis else with_model_unions(one) for one in given)
    if origin not in (Union, UnionType):
        same = all(one is another for one, another in zip(changed, given, strict=True))
        return type_ if same else origin[changed]
    union: Any = Union[tuple(changed)]  # noqa: UP007 - the members are known at run time only
    try:
        schema_of(union)
        return union
    except TypeError:  # msgspec does not support it
        return _model_union(changed)


def name_of(member: Any) -> str:
    """Return a member's name for readers."""
    if member is NoneType:
        return "null"
    return member.__name__ if isinstance(member, type) and not get_args(member) else str(member)


def _is_model_union(type_: Any) -> bool:
    return isinstance(type_, type) and not get_args(type_) and issubclass(type_, ModelUnion)


def _model_union(members: tuple[Any, ...]) -> type[ModelUnion]:
    flat = tuple(
        each for member in members for each in (member.members if _is_model_union(member) else (member,))
    )
    schemas = [(name_of(member), schema_of(member)) for member in flat]
    for place, (name, schema) in enumerate(schemas):
        for other, another in schemas[:place]:
            if _essence(schema) == _essence(another):
                raise InvalidArgument(
                    f"{other} and {name} have the same fields, so values cannot be told apart",
                    hint='add a distinguishing field to each, such as kind: Literal["refund"]',
                )
    return type("ModelUnion", (ModelUnion,), {"members": flat})


def _essence(schema: Any) -> Any:
    """Return a schema without titles, descriptions, defaults and examples."""
    if isinstance(schema, list):
        return [_essence(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {
        key: {name: _essence(part) for name, part in schema[key].items()}
        for key in ("properties", "$defs")
        if isinstance(schema.get(key), dict)
    }
    rest = {key: _essence(part) for key, part in schema.items() if key not in (*_WORDS, *named)}
    return rest | named


def _fields_met(value: Json, made: Any, member: Any) -> tuple[int, int]:
    """Return how many fields of *value* the member has, and how many of them kept their value."""
    if not isinstance(value, dict):
        return 0, 0
    known = schema_of(member).get("properties", {}).keys() & value.keys()
    try:
        encoded = encode_output(made)
    except Exception:  # a user's own type may raise anything
        return len(known), 0
    taken = encoded if isinstance(encoded, dict) else {}
    return len(known), sum(name in taken and taken[name] == value[name] for name in known)


def _with_own_names(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Move the schema's `$defs` to *definitions*, under names that are free there."""
    own = schema.pop("$defs", {})
    names = {}
    for name, part in own.items():
        free, number = name, 2
        while free in definitions and definitions[free] != part:
            free, number = f"{name}_{number}", number + 1
        names[name] = free
    for name, part in own.items():
        definitions[names[name]] = _renamed(part, names)
    renamed: dict[str, Any] = _renamed(schema, names)
    return renamed


def _renamed(node: Any, names: dict[str, str]) -> Any:
    if isinstance(node, list):
        return [_renamed(each, names) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _renamed(value, names) for key, value in node.items()}
    reference = node.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix("#/$defs/")
        made["$ref"] = f"#/$defs/{names.get(name, name)}"
    return made


_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class OutputType:
    """A type that validates answers and converts them to typed values."""

    def __init__(self, type_: Any) -> None:
        try:
            self._type = with_model_unions(type_)
            self.schema = schema_of(self._type)
        except TypeError as error:
            raise InvalidArgument(
                f"output_type {type_!r} cannot be described as JSON: {error}",
                hint="use JSON types, dataclasses, TypedDict, Enum, msgspec structs, pydantic models, or a "
                "union of them",
            ) from None
        members = self._type.members if _is_model_union(self._type) else get_args(self._type)
        self._accepts_text = str in members and get_origin(self._type) in (None, Union, UnionType)
        self.runs_code = runs_code(self._type)

    def check(self, text: str) -> OutputCheck:
        """Return the answer as JSON, or a description of the problem for the model."""
        try:
            found = _FENCED.fullmatch(text.strip())  # a code fence around the answer
            value = msgspec.json.decode(text if found is None else found.group(1))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if self._accepts_text and text.strip():
                return OutputCheck(value=text)
            return OutputCheck(problem=f"it must be JSON and nothing else ({error})")
        try:
            convert(value, self._type)
        except Exception as error:  # a user's own type may raise anything
            if self._accepts_text and not isinstance(value, (dict, list)):
                return OutputCheck(value=text)  # a number or a word that is meant as a string
            return OutputCheck(problem=str(error) or type(error).__name__)
        return OutputCheck(value=value)

    def load(self, value: Json) -> Any:
        """Return the typed value of a checked answer."""
        return convert(value, self._type)
