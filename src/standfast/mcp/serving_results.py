"""Conversion of Standfast's values and errors into MCP tool results."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import msgspec


def tool_result(value: Any) -> types.CallToolResult:
    """Convert a value into a tool result: text, and for an object also structured content."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(
        content=content, structured_content=value if isinstance(value, dict) else None
    )


def failed_result(error: Any) -> types.CallToolResult:
    """Convert an error into a tool result that the client's model reads."""
    hint = f" ({error.hint})" if error.hint else ""
    content: list[types.ContentBlock] = [
        types.TextContent(type="text", text=f"{error.code}: {error.message}{hint}")
    ]
    return types.CallToolResult(content=content, is_error=True)
