"""Sessions that plugins and tools create: their initial state, their permissions, and their durability."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from host_stage import Stage, said, staged
from plugin_stand_ins import Counter, ObedientModel
from stand_ins import EchoModel, Place
from stand_ins import said as words

from standfast import Agent, Plugin, RunContext, action, hook, tool
from standfast.errors import (
    InvalidArgument,
    InvalidSessionId,
    NodeNotFound,
    NotConfigured,
    PluginFailed,
    SessionExists,
    SessionNotFound,
)
from standfast.model.capability import SessionToolAccess
from standfast.model.directive import CreateSession, SessionRequest
from standfast.model.host_requests import (
    FromCurrent,
    FromNothing,
    FromSession,
    FromSnapshot,
    SessionCreateRequest,
    SessionHandle,
    SessionSnapshot,
)
from standfast.model.limits import UsageLimits
from standfast.model.message import UserMessage
from standfast.model.plugin_options import PluginOptions
from standfast.model.plugin_state import PluginSnapshotEntry, PluginSnapshotMeta
from standfast.model.session import SessionPolicy
from standfast.plugins.session import FULL, PluginSession, SessionAuthority


class Placed(Plugin):
    """A plugin that reports its position among the sessions."""

    def __init__(self) -> None:
        self.level = 1

    @action
    async def where(self, ctx: Any) -> dict[str, Any]:
        """Return parent, depth, task and option."""
        about = self.session.subagent
        return {
            "parent": self.session.parent_session_id,
            "depth": None if about is None else about.depth,
            "task": None if about is None else about.task,
            "level": self.level,
        }


def _message(text: str) -> UserMessage:
    return UserMessage(content=text)


# Initial state


def test_a_child_without_a_source_has_no_history_and_knows_its_parent(place: Place) -> None:
    """Seed: SessionLifecycleHost.create_session creates a child of the current session (SPEC §9)."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.turn("before")
            made = await stage.host.create_session(SessionCreateRequest(session_id="child"))
            assert made == SessionHandle(session_id="child", parent_session_id="root", depth=1)
            below = await stage.host_of("child").create_session(SessionCreateRequest())
            assert (below.parent_session_id, below.depth) == ("child", 2)
            assert below.session_id not in ("root", "child")
            assert await (await stage.open("child")).messages() == []

    asyncio.run(main())


def test_a_root_session_created_by_another_session_has_no_parent(place: Place) -> None:
    """Seed: a session is created as a root or as a child."""

    async def main() -> None:
        async with staged(place) as stage:
            made = await stage.host.create_session(SessionCreateRequest(session_id="other", child=False))
            assert made == SessionHandle(session_id="other")
            assert await stage.runtime.store.children("root") == []

    asyncio.run(main())


def test_a_session_from_the_current_one_shares_its_history(place: Place) -> None:
    """Seed: a session may start from the current history, or up to a node of it."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.turn("one")
            leaf = (await stage.session.head()).leaf
            await stage.session.turn("two")
            whole = await stage.open(await stage.make("whole", start=FromCurrent()))
            half = await stage.open(await stage.make("half", start=FromCurrent(leaf)))
            assert words(await whole.messages()) == ["one", "two"]
            assert words(await half.messages()) == ["one"]
            await half.turn("instead")
            assert words(await half.messages()) == ["one", "instead"]
            assert words(await stage.session.messages()) == ["one", "two"]

    asyncio.run(main())


def test_a_session_from_another_one_shares_that_sessions_history(place: Place) -> None:
    """Seed: a session may start from another session, and is still a child of the requesting one."""

    async def main() -> None:
        async with staged(place) as stage:
            other = await stage.runtime.session("other", agent=stage.agent)
            await other.turn("elsewhere")
            made = await stage.open(await stage.make("copy", start=FromSession("other")))
            assert words(await made.messages()) == ["elsewhere"]
            assert [head.session_id for head in await stage.runtime.store.children("root")] == ["copy"]

    asyncio.run(main())


def test_a_session_from_a_snapshot_begins_with_its_messages_and_plugin_state(place: Place) -> None:
    """Seed: a session may start from a snapshot, whose messages are the seed of its first frame."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.turn("one")
            await stage.session.plugins.invoke("counter.add", 7)
            snapshot = await stage.host.snapshot_current()
            await stage.session.plugins.invoke("counter.add", 1)
            made = await stage.open(await stage.make("copy", start=FromSnapshot(snapshot)))
            assert await made.messages() == list(snapshot.messages)
            assert await made.plugins.invoke("counter.count") == 7
            done = await made.turn("two")
            assert done.output == "re: two"
            assert words(await made.messages()) == ["one", "two"]
            nodes = await made.nodes()
            assert nodes[0].parent is None

    asyncio.run(main())


def test_a_snapshot_can_be_sent_as_json_and_used_later(place: Place) -> None:
    """Ours: a snapshot is a plain value."""

    async def main() -> None:
        async with staged(place, model=ObedientModel()) as stage:
            await stage.session.turn("call paste")
            sent = msgspec.json.encode(await stage.host.snapshot_session("root"))
        async with staged(place, model=ObedientModel()) as stage:
            read = msgspec.json.decode(sent, type=SessionSnapshot)
            made = await stage.open(await stage.make("copy", start=FromSnapshot(read)))
            assert await made.plugins.invoke("album.look") == {"page": "page" * 5}
            assert await made.messages() == await stage.session.messages()

    asyncio.run(main())


def test_a_snapshot_whose_blobs_are_not_in_the_store_is_refused(memory: Place) -> None:
    """Ours: the session could not be reopened."""

    async def main() -> None:
        async with staged(memory) as stage:
            snapshot = await stage.host.snapshot_current()
            meta = PluginSnapshotMeta(plugin_id="album", plugin_version="1", revision=1)
            snapshot.state.plugins.plugins["album"] = PluginSnapshotEntry(
                meta=meta, artifacts={"a": "0" * 64}
            )
            with pytest.raises(InvalidArgument, match="needs blob"):
                await stage.make("copy", start=FromSnapshot(snapshot))
            with pytest.raises(SessionNotFound):
                await stage.host.snapshot_session("copy")

    asyncio.run(main())


@pytest.mark.parametrize("start", [FromNothing(), FromCurrent()])
def test_plugins_are_fresh_or_inherit_the_parents_state(place: Place, start: Any) -> None:
    """Seed: plugins are fresh or inherited, including their blobs."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.plugins.invoke("counter.add", 3)
            await stage.session.turn("say paste")
            fresh = await stage.open(await stage.make("fresh", start=start))
            heir = await stage.open(await stage.make("heir", start=start, plugins="inherited"))
            assert await fresh.plugins.invoke("counter.count") == 0
            assert await heir.plugins.invoke("counter.count") == 3
            await heir.plugins.invoke("counter.add", 10)
            assert await stage.session.plugins.invoke("counter.count") == 3
        async with staged(place, agents=True) as stage:
            heir = await stage.open("heir")
            assert await heir.plugins.invoke("counter.count") == 13

    asyncio.run(main())


def test_plugins_inherit_blobs_as_well(place: Place) -> None:
    """Ours: blobs that the parent has not stored yet are written with the child."""

    async def main() -> None:
        async with staged(place, model=ObedientModel()) as stage:
            await stage.session.turn('call paste:{"name":"a","size":2}')
            heir = await stage.open(await stage.make("heir", plugins="inherited"))
            assert await heir.plugins.invoke("album.look") == {"a": "aa"}

    asyncio.run(main())


# Permissions


def test_a_child_never_has_more_tools_than_its_parent(place: Place) -> None:
    """Seed: SPEC §9, a child's tool access is never wider than its parent's."""

    async def main() -> None:
        async with staged(place) as stage:
            narrow = SessionToolAccess(tools=("look",))
            await stage.make("child", tool_access=narrow)
            wide = SessionCreateRequest(
                session_id="below", tool_access=SessionToolAccess(tools=("look", "put"))
            )
            await stage.host_of("child").create_session(wide)
            await stage.host_of("child").create_session(SessionCreateRequest(session_id="all"))
            await stage.host_of("child").create_session(
                SessionCreateRequest(session_id="escaped", child=False)
            )
            for session_id in ("child", "below", "all", "escaped"):
                assert await stage.offered(session_id) == ["look"], session_id
            nothing = SessionCreateRequest(session_id="none", tool_access=SessionToolAccess(tools=("put",)))
            await stage.host_of("child").create_session(nothing)
            assert await stage.offered("none") == []
        async with staged(place, agents=True) as stage:
            for session_id in ("child", "below", "all", "escaped"):
                assert await stage.offered(session_id) == ["look"], session_id
            assert await stage.offered("none") == []
            assert {"look", "put"} <= set(await stage.offered("root"))

    asyncio.run(main())


class Maker(Plugin):
    """A plugin that requests another session in each turn, by a directive."""

    @hook
    async def before_turn(self, ctx: Any) -> Any:
        return CreateSession(request=SessionRequest(session_id="wanted"))


def test_a_session_created_by_a_directive_has_no_more_tools_than_its_parent(place: Place) -> None:
    """Ours: CreateSession cannot bypass a charter."""

    async def main() -> None:
        async with staged(place, Maker()) as stage:
            child = await stage.open(
                await stage.make("child", tool_access=SessionToolAccess(tools=("look",)))
            )
            await child.turn("hello")
            assert await stage.offered("wanted") == ["look"]

    asyncio.run(main())


def test_the_charter_of_a_child_survives_a_restart(place: Place) -> None:
    """Ours: the charter is durable: parent, depth, task, options, policy."""
    policy = SessionPolicy(instructions="Be brief.", limits=UsageLimits(max_iterations=3))
    wanted: dict[str, Any] = {
        "task": "count the stars",
        "subagent": True,
        "policy": policy,
        "plugin_options": PluginOptions(plugins={"placed": {"level": 9}}),
    }
    expected = {"parent": "root", "depth": 1, "task": "count the stars", "level": 9}

    async def main() -> None:
        async with staged(place, Placed()) as stage:
            child = await stage.open(await stage.make("child", **wanted))
            assert await child.plugins.invoke("placed.where") == expected
            first = await child.plugins.policy()
        model = EchoModel()
        async with staged(place, Placed(), model=model, agents=True) as stage:
            child = await stage.open("child")
            assert await child.plugins.invoke("placed.where") == expected
            again = await child.plugins.policy()
            assert again == first == msgspec.structs.replace(policy, model="echo:one")
            await child.turn("hello")
            assert "Be brief." in model.requests[-1].instructions
            root = await stage.session.plugins.invoke("placed.where")
            assert root == {"parent": None, "depth": None, "task": None, "level": 1}

    asyncio.run(main())


def test_a_host_program_forks_a_child_without_a_parent_and_with_the_default_authority(place: Place) -> None:
    """Bug: SPEC §8 says default authority; a fork kept the narrowed one of the child."""

    async def main() -> None:
        async with staged(place) as stage:
            narrow = SessionToolAccess(tools=("look",))
            policy = SessionPolicy(instructions="Be brief.")
            child = await stage.open(await stage.make("child", tool_access=narrow, policy=policy))
            await child.turn("one")
            everything = await stage.offered("root")
            fork = await child.fork("fork")
            assert await stage.offered("child") == ["look"]
            assert await stage.offered("fork") == everything
            assert (await fork.plugins.policy()).instructions == "Be brief.", "it runs with the same"
            assert [head.session_id for head in await stage.runtime.store.children("root")] == ["child"]
        async with staged(place, agents=True) as stage:
            assert await stage.offered("fork") == everything
            context = await stage.runtime.live("fork").current()
            assert (context.plugins.authority, context.plugins.subagent_context) == (FULL, None)

    asyncio.run(main())


def test_a_fork_at_the_leaf_copies_plugin_state_in_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: nothing used the seed's fork_for_session; forks were always built from the store."""
    forked: list[str] = []
    fork = PluginSession.fork_for_session

    def noted(self: PluginSession, session_id: str, *rest: Any) -> PluginSession:
        forked.append(session_id)
        return fork(self, session_id, *rest)

    monkeypatch.setattr(PluginSession, "fork_for_session", noted)

    async def main() -> None:
        async with staged(place, model=ObedientModel()) as stage:
            root = stage.session
            await root.turn("call bump")
            at = (await root.head()).leaf
            await root.turn("call bump")
            await root.tools.set_catalog_overlay(hidden="put")
            twin = await root.fork("twin")
            early = await root.fork("early", at=at)
            await root.turn("call bump")
            counts = [await one.plugins.invoke("counter.count") for one in (root, twin, early)]
            assert counts == [3, 2, 1]
            assert forked == ["twin"], "of an earlier point, the store knows"
            assert "put" not in await stage.offered("twin"), "the catalog's overlay comes along"
            await twin.turn("call bump")
        async with staged(place, model=ObedientModel(), agents=True) as stage:
            twin = await stage.open("twin")
            assert await twin.plugins.invoke("counter.count") == 3

    asyncio.run(main())


@pytest.mark.parametrize("child", [True, False])
def test_an_inherited_session_forks_the_plugins_with_its_authority(
    place: Place, child: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: nothing used the seed's fork_for_child_session; state was copied through the store alone."""
    forked: list[tuple[str, str | None, SessionAuthority]] = []
    fork = PluginSession.fork_for_child_session

    def noted(
        self: PluginSession,
        session_id: str,
        parent_session_id: str | None,
        authority: SessionAuthority,
        step: Any,
    ) -> PluginSession:
        forked.append((session_id, parent_session_id, authority))
        return fork(self, session_id, parent_session_id, authority, step)

    monkeypatch.setattr(PluginSession, "fork_for_child_session", noted)
    wanted: dict[str, Any] = {
        "child": child,
        "plugins": "inherited",
        "tool_access": SessionToolAccess(tools=("look", "bump", "paste", "put")),
        "task": "count",
        "subagent": True,
        "plugin_options": PluginOptions(plugins={"placed": {"level": 9}}),
    }
    depth = {"depth": 1, "task": "count"} if child else {"depth": None, "task": None}
    expected = {"parent": "root" if child else None, **depth, "level": 9}

    async def looks_right(stage: Stage, heir: Any) -> None:
        assert await heir.plugins.invoke("placed.where") == expected
        assert await heir.plugins.invoke("counter.count") == 2
        assert await heir.plugins.invoke("album.look") == {"page": "page" * 5}
        assert sorted(await stage.offered("heir")) == ["bump", "look", "paste"]

    async def main() -> None:
        async with staged(place, Placed(), model=ObedientModel()) as stage:
            root = stage.session
            await root.turn("call bump bump paste")
            await root.tools.set_catalog_overlay({"look": "searchable"}, hidden="put")
            heir = await stage.open(await stage.make("heir", **wanted))
            ((session_id, parent, authority),) = forked
            assert (session_id, parent) == ("heir", "root" if child else None)
            assert authority.plugin_options == wanted["plugin_options"]
            assert (authority.subagent is not None) is child
            made = stage.runtime.live("heir").made_at(await heir.head())
            assert made is not None, "the fork is what the session begins with"
            assert await stage.runtime.live("heir").current() is made
            await root.turn("call bump")
            await looks_right(stage, heir)
            stage.runtime.live("heir").forget()
            await looks_right(stage, heir)
            levels = {one["name"]: one.get("availability") for one in await stage.host.tool_catalog("heir")}
            assert levels["look"] != levels["bump"], "the overlay holds here, also when it is made anew"
            await stage.make("heir", **wanted)
            assert len(forked) == 1, "asked again, it is the same session"
            await heir.turn("call bump")
            await root.turn("hi")
        async with staged(place, Placed(), model=ObedientModel(), agents=True) as stage:
            heir = await stage.open("heir")
            assert await heir.plugins.invoke("counter.count") == 3
            assert await heir.plugins.invoke("placed.where") == expected
            assert sorted(await stage.offered("heir")) == ["bump", "look", "paste"]

    asyncio.run(main())


class Inherits(Plugin):
    """A plugin that creates a session during a turn, and changes its state before and after."""

    @tool(side_effect="write")
    async def beget(self, ctx: RunContext[Any]) -> str:
        """Make a session."""
        self.state = "before"
        request = SessionCreateRequest(session_id="heir", plugins="inherited")
        made = await ctx.host.create_session(request)
        self.state = "after"
        return made.session_id

    @action
    async def remembered(self, ctx: Any) -> Any:
        """Return the state."""
        return self.state


def test_inherited_state_is_that_at_the_time_of_the_request(place: Place) -> None:
    """Ours: this holds in the same process and in the next one."""

    async def main() -> None:
        async with staged(place, Inherits(), model=ObedientModel()) as stage:
            await stage.session.turn("call beget")
            heir = await stage.open("heir")
            assert await heir.plugins.invoke("inherits.remembered") == "before"
            assert await stage.session.plugins.invoke("inherits.remembered") == "after"
        async with staged(place, Inherits(), model=ObedientModel(), agents=True) as stage:
            heir = await stage.open("heir")
            assert await heir.plugins.invoke("inherits.remembered") == "before"

    asyncio.run(main())


class Unborn(Plugin):
    """A plugin that cannot be built for a child."""

    def session_ready(self, ctx: Any) -> None:
        if ctx.parent_session_id is not None:
            raise RuntimeError("not for children")


def test_a_session_whose_plugins_cannot_be_forked_is_not_created(place: Place) -> None:
    """Ours: the error names the plugin, and no session is left behind."""

    async def main() -> None:
        async with staged(place, Unborn()) as stage:
            with pytest.raises(PluginFailed, match="'unborn'"):
                await stage.make("heir", plugins="inherited")
            assert await stage.runtime.store.head("heir") is None

    asyncio.run(main())


def test_sessions_with_inherited_plugins_can_be_evicted_before_their_first_turn(memory: Place) -> None:
    """Ours: a host that creates many sessions does not keep the plugins of all of them in memory."""

    async def main() -> None:
        async with staged(memory) as stage:
            stage.runtime._open.max_cached = 2
            lives = [stage.runtime.live(await stage.make(plugins="inherited")) for _ in range(5)]
            heads = [await stage.runtime.store.head(live.session_id) for live in lives]
            made = [
                head is not None and live.made_at(head) is not None
                for live, head in zip(lives, heads, strict=True)
            ]
            assert made == [False, False, False, True, True]

    asyncio.run(main())


def test_an_inherited_session_of_another_agent_is_built_from_the_store(memory: Place) -> None:
    """Ours: plugins are forked only for the same agent; those of another are restored from the store."""

    async def main() -> None:
        other = Agent(ObedientModel(), name="other", plugins=[Counter()])
        async with staged(memory, model=ObedientModel()) as stage:
            await stage.session.turn("call bump")
            await stage.runtime.session("elsewhere", agent=other)
            heir = await stage.open(await stage.make("heir", plugins="inherited", agent="other"))
            assert await heir.plugins.invoke("counter.count") == 1
            assert [one.id for one in await heir.plugins.installed()] != [
                one.id for one in await stage.session.plugins.installed()
            ]

    asyncio.run(main())


def test_the_depth_of_sessions_is_limited(memory: Place) -> None:
    """Ours: sessions may be nested 32 levels deep."""

    async def main() -> None:
        async with staged(memory) as stage:
            at = "root"
            for _ in range(32):
                at = (await stage.host_of(at).create_session(SessionCreateRequest())).session_id
            with pytest.raises(InvalidArgument, match="32 levels below"):
                await stage.host_of(at).create_session(SessionCreateRequest())

    asyncio.run(main())


def test_a_child_may_name_its_agent_which_must_be_known(memory: Place) -> None:
    """Ours: an unknown agent is an error, and is not replaced by another one."""

    async def main() -> None:
        async with staged(memory, agents=True) as stage:
            with pytest.raises(NotConfigured, match="'unknown'"):
                await stage.make("child", agent="unknown")
            await stage.make("child", agent="worker")
            head = await stage.runtime.store.head("child")
            assert head is not None
            assert head.agent == "worker"

    asyncio.run(main())


# Idempotence


def test_the_same_request_under_the_same_id_returns_the_same_session(place: Place) -> None:
    """Ours: a caller that repeats a request, perhaps after a crash, gets the same session, its input once."""
    request = SessionCreateRequest(session_id="child", first_turn_input=_message("go"), task="x")

    async def main() -> None:
        async with staged(place) as stage:
            first = await stage.host.create_session(request)
            assert await stage.host.take_first_turn_input("child") == _message("go")
            await stage.host.start_turn("child", said("hello"))
        async with staged(place) as stage:
            assert await stage.host.create_session(request) == first
            assert await stage.host.take_first_turn_input("child") is None
            assert words(await (await stage.open("child")).messages()) == ["hello"]

    asyncio.run(main())


def test_a_different_request_under_a_known_id_is_refused(place: Place) -> None:
    """Ours: SessionExists is also raised for sessions without a host and for those of another parent."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.make("child", task="x")
            for other in ({"task": "y"}, {}, {"task": "x", "first_turn_input": _message("go")}):
                with pytest.raises(SessionExists):
                    await stage.make("child", **other)
            with pytest.raises(SessionExists):
                await stage.make("root")
            await stage.make("parent")
            with pytest.raises(SessionExists):
                await stage.host_of("parent").create_session(
                    SessionCreateRequest(session_id="child", task="x")
                )

    asyncio.run(main())


def test_concurrent_requests_for_one_session_get_the_same_session(place: Place) -> None:
    """Ours: a session is created in one transaction."""
    request = SessionCreateRequest(session_id="child", first_turn_input=_message("go"))

    async def main() -> None:
        async with staged(place) as stage:
            made = await asyncio.gather(*(stage.host.create_session(request) for _ in range(20)))
            assert len(set(made)) == 1
            taken = await asyncio.gather(*(stage.host.take_first_turn_input("child") for _ in range(20)))
            assert [one for one in taken if one is not None] == [_message("go")]

    asyncio.run(main())


def test_the_input_of_the_first_turn_waits_until_a_caller_takes_it(place: Place) -> None:
    """Seed: take_first_turn_input; nothing starts by itself, and the input survives the process."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.make("child", first_turn_input=_message("go"))
            child = await stage.open("child")
            await child.turn("something else")
            assert words(await child.messages()) == ["something else"]
        async with staged(place) as stage:
            assert await stage.host.take_first_turn_input("child") == _message("go")
            assert await stage.host.take_first_turn_input("child") is None
            assert await stage.host.take_first_turn_input("root") is None

    asyncio.run(main())


# Failures


def test_a_session_that_cannot_be_created_leaves_nothing_behind(place: Place) -> None:
    """Ours: with a wrong id, source or node, no session is created."""

    async def main() -> None:
        async with staged(place) as stage:
            await stage.session.turn("one")
            with pytest.raises(InvalidSessionId):
                await stage.make("no/slash")
            with pytest.raises(SessionNotFound):
                await stage.make("child", start=FromSession("missing"))
            with pytest.raises(NodeNotFound):
                await stage.make("child", start=FromCurrent("t_0.0"))
            with pytest.raises(InvalidArgument, match="no plugin 'unknown'"):
                await stage.make("child", plugin_options=PluginOptions(plugins={"unknown": {}}))
            assert [head.session_id for head in await stage.runtime.sessions()] == ["root"]

    asyncio.run(main())


# Visibility


async def _family(stage: Stage) -> None:
    await stage.make("a")
    await stage.make("b")
    await stage.host_of("a").create_session(SessionCreateRequest(session_id="aa"))


def _plugins_host(stage: Stage, session_id: str) -> Any:
    """Return the host that a session's plugins have."""
    return stage.runtime._open.hosts_of(session_id).action


@pytest.mark.parametrize(
    ("asker", "sees"),
    [
        ("root", ["root", "a", "b", "aa"]),
        ("a", ["a", "aa"]),
        ("b", ["b"]),
        ("aa", ["aa"]),
    ],
)
def test_a_child_session_sees_only_itself_and_its_descendants(
    memory: Place, asker: str, sees: list[str]
) -> None:
    """Ours: rule 3 of the port, other sessions do not exist for it; the host program sees all of them."""

    async def main() -> None:
        async with staged(memory) as stage:
            await _family(stage)
            for session_id in ("root", "a", "b", "aa"):
                assert (await stage.host_of(asker).snapshot_session(session_id)).head
                if session_id in sees:
                    assert (await _plugins_host(stage, asker).snapshot_session(session_id)).head
                    continue
                for name in ("snapshot_session", "tool_state", "close_session", "list_background_tasks"):
                    with pytest.raises(SessionNotFound):
                        await getattr(_plugins_host(stage, asker), name)(session_id)

    asyncio.run(main())
