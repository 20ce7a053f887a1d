"""Directives: where each is legal, how several are combined, and how conflicts are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_bench import (
    Actor,
    Ear,
    Notes,
    call_context,
    errors_of,
    session_of,
    tool_result_context,
)
from stand_ins import Place, said, until

from standfast import Agent
from standfast.errors import Code, ErrorObject, PluginConflict, PluginFailed
from standfast.model.directive import (
    AbortTurn,
    CreateSession,
    EmitRuntimeEvents,
    EmitTrace,
    EnqueueMessages,
    PluginDirective,
    ReplaceToolArgs,
    RuntimeEvent,
    SessionRequest,
    ShortCircuitTool,
    ask_person,
    deny_call,
)
from standfast.model.message import UserMessage
from standfast.model.outcome import Finished, Stopped, StopReason
from standfast.model.ruling import CallRuling
from standfast.model.session import PluginNode
from standfast.plugins.answers import ALLOWED, read_directives
from standfast.plugins.contexts import ToolCallHookContext
from standfast.plugins.directives import OwnedDirective, PluginOwned, compose, compose_call
from standfast.plugins.hook import HOOKS, hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.running import RegisteredHook

SAMPLES: dict[type, PluginDirective] = {
    AbortTurn: AbortTurn(message="stop"),
    EnqueueMessages: EnqueueMessages(messages=(UserMessage(content="psst"),)),
    CreateSession: CreateSession(request=SessionRequest(session_id="other")),
    ReplaceToolArgs: ReplaceToolArgs(arguments={"text": "other"}),
    ShortCircuitTool: ShortCircuitTool(value="at once"),
    EmitRuntimeEvents: EmitRuntimeEvents(events=(RuntimeEvent(kind="seen"),)),
    EmitTrace: EmitTrace(name="seen"),
}

STAGES = ("before_turn", "checkpoint", "before_tool_call", "after_tool_call", "after_turn")

ILLEGAL = {
    ("before_turn", ReplaceToolArgs),
    ("before_turn", ShortCircuitTool),
    ("checkpoint", ReplaceToolArgs),
    ("checkpoint", ShortCircuitTool),
    ("after_tool_call", ReplaceToolArgs),
    ("after_turn", ReplaceToolArgs),
    ("after_turn", ShortCircuitTool),
    ("after_turn", AbortTurn),
}


def hook_of(kind: str, plugin_id: str = "one") -> RegisteredHook:
    async def nothing(ctx: Any) -> None:
        return None

    return RegisteredHook(plugin_id, kind, nothing)


def owned(plugin_id: str, *directives: PluginDirective) -> list[OwnedDirective]:
    return [PluginOwned(plugin_id, one) for one in directives]


# Legality


def test_the_table_covers_all_stages_and_directives() -> None:
    """Ours: a new directive or stage needs an entry in the table."""
    assert set(SAMPLES) == set(get_args(PluginDirective))
    assert set(ALLOWED) == set(STAGES)
    assert {name for name, kind in HOOKS.items() if kind.answers.startswith("directives")} == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_an_illegal_directive_is_an_error_that_names_the_plugin(stage: str, kind: type) -> None:
    """Seed: illegal directives for a stage are errors."""
    sample = SAMPLES[kind]
    if (stage, kind) in ILLEGAL:
        with pytest.raises(
            PluginFailed, match=f"plugin 'one' failed in {stage}: it must not return {kind.__name__}"
        ):
            read_directives(hook_of(stage), sample)
    else:
        assert read_directives(hook_of(stage), [sample]) == [PluginOwned("one", sample)]


@pytest.mark.parametrize(
    "answer",
    [
        "stop", 1, {"abort_turn": 1}, [None], ["stop"], [AbortTurn], iter(()), object(),
        [SAMPLES[AbortTurn], "and this"],
    ],
)  # fmt: skip
def test_an_answer_that_is_not_a_directive_is_refused(answer: object) -> None:
    """Ours: a hook that returns another type has failed."""
    with pytest.raises(PluginFailed, match="plugin 'one' failed in before_turn: it answered with a"):
        read_directives(hook_of("before_turn"), answer)


@pytest.mark.parametrize("answer", [None, [], ()])
def test_a_hook_may_return_no_directives(answer: object) -> None:
    """Seed: a hook answers with a list of directives, which may be empty."""
    assert read_directives(hook_of("before_turn"), answer) == []


@pytest.mark.parametrize(
    "broken",
    [
        ShortCircuitTool(value=object()),
        ShortCircuitTool(value="\ud800"),
        AbortTurn(message=3),  # type: ignore[arg-type]
        EnqueueMessages(messages=("plain text",)),  # type: ignore[arg-type]
        ReplaceToolArgs(arguments=["not", "named"]),  # type: ignore[arg-type]
        ReplaceToolArgs(arguments={1: {2: {3, 4}, "x": object()}}),  # type: ignore[dict-item]
    ],
)
def test_a_directive_that_cannot_be_stored_is_refused(broken: PluginDirective) -> None:
    """Ours: a value that could not be read back from the journal is refused."""
    with pytest.raises(PluginFailed, match="plugin 'one' failed in before_tool_call"):
        read_directives(hook_of("before_tool_call"), broken)


def test_a_directive_is_converted_to_its_stored_form() -> None:
    """Bug: a value without a JSON form stayed in the turn, and was a different one after a crash."""
    [one] = read_directives(hook_of("before_tool_call"), ShortCircuitTool(value=(1, {"a": (2,)})))
    assert one.value == ShortCircuitTool(value=[1, {"a": [2]}])
    [one] = read_directives(hook_of("before_tool_call"), ShortCircuitTool(value=b"raw"))
    assert isinstance(one.value, ShortCircuitTool)
    assert isinstance(one.value.value, str)


# Composition


def short(ruling: object) -> tuple[bool, Any, ErrorObject | None]:
    assert isinstance(ruling, CallRuling)
    return ruling.settled, ruling.value, ruling.error


def test_an_abort_beats_a_refusal_which_beats_a_question_which_beats_a_result() -> None:
    """Seed: abort beats a failing short circuit, which beats a successful one."""
    result, question, refusal = ShortCircuitTool(value=1), ask_person("sure?"), deny_call("no")
    both = compose_call([*owned("a", result), *owned("b", question), *owned("c", refusal)], None)
    assert short(both.ruling) == (True, None, refusal.error)
    asks = compose_call([*owned("a", result), *owned("b", question)], None)
    assert short(asks.ruling) == (True, None, question.error)
    alone = compose_call(owned("a", result), None)
    assert short(alone.ruling) == (True, 1, None)
    aborted = compose_call([*owned("a", refusal), *owned("b", AbortTurn(message="stop"))], None).ruling
    assert aborted.abort == ErrorObject(code="PLUGIN_ABORT", message="plugin 'b': stop")


def test_among_equal_directives_the_first_wins_and_the_conflict_names_both() -> None:
    """Seed: every conflict is traced with both plugin ids."""
    first, second = ShortCircuitTool(value=1), ShortCircuitTool(value=2)
    composed = compose_call([*owned("a", first), *owned("b", second)], None)
    assert short(composed.ruling) == (True, 1, None)
    assert [(one.what, one.winner, one.loser) for one in composed.conflicts] == [("short circuit", "a", "b")]


def test_plugins_that_agree_do_not_conflict() -> None:
    """Ours: two plugins that return the same directive do not conflict."""
    composed = compose_call([*owned("a", deny_call("no")), *owned("b", deny_call("no"))], None)
    assert composed.conflicts == []


def test_of_two_aborts_the_first_wins_and_a_conflict_is_reported() -> None:
    """Ours: a turn ends for one reason, that of the first abort."""
    composed = compose(
        [*owned("a", AbortTurn(message="x")), *owned("b", AbortTurn(message="y", code="MINE"))]
    )
    assert composed.ruling.abort == ErrorObject(code="PLUGIN_ABORT", message="plugin 'a': x")
    assert [(one.winner, one.loser) for one in composed.conflicts] == [("a", "b")]


def test_a_short_circuit_beaten_by_an_abort_is_a_conflict() -> None:
    """Seed: every conflict is traced with both plugin ids."""
    composed = compose_call(
        [*owned("a", ShortCircuitTool(value=1)), *owned("b", AbortTurn(message="x"))], None
    )
    assert [(one.what, one.winner, one.loser) for one in composed.conflicts] == [("short circuit", "b", "a")]


def test_messages_events_traces_and_sessions_accumulate_in_order() -> None:
    """Seed: the directives of all plugins take effect."""
    composed = compose(
        [
            *owned("a", SAMPLES[EnqueueMessages], SAMPLES[EmitRuntimeEvents], SAMPLES[EmitTrace]),
            *owned("b", SAMPLES[EnqueueMessages], SAMPLES[EmitRuntimeEvents], SAMPLES[CreateSession]),
        ]
    )
    assert said(composed.ruling.messages) == ["psst", "psst"]
    assert composed.ruling.events == (
        PluginNode(plugin_id="a", kind="seen"),
        PluginNode(plugin_id="b", kind="seen"),
    )
    assert [(one.plugin_id, one.value.name) for one in composed.traces] == [("a", "seen")]
    assert [(one.plugin_id, one.value.session_id) for one in composed.sessions] == [("b", "other")]
    assert composed.conflicts == []


def laxness(ruling: object) -> int:
    """Return how much a ruling permits: nothing, an error, a question, another result, the call itself."""
    assert isinstance(ruling, CallRuling)
    if ruling.abort is not None:
        return 0
    if not ruling.settled:
        return 4
    if ruling.error is None:
        return 3
    return 2 if ruling.error.code == Code.WAITING_FOR_APPROVAL else 1


wishes = st.lists(
    st.sampled_from(
        [
            AbortTurn(message="stop"),
            deny_call("no"),
            deny_call("never"),
            ask_person("sure?"),
            ShortCircuitTool(value=1),
            ShortCircuitTool(value=2),
            EmitTrace(name="seen"),
            EnqueueMessages(messages=(UserMessage(content="psst"),)),
        ]
    ),
    max_size=3,
)
crowds = st.lists(wishes, max_size=4)


def heard(crowd: Sequence[Sequence[PluginDirective]]) -> list[OwnedDirective]:
    return [one for place, wanted in enumerate(crowd) for one in owned(f"p{place}", *wanted)]


@given(crowd=crowds, more=wishes, place=st.integers(0, 4))
def test_one_more_plugin_never_makes_the_result_more_permissive(
    crowd: list[list[PluginDirective]], more: list[PluginDirective], place: int
) -> None:
    """Seed: composition is monotone, whatever the plugin's position."""
    before = compose_call(heard(crowd), None).ruling
    after = compose_call(heard([*crowd[:place], more, *crowd[place:]]), None).ruling
    assert laxness(after) <= laxness(before)
    assert len(after.messages) >= len(before.messages)


@given(crowd=crowds)
def test_the_strictest_directive_decides(crowd: list[list[PluginDirective]]) -> None:
    """Seed: the order is abort, failing short circuit, question, success."""
    alone = [laxness(compose_call(owned("p", one), None).ruling) for wanted in crowd for one in wanted]
    assert laxness(compose_call(heard(crowd), None).ruling) == min(alone, default=4)


# Arguments


class Replacer(Plugin):
    """A plugin that replaces the arguments, and logs those that it was asked about."""

    def __init__(self, make: Any = None) -> None:
        self._make = make
        self._heard: list[dict[str, Any]] = []

    def __deepcopy__(self, memo: object) -> Replacer:
        return self

    @hook
    async def before_tool_call(self, ctx: ToolCallHookContext) -> Any:
        self._heard.append(ctx.arguments)
        made = None if self._make is None else self._make(ctx.arguments)
        return None if made is None else ReplaceToolArgs(arguments=made)


def named(name: str, make: Any = None) -> Replacer:
    made: Replacer = type(name.title(), (Replacer,), {"id": name})(make)
    return made


def clamped(limit: int) -> Any:
    """Return a replacer that changes the arguments only if `n` is too large."""
    return lambda arguments: {"n": limit} if arguments["n"] > limit else None


def test_replaced_arguments_are_seen_by_later_hooks_and_once_by_earlier_ones() -> None:
    """Seed: the hooks after the replacement see the new arguments, as do those before it, once."""
    first, second, third = named("first"), named("second", lambda _: {"n": 2}), named("third")

    async def main() -> None:
        hearing = await session_of(first, second, third).review_call(call_context(n=1))
        assert hearing.arguments == {"n": 2}
        assert hearing.replaced_by == "second"

    asyncio.run(main())
    assert first._heard == [{"n": 1}, {"n": 2}]
    assert second._heard == [{"n": 1}]
    assert third._heard == [{"n": 2}]


def test_no_plugin_is_asked_twice_unless_arguments_are_replaced() -> None:
    """Ours: plugins are asked again only about changed arguments."""
    first, second = named("first"), named("second", lambda arguments: dict(arguments))

    async def main() -> None:
        hearing = await session_of(first, second).review_call(call_context(n=1))
        assert hearing.arguments is None

    asyncio.run(main())
    assert (len(first._heard), len(second._heard)) == (1, 1)


def test_two_unconditional_replacers_are_a_conflict_not_a_race() -> None:
    """Seed: two unconditional argument replacers are a conflict."""
    one, other = named("one", lambda _: {"n": 1}), named("other", lambda _: {"n": 2})

    async def main() -> None:
        with pytest.raises(PluginConflict, match="note") as caught:
            await session_of(one, other).review_call(call_context(n=0))
        assert {caught.value.owner, caught.value.other} == {"one", "other"}
        assert "'one'" in caught.value.message
        assert "'other'" in caught.value.message

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "limit"), [(lambda _: {"n": 5}, 10), (lambda arguments: {"n": 5}, 5)], ids=["below", "at"]
)
@pytest.mark.parametrize("clamp_first", [True, False])
def test_a_replacer_and_a_clamp_that_accepts_its_value_agree(
    make: Any, limit: int, clamp_first: bool
) -> None:
    """Ours: a plugin that accepts the arguments that the other returns does not conflict with it."""
    plugins = [named("clamp", clamped(limit)), named("setter", make)]

    async def main() -> None:
        ordered = plugins if clamp_first else plugins[::-1]
        hearing = await session_of(*ordered).review_call(call_context(n=99))
        assert hearing.arguments == {"n": 5}

    asyncio.run(main())


def test_a_replacer_whose_value_a_clamp_rejects_conflicts_with_it() -> None:
    """Ours: no order of the two plugins satisfies both."""

    async def main() -> None:
        for plugins in ([clamped(3), lambda _: {"n": 5}], [lambda _: {"n": 5}, clamped(3)]):
            session = session_of(named("one", plugins[0]), named("other", plugins[1]))
            with pytest.raises(PluginConflict):
                await session.review_call(call_context(n=99))

    asyncio.run(main())


def test_before_tool_call_returns_the_replaced_arguments_as_the_last_directive() -> None:
    """Seed: before_tool_call collects the directives of all plugins."""

    async def main() -> None:
        session = session_of(named("one", lambda _: {"n": 7}))
        found = await session.before_tool_call(call_context(n=1))
        assert found == [PluginOwned("one", ReplaceToolArgs(arguments={"n": 7}))]
        assert await session_of(named("one")).before_tool_call(call_context(n=1)) == []

    asyncio.run(main())


def test_an_earlier_hook_may_refuse_the_arguments_of_a_later_one() -> None:
    """Ours: a plugin cannot bypass a guard by running after it."""

    class Guard(Plugin):
        @hook
        async def before_tool_call(self, ctx: ToolCallHookContext) -> Any:
            return deny_call("too much") if ctx.arguments["n"] > 10 else None

    async def main() -> None:
        hearing = await session_of(Guard(), named("setter", lambda _: {"n": 99})).review_call(
            call_context(n=1)
        )
        ruling = compose_call(hearing.directives, hearing.arguments).ruling
        assert isinstance(ruling, CallRuling)
        assert ruling.error == deny_call("too much").error

    asyncio.run(main())


# Results


def test_a_result_turned_into_a_failure_stays_a_failure() -> None:
    """Ours: composition is monotone after a call too."""

    class Strict(Plugin):
        @hook
        async def after_tool_call(self, ctx: Any) -> Any:
            return deny_call("not this")

    class Lenient(Plugin):
        @hook
        async def after_tool_call(self, ctx: Any) -> Any:
            assert ctx.error is not None
            return ShortCircuitTool(value="all is well")

    async def main() -> None:
        hearing = await session_of(Strict(), Lenient()).review_result(tool_result_context("secret"))
        assert hearing.context.error == deny_call("not this").error
        assert hearing.context.value is None
        assert [(one.what, one.winner, one.loser) for one in hearing.conflicts] == [
            ("result", "strict", "lenient")
        ]

    asyncio.run(main())


def test_each_hook_sees_the_result_of_the_hooks_before_it() -> None:
    """Ours: each hook is given the result of the hook before it."""

    class Twice(Plugin):
        @hook
        async def after_tool_call(self, ctx: Any) -> Any:
            return ShortCircuitTool(value=ctx.value * 2)

    class Again(Twice):
        """The same plugin under another name."""

    async def main() -> None:
        hearing = await session_of(Twice(), Again()).review_result(tool_result_context(3))
        assert hearing.context.value == 12
        assert hearing.conflicts == []

    asyncio.run(main())


# In a turn


class Wisher(Plugin):
    """A plugin that returns directives at one stage."""

    def __init__(self, stage: str, *wanted: PluginDirective) -> None:
        self._stage = stage
        self._wanted = list(wanted)

    async def _say(self, stage: str) -> Any:
        return self._wanted if stage == self._stage else None

    @hook
    async def before_turn(self, ctx: Any) -> Any:
        return await self._say("before_turn")

    @hook
    async def before_tool_call(self, ctx: Any) -> Any:
        return await self._say("before_tool_call")

    @hook
    async def after_tool_call(self, ctx: Any) -> Any:
        return await self._say("after_tool_call")

    @hook
    async def checkpoint(self, ctx: Any) -> Any:
        return await self._say(ctx.checkpoint)

    @hook
    async def after_turn(self, ctx: Any) -> Any:
        return await self._say("after_turn")


class OtherWisher(Wisher):
    """The same plugin under another name."""


def test_conflicting_arguments_fail_the_call_and_the_tool_does_not_run(memory: Place) -> None:
    """Seed: two unconditional argument replacers are a conflict, not a race."""

    async def main() -> None:
        ear, notes = Ear(), Notes()
        one = Wisher("before_tool_call", ReplaceToolArgs(arguments={"text": "a"}))
        other = OtherWisher("before_tool_call", ReplaceToolArgs(arguments={"text": "b"}))
        agent = Agent(Actor(), tools=[notes.tool()], plugins=[one, other])
        async with memory.runtime(trace=ear) as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
        [error] = errors_of(result.messages)
        assert error.code == "PLUGIN_ERROR"
        assert "'wisher'" in error.message
        assert "'other-wisher'" in error.message
        assert notes.written == []
        [conflict] = ear.named("plugin_conflict")
        assert set(conflict.body["plugins"]) == {"wisher", "other-wisher"}
        assert conflict.turn_id == result.turn_id

    asyncio.run(main())


def test_the_tool_receives_the_replaced_arguments(memory: Place) -> None:
    """Seed: ReplaceToolArgs changes the arguments of the call."""

    async def main() -> None:
        notes = Notes()
        one = Wisher("before_tool_call", ReplaceToolArgs(arguments={"text": "other"}))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), tools=[notes.tool()], plugins=[one]))
            await session.turn("go")
        assert notes.written == ["other"]

    asyncio.run(main())


def test_conflicts_are_traced_with_both_plugins(memory: Place) -> None:
    """Seed: every conflict is traced with both plugin ids."""

    async def main() -> None:
        ear, notes = Ear(), Notes()
        one = Wisher("before_tool_call", ShortCircuitTool(value="cached"))
        other = OtherWisher("before_tool_call", deny_call("never"))
        agent = Agent(Actor(), tools=[notes.tool()], plugins=[one, other])
        async with memory.runtime(trace=ear) as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("go")
        [error] = errors_of(result.messages)
        assert error.code == Code.PERMISSION_DENIED
        [conflict] = ear.named("plugin_conflict")
        assert conflict.body == {"what": "short circuit", "plugins": ["other-wisher", "wisher"]}
        assert notes.written == []

    asyncio.run(main())


@pytest.mark.parametrize("stage", ["before_turn", "before_tool_call", "after_tool_call", "before_completion"])
def test_an_abort_ends_the_turn_wherever_it_is_legal(stage: str, memory: Place) -> None:
    """Seed: AbortTurn ends the turn with the plugin's error."""

    async def main() -> None:
        notes = Notes()
        one = Wisher(stage, AbortTurn(message="enough", code="MINE", hint="go home"))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), tools=[notes.tool()], plugins=[one]))
            outcome = (await session.turn("go").settled()).outcome
            assert isinstance(outcome, Stopped)
            assert outcome.reason is StopReason.PLUGIN_ABORT
            error = ErrorObject(code="MINE", message="plugin 'wisher': enough", hint="go home")
            assert outcome.error == error
        executed = stage not in ("before_turn", "before_tool_call")
        assert notes.written == (["hi"] if executed else [])

    asyncio.run(main())


def test_a_short_circuit_gives_a_result_without_running_the_tool(memory: Place) -> None:
    """Seed: ShortCircuitTool settles a call with a result."""

    async def main() -> None:
        notes = Notes()
        one = Wisher("before_tool_call", ShortCircuitTool(value="from the cache"))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), tools=[notes.tool()], plugins=[one]))
            result = await session.turn("go")
        assert notes.written == []
        assert [one.value for one in result.messages if hasattr(one, "value")] == ["from the cache"]

    asyncio.run(main())


def test_a_question_makes_the_call_wait_for_a_person(memory: Place) -> None:
    """Ours: a plugin may require an approval, regardless of the tool's own policy."""

    async def main() -> None:
        notes = Notes()
        one = Wisher("before_tool_call", ask_person("is that wise?"))
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), tools=[notes.tool()], plugins=[one]))
            waiting = await session.turn("go").settled()
            assert waiting.status == "waiting"
            [approval] = await session.approvals(pending=True)
            assert approval.reason == "is that wise?"
            assert notes.written == []
            result = await session.approve(approval.approval_id)
            assert result.outcome == Finished(text="done")
        assert notes.written == ["hi"]

    asyncio.run(main())


def test_messages_reach_the_model_and_events_the_history(memory: Place) -> None:
    """Seed: EnqueueMessages, EmitRuntimeEvents and EmitTrace reach the model, the history and the trace."""

    async def main() -> None:
        ear, model = Ear(), Actor(tool="none")
        one = Wisher(
            "before_turn",
            EnqueueMessages(messages=(UserMessage(content="psst"),)),
            EmitRuntimeEvents(events=(RuntimeEvent(kind="seen", body=[1]),)),
            EmitTrace(name="looked", body={"at": 1}),
        )
        async with memory.runtime(trace=ear) as runtime:
            session = await runtime.session("s", agent=Agent(model, plugins=[one]))
            await session.turn("go")
            nodes = [node.payload for node in await session.nodes()]
        assert said(model.requests[0].messages) == ["go", "psst"]
        assert PluginNode(plugin_id="wisher", kind="seen", body=[1]) in nodes
        [record] = ear.named("looked")
        assert (record.plugin_id, record.body, record.session_id) == ("wisher", {"at": 1}, "s")

    asyncio.run(main())


def test_a_session_is_created_once_with_its_first_input(memory: Place) -> None:
    """Seed: CreateSession starts a session with an input."""

    async def main() -> None:
        request = SessionRequest(session_id="child", first_input=UserMessage(content="begin"))
        model = Actor(tool="none")
        one = Wisher("after_turn", CreateSession(request=request))
        agent = Agent(model, name="maker", plugins=[one])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("go")
            await until(lambda: any(said(one.messages) == ["begin"] for one in model.requests))
            assert {head.session_id for head in await runtime.sessions()} >= {"s", "child"}

    asyncio.run(main())


class Misnamer(Plugin):
    id = "wisher"

    @hook
    async def before_turn(self, ctx: Any) -> CreateSession:
        return CreateSession(request=SessionRequest(session_id="not a name!"))


@pytest.mark.parametrize(
    "one",
    [Misnamer(), Wisher("before_turn", CreateSession(request=SessionRequest(agent="unknown")))],
    ids=["id", "agent"],
)
def test_a_session_that_cannot_be_created_is_the_plugins_failure(one: Plugin, memory: Place) -> None:
    """Bug: the error did not name the plugin that requested the session."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), plugins=[one]))
            outcome = (await session.turn("go").settled()).outcome
            assert isinstance(outcome, Stopped)
            assert outcome.error.code == "PLUGIN_ERROR"
            assert "'wisher'" in outcome.error.message

    asyncio.run(main())


def test_a_result_may_be_as_large_as_tools_allow() -> None:
    """Ours: a plugin that cleans a result of more than a megabyte must not lose it."""
    after = RegisteredHook("p", "after_tool_call", len)
    assert read_directives(after, ShortCircuitTool(value="x" * (2 << 20)))
    with pytest.raises(PluginFailed, match="the limit is 16777216"):
        read_directives(after, ShortCircuitTool(value="x" * (17 << 20)))
    with pytest.raises(PluginFailed, match="the limit is 1048576"):
        read_directives(after, EmitTrace(name="all", body="x" * (2 << 20)))
