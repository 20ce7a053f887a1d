"""Golden histories: turns recorded by an earlier version replay in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from machine_turns import Turn, answered, calls, passed, settled, started

from standfast.errors import InvalidArgument, SchemaTooNew
from standfast.machine import (
    CallModel,
    Checkpoint,
    Command,
    ContinueCell,
    Input,
    RunTool,
    ToolSettled,
    TurnMachine,
    encode_input,
)
from standfast.model.message import ToolCall
from standfast.model.outcome import Approved
from standfast.testing.histories import (
    FORMAT,
    History,
    command_as_json,
    complete,
    load,
    main,
    record,
    record_journal,
    replay,
    save,
)

FILES = sorted((Path(__file__).parent / "histories").glob("*.json"))


@pytest.fixture
def history() -> History:
    """Return the history of a turn with one tool call."""
    turn = Turn(started(), calls("look"), settled(1, "grass"), passed("after_work"), answered("green"))
    turn.feed(passed("before_completion"))
    return record("green", turn.inputs)


@pytest.fixture
def draft(history: History, tmp_path: Path) -> Path:
    path = tmp_path / "green.json"
    inputs = [json.loads(encode_input(given)) for given in history.inputs]
    path.write_text(json.dumps({"name": "green", "inputs": inputs}))
    return path


def _change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# The golden ones


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_history_replays_to_the_same_commands_entries_and_outcome(path: Path) -> None:
    """Ours: a turn that began under an earlier version continues under this one."""
    history = load(path)
    assert not history.is_draft
    assert history.name == path.stem
    assert json.loads(path.read_text())["format"] == FORMAT
    assert replay(history) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_history_can_be_taken_over_after_any_of_its_inputs(path: Path) -> None:
    """Ours: after a crash anywhere, a fresh machine requests exactly the outstanding effects."""
    history = load(path)
    for count in range(1, len(history.inputs) + 1):
        machine = TurnMachine()
        for given in history.inputs[:count]:
            machine.feed(given)
        asked = [_unruled(command) for commands in history.commands[:count] for command in commands]
        assert all(_unruled(command_as_json(command)) in asked for command in machine.outstanding())
        assert (machine.outstanding() == []) == (machine.outcome is not None)


def _unruled(command: Any) -> dict[str, Any]:
    """Return the command without the fields that plugins set later."""
    return {key: value for key, value in command.items() if key not in ("ruled", "arguments")}


def test_there_is_a_golden_history_of_each_kind_of_turn() -> None:
    """Ours: the test fails if a golden history is deleted."""
    assert {path.stem for path in FILES} >= {
        "plain", "one_tool", "ten_parallel", "malformed_arguments", "approval_granted", "approval_denied",
        "approval_edited", "approval_expired", "denied_again_and_again", "timer", "completion",
        "cancelled_mid_tool", "retry_then_success", "provider_error", "context_overflow", "injected_messages",
        "output_retry", "output_never_fits", "frame_switch", "resumed_after_a_crash", "out_of_time",
        "aborted_by_a_plugin", "plugins_at_every_stage", "plugin_aborts_over_a_call",
        "plugin_aborts_over_a_result", "plugin_fails_before_the_turn", "plugin_fails_at_the_end", "compacted",
        "compacted_after_an_overflow", "overflow_that_stays", "frame_switch_instead_of_a_call",
        "arguments_replaced", "held_by_a_plugin", "end_put_off", "cancelled_after_plugins_heard_of_the_end",
        "cell_with_a_gather_and_a_wait", "cell_finishes_the_turn", "cell_ends_while_a_call_waits",
        "budget_warnings_and_a_last_step", "cancelled_mid_cell", "retries_spread_and_at_once",
        "retry_after_too_long", "out_of_model_calls", "out_of_money", "timed_out_and_repeated",
    }  # fmt: skip


def test_the_golden_histories_cover_every_input_and_every_command() -> None:
    """Ours: every kind of input and command that a journal may hold is covered by a golden history."""
    histories = [load(path) for path in FILES]
    assert {type(given) for history in histories for given in history.inputs} == set(get_args(Input))
    done = {one["do"] for history in histories for commands in history.commands for one in commands}
    assert done == {command.__name__ for command in get_args(Command)}


def test_messages_of_plugins_for_the_next_turn_are_part_of_a_history() -> None:
    """Ours: these messages become the input of another turn, and must not get lost between versions."""
    history = load(next(path for path in FILES if path.stem == "end_put_off"))
    assert history.next_messages == ({"type": "user", "content": "Send it with the summary."},)
    assert replay(msgspec.structs.replace(history, next_messages=())) == [
        'the next messages were [], are [{"type":"user","content":"Send it with the summary."}]'
    ]


# Recording and replaying


def test_a_recorded_turn_replays_without_a_difference(history: History) -> None:
    """Ours: recording a turn and replaying the recording agree."""
    assert replay(history) == []
    assert (history.name, len(history.commands), len(history.entries)) == ("green", 6, 4)
    assert history.outcome == {"type": "finished", "text": "green"}


def test_a_journal_can_be_recorded(history: History) -> None:
    """Ours: users can record the history of a real turn from its journal."""
    assert record_journal("green", map(encode_input, history.inputs)) == history


def test_a_turn_in_progress_is_a_history_without_an_outcome(history: History) -> None:
    """Ours: a turn can be recorded before it has ended."""
    half = record("half", history.inputs[:2])
    assert half.outcome is None
    assert replay(half) == []


def test_every_difference_is_reported_with_the_input_it_follows(history: History) -> None:
    """Ours: a contributor who breaks a history sees which input gave another result."""
    other = msgspec.structs.replace(
        history,
        commands=(*history.commands[:2], ({"do": "Park"},), *history.commands[3:]),
        entries=({"at_ms": 7}, *history.entries[1:]),
        outcome=None,
    )
    commands, entry, outcome = replay(other)
    assert commands == (
        'input 3 (ToolSettled): commands were [{"do":"Park"}], '
        'are [{"do":"Checkpoint","kind":"after_work","number":1}]'
    )
    assert entry.startswith('entry 1 was {"at_ms":7}, is {"at_ms":0,')
    assert outcome == 'the outcome was null, is {"type":"finished","text":"green"}'


def test_missing_entries_are_a_difference(history: History) -> None:
    """Ours: a history with fewer entries must not pass as equal."""
    assert replay(msgspec.structs.replace(history, entries=history.entries[:-1])) == [
        "there were 3 entries, there are 4"
    ]


def test_missing_commands_are_a_difference(history: History) -> None:
    """Ours: a draft or a truncated file does not pass as a history."""
    assert replay(msgspec.structs.replace(history, commands=())) == [
        "6 inputs, but the commands of 0 are recorded"
    ]


def test_inputs_that_the_machine_refuses_are_a_difference(history: History) -> None:
    """Ours: a journal that can no longer be replayed is reported as a difference."""
    (line,) = replay(msgspec.structs.replace(history, inputs=history.inputs[1:]))
    assert line.startswith("the inputs cannot be fed any more: turn ? got ModelReplied while new")


def test_fields_with_default_values_are_omitted_from_commands() -> None:
    """Ours: adding a field to a command later changes no file."""
    call = ToolCall(call_id=1, name="look", arguments={})
    assert command_as_json(CallModel(2)) == {"do": "CallModel", "number": 2}
    assert command_as_json(RunTool(call, 2, granted=Approved())) == {
        "do": "RunTool",
        "call": {"call_id": 1, "name": "look", "arguments": {}},
        "attempt": 2,
        "granted": {"type": "approved"},
    }
    answer = ToolSettled(at_ms=1, call_id=2, value=3)
    assert command_as_json(ContinueCell(call, None, [call], [answer], 1)) == {
        "do": "ContinueCell",
        "call": {"call_id": 1, "name": "look", "arguments": {}},
        "arguments": None,
        "made": [{"call_id": 1, "name": "look", "arguments": {}}],
        "answers": [{"type": "tool_settled", "at_ms": 1, "call_id": 2, "value": 3}],
        "count": 1,
    }
    assert command_as_json(Checkpoint("after_work", 1)) == {
        "do": "Checkpoint", "kind": "after_work", "number": 1,
    }  # fmt: skip


# Files


def test_a_saved_history_is_loaded_unchanged(history: History, tmp_path: Path) -> None:
    """Ours: saving and loading changes nothing in a history."""
    save(history, tmp_path / "h.json")
    assert load(tmp_path / "h.json") == history


def test_an_existing_file_is_not_overwritten(history: History, tmp_path: Path) -> None:
    """Ours: recorded data is never overwritten silently."""
    path = tmp_path / "h.json"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        save(history, path)
    assert path.read_text() == "mine"
    save(history, path, replace=True)
    assert load(path) == history


def test_a_history_of_a_later_format_is_refused(draft: Path) -> None:
    """Ours: an unknown format raises an error instead of being guessed at."""
    _change(draft, format=FORMAT + 1)
    with pytest.raises(SchemaTooNew, match=r"green\.json has format 2"):
        load(draft)
    _change(draft, format=0)
    with pytest.raises(InvalidArgument, match="format 0"):
        load(draft)


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"name": "x", "inputs": [{"type": "nope"}]}'])
def test_a_file_that_is_not_a_history_is_refused(text: str, tmp_path: Path) -> None:
    """Ours: the error names the file."""
    (tmp_path / "h.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"h\.json is not a history"):
        load(tmp_path / "h.json")


def test_a_draft_is_completed(draft: Path, history: History) -> None:
    """Ours: inputs are written by hand or taken from a journal, the rest is recorded."""
    assert load(draft).is_draft
    assert complete(draft) == []
    assert load(draft) == history


def test_completing_a_history_that_replays_leaves_the_file_alone(draft: Path) -> None:
    """Ours: a history that is already complete is not rewritten."""
    complete(draft)
    before = draft.stat().st_mtime_ns, draft.read_bytes()
    assert complete(draft, replace=True) == []
    assert (draft.stat().st_mtime_ns, draft.read_bytes()) == before


def test_a_recorded_history_changes_only_on_request(draft: Path, history: History) -> None:
    """Ours: recorded data is never overwritten silently."""
    complete(draft)
    _change(draft, outcome=None)
    with pytest.raises(InvalidArgument, match="would change: the outcome was null") as caught:
        complete(draft)
    assert "--replace" in (caught.value.hint or "")
    assert load(draft).outcome is None
    assert complete(draft, replace=True) == ['the outcome was null, is {"type":"finished","text":"green"}']
    assert load(draft) == history


# Command line


def test_files_are_written_and_checked_from_the_command_line(
    draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: `standfast.testing.histories` writes and checks files only on an explicit command."""
    assert main(["check", str(draft)]) == 1
    assert main(["write", str(draft)]) == 0
    assert main(["check", str(draft)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{draft}: 6 inputs, but the commands of 0 are recorded",
        f"{draft}: there were 0 entries, there are 4",
        f'{draft}: the outcome was null, is {{"type":"finished","text":"green"}}',
        f"{draft}: ok",
        f"{draft}: ok",
    ]


def test_the_command_line_continues_after_a_file_that_cannot_be_written(
    draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: one bad file does not hide the others, and sets the exit status."""
    missing = draft.parent / "missing.json"
    assert main(["write", str(missing), str(draft)]) == 1
    out, err = capsys.readouterr()
    assert out == f"{draft}: ok\n"
    assert str(missing) in err
    _change(draft, entries=[])
    assert main(["write", str(draft)]) == 1
    assert "would change" in capsys.readouterr().err
    assert main(["write", "--replace", str(draft)]) == 0
    assert capsys.readouterr().out == f"{draft}: there were 0 entries, there are 4\n"


def test_the_module_can_be_run(draft: Path) -> None:
    """Ours: `python -m standfast.testing.histories` runs the command line."""
    command = [sys.executable, "-m", "standfast.testing.histories", "write", str(draft)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{draft}: ok\n", "")
