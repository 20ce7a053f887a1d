"""JSON Schema (2020-12) of every public value, one self-contained document each.

`python -m standfast.model.schemas docs/reference/schema` writes them as files.
Rule: the schemas are generated from the types; never edit the files by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.model.session import SessionIdField

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF_TEMPLATE: Final = "#/$defs/{name}"

_BY_MODULE: Final = {
    "model.approval": "Approval ApprovalState Decision",
    "model.capability": "ApprovalPolicy CallStatus Capability ExternalCallRecord SessionToolAccess SideEffect"
    " ToolAvailability ToolCallContext ToolManifest ToolState ToolStateEntry",
    "model.code": "CallMade CellReport Diagnostic Language Severity",
    "model.directive": "PluginDirective RuntimeEvent SessionRequest",
    "errors": "ErrorObject Span",
    "model.events": "Event",
    "model.grant": "Grant",
    "model.host_requests": "AppendSessionNodesRequest AppendSessionNodesResult AssembledTurn DirectCompletion"
    " DirectRequest SessionCreateRequest SessionHandle SessionSnapshot SessionStart TurnInput",
    "model.journal": "EditedCall JournalEdit JournalStep",
    "model.limits": "CapabilityLimits SessionLimits Usage UsageEntry UsageLimits",
    "model.message": "AssistantMessage AttachmentPart InjectedTurnInput InputPart Message RequestedCall"
    " TextPart ToolCall ToolMessage UserMessage",
    "model.monitor": "MonitorSnapshot MonitorSpec MonitorState MonitorStatus MonitorUpdate MonitorUpdateBatch"
    " WakePolicy",
    "model.outcome": "Outcome StopReason Wait WaitOutcome",
    "model.plugin_options": "PluginOptions",
    "model.plugin_state": "PluginSessionSnapshot PluginSnapshotEntry PluginSnapshotMeta ProtocolTurnOptions"
    " SessionState",
    "model.prompt": "PromptContribution PromptLayer PromptSlot",
    "model.ruling": "CallRuling Ruling",
    "model.run": "Metrics RunRequest RunResult RunStatus",
    "model.session": "CurrentTurn Segment SessionCharter SessionHead SessionInfo SessionMeta SessionPolicy"
    " TurnRecord TurnState TurnSummary",
    "model.task": "TaskKind TaskRecord TaskSpec TaskState",
    "model.trace_record": "TraceRecord",
    "model.trigger": "Occurrence Schedule Trigger",
}
PUBLIC_VALUES: Final[dict[str, Any]] = {
    "SessionId": SessionIdField,
    **{
        name: getattr(import_module(f"standfast.{module}"), name)
        for module, names in _BY_MODULE.items()
        for name in names.split()
    },
}
"""The type of each public value, by name."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the schema of one public value, with every definition that it refers to."""
    (root,), components = msgspec.json.schema_components((PUBLIC_VALUES[name],), ref_template=_REF_TEMPLATE)
    reference = _REF_TEMPLATE.format(name=name)
    if root.get("$ref") == reference and f'"{reference}"' not in json.dumps(components):
        root = components.pop(name)
    document = {"$schema": DIALECT, "$id": f"standfast:{file_stem(name)}", **root, "title": name}
    whole: dict[str, Any] = _tidy({**document, "$defs": components} if components else document)
    return whole


def all_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by file name."""
    return {f"{file_stem(name)}.json": schema_of(name) for name in PUBLIC_VALUES}


def file_stem(name: str) -> str:
    """Convert a type name to a file stem: `RunResult` → `run_result`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def render(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
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
    """Return the schema with its descriptions dedented, as every Python version reads docstrings."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(text := schema.get("description"), str):
        tidy["description"] = cleandoc(text)
    return tidy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
