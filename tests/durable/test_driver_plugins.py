"""The driver and plugins: when hooks run, what interrupts them, and which of their state is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from driver_bench import (
    EVERY_STAGE,
    Bench,
    Host,
    finished,
    on,
    replied,
    said,
    saying,
    settled,
    state,
    stepped,
    stopped,
)

from standfast.durable.driver import Committed, Parked
from standfast.durable.effects import EffectHost, EffectSettled, EffectWaits, KeptState
from standfast.errors import ErrorObject, PluginStateLost
from standfast.machine.inputs import CallPrepared, CallRuled, ModelFailed, Stage, ToolSettled
from standfast.model.canonical import digest_bytes
from standfast.model.frame import FrameSwitch
from standfast.model.limits import UsageLimits
from standfast.model.message import ToolMessage
from standfast.model.outcome import Finished, FrameSwitched, StopReason, Wait
from standfast.model.ruling import CallRuling, Ruling
from standfast.model.session import PluginNode
from standfast.ports.session_store import Blob, Lease, Save, Saved, StateRecord

ENOUGH = ErrorObject(code="ENOUGH", message="enough")
BROKEN = ErrorObject(code="PLUGIN_ERROR", message="a hook of p failed")
NOTE = PluginNode(plugin_id="p", kind="note")

FAILED = ModelFailed(at_ms=1, error=ErrorObject(code="PROVIDER_ERROR", message="no"))

Benches = Callable[[], Bench]


def test_plugins_that_return_nothing_cost_a_turn_no_write(bench: Benches) -> None:
    """Ours: a turn with twenty plugins costs at most 1.3 times as much as one without any."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = EVERY_STAGE
        driver, _, commands = await one.begin(replied("", "a"), replied("answer"))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.log.lines == [
            "hooks.before_turn.1",
            "prepare.1",
            "model.1",
            "rule.1",
            "save hooks.before_turn.1 prepare.1 model.1 ruled.1 tool.1.1",
            "run tool.1.1",
            "hooks.after_work.1",
            "save tool.1 hooks.after_work.1 checkpoint.1",
            "prepare.2",
            "model.2",
            "hooks.before_completion.2",
            "hooks.after_turn.2",
            "commit",
        ]

    stepped(bench, test)


# Rulings that contain something


@pytest.mark.parametrize(
    "ruling",
    [saying("psst"), Ruling(events=(NOTE,)), Ruling(model_calls=1)],
    ids=["a message", "an event", "a model call"],
)
def test_before_turn_rulings_are_durable_before_the_model_is_called(bench: Benches, ruling: Ruling) -> None:
    """Seed: an input is durable before any command that follows from it touches the world."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = ("before_turn", "prepare")
        driver, host, commands = await one.begin(replied("answer"))
        host.rulings["hooks.before_turn.1"] = ruling
        await driver.drive(commands)
        model = f"model.{1 + ruling.model_calls}"
        assert one.log.lines == [
            "hooks.before_turn.1", "prepare.1", "save hooks.before_turn.1 prepare.1", model, "commit",
        ]  # fmt: skip

    stepped(bench, test)


def test_a_compaction_is_durable_before_the_model_is_called(bench: Benches) -> None:
    """Ours: another process would compact again, and get a different result."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = ("prepare",)
        driver, host, commands = await one.begin(replied("answer"))
        frame = FrameSwitch(frame_id="f_c", reason="compaction")
        host.preparations["prepare.1"] = CallPrepared(at_ms=1, number=1, compaction=frame)
        driven = await driver.drive(commands)
        assert one.log.lines == ["prepare.1", "save prepare.1", "model.1", "commit"]
        assert isinstance(driven, Committed)
        assert driven.head.frame == "f_c"

    stepped(bench, test)


def test_a_prompt_and_a_view_can_be_prepared_again_and_need_no_write(bench: Benches) -> None:
    """Ours: no entry of the history depends on the prompt or the view."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = ("prepare",)
        driver, host, commands = await one.begin(replied("answer"))
        host.preparations["prepare.1"] = CallPrepared(at_ms=1, number=1, prompt="be brief", view=())
        await driver.drive(commands)
        assert one.log.lines == ["prepare.1", "model.1", "commit"]
        assert driver.machine.prompt == "be brief"

    stepped(bench, test)


def test_a_plugin_message_before_completion_makes_the_model_continue(bench: Benches) -> None:
    """Seed: a checkpoint hook that injects a message before completion continues the turn."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = ("checkpoint", "after_turn")
        driver, host, commands = await one.begin(replied("first"), replied("second"))
        host.rulings["hooks.before_completion.1"] = saying("not yet")
        assert finished(await driver.drive(commands)) == "second"
        assert one.log.lines == [
            "model.1",
            "hooks.before_completion.1",
            "save model.1 hooks.before_completion.1 checkpoint.1",
            "model.2",
            "hooks.before_completion.2",
            "hooks.after_turn.2",
            "commit",
        ]
        assert said("not yet") in driver.machine.messages

    stepped(bench, test)


def test_messages_at_the_end_of_a_turn_become_separate_turns(bench: Benches) -> None:
    """Seed: AppendTurnMessages after a turn; the task of a new frame comes first."""

    async def test(one: Bench) -> None:
        one.stages = ("prepare", "after_turn")
        driver, host, commands = await one.begin()
        frame = FrameSwitch(frame_id="f_2", task="go on")
        host.preparations["prepare.1"] = CallPrepared(at_ms=1, number=1, switch=frame)
        host.rulings["hooks.after_turn.1"] = saying("one", "two")
        driven = await driver.drive(commands)
        assert isinstance(driven.summary.outcome, FrameSwitched)
        waiting = await one.log.inputs("s")
        assert [(item.input_id, item.kind, item.message.content) for item in waiting] == [
            ("t_1.task", "queue", "go on"),
            ("t_1.after.1", "queue", "one"),
            ("t_1.after.2", "queue", "two"),
        ]

    on(bench, test)


def test_after_turn_rulings_are_committed_with_the_turn(bench: Benches) -> None:
    """Ours: machine rule 6, the commit has the complete turn."""

    async def test(one: Bench) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(replied("answer"))
        host.rulings["hooks.after_turn.1"] = Ruling(events=(NOTE,), messages=(said("next"),))
        driven = await driver.drive(commands)
        assert host.outcomes == [Finished(text="answer", value="answer")]
        assert isinstance(driven, Committed)
        assert driven.head.depth == 3
        payloads = [entry.payload for entry in one.log.commits[-1].entries]
        assert payloads == [entry.payload for entry in driver.machine.entries]
        assert payloads[-1] == NOTE

    on(bench, test)


def test_plugins_see_a_postponed_end_again(bench: Benches) -> None:
    """Ours: machine rule 6, rulings on the postponed end are discarded."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(replied("first"), replied("second"))
        host.rulings["hooks.after_turn.1"] = Ruling(events=(NOTE,), messages=(said("dropped"),))
        one.log.before_commit = lambda: one.inject("wait")
        assert finished(await driver.drive(commands)) == "second"
        assert one.log.lines == [
            "model.1",
            "hooks.after_turn.1",
            "refused injected",
            "save model.1 hooks.after_turn.1 checkpoint.1",
            "model.2",
            "hooks.after_turn.2",
            "commit",
        ]
        assert [outcome.text for outcome in host.outcomes if isinstance(outcome, Finished)] == [
            "first",
            "second",
        ]
        assert NOTE not in [entry.payload for entry in driver.machine.entries]
        assert await one.log.inputs("s") == []

    stepped(bench, test)


def test_plugins_see_each_outcome_that_is_about_to_be_committed(bench: Benches) -> None:
    """Seed: turn_finalized observes each outcome that the driver tries to commit."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("answer"))
        one.log.before_commit = lambda: one.log.cancel("t_1")
        await driver.drive(commands)
        assert [type(outcome).__name__ for outcome in host.told] == ["Finished", "Stopped"]

    on(bench, test)


# Interruptions

BROKEN_OFF = {
    "hooks.before_turn.1": "before_turn",
    "prepare.1": "prepare",
    "rule.1": "before_tool_call",
    "hooks.after_work.1": "checkpoint",
}


@pytest.mark.parametrize("key", BROKEN_OFF)
def test_a_cancellation_interrupts_running_hooks(bench: Benches, key: str) -> None:
    """Ours: a caller that cancels a turn does not wait for a plugin."""

    async def test(one: Bench) -> None:
        one.stages = (BROKEN_OFF[key],)  # type: ignore[assignment]
        driver, host, commands = await one.begin(replied("", "a", "b"))
        host.hold(key)
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until(key)
        driver.request_cancel()
        assert stopped(await driving).reason is StopReason.CANCELLED
        assert f"{key} broken off" in one.log.lines
        assert driving.cancelling() == 0
        started = [line for line in one.log.lines if line.startswith("run")]
        assert started == (["run tool.1.1", "run tool.2.1"] if key.startswith("hooks.after") else [])

    on(bench, test)


@pytest.mark.parametrize("key", BROKEN_OFF)
def test_exceeding_the_wall_time_interrupts_running_hooks(bench: Benches, key: str) -> None:
    """Ours: UsageLimits.max_wall_ms includes the time that plugins take."""

    async def test(one: Bench, loop: Any) -> None:
        one.stages = (BROKEN_OFF[key],)  # type: ignore[assignment]
        one.limits = UsageLimits(max_wall_ms=60_000)
        driver, host, commands = await one.begin(replied("", "a"))
        host.hold(key)
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until(key)
        loop.advance(60)
        assert stopped(await driving).reason is StopReason.TURN_BUDGET

    stepped(bench, test)


def test_a_cancellation_interrupts_before_completion_hooks(bench: Benches) -> None:
    """Ours: a turn that has an answer can still be cancelled."""

    async def test(one: Bench) -> None:
        one.stages = ("checkpoint",)
        driver, host, commands = await one.begin(replied("answer"))
        host.hold("hooks.before_completion.1")
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until("hooks.before_completion.1")
        driver.request_cancel()
        assert stopped(await driving).reason is StopReason.CANCELLED

    on(bench, test)


def test_a_turn_cancelled_before_it_began_runs_no_hooks(bench: Benches) -> None:
    """Ours: a cancellation before the first hook wins."""

    async def test(one: Bench) -> None:
        one.stages = ("before_turn",)
        driver, _, commands = await one.begin()
        driver.request_cancel()
        assert stopped(await driver.drive(commands)).reason is StopReason.CANCELLED
        assert one.log.lines == ["commit"]

    on(bench, test)


def test_a_cancellation_does_not_interrupt_after_turn_hooks_or_change_a_failed_outcome(
    bench: Benches,
) -> None:
    """Ours: a cancellation does not interrupt after_turn; the turn ends either way."""

    async def test(one: Bench) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(FAILED)
        go_on = host.hold("hooks.after_turn.1")
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until("hooks.after_turn.1")
        driver.request_cancel()
        go_on.set()
        assert stopped(await driving).reason is StopReason.PROVIDER_ERROR
        assert one.log.lines == ["model.1", "hooks.after_turn.1", "commit"]

    on(bench, test)


def test_a_cancellation_while_after_turn_hooks_see_an_answer_cancels_the_turn(bench: Benches) -> None:
    """Ours: nothing is committed yet, so the cancellation wins, and plugins see the new outcome."""

    async def test(one: Bench) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(replied("answer"))
        go_on = host.hold("hooks.after_turn.1")
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until("hooks.after_turn.1")
        driver.request_cancel()
        go_on.set()
        assert stopped(await driving).reason is StopReason.CANCELLED
        lines = [line for line in one.log.lines if not line.startswith("save")]
        assert lines == ["model.1", "hooks.after_turn.1", "hooks.after_turn.2", "commit"]
        assert [type(outcome).__name__ for outcome in host.outcomes] == ["Finished", "Stopped"]

    on(bench, test)


# Calls


def test_plugins_rule_on_several_calls_concurrently(bench: Benches) -> None:
    """Ours: guards run concurrently, so three slow ones take as long as one."""

    async def test(one: Bench) -> None:
        one.stages = ("before_tool_call",)
        driver, host, commands = await one.begin(replied("", "a", "b", "c"), replied("answer"))
        gates = [host.hold(f"rule.{call_id}") for call_id in (1, 2, 3)]
        driving = asyncio.ensure_future(driver.drive(commands))
        for call_id in (1, 2, 3):
            await one.log.until(f"rule.{call_id}")
        for gate in reversed(gates):
            gate.set()
        assert finished(await driving) == "answer"
        assert one.log.lines[4:8] == [
            "save model.1 ruled.1 ruled.2 ruled.3 tool.1.1 tool.2.1 tool.3.1",
            "run tool.1.1",
            "run tool.2.1",
            "run tool.3.1",
        ]

    on(bench, test)


def test_an_abort_in_a_ruling_on_a_call_starts_none_of_the_calls(bench: Benches) -> None:
    """Seed: AbortTurn before a tool call also stops the calls before it in the same reply."""

    async def test(one: Bench) -> None:
        one.stages = ("before_tool_call",)
        driver, host, commands = await one.begin(replied("", "a", "b"))
        host.rulings["rule.2"] = CallRuling(abort=ENOUGH)
        outcome = stopped(await driver.drive(commands))
        assert (outcome.reason, outcome.error) == (StopReason.PLUGIN_ABORT, ENOUGH)
        assert host.running == []
        results = [one for one in driver.machine.messages if isinstance(one, ToolMessage)]
        assert [one.error.code for one in results if one.error] == ["CANCELLED", "CANCELLED"]

    on(bench, test)


def test_an_abort_in_a_ruling_on_a_result_stops_the_other_calls(bench: Benches) -> None:
    """Seed: AbortTurn after a tool call stops the other calls of the turn."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a", "b"))
        host.finish_at_once = False
        driving = asyncio.ensure_future(driver.drive(commands))
        await host.both_run.wait()
        assert host.deliver is not None
        host.deliver(ToolSettled(at_ms=1, call_id=1, value="r", ruling=Ruling(abort=ENOUGH)))
        assert stopped(await driving).reason is StopReason.PLUGIN_ABORT
        assert host.stopped == 2  # once because the machine requests it, once at the end

    on(bench, test)


def test_calls_that_plugins_settled_or_made_wait_are_not_executed(bench: Benches) -> None:
    """Seed: ShortCircuitTool settles a call, and a guard may require a person's approval."""

    async def test(one: Bench) -> None:
        one.stages = ("before_tool_call",)
        driver, host, commands = await one.begin(replied("", "a", "b"))
        wait = Wait(wait_id="apr_1", kind="completion", call_id=2, due_at=one.clock.now_ms() + 1000)
        host.prepared[1] = EffectSettled(settled(1, "known"), CallRuled(at_ms=1, call_id=1))
        host.prepared[2] = EffectWaits(wait, ruled=CallRuled(at_ms=1, call_id=2))
        driven = await driver.drive(commands)
        assert isinstance(driven, Parked)
        assert host.running == []
        assert one.log.lines[-3:] == ["save model.1 ruled.1 tool.1 ruled.2 wait.apr_1", "parking", "park "]

    on(bench, test)


def test_a_waiting_call_is_written_only_by_the_park_if_nothing_precedes_it(bench: Benches) -> None:
    """Ours: a pause for an approval costs no additional transaction."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"))
        host.parks_at_once = True
        wait = Wait(wait_id="tmr_1", kind="timer", call_id=1, due_at=one.clock.now_ms() + 1000)
        host.prepared[1] = EffectWaits(wait)
        assert isinstance(await driver.drive(commands), Parked)
        assert one.log.lines[-2:] == ["parking", "park model.1 wait.tmr_1"]

    on(bench, test)


def test_another_process_runs_only_the_hooks_whose_rulings_are_not_journaled(bench: Benches) -> None:
    """Seed: recovery never runs a hook twice whose outcome is journaled."""

    async def test(one: Bench) -> None:
        one.stages = EVERY_STAGE
        driver, host, commands = await one.begin(replied("", "a"))
        host.rulings["rule.1"] = CallRuling(arguments={"n": 2})
        host.finish_at_once = False
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until("run tool.1.1")
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        one.clock.advance(31)
        del one.log.lines[:]
        driver, host, commands = await one.take_over(replied("answer"))
        await driver.drive(commands)
        asked = [line for line in one.log.lines if not line.startswith(("save", "commit"))]
        assert asked == [
            "run tool.1.1", "hooks.after_work.1", "prepare.2", "model.2", "hooks.before_completion.2",
            "hooks.after_turn.2",
        ]  # fmt: skip
        assert host.running[0].arguments == {"n": 2}

    on(bench, test)


# Plugin state


def test_plugin_state_is_saved_with_the_inputs_that_caused_it(bench: Benches) -> None:
    """Ours: driver rule 2, another process finds both the state and the inputs, or neither."""

    async def test(one: Bench) -> None:
        one.stages = ("before_tool_call", "checkpoint")
        driver, host, commands = await one.begin(replied("", "a"))
        host.meanwhile["rule.1"] = lambda: host.states.append(state("plugin.guard"))
        host.meanwhile["hooks.after_work.1"] = lambda: host.states.append(state("plugin.guard", b"2"))
        host.hold("model.2")
        driving = asyncio.ensure_future(driver.drive(commands))
        await one.log.until("model.2")
        assert one.log.lines[2] == "save model.1 ruled.1 plugin.guard tool.1.1"
        assert one.log.lines[-2] == "save tool.1 hooks.after_work.1 plugin.guard checkpoint.1"
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        assert await one.states() == {"plugin.guard": b"2"}

    on(bench, test)


def test_a_turn_that_parks_saves_plugin_state(bench: Benches) -> None:
    """Ours: the process that takes the turn over has the plugins' state."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"))
        wait = Wait(wait_id="tmr_1", kind="timer", call_id=1, due_at=one.clock.now_ms() + 1000)
        host.prepared[1] = EffectWaits(wait)
        original = one.log.save

        async def save(lease: Lease, save: Save) -> Saved:
            saved = await original(lease, save)
            host.states.append(state("plugin.p"))
            return saved

        one.log.save = save  # type: ignore[method-assign]
        assert isinstance(await driver.drive(commands), Parked)
        assert one.log.lines[-1] == "park plugin.p"
        assert await one.states() == {"plugin.p": b"1"}

    on(bench, test)


def test_the_end_of_a_turn_commits_plugin_state(bench: Benches) -> None:
    """Seed: plugin state is committed with the turn."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("answer"))
        data = b"notes"
        blob = Blob(digest=digest_bytes(data), data=data)
        host.kept_now = KeptState(StateRecord(body=b'{"a":1}', blobs=(blob.digest,)), (blob,))
        driven = await driver.drive(commands)
        assert isinstance(driven, Committed)
        assert driven.head.state is not None
        assert await one.log.state(driven.head.state) == b'{"a":1}'
        assert await one.log.blob(blob.digest) == data
        assert host.tolerated == [False]

    on(bench, test)


@pytest.mark.parametrize("stages", [(), ("after_turn",)])
def test_a_plugin_that_loses_its_state_ends_the_turn_and_the_end_is_committed_without_it(
    bench: Benches, stages: tuple[Stage, ...]
) -> None:
    """Ours: a plugin that cannot snapshot its state must not keep the turn from ending."""

    async def test(one: Bench, _: Any) -> None:
        one.stages = stages
        driver, host, commands = await one.begin(replied("answer"))
        host.loses_state = True
        outcome = stopped(await driver.drive(commands))
        assert (outcome.reason, outcome.error.code) == (StopReason.PLUGIN_ABORT, "PLUGIN_ERROR")
        assert (
            outcome.error.message
            == PluginStateLost("p", "snapshot", "it cannot say what it remembers").message
        )
        assert host.tolerated == [False, True]
        heard = ["hooks.after_turn.1", "hooks.after_turn.2"] if stages else []
        assert one.log.lines == ["model.1", *heard, "commit"]

    stepped(bench, test)


def test_lost_plugin_state_does_not_change_the_outcome_of_a_failed_turn(bench: Benches) -> None:
    """Ours: a turn that failed reports its own error, not that of the plugin."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(FAILED)
        host.loses_state = True
        assert stopped(await driver.drive(commands)).reason is StopReason.PROVIDER_ERROR
        assert host.tolerated == [True]

    on(bench, test)


def test_attachments_are_saved_with_the_next_write(bench: Benches) -> None:
    """Ours: a message that names a blob is not durable without the blob."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "a"), replied("answer"))
        blob = Blob(digest=digest_bytes(b"x"), data=b"x")
        host.meanwhile["model.1"] = lambda: host.blobs.append(blob)
        await driver.drive(commands)
        assert [save.blobs for save in one.log.saves] == [(blob,), ()]
        assert one.log.commits[-1].blobs == ()

    on(bench, test)


def test_attachments_of_a_refused_commit_are_saved_again(bench: Benches) -> None:
    """Bug: the attachments were lost, and the messages that name them could not be read back."""

    async def test(one: Bench) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(replied("first"), replied("second"))
        blob = Blob(digest=digest_bytes(b"x"), data=b"x")
        host.meanwhile["hooks.after_turn.1"] = lambda: host.blobs.append(blob)
        one.log.before_commit = lambda: one.inject("wait")
        await driver.drive(commands)
        assert one.log.commits[0].blobs == (blob,)
        assert one.log.saves[-1].blobs == (blob,)

    on(bench, test)


def test_a_failing_hook_ends_the_turn_and_does_not_raise_in_the_driver(bench: Benches) -> None:
    """Seed: a failing hook ends the turn with plugin_abort, whatever its stage."""

    async def test(one: Bench) -> None:
        one.stages = ("after_turn",)
        driver, host, commands = await one.begin(replied("answer"))
        host.rulings["hooks.after_turn.1"] = Ruling(failure=BROKEN)
        outcome = stopped(await driver.drive(commands))
        assert (outcome.reason, outcome.error) == (StopReason.PLUGIN_ABORT, BROKEN)

    on(bench, test)


def test_the_test_host_has_every_method_of_an_effect_host() -> None:
    """Ours: the stand-in is an EffectHost; a method added there must be added to it."""
    asked = {name for name in vars(EffectHost) if not name.startswith("_")}
    assert asked <= set(dir(Host))
