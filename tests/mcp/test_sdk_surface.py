"""The parts of the MCP SDK that Standfast uses beyond its public interface, in one list.

If one of these fails after an upgrade of the SDK, read the named module first: the tests of
behaviour then fail in ways that are hard to interpret.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.server import MCPServer

import standfast.mcp

SOURCE = Path(standfast.mcp.__file__).parent
OAUTH = {
    "_add_auth_header": ["self", "request"],
    "_auth_flow": ["self", "request"],
    "_handle_refresh_response": ["self", "response"],
    "_initialize": ["self"],
    "_perform_authorization_code_grant": ["self"],
    "_refresh_token": ["self"],
}
"""Methods of the SDK's sign-in that `sign_in.SignIn` extends or calls, with their parameters."""


@pytest.mark.parametrize("name", OAUTH)
def test_the_sdk_signs_in_with_the_methods_that_we_override(name: str) -> None:
    """Ours: the SDK has no public way to renew a token before asking a person."""
    method: Any = getattr(OAuthClientProvider, name, None)
    assert method is not None, f"OAuthClientProvider.{name} is gone: see mcp/sign_in.py"
    assert list(inspect.signature(method).parameters) == OAUTH[name]


def test_a_server_of_the_sdk_has_a_low_level_server() -> None:
    """Ours: `--extend` adds handlers to it, as the SDK's own `Client` does."""
    assert hasattr(MCPServer("x"), "_lowlevel_server"), "see mcp/joined.py"


def test_no_other_private_part_of_the_sdk_is_used() -> None:
    """Ours: the stdio client once replaced `Client._connect`; its transport is public now."""
    found = {
        (file.name, name)
        for file in SOURCE.glob("*.py")
        for name in re.findall(
            r"(?:client|session|server|own|context|_manager)\.(_[a-z]\w+)", file.read_text()
        )
    }
    assert found == {("joined.py", "_lowlevel_server")}
    imported = {
        line.strip()
        for file in SOURCE.glob("*.py")
        for line in file.read_text().splitlines()
        if re.match(r"\s*from mcp[a-z_.]*\._", line)
    }
    assert imported == set()
