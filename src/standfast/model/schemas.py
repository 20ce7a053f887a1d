"""JSON Schema (2020-12) of every public value, one self-contained document each.

`python -m standfast.model.schemas docs/reference/schema` writes them as files.
Rule: the schemas are made from the types; nobody edits the files by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.errors import ErrorObject, Span
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.capability import (
    ApprovalPolicy,
    CallStatus,
    Capability,
    ExternalCallRecord,
    SessionToolAccess,
    SideEffect,
    ToolAvailability,
    ToolCallContext,
    ToolManifest,
    ToolState,
    ToolStateEntry,
)
from standfast.model.cell import CallMade, CellReport
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.directive import PluginDirective, RuntimeEvent, SessionRequest
from standfast.model.events import Event
from standfast.model.host_requests import (
    AppendSessionNodesRequest,
    AppendSessionNodesResult,
    AssembledTurn,
    DirectCompletion,
    DirectRequest,
    SessionCreateRequest,
    SessionHandle,
    SessionSnapshot,
    SessionStart,
    TurnInput,
)
from standfast.model.language import Language
from standfast.model.limits import CapabilityLimits, SessionLimits, Usage, UsageEntry, UsageLimits
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InjectedTurnInput,
    InputPart,
    Message,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.model.monitor import (
    MonitorSnapshot,
    MonitorSpec,
    MonitorState,
    MonitorStatus,
    MonitorUpdate,
    MonitorUpdateBatch,
    WakePolicy,
)
from standfast.model.outcome import Outcome, StopReason
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import (
    PluginSessionSnapshot,
    PluginSnapshotEntry,
    PluginSnapshotMeta,
    ProtocolTurnOptions,
    SessionState,
)
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.model.ruling import CallRuling, Ruling
from standfast.model.run import Metrics, RunRequest, RunResult, RunStatus
from standfast.model.session import (
    CurrentTurn,
    Segment,
    SessionCharter,
    SessionHead,
    SessionIdField,
    SessionInfo,
    SessionMeta,
    SessionPolicy,
    TurnRecord,
    TurnState,
    TurnSummary,
)
from standfast.model.task import TaskKind, TaskRecord, TaskSpec, TaskState
from standfast.model.trace_record import TraceRecord
from standfast.model.trigger import Occurrence, Schedule, Trigger
from standfast.model.wait import Wait, WaitOutcome

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF_TEMPLATE: Final = "#/$defs/{name}"

PUBLIC_VALUES: Final[dict[str, Any]] = {
    "AppendSessionNodesRequest": AppendSessionNodesRequest,
    "AppendSessionNodesResult": AppendSessionNodesResult,
    "Approval": Approval,
    "ApprovalPolicy": ApprovalPolicy,
    "ApprovalState": ApprovalState,
    "AssembledTurn": AssembledTurn,
    "AssistantMessage": AssistantMessage,
    "AttachmentPart": AttachmentPart,
    "CallMade": CallMade,
    "CallRuling": CallRuling,
    "CallStatus": CallStatus,
    "Capability": Capability,
    "CapabilityLimits": CapabilityLimits,
    "CellReport": CellReport,
    "CurrentTurn": CurrentTurn,
    "Decision": Decision,
    "Diagnostic": Diagnostic,
    "DirectCompletion": DirectCompletion,
    "DirectRequest": DirectRequest,
    "ErrorObject": ErrorObject,
    "Event": Event,
    "ExternalCallRecord": ExternalCallRecord,
    "InjectedTurnInput": InjectedTurnInput,
    "InputPart": InputPart,
    "Language": Language,
    "Message": Message,
    "Metrics": Metrics,
    "MonitorSnapshot": MonitorSnapshot,
    "MonitorSpec": MonitorSpec,
    "MonitorState": MonitorState,
    "MonitorStatus": MonitorStatus,
    "MonitorUpdate": MonitorUpdate,
    "MonitorUpdateBatch": MonitorUpdateBatch,
    "Occurrence": Occurrence,
    "Outcome": Outcome,
    "PluginDirective": PluginDirective,
    "PluginOptions": PluginOptions,
    "PluginSessionSnapshot": PluginSessionSnapshot,
    "PluginSnapshotEntry": PluginSnapshotEntry,
    "PluginSnapshotMeta": PluginSnapshotMeta,
    "PromptContribution": PromptContribution,
    "PromptLayer": PromptLayer,
    "PromptSlot": PromptSlot,
    "ProtocolTurnOptions": ProtocolTurnOptions,
    "Ruling": Ruling,
    "RunRequest": RunRequest,
    "RunResult": RunResult,
    "RunStatus": RunStatus,
    "RuntimeEvent": RuntimeEvent,
    "Schedule": Schedule,
    "Segment": Segment,
    "SessionCharter": SessionCharter,
    "SessionCreateRequest": SessionCreateRequest,
    "SessionHandle": SessionHandle,
    "SessionHead": SessionHead,
    "SessionId": SessionIdField,
    "SessionInfo": SessionInfo,
    "SessionLimits": SessionLimits,
    "SessionMeta": SessionMeta,
    "SessionPolicy": SessionPolicy,
    "SessionRequest": SessionRequest,
    "SessionSnapshot": SessionSnapshot,
    "SessionStart": SessionStart,
    "SessionState": SessionState,
    "SessionToolAccess": SessionToolAccess,
    "Severity": Severity,
    "SideEffect": SideEffect,
    "Span": Span,
    "StopReason": StopReason,
    "TaskKind": TaskKind,
    "TaskRecord": TaskRecord,
    "TaskSpec": TaskSpec,
    "TaskState": TaskState,
    "TextPart": TextPart,
    "ToolAvailability": ToolAvailability,
    "ToolCall": ToolCall,
    "ToolCallContext": ToolCallContext,
    "ToolManifest": ToolManifest,
    "ToolMessage": ToolMessage,
    "ToolState": ToolState,
    "ToolStateEntry": ToolStateEntry,
    "TraceRecord": TraceRecord,
    "Trigger": Trigger,
    "TurnInput": TurnInput,
    "TurnRecord": TurnRecord,
    "TurnState": TurnState,
    "TurnSummary": TurnSummary,
    "Usage": Usage,
    "UsageEntry": UsageEntry,
    "UsageLimits": UsageLimits,
    "UserMessage": UserMessage,
    "Wait": Wait,
    "WaitOutcome": WaitOutcome,
    "WakePolicy": WakePolicy,
}
"""Name → the type that encodes and decodes it."""


def schema_of(name: str) -> dict[str, Any]:
    """The schema of one public value, with every definition that it refers to."""
    (root,), components = msgspec.json.schema_components((PUBLIC_VALUES[name],), ref_template=_REF_TEMPLATE)
    if root.get("$ref") == _REF_TEMPLATE.format(name=name) and not _refers_to_itself(name, components):
        root = components.pop(name)
    document = {"$schema": DIALECT, "$id": f"standfast:{file_stem(name)}", **root, "title": name}
    whole: dict[str, Any] = _tidy({**document, "$defs": components} if components else document)
    return whole


def all_schemas() -> dict[str, dict[str, Any]]:
    """Schema by file name."""
    return {f"{file_stem(name)}.json": schema_of(name) for name in PUBLIC_VALUES}


def file_stem(name: str) -> str:
    """`RunResult` → `run_result`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def render(schema: dict[str, Any]) -> str:
    """A schema as the text of its file."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas(directory: Path) -> None:
    """Write every schema into *directory* and remove those of values that are gone."""
    directory.mkdir(parents=True, exist_ok=True)
    schemas = all_schemas()
    for stale in set(directory.glob("*.json")) - {directory / name for name in schemas}:
        stale.unlink()
    for name, schema in schemas.items():
        (directory / name).write_text(render(schema), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m standfast.model.schemas DIRECTORY\n")
        return 2
    write_schemas(Path(arguments[0]))
    return 0


def _tidy(schema: Any) -> Any:
    """The schema with descriptions as every Python reads docstrings: without the code's indentation."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(text := schema.get("description"), str):
        tidy["description"] = cleandoc(text)
    return tidy


def _refers_to_itself(name: str, components: dict[str, Any]) -> bool:
    return f'"{_REF_TEMPLATE.format(name=name)}"' in json.dumps(components)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
