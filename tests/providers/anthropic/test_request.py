"""The body of a request, as exact JSON."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from standfast.errors import ErrorObject, InvalidArgument
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    Reasoning,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.ports.model_provider import ModelRequest
from standfast.providers.anthropic.model import AnthropicDialect
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.settings import read_settings

OLDER, NEWER = "claude-sonnet-4-5", "claude-opus-5"
ORIGIN = "anthropic https://api.anthropic.com claude-sonnet-4-5"
CACHED = {"cache_control": {"type": "ephemeral"}}
WEATHER = Capability(
    name="weather",
    description="The weather of a city.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def body(
    *messages: Message, model: str = OLDER, media: dict[str, bytes] | None = None, **request: Any
) -> dict[str, Any]:
    """Return the body for these messages; `settings` and other parts of the request are keyword arguments."""
    settings = read_settings(request.pop("settings", {}))
    asked = PreparedRequest(
        model, ModelRequest(messages=list(messages), **request), settings, media or {}, ORIGIN
    )
    return AnthropicDialect().call(asked).body


def said(text: str) -> UserMessage:
    return UserMessage(content=text)


def called(*calls: ToolCall, **more: Any) -> AssistantMessage:
    return AssistantMessage(tool_calls=calls, **more)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_a_first_question_has_instructions_tools_and_one_message() -> None:
    """Ours: a golden body, with a cache breakpoint after each part that repeats."""
    found = body(said("Is it raining?"), instructions="Be brief.", tools=(WEATHER,))
    assert found == {
        "model": OLDER,
        "max_tokens": 8192,
        "stream": True,
        "system": [text("Be brief.", **CACHED)],
        "tools": [
            {
                "name": "weather",
                "description": "The weather of a city.",
                "input_schema": WEATHER.input_schema,
                **CACHED,
            }
        ],
        "messages": [{"role": "user", "content": [text("Is it raining?", **CACHED)]}],
    }


def test_all_results_of_a_reply_are_sent_first_in_one_user_message() -> None:
    """Ours: the vendor requires the results of all calls at the start of the next message."""
    found = body(
        said("Both cities?"),
        called(
            ToolCall(call_id=1, name="weather", arguments={"city": "Oslo"}, provider_id="toolu_1"),
            ToolCall(call_id=2, name="weather", arguments={"city": "Rome"}, provider_id="toolu_2"),
            text="Let me see.",
        ),
        ToolMessage(call_id=1, name="weather", value={"rain": True}, provider_id="toolu_1"),
        said("Hurry up."),
        ToolMessage(call_id=2, name="weather", error=ErrorObject(code="TOOL_ERROR", message="no such city")),
        settings={"cache": False},
        tools=(WEATHER,),
    )
    assert found["messages"] == [
        {"role": "user", "content": [text("Both cities?")]},
        {
            "role": "assistant",
            "content": [
                text("Let me see."),
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"rain":true}'},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": "TOOL_ERROR: no such city",
                    "is_error": True,
                },
                text("Hurry up."),
            ],
        },
    ]


def test_thinking_is_sent_back_before_the_rest_of_its_reply() -> None:
    """Ours: the vendor requires signed thinking unchanged at the start of its message."""
    thoughts = (
        Reasoning(origin=ORIGIN, text="Rain?", opaque={"type": "thinking", "signature": "c2ln"}),
        Reasoning(origin=ORIGIN, opaque={"type": "redacted_thinking", "data": "ZGF0YQ=="}),
    )
    call = ToolCall(call_id=1, name="weather", arguments={}, provider_id="toolu_1")
    result = ToolMessage(call_id=1, name="weather", value="dry")
    found = body(said("Hm?"), called(call, text="Well.", reasoning=thoughts), result, tools=(WEATHER,))
    assert found["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Rain?", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
        text("Well."),
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    ]


@pytest.mark.parametrize(
    "thought",
    [
        Reasoning(origin="openai https://x gpt", text="?", opaque={"type": "thinking", "signature": "s"}),
        Reasoning(origin=ORIGIN, text="unsigned"),
    ],
)
def test_thinking_from_another_origin_or_without_a_signature_is_not_sent(thought: Reasoning) -> None:
    """Ours: reasoning is sent back only if provider, endpoint and model match; unsigned, it is refused."""
    found = body(said("Hm?"), AssistantMessage(text="Well.", reasoning=(thought,)), said("And?"))
    assert found["messages"][1]["content"] == [text("Well.")]


def test_reasoning_is_a_token_budget_for_models_that_accept_one() -> None:
    """Ours: the budget is below max_tokens, and settings that conflict with thinking are left out."""
    settings = {
        "reasoning": "medium",
        "temperature": 0.2,
        "top_p": 0.5,
        "top_k": 5,
        "tool_choice": "required",
    }
    found = body(said("Hm?"), tools=(WEATHER,), settings=settings)
    assert found["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert found["max_tokens"] == 16384
    assert not found.keys() & {"temperature", "top_p", "top_k", "tool_choice", "output_config"}


@pytest.mark.parametrize(
    ("asked", "effort"),
    [("minimal", "low"), ("low", "low"), ("high", "high"), (500, "low"), (9000, "medium"), (64000, "high")],
)
def test_reasoning_is_an_effort_for_models_that_refuse_a_budget(asked: str | int, effort: str) -> None:
    """Ours: Claude 4.7 and later answer a budget with 400; they get an effort instead."""
    found = body(said("Hm?"), model=NEWER, settings={"reasoning": asked, "temperature": 0.2})
    assert found["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert found["output_config"] == {"effort": effort}
    assert "temperature" not in found


def test_reasoning_is_disabled_explicitly_only_for_models_that_think_by_default() -> None:
    """Ours: older models think only on request."""
    assert "thinking" not in body(said("Hm?"), settings={"reasoning": "none"})
    assert body(said("Hm?"), model=NEWER, settings={"reasoning": "none"})["thinking"] == {"type": "disabled"}


def test_a_reasoning_level_is_reduced_to_fit_max_tokens_but_a_number_is_not() -> None:
    """Ours: the vendor refuses a budget that leaves no room for an answer."""
    found = body(said("Hm?"), settings={"reasoning": "high", "max_tokens": 4000})
    assert (found["thinking"]["budget_tokens"], found["max_tokens"]) == (2000, 4000)
    with pytest.raises(InvalidArgument, match="no room for an answer"):
        body(said("Hm?"), settings={"reasoning": 5000, "max_tokens": 4000})
    with pytest.raises(InvalidArgument, match="no room for an answer"):
        body(said("Hm?"), settings={"reasoning": "low", "max_tokens": 1000})


def test_no_budget_is_requested_while_calls_of_another_model_are_pending() -> None:
    """Ours: a turn that another model began has no thinking to send back; with a budget that is an error."""
    call = ToolCall(call_id=1, name="weather", arguments={})
    history = (said("Hm?"), called(call), ToolMessage(call_id=1, name="weather", value="dry"))
    settings = {"reasoning": "low", "tool_choice": "required"}
    found = body(*history, tools=(WEATHER,), settings=settings)
    assert "thinking" not in found
    assert found["tool_choice"] == {"type": "any"}
    assert "thinking" in body(*history, AssistantMessage(text="Dry."), said("Sure?"), settings=settings)


@pytest.mark.parametrize(
    ("settings", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "weather"}, {"type": "tool", "name": "weather"}),
        ({"parallel_tool_calls": True}, None),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice_is_translated_to_the_vendors_form(
    settings: dict[str, Any], choice: dict[str, Any] | None
) -> None:
    """Ours: the setting is the same for all providers."""
    assert body(said("Hm?"), tools=(WEATHER,), settings=settings).get("tool_choice") == choice


def test_a_tool_choice_that_names_no_tool_is_refused() -> None:
    """Ours: a misspelt name is refused before anything is sent."""
    with pytest.raises(InvalidArgument, match="'wether' is not a tool"):
        body(said("Hm?"), tools=(WEATHER,), settings={"tool_choice": "wether"})


def test_earlier_calls_are_declared_even_if_no_tools_are_offered() -> None:
    """Ours: a conversation with calls may be summarized without tools, and must not call any."""
    call = ToolCall(call_id=1, name="weather", arguments={})
    found = body(said("Hm?"), called(call), ToolMessage(call_id=1, name="weather", value="dry"))
    assert found["tools"] == [{"name": "weather", "input_schema": {"type": "object"}, **CACHED}]
    assert found["tool_choice"] == {"type": "none"}


def test_settings_are_translated_to_the_vendors_names() -> None:
    """Ours: settings are the same for all providers; this vendor has no seed."""
    settings = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 100,
        "stop": ("END",),
        "seed": 7,
        "cache": False,
    }
    assert body(said("Hm?"), settings=settings) == {
        "model": OLDER,
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": [text("Hm?")]}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
    }


def test_the_headers_contain_the_version_but_no_key() -> None:
    """Ours: the HTTP layer adds the key."""
    asked = PreparedRequest(OLDER, ModelRequest(messages=[said("Hm?")]), read_settings({}), {}, ORIGIN)
    call = AnthropicDialect().call(asked)
    assert call.path == "/v1/messages"
    assert call.headers == {"anthropic-version": "2023-06-01"}
    assert AnthropicDialect().authorize("sk-ant-1") == {"x-api-key": "sk-ant-1"}


def test_images_documents_and_text_files_are_sent_as_blocks() -> None:
    """Ours: bytes are sent inline; text is sent as a plain-text document."""
    media = {"a": b"\x89PNG", "b": b"%PDF", "c": "é".encode()}
    parts = (
        TextPart(text="Look:"),
        AttachmentPart(digest="a", media_type="image/png", size=4),
        AttachmentPart(digest="b", media_type="application/pdf", size=4, name="plan.pdf"),
        AttachmentPart(digest="c", media_type="text/plain; charset=utf-8", size=2),
        InputPart(name="table", digest="d", media_type="application/json", size=9),
        TextPart(text="  "),
    )
    found = body(UserMessage(content=parts), media=media, settings={"cache": False})
    png, pdf = base64.b64encode(b"\x89PNG").decode(), base64.b64encode(b"%PDF").decode()
    assert found["messages"][0]["content"] == [
        text("Look:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
            "title": "plan.pdf",
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
        text("[input table: application/json, 9 bytes]"),
    ]


@pytest.mark.parametrize(
    ("media_type", "data", "words"),
    [
        ("video/mp4", b"", "does not accept attachments of type 'video/mp4'"),
        ("text/plain", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_an_attachment_that_cannot_be_sent_is_refused(media_type: str, data: bytes, words: str) -> None:
    """Ours: the error names what the vendor does not accept, and is raised before anything is sent."""
    part = AttachmentPart(digest="a", media_type=media_type, size=1)
    with pytest.raises(InvalidArgument, match=words):
        body(UserMessage(content=(part,)), media={"a": data})


def test_ids_from_other_providers_are_sanitized_and_made_unique() -> None:
    """Ours: ids have a limited character set and must be unique; call numbers repeat in each turn."""
    history: list[Message] = [said("Hm?")]
    for provider_id in ("fc:1/2", "fc:1/2", "", ""):
        call = ToolCall(call_id=1, name="weather", arguments={}, provider_id=provider_id)
        history += [called(call), ToolMessage(call_id=1, name="weather", provider_id=provider_id, value="")]
    messages = body(*history)["messages"]
    uses = [turn["content"][0]["id"] for turn in messages[1::2]]
    assert uses == ["fc_1_2", "fc_1_2_2", "call_1", "call_1_2"]
    assert [turn["content"][0]["tool_use_id"] for turn in messages[2::2]] == uses


def test_arguments_that_are_not_json_are_sent_back_as_text() -> None:
    """Ours: the vendor accepts only objects; other arguments are never sent as {}."""
    call = ToolCall(call_id=1, name="weather", raw='{"city": "Os')
    result = ToolMessage(call_id=1, name="weather", error=ErrorObject(code="INVALID_ARGUMENT", message="no"))
    found = body(said("Hm?"), called(call), result, tools=(WEATHER,))
    assert found["messages"][1]["content"][0]["input"] == {"raw": '{"city": "Os'}


def test_shown_replaces_the_result() -> None:
    """Ours: a plugin may shorten the result that the model reads."""
    call = ToolCall(call_id=1, name="weather", arguments={}, provider_id="toolu_1")
    result = ToolMessage(call_id=1, name="weather", value="long", shown="short")
    found = body(said("Hm?"), called(call), result, settings={"cache": False})
    assert found["messages"][2]["content"][0]["content"] == "short"


def test_messages_alternate_and_start_and_end_with_the_user() -> None:
    """Ours: the vendor refuses any other order; an empty reply makes no message."""
    found = body(AssistantMessage(text="Hello."), said("a"), AssistantMessage(), said("b"))
    assert [turn["role"] for turn in found["messages"]] == ["user", "assistant", "user"]
    assert found["messages"][2]["content"] == [text("a"), text("b", **CACHED)]
    assert [turn["role"] for turn in body(said("a"), AssistantMessage(text="b"))["messages"]] == [
        "user",
        "assistant",
        "user",
    ]
    assert body()["messages"][0]["role"] == "user"


def test_structured_output_is_requested_by_its_schema() -> None:
    """Ours: the vendor's JSON mode works together with tools."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    found = body(said("Hm?"), output_schema=schema, model=NEWER, settings={"reasoning": "high"})
    assert found["output_config"] == {
        "effort": "high",
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"n": {"type": "integer", "description": '{"minimum":1}'}},
                "additionalProperties": False,
                "required": ["n"],
            },
        },
    }
    assert "system" not in found


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        ("claude-3-5-haiku-20241022", {"type": "object", "properties": {}}),
        (NEWER, {"type": "object", "additionalProperties": {"type": "integer"}}),
    ],
)
def test_a_schema_without_a_native_form_is_described_in_the_prompt(
    model: str, schema: dict[str, Any]
) -> None:
    """Ours: older models have no JSON mode, and a map with arbitrary keys would become an empty object."""
    found = body(said("Hm?"), output_schema=schema, model=model, instructions="Be brief.")
    assert "output_config" not in found
    assert found["system"][0] == text("Be brief.")
    assert "JSON Schema" in found["system"][1]["text"]


def test_a_tool_without_an_object_schema_gets_an_empty_one() -> None:
    """Ours: the vendor accepts only object schemas."""
    found = body(said("Hm?"), tools=(Capability(name="ring", description=""),), settings={"cache": False})
    assert found["tools"] == [{"name": "ring", "input_schema": {"type": "object", "properties": {}}}]


UNION: dict[str, Any] = {
    "anyOf": [
        {
            "title": "Verdict",
            "type": "object",
            "properties": {"late": {"type": "boolean"}},
            "required": ["late"],
        },
        {
            "title": "Question",
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    ]
}


def test_a_union_of_object_types_has_a_native_form() -> None:
    """Ours: the vendor takes `anyOf` at the root; each member is closed."""
    found = body(said("Hm?"), output_schema=UNION, model=NEWER)
    members = found["output_config"]["format"]["schema"]["anyOf"]
    assert [list(member["properties"]) for member in members] == [["late"], ["text"]]
    assert all(member["additionalProperties"] is False for member in members)
    assert "system" not in found
