"""The state of a running turn, folded from its events: streamed text, running calls, progress and waits.

The store or the driver provides the turn's messages; `LiveTurn` adds what they do not have yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from standfast.model.approval import Approval
from standfast.model.call_history import CallHistory
from standfast.model.events import (
    Event,
    ModelCallFailed,
    ModelCallStarted,
    ReasoningStreamed,
    ReplyReceived,
    TextRetracted,
    TextStreamed,
    ToolCallSettled,
    ToolCallStarted,
    ToolReported,
    TurnBegan,
    TurnCommitted,
    WaitBegan,
    WaitOver,
)
from standfast.model.message import AssistantMessage, ToolCall, ToolMessage
from standfast.model.session import CurrentTurn
from standfast.workbench.conversation import (
    CallView,
    CellView,
    Item,
    ReplyView,
    brief_arguments,
    by_call,
    call_view,
    cell_view,
    history_view,
    is_cell,
    items_of,
    settled_view,
)
from standfast.workbench.words import one_line, pretty


@dataclass(slots=True)
class LiveTurn:
    """The running turn, as far as events describe it."""

    turn_id: str = ""
    resumed: bool = False
    text: str = ""
    thoughts: str = ""
    calls: dict[int, ToolCall] = field(default_factory=dict)
    settled: dict[int, ToolCallSettled] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    progress: dict[int, str] = field(default_factory=dict)
    retry: str = ""

    def feed(self, event: Event) -> bool:
        """Apply an event; return whether more than the streamed text has changed."""
        match event:
            case TextStreamed(text=text):
                self.text += text
                return False
            case ReasoningStreamed(text=text):
                self.thoughts += text
                return False
            case TurnBegan(turn_id=turn_id, resumed=resumed):
                if turn_id != self.turn_id:
                    self._clear(turn_id)
                self.resumed = resumed
            case ModelCallStarted() | ReplyReceived() | TextRetracted():
                self.text = self.thoughts = self.retry = ""
            case ModelCallFailed(error=error, attempt=attempt, retry_in_ms=pause):
                self.text = self.thoughts = ""
                again = "" if pause is None else f"; the next attempt is in {pause / 1000:.1f} s"
                self.retry = f"Attempt {attempt} of the model call failed: {error.message}{again}"
            case ToolCallStarted(call=call):
                self.calls[call.call_id] = call
            case ToolReported(call_id=call_id, kind=kind, body=body):
                self.progress[call_id] = one_line(f"{kind} {pretty(body)}" if body is not None else kind)
            case ToolCallSettled(call_id=call_id):
                self.settled[call_id] = event
                self.progress.pop(call_id, None)
            case WaitBegan(wait=wait):
                self.waits[wait.wait_id] = wait.call_id
            case WaitOver(wait_id=wait_id):
                self.waits.pop(wait_id, None)
            case TurnCommitted():
                self._clear("")
        return True

    def _clear(self, turn_id: str) -> None:
        fresh = LiveTurn(turn_id=turn_id)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))


def current_items(
    current: CurrentTurn, live: LiveTurn, approvals: list[Approval], made: Sequence[CallHistory] = ()
) -> tuple[Item, ...]:
    """Return the items of an unfinished turn: its messages, with the live state of its calls.

    *made* has the calls of its code that the journal has.
    """
    waits = current.waits
    said = [(f"{current.turn_id}.{place}", message) for place, message in enumerate(current.messages)]
    asked = by_call(approvals)
    items = items_of(said, current.turn_id, asked, waits, made)
    waiting = {wait.call_id for wait in waits} | set(live.waits.values())
    waiting |= {one.call_id for one in approvals if one.run_id == current.turn_id and one.state == "pending"}
    cells = {
        call.call_id: call
        for message in current.messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
        if is_cell(call)
    }
    results = {one.call_id: one for one in current.messages if isinstance(one, ToolMessage)}

    def enriched(view: CallView | CellView) -> CallView | CellView:
        if isinstance(view, CellView):
            if view.call_id in results or view.call_id not in cells:
                return view
            calls = {
                one.call.call_id: history_view(one, asked.get((current.turn_id, one.call.call_id)))
                for one in made
                if one.call.parent == view.call_id
            }
            calls |= {
                one.call_id: _live_call(one, live, waiting, asked.get((current.turn_id, one.call_id)))
                for one in live.calls.values()
                if one.parent == view.call_id
            }
            inner = list(calls.values())
            inner += [
                CallView(
                    call_id=one.call_id,
                    name=one.capability,
                    brief=brief_arguments(
                        ToolCall(call_id=one.call_id, name="", arguments=one.kwargs, args=tuple(one.args))
                    ),
                    state="waiting",
                    approval=one,
                )
                for one in approvals
                if one.run_id == current.turn_id and one.state == "pending" and one.call_id not in calls
            ]
            return cell_view(cells[view.call_id], None, inner)
        if view.state not in ("running", "waiting") or view.call_id not in live.calls:
            return (
                replace(view, state="waiting")
                if view.state == "running" and view.call_id in waiting
                else view
            )
        return _live_call(live.calls[view.call_id], live, waiting, view.approval)

    return tuple(
        replace(item, calls=tuple(enriched(call) for call in item.calls))
        if isinstance(item, ReplyView)
        else item
        for item in items
    )


def _live_call(call: ToolCall, live: LiveTurn, waiting: set[int], approval: Approval | None) -> CallView:
    """Return a view of a call from its events."""
    state, progress = "waiting" if call.call_id in waiting else "running", live.progress.get(call.call_id, "")
    view, settled = call_view(call, approval, state, progress=progress), live.settled.get(call.call_id)
    return view if settled is None else settled_view(view, settled.record, settled.value, settled.error)
