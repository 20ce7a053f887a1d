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

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from standfast.errors import InvalidArgument, NotConfigured
from standfast.mcp.contracts import McpTool
from standfast.mcp.credentials import McpSignIn
from standfast.mcp.jail import McpJail
from standfast.mcp.mcp_server import McpServer
from standfast.runtime.agent_definition import AgentDefinition

FILE_NAME: Final = "mcp.json"
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TRANSPORTS: Final = {
    "stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url", "sse": "url",
}  # fmt: skip
"""The values of `type`, and the setting that each needs."""


class StandfastSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The types of a server's settings under `standfast`; `McpServer` checks their values."""

    include: list[str] | UnsetType = UNSET
    tools: dict[str, dict[str, Any]] | UnsetType = UNSET
    approval: Any = UNSET
    trust_annotations: bool | UnsetType = UNSET
    pin_tools: bool | UnsetType = UNSET
    memory_mb: int | UnsetType = UNSET
    cpu_s: int | UnsetType = UNSET
    jail: dict[str, Any] | UnsetType = UNSET
    sampling: bool | UnsetType = UNSET
    protocol: str | UnsetType = UNSET
    media: list[str] | UnsetType = UNSET
    sign_in: dict[str, Any] | UnsetType = UNSET
    availability: str | UnsetType = UNSET
    timeout_s: float | UnsetType = UNSET
    idle_s: float | UnsetType = UNSET
    connect_s: float | UnsetType = UNSET


class ServerEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The types of a server's settings."""

    type: str | UnsetType = UNSET
    command: str | UnsetType = UNSET
    args: list[str | int | float] | UnsetType = UNSET
    env: dict[str, str | int | float] | list[str] | UnsetType = UNSET
    cwd: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    standfast: StandfastSettings | UnsetType = UNSET


_KNOWN: Final = frozenset(ServerEntry.__struct_fields__)
_OWN: Final = frozenset(StandfastSettings.__struct_fields__)
_JAIL: Final = frozenset(McpJail.__dataclass_fields__)
_SIGN_IN: Final = frozenset(McpSignIn.__dataclass_fields__) - {"open_page"}
_TOOL: Final = frozenset(McpTool.__dataclass_fields__)


def read_mcp_servers(path: str | os.PathLike[str], *, data_dir: Path | None = None) -> list[McpServer]:
    """Return the enabled servers of an `mcp.json` file, for `Agent(tools=[...])`.

    Raise `NotConfigured` if the file is invalid.
    """
    file = Path(path)
    try:
        found = json.loads(file.read_bytes(), object_pairs_hook=_object)
    except OSError as error:
        raise NotConfigured(f"{file} cannot be read: {error.strerror or error}") from None
    except InvalidArgument as error:
        raise NotConfigured(f"{file}: {error.message}", hint=error.hint) from None
    except (ValueError, RecursionError) as error:
        raise NotConfigured(f"{file} is not JSON: {error}") from None
    servers = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(servers, dict):
        raise NotConfigured(
            f'{file} has no object "mcpServers"',
            hint='write {"mcpServers": {"NAME": {"command": "PROGRAM"}}}',
        )
    made: dict[str, McpServer] = {}
    for name, entry in servers.items():
        try:
            if not isinstance(entry, dict):
                raise InvalidArgument("it is not an object")
            if not entry.get("disabled"):
                server = _server(name, entry, data_dir)
                if server.name in made:
                    raise InvalidArgument(
                        f"another server is called {server.name!r}, too", hint="rename one of them"
                    )
                made[server.name] = server
        except (InvalidArgument, NotConfigured) as error:
            raise NotConfigured(f"{file}, server {name!r}: {error.message}", hint=error.hint) from None
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            problem = str(error)
            if found := re.fullmatch(r"(.*) - at `\$\.?(.*)`", problem):  # begin with the setting's name
                problem = f"{found[2]}: {found[1]}".replace("`", "")
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
    own = _known(entry.get("standfast", {}), _OWN, " under standfast")
    msgspec.convert(entry, ServerEntry)
    if ("command" in entry) == ("url" in entry):
        raise InvalidArgument('it needs either "command" or "url"')
    kind = entry.get("type", "stdio" if "command" in entry else "http")
    if kind == "sse":
        raise InvalidArgument("the SSE transport is not supported; use streamable HTTP")
    if _TRANSPORTS.get(kind) not in entry:
        raise InvalidArgument(
            f"type {kind!r} does not fit", hint='use "stdio" for a command, "http" for a URL'
        )
    entry, settings = _expanded(entry), dict(own)
    if "url" in entry and not entry["url"].startswith(("http://", "https://")):
        raise InvalidArgument(f'"url" must begin with http:// or https://, got {entry["url"]!r}')
    if "jail" in own:
        settings["jail"] = msgspec.convert(_known(own["jail"], _JAIL, " of jail"), McpJail)
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise `InvalidArgument` if a name occurs twice, because only one would count."""
    if repeated := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
        raise InvalidArgument(f"{repeated[0]!r} occurs twice in one object", hint="rename or remove one")
    return dict(pairs)


def _known(given: Any, known: frozenset[str], what: str = "") -> Any:
    """Return *given*; raise `InvalidArgument` unless it is an object whose settings are all in *known*."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"the settings{what} must be an object, got {given!r}")
    if unknown := sorted(set(given) - known):
        similar = get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"use one of {', '.join(sorted(known))}"
        raise InvalidArgument(f"there is no setting {unknown[0]!r}{what}", hint=hint)
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
            hint = f"set it, or write a default: ${{{name}:-value}}"
            raise InvalidArgument(f"it needs {name}, which is not set", hint=hint)
        return found

    return _VARIABLE.sub(filled, value) if isinstance(value, str) else value
