"""LangGraph with LangChain's agent: a checkpoint in SQLite at every step, `durability` as shipped.

Code runs in QuickJS, through `langchain-quickjs`.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from measuring import CHUNK, REPLY, USER, Framework, Runner, look_up, main, scripted_calls

warnings.filterwarnings("ignore", ".*CodeInterpreterMiddleware. is in beta")


class FakeModel(BaseChatModel):
    kind: str
    chunks: int
    numbers: Any

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **_: Any) -> FakeModel:
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])

    async def _agenerate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)

    def reply(self, messages: Any) -> AIMessage:
        results = results_of_turn(messages)
        if self.kind == "code_step_1call" and not results:
            code = f"(await tools.lookup({{x: {next(self.numbers)}}})).length"
            return AIMessage("", tool_calls=[self.call("eval", {"code": code})])
        calls = [self.call("lookup", {"x": x}) for x in scripted_calls(self.kind, results)]
        return AIMessage("", tool_calls=calls) if calls else AIMessage(REPLY)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return {"name": name, "args": arguments, "id": f"c{next(self.numbers)}"}


class StreamingModel(FakeModel):
    async def _astream(self, messages: Any, *_: Any, run_manager: Any = None, **__: Any) -> Any:
        for _number in range(self.chunks):
            chunk = ChatGenerationChunk(message=AIMessageChunk(CHUNK))
            if run_manager:
                await run_manager.on_llm_new_token(CHUNK, chunk=chunk)
            yield chunk


def results_of_turn(messages: Any) -> int:
    count = 0
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            break
        count += isinstance(message, ToolMessage)
    return count


class Threads(Runner):
    def __init__(self, kind: str, saver: Any, chunks: int, opened: Any) -> None:
        @tool
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

        model = StreamingModel if kind == "stream" else FakeModel
        middleware: list[Any] = []
        if kind == "hitl":
            middleware.append(HumanInTheLoopMiddleware(interrupt_on={"lookup": True}))
        if kind == "code_step_1call":
            from langchain_quickjs import CodeInterpreterMiddleware

            middleware.append(CodeInterpreterMiddleware(ptc=[lookup], timeout=60))
        self.opened = opened
        self.graph: Any = create_agent(
            model(kind=kind, chunks=chunks, numbers=itertools.count()),
            tools=[] if kind in ("plain", "stream") else [lookup],
            system_prompt="be brief",
            middleware=middleware,
            checkpointer=saver,
        )

    def new_session(self, name: str) -> Any:
        return {"configurable": {"thread_id": name}, "recursion_limit": 100}

    reopen = new_session

    async def turn(self, session: Any, text: str) -> str:
        result = await self.graph.ainvoke({"messages": [HumanMessage(text)]}, session)
        return result["messages"][-1].content

    async def stream(self, session: Any, text: str) -> int:
        given = {"messages": [HumanMessage(text)]}
        return sum([1 async for _ in self.graph.astream(given, session, stream_mode="messages")])

    async def pause(self, name: str) -> Any:
        session = self.new_session(name)
        result = await self.graph.ainvoke({"messages": [HumanMessage(USER)]}, session)
        assert result["__interrupt__"], result
        return session

    async def resume(self, paused: Any) -> str:
        command = Command(resume={"decisions": [{"type": "approve"}]})
        return (await self.graph.ainvoke(command, paused))["messages"][-1].content

    async def close(self) -> None:
        if self.opened:
            await self.opened.__aexit__(None, None, None)


class LangGraph(Framework):
    name = "langgraph"
    import_statement = (
        "from langchain.agents import create_agent; "
        "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver"
    )
    packages = ("langgraph", "langchain", "langgraph-checkpoint-sqlite", "langchain-quickjs")

    async def make(self, kind: str, path: str | None, chunks: int) -> Threads:
        opened = AsyncSqliteSaver.from_conn_string(path) if path else None
        saver = await opened.__aenter__() if opened else InMemorySaver()
        return Threads(kind, saver, chunks, opened)


if __name__ == "__main__":
    main(LangGraph())
