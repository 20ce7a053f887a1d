"""From a journal back to a machine that stands where the dead process stood."""

from __future__ import annotations

import msgspec

from standfast.errors import RecordCorrupt
from standfast.machine.inputs import Input, TurnStarted, decode_input
from standfast.machine.turn_machine import TurnMachine
from standfast.ports.session_store import JournalEntry


class Replayed(msgspec.Struct, frozen=True):
    """The machine, the keys of what is journaled already, and the effects that were begun."""

    machine: TurnMachine
    keys: set[str]
    intents: frozenset[str]


def replay(turn_id: str, first: bytes, journal: tuple[JournalEntry, ...]) -> Replayed:
    """Feed the journal to a fresh machine."""
    machine = TurnMachine()
    started = _decoded(turn_id, "turn_started", first)
    if not isinstance(started, TurnStarted):
        raise RecordCorrupt(f"turn_started of turn {turn_id}")
    machine.feed(started)
    for entry in journal:
        if entry.kind == "input":
            machine.feed(_decoded(turn_id, entry.key, entry.body))
    return Replayed(
        machine,
        {entry.key for entry in journal if entry.kind == "input"},
        frozenset(entry.key for entry in journal if entry.kind == "intent"),
    )


def _decoded(turn_id: str, key: str, body: bytes) -> Input:
    try:
        given: Input = decode_input(body)
        return given
    except msgspec.DecodeError as error:
        raise RecordCorrupt(f"{key} of turn {turn_id} ({error})") from None
