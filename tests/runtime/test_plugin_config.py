"""The settings of a session: what may change them, how failures are handled, and when changes apply."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from plugin_stand_ins import ObedientModel
from stand_ins import Place

from standfast import Agent, Plugin, Session, UsageLimits, hook, tool
from standfast.errors import InvalidArgument, ProviderMismatch
from standfast.model.host_requests import SessionCreateRequest, TurnInput
from standfast.model.message import UserMessage
from standfast.model.session import SessionPolicy
from standfast.model.trace_record import TraceRecord
from standfast.plugins.contexts import SessionConfigChanged

Heard = list[SessionConfigChanged]


class Watches(Plugin):
    """A plugin that appends the setting changes it sees to a list of the test."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def __deepcopy__(self, memo: Any) -> Watches:
        return Watches(self._heard)

    @hook
    async def session_config_changed(self, event: SessionConfigChanged) -> None:
        self._heard.append(event)


class Adds(Plugin):
    """A mutator that adds words to the instructions."""

    id = "adds"

    def __init__(self, words: str) -> None:
        self.words = words

    @hook
    async def session_config_mutator(
        self, event: SessionConfigChanged, policy: SessionPolicy
    ) -> SessionPolicy:
        return msgspec.structs.replace(policy, instructions=f"{policy.instructions} {self.words}")


class AddsMore(Adds):
    id = "adds-more"


class Trips(Plugin):
    """A mutator that raises."""

    def __init__(self, how: str) -> None:
        self.how = how

    @hook
    async def session_config_mutator(self, event: SessionConfigChanged, policy: SessionPolicy) -> Any:
        match self.how:
            case "raises":
                raise ValueError("no idea")
            case "returns nothing":
                return None
            case "hangs":
                await asyncio.Event().wait()
            case "breaks it":
                return msgspec.structs.replace(policy, limits="many")
        raise SystemExit


class Trace:
    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord) -> None:
        self.records.append(record)


@tool
async def look() -> str:
    """Look."""
    return "seen"


def test_changed_settings_apply_from_the_next_turn(memory: Place) -> None:
    """Ours: this includes the model, instructions, limits and provider settings."""

    async def main() -> None:
        one, two = ObedientModel(), ObedientModel("obedient:two")
        async with memory.runtime(models={"obedient:two": two}) as runtime:
            agent: Agent[Any, Any] = Agent(one, instructions="slowly", tools=[look])
            session = await runtime.session("s", agent=agent)
            await session.turn("hello")
            policy = await session.plugins.configure(
                model="obedient:two",
                instructions="quickly",
                limits=UsageLimits(max_iterations=1),
                settings={"temperature": 0},
            )
            assert policy == await session.plugins.policy()
            stopped = await session.turn("call look").settled()
            assert (stopped.status, len(one.requests), len(two.requests)) == ("stopped", 1, 1)
            assert stopped.error is not None
            assert stopped.error.code == "TURN_BUDGET"
            assert (two.prompts, two.requests[0].settings) == (["quickly"], {"temperature": 0})
            await session.plugins.configure(model="obedient:one", limits=UsageLimits())
            assert (await session.turn("call look")).output == "ok"
            assert (len(one.requests), one.prompts[-1]) == (3, "quickly")

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, 1], ids=["new", "used"])
def test_a_session_cannot_be_configured_to_use_another_provider(memory: Place, turns: int) -> None:
    """Bug: `configure` let a session continue with a provider other than that of its history."""

    async def main() -> None:
        one, other = ObedientModel(), ObedientModel("other:one")
        async with memory.runtime(models={"other:one": other}) as runtime:
            session = await runtime.session("s", agent=Agent(one))
            for _ in range(turns):
                await session.turn("hello")
            with pytest.raises(ProviderMismatch) as caught:
                await session.plugins.configure(model="other:one", instructions="quickly")
            assert (caught.value.expected, caught.value.actual) == ("obedient:one", "other:one")
            assert (await session.plugins.policy()).instructions == "", "nothing was changed"
            assert (await session.turn("hello")).output == "ok"
            assert other.requests == []

    asyncio.run(main())


class Reroutes(Plugin):
    """A mutator that selects another model."""

    def __init__(self, model: str) -> None:
        self.model = model

    @hook
    async def session_config_mutator(
        self, event: SessionConfigChanged, policy: SessionPolicy
    ) -> SessionPolicy:
        return msgspec.structs.replace(policy, model=self.model)


def test_a_mutator_may_choose_a_model_but_not_another_provider(
    memory: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: a plugin could switch a session's provider; now its change is dropped and reported."""

    async def main() -> None:
        one, two, other = ObedientModel(), ObedientModel("obedient:two"), ObedientModel("other:one")
        async with memory.runtime(models={"obedient:two": two, "other:one": other}) as runtime:
            near = await runtime.session("near", agent=Agent(one, plugins=[Reroutes("obedient:two")]))
            await near.turn("hello")
            far = await runtime.session("far", agent=Agent(one, plugins=[Reroutes("other:one")]))
            await far.turn("hello")
            await far.plugins.configure(instructions="quickly")
            await far.turn("hello")
        assert [len(model.requests) for model in (one, two, other)] == [2, 1, 0]
        assert "other:one" in caplog.text
        assert "reroutes" in caplog.text

    asyncio.run(main())


def test_a_session_is_not_continued_by_an_agent_of_the_same_name_but_another_provider(place: Place) -> None:
    """Bug: a runtime that knew the agent's name resumed a session with any provider."""

    async def main() -> None:
        one, other = ObedientModel(), ObedientModel("other:one")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(one, name="clerk"))
            await session.turn("hello")
        async with place.runtime(agents=[Agent(other, name="clerk")]) as runtime:
            host = runtime.host("s")
            with pytest.raises(ProviderMismatch):
                await host.start_turn("s", TurnInput(message=UserMessage(content="more")))
        assert other.requests == []

    asyncio.run(main())


def test_a_child_may_be_created_with_a_model_of_another_provider(place: Place) -> None:
    """Ours: a session's policy selects its model from the first turn on."""

    async def main() -> None:
        one, other = ObedientModel(), ObedientModel("other:one")
        agent: Agent[Any, Any] = Agent(one, name="clerk")
        for _ in range(2):
            async with place.runtime(models={"other:one": other}) as runtime:
                await runtime.session("s", agent=agent)
                host = runtime.host("s")
                policy = SessionPolicy(model="other:one")
                await host.create_session(SessionCreateRequest(session_id="child", policy=policy))
                child = await runtime.session("child", agent=agent)
                assert (await child.turn("hello")).output == "ok"
                with pytest.raises(ProviderMismatch):
                    await child.plugins.configure(model="obedient:one")
        assert (len(one.requests), len(other.requests)) == (0, 2)

    asyncio.run(main())


def test_a_running_turn_keeps_its_settings(memory: Place) -> None:
    """Ours: changes apply from the next turn on."""
    sessions: list[Session[Any]] = []

    @tool(loop="runtime")
    async def hurry() -> str:
        """Change the settings."""
        await sessions[0].plugins.configure(instructions="quickly", limits=UsageLimits(max_iterations=1))
        return "changed"

    async def main() -> None:
        model = ObedientModel()
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, instructions="slowly", tools=[hurry]))
            sessions.append(session)
            await session.turn("call hurry")
            assert model.prompts == ["slowly", "slowly"]
            assert (await session.turn("call hurry").settled()).status == "stopped"
            assert model.prompts[2:] == ["quickly"]

    asyncio.run(main())


def test_mutators_are_chained_when_a_session_is_opened_and_when_it_is_configured(place: Place) -> None:
    """Seed: session config mutators are chained."""

    async def main() -> None:
        model = ObedientModel()
        agent: Agent[Any, Any] = Agent(model, instructions="be", plugins=[Adds("kind"), AddsMore("brief")])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("hello")
            await session.plugins.configure(instructions="stay")
            await session.turn("hello")
            session._live.forget()
            await session.turn("hello")
        async with place.runtime() as runtime:
            await (await runtime.session("s", agent=agent)).turn("hello")
        assert model.prompts == ["be kind brief", "stay kind brief", "stay kind brief", "be kind brief"]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["raises", "returns nothing", "hangs", "breaks it", "exits"])
def test_a_failing_mutator_leaves_the_settings_unchanged(
    memory: Place, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Seed: a failing mutator is logged and traced; its change is dropped, and later ones still run."""

    async def main() -> None:
        model, trace = ObedientModel(), Trace()
        plugins = [Adds("kind"), Trips(how), AddsMore("brief")]
        async with memory.runtime(hook_timeout_s=0.5, trace=trace) as runtime:
            session = await runtime.session("s", agent=Agent(model, instructions="be", plugins=plugins))
            await session.turn("hello")
            assert (await session.plugins.configure(instructions="stay")).instructions == "stay kind brief"
            await session.turn("hello")
        assert model.prompts == ["be kind brief", "stay kind brief"]
        failed = [one for one in trace.records if one.name == "plugin_failed"]
        assert [one.plugin_id for one in failed] == ["trips", "trips"]
        assert [one.body["hook"] for one in failed] == ["session_config_mutator"] * 2

    with caplog.at_level(logging.WARNING, logger="standfast"):
        asyncio.run(main())
    assert sum("plugin trips, session_config_mutator" in line for line in caplog.messages) == 2


def test_observers_see_the_change_and_the_resulting_settings(memory: Place) -> None:
    """Seed: session_config_changed has before and after; after is the result of the mutators."""

    async def main() -> None:
        heard: Heard = []
        plugins = [Watches(heard), Adds("kind")]
        async with memory.runtime() as runtime:
            session = await runtime.session(
                "s", agent=Agent(ObedientModel(), instructions="be", plugins=plugins)
            )
            await session.turn("hello")
            assert heard == []
            await session.plugins.configure(instructions="stay")
        (event,) = heard
        assert event.before is not None
        assert (event.session_id, event.before.instructions) == ("s", "be kind")
        assert event.after.instructions == "stay kind"

    asyncio.run(main())


def test_a_failing_observer_does_not_prevent_a_change_of_settings(memory: Place) -> None:
    """Seed: lifecycle events are never fatal."""

    class Grumbles(Plugin):
        @hook
        async def session_config_changed(self, event: SessionConfigChanged) -> None:
            raise RuntimeError("I was not asked")

    async def main() -> None:
        model = ObedientModel()
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model, plugins=[Grumbles()]))
            await session.plugins.configure(instructions="stay")
            await session.turn("hello")
        assert model.prompts == ["stay"]

    asyncio.run(main())


@pytest.mark.parametrize("changes", [{"temper": 1}, {"limits": "many"}, {"model": 3}, {"instructions": None}])
def test_invalid_settings_are_refused(memory: Place, changes: dict[str, Any]) -> None:
    """Ours: invalid settings change nothing, and no observer is notified."""

    async def main() -> None:
        heard: Heard = []
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ObedientModel(), plugins=[Watches(heard)]))
            before = await session.plugins.policy()
            with pytest.raises(InvalidArgument):
                await session.plugins.configure(**changes)
            assert (await session.plugins.policy(), heard) == (before, [])

    asyncio.run(main())


def test_plugin_options_apply_whenever_a_session_is_opened(memory: Place) -> None:
    """Seed: plugin options are applied at every open; changed options at the next one."""

    async def main() -> None:
        model = ObedientModel()
        agent: Agent[Any, Any] = Agent(model, instructions="be", plugins=[Adds("kind")])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent, options={"adds": {"words": "stern"}})
            await session.turn("hello")
            session = await runtime.session("s", agent=agent)
            await session.turn("hello")
            session = await runtime.session("s", agent=agent, options={"adds": {"words": "mild"}})
            await session.turn("hello")
        assert model.prompts == ["be stern", "be stern", "be mild"]

    asyncio.run(main())


def test_the_error_about_an_option_that_a_plugin_does_not_accept_names_the_option(memory: Place) -> None:
    """Ours: only the plugin itself interprets its options."""

    async def main() -> None:
        agent: Agent[Any, Any] = Agent(ObedientModel(), plugins=[Adds("kind")])
        async with memory.runtime() as runtime:
            with pytest.raises(InvalidArgument, match="'wrods'"):
                await runtime.session("s", agent=agent, options={"adds": {"wrods": "stern"}})
            session = await runtime.session("s", agent=agent, options={"adds": {"words": "mild"}})
            await session.turn("hello")

    asyncio.run(main())


def test_options_changed_while_a_turn_runs_apply_from_the_next_turn(memory: Place) -> None:
    """Bug: the plugins of a running turn were released and missed `turn_persisted`."""
    runtimes: list[Any] = []
    persisted: list[str] = []

    class Hears(Adds):
        id = "adds"

        @hook
        async def turn_persisted(self, event: Any) -> None:
            persisted.append(self.words)

    @tool(loop="runtime")
    async def reopen() -> str:
        """Reopen the session with other options."""
        await runtimes[0].session("s", agent=agent, options={"adds": {"words": "mild"}})
        return "opened"

    model = ObedientModel()
    agent: Agent[Any, Any] = Agent(model, instructions="be", tools=[reopen], plugins=[Hears("kind")])

    async def main() -> None:
        async with memory.runtime() as runtime:
            runtimes.append(runtime)
            session = await runtime.session("s", agent=agent)
            await session.turn("call reopen")
            await session.turn("hello")
        assert model.prompts == ["be kind", "be kind", "be mild"]
        assert persisted == ["kind", "mild"]

    asyncio.run(main())
