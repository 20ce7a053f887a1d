"""`@tool`: the contract that is derived from a typed function."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import socket
import threading
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pydantic
import pytest
from performing import admit, perform

from standfast import (
    Capability,
    CapabilityLimits,
    RegisteredTool,
    ToolCallContext,
    ToolError,
    auto_approval,
    tool,
)
from standfast.errors import InvalidArgument, InvalidToolName
from standfast.model.capability import SettledCall
from standfast.ports.clock import SystemClock
from standfast.tools import Dispatcher, Tool, ToolRegistry, as_registered, collect_tools
from standfast.tools.registered_tool import Admitted
from standfast.tools.threads import DaemonThreads


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(TypedDict):
    street: str
    number: int


class Order(msgspec.Struct):
    id: str
    lines: list[int] = []


class Item(pydantic.BaseModel):
    sku: str
    count: int = pydantic.Field(default=1, ge=1)


class Basket(pydantic.BaseModel):
    owner: str
    items: list[Item]
    gift: Item | None = None


def call(candidate: object, *args: Any, **kwargs: Any) -> SettledCall:
    """Make one call through the dispatcher, as guest code does."""
    registered = as_registered(candidate)
    dispatcher = Dispatcher(
        ToolRegistry([registered]),
        threads=DaemonThreads("test"),
        clock=SystemClock(),
        evaluate_rule=lambda *_: False,
    )
    admission = admit(dispatcher, registered.name, list(args), kwargs, call_id=0)
    if isinstance(admission, Admitted):
        admission = perform(dispatcher, admission)
    assert isinstance(admission, SettledCall)
    dispatcher.close()
    return admission


def value_of(candidate: object, *args: Any, **kwargs: Any) -> Any:
    settled = call(candidate, *args, **kwargs)
    assert settled.record.error is None, settled.record.error
    return settled.value


def error_of(candidate: object, *args: Any, **kwargs: Any) -> str:
    settled = call(candidate, *args, **kwargs)
    assert settled.record.error is not None, settled.value
    return settled.record.error.code


def test_a_plain_function_becomes_a_contract() -> None:
    """Ours: SPEC §4; the contract is derived from the signature, the annotations and the docstring."""

    @tool
    def order(order_id: str, deep: bool = False) -> dict[str, int]:
        """Look an order up."""
        return {order_id: int(deep)}

    capability = order.capability
    assert capability.name == "order"
    assert capability.description == "Look an order up."
    assert capability.input_schema["type"] == "object"
    assert capability.input_schema["properties"]["order_id"] == {"type": "string"}
    assert capability.input_schema["properties"]["deep"] == {"type": "boolean", "default": False}
    assert capability.input_schema["required"] == ["order_id"]
    assert capability.input_schema["additionalProperties"] is False
    assert capability.output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_calling_a_tool_calls_the_function() -> None:
    """Ours: a decorated function remains usable and testable."""

    @tool(side_effect="read")
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    @tool
    async def later(x: int) -> int:
        return 3 * x

    assert isinstance(double, Tool)
    assert double(4) == 8
    assert double.__name__ == "double"  # type: ignore[attr-defined]
    assert double.__doc__ == "Twice."
    assert asyncio.run(later(2)) == 6
    assert later.registered.async_mode
    assert not double.registered.async_mode


def test_an_undeclared_side_effect_is_an_external_one_and_not_idempotent() -> None:
    """Ours: SPEC §4; the seed's idempotent default would run a payment twice."""

    @tool
    def pay() -> None: ...

    assert pay.capability.side_effect == "external_system"
    assert pay.capability.idempotent is False


@pytest.mark.parametrize(
    ("effect", "idempotent"),
    [("none", True), ("read", True), ("write", False), ("network", False), ("database", False)],
)
def test_only_none_and_read_are_idempotent_by_default(effect: str, idempotent: bool) -> None:
    """Ours: SPEC §4; a tool with any other side effect is not repeated after a crash."""

    @tool(side_effect=effect)
    def f() -> None: ...

    assert f.capability.idempotent is idempotent


def test_idempotence_limits_approval_name_and_description_can_be_declared() -> None:
    """Ours: every part of the contract has a keyword argument."""

    @tool(
        name="other",
        description="said here",
        side_effect="write",
        idempotent=True,
        approval=auto_approval("kwargs['x'] < 3"),
        limits=CapabilityLimits(timeout_ms=7),
    )
    def f(x: int) -> None:
        """Said there."""

    capability = f.capability
    assert (capability.name, capability.description) == ("other", "said here")
    assert capability.idempotent
    assert capability.approval_policy == auto_approval("kwargs['x'] < 3")
    assert capability.limits.timeout_ms == 7


def test_a_dataclass_is_passed_as_an_instance_and_returned_as_json() -> None:
    """Ours: the function receives values of its annotated types."""

    @tool
    def move(point: Point, by: int = 1) -> Point:
        assert isinstance(point, Point)
        return Point(point.x + by, point.y + by)

    assert value_of(move, {"x": 1}, by=2) == {"x": 3, "y": 2}
    assert error_of(move, {"x": "one"}) == "INVALID_ARGUMENT"
    assert error_of(move, {"y": 1}) == "INVALID_ARGUMENT"


def test_a_typed_dict_is_validated() -> None:
    """Ours: a TypedDict is a JSON object with known keys."""

    @tool
    def label(address: Address) -> str:
        return f"{address['street']} {address['number']}"

    assert value_of(label, {"street": "Elm", "number": 3}) == "Elm 3"
    assert error_of(label, {"street": "Elm"}) == "INVALID_ARGUMENT"


def test_literals_and_enums_are_limited_to_their_values() -> None:
    """Ours: Literal and Enum become JSON Schema enums."""

    @tool
    def paint(colour: Colour, mode: Literal["fast", "slow"] = "fast") -> Colour:
        assert isinstance(colour, Colour)
        return colour

    properties = paint.capability.input_schema
    assert "red" in msgspec.json.encode(properties).decode()
    assert value_of(paint, "red", mode="slow") == "red"
    assert error_of(paint, "green") == "INVALID_ARGUMENT"
    assert error_of(paint, "red", "medium") == "INVALID_ARGUMENT"


def test_a_msgspec_struct_is_passed_as_an_instance() -> None:
    """Ours: parameters and results may be msgspec structs."""

    @tool
    def total(order: Order) -> Order:
        assert isinstance(order, Order)
        return Order(order.id, [sum(order.lines)])

    assert value_of(total, {"id": "a", "lines": [1, 2]}) == {"id": "a", "lines": [3]}


def test_nested_pydantic_models_are_passed_as_models() -> None:
    """Ours: pydantic models are accepted in users' signatures, in lists too."""

    @tool
    def pack(baskets: list[Basket], extra: Item | None = None) -> list[Item]:
        assert all(isinstance(basket, Basket) for basket in baskets)
        assert all(isinstance(item, Item) for basket in baskets for item in basket.items)
        return [item for basket in baskets for item in basket.items] + ([extra] if extra else [])

    basket = {"owner": "o", "items": [{"sku": "a"}, {"sku": "b", "count": 2}]}
    assert value_of(pack, [basket]) == [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}]
    assert value_of(pack, [], {"sku": "z"}) == [{"sku": "z", "count": 1}]
    assert error_of(pack, [{"owner": "o", "items": [{"sku": "a", "count": 0}]}]) == "INVALID_ARGUMENT"
    schema = pack.capability.input_schema
    text = msgspec.json.encode(schema).decode()
    for name in set(_references(schema)):
        assert name in schema["$defs"], text


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        here = [node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else []
        return here + [name for value in node.values() for name in _references(value)]
    if isinstance(node, list):
        return [name for value in node for name in _references(value)]
    return []


def test_a_pydantic_model_alone_has_a_schema_whose_references_resolve() -> None:
    """Ours: the contract is JSON Schema 2020-12, so its $refs must point into it."""

    @tool
    def ship(basket: Basket) -> Basket:
        return basket

    for schema in (ship.capability.input_schema, ship.capability.output_schema):
        assert set(_references(schema)) <= set(schema.get("$defs", {}))
    assert value_of(ship, basket={"owner": "o", "items": []}) == {"owner": "o", "items": [], "gift": None}


def test_optional_parameters_accept_null() -> None:
    """Ours: both `Optional[X]` and `X | None` accept null."""

    @tool
    def f(a: Optional[int], b: int | None = None) -> list[int | None]:  # noqa: UP045 - the old spelling is meant
        return [a, b]

    assert value_of(f, None) == [None, None]
    assert value_of(f, 1, 2) == [1, 2]
    assert error_of(f) == "INVALID_ARGUMENT"


def test_mutable_defaults_are_fresh_for_every_call() -> None:
    """Bug: a shared default list would leak one guest's data to the next."""

    @tool
    def f(seen: list[int] = [1], table: dict[str, int] = {}) -> list[int]:  # noqa: B006 - that is the test
        seen.append(len(seen))
        table["x"] = 1
        return [*seen, len(table)]

    assert value_of(f) == [1, 1, 1]
    assert value_of(f) == [1, 1, 1]


def test_nested_mutable_defaults_are_fresh_for_every_call() -> None:
    """Bug: a shallow copy of a default would share its contents."""

    @tool
    def f(seen: dict[str, list[int]] = {"a": []}) -> int:  # noqa: B006 - that is the test
        seen["a"].append(1)
        return len(seen["a"])

    assert [value_of(f), value_of(f)] == [1, 1]


def test_keyword_only_and_positional_only_parameters_keep_their_kind() -> None:
    """Ours: a call that Python would refuse is an INVALID_ARGUMENT."""

    @tool
    def f(a: int, /, b: int, *, c: int = 3) -> list[int]:
        return [a, b, c]

    assert value_of(f, 1, 2) == [1, 2, 3]
    assert value_of(f, 1, b=2, c=4) == [1, 2, 4]
    assert error_of(f, 1, 2, 3) == "INVALID_ARGUMENT"
    assert error_of(f, b=2) == "INVALID_ARGUMENT"


def test_a_positional_only_parameter_cannot_be_passed_by_name() -> None:
    """Ours: a call must mean the same as in Python."""

    @tool
    def f(a: int, /) -> int:
        return a

    assert value_of(f, 1) == 1
    assert error_of(f, a=1) == "INVALID_ARGUMENT"


def test_an_invalid_call_is_an_invalid_argument() -> None:
    """Ours: the input is validated before the tool is called."""

    @tool
    def f(a: int, b: str = "") -> int:
        raise AssertionError("not reached")

    for args, kwargs in [
        ((), {}),
        ((1, "x", 2), {}),
        ((1,), {"a": 1}),
        ((1,), {"z": 1}),
        (("1",), {}),
        ((1.5,), {}),
        ((True,), {}),
        ((None,), {}),
    ]:
        assert error_of(f, *args, **kwargs) == "INVALID_ARGUMENT"


STYLES = {
    "google": """Pay an order back.

    At once.

    Args:
        order_id: Which order.
        cents: How much,
            in cents.

    Returns:
        Nothing.
    """,
    "numpy": """Pay an order back.

    At once.

    Parameters
    ----------
    order_id : str
        Which order.
    cents : int
        How much,
        in cents.

    Returns
    -------
    None
    """,
    "sphinx": """Pay an order back.

    At once.

    :param order_id: Which order.
    :param cents: How much,
        in cents.
    :returns: nothing
    """,
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings_of_all_three_styles_describe_the_parameters(style: str) -> None:
    """Ours: models read the parameters' descriptions in the schema."""

    def refund(order_id: str, cents: int) -> None: ...

    refund.__doc__ = STYLES[style]
    capability = tool(refund).capability
    assert capability.description == "Pay an order back.\n\nAt once."
    properties = capability.input_schema["properties"]
    assert properties["order_id"]["description"] == "Which order."
    assert " ".join(properties["cents"]["description"].split()) == "How much, in cents."


def test_annotated_constraints_are_in_the_schema_and_enforced() -> None:
    """Ours: a bound can be declared with `msgspec.Meta`."""

    @tool
    def f(cents: Annotated[int, msgspec.Meta(ge=1, le=100)]) -> int:
        """Pay.

        Args:
            cents: how much
        """
        return cents

    declared = f.capability.input_schema["properties"]["cents"]
    assert (declared["minimum"], declared["maximum"], declared["description"]) == (1, 100, "how much")
    assert value_of(f, 100) == 100
    assert error_of(f, 101) == "INVALID_ARGUMENT"


def test_an_unannotated_parameter_accepts_anything() -> None:
    """Ours: a parameter without an annotation gets an empty schema."""

    @tool
    def f(x, y=None):  # type: ignore[no-untyped-def]
        return [x, y]

    assert value_of(f, {"a": [1]}) == [{"a": [1]}, None]


def test_star_parameters_are_refused_at_decoration() -> None:
    """Ours: a type without a schema is rejected when the tool is decorated."""
    with pytest.raises(InvalidArgument, match="args"):

        @tool
        def f(*args: int) -> None: ...

    with pytest.raises(InvalidArgument, match="kwargs"):

        @tool
        def g(**kwargs: int) -> None: ...


@pytest.mark.parametrize("kind", [socket.socket, threading.Lock, complex, type(lambda: 0)])
def test_a_type_without_a_json_form_is_refused_at_decoration(kind: Any) -> None:
    """Ours: the error is raised when the tool is decorated, not at the first call."""

    def f(x: Any) -> None: ...

    f.__annotations__["x"] = kind
    with pytest.raises(InvalidArgument):
        tool(f)


def test_an_annotation_that_cannot_be_resolved_is_refused_at_decoration() -> None:
    """Ours: the message names the annotation that cannot be resolved."""

    def f(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - that is the test

    with pytest.raises(InvalidArgument, match="Missing"):
        tool(f)


@pytest.mark.parametrize("options", [{"side_effect": "magic"}, {"approval": "maybe"}, {"approval": None}])
def test_an_unknown_option_is_refused(options: dict[str, Any]) -> None:
    """Ours: a misspelt approval option must not mean that no approval is needed."""
    with pytest.raises(InvalidArgument):

        @tool(**options)
        def f() -> None: ...


@pytest.mark.parametrize("options", [{"limits": {"timeout_ms": 5}}, {"idempotent": "no"}, {"description": 5}])
def test_an_option_of_the_wrong_type_is_refused_at_decoration(options: dict[str, Any]) -> None:
    """Bug: limits as a dict failed each call as INTERRUPTED, and the text "no" made a tool idempotent."""
    with pytest.raises(InvalidArgument, match=rf"{next(iter(options))} of tool pay\(\) must be a"):

        @tool(**options)
        def pay() -> None: ...


def test_a_rule_that_is_not_an_expression_is_refused_at_decoration() -> None:
    """Ours: a broken rule would ask a person about every call."""
    for rule in ("x =", "import os", "a = 1", ""):
        with pytest.raises(InvalidArgument):

            @tool(approval=auto_approval(rule))
            def f() -> None: ...


def test_a_name_that_cannot_be_called_is_refused() -> None:
    """Seed: such a name raises INVALID_TOOL_NAME."""
    with pytest.raises(InvalidToolName):
        tool(lambda: None)
    with pytest.raises(InvalidToolName):

        @tool(name="print")
        def f() -> None: ...


def test_a_tool_may_be_given_in_any_form() -> None:
    """Ours: a tool may be given as a function, a Tool or a RegisteredTool."""

    def plain(x: int) -> int:
        return x

    decorated = tool(name="decorated")(plain)
    raw = RegisteredTool.sync(Capability(name="raw", description=""), lambda context: None)
    assert [as_registered(item).name for item in (plain, decorated, raw)] == ["plain", "decorated", "raw"]
    assert [found.name for found in collect_tools([1, plain, decorated, decorated, raw])] == ["decorated"]
    with pytest.raises(InvalidArgument):
        as_registered(7)


def test_a_raw_tool_with_an_array_schema_accepts_positional_arguments() -> None:
    """Seed: RegisteredTool::sync and asynchronous with the default {"type": "array"} schema."""
    capability = Capability(name="raw", description="")

    async def later(context: ToolCallContext) -> Any:
        return {"got": context.args}

    sync = RegisteredTool.sync(capability, lambda context: [context.name, *context.args])
    asynchronous = RegisteredTool.asynchronous(capability, later)
    assert value_of(sync, 1, "b") == ["raw", 1, "b"]
    assert value_of(asynchronous, 1) == {"got": [1]}
    assert error_of(sync, x=1) == "INVALID_ARGUMENT"
    assert (sync.async_mode, asynchronous.async_mode) == (False, True)


def test_a_raw_tool_is_validated_against_its_own_schemas() -> None:
    """Seed: input and output schema are part of the contract."""
    capability = Capability(
        name="raw",
        description="",
        input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        output_schema={"type": "string"},
    )
    raw = RegisteredTool.sync(capability, lambda context: context.kwargs.get("out", "fine"))
    assert value_of(raw, 3) == "fine"
    assert value_of(raw, n=3) == "fine"
    assert error_of(raw, n="3") == "INVALID_ARGUMENT"
    assert error_of(raw) == "INVALID_ARGUMENT"
    assert error_of(raw, 1, 2) == "INVALID_ARGUMENT"
    assert error_of(raw, n=1, out=5) == "TOOL_ERROR"


def test_a_raw_tool_refuses_an_argument_that_is_passed_twice() -> None:
    """Ours: unlike the seed, so that an approval rule sees the value that is used."""
    capability = Capability(
        name="raw", description="", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}}
    )
    raw = RegisteredTool.sync(capability, lambda context: None)
    assert error_of(raw, 1, n=2) == "INVALID_ARGUMENT"


def test_a_tool_error_keeps_its_own_code() -> None:
    """Seed: a ToolError has its own code and message."""

    @tool
    def buy() -> None:
        raise ToolError("OUT_OF_STOCK", "none left")

    settled = call(buy)
    assert settled.record.error is not None
    assert (settled.record.error.code, settled.record.error.message) == ("OUT_OF_STOCK", "none left")


def test_a_declared_return_type_is_validated() -> None:
    """Ours: the response is validated against the output schema."""

    @tool
    def f(x: int) -> int:
        return "text" if x else 1  # type: ignore[return-value]

    @tool
    def nothing() -> None:
        return 5  # type: ignore[return-value]

    assert value_of(f, 0) == 1
    assert error_of(f, 1) == "TOOL_ERROR"
    assert error_of(nothing) == "TOOL_ERROR"
