"""The test server refuses what Gemini refuses, so that no test passes with an invalid request."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.testing.servers.google_server import GoogleServer
from standfast.testing.servers.http_server import SeenRequest

HI: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi."}]}
CALL: dict[str, Any] = {"functionCall": {"name": "order", "args": {}}}
CALLED: dict[str, Any] = {"role": "model", "parts": [CALL]}
RESULT: dict[str, Any] = {"functionResponse": {"name": "order", "response": {"result": 1}}}
ANSWERED: dict[str, Any] = {"role": "user", "parts": [RESULT]}
ORDER: dict[str, Any] = {"name": "order", "parametersJsonSchema": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [{"functionDeclarations": [ORDER]}]


def refused(body: Any, *, model: str = "gemini-2.5-flash", path: str = "", key: str = "k") -> str | None:
    path = path or f"/v1beta/models/{model}:streamGenerateContent?alt=sse"
    return GoogleServer().checked(SeenRequest("POST", path, {"x-goog-api-key": key}, body))


def contents(*given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"contents": list(given), **more}


@pytest.mark.parametrize(
    "body",
    [
        contents(HI),
        contents({"parts": [{"text": "Hi."}]}),
        contents(HI, CALLED, ANSWERED),
        contents(HI, CALLED, {"role": "user", "parts": [RESULT, {"text": "And?"}]}),
        contents(HI, tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "ANY"}}),
        contents({"parts": [{"inline_data": {"mime_type": "image/png", "data": "AAEC"}}]}),
        contents(HI, generation_config={"thinking_config": {"thinking_budget": 0}}),
    ],
)
def test_valid_requests_are_accepted(body: dict[str, Any]) -> None:
    """Ours: both spellings of the fields are accepted."""
    assert refused(body) is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (None, "Invalid JSON"),
        ({}, "contents is not specified"),
        (contents(HI, stream=True), 'Unknown name "stream"'),
        (contents(HI, generationConfig={"max_tokens": 5}), 'Unknown name "maxTokens"'),
        (contents({**HI, "role": "assistant"}), "valid role"),
        (contents({"role": "user", "parts": []}), "must not be empty"),
        (contents({"parts": [{"text": ""}]}), "must not be empty"),
        (contents({"parts": [{"thought": True}]}), "'data' must have one"),
        (contents({"parts": [{"text": "a", "functionCall": {"name": "f"}}]}), "'data' must have one"),
        (contents({"parts": [{"inlineData": {"mimeType": "application/zip", "data": "AA=="}}]}), "MIME"),
        (contents({"parts": [{"inlineData": {"mimeType": "image/png"}}]}), "Base64"),
        (contents(HI, CALLED, HI), "number of function response parts"),
        (contents(HI, CALLED), "number of function response parts"),
        (contents(HI, ANSWERED), "number of function response parts"),
        (contents(CALLED, ANSWERED), "immediately after a user turn"),
        (
            contents(HI, CALLED, {"parts": [{"functionResponse": {"name": "other", "response": {}}}]}),
            "names match",
        ),
        (
            contents(
                HI, CALLED, {"parts": [{"functionResponse": {"id": "a", "name": "order", "response": {}}}]}
            ),
            "ids match",
        ),
        (
            contents(HI, CALLED, {"parts": [{"functionResponse": {"name": "order", "response": "done"}}]}),
            "protobuf.Struct",
        ),
        (contents(HI, {"role": "model", "parts": [{"functionCall": {"args": {}}}]}), "Name cannot be empty"),
        (contents(HI, {"role": "model", "parts": [{"text": "a", "thoughtSignature": "AAAA"}]}), "not valid"),
        (contents(HI, tools=[{"functionDeclarations": [ORDER, ORDER]}]), "Duplicate"),
        (contents(HI, tools=[{"functionDeclarations": [{"name": "no spaces"}]}]), "Invalid function name"),
        (contents(HI, tools=[{"functionDeclarations": [{**ORDER, "parameters": {}}]}]), "exclusive"),
        (
            contents(
                HI, tools=[{"functionDeclarations": [{**ORDER, "parametersJsonSchema": {"type": "array"}}]}]
            ),
            "describe an object",
        ),
        (contents(HI, toolConfig={"functionCallingConfig": {"mode": "ANY"}}), "no function_declarations"),
        (
            contents(HI, tools=TOOLS, toolConfig={"functionCallingConfig": {"allowedFunctionNames": ["x"]}}),
            "allowed_function_names",
        ),
        (contents(HI, generationConfig={"responseJsonSchema": {}}), "only supported with"),
        (
            contents(HI, tools=TOOLS, generationConfig={"responseMimeType": "application/json"}),
            "mime type: 'application/json' is unsupported",
        ),
        (
            contents(
                HI,
                generationConfig={
                    "responseMimeType": "application/json",
                    "responseJsonSchema": {"items": [{"$ref": "#/a", "title": "b"}]},
                },
            ),
            "If \\$ref is set",
        ),
        (contents(HI, generationConfig={"stopSequences": ["a"] * 6}), "at most 5"),
        (contents(HI, generationConfig={"thinkingConfig": {"thinkingLevel": "LOW"}}), "not supported"),
    ],
)
def test_invalid_requests_are_refused(body: Any, problem: str) -> None:
    """Ours: the table has each rule that our requests could break."""
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(refused(body))


def test_rules_differ_between_models() -> None:
    """Ours: newer models require their signatures, and Pro models always think."""
    newer = {"model": "gemini-3-flash-preview"}
    skipped = {**CALL, "thoughtSignature": "skip_thought_signature_validator"}
    assert "missing a thought_signature" in str(refused(contents(HI, CALLED, ANSWERED), **newer))
    assert refused(contents(HI, {"role": "model", "parts": [skipped]}, ANSWERED), **newer) is None
    assert (
        refused(contents(HI, CALLED, ANSWERED, {"role": "model", "parts": [{"text": "So."}]}, HI), **newer)
        is None
    )
    both = {"thinkingConfig": {"thinkingLevel": "LOW", "thinkingBudget": 5}}
    assert "only set one" in str(refused(contents(HI, generationConfig=both), **newer))
    none = contents(HI, generationConfig={"thinkingConfig": {"thinkingBudget": 0}})
    assert "Budget 0" in str(refused(none, model="gemini-2.5-pro"))


def test_a_request_needs_a_model_in_its_path_a_key_and_an_event_stream() -> None:
    """Ours: the URL and the headers are part of the format."""
    assert "not found" in str(refused(contents(HI), path="/v1beta/models/m:countTokens"))
    assert "unregistered callers" in str(refused(contents(HI), key=""))
    assert "alt=sse" in str(refused(contents(HI), path="/v1beta/models/m:streamGenerateContent"))
