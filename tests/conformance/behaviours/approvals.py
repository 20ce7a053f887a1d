"""Runs that wait for approval."""

# ruff: noqa: E501 - a row of a table stays on its line

from __future__ import annotations

from behaviours.behaviour import Behaviour
from behaviours.stage import Stage

EXPRESSION_PY = "x = add(1) + len(refund('A1', cents=500)) + add(2)\nx"
EXPRESSION_TS = "const x = await add(1) + (await refund({order: 'A1', cents: 500})).length + await add(2)\nx"
TOTAL = 2 + len("paid 500 for A1") + 3
BEFORE = [("add", 1, 1)]
AFTER = [("A1", 500), ("add", 2, 1)]


def _mid_expression(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    assert stage.ended.error is not None
    assert stage.ended.error.code == "WAITING_FOR_APPROVAL"
    assert [call.status for call in stage.ended.external_calls] == ["ok", "approval_pending"]
    assert stage.ended.snapshot_id is not None
    assert (approval.capability, stage.done) == ("refund", BEFORE)
    continued = stage.box.approve(approval.approval_id)
    assert (continued.status, continued.result, stage.done) == ("ok", TOTAL, BEFORE + AFTER)
    assert stage.value("x") == TOTAL


def _elsewhere(stage: Stage) -> None:
    here, there = stage.here(), stage.there()
    (approval,) = here.waits(stage.code)
    assert here.done == BEFORE
    continued = there.box.approve(approval.approval_id)
    assert (continued.status, continued.result, there.done) == ("ok", TOTAL, AFTER)
    assert there.value("x") == TOTAL
    assert here.value("x") == TOTAL


def _denied(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    denied = stage.box.deny(approval.approval_id, reason="too much")
    assert denied.status == "ok", denied.error
    assert "too much" in denied.result
    assert (denied.external_calls[0].status, stage.done) == ("denied", [])


def _denied_and_not_caught(stage: Stage) -> None:
    code, read = stage.texts
    (approval,) = stage.waits(code)
    denied = stage.box.deny(approval.approval_id)
    assert (denied.status, denied.error and denied.error.code) == ("permission_denied", "PERMISSION_DENIED")
    assert denied.error is not None
    assert denied.error.span is not None
    assert denied.error.span.line == 2
    assert stage.value(read) == 5


def _edited(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    assert (approval.args, approval.kwargs) in [(["A"], {"cents": 500}), ([], {"order": "A", "cents": 500})]
    edit = {**approval.kwargs, "cents": 50}
    assert stage.box.approve(approval.approval_id, kwargs=edit).result == "<paid 50 for A>"
    assert stage.done == [("A", 50)]


def _two_at_once(stage: Stage) -> None:
    first, second = stage.waits(stage.code)
    halfway = stage.box.approve(second.approval_id)
    assert (halfway.status, stage.done) == ("waiting_for_approval", [("B", 100)])
    assert stage.box.deny(first.approval_id).result == ["no A", "paid 100 for B"]


def _beside_other_calls(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    assert stage.done == BEFORE
    assert stage.box.approve(approval.approval_id).result == [2, "paid 100 for A", 3]
    assert stage.done == [*BEFORE, ("A", 100)]


def _repeatedly(stage: Stage) -> None:
    stage.waits(stage.code)
    for _ in range(2):
        (approval,) = stage.asked()
        assert stage.box.approve(approval.approval_id).status == "waiting_for_approval"
    (approval,) = stage.asked()
    assert stage.box.approve(approval.approval_id).result == 3
    assert stage.done == [("A", 100), ("B", 100), ("C", 100)]


def _in_an_earlier_function(stage: Stage) -> None:
    define, call = stage.texts
    stage.value(define)
    (approval,) = stage.waits(call)
    assert stage.box.approve(approval.approval_id).result == [2, "paid 100 for A"]
    assert stage.done == [*BEFORE, ("A", 100)]


def _no_exception(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    assert stage.box.approve(approval.approval_id).result == ["paid 100 for A", "finally"]
    stage.box.reset(stage.session)
    (approval,) = stage.waits(stage.code)
    assert stage.box.deny(approval.approval_id).result == ["finally", "caught"]


def _refuses_other_runs(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    refused = stage.run("1 + 1")
    assert (refused.status, approval.approval_id in str(refused.error)) == ("waiting_for_approval", True)
    assert stage.box.approve(approval.approval_id).result == "paid 100 for A"
    assert stage.value("1 + 1") == 2


def _output_and_inputs_survive(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code, inputs={"name": "é" * 1000})
    done = stage.box.approve(approval.approval_id)
    assert (done.result, done.stdout) == ("é" * 1000, "before\nafter\n")


def _output_before_the_wait(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    assert stage.ended.stdout == "before\n"
    stage.box.deny(approval.approval_id)


def _expires(stage: Stage) -> None:
    (approval,) = stage.waits(stage.code)
    stage.host.clock.advance(601)
    late = stage.box.approve(approval.approval_id)
    assert late.status == "ok", late.error
    assert "expired" in late.result
    assert stage.done == []


def _cancelled(stage: Stage) -> None:
    bind, ask, read = stage.texts
    stage.value(bind)
    (approval,) = stage.waits(ask)
    assert stage.box.cancel(stage.session)
    assert stage.box.approval(approval.approval_id).state == "cancelled"
    assert stage.value(read) == 1


def _no_approval_for_an_invalid_call(stage: Stage) -> None:
    assert "not JSON" in stage.value(stage.code)
    assert stage.asked() == []


CAUGHT_PY = "try:\n    refund('A')\nexcept PermissionError as e:\n    result = 'sorry: ' + str(e)"
CAUGHT_TS = "try { await refund('A') } catch (e: any) {\n  if (e.name === 'PermissionError') result = 'sorry: ' + e.message\n}"
REFUND_PY = "refund('A')"
REFUND_TS = "await refund('A')"

APPROVALS = [
    Behaviour(
        name="a call that needs a person stops the run in the middle of an expression",
        check=_mid_expression,
        py=EXPRESSION_PY,
        ts=EXPRESSION_TS,
    ),
    Behaviour(
        name="a waiting run is approved and resumes elsewhere, and repeats no call",
        check=_elsewhere,
        py=EXPRESSION_PY,
        ts=EXPRESSION_TS,
    ),
    Behaviour(
        name="a denied call raises an exception that code can catch, with the reason",
        check=_denied,
        py=CAUGHT_PY,
        ts=CAUGHT_TS,
    ),
    Behaviour(
        name="a denied call that the code does not catch ends the run and keeps the bindings",
        check=_denied_and_not_caught,
        py=("x = 5\nrefund('A')\nx = 6", "x"),
        ts=("let x = 5\nawait refund('A')\nx = 6", "x"),
    ),
    Behaviour(
        name="a person may change the arguments",
        check=_edited,
        py="'<' + refund('A', cents=500) + '>'",
        ts="'<' + await refund({order: 'A', cents: 500}) + '>'",
    ),
    Behaviour(
        name="two calls wait at once and are decided in any order",
        check=_two_at_once,
        py="import asyncio\nasync def one(o):\n    try:\n        return await refund(o)\n"
        "    except PermissionError:\n        return 'no ' + o\nawait asyncio.gather(one('A'), one('B'))",
        ts="const one = (o: string) => refund(o).catch(() => 'no ' + o)\nawait Promise.all([one('A'), one('B')])",
    ),
    Behaviour(
        name="a waiting call does not delay concurrent calls",
        check=_beside_other_calls,
        py="import asyncio\nawait asyncio.gather(add(1), refund('A'), add_later(2))",
        ts="await Promise.all([add(1), refund('A'), add_later(2)])",
    ),
    Behaviour(
        name="a run may wait again and again",
        check=_repeatedly,
        py="out = []\nfor o in 'ABC':\n    out.append(refund(o))\nlen(out)",
        ts="const out = []\nfor (const o of 'ABC') out.push(await refund(o))\nout.length",
    ),
    Behaviour(
        name="a call may wait inside a function of an earlier run",
        check=_in_an_earlier_function,
        py=("def pay(o):\n    before = add(1)\n    return [before, refund(o)]", "r = pay('A')\nr"),
        ts=(
            "async function pay(o: string) {\n  const before = await add(1)\n  return [before, await refund(o)]\n}",
            "const r = await pay('A')\nr",
        ),
    ),
    Behaviour(
        name="a wait is not an exception: handlers run once, after it",
        check=_no_exception,
        py="log = []\ntry:\n    try:\n        log.append(refund('A'))\n    finally:\n        log.append('finally')\n"
        "except BaseException:\n    log.append('caught')\nlog",
        ts="const log: string[] = []\ntry {\n  try { log.push(await refund('A')) } finally { log.push('finally') }\n"
        "} catch { log.push('caught') }\nlog",
    ),
    Behaviour(
        name="a session that waits refuses other runs",
        check=_refuses_other_runs,
        py=REFUND_PY,
        ts=REFUND_TS,
    ),
    Behaviour(
        name="output and inputs survive the wait",
        check=_output_and_inputs_survive,
        py="print('before')\nrefund('A')\nprint('after')\nname",
        ts="console.log('before')\nawait refund('A')\nconsole.log('after')\nname",
    ),
    Behaviour(
        name="output printed before a wait is reported with the wait",
        check=_output_before_the_wait,
        py="print('before')\nrefund('A')",
        ts="console.log('before')\nawait refund('A')",
    ),
    Behaviour(
        name="an expired approval counts as a denial",
        check=_expires,
        py=CAUGHT_PY,
        ts=CAUGHT_TS,
    ),
    Behaviour(
        name="a waiting run can be cancelled, which restores the session",
        check=_cancelled,
        py=("x = 1", "x = 2\nrefund('A')", "x"),
        ts=("let x = 1", "x = 2\nawait refund('A')", "x"),
    ),
    Behaviour(
        name="no approval is requested for an invalid call",
        check=_no_approval_for_an_invalid_call,
        py="try:\n    refund(add)\nexcept TypeError as e:\n    result = str(e)",
        ts="try { await refund(add as any) } catch (e: any) { result = e.message }",
    ),
]
