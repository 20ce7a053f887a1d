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


def test_a_completion_is_a_turn_and_streams_the_same(client: openai.OpenAI) -> None:
    """Seed: Chat Completions, streamed or not."""
    whole = ask(client, "stream 3", temperature=0.5, max_completion_tokens=50, stop=["END"])
    assert whole.choices[0].message.content == "0 1 2 "
    assert (whole.choices[0].finish_reason, whole.object) == ("stop", "chat.completion")
    chunks = list(ask(client, "stream 3", stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "0 1 2 "
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None


def test_a_named_conversation_keeps_its_history_and_one_without_a_name_brings_it(
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


def test_a_completion_that_waits_is_decided_by_a_tool_message(client: openai.OpenAI) -> None:
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
    assert "response.output_text.delta" in kinds  # chunks that come at once are one


def test_responses_continue_each_other_and_branch(client: openai.OpenAI) -> None:
    """Seed: `previous_response_id` maps to the session, and to a fork of it where another turn followed."""
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


def test_a_background_response_is_read_by_its_id_and_cancelled(
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


def test_errors_have_the_shape_of_openai(stage: ServerStage, client: openai.OpenAI) -> None:
    """Seed: errors are in OpenAI's shape, and what the server does not apply is refused."""
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="stranger", input="hi")
    assert (unknown.value.code, unknown.value.type) == ("NOT_CONFIGURED", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        ask(client, "hi", logit_bias={"1": 1})
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(client, "hi", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
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


def test_the_same_key_is_one_turn(stage: ServerStage, client: openai.OpenAI) -> None:
    """Seed: idempotency holds in every protocol."""
    headers = {"Idempotency-Key": "order-7"}
    first, second = (respond(client, "hi", extra_headers=headers) for _ in range(2))
    assert first.id == second.id
    with pytest.raises(openai.ConflictError):
        respond(client, "ho", extra_headers=headers)
