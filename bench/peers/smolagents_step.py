"""One code step of smolagents, which does not isolate it: the median of whole runs, in milliseconds."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole

numbers = itertools.count()


@tool
def compute(x: int) -> str:
    """Compute something.

    Args:
        x: a number
    """
    return "t" * 100


class Fake(Model):
    def generate(self, messages: list[Any], **options: Any) -> ChatMessage:
        code = f"\n<code>\nfound = compute(x={next(numbers)})\nfinal_answer(found)\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content="r" * 340 + code)


agent = CodeAgent(tools=[compute], model=Fake(), verbosity_level=0)
for _ in range(10):
    assert agent.run("u" * 200) == "t" * 100
taken = []
for _ in range(60):
    started = time.perf_counter()
    agent.run("u" * 200)
    taken.append(time.perf_counter() - started)
print(statistics.median(taken) * 1e3)
