"""Requests that the test server refuses, as the vendor does."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.testing.servers.anthropic_server import AnthropicServer, signature_of
from standfast.testing.servers.http_server import SeenRequest

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
USER = {"role": "user", "content": "Rain?"}
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "dry"}
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": signature_of("Hm")}


def problem(*messages: Any, headers: dict[str, str] | None = None, **more: Any) -> str | None:
    """Return the server's objection to a request of an older model."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 4096, "messages": list(messages) or [USER], **more}
    return AnthropicServer().checked(
        SeenRequest("POST", "/v1/messages", {**HEADERS, **(headers or {})}, body)
    )


def replied(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def told(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 2048}}


def test_valid_requests_are_accepted() -> None:
    """Ours: a strict server must still accept valid requests."""
    assert (
        problem(USER, replied(THOUGHT, CALL), told(RESULT, {"type": "text", "text": "x"}), **THINKING) is None
    )
    assert problem(temperature=0.5, tools=[TOOL], tool_choice={"type": "any"}) is None
    assert problem(headers={"anthropic-version": "2026-10-21"}) is None


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, replied(CALL)], "without `tool_result`"),
        ([USER, replied(CALL), USER], "without `tool_result`"),
        ([USER, replied(CALL), told({"type": "text", "text": "x"}, RESULT)], "must come first"),
        ([told(RESULT)], "unexpected `tool_use_id`"),
        ([USER, replied(CALL, CALL), told(RESULT)], "ids must be unique"),
        ([USER, replied(CALL), told(RESULT), replied(CALL), told(RESULT)], "ids must be unique"),
        ([USER, replied({**THOUGHT, "thinking": "Ha"}, CALL), told(RESULT)], "Invalid `signature`"),
        ([USER, replied({**CALL, "id": "a b"}), told({**RESULT, "tool_use_id": "a b"})], "the id match"),
        ([told()], "non-empty content"),
        ([told(CALL)], "not permitted in user messages"),
        ([told({"type": "image", "source": {"media_type": "image/bmp"}})], "media_type"),
    ],
)
def test_a_conversation_that_the_vendor_refuses_is_refused_here_too(messages: list[Any], words: str) -> None:
    """Ours: no test passes with a request that the real vendor would refuse."""
    assert words in (problem(*messages) or "")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"colour": "red"}, "Extra inputs"),
        ({"tools": [TOOL, TOOL]}, "unique"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "pattern"),
        ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "'object'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "ring"}}, "not found"),
        ({"thinking": {"type": "adaptive"}}, "not supported for this model"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9999}}, "must be greater"),
        ({**THINKING, "temperature": 0.5}, "`temperature`"),
        ({**THINKING, "tools": [TOOL], "tool_choice": {"type": "any"}}, "forces tool use"),
        ({**THINKING, "messages": [USER, replied(CALL), told(RESULT)]}, "Expected `thinking`"),
        ({"system": [{"type": "text", "text": "x", "cache_control": {}}] * 5}, "maximum of 4"),
        ({"system": " "}, "non-empty"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            "must be false",
        ),
        ({"headers": {"anthropic-version": "1999"}}, "anthropic-version"),
        ({"headers": {"anthropic-version": "2026-10-21"}, "top_k": 5}, "top_k: Extra inputs"),
    ],
)
def test_a_request_that_the_vendor_refuses_is_refused_here_too(more: dict[str, Any], words: str) -> None:
    """Ours: no test passes with a request that the real vendor would refuse."""
    assert words in (problem(**more) or "")


def test_a_request_without_a_key_is_refused() -> None:
    """Ours: the vendor answers 401."""
    assert AnthropicServer(["x"]).answer(SeenRequest("POST", "/v1/messages", {}, {})).status == 401
