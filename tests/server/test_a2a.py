"""A2A 1.0, spoken by the client of `a2a-sdk`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerStage

T = TypeVar("T")
STATE = types.TaskState


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("a2a")) as stage:
        yield stage


@asynccontextmanager
async def speaking(
    stage: ServerStage, *scopes: str, tenant: str = "", streaming: bool = True
) -> AsyncIterator[Client]:
    """Return a client of the SDK that has found the agent by its card."""
    token = await asyncio.to_thread(stage.token, *scopes, tenant=tenant)
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30) as http:
        card = await A2ACardResolver(http, f"{stage.url}/a2a/clerk").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def ask(text: str = "", *, data: Any = None, task: str = "", context: str = "", key: str = "") -> Any:
    part = types.Part(text=text)
    if data is not None:
        part = types.Part()
        part.data.struct_value.update(data)
    message = types.Message(
        message_id=key or f"m-{text}-{id(part)}-{asyncio.get_running_loop().time()}",
        role=types.ROLE_USER,
        parts=[part],
        task_id=task,
        context_id=context,
    )
    return types.SendMessageRequest(message=message)


async def send(client: Client, request: Any) -> list[Any]:
    return [event async for event in client.send_message(request)]


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_message_starts_a_task_whose_answer_is_streamed(stage: ServerStage) -> None:
    """Seed: A2A has tasks and streams; the answer arrives in chunks, and whole at the end."""

    async def main() -> None:
        async with speaking(stage) as client:
            events = await send(client, ask("stream 3", context="ctx 1/ä"))
            first, *updates, last = events
            assert first.task.context_id == "ctx 1/ä"
            chunks = [one.artifact_update for one in updates if one.HasField("artifact_update")]
            assert [one.append for one in chunks] == [False, True, True, False]
            assert "".join(one.artifact.parts[0].text for one in chunks[:3]) == "0 1 2 "
            assert chunks[-1].last_chunk
            assert chunks[-1].artifact.parts[0].text == "0 1 2 "
            assert last.status_update.status.state == STATE.TASK_STATE_COMPLETED
            task = await client.get_task(types.GetTaskRequest(id=first.task.id))
            assert [one.role for one in task.history] == [types.ROLE_USER, types.ROLE_AGENT]
            assert task.artifacts[0].parts[0].text == "0 1 2 "

    run(main())


def test_a_context_is_a_conversation_and_a_message_id_runs_once(stage: ServerStage) -> None:
    """Ours: a client that sends a message again because it lost the response gets the same task."""

    async def main() -> None:
        async with speaking(stage, streaming=False) as client:
            [one] = await send(client, ask("hello", context="twice", key="k1"))
            [again] = await send(client, ask("hello", context="twice", key="k1"))
            [other] = await send(client, ask("more", context="twice"))
            assert one.task.id == again.task.id != other.task.id
            listed = await client.list_tasks(types.ListTasksRequest(context_id="twice"))
            assert [task.id for task in listed.tasks] == [other.task.id, one.task.id]
            assert listed.total_size == 2
            [made] = await send(client, ask("no context"))
            assert made.task.context_id
            assert made.task.status.state == STATE.TASK_STATE_COMPLETED

    run(main())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"text": "approve"}, "the tool said refunded A1 500"),
        ({"text": "deny too much"}, "the tool said a person refused the call of refund(): too much"),
        (
            {"data": {"approved": True, "arguments": {"order_id": "A1", "cents": 7}}},
            "the tool said refunded A1 7",
        ),
    ],
    ids=["approve", "deny", "edit"],
)
def test_a_call_that_needs_approval_makes_the_task_require_input(
    stage: ServerStage, answer: dict[str, Any], said: str
) -> None:
    """Seed: an approval is `input-required`, and the answer continues the same task."""

    async def main() -> None:
        async with speaking(stage, "run", "read", "approve") as client:
            events = await send(client, ask("refund"))
            status = events[-1].status_update.status
            assert status.state == STATE.TASK_STATE_INPUT_REQUIRED
            question, facts = status.message.parts
            assert "refund(" in question.text
            asked = MessageToDict(facts.data)
            assert asked["tool"] == "refund"
            assert asked["arguments"] == {"order_id": "A1", "cents": 500}
            task_id = events[0].task.id
            with pytest.raises(InvalidParamsError, match="is not a decision"):
                await send(client, ask("maybe", task=task_id))
            done = await send(client, ask(task=task_id, **answer))
            assert done[-1].status_update.status.state == STATE.TASK_STATE_COMPLETED
            assert done[-2].artifact_update.artifact.parts[0].text.startswith(said)
        decided = [one for one in await asyncio.to_thread(_approvals, stage) if one["run_id"] == task_id]
        assert decided[0]["decided_by"].startswith("tok")

    run(main())


@pytest.mark.parametrize(
    ("said", "answer", "result"),
    [
        ("where", {"text": "New York"}, "the tool said {'city': 'New York'} by tok"),
        ("where", {"data": {"city": "Oslo"}}, "the tool said {'city': 'Oslo'} by tok"),
        ("when", {"data": {"city": "Oslo", "days": 2}}, "the tool said {'city': 'Oslo', 'days': 2} by tok"),
        ("when", {"text": "no, later"}, "the tool said a person refused the call of travel(): later"),
    ],
    ids=["text", "data", "numbers", "no"],
)
def test_a_tools_question_makes_the_task_require_input(
    stage: ServerStage, said: str, answer: dict[str, Any], result: str
) -> None:
    """Seed: `input-required`. Ours: an answer that does not match the schema leaves the task waiting."""

    async def main() -> None:
        async with speaking(stage, "run", "read", "approve") as client:
            events = await send(client, ask(said))
            status, task_id = events[-1].status_update.status, events[0].task.id
            assert status.state == STATE.TASK_STATE_INPUT_REQUIRED
            question, facts = status.message.parts
            assert question.text == "travel asks: Where to?"
            asked = MessageToDict(facts.data)
            assert asked["answerSchema"]["required"] == (["city"] if said == "where" else ["city", "days"])
            with pytest.raises(InvalidParamsError, match="city"):
                await send(client, ask(task=task_id, data={"city": "O", "days": 1}))
            again = await client.get_task(types.GetTaskRequest(id=task_id))
            assert again.status.state == STATE.TASK_STATE_INPUT_REQUIRED
            done = await send(client, ask(task=task_id, **answer))
            assert done[-1].status_update.status.state == STATE.TASK_STATE_COMPLETED
            assert done[-2].artifact_update.artifact.parts[0].text.startswith(result)

    run(main())


def _approvals(stage: ServerStage) -> list[dict[str, Any]]:
    with stage.client() as client:
        return list(client.get("/v1/approvals").json())


def test_only_the_approve_scope_can_decide(stage: ServerStage) -> None:
    """Seed: scopes are checked on every route."""

    async def main() -> None:
        async with speaking(stage, "run", "read") as client:
            events = await send(client, ask("refund"))
            with pytest.raises(Exception, match="403"):
                await send(client, ask("approve", task=events[0].task.id))

    run(main())


def test_a_task_can_be_cancelled_only_once(stage: ServerStage) -> None:
    """Seed: a task can be cancelled."""

    async def main() -> None:
        async with speaking(stage) as client:
            events = await send(client, ask("refund"))
            wanted = types.CancelTaskRequest(id=events[0].task.id)
            assert (await client.cancel_task(wanted)).status.state == STATE.TASK_STATE_CANCELED
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(wanted)
            with pytest.raises(UnsupportedOperationError):
                await send(client, ask("more", task=events[0].task.id))
            subscribed = client.subscribe(types.SubscribeToTaskRequest(id=events[0].task.id))
            with pytest.raises(UnsupportedOperationError):
                await anext(aiter(subscribed))

    run(main())


def test_a_client_that_lost_its_stream_can_resubscribe(tmp_path: Path) -> None:
    """Seed: a client can resubscribe; the task does not depend on it."""
    from server_stage import ObedientModel, make_agent

    model = ObedientModel()

    async def main(stage: ServerStage) -> None:
        async with speaking(stage) as client:
            stream = client.send_message(ask("hold"))
            first = await anext(aiter(stream))
            await stream.aclose()  # type: ignore[attr-defined]
            again = client.subscribe(types.SubscribeToTaskRequest(id=first.task.id))
            assert (await anext(aiter(again))).task.status.state == STATE.TASK_STATE_WORKING
            stage.loop.call_soon_threadsafe(model.held.set)
            rest = [event async for event in again]
            assert rest[-1].status_update.status.state == STATE.TASK_STATE_COMPLETED
            assert rest[-2].artifact_update.artifact.parts[0].text == "you said hold"

    with ServerStage(tmp_path, agents=[make_agent(model)]) as stage:
        run(main(stage))


def test_another_tenant_has_its_own_contexts_and_sees_no_task(stage: ServerStage) -> None:
    """Seed: ids of other protocols map to session ids inside the tenant."""

    async def main() -> None:
        async with (
            speaking(stage, tenant="acme", streaming=False) as acme,
            speaking(stage, tenant="rival", streaming=False) as rival,
        ):
            [mine] = await send(acme, ask("hello", context="shared"))
            [theirs] = await send(rival, ask("hello", context="shared"))
            assert mine.task.id != theirs.task.id
            assert (mine.task.context_id, theirs.task.context_id) == ("shared", "shared")
            for work in (
                rival.get_task(types.GetTaskRequest(id=mine.task.id)),
                rival.cancel_task(types.CancelTaskRequest(id=mine.task.id)),
                send(rival, ask("approve", task=mine.task.id)),
            ):
                with pytest.raises(TaskNotFoundError):
                    await work
            assert [one.id for one in (await rival.list_tasks(types.ListTasksRequest())).tasks] == [
                theirs.task.id
            ]

    run(main())


@pytest.mark.parametrize("published", [False, True])
def test_the_card_is_public_only_if_the_operator_allows_it(tmp_path: Path, published: bool) -> None:
    """Seed: a public agent card reveals nothing else."""
    with ServerStage(tmp_path, publish_agent_card=published) as stage:
        for path in ("/.well-known/agent-card.json", "/a2a/clerk/.well-known/agent-card.json"):
            answer = httpx.get(stage.url + path)
            assert answer.status_code == (200 if published else 401)
            if published:
                assert answer.json()["supportedInterfaces"][0]["url"] == f"{stage.url}/a2a/clerk"
                assert "refund" not in answer.text
        assert httpx.post(f"{stage.url}/a2a/clerk", json={}).status_code == 401
