"""The spans of a turn, derived from its journal on demand: nothing is written for them.

Theory of operation
-------------------
The journal is fed to a fresh machine, and `TurnSpans` records what each input begins and ends, as it does
while a turn runs. A `Resumed` input means that a process took the turn over: after a wait, or in the middle
of an operation, because the previous process died or released the turn. Operations that had completed before
that were replayed, not executed again; `replays` in the body of a span counts how often.

Rule: the time of a record is that of an input. So a model call begins with the input that led to it, and an
interruption is recorded at the last input before it.
"""

from __future__ import annotations

import msgspec

from standfast.durable.journal import journaled_inputs
from standfast.machine.commands import Park
from standfast.machine.inputs import Resumed, TurnStarted
from standfast.machine.turn_machine import Phase, TurnMachine
from standfast.model.outcome import Waiting
from standfast.model.trace_record import TraceRecord
from standfast.ports.session_store import JournaledTurn
from standfast.trace.tracer import Tracer
from standfast.trace.turn_spans import TracedTurn, TurnSpans

_replace = msgspec.structs.replace


class _Journal:
    """The sink and clock of one reading: it collects the records, and its time is the last input's."""

    def __init__(self, *, contents: bool) -> None:
        self.contents = contents
        self.found: list[TraceRecord] = []
        self.replays: list[int] = []
        self.ms = 0

    def record(self, record: TraceRecord) -> None:
        self.found.append(record)
        self.replays.append(0)

    def now_ms(self) -> int:
        return self.ms

    boot_ms = now_ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def taken_over(self) -> None:
        """Count one more replay of every completed span."""
        self.replays = [count + 1 for count in self.replays]

    def records(self) -> list[TraceRecord]:
        return [
            _replace(one, body={**one.body, "replays": count})
            if count and one.span_id and isinstance(one.body, dict)
            else one
            for one, count in zip(self.found, self.replays, strict=True)
        ]


def journal_spans(
    turn: JournaledTurn, about: TracedTurn, *, now_ms: int, contents: bool = False
) -> list[TraceRecord]:
    """Return the records of a turn; with *contents*, including messages, arguments and results.

    A turn that has not ended has no span of its own yet. An operation in progress, or a wait, has a span up
    to *now_ms* with the status `open`.
    """
    record = turn.record
    read, machine = _Journal(contents=contents), TurnMachine()
    first, *others = journaled_inputs(record.turn_id, turn.input, turn.journal)
    assert isinstance(first, TurnStarted)
    read.ms = first.at_ms
    commands = machine.feed(first)
    spans = TurnSpans(Tracer(read, read), about, machine)
    spans.began(first, None)
    spans.fed(first, commands)
    for given in others:
        if isinstance(given, Resumed):
            if machine.phase is not Phase.PARKED:
                spans.interrupted()
            read.taken_over()
        read.ms = given.at_ms
        following = machine.feed(given)
        if isinstance(given, Resumed):
            spans.resumed()
        spans.fed(given, following)
        for command in following:
            if isinstance(command, Park):
                spans.parked(command.outcome)
    if record.summary is not None and not isinstance(record.summary.outcome, Waiting):
        read.ms = record.ended_at or read.ms
        spans.ended(record.summary.outcome, record.summary.usage, machine.account.ledger("turn"))
    elif record.ended_at is None:
        read.ms = max(read.ms, now_ms)
        spans.under_way()
    return read.records()
