"""The UI message stream of Vercel's AI SDK, as the SDK's own chat reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from node_client import run_node
from server_stage import ServerStage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("vercel")) as running:
        yield running


def chat(stage: ServerStage, name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    token = stage.token("read", "run", "approve")
    found: dict[str, Any] = run_node(
        "vercel.mjs", url=stage.url, token=token, chat=name, steps=list(steps), **more
    )
    return found


def texts(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


@pytest.mark.slow
def test_a_chat_streams_answers_and_approvals_into_its_messages(stage: ServerStage) -> None:
    """Seed: `ai` shows text and asks for approval, and the same message continues after the decision."""
    found = chat(stage, "c1", {"say": "hello"}, {"say": "refund"}, {"approve": True}, {"say": "stream 3"})
    assert (found["errors"], found["status"]) == ([], "ready")
    said, refunded, streamed = [one for one in found["messages"] if one["role"] == "assistant"]
    assert texts(said) == "you said hello"
    assert texts(streamed) == "0 1 2 "
    (call,) = [part for part in refunded["parts"] if part["type"] == "dynamic-tool"]
    assert (call["state"], call["toolName"], call["output"]) == (
        "output-available",
        "refund",
        "refunded A1 500",
    )
    assert texts(refunded) == "the tool said refunded A1 500"
    assert refunded["metadata"]["standfast"]["status"] == "finished"


@pytest.mark.slow
def test_a_reopened_chat_finds_the_approval_and_denies_it(stage: ServerStage) -> None:
    """Seed: approvals outlive connections; the resume route restores what the page has lost."""
    first = chat(stage, "c2", {"say": "refund"})
    kept = [one for one in first["messages"] if one["role"] == "user"]
    found = chat(stage, "c2", {"resume": True}, {"approve": False, "reason": "too much"}, messages=kept)
    assert found["errors"] == []
    last = found["messages"][-1]
    assert last["id"] == first["messages"][-1]["id"]
    (call,) = [part for part in last["parts"] if part["type"] == "dynamic-tool"]
    assert call["state"] == "output-denied"
    assert "too much" in texts(last)


@pytest.mark.slow
def test_an_interrupted_stream_is_resumed_completely(stage: ServerStage) -> None:
    """Seed: a turn continues when its client disconnects; reconnecting misses nothing and repeats nothing."""
    stage.agent_model.pause_s = 0.01
    found = chat(stage, "c3", {"say": "stream 60", "cut": 6}, {"resume": True})
    stage.agent_model.pause_s = 0.0
    assert [one["role"] for one in found["messages"]] == ["user", "assistant"]
    assert texts(found["messages"][-1]) == "".join(f"{number} " for number in range(60))
    assert found["statuses"] == [200, 200]
    assert chat(stage, "new", {"resume": True})["statuses"] == [204]
