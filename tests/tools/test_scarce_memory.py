"""Tools that return more than fits into memory: the call fails, and the process survives.

msgspec ends the process with a segmentation fault when one of its allocations fails, so a value's size is
limited before it is encoded. Each case runs in a separate process under RLIMIT_AS.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import asyncio, dataclasses, resource, sys
from typing import Any
from standfast import Agent, BlockingSandbox, Plugin, ScriptedModel, hook, tool
from standfast.errors import StandfastError
import standfast.tools.settlement, standfast.runtime.agent_runtime, jsonschema_rs

MUCH = 60 << 20


def limit(room: int) -> None:
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
"""

VALUES = {
    "text": "'x' * MUCH",
    "text that is not ASCII": "'\\u00e9' * (MUCH // 2)",
    "bytes": "bytes(MUCH)",
    "a bytearray": "bytearray(MUCH)",
    "text in a list": "['x' * (MUCH // 2), 'y' * (MUCH // 2)]",
    "text in a dict": "{'a': {'b': 'x' * MUCH}}",
    "a key": "{'x' * MUCH: 1}",
    "one text many times": "['x' * (1 << 20)] * 60",
    "a dataclass": "Held('x' * MUCH)",
    "an exception": "1 / 0 if False else fail('x' * MUCH)",
}


def run(body: str) -> str:
    program = PROGRAM + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_tool_that_returns_60_mb_under_a_memory_limit_fails_only_its_call(value: str) -> None:
    """Bug: the host process died of a segmentation fault in msgspec."""
    printed = run(
        f"""
        @dataclasses.dataclass
        class Held:
            text: str

        def fail(text: str) -> Any:
            raise ValueError(text)

        @tool(side_effect="read")
        async def much() -> Any:
            return {value}

        @tool(side_effect="read")
        async def little() -> str:
            return "fine"

        calls = {{"tool_calls": [{{"name": "much", "arguments": {{}}}}]}}
        after = {{"tool_calls": [{{"name": "little", "arguments": {{}}}}]}}
        agent = Agent(ScriptedModel([calls, after, "end"]), tools=[much, little])

        async def main() -> None:
            await Agent(ScriptedModel([after, "end"]), tools=[little]).run("warm up")
            limit(150 << 20)
            result = await agent.run("go")
            print([str(one.error.code) if one.error else "ok" for one in result.calls], result.output)

        asyncio.run(main())
        """
    )
    code = "TOOL_ERROR" if "fail(" in value else "RESPONSE_TOO_LARGE"
    assert printed == f"['{code}', 'ok'] end"


@pytest.mark.slow
def test_a_prompt_above_its_limit_is_refused_before_it_is_encoded() -> None:
    """Ours: a caller's text too is measured before it is copied."""
    printed = run(
        """
        agent = Agent(ScriptedModel(["end", "end"]))
        text = "\\u00e9" * (60 << 20)

        async def main() -> None:
            await agent.run("warm up")
            limit(60 << 20)
            try:
                await agent.run(text)
            except StandfastError as error:
                print(error.code)

        asyncio.run(main())
        """
    )
    assert printed == "INVALID_ARGUMENT"
