"""Workers as an operator runs them: processes that share a store and receive signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import shop_app
from fleet import Fleet, until

from standfast import Agent, Runtime
from standfast.errors import NotConfigured
from standfast.model.monitor import MonitorState
from standfast.model.outcome import Finished
from standfast.model.session import TurnRecord, TurnState
from standfast.model.trigger import Schedule
from standfast.ports.model_provider import ModelDelta, ModelRequest
from standfast.worker.worker import Worker, WorkerSettings, require_same_key

pytestmark = pytest.mark.slow
one_store = pytest.mark.sampled(2)
"""`make test` takes one of the two stores, the other on the next day."""


def _texts(turns: list[TurnRecord]) -> set[str]:
    outcomes = [turn.summary.outcome for turn in turns if turn.summary is not None]
    return {one.text for one in outcomes if isinstance(one, Finished)}


@one_store
def test_two_workers_run_every_queued_input_once(fleet: Fleet) -> None:
    """Ours: the store's leases alone decide which worker runs a turn."""
    orders = [(f"s{number % 20}", f"charge A{number}") for number in range(60)]
    first = fleet.start("--concurrency", 2, WORKER_WORK_S=0.1)
    second = fleet.start("--concurrency", 2, WORKER_WORK_S=0.1)
    fleet.queue(*orders, agent=shop_app.shop)
    until(lambda: len(fleet.effects("charged")) >= 60)
    until(lambda: len(fleet.ended()) == 60)
    charges = fleet.effects("charge")
    assert sorted(one.order for one in charges) == sorted(f"A{number}" for number in range(60))
    assert {one.pid for one in charges} == {first.pid, second.pid}
    assert _texts(fleet.ended()) == {f"charged A{number}" for number in range(60)}


@one_store
def test_a_worker_claims_only_from_its_queues_and_within_its_limits(fleet: Fleet) -> None:
    """Ours: `Agent(queue=...)`, `--queues NAME:N`, `Agent(max_concurrent=N)`."""
    fleet.queue(*((f"d{n}", f"charge D{n}") for n in range(4)), agent=shop_app.shop)
    fleet.queue(*((f"r{n}", f"charge R{n}") for n in range(4)), agent=shop_app.reports)
    fleet.queue(*((f"o{n}", f"charge O{n}") for n in range(4)), agent=shop_app.single)
    fleet.start("--queues", "reports:2", WORKER_WORK_S=0.2)
    until(lambda: len(fleet.effects("charged")) == 4)
    assert {one.order[0] for one in fleet.effects()} == {"R"}
    assert fleet.most_at_once("R") == 2
    fleet.start("--queues", "default", WORKER_WORK_S=0.2)
    until(lambda: len(fleet.effects("charged")) == 12)
    assert fleet.most_at_once("O") == 1
    assert fleet.most_at_once("D") > 1


def test_agents_of_a_worker_can_use_the_mcp_servers_in_its_mcp_file(fleet: Fleet) -> None:
    """Bug: only `chat` read `mcp.json`. Each worker starts its own servers."""
    raw_server = Path(__file__).parents[1] / "mcp" / "raw_server.py"
    command = {"command": sys.executable, "args": ["-I", "-S", str(raw_server)]}
    (fleet.home / "mcp.json").write_text(json.dumps({"mcpServers": {"raw": command}}))
    fleet.start("--mcp", fleet.home / "mcp.json", STANDFAST_HOME=fleet.home / "home")
    fleet.queue(("a", "mcp__raw__env A1"), agent=shop_app.shop)
    until(lambda: len(fleet.ended()) == 1)
    assert "PATH" in _texts(fleet.ended()).pop()


@one_store
def test_a_draining_worker_finishes_its_turn_and_claims_no_more(fleet: Fleet) -> None:
    """Ours: on SIGTERM, a running turn finishes; a queued one is left to others."""
    fleet.queue(("a", "hang_once A1"), ("a", "charge A2"), agent=shop_app.shop)
    worker = fleet.start("--health", "127.0.0.1:0", "--concurrency", 4)
    until(lambda: fleet.effects("hang_once"))
    assert worker.ask("/ready")[0] == 200
    status, state = worker.ask("/health")
    assert (status, state["running"], state["state"]) == (200, 1, "working")
    assert state["turns"] == {"queued": 1, "running": 1, "waiting": 0, "stuck": 0}
    worker.signal(signal.SIGTERM)
    until(lambda: worker.ask("/ready")[0] == 503)
    assert worker.ask("/health")[1]["state"] == "draining"
    fleet.open_gate()
    assert worker.wait_ended() == 0
    assert _texts(fleet.ended()) == {"hung for A1"}
    assert not fleet.effects("charge")
    fleet.start()
    until(lambda: fleet.effects("charged"))


@one_store
def test_a_turn_that_outlasts_the_grace_period_is_taken_over_at_once(fleet: Fleet) -> None:
    """Ours: a drained worker releases its leases, so that others need not wait for them to expire."""
    fleet.queue(("a", "hang A1"), ("b", "hang_once B1"), agent=shop_app.shop)
    first = fleet.start("--grace-s", 0.2, "--lease-s", 600)
    until(lambda: len(fleet.effects()) == 2)
    second = fleet.start("--lease-s", 600)
    first.signal(signal.SIGTERM)
    assert first.wait_ended() == 0
    until(lambda: len(fleet.effects("hang")) == 2)
    fleet.open_gate()
    until(lambda: len(fleet.ended()) == 2)
    assert [one.pid for one in fleet.effects("hang")] == [first.pid, second.pid]
    assert len(fleet.effects("hang_once")) == 1
    assert _texts(fleet.ended()) == {"hung for A1", "INTERRUPTED"}


@one_store
def test_another_worker_takes_over_the_turns_of_a_killed_worker(fleet: Fleet) -> None:
    """Ours: an idempotent call is repeated; any other call is reported as interrupted."""
    fleet.queue(("a", "hang A1"), ("b", "hang_once B1"), agent=shop_app.shop)
    first = fleet.start("--lease-s", 600)
    until(lambda: len(fleet.effects()) == 2)
    second = fleet.start("--lease-s", 600)
    first.kill()
    killed_at = time.monotonic()
    until(lambda: len(fleet.effects("hang")) == 2)
    print(f"continued {fleet.effects('hang')[-1].at - killed_at:.2f} s after the kill")
    fleet.open_gate()
    until(lambda: len(fleet.ended()) == 2)
    assert fleet.effects("hang")[-1].pid == second.pid
    assert _texts(fleet.ended()) == {"hung for A1", "INTERRUPTED"}


@one_store
def test_a_stopped_worker_loses_its_turn_and_cannot_commit(fleet: Fleet) -> None:
    """Ours: SIGSTOP for longer than the lease; the zombie is fenced."""
    fleet.queue(("a", "hang A1"), agent=shop_app.shop)
    first = fleet.start("--lease-s", 2)
    until(lambda: fleet.effects("hang"))
    first.signal(signal.SIGSTOP)
    second = fleet.start("--lease-s", 2)
    until(lambda: len(fleet.effects("hang")) == 2)
    fleet.open_gate()
    until(lambda: len(fleet.ended()) == 1)
    first.signal(signal.SIGCONT)
    fleet.queue(("a", "charge A2"), ("b", "charge B1"), agent=shop_app.shop)
    until(lambda: len(fleet.ended()) == 3)
    assert fleet.effects("hang")[1].pid == second.pid
    assert len(fleet.effects("charge")) == 2
    assert _texts(fleet.ended()) == {"hung for A1", "charged A2", "charged B1"}


@one_store
def test_a_worker_resumes_a_turn_when_another_process_approves_its_call(fleet: Fleet) -> None:
    """Ours: ended waits are claimed like queued inputs."""
    fleet.queue(("a", "refund A1"), agent=shop_app.shop)
    fleet.start()
    until(lambda: any(turn.state is TurnState.WAITING for turn in fleet.turns()))

    async def approve(runtime: Runtime) -> None:
        (asked,) = await runtime.approvals(pending=True)
        await runtime.approve(asked.approval_id, decided_by="eve")

    fleet.with_runtime(approve)
    until(lambda: len(fleet.ended()) == 1)
    assert len(fleet.effects("refund")) == 1


@one_store
def test_a_worker_fires_triggers_that_another_process_added(fleet: Fleet) -> None:
    """Ours: a schedule needs no process other than a worker."""

    async def schedule(runtime: Runtime) -> None:
        await runtime.session("a", agent=shop_app.shop)
        await runtime.add_trigger("often", "clock", "a", prompt="look A1", schedule=Schedule(every_ms=1_000))

    fleet.with_runtime(schedule)
    fleet.start()
    until(lambda: len(fleet.effects("look")) >= 2)


@one_store
def test_a_worker_resumes_a_turn_when_its_timer_is_due(fleet: Fleet) -> None:
    """Ours: no process waits for a timer; a worker claims the turn when it is due."""
    fleet.start()
    fleet.queue(("a", "later A1"), agent=shop_app.shop)
    until(lambda: len(fleet.ended()) == 1)
    assert _texts(fleet.ended()) == {"shipped A1"}
    assert len(fleet.effects("later")) == 1


@one_store
def test_parked_code_is_left_to_workers_with_the_same_engine_build(fleet: Fleet) -> None:
    """Ours: a rolling upgrade strands no turn, and a turn that a worker cannot run delays no other turn."""
    old = fleet.start(WORKER_BUILD="one")
    fleet.queue(("a", "refund A1"), agent=shop_app.coder)
    until(lambda: any(turn.state is TurnState.WAITING for turn in fleet.turns()))
    new = fleet.start("--concurrency", 1, WORKER_BUILD="two")
    old.signal(signal.SIGSTOP)
    fleet.with_runtime(_approve_all)
    until(lambda: fleet.with_runtime(lambda runtime: runtime.session_handle("a").blocked()))
    fleet.queue(("b", "charge B1"), ("b", "charge B2"), agent=shop_app.shop)
    until(lambda: len(fleet.effects("charged")) == 2)
    old.signal(signal.SIGCONT)
    until(lambda: len(fleet.ended()) == 3)
    assert {one.pid for one in fleet.effects("charge")} <= {old.pid, new.pid}
    assert [one.pid for one in fleet.effects("refund")] == [old.pid]


async def _approve_all(runtime: Runtime) -> None:
    for asked in await runtime.approvals(pending=True):
        await runtime.approve(asked.approval_id, decided_by="eve")


@one_store
def test_another_worker_restarts_the_monitor_of_a_killed_worker_if_restart_allows_it(fleet: Fleet) -> None:
    """Ours: a monitor's process belongs to one worker; `restart` says whether another one restarts it."""
    first = fleet.start()
    fleet.queue(("a", "watch R1"), ("a", "watch N1"), agent=shop_app.shop)
    until(lambda: len(fleet.effects("watch")) == 2)
    until(lambda: len(fleet.ended()) == 2)
    fleet.start()
    first.kill()
    until(lambda: len(fleet.effects("watch")) == 3)

    async def states(runtime: Runtime) -> dict[str, MonitorState]:
        shown = (await runtime.monitors.snapshot("a")).monitors
        return {one.spec.id: one.state for one in shown}

    until(lambda: fleet.with_runtime(states) == {"R1": MonitorState.RUNNING, "N1": MonitorState.FAILED})
    assert [one.order for one in fleet.effects("watch")][2] == "R1"
    until(lambda: not any(Path(f"/proc/{one.pid}").exists() for one in fleet.effects("watch")[:2]))


def test_only_one_of_two_first_workers_with_different_snapshot_keys_starts(tmp_path: Path) -> None:
    """Bug: both found no key in the store and recorded their own."""

    async def start_both() -> list[object]:
        async with Runtime(tmp_path / "shop.db") as runtime:
            checks = [require_same_key(runtime.store, key * 32, 0) for key in (b"a", b"b")]
            return await asyncio.gather(*checks, return_exceptions=True)

    refused = [one for one in asyncio.run(start_both()) if isinstance(one, NotConfigured)]
    assert len(refused) == 1


@one_store
def test_a_worker_with_a_different_snapshot_key_does_not_start(fleet: Fleet) -> None:
    """Ours: parked code must be readable on every machine."""
    fleet.start(STANDFAST_SNAPSHOT_KEY="k" * 32)
    fleet.start(STANDFAST_SNAPSHOT_KEY="k" * 32)
    other = fleet.launch(STANDFAST_SNAPSHOT_KEY="x" * 32)
    assert other.wait_ended() == 1
    assert "snapshot key" in (fleet.home / "worker-2.log").read_text()


def test_a_worker_does_not_claim_for_an_agent_whose_model_it_cannot_open_and_logs_why(fleet: Fleet) -> None:
    """Bug: it kept their sessions from other workers for a second at a time, and never said why."""
    app = fleet.home / "clerks.py"
    app.write_text("from standfast import Agent\nclerk = Agent('openai:gpt-5', name='clerk')\n")
    fleet.start(app=f"{app}:clerk", OPENAI_API_KEY="")
    log = fleet.home / "worker-0.log"
    until(lambda: "no turns of agent clerk are run here: openai:gpt-5 needs a key" in log.read_text())
    clerk = Agent(shop_app.Words(), name="clerk")
    fleet.queue(("a", "say A 1"), agent=clerk)

    async def offered(runtime: Runtime) -> bool:
        store = runtime.store
        return all([await store.offer(runtime.now_ms(), 0, ("clerk",), 1) for _ in range(30)])

    assert fleet.with_runtime(offered)


@one_store
def test_a_worker_that_cannot_serve_its_health_endpoint_does_not_start(fleet: Fleet) -> None:
    """Bug: an address in use was an internal error with a request to report it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = fleet.launch("--health", f"127.0.0.1:{taken.getsockname()[1]}")
        assert worker.wait_ended() == 1
    assert "cannot serve health on 127.0.0.1" in (fleet.home / "worker-0.log").read_text()


def test_a_worker_that_does_not_start_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it began turns while its key was still being checked, and interrupted them when it ended."""
    called = asyncio.Event()

    class Clerk(shop_app.Words):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
            called.set()
            async for delta in super().stream(request):
                yield delta

    async def check_slowly(store: object, key: object, now_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await called.wait()
        raise NotConfigured("another key")

    clerk = Agent(Clerk(), name="clerk")
    monkeypatch.setattr("standfast.worker.worker.require_same_key", check_slowly)

    async def run() -> None:
        async with Runtime(tmp_path / "shop.db", keeper=False) as other:
            await (await other.session("a", agent=clerk)).queue("say A 1")
        with pytest.raises(NotConfigured):
            await Worker(Runtime(tmp_path / "shop.db", agents=[clerk]), WorkerSettings()).run()

    asyncio.run(run())
    assert not called.is_set()
