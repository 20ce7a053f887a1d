"""Capabilities as Python stubs."""

from __future__ import annotations

import ast
import dataclasses
import enum
from typing import Any, Literal

import pydantic
import pytest

from standfast import Capability, RegisteredTool, tool
from standfast.tools.stubs import PythonTypes, stub_of, stub_text


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)


class Model(pydantic.BaseModel):
    parts: list[Model] = []


def _stub(function: Any) -> str:
    return stub_of(tool(function).registered)


def test_a_stub_has_the_functions_own_signature() -> None:
    """Ours: models and the type checker read tools as Python signatures."""

    def f(
        a: int,
        b: str | None,
        c: list[float] = [],  # noqa: B006 - a default is what is tested
        *,
        d: dict[str, int],
        e: Literal["x", "y"] = "x",
    ) -> bool: ...

    assert _stub(f) == (
        "def f(a: int, b: str | None, c: list[float] = ..., *, d: dict[str, int], "
        "e: Literal['x', 'y'] = ...) -> bool: ..."
    )


def test_a_raw_array_capability_accepts_anything() -> None:
    """Seed: the default schema is an array of anything."""
    raw = RegisteredTool.sync(Capability(name="raw", description=""), lambda context: None)
    assert stub_of(raw) == "def raw(*args: Any) -> Any: ..."


def test_every_stub_is_valid_python() -> None:
    """Ours: one stub that does not parse would make every check fail."""

    def nested(node: Node, model: Model, colour: Colour) -> list[Node]: ...

    def empty() -> None: ...

    def wide(a: int = 1, b: str = "", *, c: float) -> dict[str, list[int | str]]: ...

    odd = RegisteredTool.sync(
        Capability(
            name="odd",
            description="",
            input_schema={
                "type": "object",
                "properties": {"a": {"type": ["string", "null"]}, "b": {"const": 3}, "c": {}},
                "required": ["b"],
            },
            output_schema={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
        lambda context: None,
    )
    tools = [*(tool(function).registered for function in (nested, empty, wide)), odd]
    text = stub_text(tools)
    assert [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)] == [
        "nested",
        "empty",
        "wide",
        "odd",
    ]


@pytest.mark.parametrize("name", ["from", "class", "a-b", "1st", "a b"])
def test_a_raw_schema_with_names_that_are_not_identifiers_still_gives_valid_python(name: str) -> None:
    """Bug: a JSON property name may be any text; a stub that does not parse breaks validation of all code."""
    raw = RegisteredTool.sync(
        Capability(
            name="raw",
            description="",
            input_schema={
                "type": "object",
                "properties": {"ok": {"type": "string"}, name: {"type": "string"}},
            },
        ),
        lambda context: None,
    )
    ast.parse(stub_of(raw))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "Any"),
        ({"type": "integer"}, "int"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": {"type": "string"}}, "list[str]"),
        ({"type": ["integer", "null"]}, "int | None"),
        ({"enum": ["a", 1]}, "Literal['a', 1]"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]}, "str | None"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"$ref": "#/$defs/X"}, "int"),
        ({"$ref": "#/$defs/Missing"}, "Any"),
    ],
    ids=str,
)
def test_schemas_are_rendered_as_python_types(schema: dict[str, Any], text: str) -> None:
    """Ours: the known parts of a type are shown, the rest is Any."""
    assert PythonTypes({"$defs": {"X": {"type": "integer"}}}).text(schema) == text


def test_a_recursive_type_has_a_stub() -> None:
    """Bug: a recursive schema must not recurse for ever."""

    def f(node: Node) -> Node: ...

    def g(model: Model) -> Model: ...

    ast.parse(_stub(f))
    ast.parse(_stub(g))
