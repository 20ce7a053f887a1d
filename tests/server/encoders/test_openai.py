"""OpenAI's Responses and Chat Completions, as OpenAI's own SDK reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from server_stage import ServerStage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("openai")) as running:
        yield running


@pytest.fixture(scope="module")
def client(stage: ServerStage) -> Iterator[openai.OpenAI]:
    with connect(stage) as made:
        yield made


def connect(stage: ServerStage, *scopes: str, tenant: str = "") -> openai.OpenAI:
    token = stage.token(*(scopes or ("read", "run", "approve")), tenant=tenant)
    return openai.OpenAI(base_url=f"{stage.url}/openai/v1", api_key=token, max_retries=0)


def ask(client: openai.OpenAI, *said: Any, **more: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": one} if isinstance(one, str) else one for one in said]
    return client.chat.completions.create(model="clerk", messages=messages, **more)


def respond(client: openai.OpenAI, given: Any, **more: Any) -> Any:
    return client.responses.create(model="clerk", input=given, **more)


def approve(waiting: Any) -> dict[str, Any]:
    asked = waiting.output[1].id
    return {"type": "mcp_approval_response", "approval_request_id": asked, "approve": True}


def test_agents_are_models(client: openai.OpenAI) -> None:
    """Seed: `OpenAI(base_url=...)` works."""
    assert [one.id for one in client.models.list()] == ["clerk"]


def test_a_completion_is_a_turn_and_can_be_streamed(client: openai.OpenAI) -> None:
    """Seed: Chat Completions, streamed or not, give the same answer."""
    whole = ask(client, "stream 3", temperature=0.5, max_completion_tokens=50, stop=["END"])
    assert whole.choices[0].message.content == "0 1 2 "
    assert (whole.choices[0].finish_reason, whole.object) == ("stop", "chat.completion")
    chunks = list(ask(client, "stream 3", stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "0 1 2 "
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


def test_a_named_conversation_keeps_its_history_and_an_unnamed_one_brings_it(
    stage: ServerStage, client: openai.OpenAI
) -> None:
    """Seed: ids of conversations map to sessions by one rule."""
    ask(client, "one", metadata={"conversation": "user@example.com/7"})
    named = ask(client, "two", metadata={"conversation": "user@example.com/7"})
    session = named.standfast["session_id"]
    brought = ask(
        client, {"role": "system", "content": "be brief"}, "a", {"role": "assistant", "content": "b"}, "c"
    )
    with stage.client() as http:
        assert len(http.get(f"/v1/sessions/{session}/turns").json()) == 2
        nodes = http.get(f"/v1/sessions/{brought.standfast['session_id']}").json()["nodes"]
    said = [one["payload"].get("content") or one["payload"].get("text") for one in nodes]
    assert said == ["a", "b", "c", "you said c"]


def test_a_waiting_completion_is_decided_by_a_tool_message(client: openai.OpenAI) -> None:
    """Seed: tool calls are visible; approvals outlive connections."""
    waiting = ask(client, "refund")
    (wanted,) = waiting.choices[0].message.tool_calls
    assert waiting.choices[0].finish_reason == "tool_calls"
    assert (wanted.function.name, wanted.function.arguments) == ("refund", '{"order_id":"A1","cents":500}')
    answer = {"role": "tool", "tool_call_id": wanted.id, "content": '{"approved": true}'}
    said = ["refund", waiting.choices[0].message.model_dump(exclude_none=True), answer]
    for _ in range(2):  # the same decision again has no effect
        done = ask(client, *said)
        assert done.choices[0].message.content == "the tool said refunded A1 500"
        assert [one["output"] for one in done.standfast["calls"]] == ["refunded A1 500"]
    with pytest.raises(openai.ConflictError) as refused:
        ask(client, *said[:2], {**answer, "content": '{"approved": false}'})
    assert refused.value.code == "APPROVAL_ALREADY_DECIDED"


def test_a_response_shows_calls_and_asks_for_approval(client: openai.OpenAI) -> None:
    """Seed: Responses, with the agent's calls as items and approvals as requests."""
    waiting = respond(client, "refund")
    assert [one.type for one in waiting.output] == ["mcp_call", "mcp_approval_request"]
    answer = approve(waiting)
    done = respond(client, [answer], previous_response_id=waiting.id)
    assert done.output_text == "the tool said refunded A1 500"
    call, message = done.output
    assert (call.type, call.output, message.type) == ("mcp_call", "refunded A1 500", "message")
    assert done.id != waiting.id
    read = client.responses.retrieve(waiting.id)
    assert (read.status, read.output_text) == ("completed", done.output_text)


def test_a_response_streams_events_in_order(client: openai.OpenAI) -> None:
    """Seed: the SDK assembles a response from the stream."""
    with client.responses.stream(model="clerk", input="stream 3") as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert final.output_text == "0 1 2 "
    assert final.usage is not None
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert "response.output_text.delta" in kinds  # chunks that arrive together are one


def test_responses_can_be_continued_and_branched(client: openai.OpenAI) -> None:
    """Seed: `previous_response_id` maps to the session, and to a fork of it if another turn followed."""
    first = respond(client, "one")
    second = respond(client, "two", previous_response_id=first.id)
    branch = respond(client, "three", previous_response_id=first.id)
    assert second.standfast["session_id"] == first.standfast["session_id"]
    assert branch.standfast["session_id"] != first.standfast["session_id"]
    talk = client.conversations.create()
    respond(client, "a", conversation=talk.id)
    again = respond(client, "b", conversation={"id": talk.id})
    assert again.conversation.id == talk.id
    assert again.standfast["session_id"] == talk.id


def test_a_background_response_can_be_read_by_id_and_cancelled(
    stage: ServerStage, client: openai.OpenAI
) -> None:
    """Seed: a turn does not depend on a connection."""
    started = respond(client, "hold", background=True)
    assert started.status == "in_progress"
    assert client.responses.retrieve(started.id).status == "in_progress"
    assert client.responses.cancel(started.id).status in ("cancelled", "in_progress")
    for _ in range(100):
        if (read := client.responses.retrieve(started.id)).status == "cancelled":
            break
    assert read.status == "cancelled"


def test_errors_have_openais_format(stage: ServerStage, client: openai.OpenAI) -> None:
    """Seed: an OpenAI client can read our errors, and unsupported settings are refused."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="stranger", input="hi")
    assert (unknown.value.code, unknown.value.type) == ("NOT_CONFIGURED", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        ask(client, "hi", logit_bias={"1": 1})
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(client, "hi", tools=[{"type": "custom", "custom": {"name": "f"}}])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{stage.url}/openai/v1", api_key="sf_x_y", max_retries=0).models.list()
    with connect(stage, "run") as poor:
        waiting = respond(poor, "refund")
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": waiting.output[1].id,
            "approve": True,
        }
        with pytest.raises(openai.PermissionDeniedError, match="scope approve"):
            respond(poor, [answer])


def test_a_tenant_finds_neither_responses_nor_approvals_of_another(stage: ServerStage) -> None:
    """Seed: the tenant comes from the credential; ids map to sessions inside it."""
    with connect(stage, tenant="acme") as acme, connect(stage, tenant="rival") as rival:
        waiting = respond(acme, "refund", conversation="same")
        with pytest.raises(openai.NotFoundError):
            rival.responses.retrieve(waiting.id)
        with pytest.raises(openai.NotFoundError):
            respond(rival, "hi", previous_response_id=waiting.id)
        answer = {
            "type": "mcp_approval_response",
            "approval_request_id": waiting.output[1].id,
            "approve": True,
        }
        with pytest.raises(openai.NotFoundError):
            respond(rival, [answer])
        mine = respond(rival, "hi", conversation="same")
        assert mine.standfast["session_id"] == "_rival_same"


def test_the_same_idempotency_key_gives_the_same_turn(stage: ServerStage, client: openai.OpenAI) -> None:
    """Seed: idempotency holds in every protocol."""
    headers = {"Idempotency-Key": "order-7"}
    first, second = (respond(client, "hi", extra_headers=headers) for _ in range(2))
    assert first.id == second.id
    with pytest.raises(openai.ConflictError):
        respond(client, "ho", extra_headers=headers)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def chat_tools(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in names]


def response_tools(*names: str) -> list[Any]:
    return [{"type": "function", "name": name, "parameters": CITY, "strict": False} for name in names]


def test_a_completion_calls_the_clients_functions_and_its_outputs_continue_the_turn(
    stage: ServerStage, client: openai.OpenAI
) -> None:
    """Seed: a call to a client's function parks the turn until its output arrives."""
    tools = chat_tools("weather", "get-time")
    waiting = ask(client, "call weather get_time", tools=tools, tool_choice="required")
    assert waiting.choices[0].finish_reason == "tool_calls"
    calls = waiting.choices[0].message.tool_calls
    assert [one.function.name for one in calls] == ["weather", "get-time"]
    assert calls[0].function.arguments == '{"city":"Rome"}'
    said = ["call weather get_time", waiting.choices[0].message.model_dump(exclude_none=True)]
    outputs = [
        {"role": "tool", "tool_call_id": one.id, "content": f"18 for {n}"} for n, one in enumerate(calls)
    ]
    left = ask(client, *said, outputs[0], tools=tools)
    assert [one.id for one in left.choices[0].message.tool_calls] == [calls[1].id]
    for _ in range(2):  # the same outputs again have no effect
        done = ask(client, *said, *outputs, tools=tools)
        assert done.choices[0].message.content == "the tool said 18 for 1"
    assert done.standfast["turn_id"] == waiting.standfast["turn_id"]
    assert stage.agent_model.choices[-2:] == ["required", None]


def test_a_streamed_completion_contains_the_function_calls(client: openai.OpenAI) -> None:
    """Seed: a client assembles the call from the stream."""
    chunks = list(ask(client, "call weather", tools=chat_tools("weather"), stream=True))
    (piece,) = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
    assert (piece.index, piece.function.name, piece.function.arguments) == (0, "weather", '{"city":"Rome"}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_response_calls_the_clients_functions_and_its_outputs_continue_the_turn(
    client: openai.OpenAI,
) -> None:
    """Seed: Responses with functions, streamed and by the id of the previous response."""
    tools = response_tools("weather")
    with client.responses.stream(model="clerk", input="call weather", tools=tools) as events:
        kinds = [event.type for event in events]
        waiting = events.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    (wanted,) = waiting.output
    assert (waiting.status, wanted.type, wanted.name) == ("completed", "function_call", "weather")
    assert wanted.arguments == '{"city":"Rome"}'
    output = {"type": "function_call_output", "call_id": wanted.call_id, "output": "rain"}
    done = respond(client, [output], previous_response_id=waiting.id, tools=tools)
    assert done.output_text == "the tool said rain"
    whole = [{"role": "user", "content": "call weather"}, wanted.model_dump(exclude_none=True), output]
    assert respond(client, whole, tools=tools).output_text == "the tool said rain"
    after = respond(client, "call weather", previous_response_id=done.id)
    assert after.output_text == ""  # functions apply to the request that declares them


def test_calls_and_outputs_from_another_server_are_history(stage: ServerStage, client: openai.OpenAI) -> None:
    """Ours: a chat that began elsewhere ends with an output, and the model answers it."""
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    called = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    output = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    done = ask(client, "what is it like?", called, output, tools=chat_tools("weather"))
    assert done.choices[0].message.content == "you said Continue with the results of the functions."
    with stage.client() as http:
        nodes = http.get(f"/v1/sessions/{done.standfast['session_id']}").json()["nodes"]
    assert [one["payload"].get("value") for one in nodes][:4] == [None, None, "rain", None]
    items = [
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "sun"}]},
    ]
    assert respond(client, items).output_text.startswith("you said Continue")
    with pytest.raises(openai.APIStatusError, match="the output for 'c' has no call"):
        respond(client, [{"type": "function_call_output", "call_id": "c", "output": ""}])


def test_functions_and_outputs_that_match_no_call_are_refused(
    stage: ServerStage, client: openai.OpenAI
) -> None:
    """Ours: a client cannot replace the agent's tools or complete another tenant's call."""
    with pytest.raises(openai.APIStatusError, match="two functions 'refund'"):
        ask(client, "hi", tools=chat_tools("refund"))
    with pytest.raises(openai.APIStatusError, match="not a function of this request"):
        ask(client, "hi", tools=chat_tools("f"), tool_choice={"type": "function", "function": {"name": "g"}})
    (wanted,) = ask(client, "call weather", tools=chat_tools("weather")).choices[0].message.tool_calls
    output = {"type": "function_call_output", "call_id": wanted.id, "output": "x"}
    with connect(stage, tenant="acme") as acme, pytest.raises(openai.NotFoundError):
        respond(acme, [output])
    with pytest.raises(openai.NotFoundError):
        respond(client, [{**output, "call_id": "cpl_t_nothing.1-x"}])


def test_a_turn_that_waits_for_the_client_continues_in_another_process(tmp_path: Path) -> None:
    """Ours: the wait is on disk; the request with the output declares the functions again."""
    tools = response_tools("weather")
    with ServerStage(tmp_path) as stage, connect(stage) as client:
        waiting = respond(client, "call weather", tools=tools)
    output = {"type": "function_call_output", "call_id": waiting.output[0].call_id, "output": "rain"}
    with ServerStage(tmp_path) as stage, connect(stage) as client:
        done = respond(client, [output], previous_response_id=waiting.id, tools=tools)
        assert done.output_text == "the tool said rain"
        assert done.standfast["turn_id"] == waiting.standfast["turn_id"]
