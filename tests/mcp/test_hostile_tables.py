"""The tables of hostile behaviours in the documentation match the tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "mcp-security.md"


def _tests(name: str) -> Any:
    """Import the test module that has a table."""
    found = importlib.util.spec_from_file_location(
        f"tables_of_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _table(heading: str) -> dict[str, str]:
    """Return the outcomes by behaviour below a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|$", section, re.MULTILINE)
    return {behaviour: outcome for behaviour, outcome in rows if behaviour != "behaviour"}


def _outcome(expected: str) -> str:
    return f"`{expected}`" if expected.isupper() else f'the call returns "{expected}"'


def test_the_outcomes_of_forty_server_behaviours_are_documented() -> None:
    """Ours: the page agrees with the tests."""
    tests = _tests("test_hostile_servers")
    stdio = {name: f"`MCP_SERVER_FAILED`: {words}" for name, words in tests.STARTS.items()}
    stdio |= {name: _outcome(code) for name, code in tests.CALLS.items() if name}
    assert _table("Servers on stdio") == stdio
    over_http = {name: _outcome(code) for name, (code, _) in _tests("test_http").HOSTILE.items()}
    assert _table("Servers over HTTP") == over_http
    assert len(stdio) >= 40


def test_the_outcomes_of_twenty_client_behaviours_are_documented() -> None:
    """Ours: the page agrees with the tests."""
    tests = _tests("test_serving_http")
    clients = {name: f"status {status}" for name, (_, _, status) in tests.HOSTILE.items()}
    clients |= {name: _outcome(code) for name, (_, _, code) in tests.CALLS.items()}
    assert _table("Clients") == clients
    assert len(clients) >= 20
