"""The plugin `memory`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, results

from standfast import Agent, RunContext, Runtime
from standfast.errors import InvalidArgument, StandfastError
from standfast.plugins.contexts import PluginExtensions
from standfast.plugins.plugin import PluginSessionContext
from standfast.plugins.shipped import Memory
from standfast.plugins.shipped.memory import Note, ranked
from standfast.runtime.sessions.materialize import DurablePluginStorage
from standfast.store.memory_sessions import MemorySessionStore
from standfast.testing.clock import FakeClock

SCOPES = pytest.mark.parametrize("scope", ["session", "user:anna"])


def notes_of(*texts: str) -> list[Note]:
    return [Note(note_id=f"n{number}", number=number, text=text) for number, text in enumerate(texts, 1)]


def keeper(*replies: Any, memory: Memory | None = None, **options: Any) -> Agent[Any, Any]:
    return agent_of(*replies, plugins=[memory or Memory()], **options)


def remembers(*texts: str) -> dict[str, Any]:
    return asks(*(("remember", {"text": text}) for text in texts))


def built(pattern: Memory, clock: FakeClock) -> Any:
    """Return the plugin as built for a session, with its storage in memory."""
    storage = DurablePluginStorage(MemorySessionStore(), clock, "memory")
    return pattern.build(PluginSessionContext(session_id="s", extensions=PluginExtensions(), storage=storage))


async def found(session: Any, query: str = "", limit: int = 5) -> list[str]:
    answer = await session.plugins.invoke("memory.search", {"query": query, "limit": limit})
    return [one["text"] for one in answer]


# Searching


def test_the_note_that_shares_the_most_words_comes_first() -> None:
    """Ours: notes are ranked by word overlap, ignoring case."""
    notes = notes_of("Anna likes green tea", "Ben likes tea", "Cleo likes coffee")
    assert [one.note_id for one in ranked(notes, "GREEN tea", 5)] == ["n1", "n2"]
    assert [one.note_id for one in ranked(notes, "straße", 5)] == []
    assert ranked(notes_of("Die Straße"), "STRASSE", 5) != []


def test_among_notes_of_equal_rank_the_most_recent_comes_first() -> None:
    """Ours: the order does not depend on the order of the input."""
    notes = notes_of("tea at nine", "tea at ten", "tea at noon")
    assert [one.note_id for one in ranked(notes, "tea", 2)] == ["n3", "n2"]
    assert ranked(reversed(notes), "tea", 2) == ranked(notes, "tea", 2)


def test_an_empty_query_finds_the_most_recent_notes_and_tags_count_as_words() -> None:
    """Ours: a search is a pure function of the notes."""
    notes = [*notes_of("a", "b"), Note(note_id="n3", number=3, text="c", tags=("Billing",))]
    assert [one.text for one in ranked(notes, " ?! ", 2)] == ["c", "b"]
    assert [one.text for one in ranked(notes, "billing", 5)] == ["c"]
    assert ranked([], "x", 5) == []


# Storing


@SCOPES
def test_the_model_remembers_recalls_and_forgets(memory: Place, scope: str) -> None:
    """Ours: notes are durable and can be searched."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            script = [
                asks(("remember", {"text": "Anna likes tea", "tags": ["drink"]})),
                asks(("recall", {"query": "drink"})),
                {"text": "end", "expect": {"instructions_contain": "- Anna likes tea (n_"}},
            ]
            session = await runtime.session("s", agent=keeper(*script, memory=Memory(scope=scope)))
            note_id, recalled = results((await session.turn("go")).messages)
            assert recalled == [
                {"note_id": note_id, "number": 1, "text": "Anna likes tea", "tags": ["drink"]}
            ]
            forgetful = keeper(
                *("", "", ""), asks(("forget", {"note_id": note_id}), ("forget", {"note_id": "n_0"})), "end",
                memory=Memory(scope=scope),
            )  # fmt: skip
            session = await runtime.session("s", agent=forgetful)
            assert results((await session.turn("forget")).messages) == [True, False]
            assert await found(session) == []

    asyncio.run(main())


def test_a_sessions_notes_follow_its_history(place: Place) -> None:
    """Ours: a fork copies the notes, a rewind restores them, and other sessions do not see them."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=keeper(remembers("one"), "", remembers("two"), ""))
            await session.turn("one")
            fork = await session.fork("f")
            await session.turn("two")
            assert await found(session) == ["two", "one"]
            assert await found(fork) == ["one"]
            await session.rewind(turns=1)
            assert await found(session) == ["one"]
            assert await found(await runtime.session("other", agent=keeper("end"))) == []

    async def again() -> None:
        async with place.runtime() as runtime:
            assert await found(await runtime.session("s", agent=keeper())) == ["one"]

    asyncio.run(main())
    asyncio.run(again())


def test_a_users_notes_are_shared_by_all_sessions_and_survive_a_rewind(place: Place) -> None:
    """Ours: the storage outlives sessions; the user may be chosen when a session is opened."""
    anna, ben = {"memory": {"scope": "user:anna"}}, {"memory": {"scope": "user:ben"}}

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = keeper("hello", remembers("likes tea"), "")
            session = await runtime.session("a1", agent=agent, options=anna)
            await session.turn("zero")
            await session.turn("one")
            await session.rewind(turns=1)
            assert await found(session) == ["likes tea"]
            assert await found(await runtime.session("b1", agent=agent, options=ben)) == []

    async def again() -> None:
        async with place.runtime() as runtime:
            told = {"text": "end", "expect": {"instructions_contain": "likes tea"}}
            await (await runtime.session("a2", agent=keeper(told), options=anna)).turn("hello")

    asyncio.run(main())
    asyncio.run(again())


@pytest.mark.slow
def test_a_user_has_the_same_memory_in_two_processes(tmp_path: Path, child: Callable[..., Any]) -> None:
    """Ours: every process on the same store uses the same shelf."""
    script = """
    import asyncio, sys
    from standfast import Agent, Runtime
    from standfast.plugins.shipped import Memory
    from standfast.providers.scripted import ScriptedModel

    file, name = sys.argv[1:]
    call = {"tool_calls": [{"name": "remember", "arguments": {"text": name}}]}

    async def main():
        agent = Agent(ScriptedModel([call, "end"]), plugins=[Memory(scope="user:anna")])
        async with Runtime(file) as runtime:
            await (await runtime.session(name, agent=agent)).turn("go")

    asyncio.run(main())
    """
    for started in [child(script, tmp_path / "h.db", name) for name in ("first", "second")]:
        started.output()

    async def main() -> None:
        async with Runtime(tmp_path / "h.db") as runtime:
            session = await runtime.session("third", agent=keeper(memory=Memory(scope="user:anna")))
            assert sorted(await found(session)) == ["first", "second"]

    asyncio.run(main())


@SCOPES
def test_a_call_that_is_executed_twice_creates_one_note(clock: FakeClock, scope: str) -> None:
    """Ours: a note's id derives from its call, whose key is the same after a crash."""
    plugin = built(Memory(scope=scope), clock)
    first, second = (RunContext(deps=None, idempotency_key=key) for key in ("t_1.1", "t_1.2"))

    async def main() -> None:
        ids = [await plugin.remember(call, "tea") for call in (first, first, second)]
        assert ids[0] == ids[1] != ids[2]
        assert len(await plugin.recall("tea")) == 2

    asyncio.run(main())


@SCOPES
def test_a_full_memory_and_a_long_note_are_refused(memory: Place, scope: str) -> None:
    """Ours: nothing is forgotten unless the model or the user removes it."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            plugin = Memory(scope=scope, max_notes=1, max_note_bytes=4)
            agent = keeper(
                remembers("ööö"), remembers(" "), remembers("öö"), remembers("more"), "end", memory=plugin
            )
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
            wrong = "INVALID_ARGUMENT"
            said = results(result.messages)
            assert [said[0], said[1], said[3]] == [wrong, wrong, wrong]
            assert "the memory is full" in str(result.messages[-2])
            assert await found(session) == ["öö"]

    asyncio.run(main())


@SCOPES
def test_the_prompt_contains_only_a_few_notes_of_one_short_line_each(clock: FakeClock, scope: str) -> None:
    """Ours: notes must not fill the context window; recall() finds the others."""
    plugin = built(Memory(scope=scope, shown=2), clock)

    async def main() -> None:
        for number, text in enumerate(["first", "second\nline", "long " * 100]):
            await plugin.remember(RunContext(deps=None, idempotency_key=f"t_1.{number}"), text)
        lines = (await plugin.prompt_contributor(None)).content.split("\n")[1:]
        assert [line[:11] for line in lines] == ["- long long", "- second li"]
        assert len(lines[0]) < 230

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "user:"},
        {"scope": "user:a b"},
        {"scope": "team"},
        {"scope": None},
        {"max_notes": 0},
        {"max_notes": True},
        {"max_note_bytes": "4k"},
        {"shown": -1},
    ],
    ids=json.dumps,
)
def test_invalid_options_are_refused_in_code_and_with_a_session(
    memory: Place, options: dict[str, Any]
) -> None:
    """Ours: options are validated when they are given."""
    with pytest.raises(InvalidArgument):
        Memory(**options)

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(StandfastError, match="memory"):
                await runtime.session("s", agent=keeper("end"), options={"memory": options})

    asyncio.run(main())


def test_a_new_note_rewrites_one_page_of_notes_and_not_all(place: Place) -> None:
    """Ours: storage must not grow quadratically with the notes."""

    async def main() -> None:
        notes = [asks(("remember", {"text": f"fact {number} " + "x" * 400})) for number in range(100)]
        async with place.runtime() as runtime:
            agent = agent_of(*(reply for note in notes for reply in (note, "ok")), plugins=[Memory()])
            session = await runtime.session("s", agent=agent)
            for _ in notes:
                await session.turn("go")
            context = await session._live.context()
            memory: Any = next(one for one in context.plugins.plugins if one.id == "memory")
            assert len(memory.state) == 100
            memory.touch()
            assert context.plugins.snapshot()[1] == ()  # every page is already stored
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(plugins=[Memory()]))
            found = await session.plugins.invoke("memory.search", {"query": "99"})
            assert found[0]["text"].startswith("fact 99 ")

    asyncio.run(main())
