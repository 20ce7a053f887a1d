"""View models of a session's history: turns, messages, and calls and cells with their results.

Everything here is a pure function of records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from standfast.errors import ErrorObject
from standfast.model.approval import Approval
from standfast.model.call_history import CallAttempt, CallHistory
from standfast.model.capability import CallStatus, ExternalCallRecord
from standfast.model.code import RUN_CODE, CellReport
from standfast.model.limits import Usage
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
    text_of,
)
from standfast.model.outcome import Finished, FrameSwitched, Stopped, Wait, Waiting
from standfast.model.session import FrameOpened, Node, Payload, PluginNode, TurnEnded, TurnRecord
from standfast.workbench.call_lines import CallText, find_lines
from standfast.workbench.words import one_line, pretty

_NO_USAGE: Final = Usage()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """The displayed properties of an attachment or a turn input."""

    digest: str
    name: str
    media_type: str
    size: int
    is_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A tool call. `state` is running, waiting, or the status in its record."""

    call_id: int
    name: str
    brief: str
    arguments: dict[str, Any] | None = None
    raw: str | None = None
    state: str = "running"
    value: Any = None
    has_value: bool = False
    texts: tuple[str, ...] = ()
    error: ErrorObject | None = None
    duration_ms: int | None = None
    edited: dict[str, Any] | None = None
    files: tuple[FileView, ...] = ()
    approval: Approval | None = None
    progress: str = ""
    attempts: tuple[CallAttempt, ...] = ()
    result_node: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """A piece of code. `placed` has its calls by line; `loose` has calls made by other code.

    `unsure` has the calls whose line neither the engine reported nor the structure of the code determines.
    """

    call_id: int
    lines: tuple[str, ...]
    state: str = "running"
    report: CellReport | None = None
    error: ErrorObject | None = None
    placed: Mapping[int, tuple[CallView, ...]]
    loose: tuple[CallView, ...] = ()
    unsure: tuple[CallView, ...] = ()
    bad_line: int | None = None
    duration_ms: int | None = None
    title: str = "Code"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A message from the user, or one that the host injected into a running turn."""

    node_id: str
    text: str
    files: tuple[FileView, ...] = ()
    injected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyView:
    """A model reply, with the calls that it requested."""

    node_id: str
    text: str
    model: str = ""
    thoughts: str = ""
    usage: Usage = _NO_USAGE
    calls: tuple[CallView | CellView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """An event in the history: a turn that stopped, a new frame, a plugin's entry."""

    node_id: str
    kind: str
    text: str
    error: ErrorObject | None = None


Item = MessageView | ReplyView | EventView


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnItems:
    """A turn of session `session_id`, or nodes that were appended together outside of turns."""

    turn_id: str
    session_id: str = ""
    at_ms: int
    items: tuple[Item, ...]
    last_node: str
    state: str = ""
    duration_ms: int | None = None
    usage: Usage = _NO_USAGE
    depth: int = 0


def turns_of(
    nodes: Sequence[Node],
    records: Mapping[str, TurnRecord],
    approvals: Iterable[Approval],
    made: Mapping[str, Sequence[CallHistory]] = _NOTHING,
) -> list[TurnItems]:
    """Group *nodes* into turns, oldest first. *made* has the calls made by code, with results, by turn id."""
    asked = by_call(approvals)
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        groups.setdefault(node.caused_by, []).append(node)
    return [
        _turn(turn_id, group, records.get(turn_id), asked, made.get(turn_id, ()))
        for turn_id, group in groups.items()
    ]


def by_call(approvals: Iterable[Approval]) -> dict[tuple[str, int], Approval]:
    return {(one.run_id, one.call_id): one for one in approvals}


def _turn(
    turn_id: str,
    nodes: list[Node],
    record: TurnRecord | None,
    asked: Mapping[tuple[str, int], Approval],
    made: Sequence[CallHistory],
) -> TurnItems:
    summary = None if record is None else record.summary
    state, usage = "", _NO_USAGE
    if summary is not None:
        usage = summary.usage
        match summary.outcome:
            case Finished():
                state = "finished"
            case Stopped(reason=reason):
                state = f"stopped {reason}"
            case Waiting():
                state = "waiting"
            case FrameSwitched():
                state = "new frame"
    ended = None if record is None or record.ended_at is None else record.ended_at - record.created_at
    return TurnItems(
        turn_id=turn_id,
        session_id="" if record is None else record.session_id,
        at_ms=record.created_at if record is not None else nodes[0].at_ms,
        items=items_of([(node.id, node.payload) for node in nodes], turn_id, asked, made=made),
        last_node=nodes[-1].id,
        state=state,
        duration_ms=ended,
        usage=usage,
    )


def items_of(
    payloads: Sequence[tuple[str, Payload | Message]],
    turn_id: str,
    asked: Mapping[tuple[str, int], Approval],
    waits: Sequence[Wait] = (),
    made: Sequence[CallHistory] = (),
) -> tuple[Item, ...]:
    """Return the items of one turn. A call's result is shown with the call."""

    def view_of(call: ToolCall) -> CallView | CellView:
        node_id, result = results.get(call.call_id, ("", None))
        if is_cell(call):
            inner = [one for one in made if one.call.parent == call.call_id]
            views = [history_view(one, asked.get((turn_id, one.call.call_id))) for one in inner]
            view = cell_view(call, result, views)
            # Cells of an agent have numbers, which its model sees. A run without a model is a single cell.
            has_number = view.report is not None and any(isinstance(one, UserMessage) for _, one in payloads)
            return replace(view, title=f"Cell {view.report.index}") if has_number and view.report else view
        return _call(call, node_id, result, asked.get((turn_id, call.call_id)), call.call_id in waiting)

    results = {one.call_id: (node_id, one) for node_id, one in payloads if isinstance(one, ToolMessage)}
    waiting = {wait.call_id for wait in waits}
    items: list[Item] = []
    shown: set[int] = set()
    for node_id, payload in payloads:
        match payload:
            case UserMessage():
                items.append(_said(node_id, payload))
            case AssistantMessage(tool_calls=calls):
                shown |= {call.call_id for call in calls}
                items.append(_replied(node_id, payload, tuple(view_of(call) for call in calls)))
            case ToolMessage(call_id=call_id) if call_id not in shown:
                call = ToolCall(call_id=call_id, name=payload.name, arguments=payload.edited_arguments)
                items.append(ReplyView(node_id=node_id, text="", calls=(view_of(call),)))
            case TurnEnded(outcome=ended):
                items.append(
                    EventView(node_id=node_id, kind="stopped", text=str(ended.reason), error=ended.error)
                )
            case FrameOpened(switch=switch):
                items.append(
                    EventView(node_id=node_id, kind="frame", text=f"A new frame begins: {switch.reason}")
                )
            case PluginNode(plugin_id=plugin_id, kind=kind, body=body):
                text = f"{plugin_id} · {kind} {one_line(pretty(body))}"
                items.append(EventView(node_id=node_id, kind="plugin", text=text))
    return tuple(items)


def _said(node_id: str, message: UserMessage) -> MessageView:
    files = (
        ()
        if isinstance(message.content, str)
        else tuple(
            file_view(part) for part in message.content if isinstance(part, (AttachmentPart, InputPart))
        )
    )
    return MessageView(
        node_id=node_id,
        text=text_of(message.content),
        files=files,
        injected=message.input_id is not None,
    )


def file_view(part: AttachmentPart | InputPart) -> FileView:
    return FileView(
        digest=part.digest,
        name=part.name or f"{part.digest[:12]}…",
        media_type=part.media_type,
        size=part.size,
        is_input=isinstance(part, InputPart),
    )


def _replied(node_id: str, message: AssistantMessage, calls: tuple[CallView | CellView, ...]) -> ReplyView:
    return ReplyView(
        node_id=node_id,
        text=message.text,
        model=message.model,
        thoughts="\n\n".join(one.text for one in message.reasoning if one.text),
        usage=message.usage,
        calls=calls,
    )


def _call(
    call: ToolCall, node_id: str, result: ToolMessage | None, approval: Approval | None, waits: bool
) -> CallView:
    view = call_view(call, approval, "waiting" if waits else "running", result_node=node_id)
    if result is None:
        return view
    return settled_view(
        view,
        result.record,
        result.value,
        result.error,
        texts=result.texts,
        edited=result.edited_arguments,
        files=tuple(file_view(part) for part in result.attachments),
    )


def call_view(call: ToolCall, approval: Approval | None, state: str = "running", **more: Any) -> CallView:
    """Return a view of a call that has not settled; *more* are other fields of the view."""
    return CallView(
        call_id=call.call_id,
        name=call.name,
        brief=brief_arguments(call),
        arguments=_named_arguments(call),
        raw=call.raw,
        state=state,
        approval=approval,
        line=call.line,
        **more,
    )


def settled_view(
    view: CallView, record: ExternalCallRecord | None, value: Any, error: ErrorObject | None, **more: Any
) -> CallView:
    """Return *view* with the outcome of its call; *more* are other fields of the view."""
    state = "ok" if error is None else "error"
    if record is not None and record.status is not CallStatus.APPROVAL_PENDING:
        state = str(record.status)
    took = None if record is None else record.duration_ms
    more = {"has_value": error is None, **more}
    return replace(view, state=state, value=value, error=error, duration_ms=took, **more)


def _named_arguments(call: ToolCall) -> dict[str, Any] | None:
    if not call.args:
        return call.arguments
    return {**{str(place): value for place, value in enumerate(call.args)}, **(call.arguments or {})}


def history_view(known: CallHistory, approval: Approval | None = None) -> CallView:
    """Return a view of a call from its journal history."""
    view, record = call_view(known.call, approval, attempts=known.attempts), known.record
    if known.settled or (record is not None and record.status is not CallStatus.APPROVAL_PENDING):
        has_value = known.settled and known.error is None
        return settled_view(view, record, known.value, known.error, has_value=has_value)
    waits = known.attempts and known.attempts[-1].outcome in ("approval", "timer", "completion")
    took = None if record is None else record.duration_ms
    return replace(view, state="waiting" if waits else "running", duration_ms=took)


def brief_arguments(call: ToolCall) -> str:
    """Return the arguments of a call on one line, in Python syntax."""
    if call.arguments is None and call.raw is not None:
        return one_line(call.raw, 120)
    parts = [repr(value) for value in call.args]
    parts += [f"{name}={value!r}" for name, value in (call.arguments or {}).items()]
    return one_line(", ".join(parts), 120)


# Cells


def is_cell(call: ToolCall) -> bool:
    return call.name == RUN_CODE and not call.parent and isinstance((call.arguments or {}).get("code"), str)


def turns_with_cells(nodes: Iterable[Node]) -> set[str]:
    """Return the ids of the turns that ran code."""
    return {
        node.caused_by
        for node in nodes
        if isinstance(node.payload, AssistantMessage)
        and any(is_cell(call) for call in node.payload.tool_calls)
    }


def cell_view(call: ToolCall, result: ToolMessage | None, live: Sequence[CallView] = ()) -> CellView:
    """Return the view of a cell; *live* has the calls it has made so far, from events or the journal."""
    code = str((call.arguments or {})["code"])
    report = None if result is None else _report(result.value)
    error = None if result is None else result.error
    state, made = "running", list(live)
    if result is not None:
        error = error or (None if report is None else report.error)
        state = "ok" if error is None else "error"
    if report is not None and report.calls:
        known = {one.call_id: one for one in live}
        made = [
            replace(known[one.call_id], texts=one.texts)
            if one.call_id in known
            else CallView(
                call_id=one.call_id,
                name=one.name,
                brief=one.arguments,
                state=str(one.status),
                texts=one.texts,
                error=one.error,
                line=one.line,
            )
            for one in report.calls
        ]
    elif result is None and any(one.state == "waiting" for one in live):
        state = "waiting"
    first_line = len(code) - len(code.lstrip("\n"))
    placed, loose, unsure = place_calls(code, made)
    span = None if error is None else error.span
    return CellView(
        call_id=call.call_id,
        lines=tuple(code.strip("\n").expandtabs(4).split("\n")),
        state=state,
        report=report,
        error=error,
        placed={line - first_line: calls for line, calls in placed.items()},
        loose=loose,
        unsure=unsure,
        bad_line=None if span is None else span.line - first_line,
        duration_ms=None if report is None else report.duration_ms,
    )


def _report(value: Any) -> CellReport | None:
    if not isinstance(value, dict) or "index" not in value:
        return None
    try:
        return msgspec.convert(value, CellReport)
    except msgspec.ValidationError:
        return None


class PlacedCalls(NamedTuple):
    """The calls of a cell: by line, those made by other code, and those whose line is ambiguous."""

    placed: dict[int, tuple[CallView, ...]]
    loose: tuple[CallView, ...]
    unsure: tuple[CallView, ...]


def place_calls(code: str, made: Sequence[CallView]) -> PlacedCalls:
    """Group calls by the line that made them.

    The engine reports the line of a call. Where it could not, and in journals without lines, the structure of
    the code determines it: only one line calls that name, or the order of the calls allows only one line.
    """
    guessed: list[int | None] = [call.line for call in made]
    if None in guessed:
        guessed = find_lines(code, [CallText(call.name, call.brief) for call in made])
    only: dict[str, int | None] = {}
    placed: dict[int, list[CallView]] = {}
    loose, unsure = [], []
    for call, guess in zip(made, guessed, strict=True):
        line = guess if call.line is None else call.line
        if line is None:
            if call.name not in only:
                called = re.compile(rf"\b{re.escape(call.name)}\s*\(")
                at = [number for number, text in enumerate(code.split("\n"), 1) if called.search(text)]
                only[call.name] = at[0] if len(at) == 1 else None
            line = only[call.name]
        if line is None:
            unsure.append(call)
        elif line == 0:
            loose.append(call)
        else:
            placed.setdefault(line, []).append(call)
    return PlacedCalls({line: tuple(calls) for line, calls in placed.items()}, tuple(loose), tuple(unsure))
