"""Constraints and descriptions in annotations: in the schema, enforced, or refused at decoration."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NewType, NoReturn, NotRequired, Required, TypedDict

import annotated_types as at
import msgspec
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from typing_extensions import Doc

from standfast import BlockingSandbox, CompleteLater, tool
from standfast.errors import InvalidArgument
from standfast.tools.schema import convert, read_signature, schema_of

Cents = NewType("Cents", Annotated[int, Field(le=5000)])


@dataclasses.dataclass
class Line:
    """A line of an order."""

    count: Annotated[int, Field(le=5, description="how many")]
    tags: list[Annotated[str, at.Len(1, 3)]] = dataclasses.field(default_factory=list)
    note: str = ""


@dataclasses.dataclass
class Order:
    lines: list[Line]
    by_name: dict[str, Line | None] = dataclasses.field(default_factory=dict)


class Parcel(TypedDict, total=False):
    weight: Required[Annotated[int, Field(le=5)]]
    label: Annotated[str, "what is on it"]


class Letter(TypedDict):
    pages: Annotated[int, at.Le(5)]
    stamp: NotRequired[str]


class Point(NamedTuple):
    x: Annotated[int, Field(le=5)]
    y: int = 0


class Named(msgspec.Struct, rename="camel"):
    the_count: Annotated[int, Field(le=5)]


class Model(BaseModel):
    count: int = Field(le=5)

    @pydantic.field_validator("count")
    @classmethod
    def not_three(cls, value: int) -> int:
        if value == 3:
            raise ValueError("three is no count")
        return value


class Recursive(TypedDict):
    inner: list[Recursive]
    count: Annotated[int, Field(le=5)]


def signature_of(annotation: Any, **default: Any) -> Any:
    def f(x: Any) -> None: ...

    f.__annotations__ = {"x": annotation}
    if default:
        f.__defaults__ = (default["default"],)
    return read_signature(f, "f")


def takes(annotation: Any, value: Any, **default: Any) -> bool:
    try:
        signature_of(annotation, **default).bind([], {"x": value})
    except InvalidArgument:
        return False
    return True


INT = {"type": "integer"}
TEXT = {"type": "string"}

FLAT: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "Field": (
        Annotated[int, Field(le=5000, description="c")],
        {**INT, "maximum": 5000, "description": "c"},
        5000,
        9_000_000,
    ),
    "Field with both bounds": (
        Annotated[int, Field(gt=0, lt=4)],
        {**INT, "exclusiveMinimum": 0, "exclusiveMaximum": 4},
        3,
        4,
    ),
    "a float's bounds": (Annotated[float, Field(ge=0.5)], {"type": "number", "minimum": 0.5}, 0.5, 0.4),
    "a whole float as a bound": (Annotated[int, Field(le=5.0)], {**INT, "maximum": 5}, 5, 6),
    "multiple_of": (Annotated[int, Field(multiple_of=5)], {**INT, "multipleOf": 5}, 10, 11),
    "pattern": (Annotated[str, Field(pattern="^A[0-9]$")], {**TEXT, "pattern": "^A[0-9]$"}, "A1", "B1"),
    "lengths": (
        Annotated[str, Field(min_length=1, max_length=2)],
        {**TEXT, "minLength": 1, "maxLength": 2},
        "é",
        "",
    ),
    "a list's length": (
        Annotated[list[int], Field(max_length=1)],
        {"type": "array", "items": INT, "maxItems": 1},
        [1],
        [1, 2],
    ),
    "in a list": (
        list[Annotated[int, Field(le=5)]],
        {"type": "array", "items": {**INT, "maximum": 5}},
        [5],
        [5, 6],
    ),
    "in a dict": (
        dict[str, Annotated[int, at.Le(5)]],
        {"type": "object", "additionalProperties": {**INT, "maximum": 5}},
        {"a": 5},
        {"a": 6},
    ),
    "on an optional": (
        Annotated[int | None, Field(le=5)],
        {"anyOf": [{**INT, "maximum": 5}, {"type": "null"}]},
        None,
        6,
    ),
    "in an optional": (
        Annotated[int, Field(le=5)] | None,
        {"anyOf": [{**INT, "maximum": 5}, {"type": "null"}]},
        5,
        6,
    ),
    "on a union": (Annotated[int | str, at.Ge(3)], {"anyOf": [{**INT, "minimum": 3}, TEXT]}, "a", 2),
    "Interval": (
        Annotated[int, at.Interval(gt=0, le=5)],
        {**INT, "exclusiveMinimum": 0, "maximum": 5},
        5,
        0,
    ),
    "StringConstraints": (
        Annotated[str, StringConstraints(max_length=2)],
        {**TEXT, "maxLength": 2},
        "ab",
        "abc",
    ),
    "PositiveInt": (pydantic.PositiveInt, {**INT, "exclusiveMinimum": 0}, 1, 0),
    "conint": (pydantic.conint(le=5), {**INT, "maximum": 5}, 5, 6),
    "Meta": (Annotated[int, msgspec.Meta(le=5)], {**INT, "maximum": 5}, 5, 6),
    "Meta on an optional": (
        Annotated[int | None, msgspec.Meta(le=5)],
        {"anyOf": [{**INT, "maximum": 5}, {"type": "null"}]},
        5,
        6,
    ),
    "the stricter of two": (Annotated[int, Field(le=9), at.Le(5), at.Lt(8)], {**INT, "maximum": 5}, 5, 6),
    "a new type": (Cents, {**INT, "maximum": 5000}, 5000, 5001),
}


@pytest.mark.parametrize(("annotation", "schema", "good", "bad"), FLAT.values(), ids=FLAT)
def test_a_constraint_is_in_the_schema_and_enforced(
    annotation: Any, schema: dict[str, Any], good: Any, bad: Any
) -> None:
    """Bug: `Annotated[int, Field(le=5000)]` became `{"type": "integer"}`, so 9,000,000 was paid."""
    assert signature_of(annotation).input_schema["properties"]["x"] == schema
    assert takes(annotation, good)
    assert not takes(annotation, bad)


CLASSES: dict[str, tuple[Any, Any, Any]] = {
    "dataclass": (Line, {"count": 5, "tags": ["ab"]}, {"count": 6}),
    "a list in a dataclass": (Line, {"count": 5}, {"count": 5, "tags": [""]}),
    "a dataclass in a dataclass": (Order, {"lines": [{"count": 5}]}, {"lines": [{"count": 6}]}),
    "in a dict of a dataclass": (
        Order,
        {"lines": [], "by_name": {"a": None}},
        {"lines": [], "by_name": {"a": {"count": 6}}},
    ),
    "list of dataclasses": (list[Line], [{"count": 5}], [{"count": 5}, {"count": 6}]),
    "TypedDict": (Parcel, {"weight": 5, "label": "x"}, {"weight": 6}),
    "a TypedDict's required key": (Parcel, {"weight": 5}, {"label": "x"}),
    "an optional TypedDict": (Letter | None, {"pages": 5}, {"pages": 6}),
    "NamedTuple": (Point, [5], [6]),
    "struct": (Named, {"theCount": 5}, {"theCount": 6}),
    "pydantic model": (Model, {"count": 5}, {"count": 6}),
    "a pydantic model's validator": (list[Model], [{"count": 4}], [{"count": 3}]),
}


@pytest.mark.parametrize(("annotation", "good", "bad"), CLASSES.values(), ids=CLASSES)
def test_constraints_in_the_fields_of_a_class_are_enforced(annotation: Any, good: Any, bad: Any) -> None:
    """Bug: msgspec reads only its own metadata, inside classes too."""
    assert takes(annotation, good)
    assert not takes(annotation, bad)


def test_the_function_receives_values_of_its_own_classes() -> None:
    """Ours: the substitute class that is used for validation does not reach the function."""
    bound = signature_of(Order).bind([], {"x": {"lines": [{"count": 2}], "by_name": {"a": {"count": 1}}}})
    assert bound.kwargs["x"] == Order([Line(2)], {"a": Line(1)})
    schema = signature_of(Order).input_schema
    assert schema["$defs"]["Line"]["description"] == "A line of an order."
    assert schema["$defs"]["Line"]["properties"]["count"] == {**INT, "maximum": 5, "description": "how many"}
    assert schema["$defs"]["Line"]["required"] == ["count"]


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[int, "how many"],
        Annotated[int, Doc("how many")],
        Annotated[int, Field(description="how many")],
        Annotated[int, msgspec.Meta(description="how many")],
    ],
    ids=["text", "Doc", "Field", "Meta"],
)
def test_a_description_in_an_annotation_is_in_the_schema(annotation: Any) -> None:
    """Bug: only the description of `msgspec.Meta` was read."""
    assert signature_of(annotation).input_schema["properties"]["x"] == {**INT, "description": "how many"}


def test_a_field_as_a_default_is_interpreted_as_pydantic_does() -> None:
    """Bug: the `Field` object itself was the default."""

    def f(
        a: int = Field(5, le=10),
        b: list[int] = Field(default_factory=list, max_length=1),
        *,
        c: str = Field(max_length=2),
    ) -> None: ...

    signature = read_signature(f, "f")
    assert signature.input_schema["required"] == ["c"]
    assert signature.input_schema["properties"]["a"] == {**INT, "maximum": 10, "default": 5}
    assert signature.bind([], {"c": "ab"}).kwargs == {"a": 5, "b": [], "c": "ab"}
    for bad in ({"c": "abc"}, {"c": "a", "a": 11}, {"c": "a", "b": [1, 2]}, {}):
        with pytest.raises(InvalidArgument):
            signature.bind([], bad)


@pydantic.dataclasses.dataclass
class Checked:
    count: int

    @pydantic.field_validator("count")
    @classmethod
    def not_three(cls, value: int) -> int:
        return value


@dataclasses.dataclass
class Confused:
    count: int = Field(le=5)


REFUSED: dict[str, Any] = {
    "a validator": Annotated[int, AfterValidator(abs)],
    "a predicate": Annotated[str, at.Predicate(str.islower)],
    "a transformation": Annotated[str, StringConstraints(to_lower=True)],
    "an alias": Annotated[int, Field(alias="y")],
    "digits": Annotated[float, Field(max_digits=3)],
    "an object": Annotated[int, object()],
    "a bound on text": Annotated[str, Field(le=3)],
    "a bound on anything": Annotated[Any, Field(le=3)],
    "a bound that concerns no member": Annotated[str | None, Field(le=3)],
    "a pattern that is none": Annotated[str, Field(pattern="(")],
    "a bound that is too large": Annotated[int, Field(le=10**20)],
    "two divisors": Annotated[int, at.MultipleOf(2), at.MultipleOf(3)],
    "in a list": list[Annotated[int, AfterValidator(abs)]],
    "a class that refers to itself": Recursive,
    "a pydantic dataclass with a validator": Checked,
    "a dataclass with a Field as a default": Confused,
}


@pytest.mark.parametrize("annotation", REFUSED.values(), ids=REFUSED)
def test_constraints_that_cannot_be_enforced_are_refused_when_the_tool_is_created(annotation: Any) -> None:
    """Ours: SPEC §4; a check that never runs is worse than an error."""
    with pytest.raises(InvalidArgument, match=r"f\(\)"):
        signature_of(annotation)


def test_a_result_is_described_and_validated_with_its_constraints() -> None:
    """Ours: constraints also apply to the result of a tool and the answer of an agent."""

    @tool(side_effect="none")
    def roll(sides: int) -> Annotated[int, Field(le=6)]:
        """Roll."""
        return sides

    assert roll.capability.output_schema == {**INT, "maximum": 6}
    with BlockingSandbox(tools=[roll]) as box:
        assert box.run("roll(6)").result == 6
        assert box.run("roll(7)").error.code == "TOOL_ERROR"
    assert schema_of(Annotated[int, Field(le=6)]) == {**INT, "maximum": 6}
    assert convert({"count": 5}, Line) == Line(5)
    with pytest.raises(msgspec.ValidationError):
        convert({"count": 6}, Line)


def test_a_type_without_foreign_metadata_needs_no_extra_check() -> None:
    """Ours: arguments of a plain signature are converted only once."""
    assert signature_of(list[int]).checks is None
    assert signature_of(Annotated[int, Field(le=5)]).checks is None
    assert signature_of(Line).checks is not None


# Results that can never be JSON


class Plain: ...


@dataclasses.dataclass
class WithBytes:
    data: bytes


@pytest.mark.parametrize(
    "returns",
    [
        bytes,
        bytearray,
        memoryview,
        list[bytes],
        dict[str, bytes],
        bytes | None,
        WithBytes,
        complex,
        Plain,
        type,
        Iterator[int],
        AsyncIterator[str],
        Callable[[], int],
        CompleteLater | bytes,
    ],
    ids=str,
)
def test_a_result_type_without_a_json_form_is_refused_when_the_tool_is_created(returns: Any) -> None:
    """Bug: `-> bytes` failed at every call instead."""

    def f() -> None: ...

    f.__annotations__ = {"return": returns}
    with pytest.raises(InvalidArgument, match="no JSON form"):
        tool(f)


@pytest.mark.parametrize(
    "returns",
    [None, Any, object, int, list[int], set[int], tuple[int, ...], datetime, Literal["a"], Iterable[int],
     Sequence[str], NoReturn, Line, Model, Parcel, CompleteLater, CompleteLater | None],
    ids=str,
)  # fmt: skip
def test_other_result_types_are_accepted(returns: Any) -> None:
    """Ours: if a type may have a JSON form, the value is validated when it is returned."""

    def f() -> None: ...

    f.__annotations__ = {"return": returns}
    assert tool(f).capability.name == "f"
