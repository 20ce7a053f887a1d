"""smolagents: no store and no approvals; the memory of an agent is its session.

Code runs in the process of the agent, without isolation.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

from measuring import CHUNK, REPLY, Framework, Runner, Unsupported, look_up, main, scripted_calls
from rich.console import Console
from smolagents import CodeAgent, Model, ToolCallingAgent, tool
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
)
from smolagents.monitoring import AgentLogger, LogLevel


@tool
def lookup(x: int) -> str:
    """Look up x.

    Args:
        x: a number
    """
    return look_up()


class FakeModel(Model):
    def __init__(self, kind: str, chunks: int) -> None:
        super().__init__()
        self.kind, self.chunks, self.numbers = kind, chunks, itertools.count()

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        if self.kind == "code_step_1call":
            code = f"<code>\nr = lookup(x={next(self.numbers)})\nfinal_answer(len(r))\n</code>"
            return ChatMessage(role=MessageRole.ASSISTANT, content=code)
        calls = [self.call("lookup", {"x": x}) for x in scripted_calls(self.kind, results_of_turn(messages))]
        final = self.call("final_answer", {"answer": REPLY})
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls or [final])

    def generate_stream(self, messages: list[Any], **_: Any) -> Any:
        for _number in range(self.chunks):
            yield ChatMessageStreamDelta(content=CHUNK)
        call = self.call("final_answer", json.dumps({"answer": REPLY}))
        delta = ChatMessageToolCallStreamDelta(index=0, id=call.id, type="function", function=call.function)
        yield ChatMessageStreamDelta(content="", tool_calls=[delta])

    def call(self, name: str, arguments: Any) -> ChatMessageToolCall:
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        return ChatMessageToolCall(id=f"c{next(self.numbers)}", type="function", function=function)


def results_of_turn(messages: list[Any]) -> int:
    count = 0
    for message in reversed(messages):
        text = str(message.content)
        if "New task:" in text:
            break
        count += text.count("Observation:")
    return count


class Agents(Runner):
    def __init__(self, kind: str, chunks: int) -> None:
        self.kind, self.model = kind, FakeModel(kind, chunks)
        self.output = open(os.devnull, "w")  # noqa: SIM115 (closed by `close`)
        self.logger = AgentLogger(level=LogLevel.OFF, console=Console(file=self.output))

    def new_session(self, name: str) -> Any:
        options: dict[str, Any] = {
            "model": self.model,
            "logger": self.logger,
            "stream_outputs": self.kind == "stream",
        }
        if self.kind == "code_step_1call":
            return CodeAgent(tools=[lookup], **options)
        return ToolCallingAgent(tools=[] if self.kind in ("plain", "stream") else [lookup], **options)

    def turn(self, session: Any, text: str) -> Any:
        return session.run(text, reset=False)

    def stream(self, session: Any, text: str) -> int:
        events = session.run(text, reset=False, stream=True)
        return sum(isinstance(event, ChatMessageStreamDelta) for event in events)

    def close(self) -> None:
        self.output.close()


class Smolagents(Framework):
    name = "smolagents"
    import_statement = "from smolagents import CodeAgent, Model, ToolCallingAgent, tool"
    packages = ("smolagents",)
    threads = True

    def make(self, kind: str, path: str | None, chunks: int) -> Agents:
        if path:
            raise Unsupported("no stored sessions")
        if kind == "hitl":
            raise Unsupported("no approvals")
        return Agents(kind, chunks)


if __name__ == "__main__":
    main(Smolagents())
