"""`standfast tools`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def test_the_list_has_the_tools_that_the_options_grant(standfast: Any, refunds: str, tmp_path: Path) -> None:
    """Seed: the list is an array of capabilities."""
    words = ("tools", "list", "--tools", refunds, "--mount", f"/d={tmp_path}")
    names = {item["name"] for item in standfast(*words, "--json").document}
    assert {"fee", "order", "refund", "read_text", "list_dir", "list_tools"} <= names
    assert "refund" in standfast(*words).stdout


def test_a_description_has_the_signature_and_the_parameters(standfast: Any, refunds: str) -> None:
    """Seed: `tools describe NAME` shows the contract."""
    document = standfast("tools", "describe", "refund", "--tools", refunds, "--json").document
    assert (document["name"], document["approval_policy"]) == ("refund", "manual")
    shown = standfast("tools", "describe", "refund", "--tools", refunds).stdout
    assert "def refund(order_id: str, cents: int) -> int: ..." in shown
    assert "how much." in shown


def test_an_unknown_tool_is_an_error_with_a_suggestion(standfast: Any, refunds: str) -> None:
    """Ours: the error suggests close names."""
    ran = standfast("tools", "describe", "refunds", "--tools", refunds, "--json")
    assert (ran.status, ran.document["error"]["code"]) == (1, "UNKNOWN_TOOL")
    assert "refund" in ran.document["error"]["hint"]


def test_two_files_with_the_same_name_are_a_usage_error(standfast: Any, refunds: str, tmp_path: Path) -> None:
    """Ours: no tool is silently replaced."""
    other = tmp_path / "other.py"
    other.write_text(Path(refunds).read_text())
    ran = standfast("tools", "list", "--tools", refunds, "--tools", str(other))
    assert ran.status == 2
    assert "already registered" in ran.stderr


TOOLS = """
from standfast import tool
from .models import RATE
import words

@tool(side_effect="read")
def fee(cents: int) -> str:
    return f"{cents * RATE} {words.UNIT}"

@tool(side_effect="read", isolate=True)
def alone(cents: int) -> str:
    return f"{cents * RATE} {words.UNIT}"
"""


@pytest.mark.parametrize("is_package", [True, False], ids=["package", "directory"])
@pytest.mark.parametrize("name", ["fee", "alone"])
def test_a_tools_file_can_import_modules_beside_it(
    process: Any, tmp_path: Path, is_package: bool, name: str
) -> None:
    """Bug: `--tools desk/tools.py` with `from .models import …` could not be loaded, isolated or not."""
    desk = tmp_path / "desk"
    desk.mkdir()
    if is_package:
        (desk / "__init__.py").touch()
    (desk / "tools.py").write_text(TOOLS)
    (desk / "models.py").write_text("RATE = 2\n")
    (desk / "words.py").write_text("UNIT = 'cents'\n")
    ran = process("run", "-e", f"{name}(21)", "--tools", str(desk / "tools.py"), "--json")
    assert ran.document["result"] == "42 cents", ran.stdout + ran.stderr
