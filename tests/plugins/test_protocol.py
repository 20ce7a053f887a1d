"""Protocols as plugins: a protocol written here, its options, its extensions, and its frame switch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from plugin_bench import Actor
from stand_ins import Place, said, until

from standfast import Agent
from standfast.errors import InvalidArgument, InvalidPlugin, PluginConflict, ProtocolError
from standfast.model.message import UserMessage
from standfast.model.outcome import FrameSwitched
from standfast.model.plugin_options import NO_OPTIONS, PluginOptions
from standfast.model.plugin_state import ProtocolTurnOptions, SessionState
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.plugins.contexts import SwitchAgentFrame
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import (
    ProtocolBeforeLlmCallContext,
    ProtocolBuildInput,
    ProtocolRuntimeContext,
    ProtocolSessionContext,
    ProtocolSessionMaterialization,
    ProtocolSessionPlugin,
    read_turn_options,
)
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.turn_protocol import TurnDriverPreamble
from standfast.ports.model_provider import ModelRequest
from standfast.protocols.standard import StandardHost, StandardProtocol


class Tuning(msgspec.Struct):
    """The options that the protocol reads at every turn."""

    depth: int = 1


VERSION = 2


class Log:
    """A log of the protocol's calls, in all sessions."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __deepcopy__(self, memo: object) -> Log:
        return self


class HopSession(ProtocolSessionPlugin):
    """A protocol session that answers "hop" with a frame switch, takes hints, and stores its options."""

    turn_options_version = 2

    def __init__(self, log: Log) -> None:
        self.log = log
        self.tuning = Tuning()
        self.requests: list[ModelRequest] = []

    async def initialize_session(self, ctx: ProtocolSessionContext) -> None:
        self.log.lines.append(f"initialize {ctx.session_id}")

    async def restore_session(self, ctx: ProtocolSessionContext, state: SessionState) -> None:
        self.log.lines.append(f"restore {ctx.session_id}")

    async def append_session_nodes(self, ctx: ProtocolSessionContext, nodes: Sequence[Any]) -> None:
        self.log.lines.append(f"append {len(nodes)}")

    async def apply_session_extension(self, extension: Any) -> None:
        self.log.lines.append(f"extension {extension}")

    async def validate_turn_extension(self, extension: Any) -> None:
        if not isinstance(extension, dict) or "hint" not in extension:
            raise ProtocolError("a turn's extension is a hint")

    def configure_runtime_on_materialize(
        self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
    ) -> None:
        self.log.lines.append(f"configure root={materialization.is_root_session}")
        given = materialization.plugin_options.decode("hop", Tuning)
        if given is not None:
            options = ProtocolTurnOptions(schema_version=VERSION, payload=msgspec.to_builtins(given))
            ctx.set_protocol_turn_options_all_frames(options)
        self.tuning = read_turn_options(ctx.protocol_turn_options(), VERSION, Tuning) or Tuning()
        self.log.lines.append(f"depth {self.tuning.depth}")

    async def before_llm_call(
        self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest
    ) -> SwitchAgentFrame | None:
        self.requests.append(request)
        last = ctx.messages[-1]
        if isinstance(last, UserMessage) and last.content == "hop":
            return SwitchAgentFrame(f"{ctx.turn_id}.hop", "land")
        return None


class HopDriver:
    """The standard driver with its own line in the prompt."""

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        words = PromptContribution(content="You may hop.", slot=PromptSlot.EXECUTION)
        return TurnDriverPreamble(
            host=StandardHost,
            tools=tuple(given.tool_catalog.capabilities(given.resolve)),
            prompt=(words,),
        )


class Hop(Plugin):
    """A complete protocol."""

    def __init__(self, log: Log | None = None) -> None:
        self._log = log or Log()

    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        registrar.protocol.session(HopSession(self._log))
        registrar.protocol.driver(HopDriver())

    def configure(self, options: Any) -> None:
        """Do nothing: the session plugin reads the options."""


def test_before_llm_call_may_switch_the_frame_and_the_model_is_not_called(place: Place) -> None:
    """Seed: SwitchAgentFrame ends the turn as a frame switch; restore_session runs after its commit."""

    async def main() -> None:
        model, log = Actor(), Log()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, protocol=Hop(log)))
            await session.turn("stay")
            result = await session.turn("hop").settled()
            assert isinstance(result.outcome, FrameSwitched)
            assert result.status == "frame_switched"
            assert result.outcome.switch.frame_id == f"{result.turn_id}.hop"
            assert result.outcome.switch.task == "land"
            await until(lambda: len(model.requests) == 2)
            await until(_free(session))
            assert (await session.head()).frame == f"{result.turn_id}.hop"
            assert said(await session.messages()) == ["land"]
        assert [said(one.messages) for one in model.requests] == [["stay"], ["land"]]
        assert log.lines.count("restore s") == 1

    asyncio.run(main())


def _free(session: Any) -> Any:
    async def free() -> bool:
        return await session.unfinished() is None and not await session.inputs()

    return free


def test_a_protocol_sees_the_request_that_the_model_would_get(memory: Place) -> None:
    """Seed: before_llm_call receives the request."""
    seen: list[ModelRequest] = []

    class Spy(HopSession):
        async def before_llm_call(
            self, ctx: ProtocolBeforeLlmCallContext, request: ModelRequest
        ) -> SwitchAgentFrame | None:
            seen.append(request)
            return None

    class SpyProtocol(Hop):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.protocol.session(Spy(self._log))
            registrar.protocol.driver(HopDriver())

    async def main() -> None:
        model = Actor()
        async with memory.runtime() as runtime:
            agent = Agent(model, instructions="Be kind.", protocol=SpyProtocol())
            await (await runtime.session("s", agent=agent)).turn("go")
        assert [one.instructions for one in seen] == [one.instructions for one in model.requests]
        assert seen[0].instructions == "Be kind.\n\nYou may hop."
        assert [one.call_number for one in seen] == [1]

    asyncio.run(main())


def test_a_protocol_takes_part_in_the_life_cycle_of_a_session(place: Place) -> None:
    """Seed: initialize_session, restore_session, configure_runtime_on_materialize, append_session_nodes."""

    async def main() -> None:
        log = Log()
        agent = Agent(Actor(), protocol=Hop(log))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go")
            assert log.lines == ["initialize s", "configure root=True", "depth 1"]
            await session.append([UserMessage(content="by the way")])
            assert log.lines[-1] == "append 1"
        log.lines.clear()
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("go")
        assert log.lines == ["initialize s", "restore s", "configure root=True", "depth 1"]

    asyncio.run(main())


def test_the_options_of_a_protocol_are_applied_at_open_and_stored(place: Place) -> None:
    """Seed: options are applied when a session is opened; the session records the last applied value."""

    async def main() -> None:
        log = Log()
        agent = Agent(Actor(), protocol=Hop(log))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent, options={"hop": {"depth": 7}})
            await session.turn("go")
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("go")
        assert [line for line in log.lines if line.startswith("depth")] == ["depth 7", "depth 7"]

    asyncio.run(main())


def test_invalid_options_are_refused_when_the_session_is_opened(memory: Place) -> None:
    """Seed: only the protocol decodes its options."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(Actor(), protocol=Hop())
            with pytest.raises(InvalidArgument, match="the options of plugin 'hop' are invalid"):
                await runtime.session("s", agent=agent, options={"hop": {"depth": "far"}})
            assert await runtime.store.turns("s") == []

    asyncio.run(main())


def test_turn_options_of_another_version_are_an_error() -> None:
    """Seed: ProtocolTurnOptions of another schema_version are refused."""
    good = ProtocolTurnOptions(schema_version=2, payload={"depth": 3})
    assert read_turn_options(good, 2, Tuning) == Tuning(depth=3)
    assert read_turn_options(None, 2, Tuning) is None
    for version in (1, 3):
        with pytest.raises(ProtocolError, match="have version 2, this protocol reads"):
            read_turn_options(good, version, Tuning)
    with pytest.raises(ProtocolError, match="are invalid"):
        read_turn_options(ProtocolTurnOptions(schema_version=2, payload={"depth": "far"}), 2, Tuning)


def test_a_session_with_options_of_another_version_is_not_opened(memory: Place) -> None:
    """Seed: another schema version is an error for the session's options too."""

    class OldSession(HopSession):
        turn_options_version = 1

        def configure_runtime_on_materialize(
            self, ctx: ProtocolRuntimeContext, materialization: ProtocolSessionMaterialization
        ) -> None:
            ctx.set_protocol_turn_options(ProtocolTurnOptions(schema_version=1, payload={}))

    class Old(Hop):
        id = "hop"

        def register(self, registrar: PluginRegistrar) -> None:
            registrar.protocol.session(OldSession(self._log))
            registrar.protocol.driver(HopDriver())

    async def main() -> None:
        async with memory.runtime() as runtime:
            await (await runtime.session("s", agent=Agent(Actor(), protocol=Old()))).turn("go")
        async with memory.runtime() as runtime:
            with pytest.raises(ProtocolError, match="have version 1, this protocol reads 2"):
                await runtime.session("s", agent=Agent(Actor(), protocol=Hop()))

    asyncio.run(main())


# Extensions


def test_a_session_extension_is_refused_by_default(memory: Place) -> None:
    """Seed: apply_session_extension refuses by default."""

    async def main() -> None:
        log = Log()
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor()))
            with pytest.raises(ProtocolError, match="does not support session extensions"):
                await session.plugins.apply_extension({"a": 1})
            other = await runtime.session("o", agent=Agent(Actor(), protocol=Hop(log)))
            await other.plugins.apply_extension({"a": 1})
            with pytest.raises(InvalidArgument, match="not JSON"):
                await other.plugins.apply_extension(object())
        assert log.lines[-1] == "extension {'a': 1}"

    asyncio.run(main())


def test_a_turn_extension_is_validated_before_the_turn_begins_and_shown_to_hooks(memory: Place) -> None:
    """Seed: validate_turn_extension checks the extension of a turn."""
    seen: list[Any] = []

    class Watcher(Plugin):
        @hook
        async def before_turn(self, ctx: Any) -> None:
            seen.append(ctx.extension)

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = Agent(Actor(), protocol=Hop(), plugins=[Watcher()])
            session = await runtime.session("s", agent=agent)
            with pytest.raises(ProtocolError, match="a turn's extension is a hint"):
                await session.turn("go", extension={"wish": 1})
            assert await session.turns() == []
            await session.turn("go", extension={"hint": 1})
            await session.turn("go")
        assert seen == [{"hint": 1}, None]

    asyncio.run(main())


# Slots


def test_a_session_has_one_protocol(memory: Place) -> None:
    """Seed: the slots of a protocol are exclusive, and the error names both plugins."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            with pytest.raises(PluginConflict, match=r"protocol_session.*'standard'.*'hop'"):
                await runtime.session("s", agent=Agent(Actor(), plugins=[Hop()]))

    asyncio.run(main())


def test_the_standard_protocol_is_a_plugin_without_hooks() -> None:
    """Seed: protocols are plugins."""
    assert isinstance(StandardProtocol(), Plugin)
    assert StandardProtocol.id == "standard"


@pytest.mark.parametrize("protocol", ["cells", "", 3, None])
def test_an_invalid_protocol_is_refused(protocol: Any) -> None:
    """Ours: the error is raised when the agent is created."""
    with pytest.raises((InvalidArgument, InvalidPlugin), match=r"protocol|not a plugin"):
        Agent("scripted:x", protocol=protocol)


# Options as values


def test_options_are_stored_by_plugin_id() -> None:
    """Seed: PluginOptions has empty, typed, insert_typed and decode."""
    assert PluginOptions.empty() == NO_OPTIONS
    options = PluginOptions.typed("hop", Tuning(depth=3)).with_typed("other", [1, 2])
    assert options.plugins == {"hop": {"depth": 3}, "other": [1, 2]}
    assert options.decode("hop", Tuning) == Tuning(depth=3)
    assert options.decode("other") == [1, 2]
    assert options.decode("unknown", Tuning) is None


def test_options_survive_serialization() -> None:
    """Seed: options are serialized; empty ones are left out."""
    options = PluginOptions.typed("hop", Tuning(depth=3))
    assert msgspec.json.decode(msgspec.json.encode(options), type=PluginOptions) == options
    assert msgspec.json.encode(PluginOptions.empty()) == b"{}"


def test_options_of_the_wrong_type_are_refused() -> None:
    """Seed: decode fails if the options do not match the type."""
    with pytest.raises(InvalidArgument, match="the options of plugin 'hop' are invalid"):
        PluginOptions(plugins={"hop": {"depth": "far"}}).decode("hop", Tuning)


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800"], ids=["object", "nan", "surrogate"])
def test_options_that_are_not_json_are_refused(value: Any) -> None:
    """Seed: typed options must be serializable."""
    with pytest.raises(InvalidArgument):
        PluginOptions.typed("hop", value)
