"""Agents as tasks (SEP-2663), resources and prompts; the SDK's client is in the same process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client import advertise
from pydantic import ConfigDict

from standfast import Agent, JsonlTrace, Runtime, Sandbox, ScriptedModel, tool
from standfast.errors import InvalidArgument
from standfast.mcp.serving import McpService
from standfast.mcp.serving_agents import TASKS
from standfast.runtime.agent_session import Attachment


class TaskRequest(types.Request[dict[str, Any], str]):
    """A request of the extension, as a client sends it."""


class AnyResult(types.Result):
    """Any result."""

    model_config = ConfigDict(extra="allow")


@tool(approval="manual")
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def _agent() -> Agent[None, str]:
    calls = {"tool_calls": [{"name": "refund", "arguments": {"order": "A1"}}]}
    return Agent(
        ScriptedModel([calls, "It is done."]),
        name="support",
        tools=[refund],
        prompts={"refund": 'Refund {order} as {"json"}, {order} is the order.'},
    )


Work = Callable[[Client, Runtime], Awaitable[Any]]


def _serve(
    store: Path, work: Work, *, tasks: bool = True, elicits: bool = True, trace: str | None = None
) -> Any:
    async def elicit(context: object, params: Any) -> types.ElicitResult:
        raise AssertionError("a task is not asked through the call")

    async def run() -> Any:
        sink = None if trace is None else JsonlTrace(trace)
        async with Sandbox(data_dir=store) as box, Runtime(store, agents=[_agent()], trace=sink) as runtime:
            service = McpService(box, runtime, tuple(runtime.agents.values()), trace_file=trace)
            async with Client(
                service.server(),
                extensions=[advertise(TASKS, {})] if tasks else None,
                elicitation_callback=elicit if elicits else None,
            ) as client:
                return await work(client, runtime)

    return asyncio.run(run())


async def _request(client: Client, method: str, **params: Any) -> dict[str, Any]:
    request = TaskRequest(method=method, params=params)
    result = await client.session.send_request(request, AnyResult)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def _ask(client: Client, **more: Any) -> dict[str, Any]:
    arguments = {"prompt": "Refund A1", "key": "k", **more}
    return await _request(client, "tools/call", name="ask_support", arguments=arguments)


async def _until(client: Client, task_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            task = await _request(client, "tasks/get", taskId=task_id)
            if task["status"] == status:
                return task
            assert task["status"] == "working"
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("answer", ["accept", "decline"])
def test_an_agent_is_a_task_whose_questions_the_client_answers(
    tmp_path: Path, answer: Literal["accept", "decline"]
) -> None:
    """Ours: SEP-2663, a task is a turn, and an approval is one of its input requests."""

    async def work(client: Client, runtime: Runtime) -> None:
        made = await _ask(client)
        assert made["resultType"] == "task"
        assert {"taskId", "status", "createdAt", "lastUpdatedAt"} <= made.keys()
        assert not {"task", "result", "requestState"} & made.keys()
        task = await _until(client, made["taskId"], "input_required")
        assert task["resultType"] == "complete"
        [(key, question)] = task["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        assert 'refund({"order":"A1"})' in question["params"]["message"]
        ignored = {"another": {"action": "accept", "content": {"approve": True}}, key: {"action": "no"}}
        assert await _request(client, "tasks/update", taskId=made["taskId"], inputResponses=ignored) == {
            "resultType": "complete",
            "_meta": task["_meta"],
        }
        assert (await _until(client, made["taskId"], "input_required"))["inputRequests"].keys() == {key}
        given = {key: {"action": answer, "content": {"approve": True}}}
        await _request(client, "tasks/update", taskId=made["taskId"], inputResponses=given)
        ended = await _until(client, made["taskId"], "completed")
        assert ended["result"]["content"][0]["text"] == "It is done."
        [approval] = await runtime.approvals()
        assert (str(approval.state), approval.decided_by) == (
            "approved" if answer == "accept" else "denied",
            "mcp:mcp",
        )
        assert (await _ask(client))["taskId"] == made["taskId"]  # its key finds it again

    _serve(tmp_path / "s.db", work)


def test_a_task_survives_its_process(tmp_path: Path) -> None:
    """Ours: any process over the store can serve a task."""

    async def ask(client: Client, runtime: Runtime) -> str:
        made = await _ask(client)
        await _until(client, made["taskId"], "input_required")
        return str(made["taskId"])

    async def decide(client: Client, runtime: Runtime) -> dict[str, Any]:
        [approval] = await runtime.approvals(pending=True)
        given = {approval.approval_id: {"action": "accept", "content": {"approve": True}}}
        await _request(client, "tasks/update", taskId=task_id, inputResponses=given)
        return await _until(client, task_id, "completed")

    task_id = _serve(tmp_path / "s.db", ask)
    assert _serve(tmp_path / "s.db", decide)["result"]["content"][0]["text"] == "It is done."


def test_a_cancelled_task_has_the_status_cancelled(tmp_path: Path) -> None:
    """Ours: `tasks/cancel` ends the turn."""

    async def work(client: Client, runtime: Runtime) -> None:
        task_id = (await _ask(client))["taskId"]
        await _until(client, task_id, "input_required")
        await _request(client, "tasks/cancel", taskId=task_id)
        assert (await _until(client, task_id, "cancelled")).keys().isdisjoint({"result", "inputRequests"})
        await _request(client, "tasks/cancel", taskId=task_id)  # cancelling again does no harm

    _serve(tmp_path / "s.db", work)


def test_a_client_that_cannot_ask_reads_what_the_task_waits_for(tmp_path: Path) -> None:
    """Ours: such approvals are decided elsewhere, and the task continues."""

    async def work(client: Client, runtime: Runtime) -> None:
        task_id = (await _ask(client))["taskId"]
        task: dict[str, Any] = {}
        async with asyncio.timeout(60):
            while "statusMessage" not in task:
                task = await _request(client, "tasks/get", taskId=task_id)
        [approval] = await runtime.approvals(pending=True)
        assert f"standfast approvals approve {approval.approval_id}" in task["statusMessage"]

    _serve(tmp_path / "s.db", work, elicits=False)


def test_tasks_are_only_for_clients_that_declare_support(tmp_path: Path) -> None:
    """Ours: SEP-2663, the methods need the declaration, and an unknown task is an invalid parameter."""

    async def plain(client: Client, runtime: Runtime) -> None:
        said = await client.session.call_tool("ask_support", {"prompt": "x"}, allow_input_required=True)
        assert isinstance(said, types.InputRequiredResult)
        with pytest.raises(MCPError) as caught:
            await _request(client, "tasks/get", taskId="t")
        assert caught.value.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY

    async def declared(client: Client, runtime: Runtime) -> None:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            with pytest.raises(MCPError) as caught:
                await _request(client, method, taskId="none", inputResponses={})
            assert caught.value.code == types.INVALID_PARAMS
        for method in ("tasks/result", "tasks/list"):
            with pytest.raises(MCPError) as caught:
                await _request(client, method, taskId="none")
            assert caught.value.code == types.METHOD_NOT_FOUND

    _serve(tmp_path / "a.db", plain, tasks=False)
    _serve(tmp_path / "b.db", declared)


def test_histories_artefacts_and_traces_are_resources(tmp_path: Path) -> None:
    """Ours: the parts of a session can be listed and read, and nothing else."""

    async def work(client: Client, runtime: Runtime) -> None:
        session = await runtime.session("s", agent=Agent(ScriptedModel(["ok"]), name="plain"))
        await session.turn(["look", Attachment(b"\x89PNG", "image/png", "a.png")])
        listed = {str(one.uri): one for one in (await client.list_resources()).resources}
        [artefact] = [uri for uri in listed if "/artifacts/" in uri]
        assert {"standfast://sessions/s", "standfast://sessions/s/trace", artefact} == listed.keys()
        templates = (await client.list_resource_templates()).resource_templates
        assert "standfast://sessions/{session}/artifacts/{digest}" in [one.uri_template for one in templates]
        [image] = (await client.read_resource(artefact)).contents
        assert isinstance(image, types.BlobResourceContents)
        assert (base64.b64decode(image.blob), image.mime_type) == (b"\x89PNG", "image/png")
        [history] = (await client.read_resource("standfast://sessions/s")).contents
        assert json.loads(history.text)[-1]["text"] == "ok"
        [trace] = (await client.read_resource("standfast://sessions/s/trace")).contents
        assert {one["session_id"] for one in json.loads(trace.text)} == {"s"}
        for uri in ("sessions/none", "sessions/s/x", "sessions/s/artifacts/0", "sessions/../s", "other/s"):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(f"standfast://{uri}")
            assert caught.value.code == types.INVALID_PARAMS
        with pytest.raises(MCPError):
            await client.list_resources(cursor="-1")

    _serve(tmp_path / "s.db", work, trace=str(tmp_path / "trace.jsonl"))


def test_the_servers_prompts_are_those_of_its_agents(tmp_path: Path) -> None:
    """Ours: `Agent(prompts={...})` defines prompts; other braces are text."""

    async def work(client: Client, runtime: Runtime) -> None:
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.name == "support.refund"
        assert [(one.name, one.required) for one in prompt.arguments or ()] == [("order", True)]
        [said] = (await client.get_prompt("support.refund", {"order": "A1"})).messages
        assert said.content.text == 'Refund A1 as {"json"}, A1 is the order.'
        for name, given in (("support.refund", {}), ("support.refund", {"order": "1", "x": "2"}), ("x", {})):
            with pytest.raises(MCPError) as caught:
                await client.get_prompt(name, given)
            assert caught.value.code == types.INVALID_PARAMS

    _serve(tmp_path / "s.db", work)


@pytest.mark.parametrize("prompts", [{"a b": "x"}, {"a": ""}, {"a": 5}, "text"])
def test_an_invalid_prompt_is_refused(prompts: Any) -> None:
    """Ours: the mistake is reported when the agent is created."""
    with pytest.raises(InvalidArgument):
        Agent(ScriptedModel([]), prompts=prompts)
