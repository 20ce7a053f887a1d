"""Tool output budget: of a long result the head and tail are shown, and the whole can be read back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins import Place, asks

from standfast import Agent, ToolError, UsageLimits, tool
from standfast.errors import InvalidArgument
from standfast.model.canonical import digest_bytes, digest_json
from standfast.model.message import ToolMessage
from standfast.plugins.shipped import ToolOutputBudget
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall
from standfast.providers.scripted import ScriptedModel

LINES = "".join(f"line {number}\n" for number in range(1, 3_001))
MEGABYTE = "0123456789" * 104_000
PARROTS = "🦜" * 3_000 + "\n" + "ab\n" * 300
PATIENT = UsageLimits(max_iterations=1_000)
NOTE = re.compile(
    r"\[(.+) in (\d+) lines left out here; "
    r"read_output\(attachment=\"([0-9a-f]{12})\", start_line=(\d+)\) reads them\]"
)

OUTPUTS: dict[str, Any] = {
    "lines": LINES,
    "megabyte": MEGABYTE,
    "rows": [{"id": number, "name": f"n{number}"} for number in range(2_000)],
    "unicode": "añ漢🦜" * 20_000,
    "parrots": PARROTS,
    "short": "ok",
    "nothing": None,
    "number": 3.5,
    "empty": "",
}


@tool(side_effect="read")
def fetch(what: str) -> Any:
    """Fetch something."""
    return OUTPUTS[what]


@tool(side_effect="read")
def fail(size: int) -> str:
    """Fail with a long message."""
    raise ToolError("OUT_OF_LUCK", "".join(f"reason {number}\n" for number in range(size)), hint="try b")


@tool(approval="manual")
def pay() -> str:
    """Pay."""
    return "paid"


def fits(text: str, max_bytes: int = 16_384, max_lines: int = 400) -> bool:
    return len(text.encode()) <= max_bytes and text.count("\n") < max_lines


def tool_messages(messages: Any) -> list[ToolMessage]:
    return [one for one in messages if isinstance(one, ToolMessage)]


def budgeted(*replies: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(replies), tools=[fetch, fail, pay], plugins=[ToolOutputBudget(**options)])


async def fetched(place: Place, what: str, **options: Any) -> tuple[ToolMessage, bytes]:
    """Return the result of a call after the plugin has run, and the attachment it kept."""
    async with place.runtime() as runtime:
        agent = budgeted(asks(("fetch", {"what": what})), "end", **options)
        session = await runtime.session("s", agent=agent)
        (message,) = tool_messages((await session.turn("go")).messages)
        kept = b"".join([await session.attachment(part.digest) for part in message.attachments])
        return message, kept


class Reader:
    """A model that fetches a long result and reads it from the cut to its end."""

    def __init__(self, what: str) -> None:
        self.model_id = "reader:one"
        self.read: list[str] = []
        self.cut = ""
        self._what = what

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        last = request.messages[-1]
        if not isinstance(last, ToolMessage):
            yield asking("fetch", what=self._what)
        elif last.name == "fetch":
            self.cut = last.value
            yield asking("read_output", attachment=noted(self.cut)[2])
        else:
            assert isinstance(last.value, str), last.error
            self.read.append(last.value)
            yield self._next(last.value)

    def _next(self, value: str) -> ReplyEnded:
        more = re.match(r"\[lines .*; continue with start_line=(\d+)\]", value)
        if more is None:
            return ReplyEnded(text="end")
        return asking("read_output", attachment=noted(self.cut)[2], start_line=int(more[1]), lines=10_000)

    @property
    def whole(self) -> str:
        """Return everything that was read, without the plugin's notes."""
        return "".join(one.split("\n", 1)[1] for one in self.read)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def asking(name: str, **arguments: Any) -> ReplyEnded:
    return ReplyEnded(text="", calls=(RequestedCall(name=name, arguments=json.dumps(arguments)),))


def noted(cut: str) -> tuple[str, int, str, int]:
    """Return the facts in the note of a cut result: size, lines, name, first line."""
    found = NOTE.search(cut)
    assert found is not None
    return found[1], int(found[2]), found[3], int(found[4])


def name_of(text: str) -> str:
    return digest_bytes(text.encode())[:12]


# Display


@pytest.mark.parametrize("what", ["short", "nothing", "number", "empty"])
def test_a_short_result_is_unchanged(memory: Place, what: str) -> None:
    """Ours: a value that fits keeps its type."""
    message, kept = asyncio.run(fetched(memory, what))
    assert (message.value, message.attachments, kept) == (OUTPUTS[what], (), b"")


def test_a_long_result_is_cut_to_head_and_tail_and_stored_whole(place: Place) -> None:
    """Seed: above 16 KiB or 400 lines, head and tail are shown and the whole is kept as an attachment."""
    message, kept = asyncio.run(fetched(place, "lines"))
    assert fits(message.value)
    assert message.value.startswith("line 1\nline 2\n")
    assert message.value.endswith("line 2999\nline 3000\n")
    size, count, name, start = noted(message.value)
    shown = message.value.split("\n")
    note = next(place for place, line in enumerate(shown) if NOTE.match(line))
    assert shown[note - 1] == f"line {start - 1}"
    assert shown[note + 1] == f"line {start + count - 1}"
    assert size.endswith(" KB")
    assert kept.decode() == LINES
    assert message.attachments[0].digest.startswith(name)
    assert message.attachments[0].media_type == "text/plain"


def test_other_json_is_cut_as_indented_json(place: Place) -> None:
    """Ours: the model can read indented JSON line by line."""
    message, kept = asyncio.run(fetched(place, "rows"))
    assert fits(message.value)
    assert message.value.startswith('[\n  {\n    "id": 0,\n    "name": "n0"\n  },\n')
    assert json.loads(kept) == OUTPUTS["rows"]
    assert message.attachments[0].media_type == "application/json"


def test_the_call_record_has_the_digest_of_the_shortened_result(memory: Place) -> None:
    """Ours: the record describes its message; the attachment has the digest of the original."""
    message, kept = asyncio.run(fetched(memory, "rows"))
    assert message.record is not None
    assert message.record.response_digest == digest_json(message.value)
    assert message.attachments[0].digest == digest_bytes(kept)
    assert json.loads(kept) == OUTPUTS["rows"]


def test_the_record_of_an_uncut_call_is_unchanged(memory: Place) -> None:
    """Ours: the digest in the record is that of the result."""
    message, _ = asyncio.run(fetched(memory, "short"))
    assert message.record is not None
    assert message.record.response_digest == digest_json(OUTPUTS["short"])


def test_one_line_of_a_megabyte_is_cut_between_characters(memory: Place) -> None:
    """Ours: the text may have no line to cut at."""
    message, kept = asyncio.run(fetched(memory, "megabyte"))
    assert 15_000 < len(message.value) <= 16_384
    assert kept.decode() == MEGABYTE


def test_multibyte_characters_stay_whole(memory: Place) -> None:
    """Ours: the budget is in bytes, the text in characters."""
    message, kept = asyncio.run(fetched(memory, "unicode"))
    assert fits(message.value)
    assert len(message.value.encode()) > 15_000
    assert set(NOTE.sub("", message.value)) == set("añ漢🦜\n")
    assert kept.decode() == OUTPUTS["unicode"]


def test_a_long_error_remains_an_error(place: Place) -> None:
    """Ours: a failure with a long message remains a failure."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(asks(("fail", {"size": 9_000})), "end"))
            (message,) = tool_messages((await session.turn("go")).messages)
            assert message.error is not None
            assert message.record is not None
            assert (message.error.code, message.error.hint) == ("OUT_OF_LUCK", "try b")
            assert fits(message.error.message)
            assert message.record.error == message.error
            kept = await session.attachment(message.attachments[0].digest)
            assert kept.endswith(b"reason 8999\n")

    asyncio.run(main())


@settings(deadline=None, max_examples=2 * settings.default.max_examples)
@given(
    st.lists(st.text(st.sampled_from("ab é漢🦜\r\u2028\x0b"), max_size=300), max_size=60),
    st.integers(512, 3_000),
    st.integers(10, 40),
)
def test_the_shortened_result_fits_and_consists_of_head_and_tail(
    lines: list[str], max_bytes: int, max_lines: int
) -> None:
    """Ours: the limit holds for any text and any budget."""
    text = "\n".join(lines)
    plugin = ToolOutputBudget(max_bytes, max_lines)
    if fits(text, max_bytes, max_lines):
        return
    cut = plugin._cut(text, "0123456789ab")
    assert fits(cut, max_bytes, max_lines)
    found = NOTE.search(cut)
    assert found is not None
    head, tail = cut[: found.start() - 1], cut[found.end() + 1 :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) < len(text)
    pieces = plugin._pieces(text)
    assert "".join(pieces) == text
    begun = "".join(pieces[: int(found[4]) - 1])
    assert head.startswith(begun.removesuffix("\n"))
    assert len("".join(pieces[: int(found[4])])) > len(head)


# Reading it back


@pytest.mark.slow
@pytest.mark.parametrize("what", ["lines", "megabyte", "unicode", "rows"])
def test_the_model_can_read_back_the_whole_output_in_the_same_turn(place: Place, what: str) -> None:
    """Ours: stored output is readable before the turn is committed, at any line."""

    async def main() -> None:
        model = Reader(what)
        agent = Agent(model, tools=[fetch], plugins=[ToolOutputBudget()])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = await session.turn("go", limits=PATIENT)
        value = OUTPUTS[what]
        assert (model.whole if isinstance(value, str) else json.loads(model.whole)) == value
        assert all(fits(one) for one in model.read)
        assert all(not one.attachments for one in tool_messages(turn.messages)[1:])

    asyncio.run(main())


def test_the_output_can_be_read_in_later_turns_and_after_a_restart(place: Place) -> None:
    """Seed: the attachment can be read back later."""

    async def main() -> None:
        def reading(name: str) -> dict[str, Any]:
            return asks(("read_output", {"attachment": name, "start_line": 1_500, "lines": 2}))

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(asks(("fetch", {"what": "lines"})), "end"))
            (message,) = tool_messages((await session.turn("go")).messages)
        name = message.attachments[0].digest
        script = ("", "", reading(name[:12]), "end", reading(name), "end")
        for _ in range(2):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=budgeted(*script))
                (read,) = tool_messages((await session.turn("more")).messages)
                head = "[lines 1500 to 1501 of 3000; continue with start_line=1502]"
                assert read.value == f"{head}\nline 1500\nline 1501\n"

    asyncio.run(main())


def test_a_turn_resumed_in_another_process_can_read_its_stored_output(place: Place) -> None:
    """Ours: the output, and the permission to read it, are journaled with the result."""

    async def main() -> None:
        read = asks(("read_output", {"attachment": name_of(LINES), "lines": 1}))
        script = asks(("fetch", {"what": "lines"})), asks(("pay", {})), read, "end"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(*script))
            wait = (await session.turn("go")).waits[0]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(*script))
            result = await session.approve(wait.wait_id)
            assert tool_messages(result.messages)[-1].value.endswith("]\nline 1\n")

    asyncio.run(main())


def test_only_output_of_the_same_session_can_be_read(place: Place) -> None:
    """Ours: knowing a digest gives no access to other sessions of the store."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = budgeted(asks(("fetch", {"what": "lines"})), "end")
            session = await runtime.session("one", agent=agent)
            (message,) = tool_messages((await session.turn("go")).messages)
            digest = message.attachments[0].digest
            names = [digest, digest[:12], digest[:3], "", "../../etc/passwd", "%"]
            calls = asks(*(("read_output", {"attachment": name}) for name in names))
            other = await runtime.session("other", agent=budgeted(calls, "end"))
            found = tool_messages((await other.turn("go")).messages)
            assert [one.error.code for one in found if one.error] == ["INVALID_ARGUMENT"] * len(names)
            assert all("line 1" not in str((one.value, one.error, one.attachments)) for one in found)

    asyncio.run(main())


@pytest.mark.parametrize(("start", "lines"), [(0, 5), (-1, 5), (3_001, 5), (1, 0), (1, -2)])
def test_reading_lines_that_do_not_exist_is_an_error_that_says_which_do(
    memory: Place, start: int, lines: int
) -> None:
    """Ours: the error tells the model which lines exist."""

    async def main() -> None:
        reading = {"attachment": name_of(LINES), "start_line": start, "lines": lines}
        script = asks(("fetch", {"what": "lines"})), asks(("read_output", reading)), "end"
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(*script))
            _, read = tool_messages((await session.turn("go")).messages)
            assert read.error is not None
            assert "lines 1 to 3000" in read.error.message

    asyncio.run(main())


def test_identical_output_is_stored_once(place: Place) -> None:
    """Ours: blobs are named by their content."""

    async def main() -> None:
        calls = asks(("fetch", {"what": "lines"}), ("fetch", {"what": "lines"}), ("fetch", {"what": "rows"}))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=budgeted(calls, "end"))
            found = tool_messages((await session.turn("go")).messages)
            digests = [one.attachments[0].digest for one in found]
            assert (digests[0] == digests[1], len(set(digests))) == (True, 2)
            read = asks(*(("read_output", {"attachment": one, "lines": 1}) for one in digests))
            again = await runtime.session("s", agent=budgeted("", "", read, "end"))
            values = [one.value for one in tool_messages((await again.turn("read")).messages)]
            assert [value.split("\n")[1] for value in values] == ["line 1", "line 1", "["]

    asyncio.run(main())


def test_a_fork_can_read_output_stored_before_it(place: Place) -> None:
    """Ours: a fork has the history, and with it the notes that name the outputs."""

    async def main() -> None:
        read = asks(("read_output", {"attachment": name_of(LINES), "lines": 1}))
        async with place.runtime() as runtime:
            agent = budgeted(asks(("fetch", {"what": "lines"})), "end", read, "end")
            session = await runtime.session("s", agent=agent)
            await session.turn("go")
            fork = await session.fork("f")
            (message,) = tool_messages((await fork.turn("read")).messages)
            assert message.value.endswith("]\nline 1\n")

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [{"max_bytes": 0}, {"max_bytes": 511}, {"max_lines": 9}, {"max_lines": True}, {"max_bytes": "1"}],
)
def test_a_budget_too_small_for_a_note_is_refused(options: dict[str, Any]) -> None:
    """Ours: invalid options raise an error when the agent is created or the session is opened."""
    with pytest.raises(InvalidArgument, match="tool-output-budget"):
        ToolOutputBudget(**options)
    with pytest.raises(InvalidArgument, match="tool-output-budget"):
        ToolOutputBudget().configure(options)


def test_the_smallest_budget_works(place: Place) -> None:
    """Ours: the whole output can still be read back."""

    async def main() -> None:
        model = Reader("parrots")
        agent = Agent(model, tools=[fetch], plugins=[ToolOutputBudget(512, 10)])
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("go", limits=PATIENT)
        assert fits(model.cut, 512, 10)
        assert all(fits(one, 512, 10) for one in model.read)
        assert model.whole == PARROTS

    asyncio.run(main())
