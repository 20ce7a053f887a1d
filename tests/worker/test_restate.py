"""Workers behind a real Restate server, in a network namespace that leads nowhere else."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
import shop_app
from fleet import Fleet, WorkerProcess, until
from restate_host import Restate, missing

from standfast import Runtime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.sampled(2),  # one of the two stores
]


def _start(fleet: Fleet, restate: Restate, *words: object, port: int = 9080, **env: object) -> WorkerProcess:
    """Start a worker; workers with the same port share an address, as they would behind a load balancer."""
    listen = ("--engine", "restate", "--listen", f"{restate.here}:{port}", "--health", "127.0.0.1:0")
    return fleet.start(*listen, "--admin", restate.admin, "--ingress", restate.ingress, *words, **env)


class Call(threading.Thread):
    """A call through the ingress that runs concurrently with the test."""

    def __init__(self, restate: Restate, *words: Any, **options: Any) -> None:
        super().__init__(daemon=True)
        self._restate, self._words, self._options = restate, words, options
        self.answer: tuple[int, Any] = (0, None)
        self.start()

    def run(self) -> None:
        self.answer = self._restate.call(*self._words, **self._options)

    def result(self) -> tuple[int, Any]:
        self.join(timeout=60)
        assert not self.is_alive()
        return self.answer


def _approval(fleet: Fleet) -> str:
    async def read(runtime: Runtime) -> str:
        (asked,) = await runtime.approvals(pending=True)
        return asked.approval_id

    return fleet.with_runtime(read)


def test_a_turn_runs_parks_and_is_decided_through_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: any HTTP client can submit turns; a decision reaches a session whose turn is parked."""
    worker = _start(fleet, restate)
    status, done = restate.call("a", "turn", {"prompt": "charge A1", "agent": "shop"})
    assert (status, done["status"], done["text"]) == (200, "finished", "charged A1")
    status, parked = restate.call("a", "turn", {"prompt": "refund A2"})
    assert (status, parked["status"]) == (200, "waiting")
    status, refused = restate.call("a", "turn", {"prompt": "charge A3"})
    assert (status, refused["message"].partition(":")[0]) == (400, "WAITING_FOR_APPROVAL")
    assert restate.call("a", "queue", {"prompt": "charge A4"})[0] == 200
    decision = {"approval_id": _approval(fleet), "approved": True, "decided_by": "eve"}
    assert restate.call("a", "decide", decision)[0] == 200
    until(lambda: [one.order for one in fleet.effects("refund", "charged")] == ["A1", "A2", "A4"])
    assert restate.call("a", "decide", decision)[0] == 200, "a repeated decision is no error"
    assert restate.call("a", "decide", {**decision, "approved": False})[0] == 400
    assert restate.call("b", "turn", {"prompt": "charge B1", "agent": "none"})[0] == 400
    until(lambda: restate.call("a", "show")[1]["state"] == "ended")
    assert worker.ask("/ready")[0] == 200
    worker.signal(signal.SIGTERM)
    assert worker.wait_ended() == 0


def test_an_idempotency_key_names_one_turn_with_and_without_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: idempotency keys pass through to the store."""
    _start(fleet, restate)
    request = {"prompt": "charge A1", "agent": "shop", "idempotency_key": "order-A1"}
    both = [Call(restate, "a", "turn", request, key=key) for key in ("", "", "k", "k")]
    (turn_id,) = {one.result()[1]["turn_id"] for one in both}
    assert restate.call("a", "turn", {**request, "prompt": "charge A2"})[0] == 409

    async def again(runtime: Runtime) -> str:
        session = await runtime.session("a", agent=shop_app.shop)
        return (await session.turn("charge A1", idempotency_key="order-A1").settled()).turn_id

    assert fleet.with_runtime(again) == turn_id
    assert len(fleet.effects("charge")) == 1


def test_another_worker_takes_over_the_turn_of_a_killed_worker(fleet: Fleet, restate: Restate) -> None:
    """Ours: Restate retries the step; the retry takes the turn over where its journal ends."""
    workers = {one.pid: one for one in (_start(fleet, restate, "--lease-s", 600) for _ in range(2))}
    calls = [Call(restate, "a", "turn", {"prompt": "hang A1", "agent": "shop"})]
    calls.append(Call(restate, "b", "turn", {"prompt": "hang_once B1", "agent": "shop"}))
    until(lambda: len(fleet.effects()) == 2)
    began = fleet.effects("hang")[0].pid
    workers[began].kill()
    killed_at = time.monotonic()
    until(lambda: len(fleet.effects("hang")) == 2)
    again = fleet.effects("hang")[1]
    assert again.pid != began
    print(f"continued {again.at - killed_at:.2f} s after the kill, without waiting for the lease")
    fleet.open_gate()
    assert calls[0].result()[1]["text"] == "hung for A1"
    calls[1].result()
    assert len(fleet.effects("hang_once")) == 1


def test_a_turn_survives_the_death_of_the_restate_server(fleet: Fleet, restate: Restate) -> None:
    """Ours: the retry joins a healthy turn and never interrupts it."""
    _start(fleet, restate)
    assert restate.call("a", "turn", {"prompt": "hang_once A1", "agent": "shop"}, send=True)[0] == 202
    until(lambda: fleet.effects("hang_once"))
    restate.restart()
    fleet.open_gate()
    until(lambda: restate.call("a", "show")[1]["state"] == "ended")
    assert restate.call("a", "show")[1]["outcome"]["text"] == "hung for A1"
    assert len(fleet.effects("hang_once")) == 1


def test_a_sweep_finds_inputs_without_an_invocation(fleet: Fleet, restate: Restate) -> None:
    """Ours: an input that another process stored runs through Restate as well."""
    _start(fleet, restate)
    fleet.queue(("a", "charge A1"), agent=shop_app.shop)
    until(lambda: fleet.effects("charged"))
    assert len(fleet.effects("charge")) == 1


def test_a_turn_can_be_cancelled_through_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: cancelling is a shared handler; otherwise it would wait for the turn."""
    _start(fleet, restate)
    assert restate.call("a", "turn", {"prompt": "refund A1", "agent": "shop"})[1]["status"] == "waiting"
    assert restate.call("a", "cancel")[1] == {"cancelled": True}
    until(lambda: restate.call("a", "show")[1]["state"] == "ended")
    assert restate.call("a", "show")[1]["outcome"]["reason"] == "cancelled"
    assert not fleet.effects("refund")


postgres_only = pytest.mark.parametrize("fleet", ["postgres"], indirect=True)


@postgres_only
def test_messages_reach_the_running_turn_through_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: injecting is a shared handler, and one key stands for one message."""
    _start(fleet, restate)
    turn = Call(restate, "a", "turn", {"prompt": "hang A1", "agent": "shop"})
    until(lambda: fleet.effects("hang"))
    message = {"prompt": "charge A2", "idempotency_key": "m1"}
    assert [restate.call("a", "inject", message)[0] for _ in range(2)] == [200, 200]
    fleet.open_gate()
    assert turn.result()[1]["text"] == "charged A2"
    assert len(fleet.effects("charge")) == len(fleet.turns()) == 1


@postgres_only
def test_timers_and_completions_resume_turns_through_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: a parked turn is woken when it is due; outside systems use the ingress."""
    _start(fleet, restate)
    assert restate.call("a", "turn", {"prompt": "later A1", "agent": "shop"})[1]["status"] == "waiting"
    assert restate.call("b", "turn", {"prompt": "order_part B1", "agent": "shop"})[1]["status"] == "waiting"
    (ordered,) = fleet.effects("order_part")
    assert restate.call("b", "complete", {"token": "cpl_none", "value": 1})[0] == 404
    delivery = {"token": ordered.order, "value": "part B1"}
    assert [restate.call("b", "complete", delivery)[0] for _ in range(2)] == [200, 200]
    until(lambda: len(fleet.ended()) == 2)
    assert restate.call("b", "complete", delivery)[0] == 200, "repeated after the end of its turn"
    texts = {restate.call(one, "show")[1]["outcome"]["text"] for one in "ab"}
    assert texts == {"shipped A1", "part B1"}
    assert len(fleet.effects("later")) == 1


@postgres_only
def test_a_request_that_no_retry_can_fix_is_refused_at_once(fleet: Fleet, restate: Restate) -> None:
    """Bug: a request that was not a JSON object was retried for hours, and held the session's lock."""
    _start(fleet, restate)
    for handler, body in (
        ("turn", []),
        ("turn", {"agent": "shop"}),
        ("turn", {"prompt": 7, "agent": "shop"}),
        ("turn", {"prompt": "charge A0", "idempotency_key": 7}),
        ("queue", {"prompt": None}),
        ("inject", {"prompt": ["charge A0"]}),
        ("decide", {"approval_id": "a", "approved": "yes"}),
        ("complete", {"token": 7}),
        ("turn", None),
    ):
        status, refused = restate.call("a", handler, body)
        assert status == 400, (handler, body, refused)
    assert restate.call("a", "decide", {"approval_id": "none", "approved": True})[0] == 404
    assert restate.call("a", "turn", {"prompt": "charge A1", "agent": "shop"})[1]["text"] == "charged A1"


@postgres_only
def test_restate_neither_aborts_long_turns_nor_pauses_retries(fleet: Fleet, restate: Restate) -> None:
    """Ours: by default Restate aborts after 11 minutes, and pauses an invocation after 70 attempts."""
    _start(fleet, restate)
    service = restate.ask_admin("/services/standfast_session")
    for handler in service["handlers"]:
        assert (handler.get("abort_timeout") or service["abort_timeout"]) == "365d", handler
    assert service["retry_policy"]["on_max_attempts"].lower() == "kill"
    assert service["retry_policy"]["max_interval"] == "5s"


@postgres_only
def test_limits_of_agents_and_queues_are_enforced_behind_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: Restate sends all turns at once; the worker runs only as many as its limits allow."""
    _start(fleet, restate, "--queues", "reports:2", WORKER_WORK_S=0.1)
    agents = {"R": "reports", "O": "single", "D": "shop"}
    calls = [
        Call(restate, f"{letter}{number}", "turn", {"prompt": f"charge {letter}{number}", "agent": agent})
        for number in range(4)
        for letter, agent in agents.items()
    ]
    assert {call.result()[1]["status"] for call in calls} == {"finished"}
    assert [fleet.most_at_once(letter) for letter in "RO"] == [2, 1]
    assert fleet.most_at_once("D") > 1


@postgres_only
def test_a_turn_waits_for_its_subagents_behind_restate(fleet: Fleet, restate: Restate) -> None:
    """Ours: the worker itself starts the subagents' turns, and they take no slot."""
    _start(fleet, restate, "--concurrency", 1)
    turn = restate.call("a", "turn", {"prompt": "Charge C1.", "agent": "lead"})[1]
    assert turn["text"] == "All orders are charged."
    assert [one.order for one in fleet.effects("charged")] == ["C1"]


@postgres_only
def test_a_new_version_is_a_new_deployment(fleet: Fleet, restate: Restate) -> None:
    """Ours: a running turn ends on the version it began on; a new turn begins on the new version."""
    old = _start(fleet, restate)
    turn = Call(restate, "a", "turn", {"prompt": "hang_once A1", "agent": "shop"})
    until(lambda: fleet.effects("hang_once"))
    new = _start(fleet, restate, port=9081)
    assert len(restate.ask_admin("/deployments")["deployments"]) == 2
    restate.call("b", "turn", {"prompt": "charge B1", "agent": "shop"})
    fleet.open_gate()
    assert turn.result()[1]["text"] == "hung for A1"
    restate.call("a", "turn", {"prompt": "charge A2"})
    assert {one.pid for one in fleet.effects("hang_once", "hang_once.end")} == {old.pid}
    assert {one.pid for one in fleet.effects("charge")} == {new.pid}
    old.signal(signal.SIGTERM)
    assert old.wait_ended() == 0
    assert restate.call("b", "turn", {"prompt": "charge B2"})[1]["text"] == "charged B2"


@postgres_only
def test_parked_code_resumes_on_the_old_version(fleet: Fleet, restate: Restate) -> None:
    """Ours: the new version cannot load the old version's state, and the old one drains."""
    old = _start(fleet, restate, WORKER_BUILD="one")
    assert restate.call("a", "turn", {"prompt": "refund A1", "agent": "coder"})[1]["status"] == "waiting"
    _start(fleet, restate, port=9081, WORKER_BUILD="two")
    decision = {"approval_id": _approval(fleet), "approved": True}
    assert restate.call("a", "decide", decision)[0] == 200
    until(lambda: len(fleet.ended()) == 1)
    (refunded,) = fleet.effects("refund")
    assert refunded.pid == old.pid
