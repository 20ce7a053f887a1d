"""Canonical JSON and its digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import InvalidArgument
from standfast.model import canonical
from standfast.model.canonical import (
    canonical_json,
    digest_bytes,
    digest_json,
    encode_json,
    nested_deeper_than,
    to_json,
)
from standfast.model.message import ToolMessage


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1, "a": [1, 2, {"d": 0, "c": 0}]}, b'{"a":[1,2,{"c":0,"d":0}],"b":1}'),
        (1e21, b"1e21"),
        (1e-7, b"1e-7"),
        (0.1, b"0.1"),
        (1.0, b"1.0"),
        ("é\u2028", '"é\u2028"'.encode()),
        ('"\\\n\x01', b'"\\"\\\\\\n\\u0001"'),
        (None, b"null"),
        ([True, False], b"[true,false]"),
        (2**53 + 1, b"9007199254740993"),
        (10**30, b"1000000000000000000000000000000"),
        (-(2**64), b"-18446744073709551616"),
        ((1, (2,)), b"[1,[2]]"),
        ({}, b"{}"),
    ],
    ids=lambda item: str(item)[:20],
)
def test_canonical_json_is_sorted_compact_and_minimal(value: object, written: bytes) -> None:
    """Ours: SPEC §3. The seed accepts whatever serde_json writes."""
    assert canonical_json(value) == written


def _cycle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), -float("inf"), {"a": [float("nan")]}, "\ud800", {"\udfff": 1}, b"bytes",
        {1, 2}, object(), _cycle(), _deep(), {(1, 2): 3}, 1j, range(3), {"k": b"x"},
    ],
    ids=lambda item: str(type(item).__name__),
)  # fmt: skip
def test_a_value_that_is_not_json_raises_and_never_digests_as_empty(value: object) -> None:
    """Ours: the seed's unwrap_or_default digests a failure as the empty string."""
    for encode in (canonical_json, digest_json, to_json):
        with pytest.raises(InvalidArgument) as caught:
            encode(value)
        assert caught.value.code == "INVALID_ARGUMENT"


def test_digests_are_lowercase_hex_sha3_256() -> None:
    """Seed: Sha3_256, checked against the published digests of the empty message and of "abc"."""
    assert digest_bytes(b"") == "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
    assert digest_bytes(b"abc") == "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"
    assert digest_json({"b": 1, "a": 2}) == hashlib.sha3_256(b'{"a":2,"b":1}').hexdigest()
    assert digest_json({"b": 1, "a": 2}) == digest_json({"a": 2, "b": 1})


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


@given(_json)
def test_encoding_is_stable_and_loses_nothing(value: Any) -> None:
    """Ours: equal values have equal bytes, and the bytes decode to the value."""
    clean, size = to_json(value)
    assert clean == value
    assert size > 0
    again, _ = to_json(clean)
    assert canonical_json(value) == canonical_json(again)


@given(_json | st.dictionaries(st.one_of(st.text(), st.integers(), st.booleans(), st.none()), _json))
def test_small_and_large_values_are_encoded_alike(value: Any) -> None:
    """Ours: a value that is certainly JSON is encoded in one call, with the same result."""

    def outcome(given: Any) -> Any:
        try:
            return to_json(given)
        except InvalidArgument as error:
            return error.message

    padding = [0] * 100
    small, large = outcome(value), outcome([value, padding])
    if isinstance(small, str):
        assert small == large
    else:
        assert (small[0], small[1] + len("[,[0") + 2 * 99 + len("]]")) == (large[0][0], large[1])


def test_the_returned_value_shares_nothing_with_the_given_one() -> None:
    """Ours: values cross the sandbox boundary by value."""
    inner = [1]
    clean, _ = to_json({"a": inner})
    inner.append(2)
    assert clean == {"a": [1]}


@pytest.mark.parametrize(("levels", "deeper"), [(1, False), (128, False), (129, True), (900, True)])
def test_depth_counts_lists_and_objects(levels: int, deeper: bool) -> None:
    """Ours: a stored value can be read again at any depth of the call stack."""
    value: object = "end"
    for number in range(levels):
        value = [value] if number % 2 else {"in": value}
    assert nested_deeper_than(value, 128) is deeper
    assert not nested_deeper_than(["flat"] * 1000, 1)


@pytest.mark.parametrize("shape", [
    lambda text: text,
    lambda text: {"a": [1, text]},
    lambda text: (text[: 1 << 20], text[1 << 20 :]),
    lambda text: ToolMessage(call_id=1, name="t", value=[text]),
], ids=["a text", "within a dict", "two texts", "within a struct"])  # fmt: skip
def test_no_single_call_encodes_a_long_text(
    shape: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: one call encoded 16 MiB of quotes and held the GIL for 50 ms, in which no other thread ran."""
    value = shape('abcdefghijkl"\\é\n\U0001f600' * (1 << 18) + '"' * (1 << 20))
    encode, lengths = msgspec.json.encode, [0]

    def measured(given: object, **options: Any) -> bytes:
        lengths.append(len(given) if isinstance(given, str) else 0)
        assert not _holds_text_longer_than(1 << 14, given) or isinstance(given, str)
        return encode(given, **options)

    monkeypatch.setattr(msgspec.json, "encode", measured)
    encoded = encode_json(value)
    monkeypatch.undo()
    assert encoded == encode(value)
    assert max(lengths) <= 1 << 20 < sum(lengths)


def _holds_text_longer_than(chars: int, value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > chars
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(_holds_text_longer_than(chars, part) for part in parts)


def test_a_large_value_is_copied_without_being_decoded_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: decoding 240,000 lists held the GIL for 50 ms and longer."""
    value = {
        "deep": [[[[]]] for _ in range(30_000)],
        "text": '"' * (1 << 20),
        "numbers": [1, 2.5, None, True],
    }
    monkeypatch.setattr(canonical, "_decoder", None)
    copy, size = to_json(value)
    assert copy == value
    assert size == len(msgspec.json.encode(value))
    copy["deep"][0].append(1)
    assert value["deep"][0] == [[[]]]
