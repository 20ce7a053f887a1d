"""The tools that an MCP server advertises, and the capabilities made from them.

Rules
-----
1. A tool's name begins with `mcp__SERVER__`, so that no server can shadow another name. If two of a server's
   names map to the same identifier, both get a digest as suffix.
2. Annotations are a server's own claims. They can only add caution, unless the user trusts them.
3. A description is untrusted text: it is truncated, cleaned of invisible characters, and marked as the
   server's. Descriptions inside a schema are truncated and cleaned too.
4. A tool whose schema is invalid, or refers to another document, is omitted.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import digest_json, nested_deeper_than
from standfast.model.capability import (
    ApprovalPolicy,
    Capability,
    SideEffect,
    ToolAvailability,
    ToolManifest,
    checked_availability,
)
from standfast.model.limits import CapabilityLimits
from standfast.tools.decorator import checked_approval
from standfast.tools.registered_tool import check_schema

MAX_TOOLS: Final = 5000
"""The most tools of one server; a server that lists more is rejected."""

DEFAULT_TIMEOUT_S: Final = 60.0
MAX_SCHEMA_DEPTH: Final = 64
MAX_DESCRIPTION_CHARS: Final = 4096
MAX_NAME_CHARS: Final = 64
"""The longest tool name that providers accept."""

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """The user's declarations about one tool of a server, or about all; they override annotations.

    Args:
        approval: "none", "manual", or `auto_approval("rule")`.
        side_effect: none, read, write, network, database or external_system.
        idempotent: whether a second call with the same arguments changes nothing.
        timeout_ms: the time limit of a call.
        availability: how the model reaches the tool: showcased, callable, searchable or off.
    """

    approval: ApprovalPolicy | None = None
    side_effect: str | None = None
    idempotent: bool | None = None
    timeout_ms: int | None = None
    availability: str | None = None

    def __post_init__(self) -> None:
        if self.side_effect is not None and self.side_effect not in list(SideEffect):
            known = ", ".join(SideEffect)
            raise InvalidArgument(f"there is no side effect {self.side_effect!r}", hint=f"use one of {known}")
        if self.availability is not None:
            checked_availability(self.availability)
        if self.approval is not None:
            checked_approval(self.approval, "of an MCP server")

    def over(self, other: McpTool) -> McpTool:
        """Return these declarations, with *other*'s where nothing is declared."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(other, **{name: value for name, value in given.items() if value is not None})


class AdvertisedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as its server describes it, and as it is pinned."""

    name: str
    title: str = ""
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = {}

    def digest(self) -> str:
        return digest_json(msgspec.to_builtins(self))

    def problem(self) -> str | None:
        """Return why this tool cannot be offered, None if it can."""
        if nested_deeper_than([self.input_schema, self.output_schema], MAX_SCHEMA_DEPTH):
            return f"a schema of {self.name[:80]!r} is nested deeper than {MAX_SCHEMA_DEPTH}"
        try:
            check_schema(self.input_schema, f"the input of {self.name[:80]!r}")
            if self.output_schema is not None:
                check_schema(self.output_schema, f"the output of {self.name[:80]!r}")
        except InvalidArgument as error:
            return error.message
        return None


def check_server_name(name: str) -> str:
    """Return *name*; raise `InvalidArgument` unless it can be part of a tool name."""
    if not isinstance(name, str) or not _SERVER_NAME.fullmatch(name) or len(name) > 32:
        raise InvalidArgument(
            f"{str(name)[:80]!r} cannot be the name of an MCP server",
            hint="use 1 to 32 ASCII letters, digits and single '_' between them",
        )
    return name


def tool_names(server: str, names: Iterable[str]) -> dict[str, str]:
    """Return the server's own tool names by the names that the tools get here."""
    given = list(dict.fromkeys(names))
    prefix = f"mcp__{server}__"
    plain = {
        name: prefix + (name if name.isidentifier() and name.isascii() else _UNFIT.sub("_", name))
        for name in given
    }
    used = Counter(plain.values())
    made: dict[str, str] = {}
    for name, short in plain.items():
        if used[short] > 1 or len(short) > MAX_NAME_CHARS:
            short = f"{short[: MAX_NAME_CHARS - 9]}_{digest_json(name)[:8]}"
        made.setdefault(short, name)
    return made


def clean_text(text: str, limit: int) -> str:
    """Return *text* without invisible and control characters, truncated to *limit* characters."""
    text = text[: 4 * limit]
    kept = (
        text
        if text.isprintable()
        else "".join(
            character
            for character in text
            if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn")
        )
    )
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def clean_schema(schema: Any) -> Any:
    """Return *schema* with its descriptions and titles truncated and cleaned; it accepts the same values."""
    if isinstance(schema, list):
        return [clean_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {}
    for key, value in schema.items():
        if isinstance(value, str):
            is_text = key in ("description", "title", "$comment")
            cleaned[key] = clean_text(value, MAX_DESCRIPTION_CHARS) if is_text else value
        else:
            is_data = key in ("const", "default", "enum", "examples")
            cleaned[key] = value if is_data else clean_schema(value)
    return cleaned


def described(server: str, tool: AdvertisedTool) -> str:
    """Return the description for the model, marked as the server's own words."""
    words = clean_text(tool.description or tool.title, MAX_DESCRIPTION_CHARS).strip()
    return f"[described by the MCP server {server}] {words}" if words else f"[of the MCP server {server}]"


@dataclass(frozen=True, slots=True)
class Declarations:
    """The user's declarations about a server's tools: `tools` by name or pattern, `common` for the others.

    `include` has the names or patterns of the tools to offer, None for all. Without `trust_annotations`, the
    server's annotations only add caution.
    """

    server: str
    common: McpTool
    tools: Mapping[str, McpTool]
    include: tuple[str, ...] | None = None
    trust_annotations: bool = False

    def of(self, own: str) -> McpTool:
        """Return the declarations about a tool: by its name, by the first matching pattern, or `common`."""
        if not self.tools:
            return self.common
        matching = (one for pattern, one in self.tools.items() if fnmatchcase(own, pattern))
        return self.tools.get(own) or next(matching, self.common)

    def included(self, names: Iterable[str]) -> list[str]:
        """Return the *names* that are offered."""
        patterns = self.include
        return [name for name in names if patterns is None or any(fnmatchcase(name, one) for one in patterns)]

    def side_effect(self, tool: AdvertisedTool) -> SideEffect:
        """Return a tool's side effect: as declared, else the broadest unless its annotations are trusted."""
        if (declared := self.of(tool.name).side_effect) is not None:
            return SideEffect(declared)
        reads = self.trust_annotations and tool.annotations.get("readOnlyHint") is True
        return SideEffect.READ if reads else SideEffect.EXTERNAL_SYSTEM

    def limit_s(self, tool: str | None = None) -> float:
        """Return the time limit of a request, or of a call of *tool*, in seconds."""
        declared = self.common if tool is None else self.of(tool)
        return declared.timeout_ms / 1000 if declared.timeout_ms else DEFAULT_TIMEOUT_S

    def manifest(self, own: str, name: str, description: str, side_effect: SideEffect) -> ToolManifest:
        """Return the manifest of the server's tool *own* under its *name* here."""
        return ToolManifest(
            id=f"mcp:{self.server}/{own}",
            name=name,
            description=description,
            side_effect=side_effect,
            availability=ToolAvailability(self.of(own).availability or "showcased"),
        )

    def capability(self, name: str, tool: AdvertisedTool) -> Capability:
        """Return the contract of an advertised tool under its *name* here."""
        hints: Mapping[str, Any] = tool.annotations
        declared = self.of(tool.name)
        idempotent, approval = declared.idempotent, declared.approval
        if idempotent is None and declared.side_effect is None:
            repeatable = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
            idempotent = self.trust_annotations and repeatable
        if approval is None:
            approval = "manual" if hints.get("destructiveHint") is True else "none"
        return Capability(
            name=name,
            description=described(self.server, tool),
            input_schema=clean_schema(tool.input_schema),
            output_schema=clean_schema(tool.output_schema or {}),
            side_effect=self.side_effect(tool),
            limits=CapabilityLimits(timeout_ms=declared.timeout_ms),
            approval_policy=approval,
            idempotent=idempotent,
        )
