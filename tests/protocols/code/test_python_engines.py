"""Agents that act in full Python: cells on CPython, and on Monty until a cell needs more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import outcomes, reports
from code_turns import observations, play
from stand_ins import Place, go_on
from typescript_cells import Shop, cell, typing, value_of

from standfast import Agent, CodeProtocol
from standfast.errors import Code, PluginStateLost
from standfast.model.code import EngineName
from standfast.protocols.code.plugin import how_to_act
from standfast.providers.scripted import ScriptedModel
from standfast.testing.clock import FakeClock

CPYTHON = CodeProtocol(engine="cpython")
AUTO = CodeProtocol(engine="auto")

pytestmark = pytest.mark.slow

FULL = """\
from collections import Counter

class Shelf(Counter):
    def names(self):
        yield from sorted(self)

shelf = Shelf("hello")
list(shelf.names())"""
"""Code that Monty does not support: a base class of the standard library, and a generator."""


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def filed(tmp_path: Path, clock: FakeClock) -> Place:
    """Return a store in a SQLite file only."""
    return Place(tmp_path / "standfast.db", clock)


def rules_for(engine: EngineName) -> str:
    """Return the rules in the prompt of an agent on this engine."""
    return how_to_act(fences=True, engine=engine)


def test_the_prompt_lists_missing_features_only_if_some_are_missing() -> None:
    """Ours: a rule that does not apply to an engine would hide features from the model."""
    assert "This Python has no classes with bases" in rules_for(EngineName.MONTY)
    assert "All of Python and its standard library are available" in rules_for(EngineName.CPYTHON)
    for words in ("This Python has", "All of Python"):
        assert words not in rules_for(EngineName.AUTO)


@pytest.mark.slow
def test_a_cell_has_all_of_python_and_can_wait_in_the_middle(filed: Place, shop: Shop) -> None:
    """Ours: after an approval in another process, no call is repeated and the variables are there."""

    async def main() -> None:
        agent = typing(CPYTHON, tools=shop.tools)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, FULL) == ["e", "h", "l", "o"]
            waiting = await session.turn(
                "paid = [order('A1')['cents'] + refund('A1', cents=n) for n in (1,)]\npaid + [shelf['l']]"
            )
            assert (waiting.status, shop.did) == ("waiting", ["order A1"])
        async with filed.runtime() as runtime:  # has no agent: it only decides
            await runtime.approve(waiting.waits[0].wait_id)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await go_on(session)
            assert outcomes(result.messages) == [[4201, 2]]
            assert shop.did == ["order A1", "refund A1 1"]
            assert await value_of(session, "[paid, list(shelf.names())]") == [[4201], ["e", "h", "l", "o"]]

    asyncio.run(main())


def test_variables_on_cpython_follow_the_history(memory: Place) -> None:
    """Ours: a fork has its own variables and a rewind restores them, on every engine."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing(CPYTHON))
            await session.turn("seen = [1]\ndef grow():\n    seen.append(len(seen) + 1)\n    return seen")
            other = await session.fork("f")
            assert await value_of(session, "grow()") == [1, 2]
            assert await value_of(other, "grow()\ngrow()") == [1, 2, 3]
            await session.rewind(turns=1)
            assert await value_of(session, "seen") == [1]

    asyncio.run(main())


def test_errors_on_cpython_are_shown_with_their_line(memory: Place, shop: Shop) -> None:
    """Ours: the repair loop is the same on every engine."""
    played = play(
        memory,
        cell("x =", "python"),
        cell("print('before')\nordr('A1')", "python"),
        cell("n = 0\ntotal = order('A1')['cents'] / n", "python"),
        cell("finish(n)", "python"),
        tools=shop.tools,
        protocol=CPYTHON,
    )
    syntax, name, zero, _ = observations(played.last.messages)
    assert syntax.startswith("[cell 0] failed, nothing was executed\nerror:\nSYNTAX_ERROR: ")
    assert name.startswith("[cell 1] failed, nothing was executed\nerror:\nUNKNOWN_TOOL: ordr() ")
    assert "RUNTIME_ERROR: ZeroDivisionError: division by zero\n  2 | total = order('A1')" in zero
    assert played.last.output == "0"


def test_a_session_moves_to_cpython_once_and_keeps_its_variables(memory: Place) -> None:
    """Seed: with `auto`, code that Monty refuses before it runs moves the session, and the result says so."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing(AUTO))
            await session.turn("letters = 'hello'")
            (moved,) = reports((await session.turn(FULL.replace('"hello"', "letters"))).messages)
            assert moved.result == ["e", "h", "l", "o"]
            assert "the session runs on CPython" in " ".join(moved.notes)
            (after,) = reports((await session.turn("[letters, shelf['l']]")).messages)
            assert (after.result, after.notes) == (["hello", 2], ())

    asyncio.run(main())


def test_monty_does_not_read_the_state_that_cpython_stored(memory: Place) -> None:
    """Ours: the engine of a session is fixed, except that a Monty session may continue with `auto`."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            await (await runtime.session("c", agent=typing(CPYTHON))).turn("x = 1")
            await (await runtime.session("m", agent=typing(CodeProtocol()))).turn("x = 1")
        async with memory.runtime() as runtime:
            with pytest.raises(PluginStateLost, match="python on cpython"):
                await runtime.session("c", agent=typing(CodeProtocol()))
            assert await value_of(await runtime.session("m", agent=typing(AUTO)), "x") == 1

    asyncio.run(main())


def test_without_another_engine_a_base_class_is_still_refused() -> None:
    """Ours: the default is Monty, and its refusals are reported before anything runs."""
    agent: Agent[Any, Any] = Agent(ScriptedModel([cell(FULL, "python"), "Oh."]), protocol="code")
    result = agent.run_sync("go")
    assert outcomes(result.messages) == [Code.UNSUPPORTED_FEATURE]


def test_a_new_session_with_the_same_name_does_not_get_the_old_ones_process(memory: Place) -> None:
    """Ours: deleting a session ends its warm worker."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            planted = "import builtins\nbuiltins.planted = 1"
            await (await runtime.session("s", agent=typing(CPYTHON))).turn(f"{planted}\nNone")
            assert await runtime.delete("s")
            session = await runtime.session("s", agent=typing(CPYTHON))
            assert await value_of(session, "import builtins\nhasattr(builtins, 'planted')") is False

    asyncio.run(main())
