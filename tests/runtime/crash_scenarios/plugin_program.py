"""A process that opens one session with the given plugins, executes the given steps, and reports.

Called with the folder of the tests' stand-ins, a database and a JSON object: `plugins` by the names below,
and `steps`, each a list of a verb and its object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

from plugin_stand_ins import Album, Counter, ObedientModel

from standfast import Agent, Plugin, Runtime, Session, action, hook, tool
from standfast.errors import StandfastError
from standfast.model.canonical import Json
from standfast.model.plugin_state import PluginSnapshotMeta
from standfast.plugins.snapshot import SnapshotReader
from standfast.store.sqlite.connection import open_checked


class Newer(Counter):
    """The counter in a newer version, which cannot read the state of the first one."""

    id = "counter"
    version = "2"


class Migrating(Newer):
    """The counter in version 2, which migrates the state of the first one: it counts by tens."""

    id = "counter"

    def migrate(self, state: Json, version: str) -> Json:
        assert (version, isinstance(state, int)) == ("1", True)
        return 10 * self._as_number(state)

    @staticmethod
    def _as_number(state: Json) -> int:
        return state if isinstance(state, int) else 0


class Stateless(Plugin):
    """A plugin with hooks but without a state."""

    @hook
    async def prompt_contributor(self, ctx: Any) -> str:
        return "be brief"


class Late(Plugin):
    """A plugin that reports the state with which it was restored."""

    def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
        self._given = [meta.state, meta.plugin_version]
        super().restore(meta, reader)

    @action
    async def given(self, ctx: Any) -> list[Any]:
        """Return the state it was restored with."""
        return self._given

    @tool
    async def note(self) -> str:
        """Remember something."""
        self.state = "noted"
        return "noted"


class Dying(Plugin):
    """A plugin that kills the process before the model call that follows a tool call."""

    @hook
    async def prompt_contributor(self, ctx: Any) -> None:
        if ctx.iteration == 2:
            os.kill(os.getpid(), signal.SIGKILL)


class Patient(Plugin):
    """A plugin that counts its hooks."""

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self._count("before_turn")

    @hook
    async def prompt_contributor(self, ctx: Any) -> str:
        self._count("prompt")
        return "be patient"

    def _count(self, name: str) -> None:
        counted = dict(self.state or {})
        self.state = {**counted, name: counted.get(name, 0) + 1}

    @action
    async def counts(self, ctx: Any) -> Json:
        """Return the counts."""
        return self.state


class Lingering(Patient):
    """The same plugin, which after counting waits until the earlier inputs are journaled, and dies."""

    id = "patient"

    @hook
    async def prompt_contributor(self, ctx: Any) -> str:
        self._count("prompt")
        for _ in range(10_000):
            if _is_journaled("hooks.before_turn.1"):
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.001)
        return "never"


def _is_journaled(name: str) -> bool:
    """Return whether it is journaled, read with the store's own library, which respects the locks."""
    with contextlib.closing(open_checked(sys.argv[2])) as database:
        found = database.execute("SELECT 1 FROM journal WHERE name = ? AND kind = 'input'", (name,))
        return found.get is not None


KNOWN: dict[str, type[Plugin]] = {
    "counter": Counter,
    "newer": Newer,
    "migrating": Migrating,
    "stateless": Stateless,
    "album": Album,
    "late": Late,
    "dying": Dying,
    "patient": Patient,
    "lingering": Lingering,
}


async def main(database: str, job: dict[str, Any]) -> None:
    model = ObedientModel()
    agent = Agent(model, name="clerk", plugins=[KNOWN[name]() for name in job["plugins"]])
    async with Runtime(database) as runtime:
        report = [await _attempt(runtime, agent, *step) for step in job["steps"]]
    print(json.dumps({"report": report, "prompts": model.prompts}), flush=True)


async def _attempt(runtime: Runtime, agent: Agent[Any, Any], verb: str, given: Any = None) -> Any:
    try:
        return await _do(await runtime.session("s", agent=agent), verb, given)
    except StandfastError as error:
        return {"raised": type(error).__name__, "message": error.message, "hint": error.hint}


async def _do(session: Session[Any], verb: str, given: Any) -> Any:
    if verb == "turn":
        return (await session.turn(given)).output
    if verb == "invoke":
        return await session.plugins.invoke(given)
    if verb == "resume":
        turn = await session.resume()
        if turn is None:  # recovery was faster
            turn = session.follow((await session.turns())[-1].turn_id)
        return (await turn).output
    assert verb == "said"
    return [getattr(message, "content", None) for message in await session.messages()]


if __name__ == "__main__":
    logging.getLogger("standfast").addHandler(logging.NullHandler())
    asyncio.run(main(sys.argv[2], json.loads(sys.argv[3])))
