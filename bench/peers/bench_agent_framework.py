"""Microsoft Agent Framework: sessions are files of JSON lines, appended to and not synced.

Code runs in Monty.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FileHistoryProvider,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    tool,
)
from measuring import CHUNK, REPLY, USER, Framework, Runner, look_up, main, scripted_calls

warnings.filterwarnings("ignore", "\\[FILE_HISTORY]")


class FakeClient(FunctionInvocationLayer, BaseChatClient):
    def __init__(self, kind: str, chunks: int) -> None:
        super().__init__()
        self.kind, self.chunks, self.numbers = kind, chunks, itertools.count()

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        if stream:
            return ResponseStream(self.arriving(), finalizer=ChatResponse.from_updates)
        return self.reply(messages)

    async def arriving(self) -> Any:
        for _ in range(self.chunks):
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(CHUNK)])

    async def reply(self, messages: list[Message]) -> ChatResponse:
        results = results_of_turn(messages)
        calls = scripted_calls(self.kind, results)
        contents: list[Any] = [self.call("lookup", {"x": x}) for x in calls]
        if self.kind == "code_step_1call" and not results:
            contents = [
                self.call("execute_code", {"code": f"r = await lookup(x={next(self.numbers)})\nlen(r)"})
            ]
        return ChatResponse(messages=[Message(role="assistant", contents=contents or [REPLY])])

    def call(self, name: str, arguments: dict[str, Any]) -> Content:
        return Content.from_function_call(f"c{next(self.numbers)}", name, arguments=arguments)


def results_of_turn(messages: list[Message]) -> int:
    count = 0
    for message in reversed(messages):
        if message.role == "user" and any(content.type == "text" for content in message.contents):
            break
        count += sum(content.type == "function_result" for content in message.contents)
    return count


class Sessions(Runner):
    def __init__(self, kind: str, path: str | None, chunks: int) -> None:
        @tool(approval_mode="always_require" if kind == "hitl" else "never_require")
        async def lookup(x: int) -> str:
            """Look up x."""
            return look_up()

        providers: list[Any] = [FileHistoryProvider(Path(path))] if path else []
        tools = [] if kind in ("plain", "stream") else [lookup]
        if kind == "code_step_1call":
            from agent_framework.monty import MontyCodeActProvider

            providers.append(MontyCodeActProvider(tools=tools, approval_mode="never_require"))
            tools = []
        self.agent = Agent(
            client=FakeClient(kind, chunks),
            instructions="be brief",
            tools=tools,
            context_providers=providers or None,
        )

    def new_session(self, name: str) -> Any:
        return self.agent.create_session(session_id=name)

    reopen = new_session

    async def turn(self, session: Any, text: str) -> str:
        return (await self.agent.run(text, session=session)).text

    async def stream(self, session: Any, text: str) -> int:
        return sum([bool(update.text) async for update in self.agent.run(text, session=session, stream=True)])

    async def pause(self, name: str) -> Any:
        session = self.new_session(name)
        response = await self.agent.run(USER, session=session)
        return session, response.user_input_requests[0]

    async def resume(self, paused: Any) -> str:
        session, request = paused
        answer = Message(role="user", contents=[request.to_function_approval_response(True)])
        return (await self.agent.run(answer, session=session)).text


class AgentFramework(Framework):
    name = "agent-framework"
    import_statement = "from agent_framework import Agent, BaseChatClient, FileHistoryProvider, tool"
    packages = ("agent-framework-core", "agent-framework-monty")

    def make(self, kind: str, path: str | None, chunks: int) -> Sessions:
        return Sessions(kind, path, chunks)


if __name__ == "__main__":
    main(AgentFramework())
