"""Recording models: the file, and its replay by a script."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asking import Giving, deltas, ended, heard, request

from standfast import Agent, Recorded, Runtime, TurnStopped, tool
from standfast.errors import InvalidArgument, ModelError, UnexpectedModelCall
from standfast.model.limits import Usage
from standfast.model.message import AttachmentPart, Reasoning, TextPart, UserMessage
from standfast.ports.model_provider import (
    ModelDelta,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)
from standfast.providers.resolve import resolve_model
from standfast.providers.scripted import ScriptedModel

WHOLE: tuple[ModelDelta, ...] = (
    ReasoningArrived("hm"),
    TextArrived("Hello"),
    TextArrived(" there."),
    ReplyEnded(
        text="Hello there.",
        calls=(RequestedCall(name="order", arguments='{"order_id": ', provider_id="c1"),),
        usage=Usage(input=9, cache_read=8, cache_write=7, output=6, reasoning=5, calls=1),
        model="giving-2026",
        stop_reason="length",
        reasoning=(Reasoning(origin="giving https://g 1", text="hm", opaque={"signature": "abc"}),),
        response_id="r1",
    ),
)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_recorded_reply_is_replayed_unchanged(tmp_path: Path) -> None:
    """Ours: the file is a script, so replaying needs no other class."""
    path = tmp_path / "calls.jsonl"
    model = Giving(*WHOLE)
    assert deltas(Recorded(model, path)) == list(WHOLE)
    assert model.streams_closed == 1
    assert deltas(resolve_model(f"scripted:{path}")) == list(WHOLE)


def test_only_the_digest_of_a_request_is_recorded(tmp_path: Path) -> None:
    """Ours: prompts and settings may contain secrets."""
    path = tmp_path / "calls.jsonl"
    asked = ModelRequest(
        messages=[UserMessage(content="my secret")],
        instructions="another secret",
        settings={"extra_headers": {"authorization": "a third secret"}},
    )
    deltas(Recorded(Giving(*WHOLE), path), asked)
    assert "secret" not in path.read_text()
    assert lines(path)[0]["expect"].keys() == {"request"}
    assert path.stat().st_mode & 0o077 == 0


def test_a_replay_detects_a_changed_prompt(tmp_path: Path) -> None:
    """Ours: an outdated recording is an error, not a wrong answer."""
    path = tmp_path / "calls.jsonl"
    deltas(Recorded(Giving(*WHOLE), path), request("one"))
    model = resolve_model(f"scripted:{path}")
    with pytest.raises(UnexpectedModelCall, match="the request differs from the recorded one"):
        deltas(model, request("another"))


def test_ids_and_numbers_do_not_count_as_changes(tmp_path: Path) -> None:
    """Ours: another session makes the same requests with different ids."""
    path = tmp_path / "calls.jsonl"
    attachment = AttachmentPart(digest="d1", media_type="image/png", size=3)
    content = (TextPart(text="look"), attachment)
    deltas(Recorded(Giving(*WHOLE), path), ModelRequest(messages=[UserMessage(content=content)]))
    again = ModelRequest(
        messages=[UserMessage(content=content, input_id="in_1")],
        session_id="s",
        turn_id="t_1",
        idempotency_key="k",
        attempt=2,
    )
    assert deltas(resolve_model(f"scripted:{path}"), again) == list(WHOLE)


def test_failures_are_recorded_with_the_deltas_before_them(tmp_path: Path) -> None:
    """Ours: retries and errors are part of a history."""
    path = tmp_path / "calls.jsonl"
    error = ModelError("too busy", code="RATE_LIMITED", retryable=True, retry_after_ms=5)
    model = Recorded(Giving(TextArrived("Hel"), error), path)
    with pytest.raises(ModelError, match="too busy"):
        deltas(model)
    replayed, got = resolve_model(f"scripted:{path}"), list[ModelDelta]()

    async def replay() -> None:
        async for delta in replayed.stream(request()):
            got.append(delta)

    with pytest.raises(ModelError) as raised:
        asyncio.run(replay())
    assert got == [TextArrived("Hel")]
    told = raised.value
    assert (told.message, told.code, told.retryable, told.retry_after_ms) == (
        "too busy",
        "RATE_LIMITED",
        True,
        5,
    )


def test_the_message_of_an_unknown_error_is_not_recorded(tmp_path: Path) -> None:
    """Ours: only our own errors are known to contain no key."""
    path = tmp_path / "calls.jsonl"
    with pytest.raises(RuntimeError):
        deltas(Recorded(Giving(RuntimeError("sk-123")), path))
    assert lines(path)[0]["failure"] == {"message": "the model raised RuntimeError"}


def test_an_incomplete_reply_is_recorded_as_a_failure(tmp_path: Path) -> None:
    """Ours: the replayed turn sees the same failure."""
    path = tmp_path / "calls.jsonl"
    deltas(Recorded(Giving(TextArrived("Hel")), path))
    with pytest.raises(ModelError, match="cut off") as raised:
        deltas(resolve_model(f"scripted:{path}"))
    assert raised.value.retryable


def test_a_cancelled_call_records_nothing_and_closes_the_stream(tmp_path: Path) -> None:
    """Ours: a cancelled call has no outcome."""
    path, model = tmp_path / "calls.jsonl", Giving(*WHOLE)

    async def stop_early() -> None:
        stream = Recorded(model, path).stream(request())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(stop_early())
    assert (path.exists(), model.streams_closed) == (False, 1)


def test_an_unfinished_line_does_not_corrupt_the_next(tmp_path: Path) -> None:
    """Ours: a crash in the middle of a write loses only one line."""
    path = tmp_path / "calls.jsonl"
    path.write_text('{"text": "torn')
    deltas(Recorded(Giving(*WHOLE), path))
    torn, whole = path.read_text().splitlines()
    assert (torn, json.loads(whole)["text"]) == ('{"text": "torn', "Hello there.")


def test_a_recording_that_cannot_be_written_fails_the_call(tmp_path: Path) -> None:
    """Ours: a user must not believe that a reply was recorded when it was not."""
    with pytest.raises(ModelError, match="cannot be written: No such file"):
        deltas(Recorded(Giving(*WHOLE), tmp_path / "missing" / "calls.jsonl"))
    with pytest.raises(InvalidArgument, match=r"a \.jsonl file"):
        Recorded(Giving(), tmp_path / "calls.json")


def test_text_that_is_not_unicode_fails_as_it_does_without_recording(tmp_path: Path) -> None:
    """Ours: the attempt may be retried."""
    with pytest.raises(ModelError, match="not Unicode") as raised:
        deltas(Recorded(Giving(ReplyEnded(text="\ud800")), tmp_path / "calls.jsonl"))
    assert raised.value.retryable


def test_chunks_that_differ_from_the_text_are_left_out(tmp_path: Path) -> None:
    """Ours: a provider may change its text at the end; the recording stays readable."""
    path = tmp_path / "calls.jsonl"
    deltas(Recorded(Giving(TextArrived("a"), TextArrived("b"), ReplyEnded(text="a b")), path))
    assert ended(resolve_model(f"scripted:{path}")).text == "a b"


def test_closing_closes_the_model_and_its_name_is_the_wrapped_models(tmp_path: Path) -> None:
    """Ours: wrapped models can be nested."""
    model = Giving(*WHOLE, model_id="giving:2")
    recorded = Recorded(Recorded(model, tmp_path / "a.jsonl"), tmp_path / "b.jsonl")
    asyncio.run(recorded.close())
    assert (recorded.model_id, model.closed) == ("giving:2", 1)
    deltas(recorded)
    assert lines(tmp_path / "a.jsonl") == lines(tmp_path / "b.jsonl")


@tool(side_effect="read")
def order(order_id: str) -> int:
    """How many days late it is."""
    return 6


SCRIPT: list[Any] = [
    {"failure": {"message": "busy", "retryable": True, "retry_after_ms": 0}},
    {"tool_calls": [{"name": "order", "arguments": {"order_id": "A1"}}]},
    {"text": "Six days.", "chunk_size": 3},
    "Bye.",
]


async def talk(agent: Agent[None, str]) -> list[str]:
    async with Runtime() as runtime:
        session = await runtime.session("s", agent=agent)
        return [(await session.turn(words)).output or "" for words in ("How late is A1?", "Thanks")]


def test_a_recorded_session_is_replayed_without_its_model(tmp_path: Path) -> None:
    """Ours: `record` makes the histories that tests replay without a network, including retries and tools."""
    path = tmp_path / "calls.jsonl"
    said = asyncio.run(talk(Agent(Recorded(ScriptedModel(SCRIPT), path), tools=[order])))
    again = ScriptedModel.from_file(path)
    assert asyncio.run(talk(Agent(again, tools=[order]))) == said == ["Six days.", "Bye."]
    asyncio.run(again.close())
    with pytest.raises(TurnStopped, match="was not expected"):
        asyncio.run(talk(Agent(ScriptedModel.from_file(path), tools=[order], instructions="Be brief.")))


def test_several_sessions_share_a_recording(tmp_path: Path) -> None:
    """Ours: every session has a first call; requests are distinguished by their content."""
    path = tmp_path / "calls.jsonl"
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": [{"text": "You said {text}"}]}))
    agent = Agent(Recorded(f"scripted:{rules}", path))
    said = [agent.run_sync(words).output for words in ("one", "two")]
    replay = Agent(f"scripted:{path}")
    assert [replay.run_sync(words).output for words in ("two", "one")] == said[::-1]


_WRITER = """
import asyncio, sys
from standfast import Recorded
from standfast.model.message import UserMessage
from standfast.ports.model_provider import ModelRequest
from standfast.providers.scripted import ScriptedModel

async def main():
    model = Recorded(ScriptedModel([{"text": sys.argv[2] * 20_000}]), sys.argv[1])
    for _ in range(20):
        async for _ in model.stream(ModelRequest(messages=[UserMessage(content="x")])):
            pass

asyncio.run(main())
"""


@pytest.mark.slow
def test_several_processes_record_to_one_file(tmp_path: Path) -> None:
    """Ours: every line is complete, whichever process writes it."""
    path = tmp_path / "calls.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(path), letter]) for letter in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    texts = [line["text"] for line in lines(path)]
    assert sorted(texts) == ["a" * 20_000] * 20 + ["b" * 20_000] * 20


def test_recording_adds_little_cost_per_chunk(tmp_path: Path) -> None:
    """Ours: chunks are passed on, and the file is written once at the end."""
    chunks = [TextArrived("x")] * 100
    model = Recorded(Giving(*chunks, ReplyEnded(text="x" * 100)), tmp_path / "calls.jsonl")

    async def written_before_the_end() -> list[bool]:
        path = tmp_path / "calls.jsonl"
        return [path.exists() async for _ in model.stream(request())]

    assert asyncio.run(written_before_the_end()) == [False] * 100 + [True]
    assert len(asyncio.run(heard(model))) == 101
