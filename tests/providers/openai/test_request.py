"""Requests to the Responses API, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from standfast.errors import ErrorObject, InvalidArgument
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Message,
    Part,
    Reasoning,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from standfast.ports.model_provider import ModelRequest
from standfast.providers.http.dialect import PreparedRequest
from standfast.providers.openai.model import OpenAIDialect
from standfast.providers.settings import read_settings

ORIGIN = "openai https://api.openai.com/v1 gpt-5.2"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED_CITY = {**CITY, "additionalProperties": False}
WEATHER = Capability(name="weather", description="The weather of a city.", input_schema=CITY)


def body(
    *messages: Message,
    model: str = "gpt-4.1",
    settings: Mapping[str, Any] | None = None,
    media: Mapping[str, bytes] | None = None,
    **request: Any,
) -> dict[str, Any]:
    asked = PreparedRequest(
        model=model,
        request=ModelRequest(messages=list(messages), **request),
        settings=read_settings(settings or {}),
        media=media or {},
        origin=ORIGIN,
    )
    call = OpenAIDialect().call(asked)
    assert call.path == "/responses"
    sent: dict[str, Any] = json.loads(json.dumps(call.body))
    return sent


def items(*messages: Message, media: Mapping[str, bytes] | None = None) -> Any:
    return body(*messages, media=media)["input"]


def user(said: str | tuple[Part, ...] = "hi") -> UserMessage:
    return UserMessage(content=said)


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def test_a_plain_question_has_a_small_body_and_is_not_stored_by_the_vendor() -> None:
    """Ours: unset settings are not sent, and the vendor is asked to store nothing."""
    assert body(user("hi")) == {"model": "gpt-4.1", "input": [said("hi")], "stream": True, "store": False}


def test_a_body_has_instructions_tools_format_reasoning_sampling_and_a_cache_key() -> None:
    """Ours: every setting is translated to the vendor's names."""
    sent = body(
        user("hi"),
        model="gpt-5.2",
        instructions="Be kind.",
        tools=(WEATHER,),
        output_schema=CLOSED_CITY,
        session_id="s1",
        settings={
            "reasoning": "low",
            "max_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "tool_choice": "weather",
            "parallel_tool_calls": False,
        },
    )
    assert sent == {
        "model": "gpt-5.2",
        "input": [said("hi")],
        "stream": True,
        "store": False,
        "instructions": "Be kind.",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": CLOSED_CITY, "strict": True}},
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": "The weather of a city.",
                "parameters": CITY,
                "strict": False,
            }
        ],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s1",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 100,
    }


def test_calls_and_their_results_follow_the_text_of_a_reply() -> None:
    """Seed: every call in the history has its result, under the vendor's id."""
    sent = items(
        user("weather?"),
        AssistantMessage(
            text="I look.",
            tool_calls=(
                ToolCall(call_id=1, name="weather", arguments={"city": "Bern"}, provider_id="call_a"),
                ToolCall(call_id=2, name="weather", raw='{"city": "Ba', provider_id="call_b"),
            ),
        ),
        ToolMessage(call_id=1, name="weather", value={"c": 3}, provider_id="call_a"),
        ToolMessage(
            call_id=2, name="weather", error=ErrorObject(code="BAD", message="not JSON"), provider_id="call_b"
        ),
    )
    assert sent == [
        said("weather?"),
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": '{"city":"Bern"}'},
        {"type": "function_call", "call_id": "call_b", "name": "weather", "arguments": '{"city": "Ba'},
        {"type": "function_call_output", "call_id": "call_a", "output": '{"c":3}'},
        {"type": "function_call_output", "call_id": "call_b", "output": "BAD: not JSON"},
    ]


def test_shown_replaces_the_result() -> None:
    """Ours: `shown` replaces the result; a string is not quoted."""
    calls = tuple(ToolCall(call_id=n, name="f", arguments={}, provider_id=f"c{n}") for n in (1, 2))
    sent = items(
        AssistantMessage(tool_calls=calls),
        ToolMessage(call_id=1, name="f", value="plain"),
        ToolMessage(call_id=2, name="f", value="long", shown="short"),
    )
    assert [item["output"] for item in sent[2:]] == ["plain", "short"]


@pytest.mark.parametrize("given", ["", "toolu_01", "x" * 90], ids=["none", "foreign", "long"])
def test_every_call_of_a_conversation_has_a_unique_id_of_valid_length(given: str) -> None:
    """Ours: ids in other vendors' histories may be missing, reused or too long."""
    call = ToolCall(call_id=1, name="f", arguments={}, provider_id=given)
    turn = (
        AssistantMessage(tool_calls=(call,)),
        ToolMessage(call_id=1, name="f", value=1, provider_id=given),
    )
    sent = items(*turn, *turn, *turn)
    ids = [item["call_id"] for item in sent]
    assert ids[0::2] == ids[1::2]
    assert len(set(ids)) == 3
    assert all(0 < len(each) <= 64 for each in ids)
    assert items(*turn, *turn)[:4] == sent[:4]


def test_empty_parts_are_not_sent() -> None:
    """Ours: the API refuses empty parts."""
    parts = (TextPart(text=""), TextPart(text="x"))
    assert items(user(""), AssistantMessage(), user(parts)) == [said("x")]


def test_images_and_documents_are_sent_as_data_urls_and_text_as_text() -> None:
    """Ours: media is sent with its message, in the form that the vendor reads."""
    parts: tuple[Part, ...] = (
        TextPart(text="Look:"),
        AttachmentPart(digest="i", media_type="image/png", size=3),
        AttachmentPart(digest="p", media_type="application/pdf", size=3, name="a.pdf"),
        AttachmentPart(digest="p", media_type="application/pdf", size=3),
        AttachmentPart(digest="t", media_type="text/csv; charset=utf-8", size=3, name="t.csv"),
        AttachmentPart(digest="t", media_type="application/json", size=3),
        InputPart(name="rows", digest="t", media_type="text/plain", size=9),
    )
    (sent,) = items(user(parts), media={"i": b"\x89PN", "p": b"%PD", "t": "ä,b".encode()})
    assert sent["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBO"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_file", "filename": "attachment.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_text", "text": "File t.csv:\nä,b"},
        {"type": "input_text", "text": "ä,b"},
        {"type": "input_text", "text": "[input rows: text/plain, 9 bytes]"},
    ]


@pytest.mark.parametrize("media_type", ["audio/wav", "image/tiff", "application/zip"])
def test_media_that_the_vendor_cannot_read_is_refused_by_name(media_type: str) -> None:
    """Ours: the error names the attachment, and is raised before anything is sent."""
    part = AttachmentPart(digest="d", media_type=media_type, size=1, name="thing.bin")
    with pytest.raises(InvalidArgument, match=rf"{media_type}.*thing\.bin"):
        items(user((part,)), media={"d": b"x"})


OUTLINE: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "AAA"},
    {"type": "message", "chars": 7, "phase": "commentary"},
    {"type": "reasoning", "id": "rs_2", "summary": [], "content": None, "encrypted_content": "BBB"},
    {"type": "function_call", "call_id": "c1"},
    {"type": "function_call", "call_id": "c2"},
]


def thoughtful(text: str = "I look.", ids: tuple[str, ...] = ("c1", "c2"), origin: str = ORIGIN) -> Any:
    calls = tuple(
        ToolCall(call_id=n, name="f", arguments={}, provider_id=given) for n, given in enumerate(ids, 1)
    )
    kept = Reasoning(origin=origin, text="Hm.", opaque=OUTLINE)
    return [
        item.get("id") or item.get("call_id") or (item["content"], item.get("phase"))
        for item in items(AssistantMessage(text=text, tool_calls=calls, reasoning=(kept,)))
    ]


def test_reasoning_is_sent_back_in_its_place() -> None:
    """Ours: the vendor requires the items of a reply in their original order."""
    assert thoughtful() == ["rs_1", ("I look.", "commentary"), "rs_2", "c1", "c2"]
    kept = Reasoning(origin=ORIGIN, opaque=OUTLINE)
    sent = items(AssistantMessage(text="I look.", reasoning=(kept,)))
    assert sent[0] == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAA"}


def test_reasoning_from_another_origin_is_not_sent() -> None:
    """Ours: reasoning is sent back only to its origin."""
    assert thoughtful(origin="openai https://other/v1 gpt-5.2") == [("I look.", None), "c1", "c2"]


def test_reasoning_without_the_item_that_follows_it_is_left_out() -> None:
    """Ours: the API refuses reasoning on its own, and plugins may drop the item after it."""
    assert thoughtful(text="", ids=("c2",)) == ["c2"]
    assert thoughtful(ids=("c1",)) == ["rs_1", ("I look.", "commentary"), "rs_2", "c1"]


def test_edited_text_and_unknown_calls_are_sent_in_their_current_form() -> None:
    """Ours: an outline never restores content that a plugin removed."""
    assert thoughtful(text="[gone]", ids=("c1", "c2", "c9")) == [
        "rs_1",
        ("[gone]", "commentary"),
        "rs_2",
        "c1",
        "c2",
        "c9",
    ]


def test_several_messages_of_one_reply_are_separated_again() -> None:
    """Ours: a commentary and an answer have phases, which the vendor requires back."""
    outline = [
        {"type": "message", "chars": 3, "phase": "commentary"},
        {"type": "other"},
        {"type": "message", "chars": 4, "phase": "final_answer"},
    ]
    kept = Reasoning(origin=ORIGIN, opaque=outline)
    sent = items(AssistantMessage(text="one\n\nfour", reasoning=(kept,)))
    assert [(item["content"], item["phase"]) for item in sent] == [
        ("one", "commentary"),
        ("four", "final_answer"),
    ]


def test_an_unknown_opaque_value_is_ignored() -> None:
    """Ours: an opaque value that is not an outline, such as another version's, is skipped."""
    kept = Reasoning(origin=ORIGIN, opaque={"some": "thing"})
    assert len(items(AssistantMessage(text="x", reasoning=(kept,)))) == 1


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gpt-4.1", False),
        ("gpt-4o-mini", False),
        ("gpt-5-chat-latest", False),
        ("gpt-5.2", True),
        ("o3", True),
        ("llama", False),
    ],
)
def test_encrypted_reasoning_is_requested_only_from_models_that_reason(model: str, asks: bool) -> None:
    """Bug: other models answer "Encrypted content is not supported with this model"."""
    assert ("include" in body(user(), model=model)) is asks


@pytest.mark.parametrize(
    ("wanted", "effort"), [("minimal", "minimal"), (1, "low"), (10_000, "medium"), (50_000, "high")]
)
def test_reasoning_may_be_given_as_a_level_or_in_tokens(wanted: str | int, effort: str) -> None:
    """Ours: one setting for all vendors; OpenAI accepts only levels."""
    assert body(user(), settings={"reasoning": wanted})["reasoning"]["effort"] == effort


def test_disabled_reasoning_is_sent_without_a_summary() -> None:
    """Ours: without reasoning there is no summary."""
    sent = body(user(), model="gpt-5.2", settings={"reasoning": "none"})
    assert sent["reasoning"] == {"effort": "none"}
    assert "include" not in sent


@pytest.mark.parametrize("setting", [{"top_k": 5}, {"stop": ["x"]}, {"seed": 1}])
def test_a_setting_that_the_api_does_not_have_is_refused(setting: dict[str, Any]) -> None:
    """Ours: a setting is applied or rejected, never dropped."""
    with pytest.raises(InvalidArgument, match=next(iter(setting))):
        body(user(), settings=setting)


def test_tool_settings_without_tools_are_not_sent() -> None:
    """Ours: the API refuses a tool choice without tools."""
    sent = body(user(), settings={"tool_choice": "auto", "parallel_tool_calls": True})
    assert "tool_choice" not in sent
    assert "parallel_tool_calls" not in sent


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_tool_choice_that_is_a_keyword_is_sent_unchanged(choice: str) -> None:
    """Ours: only the name of a tool needs another form."""
    assert body(user(), tools=(WEATHER,), settings={"tool_choice": choice})["tool_choice"] == choice


def test_caching_can_be_disabled() -> None:
    """Ours: `cache` is the user's choice."""
    assert "prompt_cache_key" not in body(user(), session_id="s", settings={"cache": False})


def test_an_output_type_that_is_not_an_object_is_described_in_the_prompt() -> None:
    """Ours: the API accepts only objects as a format."""
    sent = body(
        user(), instructions="Be kind.", output_schema={"type": "array", "items": {"type": "integer"}}
    )
    assert "text" not in sent
    assert sent["instructions"].startswith("Be kind.\n\nYour final answer must be one JSON value")
    assert '{"type":"array","items":{"type":"integer"}}' in sent["instructions"]


def test_a_recursive_schema_is_sent_as_an_object() -> None:
    """Ours: the schema of a recursive type starts with a reference, where the API requires an object."""
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    sent = body(user(), output_schema={"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert sent["text"]["format"]["schema"] == {**node, "$defs": {"Node": node}}
    assert sent["text"]["format"]["strict"] is True


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


def test_a_union_of_object_types_is_described_in_the_prompt() -> None:
    """Ours: the API refuses `anyOf` at the root, so a union is described, and validated on arrival."""
    sent = body(user(), output_schema=UNION)
    assert "text" not in sent
    assert '"title":"Verdict"' in sent["instructions"]
    assert '"title":"Question"' in sent["instructions"]


def test_a_list_of_a_union_inside_an_object_is_sent_as_the_format() -> None:
    """Ours: below the root, the API accepts `anyOf`."""
    closed = [{**one, "additionalProperties": False} for one in UNION["anyOf"]]
    schema = {
        "type": "object",
        "properties": {"all": {"type": "array", "items": {"anyOf": closed}}},
        "required": ["all"],
        "additionalProperties": False,
    }
    sent = body(user(), output_schema=schema)["text"]["format"]
    assert (sent["schema"], sent["strict"]) == (schema, True)
