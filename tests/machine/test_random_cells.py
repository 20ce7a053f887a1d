"""Random cells: properties that hold whatever the calls do, in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_turns import (
    at,
    calls,
    ended,
    finish,
    paused,
    settled,
    started,
    waits,
)

from standfast.machine import (
    CancelRequested,
    Command,
    ContinueCell,
    Input,
    Park,
    Phase,
    RunTool,
    TurnMachine,
    decode_input,
    encode_input,
)
from standfast.model.message import ToolMessage
from standfast.testing.histories import command_as_json


class Shell:
    """A turn and the state its shell keeps: which calls run, which wait, which results each cell is due."""

    def __init__(self, tools: int) -> None:
        self.machine = TurnMachine()
        self.journal: list[bytes] = []
        self.commands: list[list[object]] = []
        self.outstanding: list[list[object]] = []
        self.tops = list(range(1, tools + 1))
        self.runs = set(self.tops)
        self.waits: dict[int, str] = {}
        self.done: set[int] = set()
        self.parents: dict[int, int] = {}
        self.due: dict[int, list[int]] = {}
        """For each cell the calls whose results it is to hear, in the order in which they came."""
        self.heard: dict[int, int] = {}
        self.opened = 0
        self.feed(started())
        self.feed(calls(*["look"] * tools))

    def feed(self, given: Input) -> list[Command]:
        given = at(len(self.journal), given)
        self.journal.append(encode_input(given))
        commands = self.machine.feed(given)
        self.commands.append(_as_json(commands))
        self.outstanding.append(_as_json(self.machine.outstanding()))
        for command in commands:
            if isinstance(command, ContinueCell):
                self._deliver_results(command)
        return commands

    def _deliver_results(self, command: ContinueCell) -> None:
        cell = command.call.call_id
        self.heard[cell] += 1
        assert [one.call_id for one in command.answers[: command.count]] == self.due[cell][: self.heard[cell]]
        assert [one.call_id for one in command.made] == [
            one for one, parent in self.parents.items() if parent == cell
        ]
        self.runs.add(cell)

    # Events

    def pause(self, cell: int, names: list[str]) -> None:
        number = self.heard.get(cell, 0) + 1
        made = sum(parent == cell for parent in self.parents.values())
        if made + len(names) < number:
            assert self.feed(paused(cell, number)) == []  # no result could arrive
            return
        self.heard[cell] = number - 1
        due = self.due.setdefault(cell, [])
        self.runs.discard(cell)
        new = range(
            len(self.tops) + len(self.parents) + 1, len(self.tops) + len(self.parents) + len(names) + 1
        )
        for call_id, name in zip(new, names, strict=True):
            self.parents[call_id] = cell
            if name.endswith("!"):
                due.append(call_id)
                self.done.add(call_id)
            else:
                self.runs.add(call_id)
        begun = [call_id for call_id in new if call_id in self.runs]
        commands = self.feed(paused(cell, number, *names))
        assert [one.call.call_id for one in commands if isinstance(one, RunTool)] == begun

    def settle(self, call_id: int) -> None:
        self._is_over(call_id)
        for one in [one for one in self.waits if self.parents.get(one) == call_id]:
            self._is_over(one)
        self.feed(settled(call_id, call_id))

    def wait(self, call_id: int) -> None:
        self.opened += 1
        if call_id in self.heard:
            assert self.feed(waits(call_id, f"w{self.opened}")) == []  # a cell waits only for its calls
            return
        if self.parents.get(call_id) in self.done:
            self._is_over(call_id)
        else:
            self.runs.discard(call_id)
            self.waits[call_id] = f"w{self.opened}"
        self.feed(waits(call_id, f"w{self.opened}"))

    def wake(self, call_id: int) -> None:
        self.runs.add(call_id)
        (command,) = self.feed(ended(self.waits.pop(call_id)))
        assert isinstance(command, RunTool)
        assert command.call.call_id == call_id

    def _is_over(self, call_id: int) -> None:
        self.runs.discard(call_id)
        self.waits.pop(call_id, None)
        self.done.add(call_id)
        if (cell := self.parents.get(call_id)) is not None:
            self.due[cell].append(call_id)

    # Properties

    def check(self) -> None:
        machine = self.machine
        assert machine.calls.under_way() == sorted(self.runs)
        if self.runs:
            assert machine.phase is Phase.ACTING
        elif self.waits:
            (park,) = machine.outstanding()
            assert isinstance(park, Park)
            assert [wait.call_id for wait in park.outcome.waits] == sorted(self.waits)
        else:
            assert machine.phase is Phase.PASSING

    def finish_turn(self) -> None:
        while self.runs or self.waits:
            if self.runs:
                self.settle(max(self.runs))
            else:
                self.wake(min(self.waits))
            self.check()

    def replay(self) -> None:
        """Check that every prefix of the journal yields the same commands and the same outstanding ones."""
        fresh = TurnMachine()
        for body, commands, outstanding in zip(self.journal, self.commands, self.outstanding, strict=True):
            assert _as_json(fresh.feed(decode_input(body))) == commands
            assert _as_json(fresh.outstanding()) == outstanding
        assert (fresh.entries, fresh.outcome) == (self.machine.entries, self.machine.outcome)


def _as_json(commands: list[Command]) -> list[object]:
    return [command_as_json(command) for command in commands]


NAMES = st.lists(st.sampled_from(["look", "pay", "lok!"]), max_size=3)


def _draw_input(shell: Shell, data: st.DataObject) -> None:
    """Draw one input that is possible now or that arrives too late."""
    running, waiting = sorted(shell.runs), sorted(shell.waits)
    options = ["late"] + ["pause", "pause", "settle", "wait"] * bool(running) + ["wake"] * bool(waiting)
    match data.draw(st.sampled_from(options)):
        case "pause":
            shell.pause(data.draw(st.sampled_from(running)), data.draw(NAMES))
        case "settle":
            shell.settle(data.draw(st.sampled_from(running)))
        case "wait":
            shell.wait(data.draw(st.sampled_from(running)))
        case "wake":
            shell.wake(data.draw(st.sampled_from(waiting)))
        case _:
            over = data.draw(st.sampled_from([99, *sorted(shell.done)]))
            late: list[Any] = [
                settled(over),
                waits(over, "late"),
                ended("late"),
                paused(over, 1, "look"),
                finish(over),
            ]
            assert shell.feed(data.draw(st.sampled_from(late))) == []


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 25), st.booleans())
def test_whatever_the_calls_do_each_is_answered_once_and_the_turn_continues(
    data: st.DataObject, tools: int, steps: int, cancel: bool
) -> None:
    """Ours: calls rules 1 to 3 and machine rules 2 to 5, for cells, cells in cells, and calls beside them."""
    shell = Shell(tools)
    for _ in range(steps):
        if shell.machine.phase is Phase.PASSING:
            break
        _draw_input(shell, data)
        shell.check()
    if cancel:
        shell.feed(CancelRequested(at_ms=0))
        assert shell.machine.phase is Phase.ENDED
    else:
        shell.finish_turn()
    answered = [one.call_id for one in shell.machine.messages if isinstance(one, ToolMessage)]
    assert answered == shell.tops
    shell.replay()
