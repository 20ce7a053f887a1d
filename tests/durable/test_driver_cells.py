"""The driver and cells: code itself has no outside effect and costs few writes; its calls are journaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cell_turns import MOMENT_S, begin, driving, results, saves, settle_down
from driver_bench import (
    Bench,
    SteppedLoop,
    finished,
    on,
    paused,
    replied,
    saying,
    settled,
    state,
    stepped,
    stopped,
)

from standfast.durable.driver import Committed, Parked
from standfast.durable.effects import EffectSettled, EffectWaits
from standfast.errors import ErrorObject, LeaseLost, StoreUnavailable
from standfast.machine.inputs import FinishRequested, FrameSwitchRequested, Input, ToolSettled, WaitEnded
from standfast.model.frame import FrameSwitch
from standfast.model.limits import UsageLimits
from standfast.model.outcome import Approved, Elapsed, FrameSwitched, Stopped, StopReason, Wait
from standfast.model.ruling import Ruling

ENOUGH = ErrorObject(code="ENOUGH", message="enough")

Benches = Callable[[], Bench]


# Code that only computes


def test_a_cell_starts_and_ends_without_an_extra_write(bench: Benches) -> None:
    """Ours: running a cell has no outside effect; its reply and its result are saved with the checkpoint."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        driver, _host, commands = await begin(one, (settled(1, "4"),))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.log.lines == [
            "model.1",
            "run tool.1.1",
            "save model.1 tool.1 checkpoint.1",
            "model.2",
            "commit",
        ]

    stepped(bench, test)


def test_a_cell_that_finishes_the_turn_costs_no_write_except_the_commit(bench: Benches) -> None:
    """Ours: the last reply and the commit are one transaction, whether the model or code gives the answer."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        answer = FinishRequested(at_ms=1, call_id=1, text="42")
        driver, _host, commands = await begin(one, (answer, settled(1)))
        assert finished(await driver.drive(commands)) == "42"
        assert one.log.lines == ["model.1", "run tool.1.1", "commit"]
        assert results(driver) == [(1, "ok")]

    stepped(bench, test)


def test_the_reply_is_saved_within_a_moment_while_a_cell_computes(bench: Benches) -> None:
    """Ours: a cell that computes for a long time does not delay the write of the reply."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        loop.advance(MOMENT_S * 0.9)
        await settle_down()
        assert saves(one) == []
        loop.advance(MOMENT_S * 0.2)
        await one.log.until("save model.1")
        assert host.deliver is not None
        host.deliver(settled(1, "at last"))
        assert finished(await task) == "answer"
        assert saves(one) == ["save model.1", "save tool.1 checkpoint.1"]

    stepped(bench, test)


def test_results_that_a_cell_resumes_with_are_saved_within_a_moment(bench: Benches) -> None:
    """Ours: after a crash the code runs again, but its calls do not."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "look"),))
        task = driving(driver, commands)
        await one.log.until("cell.1 hears 2")
        await settle_down()
        assert saves(one) == ["save model.1 cell.1.1 tool.2.1"]
        loop.advance(MOMENT_S * 1.1)
        await one.log.until("save tool.2")
        assert host.deliver is not None
        host.deliver(settled(1))
        assert finished(await task) == "answer"

    stepped(bench, test)


def test_a_cell_next_to_another_call_waits_until_that_calls_intent_is_saved(bench: Benches) -> None:
    """Seed: an effect that is not idempotent writes its intent first."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        driver, host, commands = await one.begin(replied("", "run_code", "pay"), replied("answer"))
        host.cells[1] = ((settled(1),),)
        await driver.drive(commands)
        assert one.log.lines[:4] == ["model.1", "save model.1 tool.2.1", "run tool.1.1", "run tool.2.1"]

    stepped(bench, test)


def test_a_store_error_while_a_cell_computes_fails_the_turn(bench: Benches) -> None:
    """Ours: no effect may follow from an input that is not on disk."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        async def fail() -> None:
            one.clock.advance(31)  # the lease expires
            raise StoreUnavailable("disk full")

        driver, host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        one.log.before_save = fail
        loop.advance(MOMENT_S * 1.1)
        await settle_down()
        assert host.deliver is not None
        host.deliver(paused(1, 1, "pay"))
        with pytest.raises(StoreUnavailable, match="disk full"):
            await task
        assert [command.call.call_id for command in host.running] == [1]

    stepped(bench, test)


# The calls of code


def test_a_call_of_a_cell_starts_after_its_pause_and_its_intent_are_on_disk(bench: Benches) -> None:
    """Seed: each call of a cell is an effect in the turn's journal."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        driver, _host, commands = await begin(one, (paused(1, 1, "look"),), (settled(1),))
        assert finished(await driver.drive(commands)) == "answer"
        assert one.log.lines == [
            "model.1",
            "run tool.1.1",
            "save model.1 cell.1.1 tool.2.1",
            "run tool.2.1",
            "cell.1 hears 2",
            "save tool.2 tool.1 checkpoint.1",
            "model.2",
            "commit",
        ]

    stepped(bench, test)


def test_a_result_the_next_pause_and_its_intents_are_one_write(bench: Benches) -> None:
    """Ours: each of several sequential calls costs one transaction, as a native call does."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        cell = (paused(1, 1, "a"), paused(1, 2, "b"), paused(1, 3, "c", "d"), paused(1, 4), settled(1))
        driver, _host, commands = await begin(one, *((step,) for step in cell))
        assert finished(await driver.drive(commands)) == "answer"
        assert saves(one) == [
            "save model.1 cell.1.1 tool.2.1",
            "save tool.2 cell.1.2 tool.3.1",
            "save tool.3 cell.1.3 tool.4.1 tool.5.1",
            "save tool.4 tool.5 cell.1.4 tool.1 checkpoint.1",
        ]

    stepped(bench, test)


def test_a_cell_receives_the_results_of_a_gather_one_by_one_in_journal_order(bench: Benches) -> None:
    """Ours: calls rule 2, the next result that the cell receives is the next one in the journal."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(
            one, (paused(1, 1, "a", "b", "c"),), (paused(1, 2),), (paused(1, 3),), (settled(1),)
        )
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.4.1")
        assert host.deliver is not None
        host.deliver(settled(4))
        host.deliver(settled(2))
        await one.log.until("cell.1 hears 4 2")
        host.deliver(settled(3))
        assert finished(await task) == "answer"
        assert [line for line in one.log.lines if line.startswith("cell")] == [
            "cell.1 hears 4",
            "cell.1 hears 4 2",
            "cell.1 hears 4 2 3",
        ]
        keys = [entry.key for save in one.log.saves for entry in save.entries if entry.kind == "input"]
        assert [key for key in keys if key in ("tool.2", "tool.3", "tool.4")] == [
            "tool.4",
            "tool.2",
            "tool.3",
        ]

    on(bench, test)


def test_a_cell_receives_a_result_that_is_already_known_at_once(bench: Benches) -> None:
    """Ours: a call of code that is refused before its execution is answered like any other."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a", "b"),), (paused(1, 2),), (settled(1),))
        host.prepared[2] = EffectSettled(settled(2, "known"))
        assert finished(await driver.drive(commands)) == "answer"
        assert [command.key for command in host.running] == ["tool.1.1", "tool.3.1"]
        assert [one.value for one in host.continued[-1].answers] == ["known", "ok"]

    on(bench, test)


def test_a_turn_waits_for_a_call_that_outlives_its_cell(bench: Benches) -> None:
    """Ours: calls rule 3, the turn waits for calls that still run after their cell has ended."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a", "b"),), (settled(1, "early"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.3.1")
        assert host.deliver is not None
        host.deliver(settled(2))
        await one.log.until("save tool.1")
        assert not task.done()
        host.deliver(settled(3))
        assert finished(await task) == "answer"
        assert results(driver) == [(1, "early")]

    on(bench, test)


def test_plugins_rule_on_the_calls_of_a_cell(bench: Benches) -> None:
    """Ours: rulings on the cell itself cost no write; those on its calls are saved with their intents."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        one.stages = ("before_tool_call",)
        driver, _host, commands = await begin(one, (paused(1, 1, "a", "b"),), (paused(1, 2),), (settled(1),))
        await driver.drive(commands)
        assert saves(one) == [
            "save model.1 ruled.1 cell.1.1 ruled.2 ruled.3 tool.2.1 tool.3.1",
            "save tool.2 tool.3 cell.1.2 tool.1 checkpoint.1",
        ]

    stepped(bench, test)


# Parking


def waiting(one: Bench, call_id: int, kind: Any = "timer") -> Wait:
    return Wait(wait_id=f"tmr_{call_id}", kind=kind, call_id=call_id, due_at=one.clock.now_ms() + 1000)


def test_the_resources_of_a_cell_are_released_before_the_turn_parks(bench: Benches) -> None:
    """Seed: the worker process is released; the suspended cell is journaled with the park."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "sleep"),))
        host.prepared[2] = EffectWaits(waiting(one, 2))
        host.meanwhile["parking"] = lambda: host.states.append(state("plugin.code", b"suspended"))
        free = host.hold("parking")
        task = driving(driver, commands)
        await one.log.until("parking")
        await settle_down()
        assert not any(line.startswith("park ") for line in one.log.lines)
        free.set()
        assert isinstance(await task, Parked)
        assert one.log.lines[-3:] == [
            "save model.1 cell.1.1 wait.tmr_2",
            "parking",
            "park plugin.code",
        ]
        assert await one.states() == {"plugin.code": b"suspended"}

    on(bench, test)


def test_a_turn_does_not_park_while_its_cell_computes(bench: Benches) -> None:
    """Ours: one call waits, but code that still computes may make more calls."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "sleep", "look"),), (paused(1, 2),))
        host.prepared[2] = EffectWaits(waiting(one, 2))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.3.1")
        await settle_down()
        assert "parking" not in one.log.lines
        assert host.deliver is not None
        host.deliver(settled(3))
        assert isinstance(await task, Parked)
        assert one.log.lines[-3:] == ["cell.1 hears 3", "parking", "park tool.3 cell.1.2"]

    on(bench, test)


def test_a_decision_resumes_the_cell_in_another_process(bench: Benches) -> None:
    """Seed: a decision in any process resumes the cell without repeating calls."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "look", "sleep"),), (paused(1, 2),))
        host.prepared[3] = EffectWaits(waiting(one, 3))
        assert isinstance(await driver.drive(commands), Parked)
        one.clock.advance(2)
        driver, host, _ = await one.take_over(replied("answer"))
        ((wait_id, outcome),) = await one.log.ended_waits("t_1", one.clock.now_ms())
        assert outcome == Elapsed()
        commands = driver.feed(WaitEnded(at_ms=1, wait_id=wait_id, outcome=outcome))
        host.prepared[3] = EffectSettled(settled(3, "slept"))
        host.cells[1] = ((), (), (settled(1, "done"),))
        assert finished(await driver.drive(commands)) == "answer"
        assert host.running == []
        (command,) = host.continued
        assert [one.value for one in command.answers] == ["ok", "slept"]

    on(bench, test)


def test_a_cell_that_ends_abandons_its_waiting_call(bench: Benches) -> None:
    """Ours: calls rule 3, a later decision on the call is ignored."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "pay", "look"),), (settled(1, "early"),))
        host.prepared[2] = EffectWaits(waiting(one, 2, "approval"))
        assert finished(await driver.drive(commands)) == "answer"
        assert results(driver) == [(1, "early")]
        assert driver.feed(WaitEnded(at_ms=1, wait_id="tmr_2", outcome=Approved())) == []

    on(bench, test)


# State that code leaves behind


def test_the_state_of_a_cell_is_saved_together_with_its_result(bench: Benches) -> None:
    """Ours: driver rule 2, another process finds both the result and the variables, or neither."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "look"),), (settled(1),))
        host.leaves[1] = state("plugin.code", b"x = 1")
        await driver.drive(commands)
        assert saves(one) == [
            "save model.1 cell.1.1 tool.2.1",
            "save tool.2 tool.1 plugin.code checkpoint.1",
        ]
        assert host.taken_in == [2, 1]

    stepped(bench, test)


def test_a_duplicate_result_is_accepted_once(bench: Benches) -> None:
    """Ours: a late outcome of a settled effect is ignored."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (settled(1), settled(1, "again")))
        assert finished(await driver.drive(commands)) == "answer"
        assert host.taken_in == [1]

    on(bench, test)


def test_a_cancelled_cell_leaves_no_state(bench: Benches) -> None:
    """Bug: the result arrived together with the end of the turn, and the variables were kept without it."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "run_code", "look"))
        host.cells[1] = ()
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        assert host.deliver is not None
        host.deliver(ToolSettled(at_ms=1, call_id=2, ruling=Ruling(abort=ENOUGH)))
        host.deliver(settled(1, "too late"))
        assert stopped(await task).reason is StopReason.PLUGIN_ABORT
        assert results(driver) == [(1, "CANCELLED"), (2, None)]
        assert host.taken_in == [2]

    on(bench, test)


# Ends in the middle of a cell


def test_a_turn_that_is_ending_starts_no_calls_requested_before(bench: Benches) -> None:
    """Ours: if calls and an abort arrive together, the abort wins."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "run_code", "look"))
        host.cells[1] = ()
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        assert host.deliver is not None
        host.deliver(paused(1, 1, "pay"))
        host.deliver(ToolSettled(at_ms=1, call_id=2, ruling=Ruling(abort=ENOUGH)))
        assert stopped(await task).reason is StopReason.PLUGIN_ABORT
        assert [command.key for command in host.running] == ["tool.1.1", "tool.2.1"]
        assert host.continued == []

    on(bench, test)


def test_a_turn_that_is_ending_resumes_no_cell(bench: Benches) -> None:
    """Ours: if a result that a cell waits for and an abort arrive together, the abort wins."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a", "b"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.3.1")
        assert host.deliver is not None
        host.deliver(settled(2))
        host.deliver(ToolSettled(at_ms=1, call_id=3, ruling=Ruling(abort=ENOUGH)))
        assert stopped(await task).reason is StopReason.PLUGIN_ABORT
        assert host.continued == []
        assert results(driver) == [(1, "CANCELLED")]

    on(bench, test)


def test_a_cell_that_ends_together_with_its_last_call_is_not_resumed(bench: Benches) -> None:
    """Bug: the cell was resumed, the checkpoint after it was forgotten, and the turn hung."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        assert host.deliver is not None
        host.deliver(settled(2))
        host.deliver(settled(1, "broken"))
        assert finished(await task) == "answer"
        assert host.continued == []
        assert results(driver) == [(1, "broken")]

    on(bench, test)


def test_a_cell_that_has_ended_is_not_resumed_while_another_call_runs(bench: Benches) -> None:
    """Bug: the cell was started again while another call of the reply was still running."""

    async def test(one: Bench) -> None:
        driver, host, commands = await one.begin(replied("", "run_code", "look"), replied("answer"))
        host.cells[1] = ((paused(1, 1, "a"),),)
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.3.1")
        assert host.deliver is not None
        host.deliver(settled(3))
        host.deliver(settled(1, "broken"))
        await one.log.until("save tool.3 tool.1")
        host.deliver(settled(2))
        assert finished(await task) == "answer"
        assert host.continued == []

    on(bench, test)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_cancel_request_interrupts_a_computing_cell(bench: Benches, how: str) -> None:
    """Seed: a turn ends even if its cell does not."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        one.limits = UsageLimits(max_wall_ms=60_000)
        driver, host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        if how == "cancel":
            driver.request_cancel()
        else:
            loop.advance(61)
        outcome = stopped(await task)
        assert outcome.reason is (StopReason.CANCELLED if how == "cancel" else StopReason.TURN_BUDGET)
        assert host.stopped >= 1
        assert results(driver) == [(1, "CANCELLED")]

    stepped(bench, test)


def test_a_cancellation_from_another_process_is_seen_while_a_cell_computes(bench: Benches) -> None:
    """Ours: the next write, which is due within milliseconds, reports the cancellation."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, _host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        await one.log.cancel("t_1")
        loop.advance(MOMENT_S * 1.1)
        assert stopped(await task).reason is StopReason.CANCELLED

    stepped(bench, test)


def test_a_cell_does_not_resume_after_a_cancel_request(bench: Benches) -> None:
    """Ours: the result and the request arrive together; the request wins."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        assert host.deliver is not None
        host.deliver(settled(2))
        driver.request_cancel()
        assert stopped(await task).reason is StopReason.CANCELLED
        assert host.continued == []

    on(bench, test)


def test_a_driver_that_lost_the_lease_does_not_resume_a_cell(bench: Benches) -> None:
    """Ours: driver rule 4, a driver without the lease neither writes nor starts an effect."""

    async def test(one: Bench, loop: SteppedLoop) -> None:
        driver, host, commands = await begin(one)
        task = driving(driver, commands)
        await one.log.until("run tool.1.1")
        assert host.deliver is not None
        host.deliver(paused(1, 1, "pay"))
        driver.lose()
        loop.advance(MOMENT_S * 1.1)
        with pytest.raises(LeaseLost):
            await task
        assert (saves(one), [command.key for command in host.running]) == ([], ["tool.1.1"])

    stepped(bench, test)


def test_results_delivered_by_a_cell_after_the_end_change_nothing(bench: Benches) -> None:
    """Seed: a result that arrives after the end of the turn changes nothing."""

    async def test(one: Bench) -> None:
        driver, host, commands = await begin(one, (paused(1, 1, "a"),))
        host.finish_at_once = False
        task = driving(driver, commands)
        await one.log.until("run tool.2.1")
        driver.request_cancel()
        driven = await task
        assert isinstance(driven, Committed)
        before, written = driver.machine.outcome, list(one.log.lines)
        assert host.deliver is not None
        late: tuple[Input, ...] = (
            settled(2),
            paused(1, 2, "b"),
            FinishRequested(at_ms=1, call_id=1, text="late"),
            settled(1),
        )
        for given in late:
            host.deliver(given)
        await settle_down()
        assert (driver.machine.outcome, one.log.lines) == (before, written)
        assert isinstance(before, Stopped)

    on(bench, test)


def test_a_cell_that_switches_frames_opens_the_new_frame_in_the_commit(bench: Benches) -> None:
    """Seed: `continue_as(task, seed)` ends the turn with a frame switch."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        switch = FrameSwitchRequested(at_ms=1, switch=FrameSwitch(frame_id="f_2"))
        driver, _host, commands = await begin(one, (switch, settled(1)))
        driven = await driver.drive(commands)
        assert isinstance(driven.summary.outcome, FrameSwitched)
        assert one.log.lines == ["model.1", "run tool.1.1", "commit"]

    stepped(bench, test)


def test_a_message_before_the_commit_postpones_the_answer_of_a_cell(bench: Benches) -> None:
    """Ours: of a message and a commit exactly one wins, and the model continues after the answer."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        answer = FinishRequested(at_ms=1, call_id=1, text="42")
        driver, _host, commands = await begin(one, (answer, settled(1)), then="43")
        one.log.before_commit = lambda: one.inject("wait")
        assert finished(await driver.drive(commands)) == "43"
        assert one.log.lines == [
            "model.1",
            "run tool.1.1",
            "refused injected",
            "save model.1 finish.1 tool.1 checkpoint.1",
            "model.2",
            "commit",
        ]

    stepped(bench, test)


def test_plugin_messages_about_a_cell_are_durable_before_the_model_is_called(bench: Benches) -> None:
    """Seed: an input is durable before any command that follows from it."""

    async def test(one: Bench, _: SteppedLoop) -> None:
        result = ToolSettled(at_ms=1, call_id=1, value=1, ruling=saying("psst"))
        driver, _host, commands = await begin(one, (result,))
        await driver.drive(commands)
        assert one.log.lines[2:4] == ["save model.1 tool.1 checkpoint.1", "model.2"]

    stepped(bench, test)


def test_a_frame_switch_requested_after_the_last_result_is_executed(bench: Benches) -> None:
    """Ours: the request may arrive together with the last result of the round, or after it."""

    async def test(one: Bench) -> None:
        switch = FrameSwitchRequested(at_ms=1, switch=FrameSwitch(frame_id="f_2"))
        driver, _host, commands = await begin(one, (settled(1), switch))
        driven = await driver.drive(commands)
        assert isinstance(driven.summary.outcome, FrameSwitched)
        assert one.log.lines == ["model.1", "run tool.1.1", "commit"]

    on(bench, test)
