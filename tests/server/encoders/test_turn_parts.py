"""A turn as parts: retracted text, and the parts that a late reader gets."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from server_stage import ServerStage

from standfast import Agent
from standfast.errors import ModelError
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, TextArrived


class BreakingModel:
    """A model that breaks off in the middle of its first reply."""

    model_id = "test:breaking"

    def __init__(self) -> None:
        self.calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        self.calls += 1
        yield TextArrived("wro" if self.calls == 1 else "right")
        if self.calls == 1:
            raise ModelError("the connection broke", retryable=True)
        yield ReplyEnded(text="right")

    async def close(self) -> None:
        pass


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["ag-ui", "vercel", "responses", "chat"])
def test_text_that_the_model_retracted_is_void(tmp_path: Path, protocol: str) -> None:
    """Seed: when the runtime retries a model attempt, it retracts the streamed text."""
    message = {"id": "1", "role": "user", "content": "hi", "parts": [{"type": "text", "text": "hi"}]}
    said = [{"role": "user", "content": "hi"}]
    path, body = {
        "ag-ui": ("/ag-ui", {"threadId": "t", "runId": "r", "messages": [message]}),
        "vercel": ("/vercel/chat", {"id": "t", "messages": [message]}),
        "responses": ("/openai/v1/responses", {"model": "clerk", "input": "hi", "stream": True}),
        "chat": ("/openai/v1/chat/completions", {"model": "clerk", "messages": said, "stream": True}),
    }[protocol]
    with (
        ServerStage(tmp_path, agents=[Agent(BreakingModel(), name="clerk")]) as stage,
        stage.client() as http,
    ):
        found = chunks(http.post(path, json=body).raise_for_status().text)
    if protocol == "ag-ui":
        (taken,) = [one["value"]["messageId"] for one in found if one["type"] == "CUSTOM"]
        pieces = [one for one in found if one["type"] == "TEXT_MESSAGE_CONTENT"]
        assert [one["delta"] for one in pieces] == ["wro", "right"]
        assert [one["messageId"] == taken for one in pieces] == [True, False]
    elif protocol == "vercel":
        kinds = [one["type"] for one in found]
        assert kinds[2:6] == ["text-start", "text-delta", "reset-step", "text-start"]
    elif protocol == "responses":
        output = found[-1]["response"]["output"]
        texts = [(one["status"], [part["text"] for part in one["content"]]) for one in output]
        assert texts == [("incomplete", []), ("completed", ["right"])]
    else:
        assert [one["error"]["code"] for one in found if "error" in one] == ["PROVIDER_ERROR"]
