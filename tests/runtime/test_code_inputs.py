"""Large data in code: inputs by name and attachments, read-only, loaded when they are accessed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import (
    AnsweringModel,
    RecordingModel,
    blob_sizes,
    cell,
    coder,
    finish,
    outcomes,
    reports,
    rows,
    typing,
    value_of,
)
from stand_ins import Place, said

from standfast import Agent, Attachment, Runtime, tool
from standfast.errors import Code, InvalidArgument
from standfast.model.canonical import digest_bytes
from standfast.model.message import InputPart, TextPart, UserMessage
from standfast.protocols.code.plugin import CodeMode
from standfast.testing.clock import FakeClock

pytestmark = pytest.mark.slow


@tool(side_effect="external_system", approval="manual")
async def refund(order: str) -> str:
    """Pay back."""
    return f"paid {order}"


@pytest.fixture
def filed(tmp_path: Path, clock: FakeClock) -> Place:
    """Return a store in a SQLite file only."""
    return Place(tmp_path / "standfast.db", clock)


def a_log(megabytes: int = 5) -> str:
    """Return a log of `megabytes` megabytes with three relevant lines."""
    line = "2024-01-01 00:00:00 INFO request %07d served in 12 ms, nothing to see here\n"
    count = megabytes * (1 << 20) // len(line % 0) + 3
    marked = {count // 5: "disk", count // 2: "memory", count - 3: "network"}
    return "".join(
        f"2024-01-01 00:00:00 ERROR {marked[n]} failed at {n}\n" if n in marked else line % n
        for n in range(count + 1)
    )


class Reads:
    """A counter of the blobs that a runtime reads."""

    def __init__(self, runtime: Runtime) -> None:
        self.digests: list[str] = []
        store: Any = runtime.store
        read = store.blob

        async def counted(digest: str) -> bytes | None:
            self.digests.append(digest)
            found: bytes | None = await read(digest)
            return found

        store.blob = counted

    def of(self, value: str) -> int:
        return self.digests.count(digest_bytes(value.encode()))


# A text far larger than the context window


def test_a_text_of_five_megabytes_is_searched_and_summarised_with_a_small_prompt(filed: Place) -> None:
    """Ours: all prompts together contain less than 64 KB of the input."""

    async def main() -> None:
        cells = [
            cell("""
            import re
            places = [found.start() for found in re.finditer("ERROR", log)]
            print(len(log), len(places))
            """),
            cell("""
            import asyncio
            chunks = [log[max(0, at - 1_000) : at + 1_000] for at in places]
            found = await asyncio.gather(*[llm("What failed?", data=one) for one in chunks])
            found
            """),
            finish('", ".join(found)'),
        ]

        def answer(prompt: str) -> str:
            return next(word for word in ("disk", "memory", "network") if f"ERROR {word}" in prompt)

        log = a_log()
        assert len(log) >= 5 << 20
        model = RecordingModel(AnsweringModel(cells, answer))
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, protocol="code"))
            result = await session.turn("What failed?", inputs={"log": log})
            assert result.output == "disk, memory, network"
            assert f"{len(log)} 3" in reports(result.messages)[0].stdout
        assert len(model.requests) == 6
        assert sum(model.prompt_bytes()) < 64 << 10

    asyncio.run(main())


def test_the_model_sees_only_the_name_and_size_of_an_input(memory: Place) -> None:
    """Ours: only code sees the contents of an input."""

    async def main() -> None:
        model = RecordingModel(AnsweringModel(["done"], str))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, protocol="code"))
            await session.turn("Look.", inputs={"log": "secret words", "rows": [{"id": 1}]})
            (kept,) = [one for one in await session.messages() if isinstance(one, UserMessage)]
            assert [type(part) for part in kept.content] == [TextPart, InputPart, InputPart]
        (shown,) = said(model.requests[0].messages)
        assert "Look." in shown
        assert "`log`: text, 12 bytes" in shown
        assert "`rows`: JSON, 10 bytes" in shown
        assert "secret" not in shown

    asyncio.run(main())


# Storage and loading


def test_an_input_is_stored_once_and_is_not_part_of_the_state(filed: Place) -> None:
    """Ours: it is stored by content, neither in the state nor in the journal, however often it is sent."""

    async def main() -> None:
        log = a_log(1)
        assert filed.path is not None
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            for code in (
                "first = log[:10]",
                "last = log[-10:]",
                "count = log.count('x')\nkept = first + last",
            ):
                await session.turn(code, inputs={"log": log})
            assert [size for size in blob_sizes(filed.path) if size > 10_000] == [len(log)]
            ((size,),) = rows(filed.path, "SELECT max(length(body)) FROM states")
            assert size < 10_000
            ((size,),) = rows(filed.path, "SELECT max(length(body)) FROM segments")
            assert size < 10_000

    asyncio.run(main())


def test_an_input_is_loaded_only_by_a_cell_that_reads_it(memory: Place) -> None:
    """Ours: of several inputs only those that the cell reads are loaded."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            reads = Reads(runtime)
            await session.turn("x = 1", inputs={"one": "1" * 5_000, "other": "2" * 5_000})
            assert reads.digests == []
            assert await value_of(session, "len(one) + x") == 5_001
            assert (reads.of("1" * 5_000), reads.of("2" * 5_000)) == (1, 0)
            await session.turn("y = 2")
            assert await value_of(session, "other[:3]") == "222"
            assert (reads.of("1" * 5_000), reads.of("2" * 5_000)) == (1, 1)

    asyncio.run(main())


def test_an_input_is_available_to_a_function_of_an_earlier_cell(memory: Place) -> None:
    """Ours: the function reads the latest value, although the cell's syntax does not show the input."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            reads = Reads(runtime)
            await session.turn("def lines():\n    return len(text.splitlines())", inputs={"text": "a\nb"})
            known = reads.of("a\nb")
            await session.turn("x = 1")
            assert reads.of("a\nb") == known
            assert await value_of(session, "[lines(), lines()]") == [2, 2]
            assert reads.of("a\nb") == known + 1
            result = await session.turn("lines()", inputs={"text": "a\nb\nc"})
            assert outcomes(result.messages) == [3]
            assert await value_of(session, "lines()") == 3

    asyncio.run(main())


def test_inputs_of_earlier_turns_remain_and_the_latest_of_a_name_wins(place: Place) -> None:
    """Ours: an input belongs to the session from then on; a rewind undoes it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("one", inputs={"one": "first", "two": [1]})
            await session.turn("one", inputs={"one": "second"})
            assert await value_of(session, "[one, two]") == ["second", [1]]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "[one, two]") == ["second", [1]]
            await session.rewind(turns=3)
            assert await value_of(session, "[one, two]") == ["first", [1]]

    asyncio.run(main())


def test_a_fork_has_the_inputs_of_its_branch(place: Place) -> None:
    """Ours: each branch has the inputs that were sent to it."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("text", inputs={"text": "shared"})
            other = await session.fork("f")
            await other.turn("text", inputs={"text": "its own"})
            assert await value_of(session, "text") == "shared"
            assert await value_of(other, "text") == "its own"

    asyncio.run(main())


def test_inputs_are_available_in_a_new_frame(place: Place) -> None:
    """Ours: after `continue_as` the messages are no longer visible, but the inputs are."""

    async def main() -> None:
        agent = coder(cell("n = len(text)\ncontinue_as('count on')"), finish("[n, text]"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go", inputs={"text": "abc"}).settled()
            await _drained(session)
            assert outcomes(await session.messages()) == [[3, "abc"]]

    asyncio.run(main())


@pytest.mark.parametrize("before", ["say nothing", "nowhere()", "x = 1"])
def test_inputs_are_available_in_a_frame_that_the_host_opens(place: Place, before: str) -> None:
    """Bug: an input of a turn in which no cell ran was lost with its frame."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn([before] if before != "x = 1" else before, inputs={"text": "abc"})
            await session.open_frame(seed=["before"])
            assert await value_of(session, "text") == "abc"

    asyncio.run(main())


def test_an_input_outlives_the_frame_in_which_it_was_sent(filed: Place) -> None:
    """Bug: pruning frames deleted inputs that code could still read."""

    async def main() -> None:
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("x = len(text)", inputs={"text": "abc" * 1_000, "other": "b" * 1_000})
            await session.open_frame(seed=["before"])
            await session.turn("y = 1", inputs={"other": "c" * 1_000})
            pruned = await runtime.prune(frames=True, branches=True)
            assert pruned.segments == 1
            assert await value_of(session, "[x, y, len(text), other[0]]") == [3_000, 1, 3_000, "c"]

    asyncio.run(main())


def test_a_waiting_cell_keeps_its_inputs(filed: Place) -> None:
    """Ours: a cell resumes in another process with the input that it read, even through a function."""

    async def main() -> None:
        agent = typing(tools=[refund])
        log = a_log(1)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("def end():\n    return log[-8:]", inputs={"log": log, "other": "later"})
            waiting = await session.turn("a = log[:4]\nb = refund('A')\n[a, b, len(log), end(), other]")
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.approve(waiting.waits[0].wait_id)
            assert outcomes(result.messages) == [["2024", "paid A", len(log), log[-8:], "later"]]
            assert await value_of(session, "[a, log[:4]]") == ["2024", "2024"]
            assert filed.path is not None
            ((size,),) = rows(filed.path, "SELECT max(length(body)) FROM states")
            assert size < 10_000

    asyncio.run(main())


# Read-only


@pytest.mark.parametrize(
    "code",
    [
        "text = 'mine'",
        "text += 'more'",
        "for text in []:\n    pass",
        "import json as text",
        "def text():\n    pass",
        "def change():\n    global text\n    text = 1",
        "history = []",
        "attachments = {}",
    ],
)
def test_an_input_cannot_be_rebound(memory: Place, code: str) -> None:
    """Ours: the check refuses it, so no part of the cell runs."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn(f"ran = 1\n{code}", inputs={"text": "theirs"})
            (report,) = reports(result.messages)
            assert report.error is not None
            assert report.error.code == Code.TYPE_ERROR
            assert "read-only" in report.error.message
            assert await value_of(session, "text") == "theirs"
            assert await value_of(session, "ran") == Code.RUNTIME_ERROR

    asyncio.run(main())


def test_changes_that_a_cell_makes_to_an_input_are_not_kept(memory: Place) -> None:
    """Ours: a cell may change its copy in place; the next cell has the value that was sent."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn("rows.append(3)\nrows", inputs={"rows": [1, 2]})
            assert outcomes(result.messages) == [[1, 2, 3]]
            assert await value_of(session, "rows") == [1, 2]
            assert await value_of(session, "mine = rows\nmine.append(4)\nmine") == [1, 2, 4]
            assert await value_of(session, "[mine, rows]") == [[1, 2, 4], [1, 2]]

    asyncio.run(main())


def test_a_local_variable_may_have_the_name_of_an_input(memory: Place) -> None:
    """Ours: only the global name is reserved, so local names cause no false alarm."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            code = "def f(text):\n    return text + 1\n[f(1), [text for text in (2,)], text]"
            result = await session.turn(code, inputs={"text": "theirs"})
            assert outcomes(result.messages) == [[2, [2], "theirs"]]

    asyncio.run(main())


# Valid and invalid inputs


JSON: dict[str, Any] = {
    "nothing": None,
    "yes": True,
    "number": -1.5,
    "large": 10**30,
    "nested": {"a": [1, {"b": None}], "ü": "\u2028"},
    "empty": [],
    "words": "äöü \U0001f600",
}


def test_json_inputs_keep_their_values(place: Place) -> None:
    """Ours: an input may be any JSON value and any text."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn(f"[{', '.join(JSON)}]", inputs=JSON)
            assert outcomes(result.messages) == [list(JSON.values())]

    asyncio.run(main())


@pytest.mark.parametrize(
    "name",
    ["", "a b", "1a", "class", "print", "len", "é", "a-b", "__name__", "history", "attachments", "result"],
)
def test_a_name_that_cannot_be_a_variable_is_refused(name: str) -> None:
    """Ours: the error is raised before a turn begins."""
    with pytest.raises(InvalidArgument, match="cannot be the name of an input"):
        _blank_turn({name: "text"})


@pytest.mark.parametrize(
    "name", ["finish", "continue_as", "llm", "sleep", "search_tools", "describe_tool", "run_code"]
)
def test_an_input_must_not_hide_a_name_that_code_needs(name: str) -> None:
    """Bug: an input named `finish` hid the function, and no cell could end the turn."""
    with pytest.raises(InvalidArgument, match="cannot be the name of an input"):
        _blank_turn({name: "text"})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", "\ud800", float("nan"), [lambda: 1]])
def test_a_value_that_is_neither_text_nor_json_is_refused(value: object) -> None:
    """Ours: bytes must be sent as attachments."""
    with pytest.raises(InvalidArgument, match="input 'x'"):
        _blank_turn({"x": value})


def test_a_name_that_is_not_text_is_refused() -> None:
    """Ours: the keys of the mapping are checked."""
    with pytest.raises(InvalidArgument):
        _blank_turn({3: "text"})


def test_an_input_hides_a_tool_and_a_variable_of_the_same_name(memory: Place) -> None:
    """Ours: an input takes precedence, and the variable is removed."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=[refund]))
            await session.turn("x = 1")
            result = await session.turn("[x, refund]", inputs={"x": "theirs", "refund": [2]})
            assert outcomes(result.messages) == [["theirs", [2]]]

    asyncio.run(main())


# Attachments


def test_attachments_are_read_by_name(place: Place) -> None:
    """Ours: a text file is a string, including JSON; any other file is bytes."""

    async def main() -> None:
        sent = [
            Attachment("grün\n".encode(), "text/plain", "notes.txt"),
            Attachment(b'{"a": 1}', "application/json", "data.json"),
            Attachment(bytes(range(256)), "image/png", "picture.png"),
            Attachment(b"no name", "text/plain"),
        ]
        code = """
        import json
        picture = attachments["picture.png"]
        found = [
            attachments["notes.txt"],
            json.loads(attachments["data.json"])["a"],
            [len(picture), picture[255]],
            sorted(attachments),
        ]
        """
        agent = coder(cell(code), finish("found"), finish("attachments['notes.txt']"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn(["look", *sent])
            names = ["attachment_4", "data.json", "notes.txt", "picture.png"]
            assert outcomes(result.messages)[-1] == ["grün\n", 1, [256, 255], names]
            assert (await session.turn("later")).output == "grün\n"

    asyncio.run(main())


def test_only_attachments_that_the_code_names_are_loaded(memory: Place) -> None:
    """Ours: other attachments are not read from the store."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            reads = Reads(runtime)
            sent = [Attachment(f"{n}".encode() * 10, "text/plain", f"{n}.txt") for n in range(3)]
            await session.turn(["x = 1", *sent])
            assert reads.digests == []
            assert await value_of(session, "attachments['1.txt']") == "1" * 10
            assert (len(reads.digests), reads.of("1" * 10)) == (1, 1)
            assert await value_of(session, "[len(attachments[one]) for one in attachments]") == [10] * 3
            assert len(reads.digests) == 4

    asyncio.run(main())


def test_reading_a_missing_attachment_raises_a_key_error(memory: Place) -> None:
    """Ours: `attachments` behaves like any dictionary."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn("attachments['nothing.txt']")
            assert "KeyError" in str(reports(result.messages)[0].error)
            assert await value_of(session, "len(attachments)") == 0

    asyncio.run(main())


# One-off runs, and other protocols


def test_one_off_runs_take_inputs() -> None:
    """Ours: `agent.run`, `run_sync` and `run_stream` take `inputs=`."""
    agent = coder(finish("len(log) + n"))
    inputs = {"log": "x" * 100_000, "n": 1}
    assert agent.run_sync("go", inputs=inputs).output == "100001"
    assert asyncio.run(coder(finish("n")).run("go", inputs=inputs)).output == "1"

    async def streamed() -> Any:
        turn = coder(finish("n + 1")).run_stream("go", inputs=inputs)
        return [event async for event in turn][-1], (await turn).output

    assert asyncio.run(streamed())[1] == "2"
    with pytest.raises(InvalidArgument):
        agent.run_sync("go", inputs={"class": 1})


def test_code_mode_has_inputs_too(memory: Place) -> None:
    """Ours: code mode uses the same executor as the code protocol."""

    async def main() -> None:
        call = {"tool_calls": [{"name": "run_code", "arguments": {"code": "finish(len(log))"}}]}
        agent = coder(call, protocol="standard", plugins=[CodeMode()])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go", inputs={"log": "x" * 70_000})).output == "70000"

    asyncio.run(main())


def test_the_same_inputs_under_one_idempotency_key_are_one_turn(place: Place) -> None:
    """Ours: the inputs are part of the request that the key names."""

    async def main() -> None:
        agent = coder(finish("text"))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            first = await session.turn("go", inputs={"text": "a"}, idempotency_key="k")
            again = await session.turn("go", inputs={"text": "a"}, idempotency_key="k")
            assert (first.turn_id, first.output) == (again.turn_id, again.output)
            from standfast.errors import IdempotencyConflict

            with pytest.raises(IdempotencyConflict):
                await session.turn("go", inputs={"text": "b"}, idempotency_key="k")

    asyncio.run(main())


def _blank_turn(inputs: Any) -> None:
    """Begin a turn with these inputs that is never run."""

    async def main() -> None:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=coder())
            session.turn("go", inputs=inputs)

    asyncio.run(main())


async def _drained(session: Any) -> None:
    """Wait for the queued turns."""
    while (task := session._live.draining) is not None and not task.done():
        await asyncio.wait([task])
