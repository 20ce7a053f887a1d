"""Runs that wait for a person, within one process."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from standfast import Approval, BlockingSandbox, CapabilityLimits, RunResult, Sandbox, tool
from standfast.errors import (
    ApprovalAlreadyDecided,
    ApprovalNotFound,
    InvalidArgument,
    SessionNotFound,
    StandfastError,
)
from standfast.model.canonical import digest_json

pytestmark = pytest.mark.slow


class LoggedSandbox:
    """A sandbox whose tools log their calls."""

    def __init__(self, clock: Any, **options: Any) -> None:
        self.done: list[Any] = []
        self.clock = clock
        done = self.done

        @tool(side_effect="external_system", approval="manual")
        def refund(order: str, cents: int = 100) -> str:
            """Refund an order."""
            done.append((order, cents))
            return f"paid {cents} for {order}"

        @tool(side_effect="external_system", approval="manual")
        async def refund_later(order: str, cents: int = 100) -> str:
            """Refund an order, asynchronously."""
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

        @tool(approval="manual", limits=CapabilityLimits(timeout_ms=50))
        def stuck() -> None:
            """Never return."""
            time.sleep(2)

        self.box = BlockingSandbox(
            tools=[refund, refund_later, fee, fee_later, stuck],
            clock=clock,
            approval_ttl_s=600,
            host={"tools": "here"},
            **options,
        )

    def wait(self, code: str, session: str = "s", **options: Any) -> tuple[RunResult, list[Approval]]:
        """Run code that must wait for an approval."""
        result = self.box.run(code, session=session, **options)
        assert result.status == "waiting_for_approval", (result.status, result.error)
        return result, self.box.approvals(session=session, pending=True)

    def ask(self, code: str, session: str = "s", **options: Any) -> str:
        """Run code that must wait for the approval of one call."""
        _, asked = self.wait(code, session, **options)
        assert len(asked) == 1
        return asked[0].approval_id

    def next(self, session: str = "s") -> str:
        (asked,) = self.box.approvals(session=session, pending=True)
        return asked.approval_id


@pytest.fixture(params=["memory", "disk"])
def logged(request: pytest.FixtureRequest, tmp_path: Path, clock: Any) -> Iterator[LoggedSandbox]:
    made = LoggedSandbox(clock, **({} if request.param == "memory" else {"data_dir": tmp_path / "data"}))
    with made.box:
        yield made


def test_a_call_that_needs_approval_pauses_the_run_in_the_middle_of_an_expression(
    logged: LoggedSandbox,
) -> None:
    """Ours: SPEC §5; the run has a status, a snapshot and a record of the call; the expression waits."""
    result, (approval,) = logged.wait("x = fee() + len(refund('A1', cents=500)) + fee(2)\nx", inputs={"y": 1})
    assert result.result is None
    assert result.error is not None
    assert result.error.code == "WAITING_FOR_APPROVAL"
    assert approval.approval_id in result.error.message
    assert result.snapshot_id is not None
    assert logged.box.export_snapshot(result.snapshot_id)
    assert [call.status for call in result.external_calls] == ["ok", "approval_pending"]
    assert not any(item.code == "SESSION_ROLLED_BACK" for item in result.diagnostics)
    assert (approval.capability, approval.args, approval.kwargs) == ("refund", ["A1"], {"cents": 500})
    assert (approval.state, approval.session_id) == ("pending", "s")
    assert approval.requested_at == logged.clock.ms
    assert approval.expires_at == logged.clock.ms + 600_000
    assert logged.done == [("fee", 1)]
    info = logged.box.session("s")
    assert (info.state, info.approvals) == ("waiting_for_approval", [approval.approval_id])
    assert logged.box.approval_host(approval.approval_id) == {"tools": "here"}

    continued = logged.box.approve(approval.approval_id)
    assert (continued.status, continued.result) == ("ok", 10 + len("paid 500 for A1") + 20)
    assert logged.done == [("fee", 1), ("A1", 500), ("fee", 2)]
    assert [call.status for call in continued.external_calls] == ["ok", "ok", "ok"]
    assert continued.metrics.external_calls_count == 3
    assert logged.box.approval(approval.approval_id).state == "approved"
    assert logged.box.session("s").state == "idle"
    assert logged.box.run("x", session="s").result == continued.result


@pytest.mark.parametrize(
    "form", ["refund('A')", "await refund('A')", "refund_later('A')", "await refund_later('A')"]
)
def test_every_kind_of_call_can_wait(logged: LoggedSandbox, form: str) -> None:
    """Ours: a tool may be sync or async, and awaited or not."""
    assert logged.box.approve(logged.ask(f"'<' + {form} + '>'")).result == "<paid 100 for A>"


def test_a_denied_call_raises_a_permission_error_with_the_reason(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; a denied call raises a catchable error in the guest."""
    approval = logged.ask("try:\n    refund('A')\nexcept PermissionError as e:\n    result = str(e)")
    denied = logged.box.deny(approval, reason="too much")
    assert denied.status == "ok"
    assert "too much" in denied.result
    assert denied.external_calls[0].status == "denied"
    assert logged.done == []
    assert logged.box.approval(approval).state == "denied"
    assert logged.box.approval(approval).reason == "too much"


def test_an_uncaught_denial_ends_the_run(logged: LoggedSandbox) -> None:
    """Ours: the status is permission_denied, and the variables are kept."""
    denied = logged.box.deny(logged.ask("x = 5\nrefund('A')\nx = 6"))
    assert (denied.status, denied.error and denied.error.code) == ("permission_denied", "PERMISSION_DENIED")
    assert denied.error is not None
    assert denied.error.span is not None
    assert denied.error.span.line == 2
    assert logged.box.run("x", session="s").result == 5


def test_edited_arguments_are_used_and_their_digest_is_recorded(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; with edited arguments, the new digest is recorded."""
    approval = logged.ask("refund('A', cents=500)")
    result = logged.box.approve(approval, kwargs={"cents": 50}, reason="half")
    assert result.result == "paid 50 for A"
    assert logged.done == [("A", 50)]
    decided = logged.box.approval(approval)
    digest = digest_json(["refund", ["A"], {"cents": 50}])
    assert (decided.edited_digest, decided.kwargs) == (digest, {"cents": 50})
    assert result.external_calls[0].request_digest == digest


@pytest.mark.parametrize(
    "edit",
    [
        {"kwargs": {"cents": "much"}},
        {"args": []},
        {"args": ["A", 1, 2]},
        {"kwargs": {"nope": 1}},
        {"kwargs": {"order": "B"}},
    ],
    ids=str,
)
def test_edited_arguments_that_violate_the_contract_leave_the_approval_undecided(
    logged: LoggedSandbox, edit: dict[str, Any]
) -> None:
    """Ours: a typing mistake must not use up the decision."""
    approval = logged.ask("refund('A', cents=500)")
    with pytest.raises(InvalidArgument):
        logged.box.approve(approval, **edit)
    assert logged.box.approval(approval).state == "pending"
    assert logged.done == []
    assert logged.box.approve(approval).result == "paid 500 for A"


@pytest.mark.parametrize("bad", [float("nan"), b"x", "\ud800"], ids=repr)
def test_edited_arguments_that_are_not_json_are_refused(logged: LoggedSandbox, bad: Any) -> None:
    """Ours: invalid arguments leave the approval pending."""
    approval = logged.ask("refund('A')")
    with pytest.raises(InvalidArgument):
        logged.box.approve(approval, args=[bad])
    assert logged.box.approval(approval).state == "pending"


def test_an_approval_is_decided_only_once(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; an approval is decided once and used once."""
    approval = logged.ask("refund('A')")
    logged.box.approve(approval)
    for again in (logged.box.approve, logged.box.deny):
        with pytest.raises(ApprovalAlreadyDecided) as caught:
            again(approval)
        assert caught.value.state == "approved"
    assert logged.done == [("A", 100)]


@pytest.mark.parametrize("wrong", ["apr_nope", "", "'; drop table approvals; --", "\0"])
def test_an_unknown_approval_is_not_found(logged: LoggedSandbox, wrong: str) -> None:
    """Ours: an unknown id raises ApprovalNotFound."""
    for call in (logged.box.approve, logged.box.deny, logged.box.approval):
        with pytest.raises(ApprovalNotFound):
            call(wrong)


def test_an_expired_approval_cannot_be_approved_and_its_call_is_never_made(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; approvals expire, and the run resumes with an error that it can catch."""
    approval = logged.ask(
        "try:\n    refund('A')\nexcept PermissionError as e:\n    result = 'sorry: ' + str(e)"
    )
    logged.clock.advance(600)
    assert logged.box.approval(approval).state == "expired"
    assert logged.box.approvals(pending=True) == []
    late = logged.box.approve(approval)
    assert late.status == "ok"
    assert late.result.startswith("sorry: ")
    assert "expired" in late.result
    assert logged.done == []
    assert logged.box.approval(approval).state == "expired"


def test_an_expired_approval_does_not_block_the_session(logged: LoggedSandbox) -> None:
    """Ours: SPEC §12; an approval must expire instead of blocking the conversation."""
    logged.ask("x = 1\nrefund('A')")
    logged.clock.advance(601)
    result = logged.box.run("1 + 1", session="s")
    assert (result.status, result.result) == ("ok", 2)
    assert logged.box.session("s").state == "idle"
    assert logged.done == []


def test_a_new_run_on_a_waiting_session_is_refused_and_lists_the_approvals(logged: LoggedSandbox) -> None:
    """Ours: SPEC §12; a new run is refused instead of queueing behind a person."""
    approval = logged.ask("x = 1\nrefund('A')")
    refused = logged.box.run("x = 2", session="s")
    assert refused.status == "waiting_for_approval"
    assert refused.error is not None
    assert approval in refused.error.message
    assert logged.box.run("1 + 1", session="other").result == 2
    assert logged.box.approve(approval).status == "ok"
    assert logged.box.run("x", session="s").result == 1


def test_code_can_be_checked_while_a_session_waits(logged: LoggedSandbox) -> None:
    """Ours: a check runs no code, so it need not wait."""
    logged.ask("x = 1\nrefund('A')")
    assert logged.box.validate("1 + 1", session="s").status == "ok"


def test_a_wait_inside_gather_keeps_the_results_of_the_other_calls(logged: LoggedSandbox) -> None:
    """Ours: SPEC §12; approvals can be combined with parallel calls."""
    code = "import asyncio\nr = await asyncio.gather(fee(1), refund('A'), fee_later(2))\nr"
    approval = logged.ask(code)
    assert sorted(logged.done) == [("fee", 1), ("fee", 2)]
    result = logged.box.approve(approval)
    assert result.result == [10, "paid 100 for A", 20]
    assert sorted(map(str, logged.done)) == sorted(map(str, [("fee", 1), ("fee", 2), ("A", 100)]))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("decisions", [(True, True), (True, False), (False, False)])
def test_two_waits_can_be_decided_in_either_order(
    logged: LoggedSandbox, order: tuple[int, int], decisions: tuple[bool, bool]
) -> None:
    """Ours: the run resumes as far as the decisions permit."""
    code = (
        "import asyncio\nasync def one(o):\n    try:\n        return await refund(o)\n    except PermissionError:\n"
        "        return 'no ' + o\nresult = await asyncio.gather(one('A'), one('B'))"
    )
    _, asked = logged.wait(code)
    assert [item.args for item in asked] == [["A"], ["B"]]
    results = []
    for index in order:
        decide = logged.box.approve if decisions[index] else logged.box.deny
        results.append(decide(asked[index].approval_id))
    assert results[0].status == "waiting_for_approval"
    assert results[1].status == "ok", results[1].error
    expected = [f"paid 100 for {o}" if yes else f"no {o}" for o, yes in zip("AB", decisions, strict=True)]
    assert results[1].result == expected
    assert sorted(logged.done) == [(o, 100) for o, yes in zip("AB", decisions, strict=True) if yes]


def test_three_approvals_in_a_loop_are_requested_one_after_another(logged: LoggedSandbox) -> None:
    """Ours: each call needs its own approval."""
    first = logged.ask("out = []\nfor o in 'ABC':\n    out.append(refund(o))\nlen(out)")
    second_result = logged.box.approve(first)
    assert second_result.status == "waiting_for_approval"
    second = logged.next()
    assert logged.box.approve(second).status == "waiting_for_approval"
    third = logged.next()
    assert len({first, second, third}) == 3
    assert logged.box.approve(third).result == 3
    assert logged.done == [("A", 100), ("B", 100), ("C", 100)]


def test_a_call_inside_a_function_of_an_earlier_run_can_wait(logged: LoggedSandbox) -> None:
    """Ours: a call may wait anywhere."""
    logged.box.run("def pay(o):\n    before = fee()\n    return [before, refund(o)]", session="s")
    assert logged.box.approve(logged.ask("r = pay('A')\nr")).result == [10, "paid 100 for A"]


def test_finally_blocks_and_handlers_around_a_wait_run_once_and_after_it(logged: LoggedSandbox) -> None:
    """Bug: a wait must not look like an exception to guest code."""
    code = (
        "log = []\ntry:\n    try:\n        log.append(refund('A'))\n    finally:\n        log.append('finally')\n"
        "except BaseException:\n    log.append('except')\nlog"
    )
    approval = logged.ask(code)
    assert logged.box.approve(approval).result == ["paid 100 for A", "finally"]
    approval = logged.ask(code)
    assert logged.box.deny(approval).result == ["finally", "except"]


@pytest.mark.parametrize(
    "code",
    [
        "[refund('A') for i in range(2)]",
        'f\'{refund("A")}{refund("A")}\'',
        "(lambda: refund('A'))() + refund('A')",
        "refund('A') if refund('A') else None",
        "refund(refund('A')[0:0] + 'A') and 1",
    ],
)
def test_an_expression_can_wait_in_any_position(logged: LoggedSandbox, code: str) -> None:
    """Ours: an expression may contain several waits."""
    first = logged.ask(code)
    assert logged.box.approve(first).status == "waiting_for_approval"
    assert logged.box.approve(logged.next()).status == "ok"
    assert logged.done == [("A", 100), ("A", 100)]


def test_inputs_result_and_output_survive_the_wait(logged: LoggedSandbox) -> None:
    """Ours: a run remains one run, however long it waits."""
    logged.box.run("x = 'mine'\nresult = 'old'", session="s")
    code = "print('before', x)\nr = refund(x)\nprint('after', x)\nif r:\n    result = [x, r]"
    approval = logged.ask(code, inputs={"x": "given"})
    done = logged.box.approve(approval)
    assert done.result == ["given", "paid 100 for given"]
    assert done.stdout == "before given\nafter given\n"
    assert logged.box.run("x", session="s").result == "mine"


def test_an_error_after_a_wait_has_its_position(logged: LoggedSandbox) -> None:
    """Ours: spans refer to the run's code, whichever process resumes it."""
    failed = logged.box.approve(logged.ask("x = refund('A')\n'é' + str(1 / 0)"))
    assert failed.error is not None
    assert failed.error.span is not None
    assert (failed.error.span.line, failed.error.span.column) == (2, 11)
    assert logged.box.run("x", session="s").result == "paid 100 for A"


def test_limits_hold_after_a_wait(logged: LoggedSandbox) -> None:
    """Ours: the limits of the run apply, not those of the session."""
    late = logged.box.approve(logged.ask("refund('A')\nwhile True:\n    pass", limits={"cpu_ms": 60}))
    assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_CPU")
    assert late.diagnostics[-1].code == "SESSION_ROLLED_BACK"
    big = logged.box.approve(logged.ask("refund('A')\nx = 'a' * (20 << 20)", limits={"memory_mb": 8}))
    assert (big.status, big.error and big.error.code) == ("resource_exhausted", "MEMORY_EXCEEDED")
    assert logged.box.session("s").state == "idle"


def test_calls_before_the_wait_count_after_it(logged: LoggedSandbox) -> None:
    """Ours: max_external_calls counts the calls before and after a wait together."""
    code = "fee(1)\nrefund('A')\nfee(2)\nfee(3)"
    assert logged.box.approve(logged.ask(code, limits={"max_external_calls": 4})).status == "ok"
    logged.done.clear()
    stopped = logged.box.approve(logged.ask(code, limits={"max_external_calls": 3}))
    assert stopped.error is not None
    assert stopped.error.code == "EXTERNAL_CALLS_EXCEEDED"
    assert logged.done == [("fee", 1), ("A", 100), ("fee", 2)]


@pytest.mark.slow
def test_time_spent_waiting_for_a_person_does_not_count(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; wall_ms counts host calls but not the time spent waiting for an approval."""
    approval = logged.ask("refund('A')\n5", timeout_ms=400)
    logged.clock.advance(300)
    time.sleep(0.45)
    result = logged.box.approve(approval)
    assert (result.status, result.result) == ("ok", 5)
    assert result.metrics.duration_ms < 400


def test_an_approved_tool_that_hangs_is_timed_out(logged: LoggedSandbox) -> None:
    """Ours: the limits of the capability apply after the approval."""
    late = logged.box.approve(logged.ask("stuck()"))
    assert (late.status, late.error and late.error.code) == ("timeout", "TIMEOUT_TOOL")
    assert logged.box.run("1 + 1", session="s").result == 2


def test_cancelling_a_waiting_run_ends_it(logged: LoggedSandbox) -> None:
    """Ours: the approval is cancelled with the run, and the session is unchanged."""
    logged.box.run("x = 1", session="s")
    approval = logged.ask("x = 2\nrefund('A')")
    assert logged.box.cancel("s") is True
    assert logged.box.cancel("s") is False
    assert logged.box.approval(approval).state == "cancelled"
    with pytest.raises(ApprovalAlreadyDecided):
        logged.box.approve(approval)
    assert logged.box.run("x", session="s").result == 1
    assert logged.done == []


@pytest.mark.parametrize("way", ["reset", "destroy"])
def test_reset_and_destroy_drop_the_waiting_run_and_cancel_its_approvals(
    logged: LoggedSandbox, way: str
) -> None:
    """Ours: a person cannot approve a call that no run waits for."""
    approval = logged.ask("x = 2\nrefund('A')")
    getattr(logged.box, way)("s")
    assert logged.box.approval(approval).state == "cancelled"
    with pytest.raises((ApprovalAlreadyDecided, SessionNotFound)):
        logged.box.approve(approval)
    assert logged.box.run("1 + 1", session="s").result == 2
    assert logged.done == []


def test_resume_without_a_decision_keeps_waiting(logged: LoggedSandbox) -> None:
    """Ours: `resume` continues as far as decisions permit, here not at all."""
    approval = logged.ask("refund('A')")
    waiting = logged.box.resume("s")
    assert waiting.status == "waiting_for_approval"
    assert approval in (waiting.error.message if waiting.error else "")
    assert logged.box.approve(approval).status == "ok"
    with pytest.raises(InvalidArgument):
        logged.box.resume("s")


def test_restoring_the_snapshot_of_a_waiting_run_asks_again(logged: LoggedSandbox) -> None:
    """Ours: SPEC §5; restoring an earlier snapshot never reuses a decision."""
    result, (old,) = logged.wait("refund('A')")
    assert result.snapshot_id is not None
    data = logged.box.export_snapshot(result.snapshot_id)
    assert logged.box.approve(old.approval_id).result == "paid 100 for A"
    logged.box.restore(data)
    assert logged.box.session("s").state == "waiting_for_approval"
    with pytest.raises(ApprovalAlreadyDecided):
        logged.box.approve(old.approval_id)
    assert logged.done == [("A", 100)]
    new = logged.next()
    assert new != old.approval_id
    assert logged.box.approve(new).result == "paid 100 for A"
    assert logged.done == [("A", 100), ("A", 100)]


def test_restoring_a_session_that_still_waits_invalidates_the_old_approval(logged: LoggedSandbox) -> None:
    """Ours: one call must not have two approvals."""
    old = logged.ask("x = refund('A')\nx")
    logged.box.restore(logged.box.export_snapshot("s"))
    new = logged.next()
    assert logged.box.approval(old).state == "cancelled"
    with pytest.raises(ApprovalAlreadyDecided):
        logged.box.approve(old)
    assert logged.box.approve(new).result == "paid 100 for A"


def test_a_waiting_run_restored_under_another_id_waits_there(logged: LoggedSandbox) -> None:
    """Ours: the binding contains the session, so the copy needs its own decision."""
    logged.box.run("x = 1", session="s")
    old = logged.ask("x += 1\nrefund('A')\nx")
    logged.box.restore(logged.box.export_snapshot("s"), session="copy")
    (new,) = logged.box.approvals(session="copy", pending=True)
    original = logged.box.approval(old)
    assert original.state == "pending"
    assert new.binding != original.binding
    assert logged.box.approve(new.approval_id).result == 2
    assert logged.box.approve(old).result == 2
    assert logged.done == [("A", 100), ("A", 100)]


def test_the_binding_covers_contract_arguments_session_and_call(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; an approval is bound to all four."""
    bindings = set()
    for index, code in enumerate(
        ["refund('A')", "refund('A')", "refund('B')", "refund_later('A')", "refund('A', 100)"]
    ):
        _, (approval,) = logged.wait(code, session=f"s{index}")
        bindings.add(approval.binding)
    assert len(bindings) == 5


def test_eight_racing_approvers_make_one_call(logged: LoggedSandbox) -> None:
    """Ours: SPEC §4; deciding is a compare-and-set."""
    approval = logged.ask("refund('A')")
    barrier = threading.Barrier(8)

    def race() -> str:
        barrier.wait()
        try:
            return logged.box.approve(approval).status
        except ApprovalAlreadyDecided:
            return "too late"

    with ThreadPoolExecutor(8) as pool:
        outcomes = [future.result() for future in [pool.submit(race) for _ in range(8)]]
    assert sorted(outcomes) == ["ok"] + ["too late"] * 7
    assert logged.done == [("A", 100)]


def test_of_a_concurrent_approval_and_denial_only_one_takes_effect(logged: LoggedSandbox) -> None:
    """Ours: the first decision that is stored wins."""
    for index in range(5):
        approval = logged.ask("refund('A')", session=f"s{index}")
        logged.done.clear()
        with ThreadPoolExecutor(2) as pool:
            yes = pool.submit(logged.box.approve, approval)
            no = pool.submit(logged.box.deny, approval)
            errors = [future.exception() for future in (yes, no)]
        assert sum(isinstance(error, ApprovalAlreadyDecided) for error in errors) == 1
        state = logged.box.approval(approval).state
        assert (state, len(logged.done)) in (("approved", 1), ("denied", 0))


def test_many_sessions_can_wait_at_the_same_time_without_holding_workers(clock: Any) -> None:
    """Ours: SPEC §5; a waiting run releases its worker."""

    @tool(approval="manual")
    def ask(n: int) -> int:
        return n

    async def go() -> None:
        async with Sandbox(tools=[ask], workers=2) as box:
            waiting = await asyncio.gather(*(box.run(f"ask({n})", session=f"s{n}") for n in range(10)))
            assert {item.status for item in waiting} == {"waiting_for_approval"}
            assert (await box.run("1 + 1", session="free")).result == 2
            asked = await box.approvals(pending=True)
            results = await asyncio.gather(*(box.approve(item.approval_id) for item in asked))
            assert sorted(item.result for item in results) == list(range(10))

    asyncio.run(go())


def test_a_changed_contract_invalidates_the_approval(tmp_path: Path, clock: Any) -> None:
    """Ours: a request is bound to the digest of the capability's contract."""
    done: list[str] = []

    def make(description: str) -> Any:
        @tool(name="pay", description=description, approval="manual")
        def pay() -> None:
            done.append(description)

        return pay

    with BlockingSandbox(tools=[make("one")], data_dir=tmp_path) as box:
        box.run("pay()", session="s")
        (approval,) = box.approvals(pending=True)
    with BlockingSandbox(tools=[make("two")], data_dir=tmp_path) as box:
        with pytest.raises(StandfastError) as caught:
            box.approve(approval.approval_id)
        assert caught.value.code == "SNAPSHOT_CAPABILITY_MISMATCH"
        assert box.approval(approval.approval_id).state == "pending"
    with BlockingSandbox(tools=[make("one")], data_dir=tmp_path) as box:
        assert box.approve(approval.approval_id).status == "ok"
    assert done == ["one"]


def test_approvals_are_listed_oldest_first_by_session_and_by_state(logged: LoggedSandbox) -> None:
    """Ours: an operator needs these fields and filters."""
    first = logged.ask("refund('A')", session="a")
    logged.clock.advance(1)
    second = logged.ask("refund('B')", session="b")
    assert [item.approval_id for item in logged.box.approvals()] == [first, second]
    assert [item.approval_id for item in logged.box.approvals(session="b")] == [second]
    logged.box.deny(first)
    assert [item.approval_id for item in logged.box.approvals(pending=True)] == [second]
    assert logged.box.approvals(session="nope") == []
