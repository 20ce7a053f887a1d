"""The spans of one turn, derived from the machine's inputs and commands.

Every event of a turn is fed to its machine with its time, and is in the journal. So the spans follow from the
inputs: a call begins where an input leads to `RunTool` and ends with `ToolSettled`; a wait lies between
`WaitOpened` and `WaitEnded`. A process that takes a turn over replays the journal without recording, and then
knows when every unfinished span began. Only the start of a model call is not in the journal, but the input
that leads to it is, so the spans of a turn can also be derived from its journal later (`journal_spans`).

Rules
-----
1. A span is recorded when it ends. If a process dies between recording and journaling, another one records
   the span again under the same id: the later record counts.
2. Spans that are open when the turn ends end with it, as cancelled.
3. Tokens that let an outside caller end a wait are not recorded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from standfast.errors import Code, StandfastError
from standfast.machine import inputs
from standfast.machine.commands import CallModel, Command, RunTool
from standfast.machine.turn_machine import TurnMachine
from standfast.model.canonical import Json
from standfast.model.capability import CallStatus
from standfast.model.events import Event, ModelCallStarted
from standfast.model.limits import Usage, UsageEntry
from standfast.model.message import AssistantMessage, ToolCall, text_of
from standfast.model.outcome import Approved, Denied, Ended, Finished, Stopped, StopReason, Wait, Waiting
from standfast.model.trace_record import TraceKind, TraceRecord, TraceStatus, span_id_of
from standfast.ports import model_provider
from standfast.ports.session_store import JournalEntry
from standfast.ports.trace import EnclosingSpan
from standfast.tools.tracebacks import exception_type_of, frames_of
from standfast.trace.tracer import Tracer, span_under

_CALL_STATUS: Final[dict[CallStatus, TraceStatus]] = {
    CallStatus.OK: "ok",
    CallStatus.ERROR: "error",
    CallStatus.TIMEOUT: "timeout",
    CallStatus.DENIED: "denied",
}
_WAIT_STATUS: Final[dict[str, TraceStatus]] = {
    "denied": "denied", "expired": "expired", "failed": "error",
}  # fmt: skip


class TracedTurn(msgspec.Struct, frozen=True):
    """The session, agent and model of a turn. `cell_tool` is the tool that runs code, if there is one."""

    session_id: str
    agent: str
    model_id: str
    cell_tool: str = ""


class TurnSpans:
    """Records the spans of a turn. Called on the turn's event loop."""

    def __init__(self, tracer: Tracer, about: TracedTurn, machine: TurnMachine) -> None:
        self.turn_id = machine.turn_id
        self.span_id = span_id_of(machine.turn_id)
        self._tracer = tracer
        self._about = about
        self._machine = machine
        self._started_ms = 0
        self._started: inputs.TurnStarted | None = None
        self._model_call: tuple[int, int, int] | None = None  # number, attempt, start
        self._calls: dict[int, tuple[RunTool, int]] = {}
        self._waits: dict[str, tuple[Wait, int]] = {}
        self._silent = False

    def began(self, started: inputs.TurnStarted, caller: EnclosingSpan | None) -> None:
        """Record that the turn began here, perhaps in a call of another turn."""
        self._started, self._started_ms = started, started.at_ms
        if caller is not None and caller.turn_id != self.turn_id:
            self._tracer.called_by(self.turn_id, caller)
        self._event("turn_began", {"agent": self._about.agent}, at_ms=started.at_ms)

    def taken_up(self, first: bytes, journal: Sequence[JournalEntry]) -> None:
        """Record that this process took the turn over; rebuild its open spans from the journal."""
        machine, self._silent = TurnMachine(), True
        for body in (first, *(entry.body for entry in journal if entry.kind == "input")):
            given: inputs.Input = inputs.decode_input(body)
            if isinstance(given, inputs.TurnStarted):
                self._started, self._started_ms = given, given.at_ms
            self.fed(given, machine.feed(given))
        self._silent = False
        self.resumed()

    def resumed(self) -> None:
        """Record that a process took the turn over. A model call in progress is repeated."""
        if self._model_call is not None:
            number, attempt, _ = self._model_call
            self._model_call = (number, attempt, self._tracer.clock.now_ms())
        self._event("turn_taken_up", {"agent": self._about.agent})

    def interrupted(self) -> None:
        """Record that the process running the turn died, or released it, at some time after now."""
        self._event("turn_interrupted", {"agent": self._about.agent})

    def parked(self, outcome: Waiting) -> None:
        self._event("turn_parked", {"waits": [wait.kind for wait in outcome.waits]})

    def left(self, error: BaseException) -> None:
        """Record that this process gave up the turn before its end."""
        code = getattr(error, "code", None)
        self._event("turn_left", {"error": code if isinstance(code, str) else type(error).__name__})

    def under_way(self) -> None:
        """Record every span that is still open, up to now, with the status `open`."""
        now = self._tracer.clock.now_ms()
        if self._model_call is not None:
            self._end_model_call(now, "open", {})
        for wait_id in list(self._waits):
            self._end_wait(wait_id, now, "open", {})
        for call_id in sorted(self._calls, reverse=True):
            self._end_call(call_id, now, "open", {})

    def ended(self, outcome: Ended, usage: Usage, ledger: Sequence[UsageEntry]) -> None:
        """Record the end of the turn and of every span that is still open in it."""
        now = self._tracer.clock.now_ms()
        if self._model_call is not None:
            self._end_model_call(now, "cancelled", {})
        for wait_id in list(self._waits):
            self._end_wait(wait_id, now, "cancelled", {})
        for call_id in sorted(self._calls, reverse=True):  # a cell's calls before the cell
            self._end_call(call_id, now, "cancelled", {})
        if usage.calls or ledger:
            lines = [{"source": one.source, "model": one.model, **usage_json(one.usage)} for one in ledger]
            self._event("usage", {**usage_json(usage), "lines": lines}, kind="usage")
        caller = self._tracer.caller_of(self.turn_id)
        body = self._turn_body(outcome, usage)
        if caller is not None:
            body["parent_turn_id"] = caller.turn_id
        status: TraceStatus = "ok"
        if isinstance(outcome, Stopped):
            status = "cancelled" if outcome.reason is StopReason.CANCELLED else "error"
        parent_id = "" if caller is None else caller.span_id
        times = (self._started_ms, now)
        self._span("turn", self._about.agent, "turn", times, parent_id=parent_id, status=status, body=body)

    def _turn_body(self, outcome: Ended, usage: Usage) -> dict[str, Json]:
        body: dict[str, Json] = {
            "agent": self._about.agent,
            "model": self._about.model_id,
            "outcome": str(type(outcome).__struct_config__.tag),
            "model_calls": self._machine.account.model_calls,
            "usage": usage_json(usage),
        }
        if isinstance(outcome, Stopped):
            body |= {"reason": outcome.reason.value, "error": outcome.error.code}
        if self._tracer.contents and self._started is not None:
            answer = outcome.text if isinstance(outcome, Finished) else ""
            said, code = self._started.message, self._started.code
            given = text_of(said.content) if said is not None else "" if code is None else code.code
            body["content"] = {"input": given, "output": answer}
        return body

    def showing(self, show: Callable[[Event], None]) -> Callable[[Event], None]:
        """Wrap *show* so that it also records when a model call starts."""

        def shown(event: Event) -> None:
            if type(event) is ModelCallStarted:
                self._model_call = (event.number, event.attempt, self._tracer.clock.now_ms())
            show(event)

        return shown

    def fed(self, given: inputs.Input, following: Sequence[Command]) -> None:
        """Record the spans that the input *given* and the commands *following* from it begin and end."""
        match given:
            case inputs.ModelReplied():
                self._replied(given, following)
            case inputs.ModelFailed(error=error):
                self._end_model_call(given.at_ms, "error", {"error": error.code})
            case inputs.ToolSettled():
                self._settled(given)
            case inputs.WaitOpened(wait=wait):
                self._waits[wait.wait_id] = (wait, given.at_ms)
            case inputs.WaitEnded(wait_id=wait_id, outcome=outcome):
                tag = str(type(outcome).__struct_config__.tag)
                facts: dict[str, Json] = {"outcome": tag}
                if isinstance(outcome, Approved | Denied) and outcome.by is not None:
                    facts["decided_by"] = outcome.by
                if isinstance(outcome, Approved) and outcome.grant is not None:
                    facts["grant"] = outcome.grant
                self._end_wait(wait_id, given.at_ms, _WAIT_STATUS.get(tag, "ok"), facts)
            case _:
                pass
        for command in following:
            if isinstance(command, RunTool):
                self._calls.setdefault(command.call.call_id, (command, given.at_ms))
            elif isinstance(command, CallModel):
                self._model_call = (command.number, command.attempt, given.at_ms + command.delay_ms)

    def _replied(self, given: inputs.ModelReplied, following: Sequence[Command]) -> None:
        body = reply_facts(given)
        if self._tracer.contents:
            calls: list[Json] = []
            for one in given.calls:
                try:  # parsed, so that redaction can find secrets by their names
                    arguments = msgspec.json.decode(one.arguments or "{}")
                except (msgspec.DecodeError, UnicodeError, RecursionError):
                    arguments = one.arguments
                calls.append({"name": one.name, "arguments": arguments})
            body["content"] = {"output": given.text, "calls": calls}
        self._end_model_call(given.at_ms, "ok", body)
        if given.calls and sum(isinstance(one, RunTool) for one in following) < len(given.calls):
            replies = (it for it in reversed(self._machine.messages) if isinstance(it, AssistantMessage))
            reply = next(replies, None)
            for call in reply.tool_calls if reply is not None else ():
                if call.raw is not None:  # its arguments cannot be parsed, so it is not executed
                    self._call_span(call, given.at_ms, given.at_ms, "error", {"error": Code.INVALID_ARGUMENT})

    def _end_model_call(self, at_ms: int, status: TraceStatus, body: dict[str, Json]) -> None:
        started, self._model_call = self._model_call, None
        if started is None:
            return
        number, attempt, started_ms = started
        facts: dict[str, Json] = {"model": self._about.model_id, "number": number, "attempt": attempt}
        key = f"model.{number}"
        self._span(
            "model_call", self._about.model_id, key, (started_ms, at_ms), status=status, body=facts | body
        )

    def _settled(self, given: inputs.ToolSettled) -> None:
        body: dict[str, Json] = {} if given.error is None else {"error": given.error.code}
        if given.record is not None:
            body["side_effect"] = given.record.side_effect.value
        traceback = "" if given.record is None else given.record.traceback
        if traceback:
            body["exception"] = {"type": exception_type_of(traceback), "stack": frames_of(traceback)}
        if self._tracer.contents:
            message = None if given.error is None else given.error.message
            content: dict[str, Json] = {"result": given.value, "error": message}
            body["content"] = {**content, "traceback": traceback} if traceback else content
        status: TraceStatus = "ok" if given.error is None else "error"
        if given.error is not None and given.error.code == Code.CANCELLED:
            status = "cancelled"
        elif given.record is not None:
            status = _CALL_STATUS.get(given.record.status, "error")
        self._end_call(given.call_id, given.at_ms, status, body)

    def _end_call(self, call_id: int, at_ms: int, status: TraceStatus, body: dict[str, Json]) -> None:
        opened = self._calls.pop(call_id, None)
        if opened is None:
            return
        command, started_ms = opened
        content = body.get("content")
        if isinstance(content, dict):
            content["arguments"] = command.call.arguments
        self._call_span(command.call, started_ms, at_ms, status, body)

    def _call_span(
        self, call: ToolCall, started_ms: int, at_ms: int, status: TraceStatus, body: dict[str, Json]
    ) -> None:
        facts: dict[str, Json] = {"call_id": call.call_id}
        if call.provider_id:
            facts["provider_id"] = call.provider_id
        is_cell = not call.parent and call.name == self._about.cell_tool
        self._span(
            "cell" if is_cell else "tool_call",
            call.name,
            f"tool.{call.call_id}",
            (started_ms, at_ms),
            parent_id=span_id_of(self.turn_id, f"tool.{call.parent}") if call.parent else self.span_id,
            status=status,
            body=facts | body,
        )

    def _end_wait(self, wait_id: str, at_ms: int, status: TraceStatus, body: dict[str, Json]) -> None:
        opened = self._waits.pop(wait_id, None)
        if opened is None:
            return
        wait, started_ms = opened
        facts: dict[str, Json] = {"call_id": wait.call_id, "due_at": wait.due_at}
        if wait.kind == "approval":
            facts["approval_id"] = wait.wait_id
        self._span(
            "wait",
            wait.kind,
            f"wait.{wait_id}",
            (started_ms, at_ms),
            parent_id=span_id_of(self.turn_id, f"tool.{wait.call_id}"),
            status=status,
            body=facts | body,
        )

    def record_side_call(
        self, key: str, started_ms: int, parent_id: str, status: TraceStatus, body: Json
    ) -> None:
        """Record a model call that a plugin, a tool or code made on its own."""
        now, name = self._tracer.clock.now_ms(), self._about.model_id
        self._span("model_call", name, key, (started_ms, now), parent_id=parent_id, status=status, body=body)

    def now_ms(self) -> int:
        return self._tracer.clock.now_ms()

    def _event(self, name: str, body: Json, kind: TraceKind = "event", *, at_ms: int | None = None) -> None:
        self._tracer.emit(
            TraceRecord(
                at_ms=self._tracer.clock.now_ms() if at_ms is None else at_ms,
                name=name,
                kind=kind,
                session_id=self._about.session_id,
                turn_id=self.turn_id,
                parent_id=self.span_id,
                body=body,
            )
        )

    def _span(
        self,
        kind: TraceKind,
        name: str,
        key: str,
        times: tuple[int, int],
        *,
        status: TraceStatus,
        body: Json,
        parent_id: str | None = None,
    ) -> None:
        if self._silent:
            return
        started_ms, ended_ms = times
        self._tracer.emit(
            TraceRecord(
                at_ms=ended_ms,
                name=name,
                kind=kind,
                session_id=self._about.session_id,
                turn_id=self.turn_id,
                span_id=self.span_id if kind == "turn" else span_id_of(self.turn_id, key),
                parent_id=self.span_id if parent_id is None else parent_id,
                started_at_ms=started_ms,
                duration_ms=max(0, ended_ms - started_ms),
                status=status,
                body=body,
            )
        )


def usage_json(usage: Usage) -> dict[str, Json]:
    """Convert *usage* to JSON, without zeros."""
    found: dict[str, Json] = msgspec.to_builtins(usage)
    return found


def reply_facts(reply: inputs.ModelReplied | model_provider.ReplyEnded) -> dict[str, Json]:
    """Return the facts about a reply for the span of its model call."""
    facts: dict[str, Json] = {
        "served": reply.model,
        "stop_reason": reply.stop_reason,
        "usage": usage_json(reply.usage),
    }
    return facts | {"response_id": reply.response_id} if reply.response_id else facts


class TracedModel(model_provider.ModelWrapper):
    """A model whose calls are recorded as spans of a turn."""

    def __init__(self, model: model_provider.ModelProvider, spans: TurnSpans) -> None:
        super().__init__(model)
        self._spans = spans

    async def stream(self, request: model_provider.ModelRequest) -> AsyncIterator[model_provider.ModelDelta]:
        spans = self._spans
        parent_id, started_ms = span_under(spans.turn_id), spans.now_ms()
        is_recorded = False

        def record(status: TraceStatus, facts: dict[str, Json]) -> None:
            nonlocal is_recorded
            if not is_recorded:
                is_recorded = True
                body: Json = {"model": self.model_id, "attempt": request.attempt, **facts}
                spans.record_side_call(request.idempotency_key, started_ms, parent_id, status, body)

        try:
            async with model_provider.open_stream(self._model, request) as deltas:
                async for delta in deltas:
                    if isinstance(delta, model_provider.ReplyEnded):
                        record("ok", reply_facts(delta))
                    yield delta
        except Exception as error:
            code = error.code if isinstance(error, StandfastError) else type(error).__name__
            record("error", {"error": code})
            raise
        finally:
            record("cancelled", {})
