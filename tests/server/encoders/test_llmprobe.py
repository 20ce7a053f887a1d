"""An agent, tested by llmprobe, a conformance suite for servers that speak OpenAI's protocols."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from node_client import PACKAGES, node_path
from server_stage import ServerStage

from standfast import Agent
from standfast.model.capability import Capability
from standfast.model.limits import Usage
from standfast.model.message import ToolMessage, UserMessage, text_of
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded, RequestedCall, TextArrived


class ProbedModel:
    """A model that repeats its prompt within the settings of the request, as a provider would.

    It calls the tools that it must call, each once, or only the first if calls may not be parallel.
    """

    model_id = "test:probed"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        choice = request.settings.get("tool_choice")
        if choice not in (None, "auto", "none") and not isinstance(request.messages[-1], ToolMessage):
            wanted = [one for one in request.tools if choice in ("required", one.name)]
            most = 1 if request.settings.get("parallel_tool_calls") is False else len(wanted)
            calls = tuple(RequestedCall(name=one.name, arguments=_example(one)) for one in wanted[:most])
            yield ReplyEnded(text="", calls=calls, usage=Usage(input=5, output=5), stop_reason="tool_use")
            return
        said = [text_of(one.content) for one in request.messages if isinstance(one, UserMessage)]
        words = re.findall(r"\S+\s*", " ".join(said))
        most, stop = request.settings.get("max_tokens", 10_000), "end"
        if len(words) > most:
            words, stop = words[:most], "length"
        text = "".join(words)
        for sequence in request.settings.get("stop", ()):
            text = text.split(sequence)[0]
        for word in re.findall(r"\S+\s*", text):
            yield TextArrived(word)
        used = Usage(input=sum(len(one.split()) for one in said), output=max(1, len(words)))
        yield ReplyEnded(text=text, usage=used, stop_reason=stop)

    async def close(self) -> None:
        pass


def _example(tool: Capability) -> str:
    """Return arguments that satisfy a contract."""
    return json.dumps({name: _value(schema) for name, schema in tool.input_schema["properties"].items()})


def _value(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _value(one) for name, one in schema.get("properties", {}).items()}
    return {"integer": 2, "number": 2.5, "boolean": True, "array": []}.get(str(kind), "Berlin")


SURFACES = ("models", "chat", "responses")


@pytest.mark.slow
def test_llmprobe_reports_that_every_requirement_is_met(tmp_path: Path) -> None:
    """Seed: `llmprobe` prints which requirements of the two APIs are met."""
    report = tmp_path / "report.json"
    with ServerStage(tmp_path, agents=[Agent(ProbedModel(), name="clerk")]) as stage:
        words = [f"{stage.url}/openai/v1", "-k", stage.token("run", "read"), "-m", "clerk"]
        words += ["--no-bench", "--no-save", "--save", str(report)]
        done = subprocess.run(
            [str(node_path()), str(PACKAGES / ".bin" / "llmprobe"), *words],
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1"},
        )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_text())["conformance"]
    tested = [one for one in found["results"] if one["surface"] in SURFACES]
    assert sum(one["outcome"] == "pass" for one in tested) > 30
    failed = {one["id"] for one in tested if any(check["severity"] == "MUST" for check in one["failures"])}
    assert failed == set()
    passed = {one["id"] for one in tested if one["outcome"] == "pass"}
    tools = ("tool-stream-reassembly", "tool-result-turn", "tool-choice-none")
    assert {f"{surface}-{test}" for surface in SURFACES[1:] for test in tools} <= passed
