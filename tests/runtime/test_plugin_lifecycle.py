"""The lifecycle hooks of plugins and protocols, and the state of the store when each is called."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from plugin_stand_ins import ObedientModel, call, context_of
from stand_ins import Place, go_on, said, until

from standfast import Agent, Plugin, Runtime, Session, action, hook, tool
from standfast.errors import PluginFailed, ProtocolError
from standfast.model.canonical import Json
from standfast.model.host_requests import Appended, AppendSessionNodesRequest
from standfast.model.limits import Usage
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, FrameSwitched, Stopped
from standfast.model.plugin_state import ProtocolTurnOptions, SessionState
from standfast.model.session import FrameOpened, Payload, PluginNode, TurnState
from standfast.model.task import TaskState
from standfast.plugins.contexts import SessionRestored, SwitchAgentFrame, TurnFinalized, TurnPersisted
from standfast.plugins.protocol import (
    ProtocolBeforeLlmCallContext,
    ProtocolRuntimeContext,
    ProtocolSessionContext,
    ProtocolSessionMaterialization,
    ProtocolSessionPlugin,
    read_turn_options,
)
from standfast.plugins.registrar import PluginRegistrar
from standfast.ports.model_provider import ModelRequest
from standfast.protocols.standard import StandardDriver

Told = tuple[str, Any, int, str | None]
"""What was told, the event, and the depth and the leaf that the store had then."""


class Diary(Plugin):
    """A plugin that logs its lifecycle calls, with the state of the store, to a list of the test."""

    loop = "runtime"

    def __init__(self, told: list[Told], runtimes: list[Runtime]) -> None:
        self._told = told
        self._runtimes = runtimes

    def __deepcopy__(self, memo: Any) -> Diary:
        return Diary(self._told, self._runtimes)

    async def _note(self, name: str, event: Any) -> None:
        head = await self._runtimes[-1].store.head(event.session_id)
        assert head is not None
        self._told.append((name, event, head.depth, head.leaf))

    @hook
    async def turn_finalized(self, event: TurnFinalized) -> None:
        await self._note("finalized", event)

    @hook
    async def turn_persisted(self, event: TurnPersisted) -> None:
        await self._note("persisted", event)

    @hook
    async def session_restored(self, event: SessionRestored) -> None:
        await self._note("restored", event)


@tool(approval="manual")
async def refund() -> str:
    """Needs a person."""
    return "paid"


class Watched:
    """Opens runtimes whose sessions have a diary."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.told: list[Told] = []
        self.runtimes: list[Runtime] = []

    def runtime(self) -> Runtime:
        self.runtimes.append(self.place.runtime())
        return self.runtimes[-1]

    def agent(self, *plugins: object) -> Agent[Any, Any]:
        diary = Diary(self.told, self.runtimes)
        return Agent(ObedientModel(), name="clerk", tools=[refund], plugins=[diary, *plugins])

    def names(self) -> list[str]:
        return [name for name, *_ in self.told]


# Turns


def test_plugins_are_notified_of_a_turn_before_its_commit_and_after_it(place: Place) -> None:
    """Seed: turn_finalized comes before the commit, turn_persisted after it, checked against the store."""

    async def main() -> None:
        it = Watched(place)
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            first = await session.turn("hello")
            await session.turn("hello")
            leaf = (await session.head()).leaf
        assert it.names() == ["finalized", "persisted"] * 2
        assert [depth for *_, depth, _ in it.told] == [0, 2, 2, 4]
        finalized, persisted = it.told[0][1], it.told[1][1]
        assert (finalized.turn_id, persisted.turn_id) == (first.turn_id, first.turn_id)
        assert isinstance(persisted.outcome, Finished)
        assert it.told[1][3] == persisted.leaf
        assert it.told[3][1].leaf == leaf

    asyncio.run(main())


def test_plugins_are_notified_of_a_stopped_turn_but_not_of_a_waiting_one(place: Place) -> None:
    """Ours: a waiting turn has not ended."""

    async def main() -> None:
        it = Watched(place)
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            assert (await session.turn("call refund").settled()).status == "waiting"
            assert it.names() == []
            await session.cancel()
            await until(lambda: len(it.told) == 2)
        assert it.names() == ["finalized", "persisted"]
        assert all(isinstance(event.outcome, Stopped) for _, event, *_ in it.told)

    asyncio.run(main())


def test_state_that_a_plugin_changes_at_the_end_is_written_with_the_commit(place: Place) -> None:
    """Ours: state that changes before the commit is written with it."""

    class Remembers(Plugin):
        @hook
        async def turn_finalized(self, event: TurnFinalized) -> None:
            self.state = event.turn_id

        @action
        async def last(self, ctx: Any) -> Json:
            """Return the last turn."""
            return self.state

    async def main() -> None:
        it = Watched(place)
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent(Remembers()))
            done = await session.turn("hello")
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent(Remembers()))
            assert await session.plugins.invoke("remembers.last") == done.turn_id

    asyncio.run(main())


def test_plugins_are_notified_of_a_turn_whose_session_is_evicted_meanwhile(memory: Place) -> None:
    """Bug: with more than 64 sessions in use, the plugins of a running turn were dropped and not called."""
    entered, go = asyncio.Event(), asyncio.Event()

    @tool(loop="runtime")
    async def hold() -> str:
        """Wait."""
        entered.set()
        await go.wait()
        return "held"

    class Marks(Plugin):
        @hook
        async def after_tool_call(self, ctx: Any) -> None:
            self.state = "marked"

        @action
        async def mark(self, ctx: Any) -> Json:
            """Return the state."""
            return self.state

    async def main() -> None:
        it = Watched(memory)
        async with it.runtime() as runtime:
            agent: Agent[Any, Any] = Agent(
                ObedientModel(), tools=[hold], plugins=[Diary(it.told, it.runtimes), Marks()]
            )
            session = await runtime.session("s", agent=agent)
            await session.turn("hello")
            turn = session.turn("call hold")
            turn.start()
            await entered.wait()
            for number in range(300):
                await (await runtime.session(f"other{number}", agent=agent)).turn("hello")
            assert "s" not in runtime._open.cached
            it.told.clear()
            await session.tools.set_availability("hold", "off")
            go.set()
            await turn
            assert it.names() == ["finalized", "persisted"]
            assert await session.plugins.invoke("marks.mark") == "marked"
            assert [one["name"] for one in await session.tools.catalog()] == []

    asyncio.run(main())


# Sessions


def test_plugins_are_notified_of_a_reopened_session(place: Place) -> None:
    """Seed: session_restored is not called for a new session."""

    async def main() -> None:
        it = Watched(place)
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            await session.turn("hello")
            leaf = (await session.head()).leaf
            assert "restored" not in it.names()
        it.told.clear()
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            await session.turn("hello")
            await session.turn("hello")
        assert it.names() == ["restored", "finalized", "persisted", "finalized", "persisted"]
        event = it.told[0][1]
        assert (event, it.told[0][3]) == (SessionRestored(session_id="s", leaf=leaf), leaf)

    asyncio.run(main())


def test_plugins_of_a_turn_resumed_elsewhere_are_notified_that_the_session_is_restored(place: Place) -> None:
    """Ours: the plugins are restored from the journal."""

    async def main() -> None:
        it = Watched(place)
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            await session.turn("hello")
            await session.turn("call refund").settled()
        it.told.clear()
        async with it.runtime() as runtime:
            session = await runtime.session("s", agent=it.agent())
            assert (await go_on(session)).status == "waiting"
            assert set(it.names()) == {"restored"}

    asyncio.run(main())


# The protocol


class Sets(ProtocolSessionPlugin):
    """A protocol session that writes options of one version but reads another."""

    def __init__(self, reads: int, writes: int | None) -> None:
        self.turn_options_version = reads
        self.writes = writes

    def configure_runtime_on_materialize(
        self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
    ) -> None:
        if self.writes is not None:
            options = ProtocolTurnOptions(schema_version=self.writes, payload=self.writes)
            ctx.set_protocol_turn_options_all_frames(options)


def test_the_runtime_checks_the_version_of_a_protocols_options(place: Place) -> None:
    """Bug: checking the version was left to each protocol, and one that did not check accepted any."""

    async def main() -> None:
        async with place.runtime() as runtime:
            with pytest.raises(ProtocolError, match="have version 2, this protocol reads 1"):
                await runtime.session("other", agent=speaking(Sets(1, 2)))
            await (await runtime.session("s", agent=speaking(Sets(1, 1)))).turn("hello")
        async with place.runtime() as runtime:
            with pytest.raises(ProtocolError, match="have version 1, this protocol reads 2"):
                await runtime.session("s", agent=speaking(Sets(2, None)))
            session = await runtime.session("s", agent=speaking(Sets(2, 2)))
            assert (await session.turn("hello")).output == "ok", "a protocol may set its options anew"
        async with place.runtime() as runtime:
            await runtime.session("s", agent=speaking(Sets(2, None)))

    asyncio.run(main())


class Chronicle(ProtocolSessionPlugin):
    """A protocol session that logs its calls."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    async def initialize_session(self, ctx: ProtocolSessionContext) -> None:
        self.heard.append(("initialize", ctx.session_id))

    async def restore_session(self, ctx: ProtocolSessionContext, state: SessionState) -> None:
        counted = state.plugins.plugins.get("counts")
        self.heard.append(("restore", None if counted is None else counted.meta.state))

    async def append_session_nodes(self, ctx: ProtocolSessionContext, nodes: Sequence[Payload]) -> None:
        self.heard.append(("append", [type(one).__name__ for one in nodes]))

    def configure_runtime_on_materialize(
        self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
    ) -> None:
        options = materialization.plugin_options.plugins
        self.heard.append(("configure", options, materialization.is_root_session))


class Switching(Chronicle):
    """A protocol session that switches the frame on request."""

    async def before_llm_call(
        self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest
    ) -> SwitchAgentFrame | None:
        last = ctx.messages[-1]
        if isinstance(last, UserMessage) and last.content == "switch":
            self.heard.append(("asked", request.instructions, len(request.messages)))
            return SwitchAgentFrame("f-2", "the task")
        return None


class Uses(Chronicle):
    """A protocol session that uses every service before a model call."""

    async def before_llm_call(self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest) -> None:
        self.heard.append((ctx.latest_prompt_usage, ctx.state.usage.calls, ctx.state.frame_id))
        assert ctx.state.policy.instructions == "Be kind."
        assert [*ctx.state.history, *ctx.state.turn_messages] == list(ctx.messages)
        assert (await ctx.sessions.snapshot_current()).head.session_id == ctx.session_id
        assert await ctx.sessions.tool_catalog(ctx.session_id) == []
        done = await ctx.direct_llm_completion(ModelRequest(messages=[UserMessage(content="x")]), "rewrite")
        assert (done.response.text, done.usage.calls) == ("ok", 1)
        nodes = AppendSessionNodesRequest(nodes=(UserMessage(content="noted"),))
        assert isinstance(await ctx.session_graph.append_session_nodes(ctx.session_id, nodes), Appended)
        scope = ctx.process_scope()

        async def index() -> str:
            return "indexed"

        async def wait() -> None:
            await asyncio.Event().wait()

        first = await scope.spawn("index", index)
        held = await scope.spawn("wait", wait)
        assert (await scope.spawn("wait", wait)).created_at == held.created_at, "it runs already"
        assert first.id.startswith(ctx.turn_id)
        assert [one.id for one in await scope.tasks()] == [first.id, held.id]
        assert (await scope.cancel("wait")).state is TaskState.CANCELLED
        assert (await ctx.processes.monitor_snapshot(ctx.session_id)).monitors == ()
        assert not hasattr(ctx.processes, "start_turn"), "no more than its services"


def test_a_protocol_has_the_services_of_the_seed_before_a_model_call(place: Place) -> None:
    """Bug: ProtocolBeforeLlmCallContext had only messages, a token count and a way to complete a text."""

    async def main() -> None:
        heard: list[Any] = []
        agent = speaking(Uses(heard), instructions="Be kind.")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("hello")).output == "ok"
            await session.turn("again")
            usage = {entry.source: entry.usage.calls for entry in await session.usage()}
            assert usage == {"turn": 2, "rewrite": 2}
        told = [one for one in heard if len(one) == 3 and one[0] not in ("configure",)]
        assert told == [(None, 0, "initial"), (Usage(), 0, "initial")]

    asyncio.run(main())


class Ours(Plugin):
    """A protocol that acts like the standard one, with a session plugin of the test."""

    def __init__(self, session: ProtocolSessionPlugin) -> None:
        self._session = session

    def __deepcopy__(self, memo: Any) -> Ours:
        return Ours(self._session)

    def configure(self, options: Json) -> None:
        """Do nothing: the session plugin reads the options."""

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.protocol.session(self._session)
        registrar.protocol.driver(StandardDriver())


class Counts(Plugin):
    """A plugin that counts its turns."""

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self.state = (self.state or 0) + 1


def speaking(session: ProtocolSessionPlugin, **options: Any) -> Agent[Any, Any]:
    return Agent(ObedientModel(), name="clerk", protocol=Ours(session), plugins=[Counts()], **options)


async def quiet(session: Session[Any]) -> None:
    async def all_ended() -> bool:
        return not await session.inputs() and all(
            one.state is TurnState.ENDED for one in await session.turns()
        )

    await until(all_ended)


def test_a_protocol_is_called_when_a_session_is_opened(place: Place) -> None:
    """Seed: initialize, restore with the stored state, and configure with the options, at every open."""

    async def main() -> None:
        heard: list[Any] = []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Chronicle(heard)), options={"ours": {"a": 1}})
            await session.turn("hello")
            await session.turn("hello")
        assert heard == [("initialize", "s"), ("configure", {"ours": {"a": 1}}, True)]
        heard.clear()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Chronicle(heard)))
            await session.append([PluginNode(plugin_id="host", kind="note")])
        assert heard == [
            ("initialize", "s"),
            ("restore", 2),
            ("configure", {}, True),
            ("append", ["PluginNode"]),
        ]

    asyncio.run(main())


def test_a_protocol_receives_state_that_was_stored_before_the_first_turn(place: Place) -> None:
    """Bug: a session in which only tool settings were stored was opened as if it had no state."""

    class Tools(Chronicle):
        async def restore_session(self, ctx: ProtocolSessionContext, state: SessionState) -> None:
            self.heard.append(("restore", state.tools is not None))

    async def main() -> None:
        heard: list[Any] = []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Tools(heard), tools=[refund]))
            await session.tools.set_availability("refund", "off")
        heard.clear()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Tools(heard), tools=[refund]))
            await session.turn("hello")
        assert heard[:2] == [("initialize", "s"), ("restore", True)]

    asyncio.run(main())


def test_a_protocol_may_switch_frames_instead_of_calling_the_model(place: Place) -> None:
    """Seed: before_llm_call may answer with SwitchAgentFrame: the turn ends without a model call;
    restore_session also runs after a committed frame switch, and the task is its own turn.
    """

    async def main() -> None:
        heard: list[Any] = []
        async with place.runtime() as runtime:
            agent = speaking(Switching(heard), instructions="be brief")
            session = await runtime.session("s", agent=agent)
            await session.turn("hello")
            switched = await session.turn("switch").settled()
            assert isinstance(switched.outcome, FrameSwitched)
            await quiet(session)
            assert heard[2:] == [("asked", "be brief", 3), ("restore", 2)]
            assert said(await session.messages()) == ["the task"]
            frames = [one.payload for one in await session.nodes() if isinstance(one.payload, FrameOpened)]
            assert [one.switch.frame_id for one in frames] == ["f-2"]
            assert (await session.head()).frame == "f-2"
            assert isinstance(agent.model, ObedientModel)
            assert [said(one.messages)[-1] for one in agent.model.requests] == ["hello", "the task"]

    asyncio.run(main())


def test_a_protocol_that_fails_before_a_model_call_ends_the_turn(memory: Place) -> None:
    """Ours: SPEC §8, guards fail closed; the error names the protocol."""

    class Trips(Chronicle):
        async def before_llm_call(self, ctx: Any, request: ModelRequest) -> Any:
            if request.messages[-1] == UserMessage(content="trip"):
                raise ValueError("no idea")
            return "garbage" if request.messages[-1] == UserMessage(content="garbage") else None

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Trips([])))
            for word, problem in (("trip", "no idea"), ("garbage", "not with SwitchAgentFrame")):
                stopped = await session.turn(word).settled()
                assert stopped.error is not None
                assert stopped.error.code == "PLUGIN_ERROR"
                assert "'ours' failed in before_llm_call" in stopped.error.message
                assert problem in stopped.error.message
            assert (await session.turn("hello")).output == "ok"

    asyncio.run(main())


@pytest.mark.parametrize("how", ["session", "host"])
def test_a_protocol_that_fails_on_appended_nodes_fails_the_call(memory: Place, how: str) -> None:
    """Bug: the failure was only logged, and the call succeeded."""

    class Trips(Chronicle):
        async def append_session_nodes(self, ctx: Any, nodes: Sequence[Payload]) -> None:
            raise ValueError("no idea")

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Trips([])))
            note = UserMessage(content="note")
            request = AppendSessionNodesRequest(nodes=(note,))
            added: Any = (
                session.append([note])
                if how == "session"
                else runtime.host("s").append_session_nodes("s", request)
            )
            with pytest.raises(PluginFailed, match=r"'ours' failed in append_session_nodes.*idea") as caught:
                await added
            assert "do not append the nodes again" in (caught.value.hint or "")
            assert await session.messages() == [note]

    asyncio.run(main())


def test_extensions_are_handled_by_the_protocol_alone(memory: Place) -> None:
    """Seed: apply_session_extension refuses by default; a turn's extension is validated first."""

    class Takes(Chronicle):
        async def apply_session_extension(self, extension: Json) -> None:
            self.heard.append(("session", extension))

        async def validate_turn_extension(self, extension: Json) -> None:
            if extension == "bad":
                raise ProtocolError("not like this")
            self.heard.append(("turn", extension))

    async def main() -> None:
        async with memory.runtime() as runtime:
            plain = await runtime.session("plain", agent=Agent(ObedientModel()))
            with pytest.raises(ProtocolError, match="does not support session extensions"):
                await plain.plugins.apply_extension({"a": 1})
            heard: list[Any] = []
            session = await runtime.session("s", agent=speaking(Takes(heard)))
            await session.plugins.apply_extension({"a": 1})
            await session.turn("hello", extension=[2])
            with pytest.raises(ProtocolError, match="not like this"):
                await session.turn("hello", extension="bad")
            assert [one for one in heard if one[0] in ("session", "turn")] == [
                ("session", {"a": 1}),
                ("turn", [2]),
            ]
            assert len(await session.turns()) == 1

    asyncio.run(main())


def test_the_options_of_a_protocol_are_stored_with_the_session(place: Place) -> None:
    """Seed: ProtocolTurnOptions are set at the opening and read in the next process; versions must match."""

    class Opts(Chronicle):
        def configure_runtime_on_materialize(
            self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
        ) -> None:
            self.heard.append(("options", read_turn_options(ctx.protocol_turn_options(), 1, int)))
            wanted = materialization.plugin_options.plugins.get("ours")
            if wanted is not None:
                ctx.set_protocol_turn_options(ProtocolTurnOptions(schema_version=1, payload=wanted))

    class Newer(Opts):
        def configure_runtime_on_materialize(
            self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
        ) -> None:
            read_turn_options(ctx.protocol_turn_options(), 2, int)

    async def main() -> None:
        heard: list[Any] = []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Opts(heard)), options={"ours": 7})
            await session.turn("hello")
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=speaking(Opts(heard)))).turn("hello")
        async with place.runtime() as runtime:
            with pytest.raises(ProtocolError, match="version 1, this protocol reads 2"):
                await runtime.session("s", agent=speaking(Newer(heard)))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Opts(heard)))
            await session.turn("hello")
            assert (await context_of(session)).options.protocol_turn_options() == ProtocolTurnOptions(
                payload=7
            )
        assert [value for name, value in heard if name == "options"] == [None, 7, 7]

    asyncio.run(main())


def test_tool_settings_and_state_carry_over_to_the_next_frame(place: Place) -> None:
    """Ours: a frame limits what the model sees, not the state of plugins."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Switching([]), tools=[refund]))
            await session.tools.set_availability("refund", "off")
            await session.turn("switch").settled()
            await quiet(session)
        heard: list[Any] = []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=speaking(Switching(heard), tools=[refund]))
            (found,) = await call(session, "refund")
            assert found.error is not None
            assert found.error.message == "the tool 'refund' is off"
        assert ("restore", 2) in heard

    asyncio.run(main())
