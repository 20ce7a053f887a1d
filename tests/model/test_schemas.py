"""The published JSON Schemas: the files accept exactly what the types accept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

import standfast
from standfast.errors import ErrorObject, Span
from standfast.model.approval import Approval, ApprovalState, Decision
from standfast.model.capability import (
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
    auto_approval,
)
from standfast.model.code import CallMade, CellReport, Diagnostic
from standfast.model.directive import RuntimeEvent, SessionRequest, ask_person
from standfast.model.events import WaitBegan
from standfast.model.frame import FrameSwitch
from standfast.model.grant import Grant
from standfast.model.host_requests import (
    AppendSessionNodesRequest,
    AssembledTurn,
    BranchIsStale,
    DirectCompletion,
    DirectRequest,
    FromSession,
    FromSnapshot,
    SessionCreateRequest,
    SessionHandle,
    SessionSnapshot,
    TurnInput,
)
from standfast.model.journal import EditedCall, JournalEdit, JournalStep
from standfast.model.limits import CapabilityLimits, SessionLimits, Usage, UsageEntry, UsageLimits
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InjectedTurnInput,
    InputPart,
    Reasoning,
    RequestedCall,
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
from standfast.model.outcome import Denied, Finished, StopReason, Wait, Waiting
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
from standfast.model.schemas import PUBLIC_VALUES, all_schemas, main, render, schema_of
from standfast.model.session import (
    CurrentTurn,
    Entry,
    FrameOpened,
    PluginNode,
    Segment,
    SessionCharter,
    SessionHead,
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

_FILES = Path(__file__).parents[2] / "docs" / "reference" / "schema"
_ERROR = ErrorObject(
    code="TOOL_ERROR", message="no", hint="ask", span=Span(line=1, column=2, end_line=1, end_column=5)
)
_RECORD = ExternalCallRecord(
    name="refund",
    side_effect=SideEffect.EXTERNAL_SYSTEM,
    duration_ms=3,
    status=CallStatus.ERROR,
    request_digest="ab" * 32,
    error=_ERROR,
)
_APPROVAL = Approval(
    approval_id="apr_1",
    state=ApprovalState.PENDING,
    session_id="s1",
    capability="refund",
    args=["A1", 500],
    kwargs={"note": None},
    requested_at=1,
    expires_at=2,
    binding="cd" * 32,
    run_id="run_1",
    call_id=0,
)
_USAGE = Usage(input=10, cache_read=3, output=5, reasoning=2, calls=1)
_CALL = ToolCall(call_id=1, name="refund", arguments={"cents": 5}, provider_id="call_7")
_USER = UserMessage(
    content=(
        TextPart(text="hi"),
        AttachmentPart(digest="ab", media_type="image/png", size=3),
        InputPart(name="rows", digest="cd", media_type="application/json", size=2),
    )
)
_NESTED = ToolCall(call_id=2, name="order", arguments={}, args=("A1", None), parent=1)
_INPUT = InputPart(name="log", digest="ab" * 32, media_type="text/plain", size=5 << 20)
_THOUGHT = Reasoning(origin="anthropic https://host m", text="Late, I think.", opaque={"signature": "ab"})
_ASSISTANT = AssistantMessage(
    text="I look.",
    tool_calls=(_CALL,),
    model="m",
    usage=_USAGE,
    stop_reason="end",
    raw="I look.\n```…```",
    reasoning=(_THOUGHT,),
    response_id="resp_1",
)
_MADE = CallMade(call_id=2, name="refund", arguments='"A1", cents=5', status=CallStatus.DENIED, error=_ERROR)
_WAIT = Wait(wait_id="apr_1", kind="approval", call_id=1, due_at=9, value={"contract": "ab"})
_SUMMARY = TurnSummary(outcome=Waiting(waits=(_WAIT,)), usage=_USAGE, calls=(_RECORD,))
_TOOL = ToolStateEntry(name="refund", source="mcp:shop", availability=ToolAvailability.OFF, member=False)
_LINE = UsageEntry(source="turn", model="m", usage=_USAGE)
_META = PluginSnapshotMeta(plugin_id="plan", plugin_version="1", revision=3, state={"items": []})
_SNAPSHOT = PluginSessionSnapshot(
    plugins={"plan": PluginSnapshotEntry(meta=_META, artifacts={"index": "ab" * 32})}
)
_RULING = Ruling(
    messages=(_USER,),
    events=(PluginNode(plugin_id="plan", kind="plan_updated", body=[1]),),
    usage=(_LINE,),
    model_calls=1,
)
_CHARTER = SessionCharter(
    parent_session_id="s1",
    depth=1,
    task="look it up",
    subagent=True,
    tool_access=SessionToolAccess(tools=("order",)),
    plugin_options=PluginOptions(plugins={"plan": {}}),
    policy=SessionPolicy(model="m"),
)
_HEAD = SessionHead(
    session_id="s2", created_at=1, updated_at=2, leaf="t_1.1", usage=(_LINE,), charter=_CHARTER
)
_SESSION = SessionSnapshot(head=_HEAD, messages=(_USER, _ASSISTANT), state=SessionState(plugins=_SNAPSHOT))
_MONITOR = MonitorSpec(
    id="watch:log",
    command=("tail", "-f", "log"),
    env={"LANG": "C"},
    wake=WakePolicy.QUEUE_TURN,
    arm="session_start",
    restart=True,
)
_STATUS = MonitorStatus(spec=_MONITOR, state=MonitorState.TIMED_OUT, exit_code=-9, pending=3, error=_ERROR)
_UPDATE = MonitorUpdate(monitor_id="watch:log", seq=1, at_ms=2, kind="notice", text="no such file")
_CONTRIBUTION = PromptContribution(content="Be brief.", slot=PromptSlot.INTRO, priority=-1)
_EXAMPLES: dict[str, Any] = {
    "AppendSessionNodesRequest": AppendSessionNodesRequest(nodes=(_USER,), requires_ancestor_node_id="t_1.1"),
    "AppendSessionNodesResult": BranchIsStale(current_leaf_node_id="t_2.1"),
    "AssembledTurn": AssembledTurn(
        turn_id="t_1", session_id="s2", outcome=Finished(text="ok"), text="ok", messages=(_USER, _ASSISTANT)
    ),
    "DirectCompletion": DirectCompletion(text="ok", usage=_USAGE),
    "DirectRequest": DirectRequest(prompt=(_USER,), output_schema={"type": "object"}, model="m"),
    "MonitorSnapshot": MonitorSnapshot(monitors=(_STATUS,)),
    "MonitorSpec": _MONITOR,
    "MonitorState": MonitorState.ARMED,
    "MonitorStatus": _STATUS,
    "MonitorUpdate": _UPDATE,
    "MonitorUpdateBatch": MonitorUpdateBatch(updates=(_UPDATE,), lost=2),
    "Occurrence": Occurrence(source="git/push", key="c0ffee", at_ms=1, payload={"ref": ["main", None]}),
    "Schedule": Schedule(cron="0 3 * * *", timezone="Europe/Berlin", catch_up="skip"),
    "SessionCharter": _CHARTER,
    "SessionCreateRequest": SessionCreateRequest(
        session_id="s2",
        start=FromSession("s1", at="t_1.1"),
        plugins="inherited",
        tool_access=SessionToolAccess(tools=("order",)),
        first_turn_input=_USER,
    ),
    "SessionHandle": SessionHandle(session_id="s2", parent_session_id="s1", depth=1),
    "SessionSnapshot": _SESSION,
    "SessionStart": FromSnapshot(_SESSION),
    "TaskKind": TaskKind.SUBAGENT,
    "TaskRecord": TaskRecord(
        session_id="s1",
        id="build.1",
        kind=TaskKind.OTHER,
        state=TaskState.FAILED,
        created_at=1,
        updated_at=2,
        body={"any": [1]},
        error=_ERROR,
    ),
    "TaskSpec": TaskSpec(id="build.1", label="the build", body=[1, None]),
    "TaskState": TaskState.CANCEL_REQUESTED,
    "Trigger": Trigger(
        name="hourly", source="clock", session_id="s1", schedule=Schedule(every_ms=3_600_000), next_at=5
    ),
    "TurnInput": TurnInput(message=_USER, limits=UsageLimits(), idempotency_key="k"),
    "WakePolicy": WakePolicy.NOTIFY,
    "CallMade": _MADE,
    "CellReport": CellReport(
        index=3,
        stdout="seen\n",
        stderr="warned\n",
        result={"any": [1, None]},
        error=_ERROR,
        diagnostics=(Diagnostic.error(_ERROR),),
        calls=(_MADE, CallMade(call_id=3, name="order")),
        notes=("the variables are as they were before this cell",),
        truncated=True,
        finished=True,
    ),
    "CurrentTurn": CurrentTurn(turn_id="t_1", state="waiting", messages=(_USER, _ASSISTANT), waits=(_WAIT,)),
    "InputPart": _INPUT,
    "CallRuling": CallRuling(arguments={"cents": 5}, settled=True, error=_ERROR),
    "PluginDirective": ask_person("it is a large sum"),
    "PluginOptions": PluginOptions(plugins={"plan": {"max_items": 5}}),
    "PluginSessionSnapshot": _SNAPSHOT,
    "PluginSnapshotEntry": _SNAPSHOT.plugins["plan"],
    "PluginSnapshotMeta": _META,
    "PromptContribution": _CONTRIBUTION,
    "PromptLayer": PromptLayer(
        contributions=(_CONTRIBUTION,), replaces=frozenset({PromptSlot.INTRO, PromptSlot.ENVIRONMENT})
    ),
    "PromptSlot": PromptSlot.RUNTIME_CONTEXT,
    "ProtocolTurnOptions": ProtocolTurnOptions(schema_version=2, payload={"language": "python"}),
    "Ruling": _RULING,
    "RuntimeEvent": RuntimeEvent(kind="plan_updated", body={"items": []}),
    "SessionPolicy": SessionPolicy(model="m", instructions="Be brief.", settings={"temperature": 0}),
    "SessionRequest": SessionRequest(session_id="s2", first_input=_USER, agent="clerk"),
    "SessionState": SessionState(
        plugins=_SNAPSHOT,
        tools=ToolState(generation=7, tools={"shop:refund": _TOOL}),
        protocol_options=ProtocolTurnOptions(),
        frame_options={"f_1": ProtocolTurnOptions(payload=[1])},
        execution=PluginSnapshotEntry(meta=_META, artifacts={"execution": "ab" * 32}),
    ),
    "TraceRecord": TraceRecord(
        at_ms=4,
        name="before_turn",
        kind="hook",
        session_id="s1",
        turn_id="t_1",
        span_id="ab" * 8,
        parent_id="cd" * 8,
        started_at_ms=3,
        duration_ms=0.5,
        status="error",
        plugin_id="plan",
        body={"error": "no"},
    ),
    "AssistantMessage": _ASSISTANT,
    "AttachmentPart": AttachmentPart(digest="ab" * 32, media_type="image/png", size=3, name="x.png"),
    "Event": WaitBegan(turn_id="t_1", wait=_WAIT),
    "InjectedTurnInput": InjectedTurnInput(message=_USER, id="in_1"),
    "Message": ToolMessage(call_id=1, name="refund", error=_ERROR, record=_RECORD),
    "Outcome": Finished(text="ok", value=[1]),
    "Segment": Segment(
        segment_id="t_1",
        session_id="s1",
        parent=None,
        caused_by="t_1",
        depth=0,
        frame="f_1",
        entries=(
            Entry(at_ms=1, payload=_USER),
            Entry(at_ms=2, payload=FrameOpened(switch=FrameSwitch(frame_id="f_1", seed=(_USER,)))),
        ),
        opens_frame=True,
    ),
    "SessionHead": _HEAD,
    "StopReason": StopReason.NO_PROGRESS,
    "RequestedCall": RequestedCall(name="refund", arguments='{"cents": 5}', provider_id="call_7"),
    "TextPart": TextPart(text="hi"),
    "ToolCall": _NESTED,
    "ToolMessage": ToolMessage(
        call_id=1, name="run_code", value={"index": 0}, record=_RECORD, shown="[cell 0] ok"
    ),
    "TurnRecord": TurnRecord(
        turn_id="t_1", session_id="s1", state=TurnState.WAITING, created_at=1, summary=_SUMMARY
    ),
    "TurnState": TurnState.ENDED,
    "TurnSummary": _SUMMARY,
    "Usage": _USAGE,
    "UsageEntry": _LINE,
    "UsageLimits": UsageLimits(max_tokens=1000),
    "UserMessage": _USER,
    "Wait": _WAIT,
    "WaitOutcome": Denied(reason="too much"),
    "Approval": _APPROVAL,
    "EditedCall": EditedCall(name="refund", arguments={"cents": 5}),
    "JournalEdit": JournalEdit(text="no", calls=(EditedCall(name="refund"),)),
    "JournalStep": JournalStep(
        number=1,
        at_ms=1,
        input={"type": "turn_started"},
        commands=({"command": "call_model"},),
        phase="model",
    ),
    "Grant": Grant(
        grant_id="grt_1",
        capability="refund",
        given_by="ada",
        given_at=1,
        expires_at=2,
        rule="args[1] <= 5",
        agent="clerk",
    ),
    "ApprovalPolicy": auto_approval("kwargs['cents'] < 100"),
    "ApprovalState": ApprovalState.EXPIRED,
    "CallStatus": CallStatus.DENIED,
    "Capability": Capability(
        name="refund", description="Pay back.", approval_policy="manual", side_effect=SideEffect.WRITE
    ),
    "CapabilityLimits": CapabilityLimits(rate_per_min=3),
    "Decision": Decision(approved=True, args=["A1", 1]),
    "Diagnostic": Diagnostic.error(_ERROR),
    "ErrorObject": _ERROR,
    "ExternalCallRecord": _RECORD,
    "Language": "python",
    "Metrics": Metrics(duration_ms=1, memory_peak_bytes=2, external_calls_count=1),
    "RunRequest": RunRequest(code="1 + 1", inputs={"x": [1, {"y": None}]}, limits=SessionLimits()),
    "RunResult": RunResult(
        status=RunStatus.RUNTIME_ERROR,
        result={"any": ["value", 1.5, None]},
        diagnostics=[Diagnostic.error(_ERROR)],
        external_calls=[_RECORD],
        snapshot_id="snap_1",
        error=_ERROR,
    ),
    "RunStatus": RunStatus.WAITING_FOR_APPROVAL,
    "SessionId": "support-42",
    "SessionInfo": SessionInfo(meta=SessionMeta(id="s1"), approvals=["apr_1"]),
    "SessionLimits": SessionLimits(memory_mb=32),
    "SessionMeta": SessionMeta(id="s1", created_at=1, last_used_at=2),
    "SessionToolAccess": SessionToolAccess(tools=("refund", "order"), hidden_tools=("order",)),
    "Severity": "warning",
    "SideEffect": SideEffect.NETWORK,
    "Span": Span(),
    "ToolAvailability": ToolAvailability.SEARCHABLE,
    "ToolCallContext": ToolCallContext(name="refund", args=["A1"], kwargs={"cents": 5}),
    "ToolManifest": ToolManifest(id="shop:refund", name="refund", side_effect=SideEffect.WRITE),
    "ToolState": ToolState(generation=7, tools={"shop:refund": _TOOL}),
    "ToolStateEntry": _TOOL,
}
_REFUSED: dict[str, Any] = {
    "AppendSessionNodesResult": {"status": "perhaps"},
    "MonitorSpec": {"id": "watch", "command": "true", "timeout_ms": 3_600_001},
    "MonitorUpdate": {**msgspec.to_builtins(_UPDATE), "kind": "rumour"},
    "Occurrence": {"source": "git/push", "key": "", "at_ms": 1},
    "Schedule": {"every_ms": 999},
    "SessionCharter": {"depth": "deep"},
    "SessionCreateRequest": {"plugins": "stolen"},
    "SessionStart": {"type": "session"},
    "TaskRecord": {"session_id": "s1", "id": "a b", "kind": "other", "state": "idle"},
    "TaskSpec": {"id": "x", "unknown": 1},
    "Trigger": {"name": "a b", "source": "clock", "session_id": "s1"},
    "PluginDirective": {"type": "short_circuit"},
    "PluginOptions": {"plugins": ["plan"]},
    "PromptContribution": {"content": "Be brief.", "slot": "outro"},
    "PromptLayer": {"replaces": ["outro"]},
    "Ruling": {"messages": [{"type": "assistant"}]},
    "Approval": {**msgspec.to_builtins(_APPROVAL), "session_id": "../etc"},
    "EditedCall": {"name": "refund", "arguments": []},
    "JournalEdit": {"text": 5},
    "JournalStep": {"number": 1, "at_ms": 1, "phase": "model"},
    "Grant": {"grant_id": "grt_1", "capability": "refund", "given_by": "ada", "given_at": 1},
    "ApprovalPolicy": "sometimes",
    "CallMade": {"call_id": 1, "name": "refund", "status": "fine"},
    "Capability": {"name": "refund"},
    "CellReport": {"stdout": "no index"},
    "CurrentTurn": {"turn_id": "t_1", "state": "ended", "messages": []},
    "InputPart": {"type": "input", "name": "log", "digest": "ab", "media_type": "text/plain"},
    "CapabilityLimits": {"timeout_ms": -1},
    "ErrorObject": {"code": "TOOL_ERROR"},
    "ExternalCallRecord": {**msgspec.to_builtins(_RECORD), "status": "fine"},
    "RunRequest": {"session_id": "a b"},
    "RunResult": {"status": "done"},
    "SessionInfo": {"meta": {"id": "x" * 65}},
    "SessionLimits": {"memory": 64},
    "ToolAvailability": "on",
    "ToolManifest": {"id": "x", "name": "not a name", "side_effect": "read"},
    "ToolState": {"generation": -1, "tools": {}},
}


_IN_MEMORY = {
    "AskPerson", "Attachment", "CompleteAfter", "CompleteLater", "ContinueAs", "DepsContext", "FinishedTurn",
    "FrameSwitchedTurn", "Mount", "Node", "RegisteredTool", "RunContext", "StoppedTurn", "WaitingTurn",
}  # fmt: skip
"""Values that stay in the process: they are never encoded, so they have no schema."""


def test_the_schema_files_are_up_to_date() -> None:
    """Ours: `python -m standfast.model.schemas DIR` regenerates them."""
    stored = {path.name: path.read_text(encoding="utf-8") for path in _FILES.iterdir()}
    assert stored == {name: render(schema) for name, schema in all_schemas().items()}


@pytest.mark.parametrize("name", PUBLIC_VALUES)
def test_each_schema_is_self_contained_and_valid(name: str) -> None:
    """Ours: each file can be used without any other, and names its dialect."""
    schema = schema_of(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("standfast:")
    assert schema["title"] == name
    assert jsonschema_rs.meta.is_valid(schema)
    assert _references(schema) <= {f"#/$defs/{part}" for part in schema.get("$defs", {})}


@pytest.mark.parametrize("name", PUBLIC_VALUES)
def test_an_encoded_value_matches_its_schema(name: str) -> None:
    """Ours: the codec writes what the schema promises."""
    encoded = json.loads(msgspec.json.encode(_EXAMPLES[name]))
    jsonschema_rs.validator_for(schema_of(name)).validate(encoded)


@pytest.mark.parametrize("name", _REFUSED)
def test_a_value_that_cannot_be_decoded_does_not_match_its_schema_either(name: str) -> None:
    """Ours: the schema refuses what the codec refuses."""
    assert not jsonschema_rs.validator_for(schema_of(name)).is_valid(_REFUSED[name])
    with pytest.raises((msgspec.ValidationError, standfast.StandfastError)):
        msgspec.convert(_REFUSED[name], PUBLIC_VALUES[name])


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "x" * 65, "é", "a\n", "..", 7, None])
def test_an_invalid_session_id_does_not_match_the_schema(bad: object) -> None:
    """Seed: ids match ^[a-zA-Z0-9_-]{1,64}$ wherever they come in."""
    assert not jsonschema_rs.validator_for(schema_of("SessionId")).is_valid(bad)


def test_every_public_value_of_the_package_has_a_schema() -> None:
    """Ours: a value that is added to the public package is published, too."""
    assert set(_EXAMPLES) == set(PUBLIC_VALUES)
    values = {name for name in standfast.__all__ if _is_value(getattr(standfast, name))}
    assert values <= set(PUBLIC_VALUES) | _IN_MEMORY


def test_the_command_writes_the_files_and_removes_stale_ones(tmp_path: Path) -> None:
    """Ours: regenerating the directory removes the schemas of values that no longer exist."""
    (tmp_path / "gone.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "standfast.model.schemas", str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name for path in tmp_path.iterdir()} == set(all_schemas())


def test_the_command_requires_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: `--help` was taken for a directory and created."""
    for arguments in ([], ["--help"], ["one", "two"]):
        assert main(arguments) == 2
        assert "usage:" in capsys.readouterr().err


def _is_value(candidate: object) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)


def _references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in part.values()))
    return set().union(*(_references(value) for value in part)) if isinstance(part, list) else set()
