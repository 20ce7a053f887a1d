"""Resources and prompts of an MCP server: histories, artefacts and traces of sessions; prompts of agents.

    standfast://sessions/ID                      the messages of a session
    standfast://sessions/ID/artifacts/DIGEST     a file that a turn received or produced
    standfast://sessions/ID/trace                the session's trace records, if the server keeps a trace

Rule: a session that is not the caller's does not exist for the caller.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp import MCPError

from standfast.errors import InvalidArgument, ServiceUnavailable, SessionNotFound, StandfastError
from standfast.mcp.callers import McpCaller, caller_of
from standfast.model.session import SessionHead
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.session_views import export_session
from standfast.trace.trace_reader import read_trace

SCHEME: Final = "standfast://sessions/"
PAGE: Final = 50
"""The number of sessions that one page of `resources/list` covers."""

_JSON: Final = "application/json"


class SessionResources:
    """The resources of sessions."""

    def __init__(self, runtime: Runtime, trace_file: str | None) -> None:
        self._runtime = runtime
        self._trace_file = trace_file

    async def list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        """Handle `resources/list`: return one page, most recently used sessions first."""
        caller = _reader(ctx)
        cursor = None if params is None else params.cursor
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise MCPError(types.INVALID_PARAMS, f"cursor {cursor[:80]!r} is not one of this list")
        heads = [head for head in await self._runtime.sessions() if caller.owns(head)]
        begin = int(cursor or 0)
        found: list[types.Resource] = []
        for head in heads[begin : begin + PAGE]:
            found += await self._of_session(head)
        further = str(begin + PAGE) if len(heads) > begin + PAGE else None
        return types.ListResourcesResult(resources=found, next_cursor=further)

    async def _of_session(self, head: SessionHead) -> list[types.Resource]:
        name, uri = str(head.session_id), f"{SCHEME}{head.session_id}"
        found = [types.Resource(uri=uri, name=name, mime_type=_JSON)]
        for part in (await export_session(self._runtime, name)).attachments:
            found.append(
                types.Resource(
                    uri=f"{uri}/artifacts/{part.digest}",
                    name=part.name or f"{name}: {part.digest[:8]}",
                    mime_type=part.media_type,
                    size=part.size,
                )
            )
        if self._trace_file is not None:
            found.append(types.Resource(uri=f"{uri}/trace", name=f"{name}: trace", mime_type=_JSON))
        return found

    async def templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        """Handle `resources/templates/list`."""
        _reader(ctx)
        kinds = {"{session}": "messages", "{session}/artifacts/{digest}": "artefact"}
        if self._trace_file is not None:
            kinds["{session}/trace"] = "trace"
        made = [
            types.ResourceTemplate(uri_template=SCHEME + pattern, name=f"{what} of a session")
            for pattern, what in kinds.items()
        ]
        return types.ListResourceTemplatesResult(resource_templates=made)

    async def read(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Handle `resources/read`."""
        caller, uri = _reader(ctx), str(params.uri)
        try:
            content = await self._content(caller, uri)
        except StandfastError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        return types.ReadResourceResult(contents=[content])

    async def _content(self, caller: McpCaller, uri: str) -> Any:
        session_id, *rest = uri.removeprefix(SCHEME).split("/")
        store, head = self._runtime.store, None
        if uri.startswith(SCHEME):  # sessions created by the runtime itself have no prefix
            head = await store.head(caller.own_id(session_id)) or await store.head(session_id)
        if head is None or not caller.owns(head):
            raise SessionNotFound(session_id)
        stored = head.session_id
        match rest:
            case []:
                messages = list(await self._runtime.session_handle(stored).messages())
                return _text(uri, msgspec.json.encode(messages))
            case ["trace"]:
                file = self._trace_file
                if file is None:
                    raise ServiceUnavailable("traces", "this server keeps none: start it with --trace FILE")
                records = await asyncio.to_thread(
                    lambda: [one for one in read_trace(file) if one.session_id == stored]
                )
                return _text(uri, msgspec.json.encode(records))
            case ["artifacts", digest]:
                exported = await export_session(self._runtime, stored)
                part = next((one for one in exported.attachments if one.digest == digest), None)
                if part is None:
                    raise InvalidArgument(f"session {session_id!r} has no artefact {digest[:80]!r}")
                data = await self._runtime.session_handle(stored).attachment(digest)
                if part.media_type.startswith("text/"):
                    with suppress(UnicodeDecodeError):
                        text = data.decode()
                        return types.TextResourceContents(uri=uri, mime_type=part.media_type, text=text)
                blob = base64.b64encode(data).decode()
                return types.BlobResourceContents(uri=uri, mime_type=part.media_type, blob=blob)
        raise InvalidArgument(f"there is no resource {uri[:200]!r}")


class AgentPrompts:
    """The prompts that agents define, as `AGENT.PROMPT`."""

    def __init__(self, agents: Sequence[AgentDefinition[Any, Any]]) -> None:
        self._prompts = {
            f"{agent.name}.{name}": (agent, template)
            for agent in agents
            for name, template in agent.prompts.items()
        }

    async def list_prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        """Handle `prompts/list`."""
        _reader(ctx)
        made = [
            types.Prompt(
                name=name,
                description=f"A prompt for the agent {agent.name}: {template.text[:300]}",
                arguments=[types.PromptArgument(name=one, required=True) for one in template.arguments],
            )
            for name, (agent, template) in self._prompts.items()
        ]
        return types.ListPromptsResult(prompts=made)

    async def get(self, ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        """Handle `prompts/get`: return the text with its placeholders filled in."""
        _reader(ctx)
        if params.name not in self._prompts:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name[:80]!r}")
        try:
            text = self._prompts[params.name][1].fill(params.arguments or {})
        except InvalidArgument as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        said = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(messages=[said])


def _reader(ctx: Any) -> McpCaller:
    caller = caller_of(ctx)
    try:
        caller.require("read")
    except StandfastError as error:
        raise MCPError(types.INVALID_REQUEST, error.message) from None
    return caller


def _text(uri: str, text: bytes) -> types.TextResourceContents:
    return types.TextResourceContents(uri=uri, mime_type=_JSON, text=text.decode())
