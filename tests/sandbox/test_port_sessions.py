"""Sessions on engines behind the `CodeEngine` port: the same table of behaviours for each of them.

A guest is an engine together with code in its language. To add an engine, add a guest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standfast import Approval, BlockingSandbox, CapabilityLimits, RunResult, Sandbox, tool
from standfast.errors import (
    ApprovalAlreadyDecided,
    CodeExecutionUnavailable,
    InvalidArgument,
    SnapshotRefused,
)
from standfast.model.code import Language
from standfast.ports.code_engine import CodeEngine
from standfast.sandbox.cpython import state as cpython_state
from standfast.sandbox.engine_kinds import KINDS, EngineKind, EngineSettings
from standfast.sandbox.monty import workers as monty_state
from standfast.sandbox.quickjs import state as quickjs_state
from standfast.sandbox.snapshots import SnapshotCodec

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The code of every test, in one language."""

    one: str
    bind: str
    read: str
    bind_and_fail: str
    bind_and_loop: str
    wrong_syntax: str
    prints: str
    print_and_hang: str
    print_and_refund: str
    add_input: str
    input_alone: str
    function: str
    call_function: str
    mid_expression: str
    refund: str
    refund_text: str
    bind_and_refund: str
    caught: str
    uncaught: str
    gather: str
    both: str
    two_refunds: str
    meeting: str
    many_calls: str
    sleeps: str
    long_sleep: str
    hang: str
    hang_and_go_on: str
    bad_argument: str
    unserializable: str
    unknown_call: str
    input_and_refund: str
    failing_tool: str


PYTHON = Texts(
    one="1 + 1",
    bind="x = 1",
    read="x",
    bind_and_fail="x = 5\n1 / 0",
    bind_and_loop="x = 6\nwhile True:\n    pass",
    wrong_syntax="x = (",
    prints="print('hello')",
    print_and_hang="print('before')\nx = 7\nhang()",
    print_and_refund="print('before')\nrefund('A')\nprint('after')",
    add_input="x = y + 1\nx",
    input_alone="y",
    function="def double(n):\n    return 2 * n",
    call_function="double(21)",
    mid_expression="x = fee() + len(refund('A1', cents=500)) + fee(2)\nx",
    refund="refund('A')",
    refund_text="'<' + refund('A') + '>'",
    bind_and_refund="x = 2\nrefund('A')\nx",
    caught="try:\n    refund('A')\nexcept PermissionError as e:\n    result = 'sorry: ' + str(e)",
    uncaught="x = 5\nrefund('A')\nx = 6",
    gather="import asyncio\nr = await asyncio.gather(fee(1), refund('A'), fee_later(2))\nr",
    both="refund('A') + ' and ' + refund('B')",
    two_refunds="import asyncio\nawait asyncio.gather(refund('A'), refund('B'))",
    meeting="import asyncio\nawait asyncio.gather(meet(1), meet(2), meet(3))",
    many_calls="n = 0\nfor i in range(9):\n    n = fee(i)",
    sleeps="import time\nfor i in range(40):\n    time.sleep(0.001)\n'slept'",
    long_sleep="x = 8\nimport time\ntime.sleep(1000)",
    hang="hang()",
    hang_and_go_on="try:\n    stuck()\nexcept TimeoutError:\n    result = 'continued'",
    bad_argument="try:\n    refund(fee)\nexcept TypeError as e:\n    result = str(e)",
    unserializable="{1, 2}",
    unknown_call="refnd('A')",
    input_and_refund="big + len(refund('A'))",
    failing_tool="try:\n    broken()\nexcept ValueError as e:\n    result = str(e)",
)

TYPESCRIPT = Texts(
    one="1 + 1",
    bind="const x = 1",
    read="x",
    bind_and_fail="let x = 5\n;(null as any).f()",
    bind_and_loop="let x = 6\nwhile (true) {}",
    wrong_syntax="const x = (",
    prints="console.log('hello')",
    print_and_hang="console.log('before')\nlet x = 7\nawait hang()",
    print_and_refund="console.log('before')\nawait refund('A')\nconsole.log('after')",
    add_input="let x: number = y + 1\nx",
    input_alone="y",
    function="function double(n: number): number {\n  return 2 * n\n}",
    call_function="double(21)",
    mid_expression="let x = await fee() + (await refund({order: 'A1', cents: 500})).length + await fee(2)\nx",
    refund="await refund('A')",
    refund_text="'<' + await refund('A') + '>'",
    bind_and_refund="let x = 2\nawait refund('A')\nx",
    caught="var result\ntry {\n  await refund('A')\n} catch (e: any) {\n  result = 'sorry: ' + e.message\n}",
    uncaught="let x = 5\nawait refund('A')\nx = 6",
    gather="await Promise.all([fee(1), refund('A'), fee_later(2)])",
    both="await refund('A') + ' and ' + await refund('B')",
    two_refunds="await Promise.all([refund('A'), refund('B')])",
    meeting="await Promise.all([meet(1), meet(2), meet(3)])",
    many_calls="for (let i = 0; i < 9; i++) await fee(i)",
    sleeps="for (let i = 0; i < 40; i++) await new Promise((done) => setTimeout(done, 1))\n'slept'",
    long_sleep="let x = 8\nawait new Promise((done) => setTimeout(done, 1_000_000))",
    hang="await hang()",
    hang_and_go_on="var result\ntry { await stuck() } catch (e) { result = 'continued' }",
    bad_argument="var result\ntry { await refund(fee as any) } catch (e: any) { result = e.message }",
    unserializable="new Map([[1, 2]])",
    unknown_call="await refnd('A')",
    input_and_refund="big + (await refund('A')).length",
    failing_tool="var result\ntry { await broken() } catch (e: any) { result = e.message }",
)


@dataclass(frozen=True)
class Guest:
    """An engine and the code of the tests in its language."""

    engine: str
    language: Language
    texts: Texts


GUESTS = {
    "monty": Guest("monty", Language.PYTHON, PYTHON),
    "quickjs": Guest("quickjs", Language.TYPESCRIPT, TYPESCRIPT),
    "cpython": Guest("cpython", Language.PYTHON, PYTHON),
    "auto": Guest("auto", Language.PYTHON, PYTHON),
}


class LoggedSandbox:
    """A sandbox whose tools log their calls."""

    def __init__(self, guest: Guest, clock: Any, **options: Any) -> None:
        self.done: list[Any] = []
        self.texts = guest.texts
        self.clock = clock
        self.hanging = threading.Event()
        self.let_go = threading.Event()
        self.options = {
            "language": guest.language,
            "engine": guest.engine,
            "clock": clock,
            "approval_ttl_s": 600,
            "tools": self._tools(),
            **options,
        }
        self.box = BlockingSandbox(**self.options)

    def _tools(self) -> list[Any]:
        done, barrier = self.done, threading.Barrier(3)

        @tool(side_effect="external_system", approval="manual")
        def refund(order: str, cents: int = 100) -> str:
            """Refund an order."""
            done.append((order, cents))
            return f"paid {cents} for {order}"

        @tool(side_effect="read")
        def fee(n: int = 1) -> int:
            """Return the fee."""
            done.append(("fee", n))
            return 10 * n

        @tool(side_effect="read")
        async def fee_later(n: int = 1) -> int:
            """Return the fee, asynchronously."""
            done.append(("fee", n))
            return 10 * n

        @tool(side_effect="read")
        def meet(n: int) -> int:
            """Return once all three calls run."""
            barrier.wait(timeout=4)
            return n

        @tool(side_effect="read", limits=CapabilityLimits(timeout_ms=60_000))
        def hang() -> None:
            """Return once the test permits it."""
            self.hanging.set()
            self.let_go.wait(timeout=20)

        @tool(side_effect="read", limits=CapabilityLimits(timeout_ms=50))
        def stuck() -> None:
            """Return too late."""
            self.let_go.wait(timeout=20)

        @tool(side_effect="read")
        def broken() -> None:
            """Fail."""
            raise ValueError("told so")

        return [refund, fee, fee_later, meet, hang, stuck, broken]

    def run(self, code: str, **options: Any) -> RunResult:
        return self.box.run(code, session=options.pop("session", "s"), **options)

    def value(self, code: str, **options: Any) -> Any:
        result = self.run(code, **options)
        assert result.status == "ok", result.error
        return result.result

    def wait(self, code: str, session: str = "s", **options: Any) -> tuple[RunResult, list[Approval]]:
        """Run code that must wait for an approval."""
        result = self.run(code, session=session, **options)
        assert result.status == "waiting_for_approval", (result.status, result.error)
        return result, self.box.approvals(session=session, pending=True)

    def ask(self, code: str, session: str = "s", **options: Any) -> str:
        """Run code that must wait for the approval of one call."""
        _, (asked,) = self.wait(code, session, **options)
        return asked.approval_id

    def next(self, session: str = "s") -> str:
        (asked,) = self.box.approvals(session=session, pending=True)
        return asked.approval_id


SLOW = ("cpython", "auto", "quickjs")
"""Engines that are slow because they start a process or a guest for every session."""


@pytest.fixture(params=[pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in GUESTS])
def guest(request: pytest.FixtureRequest) -> Guest:
    return GUESTS[request.param]


@pytest.fixture
def make(guest: Guest, clock: Any) -> Iterator[Callable[..., LoggedSandbox]]:
    """Return a function that creates logged sandboxes; tools that still hang are released at the end."""
    made: list[LoggedSandbox] = []

    def go(**options: Any) -> LoggedSandbox:
        made.append(LoggedSandbox(guest, clock, **options))
        return made[-1]

    yield go
    for logged in made:
        logged.let_go.set()


@pytest.fixture
def logged(make: Callable[..., LoggedSandbox]) -> Iterator[LoggedSandbox]:
    """A sandbox in memory."""
    opened = make()
    with opened.box:
        yield opened


@pytest.fixture
def stored(make: Callable[..., LoggedSandbox], tmp_path: Path) -> Iterator[LoggedSandbox]:
    """A sandbox on disk."""
    opened = make(data_dir=tmp_path / "data")
    with opened.box:
        yield opened


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_keeps_variables_and_reports_its_language_and_engine(
    logged: LoggedSandbox, guest: Guest
) -> None:
    """Seed: a session is state that runs share."""
    assert logged.value(logged.texts.one) == 2
    logged.value(logged.texts.bind)
    logged.value(logged.texts.function)
    assert logged.value(logged.texts.read) == 1
    assert logged.value(logged.texts.call_function) == 42
    assert logged.run(logged.texts.read, session="other").error is not None
    info = logged.box.session("s")
    assert (info.engine, info.meta.language) == (guest.engine, guest.language)
    assert logged.box.session("s").state_bytes > 0


def test_an_error_in_the_code_keeps_the_variables_bound_before_it(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; variables are kept, as in a REPL."""
    failed = logged.run(logged.texts.bind_and_fail)
    assert (failed.status, failed.error and failed.error.code) == ("runtime_error", "RUNTIME_ERROR")
    assert failed.error is not None
    assert failed.error.span is not None
    assert failed.error.span.line == 2
    assert logged.value(logged.texts.read) == 5


def test_a_hard_stop_rolls_the_session_back_and_says_so(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; exceeding a limit rolls the session back, with a diagnostic."""
    logged.value(logged.texts.bind)
    for limits in ({"cpu_ms": 60}, {"wall_ms": 80}):
        stopped = logged.run(logged.texts.bind_and_loop, limits=limits)
        assert stopped.status == "timeout"
        assert [item.code for item in stopped.diagnostics][-1] == "SESSION_ROLLED_BACK"
        assert logged.value(logged.texts.read) == 1


def test_a_run_stopped_during_a_call_reports_its_output(logged: LoggedSandbox) -> None:
    """Ours: wall time includes host calls; earlier output is not lost."""
    logged.value(logged.texts.bind)
    stopped = logged.run(logged.texts.print_and_hang, limits={"wall_ms": 150})
    assert (stopped.status, stopped.error and stopped.error.code) == ("timeout", "TIMEOUT_WALL")
    assert stopped.stdout == "before\n"
    assert stopped.metrics.duration_ms >= 150
    assert [call.status for call in stopped.external_calls] == ["error"]
    assert stopped.external_calls[0].error is not None
    assert stopped.external_calls[0].error.code == "INTERRUPTED"
    assert logged.value(logged.texts.read) == 1


def test_code_that_cannot_be_parsed_is_a_validation_error(logged: LoggedSandbox) -> None:
    """Ours: code that cannot be parsed is not run."""
    assert logged.run(logged.texts.wrong_syntax).status == "validation_error"


def test_a_waiting_run_reports_its_output_so_far(logged: LoggedSandbox) -> None:
    """Ours: the person who decides sees the output, and none is reported twice."""
    waiting = logged.run(logged.texts.print_and_refund)
    assert (waiting.status, waiting.stdout) == ("waiting_for_approval", "before\n")
    ended = logged.box.approve(logged.box.approvals(pending=True)[0].approval_id)
    assert (ended.status, ended.stdout) == ("ok", "before\nafter\n")


def test_output_and_metrics_are_reported(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; metrics are measured."""
    printed = logged.run(logged.texts.prints)
    assert (printed.stdout, printed.stderr) == ("hello\n", "")
    assert printed.metrics.external_calls_count == 0
    truncated = logged.run(logged.texts.prints, limits={"max_stdout_bytes": 3})
    assert truncated.stdout == "hel"
    assert [item.code for item in truncated.diagnostics] == ["OUTPUT_TRUNCATED"]


def test_inputs_exist_only_for_one_run(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; an input is not part of the session."""
    assert logged.value(logged.texts.add_input, inputs={"y": 41}) == 42
    assert logged.value(logged.texts.read) == 42
    assert logged.run(logged.texts.input_alone).error is not None


def test_a_value_that_is_not_json_is_refused(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; the error is RESULT_NOT_SERIALIZABLE."""
    assert (refused := logged.run(logged.texts.unserializable)).error is not None
    assert refused.error.code == "RESULT_NOT_SERIALIZABLE"


def test_a_call_to_an_unknown_name_gets_a_suggestion(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; UNKNOWN_TOOL at run time and at validation."""
    for result in (logged.run(logged.texts.unknown_call), logged.box.validate(logged.texts.unknown_call)):
        assert result.error is not None
        assert result.error.code == "UNKNOWN_TOOL"
        assert "refund" in (result.error.hint or "")
    assert logged.done == []


def test_a_check_runs_nothing_and_knows_the_session(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; `validate_only` checks code against the session without running it."""
    assert logged.box.validate(logged.texts.refund, session="s").status == "ok"
    assert logged.box.sessions() == []
    logged.value(logged.texts.function)
    assert logged.box.validate(logged.texts.call_function, session="s").status == "ok"
    assert logged.box.validate(logged.texts.wrong_syntax, session="s").status == "validation_error"
    assert logged.done == []


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


def test_calls_awaited_together_run_concurrently(logged: LoggedSandbox) -> None:
    """Ours: each call returns only once all three are running."""
    assert logged.value(logged.texts.meeting) == [1, 2, 3]


def test_exactly_the_permitted_number_of_calls_is_made(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; the call after max_external_calls ends the run."""
    stopped = logged.run(logged.texts.many_calls, limits={"max_external_calls": 3})
    assert stopped.error is not None
    assert stopped.error.code == "EXTERNAL_CALLS_EXCEEDED"
    assert logged.done == [("fee", 0), ("fee", 1), ("fee", 2)]
    assert len(stopped.external_calls) == stopped.metrics.external_calls_count == 3


def test_sleeping_takes_time_and_is_not_an_external_call(logged: LoggedSandbox) -> None:
    """Ours: forty sleeps exceed the number of external calls that a run may make."""
    slept = logged.run(logged.texts.sleeps, limits={"max_external_calls": 3})
    assert (slept.status, slept.result) == ("ok", "slept")
    assert slept.metrics.duration_ms >= 40
    assert slept.metrics.external_calls_count == 0
    stopped = logged.run(logged.texts.long_sleep, limits={"wall_ms": 80})
    assert (stopped.error and stopped.error.code) == "TIMEOUT_WALL"


def test_an_exception_from_a_tool_can_be_caught(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; a failing tool raises an exception in the guest."""
    assert "told so" in logged.value(logged.texts.failing_tool)


def test_an_argument_that_is_not_json_fails_the_call_and_requests_no_approval(logged: LoggedSandbox) -> None:
    """Ours: no person is asked about a call that cannot be made."""
    assert "not JSON" in logged.value(logged.texts.bad_argument)
    assert logged.box.approvals() == []


def test_a_hanging_tool_is_abandoned_and_the_run_continues(make: Callable[..., LoggedSandbox]) -> None:
    """Bug: a tool that hung made the host hang."""

    async def go() -> Any:
        logged = make()
        async with Sandbox(**logged.options) as box:
            result = await box.run(logged.texts.hang_and_go_on, session="s")
            assert result.external_calls[0].status == "timeout"
            return result.result

    assert asyncio.run(go()) == "continued"


def test_a_run_can_be_cancelled_during_a_call_and_the_session_stays_usable(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; `cancel` ends a run during a call."""
    logged.value(logged.texts.bind)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(logged.run, logged.texts.hang)
        assert logged.hanging.wait(timeout=10)
        assert logged.box.cancel("s")
        assert running.result(timeout=10).status == "cancelled"
    assert not logged.box.cancel("s")
    assert logged.value(logged.texts.read) == 1


def test_cancelling_an_await_cancels_the_run(make: Callable[..., LoggedSandbox]) -> None:
    """Ours: a caller that gives up leaves nothing running."""

    async def go() -> Any:
        logged = make()
        async with Sandbox(**logged.options) as box:
            await box.run(logged.texts.bind, session="s")
            task = asyncio.create_task(box.run(logged.texts.hang, session="s"))
            await asyncio.to_thread(logged.hanging.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await box.run(logged.texts.read, session="s")).result

    assert asyncio.run(go()) == 1


# ── approvals ────────────────────────────────────────────────────────────────────────────────────


def test_a_call_that_needs_approval_pauses_mid_expression_and_resumes_elsewhere(
    stored: LoggedSandbox, make: Callable[..., LoggedSandbox], tmp_path: Path
) -> None:
    """Ours: SPEC §5; paused mid-expression, closed, approved by another process, nothing repeated."""
    result, (approval,) = stored.wait(stored.texts.mid_expression)
    assert [call.status for call in result.external_calls] == ["ok", "approval_pending"]
    assert result.snapshot_id is not None
    assert stored.done == [("fee", 1)]
    assert (approval.capability, approval.state) == ("refund", "pending")
    other = make(data_dir=tmp_path / "data")
    with other.box:
        assert other.box.session("s").state == "waiting_for_approval"
        continued = other.box.approve(approval.approval_id)
        assert (continued.status, continued.result) == ("ok", 10 + len("paid 500 for A1") + 20)
        assert other.done == [("A1", 500), ("fee", 2)]
        assert [call.status for call in continued.external_calls] == ["ok", "ok", "ok"]
        assert continued.metrics.external_calls_count == 3
        assert other.box.session("s").state == "idle"
        assert other.value(other.texts.read) == continued.result
    assert stored.value(stored.texts.read) == continued.result


def test_a_waiting_session_refuses_other_runs_until_the_decision(logged: LoggedSandbox) -> None:
    """Ours: SPEC §12; a new run is refused instead of queueing behind a person."""
    approval = logged.ask(logged.texts.bind_and_refund)
    refused = logged.run(logged.texts.read)
    assert refused.status == "waiting_for_approval"
    assert refused.error is not None
    assert approval in refused.error.message
    assert logged.box.approve(approval).result == 2
    assert logged.value(logged.texts.read) == 2


def test_a_denial_can_be_caught_and_has_the_reason(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; a denied call raises a catchable error with the reason."""
    denied = logged.box.deny(logged.ask(logged.texts.caught), reason="too much")
    assert denied.status == "ok"
    assert "too much" in denied.result
    assert denied.external_calls[0].status == "denied"
    assert logged.done == []


def test_an_uncaught_denial_ends_the_run(logged: LoggedSandbox) -> None:
    """Ours: the variables are kept, as after any exception."""
    denied = logged.box.deny(logged.ask(logged.texts.uncaught))
    assert (denied.status, denied.error and denied.error.code) == ("permission_denied", "PERMISSION_DENIED")
    assert logged.value(logged.texts.read) == 5


def test_edited_arguments_are_used(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; a person may edit the arguments."""
    edited = logged.box.approve(logged.ask(logged.texts.refund_text), kwargs={"cents": 50})
    assert edited.result == "<paid 50 for A>"
    assert logged.done == [("A", 50)]


def test_an_approval_expires_without_a_decision_and_the_session_stays_usable(logged: LoggedSandbox) -> None:
    """Ours: SPEC §12; an approval must expire instead of blocking the conversation."""
    approval = logged.ask(logged.texts.caught)
    logged.clock.advance(601)
    late = logged.box.approve(approval)
    assert late.status == "ok"
    assert "expired" in late.result
    logged.ask(logged.texts.bind_and_refund)
    logged.clock.advance(601)
    assert logged.value(logged.texts.one) == 2
    assert logged.done == []


def test_a_wait_among_parallel_calls_keeps_the_other_results(stored: LoggedSandbox) -> None:
    """Ours: SPEC §12; approvals can be combined with parallel calls."""
    approval = stored.ask(stored.texts.gather)
    assert sorted(stored.done) == [("fee", 1), ("fee", 2)]
    assert stored.box.approve(approval).result == [10, "paid 100 for A", 20]
    assert len(stored.done) == 3


def test_a_run_may_wait_repeatedly(stored: LoggedSandbox) -> None:
    """Ours: each decision permits one call."""
    first = stored.ask(stored.texts.both)
    again = stored.box.approve(first)
    assert again.status == "waiting_for_approval"
    assert stored.box.approve(stored.next()).result == "paid 100 for A and paid 100 for B"
    assert stored.done == [("A", 100), ("B", 100)]


def test_two_calls_may_wait_at_the_same_time_and_are_decided_one_by_one(stored: LoggedSandbox) -> None:
    """Ours: the run resumes as far as the first decision permits."""
    _, (first, second) = stored.wait(stored.texts.two_refunds)
    assert stored.box.approve(second.approval_id).status == "waiting_for_approval"
    assert stored.done == [("B", 100)]
    assert stored.box.approve(first.approval_id).result == ["paid 100 for A", "paid 100 for B"]
    assert stored.done == [("B", 100), ("A", 100)]


def test_inputs_of_any_size_survive_the_wait(stored: LoggedSandbox) -> None:
    """Ours: an engine that replays needs the inputs again; integers have no limit in JSON."""
    big = 2**53 - 100
    approval = stored.ask(stored.texts.input_and_refund, inputs={"big": big})
    assert stored.box.approve(approval).result == big + len("paid 100 for A")


def test_restoring_a_waiting_run_asks_again(stored: LoggedSandbox) -> None:
    """Ours: SPEC §5; restoring an earlier snapshot never reuses a decision."""
    stored.value(stored.texts.bind)
    result, (old,) = stored.wait(stored.texts.refund)
    assert result.snapshot_id is not None
    data = stored.box.export_snapshot(result.snapshot_id)
    assert stored.box.approve(old.approval_id).result == "paid 100 for A"
    stored.box.restore(data)
    with pytest.raises(ApprovalAlreadyDecided):
        stored.box.approve(old.approval_id)
    assert stored.box.approve(stored.next()).result == "paid 100 for A"
    stored.box.restore(data, session="copy")
    assert stored.box.deny(stored.next("copy")).status == "permission_denied"
    assert stored.value(stored.texts.read, session="copy") == 1
    assert stored.done == [("A", 100), ("A", 100)]


def test_cancelling_a_waiting_run_leaves_the_session_unchanged(logged: LoggedSandbox) -> None:
    """Ours: the approval is cancelled with the run."""
    logged.value(logged.texts.bind)
    approval = logged.ask(logged.texts.bind_and_refund)
    assert logged.box.cancel("s")
    assert logged.box.approval(approval).state == "cancelled"
    assert logged.value(logged.texts.read) == 1


def test_time_spent_waiting_for_a_person_does_not_count(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; wall_ms counts host calls but not the wait."""
    approval = logged.ask(logged.texts.refund, limits={"wall_ms": 2_000})
    logged.clock.advance(300)
    done = logged.box.approve(approval)
    assert done.status == "ok"
    assert done.metrics.duration_ms < 2_000


def test_many_sessions_wait_without_holding_workers(make: Callable[..., LoggedSandbox]) -> None:
    """Ours: SPEC §5; a waiting run releases its worker."""
    logged = make(workers=2)
    with logged.box:
        asked = [logged.ask(logged.texts.refund, session=f"s{n}") for n in range(5)]
        assert logged.value(logged.texts.one, session="free") == 2
        assert {logged.box.approve(item).result for item in asked} == {"paid 100 for A"}


# ── sessions and snapshots ───────────────────────────────────────────────────────────────────────


def test_snapshots_restore_a_session_and_forks_are_copies(stored: LoggedSandbox, guest: Guest) -> None:
    """Seed: snapshot_session, restore_session and fork."""
    stored.value(stored.texts.bind)
    name = stored.box.snapshot("s")
    stored.box.fork("s", "fork")
    stored.run(stored.texts.bind_and_fail)
    assert stored.value(stored.texts.read) == 5
    assert stored.value(stored.texts.read, session="fork") == 1
    assert stored.box.session("fork").engine == guest.engine
    stored.box.restore(name)
    assert stored.value(stored.texts.read) == 1
    result = stored.run(stored.texts.one, snapshot=True)
    assert result.snapshot_id is not None
    stored.box.reset("s")
    assert stored.run(stored.texts.read).error is not None
    assert stored.box.destroy("s")


def test_a_stored_session_continues_in_another_sandbox_on_its_own_engine(
    stored: LoggedSandbox, guest: Guest, tmp_path: Path
) -> None:
    """Ours: the process that opens the directory need not know which engine a session has."""
    stored.value(stored.texts.bind)
    stored.box.__exit__()
    plain = {key: value for key, value in stored.options.items() if key != "engine"}
    with BlockingSandbox(**plain) as other:
        assert other.run(stored.texts.read, session="s").result == 1
        assert other.session("s").engine == guest.engine
    stored.box.__enter__()


def test_a_sessions_language_and_engine_are_fixed(
    stored: LoggedSandbox, guest: Guest, tmp_path: Path
) -> None:
    """Ours: requesting another engine is a typed error, as is restoring into a session of another engine."""
    stored.value(stored.texts.bind)
    other_language = next(item for item in Language if item is not guest.language)
    refused = stored.run(stored.texts.read, language=other_language)
    assert refused.status == "validation_error"
    assert refused.error is not None
    assert f"is {guest.language} on {guest.engine}, not {other_language}" in refused.error.message
    another = "auto" if guest.engine == "monty" else "monty"
    with BlockingSandbox(data_dir=tmp_path / "data", engine=another) as other:
        other.run("x = 9", session="python")
    with pytest.raises(InvalidArgument, match=f"{guest.language} on {guest.engine}"):
        stored.box.restore(stored.box.snapshot("s"), session="python")
    with BlockingSandbox(data_dir=tmp_path / "data", engine=another) as other:
        assert other.run("x", session="python").result == 9
        wrong = other.run("x", session="s")
        assert wrong.error is not None
        assert f"is {guest.language} on {guest.engine}" in wrong.error.message


def test_a_snapshot_of_another_build_is_refused(stored: LoggedSandbox) -> None:
    """Ours: SNAPSHOT_VERSION_MISMATCH is raised before the engine reads the snapshot."""
    stored.value(stored.texts.bind)
    codec = SnapshotCodec((Path(stored.options["data_dir"]) / "snapshot.key").read_bytes())
    header, state = codec.open(stored.box.export_snapshot("s"))
    for change in ({"engine_version": "another"}, {"engine": "unheard-of"}):
        forged = codec.seal(msgspec.structs.replace(header, **change), state)
        assert not stored.box.can_restore(forged)
        with pytest.raises(SnapshotRefused) as caught:
            stored.box.restore(forged, session="target")
        assert caught.value.code == "SNAPSHOT_VERSION_MISMATCH"
    assert stored.value(stored.texts.read) == 1


def test_a_session_stored_by_another_build_is_refused_until_it_is_reset(
    stored: LoggedSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the hint said to reset the session, but resetting read its state first."""
    stored.value(stored.texts.bind)
    asked = stored.ask(stored.texts.bind_and_refund)
    stored.box.__exit__()
    with monkeypatch.context() as upgraded:
        upgraded.setattr(monty_state, "ENGINE_VERSION", "another")
        upgraded.setattr(cpython_state, "VERSION", "another")
        upgraded.setattr(quickjs_state, "build_id", lambda: bytes(16))
        for state in (monty_state, quickjs_state):
            state.decode_state.known.clear()  # another process has not decoded anything yet
        with BlockingSandbox(**stored.options) as other:
            refused = other.run(stored.texts.read, session="s")
            assert refused.error is not None
            assert refused.error.code == "SNAPSHOT_VERSION_MISMATCH"
            assert str(refused.error.hint).startswith("reset the session")
            other.reset("s")
            assert other.approval(asked).state == "cancelled"
    with stored.box as box:
        assert box.session("s").state_bytes == 0
        assert stored.run(stored.texts.read).status != "ok"
        assert stored.value(stored.texts.one) == 2
    stored.box.__enter__()


def test_a_session_whose_engine_is_missing_can_be_reset(
    stored: LoggedSandbox, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: operations that do not run code work wherever the data directory is opened."""

    def missing(settings: EngineSettings) -> CodeEngine:
        raise CodeExecutionUnavailable("not here")

    stored.value(stored.texts.bind)
    stored.box.__exit__()
    with monkeypatch.context() as elsewhere:
        kind = EngineKind(language=guest.language, version=lambda: "1", open=missing)
        elsewhere.setitem(KINDS, guest.engine, kind)
        with BlockingSandbox(**stored.options) as other:
            refused = other.run(stored.texts.read, session="s").error
            assert refused is not None
            assert refused.message == "not here"
            other.reset("s")
            assert other.session("s").engine == guest.engine
    stored.box.__enter__()
    assert stored.run(stored.texts.read).status != "ok"


def test_concurrent_runs_on_one_session_lose_no_state(make: Callable[..., LoggedSandbox]) -> None:
    """Ours: SPEC §5; two runs on one session queue."""
    logged = make(workers=2)
    with logged.box, ThreadPoolExecutor(6) as pool:
        logged.value(logged.texts.bind)
        results = list(pool.map(lambda n: logged.run(logged.texts.add_input, inputs={"y": n}), range(12)))
        assert [(item.result, item.error) for item in results] == [(n, None) for n in range(1, 13)]
