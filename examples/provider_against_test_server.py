"""One agent with a tool, asked of four providers; only the model's name changes.

There is no network here: each provider is a local server that speaks its wire format from a script. Leave the
servers and the variables out, set the keys that you have, and the same lines talk to the real ones.

Run it with `python examples/provider_against_test_server.py`.
"""

import asyncio
import os

from standfast import Agent, tool
from standfast.testing import AnthropicServer, ChatServer, GoogleServer, OpenAIServer

SCRIPT = [
    {"tool_calls": [{"name": "order", "arguments": {"order_id": "A1"}}]},
    {"text": "Order A1 came six days late.", "chunk_size": 6},
]


@tool(side_effect="read")
async def order(order_id: str) -> dict[str, int]:
    """Look up an order."""
    return {"cents": 4200, "days_late": 6}


async def ask(model: str) -> None:
    result = await Agent(model, tools=[order]).run("Did order A1 arrive late?")
    name, calls = model.partition("@")[0], f"{result.usage.calls} model calls, {len(result.calls)} tool call"
    print(f"{name}  {result.output} ({calls})")


async def main() -> None:
    async with (
        AnthropicServer(SCRIPT) as anthropic,
        OpenAIServer(SCRIPT) as openai,
        GoogleServer(SCRIPT) as google,
        ChatServer(SCRIPT) as chat,
    ):
        os.environ |= {"ANTHROPIC_API_KEY": "a-test-key", "ANTHROPIC_BASE_URL": anthropic.base_url}
        os.environ |= {"OPENAI_API_KEY": "a-test-key", "OPENAI_BASE_URL": openai.base_url}
        os.environ |= {"GEMINI_API_KEY": "a-test-key", "GOOGLE_GEMINI_BASE_URL": google.base_url}
        await ask("anthropic:claude-sonnet-4-5")
        await ask("openai:gpt-5")
        await ask("google:gemini-2.5-flash")
        await ask(f"openai-compatible:llama3.2@{chat.base_url}")


asyncio.run(main())
