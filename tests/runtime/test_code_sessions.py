"""Features that sessions without a model share with those of agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, Runtime, tool
from standfast.errors import InvalidArgument
from standfast.model.message import AssistantMessage, ToolMessage
from standfast.model.run import RunRequest
from standfast.model.trace_record import TraceRecord
from standfast.runtime.code_runs import RunControl
from standfast.runtime.code_turns import CodeTurn
from standfast.runtime.session_views import export_session
from standfast.runtime.sessions.observation import Observed


class MemoryTrace:
    """A `TraceSink` that keeps its records."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def record(self, record: TraceRecord) -> None:
        self.records.append(record)


@tool(side_effect="read")
def double(n: int) -> int:
    """Return twice n."""
    return 2 * n


@tool(side_effect="external_system", approval="manual")
def refund(order: str) -> str:
    """Pay back an order."""
    return order


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a data directory with a session of three runs."""
    with BlockingSandbox(data_dir=tmp_path) as box:
        for code in ("x = 1", "x = x + 1\nx", "x = 10"):
            assert box.run(code, session="s").status == "ok"
    return tmp_path


def _value(home: Path, session: str) -> Any:
    with BlockingSandbox(data_dir=home) as box:
        result = box.run("x", session=session)
    assert result.error is None, result.error
    return result.result


def test_every_run_is_in_the_history_of_its_session(home: Path) -> None:
    """Ours: SPEC §5, a run is a turn, with its code and its report."""

    async def look() -> tuple[int, list[Any]]:
        async with Runtime(home) as runtime:
            session = await runtime.session("s")
            return len(await session.turns()), list(await session.messages())

    turns, messages = asyncio.run(look())
    assert turns == 3
    calls = [message.tool_calls[0] for message in messages if isinstance(message, AssistantMessage)]
    assert [call.arguments for call in calls] == [
        {"code": "x = 1"}, {"code": "x = x + 1\nx"}, {"code": "x = 10"},
    ]  # fmt: skip
    reports: list[Any] = [message.value for message in messages if isinstance(message, ToolMessage)]
    assert [report.get("result") for report in reports] == [None, 2, None]


def test_a_session_can_be_forked_after_its_second_run_and_rewound(home: Path) -> None:
    """Ours: variables follow the history on every branch."""

    async def work() -> None:
        async with Runtime(home) as runtime:
            session = await runtime.session("s")
            nodes = await session.nodes()
            ends = [node for node in nodes if isinstance(node.payload, ToolMessage)]
            await runtime.fork("s", "copy", at=ends[1].id)
            await runtime.rewind("s", turns=2)

    asyncio.run(work())
    assert _value(home, "copy") == 2
    assert _value(home, "s") == 1
    with BlockingSandbox(data_dir=home) as box:
        assert box.run("x = x + 100\nx", session="copy").result == 102
    assert _value(home, "s") == 1


def test_a_session_can_be_observed_from_a_cursor(home: Path) -> None:
    """Ours: an observer of a session sees the runs that another program makes."""

    async def watch() -> list[Observed]:
        async with Runtime(home) as runtime:
            runtime.poll_s = 0.05
            session = await runtime.session("s")
            cursor = await session.cursor()
            seen: list[Observed] = []
            with BlockingSandbox(data_dir=home) as box:
                await asyncio.to_thread(box.run, "x = 11", session="s")
            async for one in session.observe(cursor):
                seen.append(one)
                if len(seen) == 2:
                    return seen
        raise AssertionError("nothing was seen")

    seen = asyncio.run(asyncio.wait_for(watch(), 60))
    assert "x = 11" in str(seen[0])


def test_a_session_can_be_exported_and_pruned(home: Path) -> None:
    """Ours: retention and export work for every kind of session."""

    async def work() -> tuple[Any, Any]:
        async with Runtime(home) as runtime:
            exported = await export_session(runtime, "s")
            await runtime.rewind("s", turns=1)
            return exported, await runtime.prune(branches=True, session="s")

    exported, pruned = asyncio.run(work())
    assert "x = 10" in str(exported)
    assert pruned.segments == 1
    assert _value(home, "s") == 2


def test_an_agent_cannot_run_turns_in_a_session_without_a_model(home: Path) -> None:
    """Ours: neither kind of session could interpret the history of the other."""
    from standfast import Agent, ScriptedModel
    from standfast.errors import InvalidArgument

    async def work() -> None:
        async with Runtime(home) as runtime:
            await runtime.session("s", agent=Agent(ScriptedModel(["hello"]), name="a"))

    with pytest.raises(InvalidArgument, match="has no model"):
        asyncio.run(work())


def test_a_sandbox_cannot_run_code_in_an_agents_session(tmp_path: Path) -> None:
    """Ours: an agent's session accepts no code from a sandbox."""
    from standfast import Agent, ScriptedModel

    async def talk() -> None:
        async with Runtime(tmp_path) as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel(["hello"]), name="a"))
            await session.turn("hi")

    asyncio.run(talk())
    with BlockingSandbox(data_dir=tmp_path) as box:
        refused = box.run("1", session="s")
    assert refused.error is not None
    assert "belongs to an agent" in refused.error.message


def test_runs_of_a_session_are_traced(tmp_path: Path) -> None:
    """Ours: a run has the spans of a turn: the turn, its cell and the calls of the cell."""
    taken = MemoryTrace()
    with BlockingSandbox(tools=[double], trace=taken, data_dir=tmp_path) as box:
        assert box.run("double(2) + double(3)", session="s").result == 10
        box.run("1 / 0", session="s")
    spans = [record for record in taken.records if record.duration_ms is not None]
    assert [(one.name, one.status) for one in spans] == [
        ("double", "ok"),
        ("double", "ok"),
        ("run_code", "ok"),
        ("(sandbox)", "ok"),
        ("run_code", "error"),
        ("(sandbox)", "ok"),
    ]


def test_a_run_repeated_with_its_idempotency_key_returns_the_stored_result(tmp_path: Path) -> None:
    """Ours: SPEC §7, a repeated request runs nothing, even in another process or after a failure."""
    long = "x" * 100_000
    for attempt in range(2):
        with BlockingSandbox(data_dir=tmp_path, tools=[double]) as box:
            first = box.run("n = 1\nprint('once')\ndouble(n)", session="s", idempotency_key="k")
            assert (first.result, first.stdout, len(first.external_calls)) == (2, "once\n", 1), attempt
            assert box.run("n += 1", session="s", idempotency_key="add").status == "ok"
            assert box.run(repr(long), session="s", idempotency_key="long").result == long
            failed = box.run("raise ValueError('no')", session="s", idempotency_key="failed")
            assert failed.status == "runtime_error"
            other = box.run("2", session="s", idempotency_key="k")
            assert other.error is not None
            assert other.error.message.startswith("idempotency key 'k'"), other.error
    with BlockingSandbox(data_dir=tmp_path) as box:
        assert box.run("n", session="s").result == 2


@pytest.mark.parametrize("key", [4711, b"k", True, ""])
def test_an_idempotency_key_that_is_not_text_or_is_empty_is_refused(tmp_path: Path, key: Any) -> None:
    """Bug: a number made the session unusable, and an empty key returned the result of other code."""
    with BlockingSandbox(data_dir=tmp_path) as box:
        refused = box.run("n = 1", session="s", idempotency_key=key)
        assert refused.error is not None
        assert refused.error.code == "INVALID_ARGUMENT"
        assert "idempotency key must be non-empty text" in refused.error.message
        assert box.run("n = 2\nn", session="s").result == 2
        assert box.recover() == {}


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -1, "60", True])
def test_a_setting_that_is_no_duration_is_refused(seconds: Any) -> None:
    """Bug: infinity raised `OverflowError`, and a negative time made every approval expire at once."""
    for name in ("approval_ttl_s", "keep_journals"):
        with pytest.raises(InvalidArgument, match=f"{name} must be a number of seconds"):
            BlockingSandbox(**{name: seconds})
    with BlockingSandbox() as box:
        with pytest.raises(InvalidArgument, match="ttl_s must be a number of seconds"):
            box.create("s", ttl_s=seconds)
        assert box.sessions() == []


@pytest.mark.parametrize("workers", [0, -1, 1.5, "4"])
def test_a_sandbox_without_workers_is_refused(workers: Any) -> None:
    """Bug: 0 meant the default, and 1.5 failed in the first run."""
    with pytest.raises(InvalidArgument, match="workers must be at least 1"):
        BlockingSandbox(workers=workers)


def test_repeating_the_request_of_a_waiting_run_waits_for_the_same_approval(tmp_path: Path) -> None:
    """Ours: the key names the run, whether it waits or has ended."""
    with BlockingSandbox(data_dir=tmp_path, tools=[refund]) as box:
        first = box.run("refund('A')", session="s", idempotency_key="k")
        again = box.run("refund('A')", session="s", idempotency_key="k")
        assert (first.status, again.status) == ("waiting_for_approval", "waiting_for_approval")
        (approval,) = box.approvals(pending=True)
        assert box.approve(approval.approval_id).result == "A"
        assert box.run("refund('A')", session="s", idempotency_key="k").result == "A"
        assert len(box.approvals()) == 1


def test_a_run_cancelled_before_its_cell_starts_ends_at_once() -> None:
    """Bug: a cancellation between the beginning of the turn and that of its cell was lost."""

    class Early(RunControl):
        def admit(self, turn: CodeTurn) -> None:
            super().admit(turn)
            self.cancel()

    with BlockingSandbox() as box:
        box.run("x = 1", session="s")
        request = RunRequest(session_id="s", code="x = 2\nwhile True:\n    pass")
        assert box._runs.run(request, Early()).status == "cancelled"
        assert box.run("x", session="s").result == 1
