"""Conversion of MCP call results into Standfast values.

A result with structured content is that content, and the model reads its other content beside it; any other
result is its text. Media becomes attachments of the call's result: the model sees images and the other types
in `shown`; for the rest it reads the type and size.

Rules
-----
1. A server's text is a tool's result and nothing more.
2. Text that only repeats the structured content, as MCP recommends, is dropped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import Code, McpServerFailed, ServiceUnavailable, ToolError
from standfast.model.canonical import Json, encode_sorted, nested_deeper_than
from standfast.tools.context import RunContext, cut_texts

if TYPE_CHECKING:
    import mcp_types as types

MAX_MEDIA_BYTES: Final = 16 << 20
_MAX_DEPTH: Final = 128
"""A call whose structured content is nested deeper fails."""
IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The image types that every provider's models accept."""


def result_value(
    server: str, result: types.CallToolResult, context: RunContext[Any], shown: Collection[str] = IMAGE_TYPES
) -> Json:
    """Return the value of a result; raise `ToolError` with the server's text if the call failed."""
    texts = [content_text(server, block, context, shown) for block in result.content]
    structured: Json = result.structured_content
    if result.is_error:
        said = texts if any(texts) or structured is None else [_key(structured).decode()]
        text = "\n".join(cut_texts(said))
        raise ToolError(Code.TOOL_ERROR, text or f"the MCP server {server} reports a failure without a text")
    if structured is None:
        return "\n".join(texts)
    if not nested_deeper_than(structured, _MAX_DEPTH):
        with suppress(ServiceUnavailable):  # without a turn, no model reads the result
            for text in _not_repeated(texts, structured):
                context.attachments.add_text(text)
    return structured


def _not_repeated(texts: Iterable[str], structured: Json) -> Iterator[str]:
    """Yield the texts that do not repeat the structured content, one of its fields or an item of one.

    Python's SDK wraps a value that is not an object in the field `result`, and writes each item of a list as
    a separate text.
    """
    known: set[bytes] | None = None
    for text in texts:
        read: Json = text
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            read = msgspec.json.decode(text)
        if not text.strip() or read == structured:
            continue
        if known is None:
            fields = list(structured.values()) if isinstance(structured, dict) else []
            items = (item for field in fields if isinstance(field, list) for item in field)
            known = {_key(one) for one in chain(fields, items)}
        if _key(read) not in known and _key(text) not in known:
            yield text


def _key(value: Json) -> bytes:
    """Return the canonical JSON of a part of a result, for comparison; b"" if it has none."""
    with suppress(UnicodeError, RecursionError, TypeError, OverflowError):
        return encode_sorted(value)
    return b""


def content_text(
    server: str, block: Any, context: RunContext[Any], shown: Collection[str] = IMAGE_TYPES
) -> str:
    """Return the text of one content block, storing its media as an attachment."""
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return _kept(server, block.data, block.mime_type, block.type, context, shown)
        case "resource_link":
            return f"[resource {block.uri}: {block.name}]"
        case _:
            return resource_text(server, block.resource, context, shown)


def resource_text(
    server: str, resource: Any, context: RunContext[Any], shown: Collection[str] = IMAGE_TYPES
) -> str:
    """Return the text of a resource, or store its bytes as an attachment."""
    if hasattr(resource, "text"):
        return str(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    return _kept(server, resource.blob, media_type, str(resource.uri), context, shown)


def decoded(server: str, data: str) -> bytes:
    """Decode base64 media; raise `McpServerFailed` if it is invalid or too large."""
    if len(data) > MAX_MEDIA_BYTES * 4 // 3 + 4:
        raise McpServerFailed(server, f"sent media of more than {MAX_MEDIA_BYTES} bytes")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise McpServerFailed(server, "sent media that is not base64") from None


def _kept(
    server: str, data: str, media_type: str, name: str, context: RunContext[Any], shown: Collection[str]
) -> str:
    content, kind = decoded(server, data), media_type.partition(";")[0].strip().lower()[:100]
    is_shown = kind in shown
    try:
        context.attachments.keep(content, media_type=kind, name=name[:200], shown=is_shown)
    except ServiceUnavailable:
        return f"[{name}: {kind}, {len(content)} bytes]"
    return f"[{name}: {kind}, {len(content)} bytes, attached{' below' if is_shown else ''}]"
