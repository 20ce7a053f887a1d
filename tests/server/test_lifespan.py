"""How the application starts and stops with its server."""

from __future__ import annotations

import asyncio
from typing import Any

from standfast import Agent, Runtime, ScriptedModel
from standfast.server import create_app


def test_a_server_that_stops_immediately_closes_the_runtime() -> None:
    """Bug: after a second Ctrl-C, the server library printed a traceback, and the runtime stayed open."""

    async def main() -> None:
        runtime = Runtime(agents=[Agent(ScriptedModel([]), name="clerk")])
        app = create_app(runtime)
        asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        told: asyncio.Queue[Any] = asyncio.Queue()
        serving = asyncio.ensure_future(app({"type": "lifespan"}, asked.get, told.put))
        await asked.put({"type": "lifespan.startup"})
        assert await told.get() == {"type": "lifespan.startup.complete"}
        assert runtime.is_open
        serving.cancel()
        await serving
        assert not runtime.is_open

    asyncio.run(main())
