"""Kills of a turn that acts in code at every crash point, and again while it is recovered.

The points are those of `test_crash_points.py`, and others around the actions of the engine: before and after
it runs up to a call, receives a result, is suspended. An external ledger records the effects of calls and
each run of a cell, next to the content of the journal when its process began. At the end the next turn and a
fork read the variables.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from crash_scenarios.code_theatre import EXPECTED, CodeTheatre, CodeTruth, acted
from crash_scenarios.theatre import WAYS, ForkServer

from standfast import Agent, Plugin, Runtime, Session, hook, tool
from standfast.errors import RuntimeClosed
from standfast.model.outcome import Finished
from standfast.ports.session_store import Lease, Save, Saved, SessionStore
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.agent_runtime import open_store


@pytest.fixture
def theatre(tmp_path: Path, sampled: Callable[[int], slice]) -> Iterator[CodeTheatre]:
    made = CodeTheatre(tmp_path, range(1, 1_000)[sampled(37)])
    yield made
    made.close()


@pytest.mark.slow
def test_a_cell_survives_kills_at_some_points(theatre: CodeTheatre) -> None:
    """Ours: a fast version of the crash sweeps below."""
    for number in (9, 17, 27, 33, 41, 56):
        assert theatre.play(partial(acted, scenario="five", kills=(number,))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted(EXPECTED.keys() - {"computes"}))
def test_a_code_turn_survives_a_kill_at_every_point_and_another_one_during_recovery(
    theatre: CodeTheatre, scenario: str
) -> None:
    """Ours: calls run once, cells resume, and the final variables are correct."""
    points = theatre.kill_everywhere(scenario)
    assert points > 50
    print(f"{scenario}: {points} points")
    theatre.kill_again(scenario, points)


@pytest.mark.slow
def test_a_decision_on_a_cells_call_survives_a_kill_at_every_point_of_the_deciding_process(
    theatre: CodeTheatre,
) -> None:
    """Ours: a decision of another process is either stored or not, and is used once."""

    def killed_while_deciding(server: ForkServer, home: Path, kill: int) -> bool:
        assert server.run("five", home, how="ask")["status"] == "waiting"
        killed = server.run("five", home, kill, how="decide").get("killed", False)
        acted(server, home, "five", ())
        return bool(killed)

    assert theatre.enumerate(killed_while_deciding, count(1)) >= 3


@pytest.mark.slow
def test_an_owner_stopped_at_any_point_of_a_cell_loses_its_turn_and_commits_nothing(
    theatre: CodeTheatre,
) -> None:
    """Ours: SPEC §7, a process that lost its lease can commit nothing, wherever its cell was.

    A process that is stopped while its writer holds the file lock blocks all others until it is killed, and
    their errors say so. At such points no process can take over.
    """
    shut_out: list[int] = []

    def stopped_at(server: ForkServer, home: Path, number: int) -> bool:
        heir = WAYS[number % len(WAYS)]
        for again in range(4):
            tried = home / str(again)
            tried.mkdir()
            report = server.run("five", tried, number, stops=True, heir=heir, lease_s=0.15)
            if not report["stopped"]:
                return False
            if report["heir"].get("raised") != "StoreUnavailable":
                break
        else:
            shut_out.append(number)
            return True
        assert report["heir"].get("status") == "done", (number, report["heir"])
        assert report["old"].get("raised", "LeaseLost") == "LeaseLost", (number, report["old"])
        for kept in ("messages", "turns", "usage"):
            assert report["last"][kept] == report["heir"][kept]
        CodeTruth(tried, report["last"]).check_stored("five")
        return True

    assert theatre.enumerate(stopped_at, theatre.points) > 40
    assert len(shut_out) <= 3, shut_out


# The checks must detect defects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "broken", "words"),
    [
        ("five", "intents", ("was done 2 times", "it was begun before")),
        ("steps", "execution", ("a cell failed: twice() is neither defined",)),
        ("order", "order", ("called price() where it had called price(), or with other arguments",)),
        ("chance", "chance", ("called price() where it had called price(), or with other arguments",)),
    ],
)
def test_a_runtime_with_a_defect_is_detected(
    theatre: CodeTheatre, scenario: str, broken: str, words: tuple[str, ...]
) -> None:
    """Ours: a store that loses intents or variables, results in another order, other random numbers."""
    found = Counter[bool]()
    for number in range(17, 50, 3):
        try:
            theatre.play(partial(acted, scenario=scenario, kills=(number,), broken=broken))
        except AssertionError as error:
            found[any(word in str(error) for word in words)] += 1
        if found[True] == 2:
            break
    assert found[True] > 0
    assert found[False] == 0


@pytest.mark.slow
def test_a_store_that_loses_suspended_cells_is_detected(theatre: CodeTheatre) -> None:
    """Ours: such a cell has the same result, but had to be rerun from its beginning."""
    with pytest.raises(AssertionError, match="twice in one process"):
        theatre.play(partial(acted, scenario="five", kills=(), broken="execution"))


# A cell's state is kept only together with its result


class Noticing:
    """A store that signals when a result has been written."""

    def __init__(self, store: SessionStore, name: str) -> None:
        self._store = store
        self._name = name
        self.written = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def save(self, lease: Lease, save: Save) -> Saved:
        saved = await self._store.save(lease, save)
        if any((entry.key, entry.kind) == (self._name, "input") for entry in save.entries):
            self.written.set()
        return saved


CELLS = [
    "```python\nimport asyncio\ncount = [0]\n```",
    "```python\ncount.append(len(count))\ntry:\n    await asyncio.gather(bad(), slow())\n"
    "except RuntimeError:\n    pass\n```",
    "```python\nfinish(count)\n```",
]


class LateCall:
    """A session whose second cell ends while one of its calls still runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = asyncio.Event()
        self.looks_for_ever = True
        model = ScriptedModel(CELLS, strict=False)
        self.agent: Agent[Any, Any] = Agent(
            model, name="clerk", protocol="code", tools=self._tools(), plugins=[self._plugin()]
        )

    def _tools(self) -> list[Any]:
        @tool(side_effect="read")
        async def bad() -> str:
            """Fail at once."""
            raise ValueError("bad")

        @tool(side_effect="read", loop="runtime")
        async def slow() -> str:
            """Return when the cell that made the call has ended."""
            await self._looked_at.wait()
            return "slow"

        return [bad, slow]

    def _plugin(self) -> Plugin:
        late = self

        class Slowly(Plugin):
            loop = "runtime"

            @hook
            async def after_tool_call(self, ctx: Any) -> None:
                if (ctx.tool_name, ctx.call_id) == ("run_code", 2) and late.looks_for_ever:
                    late._looked_at.set()
                    await asyncio.Event().wait()

        return Slowly()

    def open(self) -> tuple[Runtime, Noticing]:
        store = Noticing(open_store(self._path), "tool.4")
        return Runtime(cast(SessionStore, store), agents=[self.agent]), store

    async def begin(self, runtime: Runtime, store: Noticing) -> tuple[Session[Any], asyncio.Future[Any]]:
        """Run until the cell has ended and its late call's result is journaled, but not the cell's."""
        session = await runtime.session("s", agent=self.agent)
        settling = asyncio.ensure_future(session.turn("go").settled())
        await asyncio.wait_for(store.written.wait(), 10)
        return session, settling


def test_the_state_of_a_cell_is_not_kept_before_its_result(tmp_path: Path) -> None:
    """Bug: the variables were journaled with the result of a call, and the cell was rerun on top of them."""

    async def check() -> None:
        late = LateCall(tmp_path / "standfast.db")
        runtime, store = late.open()
        async with runtime:
            _, settling = await late.begin(runtime, store)
        with pytest.raises(RuntimeClosed):
            await settling
        late.looks_for_ever = False
        async with late.open()[0] as runtime:
            session: Session[Any] = await runtime.session("s", agent=late.agent)
            left = await session.resume()
            if left is None:  # recovery was faster
                left = session.follow((await session.turns())[-1].turn_id)
            assert (await left.settled()).outcome == Finished(text="[0,1]")

    asyncio.run(check())


def test_a_cell_cancelled_before_its_result_is_kept_leaves_no_state(tmp_path: Path) -> None:
    """Bug: the result said that the cell was cancelled, but its variables had changed."""

    async def check() -> None:
        late = LateCall(tmp_path / "standfast.db")
        runtime, store = late.open()
        async with runtime:
            session, settling = await late.begin(runtime, store)
            await session.cancel()
            assert (await settling).status == "stopped"
            assert (await session.turn("more").settled()).outcome == Finished(text="[0]")

    asyncio.run(check())
