"""The requests to the Responses API, as JSON."""

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


def test_a_plain_question_is_a_small_body_and_nothing_of_it_is_stored() -> None:
    """Ours: unset settings are not sent, and the vendor stores nothing."""
    assert body(user("hi")) == {"model": "gpt-4.1", "input": [said("hi")], "stream": True, "store": False}


def test_a_body_holds_instructions_tools_format_reasoning_sampling_and_the_key_of_the_cache() -> None:
    """Ours: every setting of a request is translated to the vendor's names."""
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


def test_calls_and_their_results_follow_the_words_of_a_reply() -> None:
    """Seed: every call of the history has its result, under the vendor's id."""
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


def test_a_result_is_shown_as_it_is_to_be_shown() -> None:
    """Ours: `shown` replaces the result; a string is not quoted."""
    calls = tuple(ToolCall(call_id=n, name="f", arguments={}, provider_id=f"c{n}") for n in (1, 2))
    sent = items(
        AssistantMessage(tool_calls=calls),
        ToolMessage(call_id=1, name="f", value="plain"),
        ToolMessage(call_id=2, name="f", value="long", shown="short"),
    )
    assert [item["output"] for item in sent[2:]] == ["plain", "short"]


@pytest.mark.parametrize("given", ["", "toolu_01", "x" * 90], ids=["none", "foreign", "long"])
def test_every_call_of_a_conversation_has_an_id_of_its_own_that_fits(given: str) -> None:
    """Ours: the ids of other vendors' histories may be missing, reused or too long."""
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


def test_nothing_empty_is_sent() -> None:
    """Ours: the API refuses empty parts."""
    parts = (TextPart(text=""), TextPart(text="x"))
    assert items(user(""), AssistantMessage(), user(parts)) == [said("x")]


def test_an_image_and_a_document_go_as_data_urls_and_text_as_text() -> None:
    """Ours: media of a message is sent with it, in the form that the vendor reads."""
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
def test_media_that_the_vendor_cannot_read_is_refused_by_its_name(media_type: str) -> None:
    """Ours: the error names the attachment to the user, before anything is sent."""
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


def test_reasoning_goes_back_in_its_place() -> None:
    """Ours: the vendor requires the items of a reply in their original order."""
    assert thoughtful() == ["rs_1", ("I look.", "commentary"), "rs_2", "c1", "c2"]
    kept = Reasoning(origin=ORIGIN, opaque=OUTLINE)
    sent = items(AssistantMessage(text="I look.", reasoning=(kept,)))
    assert sent[0] == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAA"}


def test_reasoning_of_another_origin_stays_here() -> None:
    """Ours: reasoning is sent back only to its origin."""
    assert thoughtful(origin="openai https://other/v1 gpt-5.2") == [("I look.", None), "c1", "c2"]


def test_reasoning_that_leads_nowhere_is_left_out() -> None:
    """Ours: the API refuses reasoning without the item that follows it, and plugins may drop that."""
    assert thoughtful(text="", ids=("c2",)) == ["c2"]
    assert thoughtful(ids=("c1",)) == ["rs_1", ("I look.", "commentary"), "rs_2", "c1"]


def test_changed_words_and_unknown_calls_are_sent_as_they_are_now() -> None:
    """Ours: an outline never restores what a plugin removed."""
    assert thoughtful(text="[gone]", ids=("c1", "c2", "c9")) == [
        "rs_1",
        ("[gone]", "commentary"),
        "rs_2",
        "c1",
        "c2",
        "c9",
    ]


def test_several_messages_of_one_reply_are_separated_again() -> None:
    """Ours: a comment and an answer have phases, which the vendor requires back."""
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


def test_what_another_version_has_kept_is_not_trusted() -> None:
    """Ours: an opaque value that is not an outline is skipped."""
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
def test_encrypted_reasoning_is_asked_of_models_that_reason(model: str, asks: bool) -> None:
    """Bug: other models answer "Encrypted content is not supported with this model"."""
    assert ("include" in body(user(), model=model)) is asks


@pytest.mark.parametrize(
    ("wanted", "effort"), [("minimal", "minimal"), (1, "low"), (10_000, "medium"), (50_000, "high")]
)
def test_effort_is_asked_for_in_words_or_tokens(wanted: str | int, effort: str) -> None:
    """Ours: one setting for all vendors; OpenAI accepts only words."""
    assert body(user(), settings={"reasoning": wanted})["reasoning"]["effort"] == effort


def test_no_reasoning_is_asked_for_without_a_summary_of_it() -> None:
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
    """Ours: the API refuses a choice among no tools."""
    sent = body(user(), settings={"tool_choice": "auto", "parallel_tool_calls": True})
    assert "tool_choice" not in sent
    assert "parallel_tool_calls" not in sent


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_choice_of_tools_in_words_goes_as_it_is(choice: str) -> None:
    """Ours: only the name of a tool needs another form."""
    assert body(user(), tools=(WEATHER,), settings={"tool_choice": choice})["tool_choice"] == choice


def test_nothing_is_cached_on_request() -> None:
    """Ours: `cache` is the user's choice."""
    assert "prompt_cache_key" not in body(user(), session_id="s", settings={"cache": False})


def test_an_answer_that_is_not_an_object_is_asked_for_in_words() -> None:
    """Ours: the API accepts only objects, so a list is described in the prompt."""
    sent = body(
        user(), instructions="Be kind.", output_schema={"type": "array", "items": {"type": "integer"}}
    )
    assert "text" not in sent
    assert sent["instructions"].startswith("Be kind.\n\nYour final answer must be one JSON value")
    assert '{"type":"array","items":{"type":"integer"}}' in sent["instructions"]


def test_a_schema_that_refers_to_itself_is_sent_as_an_object() -> None:
    """Ours: a recursive type starts with a reference, where the API requires an object."""
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


def test_a_union_of_models_is_asked_for_in_words() -> None:
    """Ours: the API refuses `anyOf` at the root, so a union is described, and checked on arrival."""
    sent = body(user(), output_schema=UNION)
    assert "text" not in sent
    assert '"title":"Verdict"' in sent["instructions"]
    assert '"title":"Question"' in sent["instructions"]


def test_a_list_of_a_union_within_an_object_is_the_format() -> None:
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
