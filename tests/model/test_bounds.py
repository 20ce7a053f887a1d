"""Bounds on the size of values, checked before anything else traverses them."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import InvalidArgument, ValueTooLarge
from standfast.model.canonical import (
    MAX_VALUE_CONTAINERS,
    MAX_VALUE_NODES,
    check_bounds,
    check_json_bounds,
    is_light,
    read_json,
    to_json,
)


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


@dataclasses.dataclass(slots=True)
class Slots:
    left: Any
    right: Any


class Struct(msgspec.Struct):
    left: Any
    right: Any


def _doubled(make: Any, depth: int = 60) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = make(value)
    return value


SHARED = {
    "lists": lambda x: [x, x],
    "tuples": lambda x: (x, x),
    "dicts": lambda x: {"a": x, "b": x},
    "dicts with other keys": lambda x: {1: x, 2: x},
    "ordered dicts": lambda x: OrderedDict(a=x, b=x),
    "deques": lambda x: deque([x, x]),
    "dataclasses": lambda x: Pair(x, x),
    "dataclasses with slots": lambda x: Slots(x, x),
    "structs": lambda x: Struct(x, x),
    "mixed": lambda x: [{"a": (x, x)}, Pair(x, x)],
}


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_shared_parts_count_once_per_reference(make: Any) -> None:
    """Bug: forty lists in memory are 2**41 values to an encoder, which has no limit and holds the GIL."""
    value = _doubled(make)
    began = time.monotonic()
    with pytest.raises(ValueTooLarge, match="the limit is 200000 parts") as refused:
        check_bounds(value)
    assert refused.value.code == "REQUEST_TOO_LARGE"
    with pytest.raises(ValueTooLarge):
        to_json(value)
    assert time.monotonic() - began < 20  # it ends


def test_keys_are_traversed_but_never_hashed() -> None:
    """Bug: hashing a tuple traverses it as a tree, too."""

    class Never:
        def __hash__(self) -> int:
            raise AssertionError("hashed")

    assert not check_bounds([Never(), {"a": Never()}])
    deep = _doubled(lambda x: (x, x), 12)
    held = {deep: 1}
    with pytest.raises(ValueTooLarge):
        check_bounds(held, max_nodes=1000)


@pytest.mark.parametrize(
    "value",
    ["x" * 2000, ["x" * 100] * 20, {"x" * 2000: 1}, b"x" * 2000, bytearray(2000), [memoryview(b"x" * 2000)],
     10**3000, [10**30] * 80, {str(n): n for n in range(300)}, [None] * 400, Pair("x" * 2000, 1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_size_in_bytes_is_limited_before_anything_is_encoded(value: object) -> None:
    """Ours: the limit on bytes is enforced without producing the bytes."""
    with pytest.raises(ValueTooLarge, match="the limit is 1000 bytes as JSON"):
        check_bounds(value, max_bytes=1000)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_json)
def test_no_value_within_the_limit_is_refused(value: Any) -> None:
    """Ours: the traversal counts the minimum size of each value."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    assert check_bounds(value, max_bytes=len(data))
    check_json_bounds(data, max_bytes=len(data))


@given(_json, st.integers(1, 30))
def test_json_text_is_limited_to_the_same_number_of_nodes(value: Any, most: int) -> None:
    """Ours: JSON that arrives as text is checked before it is decoded, whatever its strings contain."""
    try:
        data = msgspec.json.encode([value, ',:[{"\\', '\\\\"'])
    except UnicodeEncodeError:
        return
    tree = msgspec.json.decode(data)
    assert _fits(lambda: check_json_bounds(data, max_nodes=most)) >= _fits(
        lambda: check_bounds(tree, max_nodes=most)
    )


def _fits(check: Callable[[], object]) -> bool:
    try:
        check()
    except ValueTooLarge:
        return False
    return True


def test_json_text_with_too_many_nodes_is_not_decoded() -> None:
    """Ours: JSON from guests is decoded in one call, which holds the GIL throughout."""
    with pytest.raises(ValueTooLarge, match="the limit is 200000 parts"):
        read_json(b"[" + b"1," * 300_000 + b"1]")
    assert len(read_json(b"[" + b"[]," * 150_000 + b"{}]")) == 150_001
    assert read_json(b'["' + b",:" * 300_000 + b'"]') == [",:" * 300_000]
    assert read_json(b'["' + b'\\"' * 300_000 + b'", 1]') == ['"' * 300_000, 1]


def test_the_limit_itself_is_allowed_and_one_more_is_not() -> None:
    """Ours: 200,000 values and keys fit, one more does not."""
    assert check_bounds([0] * (MAX_VALUE_NODES - 1))
    with pytest.raises(ValueTooLarge):
        check_bounds([0] * MAX_VALUE_NODES)
    assert check_bounds({str(n): n for n in range((MAX_VALUE_NODES - 1) // 2)})


def test_an_integer_beyond_64_bits_counts_twice() -> None:
    """Ours: Monty converts 200,000 of them in one call, which held the GIL for 57 ms."""
    assert check_bounds([2**64 - 1] * (MAX_VALUE_NODES - 1))
    assert check_bounds([2**64] * (MAX_VALUE_NODES // 2 - 1))
    with pytest.raises(ValueTooLarge):
        check_bounds([2**64] * (MAX_VALUE_NODES // 2))


def test_a_value_may_have_at_most_120000_lists_and_dicts() -> None:
    """Ours: Monty converts a value's containers one by one in a call that holds the GIL."""
    assert check_bounds([[] for _ in range(MAX_VALUE_CONTAINERS - 1)])
    parts: tuple[Any, ...] = ([], {})
    for part in parts:
        with pytest.raises(ValueTooLarge, match="120000 lists and dicts"):
            check_bounds([part] * MAX_VALUE_CONTAINERS)


def test_the_message_distinguishes_a_cycle_from_a_large_value() -> None:
    """Ours: the traversal ends in both cases, and the message says which it was."""
    ring: list[Any] = []
    ring.append(ring)
    pair = Pair(ring, None)
    pair.right = pair
    for value in (ring, {"a": [ring]}, pair):
        with pytest.raises(InvalidArgument, match="contains itself") as refused:
            check_bounds(value)
        assert not isinstance(refused.value, ValueTooLarge)


def test_the_traversal_does_not_recurse() -> None:
    """Ours: deep nesting must not break the traversal."""
    value: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 3):
        value = [value]
    assert check_bounds(value)


def test_plain_data_is_recognized() -> None:
    """Ours: plain data is encoded unchanged; other values are written as Python's own `json` writes them."""

    class Text(str):
        pass

    assert check_bounds({"a": [1, 2.5, None, True, ("x",)]})
    for value in ({1: 2}, {1, 2}, float("nan"), Text("x"), Pair(1, 2), b"x"):
        assert not check_bounds([value])
    assert to_json([Text("x"), {True: 1, None: 2, 1.5: 3, 7: (4,)}, [0] * 50])[0] == [
        "x", {"true": 1, "null": 2, "1.5": 3, "7": [4]}, [0] * 50
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "light"),
    [
        ({"a": [1, 2.5, None, "é" * 1_000]}, True),
        ("x" * (1 << 17), False),
        ([0] * 2_000, False),
        ([["x" * 100] * 100] * 100, False),
    ],
)
def test_values_that_an_event_loop_may_handle_itself_are_recognized(value: object, light: bool) -> None:
    """Ours: larger values are checked, encoded and digested on another thread."""
    assert is_light(value) is light


def test_a_value_that_contains_itself_is_not_light() -> None:
    """Ours: the check that refuses it runs on another thread."""
    value: list[object] = []
    value.append(value)
    assert not is_light(value)


def test_empty_lists_in_json_text_are_counted_once_each() -> None:
    """Ours: brackets and commas are counted first, and empty lists are subtracted only if it matters."""
    check_json_bounds(b"[" + b"[]," * 1_400 + b"0]", max_nodes=1_500)
    with pytest.raises(ValueTooLarge):
        check_json_bounds(b"[" + b"[]," * 1_600 + b"0]", max_nodes=1_500)
