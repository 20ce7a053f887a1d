"""Helpers for tests of plugins in sessions: an obedient model, small plugins, sources."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from standfast import Plugin, RunContext, Session, action, hook, tool
from standfast.model.capability import ToolAvailability, ToolManifest
from standfast.model.message import RequestedCall, ToolMessage, UserMessage, text_of
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.plugins.contexts import ToolCatalogContext
from standfast.plugins.session_context import SessionContext
from standfast.plugins.snapshot import SnapshotReader, SnapshotWriter
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded
from standfast.tools.decorator import as_registered
from standfast.tools.registered_tool import RegisteredTool


class ObedientModel:
    """A model that makes the calls in the user's text ("call put look:{"key": 1}"), and else says "ok"."""

    def __init__(self, model_id: str = "obedient:one") -> None:
        self.model_id = model_id
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        last = request.messages[-1]
        words = text_of(last.content).split() if isinstance(last, UserMessage) else [""]
        wanted = words[1:] if words[0] == "call" else []
        yield ReplyEnded(text="" if wanted else "ok", calls=tuple(map(_requested, wanted)))

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    @property
    def offered(self) -> list[str]:
        """Return the names of the tools in the last request."""
        return [one.name for one in self.requests[-1].tools]

    @property
    def prompts(self) -> list[str]:
        return [one.instructions for one in self.requests]


def _requested(word: str) -> RequestedCall:
    name, _, arguments = word.partition(":")
    return RequestedCall(name=name, arguments=arguments or "{}")


# Plugins


class Counter(Plugin):
    """A plugin that durably counts the calls of its tool."""

    @tool(side_effect="write")
    async def bump(self) -> int:
        """Increment the counter."""
        self.state = self.number + 1
        return self.number

    @property
    def number(self) -> int:
        return self.state if isinstance(self.state, int) else 0

    @action(kind="command")
    async def add(self, ctx: Any, args: int) -> int:
        """Add a number to the counter."""
        self.state = self.number + args
        return self.number

    @action
    async def count(self, ctx: Any) -> int:
        """Return the count."""
        return self.number


class Album(Plugin):
    """A plugin that keeps large blobs under names."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}

    @tool(side_effect="write")
    async def paste(self, ctx: RunContext[None], name: str = "page", size: int = 5) -> str:
        """Keep a page."""
        self.pages[name] = name.encode() * size
        self.touch()
        return name

    @action
    async def look(self, ctx: Any) -> dict[str, str]:
        """Return the pages."""
        return {name: data.decode() for name, data in self.pages.items()}

    def snapshot(self, writer: SnapshotWriter) -> PluginSnapshotMeta:
        for name, data in self.pages.items():
            writer.write_blob(name, data)
        return PluginSnapshotMeta(
            plugin_id=self.id, plugin_version=self.version, revision=self.revision, state=sorted(self.pages)
        )

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        names = meta.state if isinstance(meta.state, list) else []
        self.pages = {str(name): _found(reader, str(name)) for name in names}
        self.revision = meta.revision


def _found(reader: SnapshotReader, name: str) -> bytes:
    data = reader.read_blob(name)
    assert data is not None, f"{name} is gone"
    return data


class Builds(Plugin):
    """A plugin that logs the tools from which each catalog is built."""

    def __init__(self, heard: list[ToolCatalogContext]) -> None:
        self._heard = heard

    def __deepcopy__(self, memo: Any) -> Builds:
        return Builds(self._heard)

    @hook
    def tool_catalog(self, ctx: ToolCatalogContext) -> None:
        self._heard.append(ctx)


# Tools


def named_tool(name: str, answer: object = None) -> RegisteredTool:
    """Return a tool with this name and this answer."""

    async def function() -> Any:
        return name if answer is None else answer

    function.__name__ = name
    function.__doc__ = f"The tool {name}."
    return as_registered(tool(side_effect="read")(function))


class Source:
    """A provider that counts its requests."""

    def __init__(
        self,
        *names: str,
        prefix: str = "",
        answer: object = None,
        availability: ToolAvailability = ToolAvailability.SHOWCASED,
    ) -> None:
        self.tools = {name: named_tool(name, answer) for name in names}
        self.prefix = prefix
        self.availability = availability
        self.listed = 0
        self.resolved: list[str] = []

    def manifests(self) -> Sequence[ToolManifest]:
        self.listed += 1
        return [
            ToolManifest(
                id=f"{self.prefix}{name}",
                name=name,
                side_effect=one.capability.side_effect,
                availability=self.availability,
            )
            for name, one in self.tools.items()
        ]

    def resolve(self, name: str) -> RegisteredTool | None:
        self.resolved.append(name)
        return self.tools.get(name)


# Readers


async def context_of(session: Session[Any]) -> SessionContext:
    """Return the session's plugins, tools and prompt."""
    return await session._live.context()


async def call(session: Session[Any], *names: str) -> list[ToolMessage]:
    """Let the model call these tools, and return the results."""
    done = await session.turn(f"call {' '.join(names)}")
    return [one for one in done.messages if isinstance(one, ToolMessage)]


async def count(session: Session[Any]) -> Any:
    """Return the value of the session's counter."""
    return await session.plugins.invoke("counter.count")
