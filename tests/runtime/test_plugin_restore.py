"""Plugin state: across processes and versions, on branches, in child sessions."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from plugin_stand_ins import Album, Builds, Counter, ObedientModel, call, context_of, count
from stand_ins import Place, go_on, results, said

from standfast import Agent, Plugin, Runtime, Session, action, tool
from standfast.errors import PluginStateLost, SessionBusy
from standfast.model.capability import SessionToolAccess
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import PluginSessionSnapshot, PluginSnapshotMeta, decode_state
from standfast.plugins.contexts import SubagentContext, ToolCatalogContext
from standfast.plugins.session import PluginSession, SessionAuthority
from standfast.plugins.snapshot import SnapshotReader
from standfast.tools.registry import ToolCatalog

PROGRAM = (Path(__file__).parent / "crash_scenarios" / "plugin_program.py").read_text()

Start = Callable[..., Any]
Run = Callable[..., Any]


@pytest.fixture
def run(child: Start, tmp_path: Path) -> Run:
    """Run steps on one session, in another process with these plugins, and return its report."""

    def start(plugins: Sequence[str], *steps: Sequence[Any]) -> Any:
        job = json.dumps({"plugins": plugins, "steps": steps})
        return child(PROGRAM, Path(__file__).parent, tmp_path / "standfast.db", job)

    def run(plugins: Sequence[str], *steps: Sequence[Any]) -> Any:
        return json.loads(start(plugins, *steps).output())["report"]

    run.start = start  # type: ignore[attr-defined]
    return run


COUNT = ("invoke", "counter.count")
BUMP = ("turn", "call bump")


def agent_with(*plugins: object, **options: Any) -> Agent[Any, Any]:
    return Agent(ObedientModel(), name="clerk", plugins=plugins, **options)


# Processes


@pytest.mark.slow
def test_plugin_state_is_restored_in_the_next_process(run: Run) -> None:
    """Ours: plugins are restored with state, without state, and with blobs."""
    plugins = ("counter", "stateless", "album")
    assert run(plugins, BUMP, BUMP, ("turn", "call paste"), COUNT) == ["ok", "ok", "ok", 2]
    assert run(plugins, COUNT, ("invoke", "album.look"), BUMP, COUNT) == [2, {"page": "page" * 5}, "ok", 3]
    assert run(plugins, COUNT, ("invoke", "album.look")) == [3, {"page": "page" * 5}]


@pytest.mark.slow
def test_a_newer_version_is_refused_and_loses_nothing(run: Run) -> None:
    """Ours: the error names both versions, and the older version still works."""
    assert run(["counter"], BUMP) == ["ok"]
    before = run(["counter"], ("said",))
    refused, asked, again = run(["newer"], BUMP, COUNT, BUMP)
    assert refused["raised"] == asked["raised"] == again["raised"] == "PluginStateLost"
    assert "plugin 'counter' failed in restore" in refused["message"]
    assert "version 1" in refused["message"]
    assert "version 2" in refused["message"]
    assert "migrate" in refused["hint"]
    assert run(["counter"], ("said",), COUNT, BUMP, COUNT) == [*before, 1, "ok", 2]


@pytest.mark.slow
def test_a_newer_version_that_migrates_continues_and_the_older_one_is_then_refused(run: Run) -> None:
    """Ours: migrated state is written in the new version with the next turn."""
    assert run(["counter"], BUMP, BUMP) == ["ok", "ok"]
    assert run(["migrating"], COUNT, BUMP, COUNT) == [20, "ok", 21]
    assert run(["migrating"], COUNT) == [21]
    assert run(["counter"], COUNT)[0]["raised"] == "PluginStateLost"
    assert run(["newer"], COUNT) == [21]


@pytest.mark.slow
def test_state_that_a_newer_version_only_reads_stays_in_the_older_format(run: Run) -> None:
    """Ours: reading changes nothing, so the older version can be used again."""
    assert run(["counter"], BUMP) == ["ok"]
    assert run(["migrating"], COUNT) == [10]
    assert run(["counter"], COUNT) == [1]


@pytest.mark.slow
def test_plugin_state_is_kept_until_the_plugin_is_installed_again(run: Run) -> None:
    """Ours: the state is kept while other plugins take several turns."""
    assert run(["counter", "album"], BUMP, ("turn", "call paste")) == ["ok", "ok"]
    missing = run(["late"], ("turn", "hello"), ("turn", "call note"), COUNT)
    assert missing[:2] == ["ok", "ok"]
    assert missing[2]["raised"] == "UnknownAction"
    back = run(["album", "counter", "late"], COUNT, ("invoke", "album.look"), ("invoke", "late.given"))
    assert back == [1, {"page": "page" * 5}, ["noted", "1"]]


@pytest.mark.slow
def test_a_plugin_added_later_is_restored_without_state(run: Run) -> None:
    """Ours: a plugin without an entry in the snapshot is restored with the state None."""
    assert run(["counter"], BUMP) == ["ok"]
    assert run(["counter", "late"], ("invoke", "late.given"), COUNT, BUMP) == [[None, "1"], 1, "ok"]
    assert run(["counter", "late"], ("turn", "call note")) == ["ok"]
    assert run(["counter", "late"], ("invoke", "late.given"), COUNT) == [["noted", "1"], 2]


@pytest.mark.slow
def test_plugin_state_changed_by_a_call_survives_a_kill_during_the_turn(run: Run) -> None:
    """Ours: SPEC §7, the state is journaled with the result that it comes from."""
    start: Start = run.start  # type: ignore[attr-defined]
    assert run(["counter", "album"], BUMP) == ["ok"]
    killed = start(["counter", "album", "dying"], ("turn", "call bump paste"))
    assert (killed.process.wait(30), killed.process.stdout.read()) == (-signal.SIGKILL, "")
    look = ("invoke", "album.look")
    assert run(["counter", "album"], ("resume",), COUNT, look) == ["ok", 2, {"page": "page" * 5}]
    assert run(["counter", "album"], COUNT, look) == [2, {"page": "page" * 5}]


@pytest.mark.slow
def test_state_changed_during_a_turn_is_kept_for_a_plugin_that_is_not_loaded(run: Run) -> None:
    """Bug: the journaled state of a plugin that was not loaded again was dropped at the end of the turn."""
    start: Start = run.start  # type: ignore[attr-defined]
    assert run(["counter", "album"], BUMP) == ["ok"]
    killed = start(["counter", "album", "dying"], ("turn", "call bump paste"))
    assert killed.process.wait(30) == -signal.SIGKILL
    assert run(["stateless"], ("resume",), ("turn", "hello")) == ["ok", "ok"]
    assert run(["counter", "album"], COUNT, ("invoke", "album.look")) == [2, {"page": "page" * 5}]


@pytest.mark.slow
def test_the_state_of_a_hook_is_not_written_before_its_outcome(run: Run) -> None:
    """Bug: the state of a running hook was stored with earlier inputs, and counted again."""
    start: Start = run.start  # type: ignore[attr-defined]
    assert start(["lingering"], ("turn", "hello")).process.wait(30) == -signal.SIGKILL
    counts = ("invoke", "patient.counts")
    assert run(["patient"], ("resume",), counts) == ["ok", {"before_turn": 1, "prompt": 1}]


# Runtimes, over both stores


def test_plugin_state_is_restored_in_the_next_runtime(place: Place) -> None:
    """Ours: all stores keep the state in the same way."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            assert results((await session.turn("call bump paste")).messages) == [1, "page"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            assert await count(session) == 1
            assert await session.plugins.invoke("album.look") == {"page": "page" * 5}

    asyncio.run(main())


def test_sessions_of_one_agent_share_no_state(place: Place) -> None:
    """Ours: rule 1 of plugins, the object that is passed to an agent is a template."""

    async def main() -> None:
        pattern = Counter()
        async with place.runtime() as runtime:
            agent = agent_with(pattern)
            one, other = await runtime.session("a", agent=agent), await runtime.session("b", agent=agent)
            await call(one, "bump")
            await call(one, "bump")
            await call(other, "bump")
            assert (await count(one), await count(other), pattern.state) == (2, 1, None)

    asyncio.run(main())


def test_state_changed_by_an_action_is_durable_when_the_action_returns(place: Place) -> None:
    """Ours: between turns nothing else would store the state."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            assert await session.plugins.invoke("counter.add", 5) == 5
            state = await runtime.store.state((await session.head()).state or "")
            assert decode_state(state or b"").plugins.plugins["counter"].meta.state == 5
        async with place.runtime() as runtime:
            assert await count(await runtime.session("s", agent=agent_with(Counter()))) == 5

    asyncio.run(main())


def test_concurrent_actions_on_a_session_that_is_not_open_yet_lose_nothing(place: Place) -> None:
    """Bug: each action opened its own copy of the session, and only the last one's state was kept."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            await asyncio.gather(*(session.plugins.invoke("counter.add", 1) for _ in range(5)))
            assert await count(session) == 5
        async with place.runtime() as runtime:
            assert await count(await runtime.session("s", agent=agent_with(Counter()))) == 5

    asyncio.run(main())


def test_an_action_sees_the_current_state_of_a_session_that_another_runtime_changed(tmp_path: Path) -> None:
    """Bug: an action used this process's outdated state, and overwrote that of the other process."""

    async def main() -> None:
        database = tmp_path / "standfast.db"
        async with Runtime(database) as here, Runtime(database) as there:
            mine = await here.session("s", agent=agent_with(Counter()))
            theirs = await there.session("s", agent=agent_with(Counter()))
            await call(mine, "bump")
            await call(theirs, "bump")
            assert await count(mine) == 2
            assert await theirs.plugins.invoke("counter.add", 10) == 12
            assert await mine.plugins.invoke("counter.add", 100) == 112
            await call(theirs, "bump")
            assert await count(mine) == 113

    asyncio.run(main())


def test_nothing_is_written_for_plugins_without_state(place: Place) -> None:
    """Ours: plugins without a state add no cost to a turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Builds([])))
            await session.turn("hello")
            assert (await session.head()).state is None
            await call(session, "bump")
            first = (await session.head()).state
            await session.turn("hello")
            assert first is not None
            assert (await session.head()).state == first

    asyncio.run(main())


def test_a_reopened_session_does_not_write_restored_state(place: Place) -> None:
    """Ours: only changed state is written."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            await call(session, "bump", "paste")
            written = (await session.head()).state
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            await session.turn("hello")
            assert (await session.head()).state == written

    asyncio.run(main())


def test_state_that_cannot_be_stored_ends_the_turn_and_the_previous_state_is_kept(place: Place) -> None:
    """Ours: SPEC §8, guards fail closed, and the session stays usable."""

    class Broken(Counter):
        id = "counter"

        @tool(side_effect="write")
        async def spoil(self) -> str:
            """Store a value that is not JSON."""
            self.state = {1, 2}
            return "spoilt"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Broken()))
            await call(session, "bump")
            stopped = await session.turn("call spoil").settled()
            assert stopped.status == "stopped"
            assert stopped.error is not None
            assert stopped.error.code == "PLUGIN_ERROR"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            assert await count(session) == 1
            assert results((await session.turn("call bump")).messages) == [2]

    asyncio.run(main())


def test_refusing_a_plugin_version_leaves_a_parked_turn_unchanged(place: Place) -> None:
    """Ours: nothing is lost, and the right version resumes the turn."""

    class Asking(Counter):
        id = "counter"

        @tool(approval="manual")
        async def refund(self) -> str:
            """Needs a person."""
            self.state = self.number + 100
            return "paid"

    class Newer(Asking):
        id = "counter"
        version = "2"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Asking()))
            await call(session, "bump")
            assert (await session.turn("call refund").settled()).status == "waiting"
        async with place.runtime() as runtime:
            with pytest.raises(PluginStateLost, match="version 1"):
                await runtime.session("s", agent=agent_with(Newer()))
            (approval,) = await runtime.approvals(session="s", pending=True)
            await runtime.approve(approval.approval_id)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Asking()))
            assert results((await go_on(session)).messages) == ["paid"]
            assert await count(session) == 101

    asyncio.run(main())


def test_blobs_of_a_waiting_turn_are_not_pruned(place: Place) -> None:
    """Ours: only the journal names these blobs until the turn ends."""

    @tool(approval="manual")
    async def refund() -> str:
        """Needs a person."""
        return "paid"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Album(), tools=[refund]))
            assert (await session.turn("call paste refund").settled()).status == "waiting"
        async with place.runtime() as runtime:
            await runtime.prune(frames=True, branches=True, older_than_s=0)
            session = await runtime.session("s", agent=agent_with(Album(), tools=[refund]))
            (approval,) = await session.approvals(pending=True)
            await session.approve(approval.approval_id)
            await runtime.prune(frames=True, branches=True)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Album(), tools=[refund]))
            assert await session.plugins.invoke("album.look") == {"page": "page" * 5}

    asyncio.run(main())


def test_the_error_about_a_plugin_that_raises_in_restore_names_it_and_nothing_is_lost(place: Place) -> None:
    """Ours: SPEC §8, a session is not opened partially."""

    class Forgetful(Counter):
        id = "counter"

        def restore(self, meta: PluginSnapshotMeta, reader: SnapshotReader) -> None:
            if meta.state is not None:
                raise KeyError("gone")

    async def main() -> None:
        async with place.runtime() as runtime:
            await call(await runtime.session("s", agent=agent_with(Counter())), "bump")
        async with place.runtime() as runtime:
            with pytest.raises(PluginStateLost, match=r"'counter' failed in restore: KeyError") as caught:
                await runtime.session("s", agent=agent_with(Forgetful()))
            assert "which is unchanged" in (caught.value.hint or "")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            assert await count(session) == 1
            assert said(await session.messages()) == ["call bump"]

    asyncio.run(main())


# Branches


def test_a_fork_keeps_the_state_and_the_branches_then_diverge(place: Place) -> None:
    """Ours: a fork copies the state, in the same process and in the next."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            await call(session, "bump", "paste")
            fork = await session.fork("other")
            assert await count(fork) == 1
            await call(fork, "bump")
            await call(fork, "bump")
            await call(session, "bump")
            assert (await count(session), await count(fork)) == (2, 3)
        async with place.runtime() as runtime:
            for name, number in (("s", 2), ("other", 3)):
                session = await runtime.session(name, agent=agent_with(Counter(), Album()))
                assert await count(session) == number
                assert await session.plugins.invoke("album.look") == {"page": "page" * 5}

    asyncio.run(main())


async def three_bumps(runtime: Runtime) -> tuple[Session[Any], list[str]]:
    """Return a session that has counted to three, with the leaf after each turn."""
    session = await runtime.session("s", agent=agent_with(Counter()))
    leaves = []
    for _ in range(3):
        await call(session, "bump")
        leaves.append((await session.head()).leaf or "")
    return session, leaves


def test_a_fork_at_an_earlier_node_has_the_state_of_that_node(place: Place) -> None:
    """Ours: a node in the middle of a turn has the state from before that turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session, leaves = await three_bumps(runtime)
            middle = (await session.nodes())[5].id
            for name, at, number in (("a", leaves[0], 1), ("b", leaves[1], 2), ("c", middle, 1)):
                fork = await session.fork(name, at=at)
                assert await count(fork) == number
                assert results((await fork.turn("call bump")).messages) == [number + 1]
            assert await count(session) == 3
        async with place.runtime() as runtime:
            assert [
                await count(await runtime.session(name, agent=agent_with(Counter()))) for name in "abcs"
            ] == [
                2,
                3,
                2,
                3,
            ]

    asyncio.run(main())


def test_rewinding_moves_the_state_back_and_forth(place: Place) -> None:
    """Ours: a rewind restores state at once, for turns and for actions."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session, leaves = await three_bumps(runtime)
            await session.rewind(leaves[0])
            assert await count(session) == 1
            assert results((await session.turn("call bump")).messages) == [2]
            await session.rewind(leaves[2])
            assert await count(session) == 3
            await session.rewind(leaves[0])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            assert await count(session) == 1
            await session.rewind(leaves[2])
            assert await count(session) == 3

    asyncio.run(main())


def test_an_action_after_a_rewind_does_not_restore_the_abandoned_branch(place: Place) -> None:
    """Bug: a command after the rewind wrote the state of the abandoned branch to the restored node."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session, leaves = await three_bumps(runtime)
            await session.rewind(leaves[0])
            assert await session.plugins.invoke("counter.add", 10) == 11
            await session.rewind(leaves[2])
            assert await count(session) == 3
            await session.rewind(leaves[0])
            assert await count(session) == 11

    asyncio.run(main())


def test_tool_settings_of_an_abandoned_branch_are_not_carried_over_a_rewind(place: Place) -> None:
    """Bug: the tool settings of the abandoned branch were changed instead of the restored ones."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session, leaves = await three_bumps(runtime)
            await session.tools.set_availability("bump", "searchable")
            await session.rewind(leaves[0])
            assert [one["availability"] for one in await session.tools.catalog()] == ["showcased"]
            await session.rewind(leaves[2])
            assert [one["availability"] for one in await session.tools.catalog()] == ["searchable"]

    asyncio.run(main())


def test_plugin_state_and_tool_settings_cannot_be_changed_while_a_turn_waits(place: Place) -> None:
    """Ours: the waiting turn would overwrite the change."""

    @tool(approval="manual")
    async def refund() -> str:
        """Needs a person."""
        return "paid"

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), tools=[refund]))
            assert (await session.turn("call bump refund").settled()).status == "waiting"
            with pytest.raises(SessionBusy):
                await session.plugins.invoke("counter.add", 1)
            with pytest.raises(SessionBusy):
                await session.tools.set_availability("bump", "off")
            assert await count(session) == 1

    asyncio.run(main())


# Children


class Where(Plugin):
    """A plugin that reports the session it works for."""

    def __init__(self) -> None:
        self.mood = "plain"

    @action
    async def here(self, ctx: Any) -> list[Any]:
        """Return session, parent, task and options."""
        task = None if self.session.subagent is None else self.session.subagent.task
        return [self.session.session_id, self.session.parent_session_id, task, self.mood]


def names(catalog: ToolCatalog) -> list[str]:
    return list(catalog.names)


async def catalog_of(plugins: Any) -> list[str]:
    """Return the tools that a child's model would see."""
    return names(
        plugins.resolve_tool_catalog(
            ToolCatalogContext(
                session_id=plugins.session_id,
                tools=plugins.tool_registry.manifests(),
                tool_access=plugins.tool_access,
                extensions=plugins.extensions,
            )
        )
    )


def test_the_runtime_checks_whether_the_stored_snapshot_is_current(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: nothing used the seed's snapshot_is_current."""
    answers: list[bool] = []
    is_current = PluginSession.snapshot_is_current

    def noted(self: PluginSession, previous: PluginSessionSnapshot | None) -> bool:
        answers.append(is_current(self, previous))
        return answers[-1]

    monkeypatch.setattr(PluginSession, "snapshot_is_current", noted)

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter()))
            await session.turn("nothing to remember")
            assert answers
            assert all(answers)
            await call(session, "bump")
            assert not all(answers)
            answers.clear()
            await session.turn("nothing new")
            assert answers
            assert all(answers)

    asyncio.run(main())


def authority(*tools: str, hidden: tuple[str, ...] = ()) -> SessionAuthority:
    return SessionAuthority(
        tool_access=SessionToolAccess(tools=tools, hidden_tools=hidden),
        subagent=SubagentContext(parent_session_id="s", task="dig"),
        plugin_options=PluginOptions.typed("where", {"mood": "busy"}),
    )


def test_a_child_gets_its_authority_and_its_parents_state(memory: Place) -> None:
    """Seed: fork_for_child_session(parent + authority{tool_access, subagent, plugin_options})."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Where(), Album()))
            await call(session, "bump", "paste")
            parent = (await context_of(session)).plugins
            child = parent.fork_for_child_session("kid", "s", authority("bump", "paste"))
            assert await child.invoke_plugin_action("counter.count") == 1
            assert await child.invoke_plugin_action("where.here") == ["kid", "s", "dig", "busy"]
            assert await child.invoke_plugin_action("counter.add", 5) == 6
            assert await count(session) == 1
            assert child.subagent_context == SubagentContext(parent_session_id="s", task="dig")
            assert await parent.invoke_plugin_action("where.here") == ["s", None, None, "plain"]

    asyncio.run(main())


def test_a_child_shares_no_state_with_its_parent(memory: Place) -> None:
    """Bug: parent and child shared one state object, so that both changed one list."""

    class Lists(Plugin):
        @action
        async def add(self, ctx: Any, args: int) -> list[int]:
            """Add one more item."""
            self.state = self.state or []
            self.state.append(args)
            self.touch()
            return list(self.state)

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Lists()))
            parent = (await context_of(session)).plugins
            await parent.invoke_plugin_action("lists.add", 1)
            child = parent.fork_for_child_session("kid", "s", authority())
            assert await child.invoke_plugin_action("lists.add", 2) == [1, 2]
            assert await parent.invoke_plugin_action("lists.add", 3) == [1, 3]

    asyncio.run(main())


def test_a_child_gets_blobs_that_its_parent_stored_long_ago(memory: Place) -> None:
    """Bug: a fork got only blobs that were not stored yet, and the plugin could not be restored."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Album()))
            await call(session, "paste")
            await session.turn("hello")
            parent = (await context_of(session)).plugins
            for fork in (
                parent.fork_for_session("twin"),
                parent.fork_for_child_session("kid", "s", authority()),
            ):
                assert await fork.invoke_plugin_action("album.look") == {"page": "page" * 5}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("parents", "wanted", "found"),
    [
        (SessionToolAccess(), authority("bump"), ["bump"]),
        (SessionToolAccess(tools=("bump",)), authority("bump", "paste"), ["bump"]),
        (SessionToolAccess(tools=("bump",)), authority("paste"), []),
        (SessionToolAccess(tools=("bump",)), authority(), ["bump"]),
        (SessionToolAccess(hidden_tools=("paste",)), authority("bump", "paste"), ["bump"]),
        (SessionToolAccess(hidden_tools=("paste",)), authority(hidden=("bump",)), []),
    ],
)
def test_a_child_has_no_more_tools_than_its_parent_allows(
    memory: Place, parents: SessionToolAccess, wanted: SessionAuthority, found: list[str]
) -> None:
    """Ours: a grandchild has no more permissions than the child."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            root = (await context_of(session)).plugins
            parent = root.fork_for_child_session("p", "s", SessionAuthority(parents))
            child = parent.fork_for_child_session("c", "p", wanted)
            assert await catalog_of(child) == found
            assert await catalog_of(child.fork_for_child_session("g", "c", SessionAuthority())) == found

    asyncio.run(main())


def test_a_tool_that_a_parent_turned_off_is_off_for_its_child(memory: Place) -> None:
    """Ours: a child starts with its parent's tool settings."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album()))
            await session.tools.set_availability("paste", "off")
            parent = (await context_of(session)).plugins
            assert await catalog_of(parent.fork_for_child_session("kid", "s", authority())) == ["bump"]
            assert await catalog_of(parent.fork_for_session("twin")) == ["bump"]

    asyncio.run(main())


def test_a_fork_for_a_session_has_no_parent_and_the_default_authority(memory: Place) -> None:
    """Seed: fork_for_session has no parent and the default authority."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_with(Counter(), Album(), Where()))
            parent = (await context_of(session)).plugins
            child = parent.fork_for_child_session("kid", "s", authority("bump"))
            twin = child.fork_for_session("twin")
            assert await catalog_of(twin) == ["bump", "paste"]
            assert await twin.invoke_plugin_action("where.here") == ["twin", None, None, "plain"]

    asyncio.run(main())
