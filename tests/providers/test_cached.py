"""The cache of replies."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from asking import Giving, deltas, ended, request

from standfast import Agent, Cached
from standfast.errors import InvalidArgument, ModelError
from standfast.model.capability import Capability
from standfast.model.limits import Usage
from standfast.model.message import Reasoning, UserMessage
from standfast.ports.model_provider import (
    ModelDelta,
    ModelRequest,
    ReasoningArrived,
    ReplyEnded,
    RequestedCall,
    TextArrived,
)
from standfast.providers.scripted import ScriptedModel

WHOLE: tuple[ModelDelta, ...] = (
    ReasoningArrived("hm"),
    TextArrived("Hello"),
    TextArrived(" there."),
    ReplyEnded(
        text="Hello there.",
        calls=(RequestedCall(name="order", arguments="{}", provider_id="c1"),),
        usage=Usage(input=9, output=6, calls=1),
        model="giving-2026",
        stop_reason="tool_calls",
        reasoning=(Reasoning(origin="giving https://g 1", text="hm", opaque=[1]),),
        response_id="r1",
    ),
)


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "a" / "cache" if request.param == "folder" else None


def test_an_equal_request_gets_the_cached_reply_at_no_cost(place: Path | None) -> None:
    """Ours: the stream is the same, with no tokens and one call, and names its origin."""
    model = Giving(*WHOLE)
    cached = Cached(model, place)
    assert deltas(cached, request(number=1)) == list(WHOLE)
    *said, end = deltas(cached, request(number=7, attempt=2))
    assert said == list(WHOLE[:-1])
    assert isinstance(end, ReplyEnded)
    assert (end.usage, end.response_id) == (Usage(calls=1, priced=1), "cached:r1")
    whole = WHOLE[-1]
    assert isinstance(whole, ReplyEnded)
    assert (end.calls, end.reasoning, end.model) == (whole.calls, whole.reasoning, whole.model)
    assert model.asked == 1


@pytest.mark.parametrize(
    "other",
    [
        ModelRequest(messages=[UserMessage(content="other")]),
        ModelRequest(messages=[UserMessage(content="hi")], instructions="Be kind."),
        ModelRequest(messages=[UserMessage(content="hi")], settings={"temperature": 1.0}),
        ModelRequest(messages=[UserMessage(content="hi")], output_schema={"type": "object"}),
        ModelRequest(messages=[UserMessage(content="hi")], tools=(Capability(name="order", description=""),)),
    ],
    ids=["messages", "instructions", "settings", "output_schema", "tools"],
)
def test_every_part_that_the_model_would_read_distinguishes_requests(
    other: ModelRequest, place: Path | None
) -> None:
    """Ours: a wrong answer is worse than a second call."""
    model = Giving(*WHOLE)
    cached = Cached(model, place)
    deltas(cached, request())
    deltas(cached, other)
    assert model.asked == 2


def test_each_model_has_its_own_replies(tmp_path: Path) -> None:
    """Ours: several models can share a folder."""
    one, two = Giving(*WHOLE), Giving(*WHOLE, model_id="giving:2")
    deltas(Cached(one, tmp_path))
    deltas(Cached(two, tmp_path))
    assert (one.asked, two.asked) == (1, 1)


def test_another_process_reuses_the_folder(tmp_path: Path) -> None:
    """Ours: replies of earlier processes are reused."""
    deltas(Cached(Giving(*WHOLE), tmp_path))
    model = Giving()
    assert ended(Cached(model, tmp_path)).text == "Hello there."
    assert model.asked == 0
    (file,) = tmp_path.glob("*")
    assert file.stat().st_mode & 0o077 == 0


def test_failures_and_incomplete_replies_are_not_cached(place: Path | None) -> None:
    """Ours: only complete replies are cached."""
    failing, broken = Giving(TextArrived("x"), ModelError("no")), Giving(TextArrived("x"))
    cached = Cached(failing, place)
    for _ in range(2):
        with pytest.raises(ModelError):
            deltas(cached)
    cached = Cached(broken, place)
    assert [len(deltas(cached)) for _ in range(2)] == [1, 1]
    assert (failing.asked, broken.asked) == (2, 2)


def test_a_damaged_file_is_ignored_and_the_model_called_again(tmp_path: Path) -> None:
    """Ours: the cache must never cause a failure."""
    model = Giving(*WHOLE)
    cached = Cached(model, tmp_path)
    deltas(cached)
    (file,) = tmp_path.glob("*.json")
    file.write_text('{"text": "torn')
    assert [ended(cached).text for _ in range(2)] == ["Hello there."] * 2
    assert model.asked == 2


def test_a_reply_that_cannot_be_cached_is_returned_anyway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: the operator sees a warning, and the user gets the answer."""
    folder = tmp_path / "cache"
    cached = Cached(Giving(*WHOLE), folder)
    folder.rmdir()
    assert ended(cached).text == "Hello there."
    assert "cannot be written to the cache" in caplog.text
    with pytest.raises(InvalidArgument, match="cannot be created"):
        Cached(Giving(), _file(tmp_path / "file") / "below")


def _file(path: Path) -> Path:
    path.touch()
    return path


def test_the_least_recently_used_replies_are_evicted_first(place: Path | None) -> None:
    """Ours: the size of the cache is limited."""
    model = Giving(*WHOLE)
    cached = Cached(model, place, max_entries=2)
    for number, words in enumerate(("one", "two", "one", "three")):
        deltas(cached, request(words))
        _age(place, 100 - number)
    assert model.asked == 3
    deltas(cached, request("one"))
    deltas(cached, request("three"))
    assert model.asked == 3
    deltas(cached, request("two"))
    assert model.asked == 4
    with pytest.raises(InvalidArgument, match="max_entries"):
        Cached(model, max_entries=0)


def _age(folder: Path | None, seconds: int) -> None:
    """Make the last use of an entry older, so that the next use is later on any file system."""
    if folder is not None:
        newest = max(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        then = newest.stat().st_mtime - seconds
        os.utime(newest, (then, then))


def test_a_turn_that_was_cached_needs_no_model() -> None:
    """Ours: the turn's usage shows it."""
    model = ScriptedModel([{"text": "Hello.", "usage": {"input": 100, "output": 5}}])
    agent = Agent(Cached(model))
    first, second = agent.run_sync("Hi"), agent.run_sync("Hi")
    assert (first.output, second.output) == ("Hello.", "Hello.")
    assert (first.usage.total, second.usage.total, second.usage.calls) == (105, 0, 1)


def test_closing_closes_the_model_and_closing_the_iterator_ends_the_call() -> None:
    """Ours: wrapped models can be nested."""
    model = Giving(*WHOLE)
    cached = Cached(Cached(model))

    async def stop_early() -> None:
        stream = cached.stream(request())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        await cached.close()

    asyncio.run(stop_early())
    assert (model.streams_closed, model.closed, cached.model_id) == (1, 1, "giving:1")
