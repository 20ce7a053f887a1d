"""`mcp.json`: the servers of a project, in the format that most MCP clients read.

    {"mcpServers": {
        "files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]},
        "shop": {"url": "https://shop.example/mcp", "headers": {"Authorization": "Bearer ${SHOP_TOKEN}"},
                 "standfast": {"approval": "manual", "tools": {"find_*": {"approval": "none"}}}}
    }}

Settings specific to Standfast are under `standfast`, named like the arguments of `McpServer`. `${NAME}` and
`${NAME:-default}` are replaced from the environment. Rule: an unknown setting is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, NotConfigured
from standfast.mcp.contracts import McpTool
from standfast.mcp.credentials import McpSignIn
from standfast.mcp.jail import McpJail
from standfast.mcp.mcp_server import McpServer
from standfast.runtime.agent_definition import AgentDefinition

FILE_NAME: Final = "mcp.json"
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_KNOWN: Final = frozenset({
    "type", "command", "args", "env", "cwd", "url", "headers", "disabled", "standfast"
})  # fmt: skip
_OWN: Final = frozenset({
    "include", "tools", "approval", "trust_annotations", "pin_tools", "memory_mb", "cpu_s", "jail",
    "sampling", "protocol", "media", "sign_in", "availability", "timeout_s", "idle_s", "connect_s",
})  # fmt: skip
_SIGN_IN: Final = frozenset(McpSignIn.__dataclass_fields__) - {"open_page"}
_TOOL: Final = frozenset(McpTool.__dataclass_fields__)


def read_mcp_servers(path: str | os.PathLike[str], *, data_dir: Path | None = None) -> list[McpServer]:
    """Return the enabled servers of an `mcp.json` file, for `Agent(tools=[...])`.

    Raise `NotConfigured` if the file is invalid.
    """
    file = Path(path)
    try:
        found = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise NotConfigured(f"{file} cannot be read: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise NotConfigured(f"{file} is not JSON: {error}") from None
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise NotConfigured(f'{file} has no "mcpServers"', hint="write an object of servers by name")
    made: dict[str, McpServer] = {}
    for name, entry in servers.items():
        try:
            if not isinstance(entry, dict):
                raise InvalidArgument("it is not an object")
            if not entry.get("disabled"):
                server = _server(name, entry, data_dir)
                if server.name in made:
                    raise InvalidArgument(f"another server is called {server.name!r}, too")
                made[server.name] = server
        except (InvalidArgument, msgspec.ValidationError, TypeError, ValueError) as error:
            problem = error.message if isinstance(error, InvalidArgument) else str(error)
            raise NotConfigured(f"{file}, server {name!r}: {problem}") from None
    return list(made.values())


def add_mcp_servers(
    agents: Iterable[AgentDefinition[Any, Any]], path: str | os.PathLike[str], *, data_dir: Path | None = None
) -> None:
    """Connect each of *agents* to the servers of an `mcp.json` file."""
    servers = read_mcp_servers(path, data_dir=data_dir)
    for agent in agents:
        for server in servers:
            agent.registry.connect(server)


def server_name(name: str) -> str:
    """Return the form of a server's *name* in the file that is used in tool names."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _server(name: str, entry: dict[str, Any], data_dir: Path | None) -> McpServer:
    _known(entry, _KNOWN)
    own = _known(entry.get("standfast", {}), _OWN)
    if entry.get("type", "stdio") == "sse":
        raise InvalidArgument("the SSE transport is not supported; use streamable HTTP")
    if ("command" in entry) == ("url" in entry):
        raise InvalidArgument('it needs either "command" or "url"')
    entry, settings = _expanded(entry), dict(own)
    if "jail" in own:
        settings["jail"] = msgspec.convert(own["jail"], McpJail)
    if "sign_in" in own:
        settings["sign_in"] = McpSignIn(**_known(_expanded(own["sign_in"]), _SIGN_IN, " of sign_in"))
    if "tools" in own:
        settings["tools"] = {
            pattern: msgspec.convert(_known(given, _TOOL, " of a tool"), McpTool)
            for pattern, given in own["tools"].items()
        }
    return McpServer(
        entry.get("url") or [entry["command"], *entry.get("args", [])],
        name=server_name(name),
        env=entry.get("env", {}),
        cwd=entry.get("cwd"),
        headers=entry.get("headers"),
        data_dir=data_dir,
        **settings,
    )


def _known(given: Mapping[str, Any], known: frozenset[str], what: str = "") -> Any:
    """Return *given*; raise `InvalidArgument` if it has a setting that is not in *known*."""
    if unknown := sorted(set(given) - known):
        raise InvalidArgument(f"there is no setting {unknown[0]!r}{what}")
    return given


def _expanded(value: Any) -> Any:
    """Return *value* with environment variables expanded."""
    if isinstance(value, dict):
        return {key: _expanded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_expanded(part) for part in value]

    def filled(match: re.Match[str]) -> str:
        name, default = match.groups()
        if (found := os.environ.get(name, default)) is None:
            raise InvalidArgument(f"it needs {name}, which is not set")
        return found

    return _VARIABLE.sub(filled, value) if isinstance(value, str) else value
