"""AG-UI 1.0, as its own client reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from node_client import run_node
from server_stage import ServerStage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("ag-ui")) as running:
        yield running


def run(stage: ServerStage, thread: str, *runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    token = more.pop("token", None) or stage.token("read", "run", "approve")
    found: dict[str, Any] = run_node(
        "ag_ui.mjs", url=stage.url, token=token, thread=thread, runs=list(runs), **more
    )
    assert [seen["error"] for seen in found["runs"] if "error" in seen] == []
    return found


def kinds(seen: dict[str, Any]) -> list[str]:
    return [event["type"] for event in seen["events"]]


@pytest.mark.slow
def test_a_run_streams_text_in_steps_and_ends_with_its_result(stage: ServerStage) -> None:
    """Seed: `@ag-ui/client` accepts the events of a run, in order."""
    found = run(stage, "talk", {"say": "hello"}, {"say": "stream 3"}, state={"page": 2})
    first, second = found["runs"]
    assert kinds(first) == [
        "RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END", "STEP_FINISHED", "STATE_DELTA", "RUN_FINISHED",
    ]  # fmt: skip
    assert first["result"] == "you said hello"
    assert 1 <= kinds(second).count("TEXT_MESSAGE_CONTENT") <= 3  # chunks that wait for the reader are joined
    assert [one["content"] for one in found["messages"] if one["role"] == "assistant"] == [
        "you said hello",
        "0 1 2 ",
    ]
    assert found["state"]["page"] == 2
    assert found["state"]["standfast"] == {
        "sessionId": "talk",
        "turnId": second["events"][1]["snapshot"]["standfast"]["turnId"],
        "status": "finished",
    }


@pytest.mark.slow
def test_an_approval_is_an_interrupt_that_a_later_run_answers(stage: ServerStage) -> None:
    """Seed: approvals are interrupts; `resume` carries the decision, with edited arguments if given."""
    edited = {"approved": True, "editedArgs": {"order_id": "B2", "cents": 7}}
    found = run(
        stage,
        "shop",
        {"say": "refund"},
        {"answer": {"status": "resolved", "payload": edited}},
        {"say": "bye"},
    )
    asked, resumed, last = found["runs"]
    (interrupt,) = asked["interrupts"]
    (call,) = [event for event in asked["events"] if event["type"] == "TOOL_CALL_START"]
    assert (interrupt["toolCallId"], interrupt["reason"]) == (call["toolCallId"], "tool_call")
    assert interrupt["metadata"] == {"toolName": "refund", "arguments": {"order_id": "A1", "cents": 500}}
    assert interrupt["responseSchema"]["required"] == ["approved"]
    assert kinds(resumed)[:3] == ["RUN_STARTED", "STATE_SNAPSHOT", "TOOL_CALL_RESULT"]
    assert resumed["events"][2]["content"] == "refunded B2 7"
    assert resumed["result"] == "the tool said refunded B2 7"
    assert last["outcome"] == {"type": "success"}


@pytest.mark.slow
def test_a_tools_question_is_an_interrupt_with_the_schema_of_its_answer(stage: ServerStage) -> None:
    """Ours: a page renders the schema as a form; an invalid answer decides nothing."""
    wrong = {"answer": {"status": "resolved", "payload": {"city": "O"}}}
    right = {"answer": {"status": "resolved", "payload": {"city": "Oslo"}}}
    (asked,) = run(stage, "ask", {"say": "where"})["runs"]
    (interrupt,) = asked["interrupts"]
    assert interrupt["responseSchema"]["required"] == ["city"]
    assert interrupt["message"].endswith("needs an answer: Where to?")
    token = stage.token("run", "approve")
    found = run_node("ag_ui.mjs", url=stage.url, token=token, thread="ask2", runs=[{"say": "where"}, wrong])
    assert "the answer does not fit" in found["runs"][1]["error"]
    _, resumed = run(stage, "ask3", {"say": "where"}, right)["runs"]
    assert resumed["result"].startswith("the tool said {'city': 'Oslo'} by ")


@pytest.mark.slow
def test_another_process_can_deny_an_approval_of_a_run(stage: ServerStage) -> None:
    """Seed: approvals outlive connections: another client in another process answers them."""
    (asked,) = run(stage, "desk", {"say": "refund"})["runs"]
    asked_id = asked["interrupts"][0]["id"]
    answer = [{"interruptId": asked_id, "status": "resolved", "payload": {"approved": False}}]
    first = {"resume": answer, "id": "again"}
    (resumed, repeated) = run(stage, "desk", first, first)["runs"]
    assert resumed["result"] == "the tool said a person refused the call of refund()"
    assert repeated["result"] == resumed["result"]
    assert kinds(repeated) == kinds(resumed)


@pytest.mark.slow
def test_a_run_that_lost_its_connection_is_replayed_from_its_beginning(stage: ServerStage) -> None:
    """Seed: a turn continues when its client disconnects; a client that reconnects misses nothing."""
    model = stage.agent_model
    model.pause_s = 0.01
    cut = run_node(
        "ag_ui.mjs",
        url=stage.url,
        token=stage.token("run"),
        thread="long",
        runs=[{"say": "stream 100", "id": "r", "cut": 20}],
    )
    assert "RUN_FINISHED" not in kinds(cut["runs"][0])
    (whole,) = run(stage, "long", {"say": "stream 100", "id": "r"})["runs"]
    model.pause_s = 0.0
    assert whole["result"] == "".join(f"{number} " for number in range(100))
    pieces = [event["delta"] for event in whole["events"] if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(pieces) == whole["result"]
    with stage.client() as client:
        assert len(client.get("/v1/sessions/long/turns").json()) == 1


@pytest.mark.slow
def test_a_credential_without_the_approve_scope_cannot_decide(stage: ServerStage) -> None:
    """Ours: a run needs the scope `run`, the answer to an approval needs `approve`."""
    token = stage.token("run")
    runs = [{"say": "refund"}, {"answer": {"status": "resolved", "payload": True}}]
    found = run_node("ag_ui.mjs", url=stage.url, token=token, thread="poor", runs=runs)
    assert "the scope approve" in found["runs"][1]["error"]
