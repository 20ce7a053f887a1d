"""Requests to Gemini: exact bodies, and every setting."""

from __future__ import annotations

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
from standfast.providers.google.model import GoogleDialect
from standfast.providers.google.reply_reader import PartLayoutWriter, PartPlace
from standfast.providers.http.dialect import HttpCall, PreparedRequest
from standfast.providers.http.schemas import google_schema
from standfast.providers.settings import read_settings

ORIGIN = "google https://example.test gemini-2.5-flash"
ORDER = Capability(
    name="order",
    description="An order.",
    input_schema={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
)
HELLO = UserMessage(content="Hello.")


def called(
    *messages: Message,
    model: str = "gemini-2.5-flash",
    settings: dict[str, Any] | None = None,
    media: dict[str, bytes] | None = None,
    origin: str = ORIGIN,
    **more: Any,
) -> HttpCall:
    request = ModelRequest(messages=list(messages or (HELLO,)), **more)
    return GoogleDialect().call(
        PreparedRequest(model, request, read_settings(settings or {}), media or {}, origin)
    )


def contents(*messages: Message, **more: Any) -> Any:
    return called(*messages, **more).body["contents"]


def config(model: str = "gemini-2.5-flash", **settings: Any) -> Any:
    return called(model=model, settings=settings).body.get("generationConfig")


def asking(*calls: ToolCall, text: str = "", reasoning: tuple[Reasoning, ...] = ()) -> AssistantMessage:
    return AssistantMessage(text=text, tool_calls=calls, reasoning=reasoning)


def test_a_first_question_is_as_small_as_possible() -> None:
    """Ours: unset settings are not sent."""
    call = called()
    assert call.path == "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert call.body == {"contents": [{"role": "user", "parts": [{"text": "Hello."}]}]}
    assert GoogleDialect().authorize("key") == {"x-goog-api-key": "key"}


def test_a_turn_with_two_calls_is_sent_in_geminis_form() -> None:
    """Ours: the results of one reply are one content, in the order of the calls."""
    body = called(
        UserMessage(content="Orders 1 and 2?"),
        asking(
            ToolCall(call_id=1, name="order", arguments={"id": 1}, provider_id="fc-a"),
            ToolCall(call_id=2, name="order", arguments={"id": 2}, provider_id="fc-b"),
            text="Let me see.",
        ),
        ToolMessage(
            call_id=2, name="order", error=ErrorObject(code="TOOL_ERROR", message="gone"), provider_id="fc-b"
        ),
        ToolMessage(call_id=1, name="order", value={"total": 3.5}, provider_id="fc-a"),
        UserMessage(content="Be quick."),
        instructions="Be kind.",
        tools=(ORDER,),
    ).body
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "order",
                        "description": "An order.",
                        "parametersJsonSchema": ORDER.input_schema,
                    }
                ]
            }
        ],
        "contents": [
            {"role": "user", "parts": [{"text": "Orders 1 and 2?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Let me see."},
                    {"functionCall": {"id": "fc-a", "name": "order", "args": {"id": 1}}},
                    {"functionCall": {"id": "fc-b", "name": "order", "args": {"id": 2}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "fc-a",
                            "name": "order",
                            "response": {"result": {"total": 3.5}},
                        }
                    },
                    {
                        "functionResponse": {
                            "id": "fc-b",
                            "name": "order",
                            "response": {"error": "TOOL_ERROR: gone"},
                        }
                    },
                    {"text": "Be quick."},
                ],
            },
        ],
    }


def test_roles_alternate_and_the_user_begins() -> None:
    """Ours: Gemini refuses a call that does not come right after a user's turn."""
    first = AssistantMessage(text="Welcome.")
    second = asking(ToolCall(call_id=1, name="now", arguments={}))
    sent = contents(
        first, second, ToolMessage(call_id=1, name="now", value=3), AssistantMessage(), HELLO, HELLO
    )
    assert [content["role"] for content in sent] == ["user", "model", "user"]
    assert [len(content["parts"]) for content in sent] == [1, 2, 3]


def test_a_generated_id_is_not_sent() -> None:
    """Ours: an id that Gemini did not assign is not sent to it."""
    sent = contents(
        HELLO,
        asking(
            ToolCall(call_id=1, name="now", arguments={}, provider_id="call_7_1"),
            ToolCall(call_id=2, name="now", arguments={}),
        ),
        ToolMessage(call_id=1, name="now", value=1, provider_id="call_7_1"),
        ToolMessage(call_id=2, name="now", value=2),
    )
    assert sent[1]["parts"] == [{"functionCall": {"name": "now", "args": {}}}] * 2
    assert sent[2]["parts"][1] == {"functionResponse": {"name": "now", "response": {"result": 2}}}


def test_calls_to_which_another_vendor_gave_the_same_id_are_both_sent() -> None:
    """Ours: no call in the history is lost, whichever vendor's model made it."""
    twin: dict[str, Any] = {"name": "now", "arguments": {}, "provider_id": "toolu_1"}
    sent = contents(HELLO, asking(ToolCall(call_id=1, **twin), ToolCall(call_id=2, **twin)))
    assert sent[1]["parts"] == [{"functionCall": {"id": "toolu_1", "name": "now", "args": {}}}] * 2


def test_shown_replaces_the_result() -> None:
    """Ours: `shown` replaces the result or the error."""
    failed = ErrorObject(code="TOOL_ERROR", message="no")
    sent = contents(
        HELLO,
        asking(ToolCall(call_id=1, name="a", arguments={}), ToolCall(call_id=2, name="b", arguments={})),
        ToolMessage(call_id=1, name="a", value=[1] * 99, shown="99 ones"),
        ToolMessage(call_id=2, name="b", error=failed, shown="It did not work."),
    )
    responses = [part["functionResponse"]["response"] for part in sent[2]["parts"]]
    assert responses == [{"result": "99 ones"}, {"error": "It did not work."}]


def test_arguments_that_are_not_an_object_are_sent_as_text() -> None:
    """Ours: the history may have an unreadable call, and Gemini accepts only objects."""
    sent = contents(HELLO, asking(ToolCall(call_id=1, name="a", raw='{"x": ')))
    assert sent[1]["parts"][0]["functionCall"]["args"] == {"unreadable_arguments": '{"x": '}


def signed_reply(text: str = "I look.") -> AssistantMessage:
    layout = PartLayoutWriter()
    layout.add(0, PartPlace(of="thought", start=0, end=5, signature="dDE="))
    layout.add(2, PartPlace(of="call", call="a", signature="YzE="))
    layout.add(len(text), PartPlace(of="call", call="b"))
    layout.add(len(text), PartPlace(of="text", start=len(text), end=len(text), signature="ZW5k"))
    return asking(
        ToolCall(call_id=1, name="order", arguments={"id": 1}, provider_id="a"),
        ToolCall(call_id=2, name="order", arguments={"id": 2}, provider_id="b"),
        text=text,
        reasoning=layout.reasoning(ORIGIN, text, "Hmm, so. Yes."),
    )


def call_part(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"id": name, "name": "order", "args": {"id": number}}, **more}


def test_signatures_are_sent_back_in_their_parts() -> None:
    """Ours: the reply is sent back part by part, unchanged."""
    assert contents(HELLO, signed_reply())[1]["parts"] == [
        {"text": "Hmm, ", "thought": True, "thoughtSignature": "dDE="},
        {"text": "I "},
        call_part("a", 1, thoughtSignature="YzE="),
        {"text": "look."},
        call_part("b", 2),
        {"text": "", "thoughtSignature": "ZW5k"},
    ]


def test_signatures_are_not_sent_to_another_model_or_endpoint() -> None:
    """Ours: other models get only the text and the calls."""
    plain = [{"text": "I look."}, call_part("a", 1), call_part("b", 2)]
    other = "google https://example.test gemini-2.5-pro"
    assert contents(HELLO, signed_reply(), origin=other)[1]["parts"] == plain
    foreign = asking(text="Hi.", reasoning=(Reasoning(origin=ORIGIN, opaque={"encrypted": "x"}),))
    assert contents(HELLO, foreign)[1]["parts"] == [{"text": "Hi."}]


def test_redacted_text_is_sent_without_its_signature_but_calls_keep_theirs() -> None:
    """Ours: a plugin that redacts text must not make Gemini refuse the call."""
    reply = signed_reply()
    changed = AssistantMessage(text="I ****.", tool_calls=reply.tool_calls, reasoning=reply.reasoning)
    assert contents(HELLO, changed)[1]["parts"] == [
        {"text": "I ****."},
        call_part("a", 1, thoughtSignature="YzE="),
        call_part("b", 2),
    ]


def test_media_is_sent_inline_and_text_as_text() -> None:
    """Ours: images, PDF, audio and video are sent as base64."""
    parts = (
        TextPart(text="Look:"),
        TextPart(text=""),
        AttachmentPart(digest="d1", media_type="image/png", size=3),
        AttachmentPart(digest="d1", media_type="application/pdf", size=3),
        AttachmentPart(digest="d2", media_type="text/csv; charset=utf-8", size=3, name="a.csv"),
        InputPart(name="rows", digest="d2", media_type="application/json", size=12345),
    )
    sent = contents(UserMessage(content=parts), media={"d1": b"\x00\x01\x02", "d2": b"a,b"})
    assert sent[0]["parts"] == [
        {"text": "Look:"},
        {"inlineData": {"mimeType": "image/png", "data": "AAEC"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "AAEC"}},
        {"text": "[file a.csv]\na,b"},
        {"text": "[input rows: application/json, 12345 bytes]"},
    ]


@pytest.mark.parametrize(
    ("media_type", "media", "problem"),
    [
        ("application/zip", {"d": b"PK"}, "does not accept 'application/zip'"),
        ("text/plain", {"d": b"\xff"}, "not UTF-8"),
    ],
)
def test_an_attachment_that_cannot_be_sent_is_refused(
    media_type: str, media: dict[str, bytes], problem: str
) -> None:
    """Ours: the error is raised before anything is sent."""
    part = AttachmentPart(digest="d", media_type=media_type, size=2, name="x")
    with pytest.raises(InvalidArgument, match=problem):
        called(UserMessage(content=(part,)), media=media)


def test_a_request_without_content_is_refused() -> None:
    """Ours: Gemini accepts no request without contents."""
    with pytest.raises(InvalidArgument, match="every message is empty"):
        called(UserMessage(content=""))


def test_every_setting_is_translated() -> None:
    """Ours: the port's settings are sent under Gemini's names."""
    assert config(temperature=0.0, top_p=0.9, top_k=5, max_tokens=100, stop=["END"], seed=4) == {
        "temperature": 0.0,
        "topP": 0.9,
        "topK": 5,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "seed": 4,
    }
    assert config(cache=False, parallel_tool_calls=False) is None


@pytest.mark.parametrize(
    ("model", "reasoning", "sent"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.5-flash", "high", {"includeThoughts": True, "thinkingBudget": 24576}),
        ("gemini-2.5-flash", 4000, {"includeThoughts": True, "thinkingBudget": 4000}),
        ("gemini-3-flash-preview", "medium", {"includeThoughts": True, "thinkingLevel": "MEDIUM"}),
        ("gemini-3-flash-preview", "none", {"thinkingLevel": "MINIMAL"}),
        ("gemini-3.1-pro-preview", "minimal", {"includeThoughts": True, "thinkingLevel": "LOW"}),
        ("gemini-flash-latest", "low", {"includeThoughts": True, "thinkingLevel": "LOW"}),
    ],
)
def test_reasoning_is_a_level_or_a_budget(model: str, reasoning: Any, sent: dict[str, Any]) -> None:
    """Ours: never both, which Gemini refuses; Pro models always think."""
    assert config(model, reasoning=reasoning) == {"thinkingConfig": sent}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("order", {"mode": "ANY", "allowedFunctionNames": ["order"]}),
    ],
)
def test_tool_choice_is_translated_to_a_mode(choice: str, sent: dict[str, Any]) -> None:
    """Ours: the setting is the same for all providers."""
    body = called(tools=(ORDER,), settings={"tool_choice": choice}).body
    assert body["toolConfig"] == {"functionCallingConfig": sent}


def test_a_tool_choice_that_names_no_tool_is_refused() -> None:
    """Ours: a misspelt tool name is refused before anything is sent."""
    with pytest.raises(InvalidArgument, match="'oder' is not a tool"):
        called(tools=(ORDER,), settings={"tool_choice": "oder"})


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_an_output_schema_is_sent_unchanged() -> None:
    """Ours: the vendor's JSON-schema mode is used."""
    bound = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert called(output_schema=SCHEMA).body["generationConfig"] == bound
    both = called(output_schema=SCHEMA, tools=(ORDER,), model="gemini-3-flash-preview").body
    assert both["generationConfig"] == bound


def test_an_older_model_with_tools_gets_the_schema_in_the_prompt() -> None:
    """Bug: before the third generation, function calling and JSON mode exclude each other."""
    body = called(output_schema=SCHEMA, tools=(ORDER,), instructions="Be kind.").body
    assert "generationConfig" not in body
    told = body["systemInstruction"]["parts"][0]["text"]
    assert told.startswith("Be kind.\n\nYour final answer must be one JSON value")
    assert '"n"' in told


def test_a_schema_is_changed_only_where_gemini_would_refuse_it() -> None:
    """Ours: the meaning is preserved, and a property may have the name of a keyword."""
    given = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "$schema": {"type": "string"},
            "const": {"const": "a"},
            "point": {"$ref": "#/$defs/P", "description": "where", "default": {"$schema": 1}},
            "other": {"$ref": "#/$defs/P"},
            "many": {"type": "array", "items": {"$comment": "x", "anyOf": [{"const": 1}, {"type": "null"}]}},
        },
        "additionalProperties": False,
        "$defs": {"P": {"title": "P", "type": "object"}},
    }
    assert google_schema(given) == {
        "type": "object",
        "properties": {
            "$schema": {"type": "string"},
            "const": {"enum": ["a"]},
            "point": {
                "anyOf": [{"$ref": "#/$defs/P"}],
                "description": "where",
                "default": {"$schema": 1},
            },
            "other": {"$ref": "#/$defs/P"},
            "many": {"type": "array", "items": {"anyOf": [{"enum": [1]}, {"type": "null"}]}},
        },
        "additionalProperties": False,
        "$defs": {"P": {"title": "P", "type": "object"}},
    }


def test_a_tool_without_an_object_schema_is_offered_without_parameters() -> None:
    """Ours: Gemini's functions accept only an object of parameters."""
    body = called(tools=(Capability(name="now", description=""),)).body
    assert body["tools"] == [
        {"functionDeclarations": [{"name": "now", "parametersJsonSchema": {"type": "object"}}]}
    ]


def test_a_model_name_cannot_escape_its_path_segment() -> None:
    """Ours: the name is quoted in the URL; a tuned model names its collection."""
    assert called(model="tunedModels/mine-1").path.startswith("/v1beta/tunedModels/mine-1:stream")
    assert called(model="a?b#c").path.startswith("/v1beta/models/a%3Fb%23c:stream")


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


def test_a_union_of_object_types_is_sent_unchanged() -> None:
    """Ours: Gemini accepts `anyOf` at the root."""
    assert called(output_schema=UNION).body["generationConfig"]["responseJsonSchema"] == UNION
