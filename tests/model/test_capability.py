"""Capability names, contracts and the registry that holds them."""

from __future__ import annotations

import builtins
import keyword

import msgspec
import pytest

from standfast import (
    Capability,
    CapabilityLimits,
    RegisteredTool,
    SideEffect,
    ToolRegistry,
    auto_approval,
    tool,
)
from standfast.errors import InvalidToolName, ToolNameTaken, UnknownTool
from standfast.model.capability import is_python_identifier


@pytest.mark.parametrize("name", ["fetch_json", "_x", "f1", "F", "match", "case", "_", "x" * 200])
def test_an_ascii_identifier_is_a_valid_capability_name(name: str) -> None:
    """Seed: is_python_identifier. Ours: soft keywords are allowed, as in Python."""
    assert Capability(name=name, description="").name == name


@pytest.mark.parametrize(
    "name",
    ["", "1_fetch", "fetch-json", "a b", "a.b", "naïve", "名", "x\n", "a\0", "ａ", "f()", *keyword.kwlist],
)
def test_a_name_that_guest_code_cannot_call_is_refused(name: str) -> None:
    """Seed: INVALID_TOOL_NAME. Ours: keywords and non-ASCII names too."""
    with pytest.raises(InvalidToolName) as caught:
        Capability(name=name, description="")
    assert caught.value.code == "INVALID_TOOL_NAME"


@pytest.mark.parametrize("name", sorted(set(dir(builtins)) - {"_"}))
def test_the_name_of_a_built_in_is_refused(name: str) -> None:
    """Ours: SPEC §3; a tool named print would change the meaning of guest code."""
    with pytest.raises(InvalidToolName):
        Capability(name=name, description="")


def test_decoding_checks_capability_names_too() -> None:
    """Ours: values rejected on construction are rejected when decoded."""
    with pytest.raises(InvalidToolName):
        msgspec.json.decode(b'{"name":"print","description":""}', type=Capability)


def test_identifiers_are_ascii() -> None:
    """Seed: validates_python_identifiers."""
    assert is_python_identifier("fetch_json")
    assert not is_python_identifier("1_fetch")
    assert not is_python_identifier("fetch-json")
    assert not is_python_identifier("é")


_REPEATABLE = {"none": True, "read": True}


@pytest.mark.parametrize("effect", list(SideEffect))
def test_only_none_and_read_are_idempotent_by_default_however_a_contract_is_created(
    effect: SideEffect,
) -> None:
    """Bug: `Capability(side_effect="external_system")` was idempotent, so a crash repeated a payment."""
    by_default = _REPEATABLE.get(effect, False)
    written = {"name": "f", "description": "", "side_effect": str(effect)}
    made = [
        Capability(name="f", description="", side_effect=effect),
        Capability(name="f", description="", side_effect=str(effect)),  # type: ignore[arg-type]
        msgspec.json.decode(msgspec.json.encode(written), type=Capability),
        msgspec.json.decode(msgspec.json.encode({**written, "idempotent": None}), type=Capability),
        msgspec.convert(written, Capability),
        tool(side_effect=effect)(_pay).capability,
    ]
    assert [contract.idempotent for contract in made] == [by_default] * len(made)
    assert msgspec.to_builtins(made[0])["idempotent"] is by_default
    assert msgspec.convert({**written, "idempotent": not by_default}, Capability).idempotent is not by_default
    assert made[0].digest() == made[1].digest() == made[2].digest() == made[4].digest()


def _pay() -> None:
    """Pay."""


def test_any_change_to_a_contract_changes_its_digest() -> None:
    """Ours: approvals and snapshots are bound to the whole contract."""
    base = Capability(name="f", description="d")
    others = [
        msgspec.structs.replace(base, **change)
        for change in (
            {"name": "g"},
            {"description": "e"},
            {"input_schema": {"type": "object"}},
            {"output_schema": {"type": "string"}},
            {"side_effect": "write"},
            {"limits": CapabilityLimits(timeout_ms=1)},
            {"approval_policy": "manual"},
            {"approval_policy": auto_approval("True")},
            {"approval_policy": auto_approval("False")},
            {"idempotent": False},
        )
    ]
    assert len({base.digest(), *(other.digest() for other in others)}) == 1 + len(others)
    assert base.digest() == Capability(description="d", name="f").digest()


def _registered(name: str, owner: str) -> RegisteredTool:
    return RegisteredTool.sync(Capability(name=name, description=""), lambda call: None, owner=owner)


def test_registering_a_name_twice_names_both_owners() -> None:
    """Ours: the seed overwrites silently."""
    registry = ToolRegistry([_registered("f", "shop.orders")])
    with pytest.raises(ToolNameTaken) as caught:
        registry.register(_registered("f", "bank.orders"))
    assert "shop.orders" in str(caught.value)
    assert "bank.orders" in str(caught.value)
    assert caught.value.code == "TOOL_CONFLICT"
    assert registry.require("f").owner == "shop.orders"


def test_a_registry_lists_its_tools_by_name() -> None:
    """Seed: names, contains, capabilities and get of ToolRegistry."""
    registry = ToolRegistry([_registered("b", "x"), _registered("a", "x")])
    assert registry.names() == ["a", "b"]
    assert [capability.name for capability in registry.capabilities()] == ["a", "b"]
    assert "a" in registry
    assert "c" not in registry
    assert registry.get("c") is None
    assert len(registry) == 2


def test_an_unknown_tool_is_refused_with_a_close_match() -> None:
    """Ours: SPEC §5, close matches in the hint."""
    registry = ToolRegistry([_registered("refund_order", "x")])
    with pytest.raises(UnknownTool) as caught:
        registry.require("refund_oder")
    assert "refund_order" in (caught.value.hint or "")
