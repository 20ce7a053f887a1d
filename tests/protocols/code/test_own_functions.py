"""The functions that are available to code only."""

from __future__ import annotations

import pytest

from standfast.model.code import Language
from standfast.model.limits import SessionLimits
from standfast.protocols.code.own_functions import OWNER, own_functions
from standfast.tools import decorator
from standfast.tools.registry import ToolCatalog, ToolRegistry


@pytest.mark.parametrize("language", list(Language))
def test_sessions_share_the_contracts_of_built_in_functions(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: reading four signatures again took half of the first turn of a code session."""
    read: list[str] = []
    monkeypatch.setattr(decorator, "read_signature", lambda function, name: read.append(name))
    first = own_functions(ToolCatalog(), ToolRegistry().require, language)
    second = own_functions(ToolCatalog(), ToolRegistry().require, language)
    assert read == []
    assert {one.owner for one in first.values()} == {OWNER}
    assert [one.digest for one in first.values()] == [one.digest for one in second.values()]


def test_built_in_functions_of_two_sessions_have_their_own_handlers() -> None:
    """Ours: sessions share contracts, but not handlers."""
    resolve = ToolRegistry().require
    first = own_functions(ToolCatalog(), resolve, limits=SessionLimits(memory_mb=16))
    second = own_functions(ToolCatalog(), resolve, limits=SessionLimits(memory_mb=32))
    shown = [made["current_policy"].handler()["limits"]["memory_mb"] for made in (first, second)]
    assert shown == [16, 32]
    assert first["list_tools"].handler is not second["list_tools"].handler
