"""Helpers for plugin tests: sessions without a runtime, a model that uses a tool, a log of reports."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

from standfast.errors import ErrorObject
from standfast.model.limits import Usage
from standfast.model.message import ToolMessage, UserMessage
from standfast.model.trace_record import TraceRecord
from standfast.plugins.contexts import (
    AssistantResponseHookContext,
    AssistantStreamHookContext,
    CheckpointHookContext,
    CompactionContext,
    PluginExtensions,
    PromptHookContext,
    ToolCallHookContext,
    ToolResultHookContext,
    ToolResultProjectionContext,
    TurnHookContext,
    TurnResultHookContext,
    TurnTransformContext,
)
from standfast.plugins.running import HookRunner
from standfast.plugins.session import PluginHost, PluginSession, SessionBuild
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall, TextArrived
from standfast.protocols.standard.plugin import StandardProtocol
from standfast.tools.decorator import as_registered
from standfast.tools.registry import ToolRegistry


def label(value: object) -> str:
    """Return a parametrize id for a value that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]


class Ear:
    """A log of non-fatal failures and of traces."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, str]] = []
        self.records: list[TraceRecord] = []

    def report(self, plugin_id: str, hook: str, problem: str) -> None:
        self.reports.append((plugin_id, hook, problem))

    def record(self, record: TraceRecord, /) -> None:
        self.records.append(record)

    def named(self, name: str) -> list[TraceRecord]:
        return [one for one in self.records if one.name == name]


class PhaseLog:
    """A probe that logs the beginning and the end of each phase."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin_named(self, phase: str, /) -> None:
        self.lines.append(f"+{phase}")

    def end_named(self, phase: str, /) -> None:
        self.lines.append(f"-{phase}")


class NoStorage:
    """A storage that stores nothing."""

    async def put(self, scope: str, key: str, body: bytes | None) -> None:
        raise AssertionError("nothing is shelved here")

    async def get(self, scope: str, key: str) -> bytes | None:
        return None

    async def list(self, scope: str) -> list[tuple[str, bytes]]:
        return []


def host_of(
    *plugins: object,
    tools: Iterable[object] = (),
    runner: HookRunner | None = None,
    ear: Ear | None = None,
    protocol: object | None = None,
) -> PluginHost:
    """Return a host with these plugins and the given protocol, or the standard one."""
    return PluginHost(
        [protocol or StandardProtocol(), *plugins],
        ToolRegistry(as_registered(one) for one in tools),
        storage_of=lambda plugin_id: NoStorage(),
        report=(ear or Ear()).report,
        runner=runner,
    )


def session_of(*plugins: object, build: dict[str, Any] | None = None, **options: Any) -> PluginSession:
    """Return the plugin session of a session that no runtime knows."""
    given = {"session_id": "s", **(build or {})}
    return host_of(*plugins, **options).build_session(SessionBuild(**given))


class Actor:
    """A model that answers a user by calling `note`, if offered, and a tool result by saying "done"."""

    def __init__(self, tool: str = "note", **arguments: Any) -> None:
        self.model_id = "actor:one"
        self.requests: list[ModelRequest] = []
        self._tool = tool
        self._arguments = arguments or {"text": "hi"}

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.requests.append(request)
        last = request.messages[-1] if request.messages else None
        if isinstance(last, UserMessage) and any(tool.name == self._tool for tool in request.tools):
            call = RequestedCall(name=self._tool, arguments=json.dumps(self._arguments))
            yield ReplyEnded(text="", calls=(call,))
            return
        yield TextArrived("do")
        yield TextArrived("ne")
        yield ReplyEnded(text="done")

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Notes:
    """A log of the texts that the tool `note` has written."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def tool(self) -> Any:
        async def note(text: str) -> str:
            """Write a note."""
            self.written.append(text)
            return f"noted {text}"

        return note


def errors_of(messages: Iterable[object]) -> list[ErrorObject]:
    """Return the errors of the calls."""
    return [one.error for one in messages if isinstance(one, ToolMessage) and one.error is not None]


# Contexts for hooks that are called outside a turn


async def no_model(messages: Any, **options: Any) -> str:
    raise AssertionError("no model is asked here")


def _common() -> dict[str, Any]:
    return {"session_id": "s", "turn_id": "t", "extensions": PluginExtensions()}


def prompt_context() -> PromptHookContext:
    return PromptHookContext(**_common(), iteration=1)


def transform_context() -> TurnTransformContext:
    return TurnTransformContext(**_common(), turn_messages=1)


def compaction_context() -> CompactionContext:
    return CompactionContext(**_common(), messages=(), turn_messages=(), complete=no_model)


def turn_context() -> TurnHookContext:
    return TurnHookContext(**_common(), input=UserMessage(content="hi"), messages=(), complete=no_model)


def checkpoint_context() -> CheckpointHookContext:
    return CheckpointHookContext(
        **_common(), checkpoint="after_work", messages=(), usage=Usage(), complete=no_model
    )


def result_context(outcome: Any) -> TurnResultHookContext:
    return TurnResultHookContext(**_common(), outcome=outcome, messages=(), usage=Usage(), complete=no_model)


def call_context(**arguments: Any) -> ToolCallHookContext:
    return ToolCallHookContext(**_common(), call_id=1, tool_name="note", arguments=arguments)


class NoAttachments:
    """An attachment store that keeps nothing."""

    def keep(self, data: bytes, *, media_type: str, name: str | None = None, shown: bool = False) -> Any:
        raise AssertionError("nothing is kept here")

    def add_text(self, text: str) -> None:
        raise AssertionError("nothing is kept here")

    async def read(self, digest: str) -> bytes | None:
        return None


def tool_result_context(value: Any = None, error: ErrorObject | None = None) -> ToolResultHookContext:
    return ToolResultHookContext(
        **_common(),
        call_id=1,
        tool_name="note",
        arguments={},
        attachments=NoAttachments(),
        value=value,
        error=error,
    )


def projection_context(value: Any = None) -> ToolResultProjectionContext:
    return ToolResultProjectionContext(**_common(), call_id=1, tool_name="note", value=value)


def stream_context(chunk: str) -> AssistantStreamHookContext:
    return AssistantStreamHookContext(**_common(), chunk=chunk)


def response_context(text: str) -> AssistantResponseHookContext:
    return AssistantResponseHookContext(**_common(), response=ReplyEnded(text=text))
