"""The body of a chat completion."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from chat_values import DEEPSEEK, LOCAL, MISTRAL, OPENAI, OPENROUTER, ORIGIN, body

from standfast.errors import ErrorObject, InvalidArgument
from standfast.model.capability import Capability
from standfast.model.message import (
    AssistantMessage,
    AttachmentPart,
    InputPart,
    Reasoning,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

HI = UserMessage(content="hi")
LOOK = Capability(
    name="look",
    description="Look.",
    input_schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
ANSWER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRICT = ANSWER | {"additionalProperties": False}


def attached(media_type: str, name: str | None = None) -> UserMessage:
    part = AttachmentPart(digest="d1", media_type=media_type, size=3, name=name)
    return UserMessage(content=(TextPart(text="see"), part))


def called(*calls: ToolCall, text: str = "", reasoning: tuple[Reasoning, ...] = ()) -> AssistantMessage:
    return AssistantMessage(text=text, tool_calls=calls, reasoning=reasoning)


def test_a_minimal_request_has_no_unset_settings() -> None:
    """Ours: unset settings are not sent."""
    assert body(HI) == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
    }


def test_a_conversation_with_tools_has_the_expected_body() -> None:
    """Ours: a golden body of a turn in progress."""
    made = body(
        HI,
        called(
            ToolCall(call_id=1, name="look", arguments={"at": "sky"}, provider_id="call_a"),
            ToolCall(call_id=2, name="look", arguments={"at": "sea"}, provider_id="call_b"),
            text="I look.",
        ),
        ToolMessage(call_id=1, name="look", value={"blue": True}, provider_id="call_a"),
        ToolMessage(
            call_id=2, name="look", error=ErrorObject(code="TOOL_ERROR", message="fog"), provider_id="call_b"
        ),
        AssistantMessage(text="Blue."),
        UserMessage(content="thanks"),
        instructions="Be brief.",
        tools=(LOOK,),
    )
    assert made == {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at":"sky"}'},
                    },
                    {
                        "id": "call_b",
                        "type": "function",
                        "function": {"name": "look", "arguments": '{"at":"sea"}'},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": '{"blue":true}'},
            {"role": "tool", "tool_call_id": "call_b", "content": "TOOL_ERROR: fog"},
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "thanks"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "look", "description": "Look.", "parameters": LOOK.input_schema},
            }
        ],
        "stream_options": {"include_usage": True},
    }


def test_settings_are_sent_under_their_most_common_names() -> None:
    """Ours: servers that are not in our table all get the same body."""
    made = body(
        HI,
        tools=(LOOK,),
        settings={
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "max_tokens": 100,
            "stop": ["END"],
            "seed": 7,
            "reasoning": "low",
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        session_id="s1",
    )
    for name in ("messages", "tools", "model", "stream", "stream_options"):
        del made[name]
    assert made == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "reasoning_effort": "low",
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }


def test_openai_gets_its_own_names_and_a_cache_key() -> None:
    """Ours: the settings depend on the host."""
    made = body(HI, base_url=OPENAI, settings={"max_tokens": 9}, session_id="s1")
    assert made["max_completion_tokens"] == 9
    assert "max_tokens" not in made
    assert made["prompt_cache_key"] == "s1"
    assert "prompt_cache_key" not in body(HI, base_url=OPENAI, settings={"cache": False}, session_id="s1")
    with pytest.raises(InvalidArgument, match="top_k"):
        body(HI, base_url=OPENAI, settings={"top_k": 5})


def test_mistral_gets_only_the_fields_it_knows() -> None:
    """Ours: Mistral answers 422 to `stream_options`, and names the seed differently."""
    made = body(HI, base_url=MISTRAL, settings={"seed": 3})
    assert "stream_options" not in made
    assert made["random_seed"] == 3


@pytest.mark.parametrize(
    ("wanted", "base_url", "sent"),
    [
        (1024, LOCAL, {"reasoning_effort": "low"}),
        (8000, LOCAL, {"reasoning_effort": "medium"}),
        (50_000, LOCAL, {"reasoning_effort": "high"}),
        ("none", LOCAL, {"reasoning_effort": "none"}),
        (8000, OPENROUTER, {"reasoning": {"max_tokens": 8000}}),
        ("high", OPENROUTER, {"reasoning": {"effort": "high"}}),
    ],
)
def test_reasoning_is_translated_to_the_hosts_form(wanted: Any, base_url: str, sent: dict[str, Any]) -> None:
    """Ours: a number of tokens is translated to a level where only levels are accepted."""
    made = body(HI, base_url=base_url, settings={"reasoning": wanted})
    assert {name: made.get(name) for name in sent} == sent


def test_a_tool_can_be_chosen_by_name() -> None:
    """Ours: `tool_choice` must name an existing tool."""
    made = body(HI, tools=(LOOK,), settings={"tool_choice": "look"})
    assert made["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    with pytest.raises(InvalidArgument, match="'leap'"):
        body(HI, tools=(LOOK,), settings={"tool_choice": "leap"})
    with pytest.raises(InvalidArgument, match="no tools"):
        body(HI, settings={"tool_choice": "required"})


def test_a_tool_without_an_object_schema_gets_an_empty_one() -> None:
    """Ours: a capability for code may have only positional parameters; Chat Completions requires objects."""
    made = body(HI, tools=(Capability(name="go", description=""),))
    assert made["tools"] == [
        {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}
    ]


# Structured output


def test_an_output_schema_is_the_response_format() -> None:
    """Ours: the vendor enforces the schema, strictly where possible."""
    made = body(HI, output_schema=ANSWER)
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": ANSWER},
    }
    strict = body(HI, output_schema=STRICT)["response_format"]["json_schema"]
    assert strict == {"name": "answer", "schema": STRICT, "strict": True}


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ({"type": "array", "items": {"type": "integer"}}, {}),
        (ANSWER, {"tools": (LOOK,)}),
    ],
)
def test_an_unsupported_schema_is_described_in_the_prompt(
    schema: dict[str, Any], options: dict[str, Any]
) -> None:
    """Ours: most servers reject a root that is not an object, and a schema prevents tool calls."""
    made = body(HI, output_schema=schema, instructions="Count.", **options)
    assert "response_format" not in made
    system = made["messages"][0]["content"]
    assert system.startswith("Count.\n\n")
    assert '"integer"' in system


def test_hosts_that_accept_a_schema_together_with_tools_get_it() -> None:
    """Ours: OpenAI and OpenRouter enforce it for the final answer and still call tools."""
    assert "response_format" in body(HI, base_url=OPENAI, output_schema=ANSWER, tools=(LOOK,))


def test_a_host_without_schemas_is_asked_for_a_json_object() -> None:
    """Ours: DeepSeek has only `json_object`, and requires the word JSON in the prompt."""
    made = body(HI, base_url=DEEPSEEK, output_schema=ANSWER)
    assert made["response_format"] == {"type": "json_object"}
    assert "JSON" in made["messages"][0]["content"]


# Content


def test_an_image_is_sent_as_a_data_url() -> None:
    """Ours: Chat Completions accepts images as data URLs."""
    content = body(attached("image/png"), media={"d1": b"\x89PN"})["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "see"},
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{b64encode(bytes((0x89,)) + b'PN').decode()}"},
        },
    ]


def test_a_document_is_sent_as_a_file() -> None:
    """Ours: Chat Completions accepts documents as files."""
    content = body(attached("application/pdf", "a.pdf"), media={"d1": b"%PD"})["messages"][0]["content"]
    assert content[1] == {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBE"},
    }


@pytest.mark.parametrize(
    ("kind", "format_"), [("audio/wav", "wav"), ("audio/x-wav", "wav"), ("audio/mpeg", "mp3")]
)
def test_audio_is_sent_as_input_audio(kind: str, format_: str) -> None:
    """Ours: WAV and MP3 have their own type of part."""
    content = body(attached(kind), media={"d1": b"abc"})["messages"][0]["content"]
    assert content[1] == {"type": "input_audio", "input_audio": {"data": "YWJj", "format": format_}}


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "application/json", "image/svg+xml"])
def test_a_text_file_is_sent_as_plain_text_not_as_a_list(kind: str) -> None:
    """Ours: many servers accept only strings."""
    content = body(attached(kind, "n.txt"), media={"d1": "grün".encode()})["messages"][0]["content"]
    assert content == "see\nFile n.txt:\ngrün"


@pytest.mark.parametrize("kind", ["video/mp4", "audio/ogg", "application/zip", "application/octet-stream"])
def test_unsupported_media_is_refused_by_name(kind: str) -> None:
    """Ours: the error names the attachment and the reason, and is raised before anything is sent."""
    with pytest.raises(InvalidArgument, match=f"{kind}.*clip"):
        body(attached(kind, "clip"), media={"d1": b"abc"})


def test_an_input_is_described_and_empty_text_is_left_out() -> None:
    """Ours: an `InputPart` is sent as a short text; empty blocks are never sent."""
    parts = (TextPart(text=""), InputPart(name="rows", digest="d", media_type="application/json", size=9))
    made = body(UserMessage(content=parts), UserMessage(content=""), AssistantMessage())
    assert made["messages"] == [{"role": "user", "content": "[input rows: application/json, 9 bytes]"}]


# Calls and results


def test_a_reply_with_only_calls_has_no_content() -> None:
    """Ours: the content is null, as in OpenAI's own messages."""
    made = body(
        HI,
        called(ToolCall(call_id=1, name="look", arguments={})),
        ToolMessage(call_id=1, name="look", value="x"),
    )
    assert made["messages"][1]["content"] is None
    assert made["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "x"}


def test_shown_replaces_the_result() -> None:
    """Ours: the model reads `shown` instead of the result."""
    result = ToolMessage(call_id=1, name="look", value="long", shown="short")
    assert (
        body(called(ToolCall(call_id=1, name="look", arguments={})), result)["messages"][1]["content"]
        == "short"
    )


def test_generated_ids_stay_with_their_calls_and_are_unique() -> None:
    """Ours: calls are numbered per turn, so two turns both have a first call."""
    one = called(ToolCall(call_id=1, name="look", arguments={}))
    made = body(
        *(one, ToolMessage(call_id=1, name="look", value="a")),
        *(one, ToolMessage(call_id=1, name="look", value="b")),
    )["messages"]
    ids = [message["tool_calls"][0]["id"] for message in made[::2]]
    assert ids[0] != ids[1]
    assert [message["tool_call_id"] for message in made[1::2]] == ids


def test_mistral_gets_ids_of_nine_characters() -> None:
    """Ours: Mistral refuses any other id, such as another vendor's."""
    made = body(
        called(
            ToolCall(call_id=1, name="look", arguments={}, provider_id="toolu_01ABCDEF"),
            ToolCall(call_id=2, name="look", arguments={}, provider_id="a1B2c3D4e"),
        ),
        ToolMessage(call_id=1, name="look", value="a"),
        ToolMessage(call_id=2, name="look", value="b"),
        base_url=MISTRAL,
    )["messages"]
    ids = [call["id"] for call in made[0]["tool_calls"]]
    assert [len(each) for each in ids] == [9, 9]
    assert ids[0].isalnum()
    assert ids[1] == "a1B2c3D4e"
    assert [message["tool_call_id"] for message in made[1:]] == ids


def test_arguments_that_are_not_an_object_are_wrapped_in_one() -> None:
    """Ours: servers parse the arguments in the history for their templates, and fail on other values."""
    made = body(
        called(ToolCall(call_id=1, name="look", raw='{"at": "s')),
        ToolMessage(call_id=1, name="look", value=1),
    )
    assert (
        made["messages"][0]["tool_calls"][0]["function"]["arguments"]
        == r'{"malformed_arguments":"{\"at\": \"s"}'
    )


def test_a_result_without_its_call_is_described_in_text() -> None:
    """Ours: compaction may leave such a result, and servers refuse a `tool` message without a call."""
    made = body(HI, ToolMessage(call_id=4, name="look", value="blue"))
    assert made["messages"][1] == {"role": "user", "content": "[result of look]\nblue"}


# Reasoning


def thought(field: str, text: str = "hm", origin: str = ORIGIN) -> tuple[Reasoning, ...]:
    return (Reasoning(origin=origin, text=text, opaque={"field": field}),)


CALL = ToolCall(call_id=1, name="look", arguments={})
RESULT = ToolMessage(call_id=1, name="look", value="a")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_sent_back_in_its_original_field(field: str) -> None:
    """Ours: DeepSeek refuses a tool call without the reasoning before it."""
    made = body(called(CALL, reasoning=thought(field)), RESULT)
    assert made["messages"][0][field] == "hm"


def test_reasoning_is_sent_only_to_its_origin_and_only_with_calls() -> None:
    """Ours: no other model gets it; without calls, DeepSeek's older models refuse it."""
    other = body(called(CALL, reasoning=thought("reasoning_content", origin="openai https://x y")), RESULT)
    assert "hm" not in str(other)
    assert "hm" not in str(body(AssistantMessage(text="so", reasoning=thought("reasoning_content")), HI))


def test_if_one_reply_has_reasoning_content_all_replies_with_calls_do() -> None:
    """Ours: DeepSeek refuses a conversation in which the field is missing, even if it is empty."""
    made = body(called(CALL, reasoning=thought("reasoning_content")), RESULT, called(CALL), RESULT)[
        "messages"
    ]
    assert [made[at]["reasoning_content"] for at in (0, 2)] == ["hm", ""]


def test_reasoning_details_are_sent_back_with_every_reply() -> None:
    """Ours: OpenRouter keeps signatures and encrypted reasoning in them."""
    details = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]
    kept = (Reasoning(origin=ORIGIN, text="hm", opaque={"reasoning_details": details}),)
    made = body(AssistantMessage(text="so", reasoning=kept), HI)["messages"][0]
    assert made == {"role": "assistant", "content": "so", "reasoning_details": details}


def test_thinking_parts_are_sent_back_in_the_content() -> None:
    """Ours: Mistral sends reasoning in a list with the text."""
    made = body(called(CALL, text="so", reasoning=thought("thinking")), RESULT)["messages"][0]
    assert made["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "so"},
    ]


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
    """Ours: most servers reject a root that is not an object."""
    made = body(HI, output_schema=UNION)
    assert "response_format" not in made
    assert '"title":"Question"' in made["messages"][0]["content"]
