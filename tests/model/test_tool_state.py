"""Availability, and the state of a session's tools as a value."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from standfast.errors import InvalidArgument, InvalidToolName, UnknownTool
from standfast.model.capability import SideEffect, ToolAvailability, ToolManifest, ToolState, ToolStateEntry

OFF, SEARCHABLE, CALLABLE, SHOWCASED = ToolAvailability
STATE = ToolState(
    generation=3,
    tools={
        "shop:a": ToolStateEntry(name="a", source="shop"),
        "shop:b": ToolStateEntry(name="b", source="shop", availability=OFF),
        "bank:a": ToolStateEntry(name="a", source="bank"),
    },
)


def test_availability_is_ordered_by_visibility_to_the_model() -> None:
    """Seed: off < searchable < callable < showcased, which is not the alphabetical order."""
    for lower, higher in pairwise(ToolAvailability):
        assert lower < higher
        assert lower <= higher
        assert higher > lower
        assert higher >= lower
        assert not lower >= higher
        assert not lower > lower
        assert lower <= lower
    assert sorted([SHOWCASED, OFF, CALLABLE, SEARCHABLE]) == list(ToolAvailability)
    assert max(OFF, SHOWCASED, CALLABLE) is SHOWCASED
    assert OFF < "callable" < SHOWCASED


def test_a_string_that_is_not_an_availability_cannot_be_compared() -> None:
    """Ours: a typing error must not count as higher than off."""
    with pytest.raises(ValueError, match="on"):
        assert OFF < "on"


def test_an_override_applies_to_every_tool_of_that_name_and_none_clears_it() -> None:
    """Seed: set_availability with None restores the availability from the source."""
    hidden = STATE.with_availability(["a"], OFF)
    assert {key: entry.availability for key, entry in hidden.tools.items()} == {
        "shop:a": OFF,
        "shop:b": OFF,
        "bank:a": OFF,
    }
    assert hidden.with_availability(["a"], None) == STATE
    assert STATE.with_availability(["b"], None).tools["shop:b"].availability is None
    assert STATE.with_availability([], OFF) == STATE


def test_a_tool_that_is_not_a_member_keeps_its_override() -> None:
    """Ours: membership and availability are independent."""
    without = STATE.with_members(["b"], False)
    assert without.tools["shop:b"] == ToolStateEntry(name="b", source="shop", availability=OFF, member=False)
    assert without.with_members(["b"], True) == STATE


def test_one_unknown_name_fails_the_whole_change() -> None:
    """Seed: SPEC §4, one unknown name fails the whole call and changes nothing."""
    with pytest.raises(UnknownTool, match="'nope'"):
        STATE.with_availability(["a", "nope"], OFF)
    with pytest.raises(UnknownTool, match="'nope'"):
        STATE.with_members(["a", "nope"], False)
    assert STATE.tools["shop:a"] == ToolStateEntry(name="a", source="shop")


def test_an_invalid_availability_is_refused() -> None:
    """Ours: anything but "off" would count as on."""
    with pytest.raises(InvalidArgument, match="'of'") as caught:
        STATE.with_availability(["a"], "of")  # type: ignore[arg-type]
    assert "searchable" in (caught.value.hint or "")
    assert STATE.with_availability(["a"], "off").tools["shop:a"].availability is OFF  # type: ignore[arg-type]


def test_a_state_survives_storage() -> None:
    """Ours: the state is part of a commit."""
    assert msgspec.json.decode(msgspec.json.encode(STATE), type=ToolState) == STATE
    assert msgspec.json.encode(STATE.tools["shop:a"]) == b'{"name":"a","source":"shop"}'


@pytest.mark.parametrize("name", ["", "a b", "1st", "class", "print", "é"])
def test_a_manifest_must_have_a_callable_name(name: str) -> None:
    """Ours: SPEC §3, names are validated on construction and on every decode."""
    with pytest.raises(InvalidToolName):
        ToolManifest(id="x", name=name, side_effect=SideEffect.READ)
    with pytest.raises(InvalidToolName):
        msgspec.convert({"id": "x", "name": name, "side_effect": "read"}, ToolManifest)


def test_a_manifest_must_have_an_id() -> None:
    """Ours: settings are stored by id."""
    with pytest.raises(InvalidToolName, match="no id"):
        ToolManifest(id="", name="a", side_effect=SideEffect.READ)
