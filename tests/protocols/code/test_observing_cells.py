"""The model's view of its cells, and the view that later cells have of them: `history`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from code_stand_ins import blob_sizes, cell, finish, outcomes, reports, rows, typing, value_of
from code_turns import Played, coder_on, observations, play, take_turns
from stand_ins import Place, asks

from standfast import CodeMode, CodeProtocol
from standfast.model.code import CellReport
from standfast.model.message import AttachmentPart, Message, ToolMessage
from standfast.testing.clock import FakeClock

LONG = "for number in range(5_000): print('line', number)"


def attached(messages: tuple[Message, ...]) -> list[AttachmentPart]:
    return [part for one in messages if isinstance(one, ToolMessage) for part in one.attachments]


def last_read(played: Played, call: int) -> str:
    """Return the last message that the model read in one of its calls."""
    return played.read(call)[-1]


# What the model reads


def test_an_observation_has_output_result_and_calls(memory: Place) -> None:
    """Seed: the observation has stdout, result, diagnostics and calls."""
    played = play(memory, cell("print('hello')\n[look('a'), add(1)]"), "over")
    assert last_read(played, 1) == (
        '[cell 0] ok\nstdout:\nhello\nresult:\n["seen a",2]\ncalls:\nlook(key="a") -> ok\nadd(a=1) -> ok'
    )


@pytest.mark.parametrize("chars", [300, 2_000])
def test_a_long_output_is_cut_for_the_model_but_complete_for_the_next_cell(place: Place, chars: int) -> None:
    """Seed: the observation stays within its budget; the next cell can read everything."""
    code = "[len(history[-1]['stdout']), history[-1]['stdout'][-10:], history[0]['stdout'].count('line')]"
    protocol = CodeProtocol(observation_chars=chars)
    played = play(place, cell(LONG), cell(code), "over", protocol=protocol)
    told = last_read(played, 1)
    assert len(told) <= chars
    assert told.startswith("[cell 0] ok\nstdout:\nline 0\n")
    assert 'characters left out; history[0]["stdout"] has all of it …' in told
    assert told.endswith("line 4999")
    size = sum(len(f"line {number}\n") for number in range(5_000))
    assert outcomes(played.first.messages)[1] == [size, "line 4999\n", 5_000]


def test_a_long_result_in_history_is_complete_and_keeps_its_type(place: Place) -> None:
    """Ours: later code gets a list as a list, however little of it the model has read."""
    code = "rows = history[0]['result']\n[type(rows).__name__, len(rows), rows[-1]]"
    played = play(place, cell("[{'n': n} for n in range(20_000)]"), cell(code), "over")
    assert len(last_read(played, 1)) <= 8_000
    assert outcomes(played.first.messages)[1] == ["list", 20_000, {"n": 19_999}]


def test_a_long_report_is_one_attachment_of_its_message(tmp_path: Path) -> None:
    """Ours: the report is stored once, by content, so the message and the journal stay small."""
    path = tmp_path / "standfast.db"
    played = play(Place(path, FakeClock()), cell(LONG), cell("len(history[0]['stdout'])"), "over")
    (part,) = attached(played.first.messages)
    assert (part.name, part.media_type) == ("cell.json", "application/json")
    assert blob_sizes(path).count(part.size) == 1
    ((data,),) = rows(path, "SELECT data FROM blobs WHERE digest = ?", part.digest)
    whole = msgspec.json.decode(data, type=CellReport)
    assert whole.stdout.count("line") == 5_000
    kept = [msgspec.json.encode(one.value) for one in played.first.messages if isinstance(one, ToolMessage)]
    assert max(map(len, kept)) <= 4_000


def test_short_reports_are_stored_in_their_messages(tmp_path: Path) -> None:
    """Ours: a message that holds the complete report needs no attachment."""
    path = tmp_path / "standfast.db"
    played = play(Place(path, FakeClock()), cell("print('short')"), cell("history[0]['stdout']"), "over")
    assert attached(played.first.messages) == []
    assert outcomes(played.first.messages)[1] == "short\n"
    assert blob_sizes(path) == []


def test_reading_history_stores_nothing(tmp_path: Path) -> None:
    """Ours: `history` is loaded only for a cell that reads it, and is not part of the variables."""
    path = tmp_path / "standfast.db"
    script = [cell(LONG), *[cell(f"{number} + len(history[0]['stdout'])") for number in range(3)], "over"]
    play(Place(path, FakeClock()), *script)
    assert len(blob_sizes(path)) == 1
    assert sum(len(body) for (body,) in rows(path, "SELECT body FROM states")) < 10_000


def test_many_long_cells_keep_the_prompt_short(memory: Place) -> None:
    """Ours: a cell takes no more space in the prompt than its observation."""
    script = [cell(f"x = {number}\n{LONG}") for number in range(5)]
    played = play(memory, *script, "over", protocol=CodeProtocol(observation_chars=500))
    assert sum(len(text) for text in played.read()) < 5 * 500 + 100


# history


def test_history_has_every_cell_in_order(place: Place) -> None:
    """Seed: `history[n]` has earlier results, whether the cell succeeded or failed."""
    script = [
        cell("print('out')\n1"),
        cell("1 / 0"),
        cell("x = = 1"),
        "```bash\nls\n```",
        cell("look('a')"),
        cell("[[one['result'], one['error'] and one['error']['code']] for one in history]"),
        cell("[len(history), history[-1]['code'][:5], history[-2]['result'], history[2]['code']]"),
        "over",
    ]
    played = play(place, *script)
    assert outcomes(played.first.messages)[5] == [
        [1, None],
        [None, "RUNTIME_ERROR"],
        [None, "SYNTAX_ERROR"],
        [None, "UNSUPPORTED_FEATURE"],
        ["seen a", None],
    ]
    assert outcomes(played.first.messages)[6] == [6, "[[one", "seen a", "x = = 1"]


def test_history_is_empty_at_first_and_has_bounds(memory: Place) -> None:
    """Ours: `history` behaves like any list, and an index past its end is an error."""
    script = [cell("len(history)"), cell("history[7]"), cell("history[-1]['error']['message']"), "over"]
    played = play(memory, *script)
    assert outcomes(played.first.messages)[0] == 0
    assert "IndexError" in outcomes(played.first.messages)[2]


def test_history_cannot_be_rebound_and_changes_to_it_are_discarded(memory: Place) -> None:
    """Ours: each cell gets a copy."""
    script = [cell("1"), cell("history = []"), cell("history.clear()\nhistory"), cell("len(history)"), "over"]
    found = outcomes(play(memory, *script).first.messages)
    assert found == [1, "TYPE_ERROR", [], 3]


def numbers(messages: tuple[Message, ...]) -> list[int]:
    """Return the numbers of cells, which must agree between the observations and the reports."""
    told = [int(text.removeprefix("[cell ").partition("]")[0]) for text in observations(messages)]
    assert told == [one.index for one in reports(messages)]
    return told


HERE = cell("[len(history), [one['result'] for one in history[-2:]]]")


def test_numbers_continue_across_turns_and_processes(place: Place) -> None:
    """Ours: the number in the text is the index in `history`, in any process."""

    async def main() -> None:
        agent, model = coder_on(cell("'a'"), "one", cell("'b'"), HERE, "two", HERE, "three")
        played = Played(model)
        for words in (["1"], ["2"], ["3"]):
            async with place.runtime() as runtime:
                await take_turns(await runtime.session("s", agent=agent), played, words)
        assert [numbers(one.messages) for one in played.results] == [[0], [1, 2], [3]]
        assert outcomes(played.results[1].messages)[1] == [2, ["a", "b"]]
        assert outcomes(played.results[2].messages)[0] == [3, ["b", [2, ["a", "b"]]]]

    asyncio.run(main())


def test_numbers_and_history_follow_a_fork_and_a_rewind(place: Place) -> None:
    """Ours: each branch continues from the cells that it has seen."""
    here = "[len(history), [one['result'] for one in history]]"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await value_of(session, "'a'")
            await value_of(session, "'b'")
            forked = await (await session.fork("f")).turn(here)
            assert (numbers(forked.messages), outcomes(forked.messages)) == ([2], [[2, ["a", "b"]]])
            await session.rewind(turns=1)
            back = await session.turn(here)
            assert (numbers(back.messages), outcomes(back.messages)) == ([1], [[1, ["a"]]])

    asyncio.run(main())


def test_a_new_frame_resets_the_count(place: Place) -> None:
    """Ours: a new frame knows only its seed."""

    async def main() -> None:
        agent, model = coder_on(cell("x = 'a'"), "one", HERE, cell("x"), "two")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            played = Played(model)
            await take_turns(session, played, ["1"])
            await session.open_frame(seed=["begin anew"])
            await take_turns(session, played, ["2"])
            assert numbers(played.last.messages) == [0, 1]
            assert outcomes(played.last.messages) == [[0, []], "a"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [{"protocol": CodeProtocol(cells="tool_call")}, {"protocol": "standard", "plugins": [CodeMode()]}],
    ids=["protocol", "mode"],
)
def test_history_is_the_same_if_cells_are_tool_calls(place: Place, options: dict[str, Any]) -> None:
    """Ours: `history` is the same however the model sends its cells, and has no other calls."""
    script = [
        asks(("run_code", {"code": LONG})),
        asks(("look", {"key": "a"})),
        asks(("run_code", {"code": "[len(history), history[0]['stdout'].count('line')]"})),
        "over",
    ]
    played = play(place, *script, **options)
    assert outcomes(played.first.messages)[1] == [1, 5_000]
    told = [one.shown or "" for one in played.first.messages if isinstance(one, ToolMessage)]
    assert 'history[0]["stdout"] has all of it' in told[0]
    assert told[2].startswith("[cell 1] ok")


def test_a_missing_blob_leaves_the_text_in_the_message(tmp_path: Path) -> None:
    """Ours: a missing blob loses the middle of a text, not the session."""
    path = tmp_path / "standfast.db"
    agent, model = coder_on(cell(LONG), "one", finish("[history[0]['cut'], history[0]['stdout'][:6]]"))

    async def main() -> None:
        played = Played(model)
        place = Place(path, FakeClock())
        async with place.runtime() as runtime:
            await take_turns(await runtime.session("s", agent=agent), played, ["1"])
        rows(path, "DELETE FROM blobs")
        async with place.runtime() as runtime:
            await take_turns(await runtime.session("s", agent=agent), played, ["2"])
        assert played.last.output == '[true,"line 0"]'

    asyncio.run(main())


def test_printing_too_much_does_not_lose_variables(memory: Place) -> None:
    """Ours: the limit on output does not affect variables."""
    played = play(memory, cell(f"x = 1\n{LONG}"), finish("[x, number]"))
    assert played.first.output == "[1,4999]"
