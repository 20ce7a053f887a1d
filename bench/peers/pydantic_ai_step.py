"""One code step of pydantic-ai's code mode (Monty): the median of whole runs, in milliseconds."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness import CodeMode

numbers = itertools.count()


def fake(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return ModelResponse(parts=[TextPart("r" * 400)])
    code = f"found = await compute(x={next(numbers)})\nfound"
    return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"code": code})])


agent = Agent(FunctionModel(fake), capabilities=[CodeMode()])


@agent.tool_plain
def compute(x: int) -> str:
    """Compute something."""
    return "t" * 100


async def main() -> None:
    first = await agent.run("u" * 200)
    returned = [p for m in first.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert "t" * 100 in str(returned[0].content), returned
    taken = []
    for _ in range(30):
        started = time.perf_counter()
        await agent.run("u" * 200)
        taken.append(time.perf_counter() - started)
    print(statistics.median(taken) * 1e3)


asyncio.run(main())
