"""Output types that are unions of models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import jsonschema_rs
import msgspec
import pytest
from pydantic import BaseModel, Field
from stand_ins import agent_of, said

from standfast import Agent, ScriptedModel
from standfast.errors import InvalidArgument
from standfast.runtime.output_type import OutputType


@dataclass
class Verdict:
    late: bool
    days: int = 0


@dataclass
class Question:
    question: str


class Paid(BaseModel):
    order: str
    cents: int


class Refused(BaseModel):
    order: str
    reason: str


class Struct(msgspec.Struct):
    name: str


class Other(msgspec.Struct):
    number: int


class Row(TypedDict):
    row: int


class Column(TypedDict):
    column: int


class Yes(BaseModel):
    kind: Literal["yes"]
    why: str


class No(BaseModel):
    kind: Literal["no"]
    why: str


DISCRIMINATED = Annotated[Yes | No, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("output_type", "answer", "output"),
    [
        (Verdict | Question, '{"late": true, "days": 6}', Verdict(True, 6)),
        (Verdict | Question, '{"question": "Which?"}', Question("Which?")),
        (Paid | Refused, '{"order": "A1", "cents": 5}', Paid(order="A1", cents=5)),
        (Paid | Refused, '{"order": "A1", "reason": "no"}', Refused(order="A1", reason="no")),
        (Struct | Other, '{"number": 5}', Other(5)),
        (Row | Column, '{"column": 1}', {"column": 1}),
        (Verdict | Paid, '{"order": "A1", "cents": 5}', Paid(order="A1", cents=5)),
        (Yes | No, '{"kind": "no", "why": "late"}', No(kind="no", why="late")),
        (
            DISCRIMINATED,
            '{"kind": "no", "why": ""}',
            No(kind="no", why=""),
        ),
        (Optional[Verdict], "null", None),  # noqa: UP045
        (Verdict | Question | None, "null", None),
        (Paid | Refused | None, '{"order": "A1", "cents": 5}', Paid(order="A1", cents=5)),
        (Union[Paid, int], "5", 5),  # noqa: UP007
        (list[Verdict | Question], '[{"late": true}, {"question": "?"}]', [Verdict(True), Question("?")]),
        (dict[str, Paid | Refused], '{"a": {"order": "A1", "cents": 5}}', {"a": Paid(order="A1", cents=5)}),
        (list[Verdict] | Paid, '[{"late": false}]', [Verdict(False)]),
        (Optional[list[Paid | Refused]], "null", None),  # noqa: UP045
        (tuple[Verdict | Question, ...], '[{"question": "?"}]', (Question("?"),)),
    ],
)
def test_an_answer_is_converted_to_the_member_that_fits(output_type: Any, answer: str, output: Any) -> None:
    """Bug: `output_type=A | B` with two models was refused."""
    result = agent_of(answer, output_type=output_type).run_sync("hi")
    assert result.output == output
    assert type(result.output) is type(output)


@dataclass
class Short:
    x: int


@dataclass
class Long:
    x: int
    y: int


class Numbered(BaseModel):
    value: int
    a: str = ""


class Named(BaseModel):
    value: str
    b: str = ""


def test_the_member_that_accounts_for_most_fields_wins_wherever_it_stands() -> None:
    """Ours: dataclasses and models ignore unknown fields, so the first one that fits may lose some."""
    for output_type in (Short | Long, Long | Short):
        assert agent_of('{"x": 1, "y": 2}', output_type=output_type).run_sync("hi").output == Long(1, 2)
        assert agent_of('{"x": 1}', output_type=output_type).run_sync("hi").output == Short(1)


def test_a_member_that_takes_a_value_unchanged_beats_one_that_converts_it() -> None:
    """Ours: pydantic reads "7" as 7; a member with a text field takes precedence."""
    assert agent_of('{"value": "7"}', output_type=Numbered | Named).run_sync("hi").output == Named(value="7")
    assert agent_of('{"value": 7}', output_type=Named | Numbered).run_sync("hi").output == Numbered(value=7)


@dataclass
class Approve:
    reason: str


@dataclass
class Reject:
    """A class with another name and the same fields."""

    reason: str


@dataclass
class Nested:
    inner: Approve = field(default_factory=lambda: Approve(""))


def test_members_that_no_value_can_distinguish_are_refused() -> None:
    """Ours: the answer would silently always be the first of them."""
    with pytest.raises(InvalidArgument, match="Approve and Reject have the same fields") as caught:
        Agent(ScriptedModel([]), output_type=Approve | Reject)
    assert "Literal" in (caught.value.hint or "")
    with pytest.raises(InvalidArgument, match="Approve and Reject have the same fields"):
        Agent(ScriptedModel([]), output_type=list[Approve | Reject])


def test_a_type_that_is_not_json_is_still_refused() -> None:
    """Ours: an output type is checked when the agent is created."""
    with pytest.raises(InvalidArgument, match="cannot be described as JSON"):
        Agent(ScriptedModel([]), output_type=Verdict | complex)


def test_the_model_learns_why_the_answer_fits_no_member() -> None:
    """Ours: a model can correct its answer only if it knows what is wrong, and for which member."""
    script = ['{"late": "very"}', '[{"question": "?"}]', '{"question": "Which?"}']
    result = agent_of(*script, output_type=Verdict | Question).run_sync("hi")
    assert result.output == Question("Which?")
    first, second = said(result.messages)[1:]
    assert "it is none of Verdict, Question" in first
    assert "Verdict: Expected `bool`, got `str`" in first
    assert "Question: Object missing required field `question`" in first
    assert "got `array`" in second


def test_text_can_be_one_of_the_members() -> None:
    """Ours: a model without a value may answer with text."""
    paid = '{"order": "A1", "cents": 5}'
    for output_type, answer, output in (
        (Verdict | str, "Ask Ann.", "Ask Ann."),
        (Verdict | str, '{"late": true}', Verdict(True)),
        (Verdict | str, "42", "42"),
        (Verdict | str, '"said"', "said"),
        (Paid | Refused | str, "Ask Ann.", "Ask Ann."),
        (Paid | Refused | str, paid, Paid(order="A1", cents=5)),
    ):
        assert agent_of(answer, output_type=output_type).run_sync("hi").output == output


def test_an_object_that_fits_no_member_is_not_treated_as_text() -> None:
    """Ours: the model must correct such an object."""
    result = agent_of('{"late": "very"}', '{"late": true}', output_type=Verdict | str).run_sync("hi")
    assert result.output == Verdict(True)


@pytest.mark.parametrize(
    "output_type",
    [Verdict | Question, Paid | Refused, list[Paid | Refused], Verdict | Paid | None, Nested | Paid],
)
def test_the_schema_is_valid_and_accepts_what_the_type_accepts(output_type: Any) -> None:
    """Ours: the schema that is sent and the validation agree."""
    schema = OutputType(output_type).schema
    validator = jsonschema_rs.Draft202012Validator(schema)
    for text in (
        '{"late": true}', '{"order": "A1", "cents": 5}', '{"order": "A1", "reason": "no"}', "null",
        '[{"order": "A1", "cents": 5}]', '{"question": 5}', '{"inner": {"reason": "x"}}', "7",
    ):  # fmt: skip
        fits = OutputType(output_type).check(text).problem is None
        assert validator.is_valid(msgspec.json.decode(text)) is fits, text


class _First:
    class Item(BaseModel):
        first: int

    class Box(BaseModel):
        kind: Literal["first"]
        item: _First.Item


class _Second:
    class Item(BaseModel):
        second: str

    class Box(BaseModel):
        kind: Literal["second"]
        item: _Second.Item


_First.Box.model_rebuild()
_Second.Box.model_rebuild()


def test_definitions_with_the_same_name_are_kept_apart() -> None:
    """Ours: two members may each have a type named `Item`."""
    output = OutputType(_First.Box | _Second.Box)
    validator = jsonschema_rs.Draft202012Validator(output.schema)
    for text in ('{"kind": "first", "item": {"first": 1}}', '{"kind": "second", "item": {"second": "x"}}'):
        assert output.check(text).problem is None
        assert validator.is_valid(msgspec.json.decode(text))
    assert not validator.is_valid({"kind": "first", "item": {"second": "x"}})


def test_code_can_finish_with_one_of_the_members() -> None:
    """Ours: both protocols check the answer in the same way."""
    cell = '```python\nfinish({"question": "Which?"})\n```'
    agent = Agent(ScriptedModel([cell]), protocol="code", output_type=Verdict | Question)
    assert asyncio.run(agent.run("hi")).output == Question("Which?")
