"""Cells that wait midway for a person, a time or an outside result, and resume anywhere."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from code_stand_ins import blob_sizes, cell, coder, finish, outcomes, reports, typing, value_of
from stand_ins import Place, events_of, go_on, until

from standfast import CompleteLater, RunContext, Runtime, ToolError, tool
from standfast.errors import (
    Code,
    CodeExecutionUnavailable,
    InvalidArgument,
    SessionBusy,
    TokenAlreadyUsed,
    TurnUnfinished,
)
from standfast.model.approval import ApprovalState
from standfast.model.capability import CallStatus
from standfast.model.events import TurnParked, WaitBegan
from standfast.model.outcome import Stopped, StopReason
from standfast.model.session import TurnState
from standfast.sandbox.monty.cell_engine import MontyCells
from standfast.testing.clock import FakeClock

pytestmark = pytest.mark.slow

Start = Callable[..., Any]


class Shop:
    """Tools of a shop, and a log of their calls."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.tokens: list[str] = []

        @tool(side_effect="read")
        async def price(order: str) -> int:
            """Return the price of an order."""
            self.did.append(f"price {order}")
            return len(order)

        @tool(side_effect="external_system", approval="manual")
        async def refund(order: str, cents: int = 1) -> int:
            """Pay back."""
            self.did.append(f"refund {order} {cents}")
            return cents

        @tool(side_effect="external_system")
        async def ordered(ctx: RunContext[None], what: str = "") -> CompleteLater:
            """Order something; an outside system reports when it is there."""
            self.did.append(f"ordered {what}")
            self.tokens.append(ctx.completion_token())
            return CompleteLater(self.tokens[-1])

        self.tools = [price, refund, ordered]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def filed(tmp_path: Path, clock: FakeClock) -> Place:
    """Return a store in a SQLite file only."""
    return Place(tmp_path / "standfast.db", clock)


def engine_of(runtime: Runtime) -> MontyCells:
    """Return the engine that runs the cells of a runtime."""
    engines: Any = runtime._open.services.engines
    (opened,) = engines._opened.values()
    engine = opened.cells
    assert isinstance(engine, MontyCells)
    return engine


def holds_nothing(runtime: Runtime) -> bool:
    """Return whether no cell is open in the engine and every worker slot is free."""
    engine = engine_of(runtime)
    workers = engine._workers
    return not engine.live and not workers._lent and workers._free + len(workers._warm) == workers.capacity


# Approvals


def test_a_cell_can_wait_in_the_middle_of_an_expression(place: Place, shop: Shop) -> None:
    """Ours: a resumed cell does not repeat the computation before the wait."""

    async def main() -> None:
        agent = coder(cell('x = 1 + price("AB") * refund("A", 5)'), finish("x"), tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("go")
            events = await events_of(turn)
            waiting = await turn
            assert [type(one) for one in events[-2:]] == [WaitBegan, TurnParked]
            assert (waiting.status, shop.did) == ("waiting", ["price AB"])
            (asked,) = await session.approvals(pending=True)
            assert (asked.capability, asked.kwargs) == ("refund", {"order": "A", "cents": 5})
            result = await session.approve(asked.approval_id)
            assert (result.output, shop.did) == ("11", ["price AB", "refund A 5"])
            assert [one.status for one in result.calls] == [CallStatus.OK] * 2
            (first, _) = reports(result.messages)
            assert [(one.name, one.status) for one in first.calls] == [
                ("price", CallStatus.OK),
                ("refund", CallStatus.OK),
            ]

    asyncio.run(main())


def test_a_waiting_cell_holds_no_worker(place: Place, shop: Shop) -> None:
    """Ours: a waiting cell releases its worker, and the turn is waiting."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            await session.turn("x = 1")
            waiting = await session.turn('refund("A", 2)')
            assert holds_nothing(runtime)
            record = await session.unfinished()
            assert record is not None
            assert (record.turn_id, record.state) == (waiting.turn_id, TurnState.WAITING)
            with pytest.raises(TurnUnfinished):
                await session.turn("x")
            result = await session.approve(waiting.waits[0].wait_id)
            assert outcomes(result.messages) == [2]

    asyncio.run(main())


def test_many_sessions_can_wait_with_few_workers(memory: Place, shop: Shop) -> None:
    """Ours: waiting costs only a row: twenty cells wait on an engine with eight workers."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = typing(tools=shop.tools)
            sessions = [await runtime.session(f"s{number}", agent=agent) for number in range(20)]
            code = "x = {0} * refund('o', {0})\nx"
            waiting = await asyncio.gather(*[s.turn(code.format(n)) for n, s in enumerate(sessions)])
            assert [one.status for one in waiting] == ["waiting"] * 20
            assert holds_nothing(runtime)
            ended = await asyncio.gather(
                *[s.approve(w.waits[0].wait_id) for s, w in zip(sessions, waiting, strict=True)]
            )
            assert [outcomes(one.messages) for one in ended] == [[n * n] for n in range(20)]

    asyncio.run(main())


def test_a_denial_raises_an_exception_that_code_can_catch(place: Place, shop: Shop) -> None:
    """Ours: code gets a PermissionError with the reason."""

    async def main() -> None:
        code = """
        try:
            refund("A", 5)
        except PermissionError as error:
            told = str(error)
        told
        """
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=coder(cell(code), finish("told"), tools=shop.tools))
            wait = (await session.turn("go")).waits[0]
            result = await session.deny(wait.wait_id, reason="too much")
            assert "too much" in str(result.output)
            assert shop.did == []
            assert [one.status for one in result.calls] == [CallStatus.DENIED]
            assert [one.status for one in reports(result.messages)[0].calls] == [CallStatus.DENIED]

    asyncio.run(main())


def test_an_uncaught_denial_ends_the_cell_and_not_the_turn(place: Place, shop: Shop) -> None:
    """Ours: the model reads which call failed, and variables bound before it are kept."""

    async def main() -> None:
        agent = coder(cell('x = 1\ny = refund("A", 5)'), finish("x"), tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            wait = (await session.turn("go")).waits[0]
            result = await session.deny(wait.wait_id)
            assert result.output == "1"
            assert outcomes(result.messages) == [Code.PERMISSION_DENIED, 1]

    asyncio.run(main())


def test_a_person_may_edit_the_arguments_of_a_call_in_a_cell(place: Place, shop: Shop) -> None:
    """Seed: edited arguments are checked, and the code gets the result of that call."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            wait = (await session.turn('[refund("A", 5)]')).waits[0]
            with pytest.raises(InvalidArgument, match="are invalid"):
                await session.approve(wait.wait_id, arguments={"order": "A", "cents": "many"})
            result = await session.approve(wait.wait_id, arguments={"order": "A", "cents": 3})
            assert outcomes(result.messages) == [[3]]
            assert shop.did == ["refund A 3"]
            (decided,) = await session.approvals()
            assert (decided.state, decided.edited_digest) == (
                ApprovalState.APPROVED,
                result.calls[0].request_digest,
            )

    asyncio.run(main())


def test_an_approval_that_expires_raises_an_exception_in_the_cell(place: Place, shop: Shop) -> None:
    """Ours: no approval is pending forever."""

    async def main() -> None:
        code = "try:\n    refund('A')\nexcept PermissionError as error:\n    print(error)\n'continued'"
        async with place.runtime(approval_ttl_s=60) as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            await session.turn(code)
            place.clock.advance(61)
            result = await go_on(session)
            (report,) = reports(result.messages)
            assert report.result == "continued"
            assert "without a decision" in report.stdout
            assert shop.did == []

    asyncio.run(main())


def test_a_loop_waits_for_each_call_and_keeps_the_earlier_answers(place: Place, shop: Shop) -> None:
    """Ours: a cell may be suspended and resumed many times, each time by another runtime."""

    async def main() -> None:
        code = """
        paid = []
        for number in range(4):
            print("asking", number)
            paid.append(refund(f"o{number}", number + price("ab")))
        paid
        """
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn(cell(code).removeprefix("```python\n").removesuffix("\n```"))
        for _ in range(4):
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                result = await session.approve(result.waits[0].wait_id)
        (report,) = reports(result.messages)
        assert report.result == [2, 3, 4, 5]
        assert report.stdout == "asking 0\nasking 1\nasking 2\nasking 3\n"
        assert shop.did == [word for n in range(4) for word in ("price ab", f"refund o{n} {n + 2}")]

    asyncio.run(main())


def test_a_decision_made_while_no_process_runs_the_session_is_used_later(place: Place, shop: Shop) -> None:
    """Seed: the turn resumes when the decision comes, after any number of restarts."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn('x = refund("A", 4)\nx + 1')
        async with place.runtime() as runtime:  # knows no agent: it only decides
            await runtime.approve(waiting.waits[0].wait_id)
            assert shop.did == []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await go_on(session)
            assert (result.turn_id, outcomes(result.messages)) == (waiting.turn_id, [5])
            assert await value_of(session, "x") == 4

    asyncio.run(main())


def test_a_resumed_cell_has_the_variables_from_before_the_wait_and_keeps_its_own(
    place: Place, shop: Shop
) -> None:
    """Ours: after the wait a cell has the same variables, functions and imports as before."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("import math\nitems = [1]\ndef twice(n):\n    return math.floor(2 * n)")
            waiting = await session.turn("items.append(2)\nkept = twice(refund('A', 7))\nitems.append(3)")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.approve(waiting.waits[0].wait_id)
            assert await value_of(session, "[items, kept, twice(4)]") == [[1, 2, 3], 14, 8]

    asyncio.run(main())


# Times


def test_a_cell_sleeps_for_days_without_a_process(place: Place, shop: Shop) -> None:
    """Ours: code can wait for days with `await sleep(days=2)`."""

    async def main() -> None:
        agent = coder(cell("await sleep(days=2)\nx = 'woke'"), finish("x"), tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("go")
            (wait,) = waiting.waits
            assert (wait.kind, wait.due_at) == ("timer", place.clock.now_ms() + 2 * 86_400_000)
            assert holds_nothing(runtime)
        place.clock.advance(86_400)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            still = await session.resume()
            assert still is None or (await still).status == "waiting"
        place.clock.advance(86_400)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await go_on(session)).output == "woke"

    asyncio.run(main())


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nawait asyncio.sleep(7200)",
        "import time\ntime.sleep(7200)",
        "await sleep(hours=2)",
        "sleep(hours=2)",
        "await sleep(7200)",
        "await sleep(minutes=60, hours=1)",
    ],
)
def test_every_way_to_sleep_in_a_language_is_a_timer(memory: Place, code: str) -> None:
    """Ours: the usual ways to sleep in a language are timers and hold no process."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            (wait,) = (await session.turn(f"{code}\n'woke'")).waits
            assert (wait.kind, wait.due_at) == ("timer", memory.clock.now_ms() + 7_200_000)
            memory.clock.advance(7_201)
            assert outcomes((await go_on(session)).messages) == ["woke"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "code", ["await sleep(0.01)", "sleep(0)", "import time\ntime.sleep(0.01)", "await sleep(-5)"]
)
def test_a_short_sleep_does_not_park_the_turn(memory: Place, code: str) -> None:
    """Ours: parking a turn for a short sleep would cost more than waiting."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, f"{code}\n'woke'") == "woke"

    asyncio.run(main())


@pytest.mark.parametrize(
    "code", ["await sleep(days=1e9)", "await sleep(float('nan'))", "await sleep(days='two')"]
)
def test_a_sleep_that_is_too_long_raises_an_exception(memory: Place, code: str) -> None:
    """Ours: every number has a defined result."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn(code)
            assert result.status == "finished"
            assert reports(result.messages)[0].error is not None

    asyncio.run(main())


def test_time_has_passed_for_code_that_slept(memory: Place) -> None:
    """Ours: the clock of a cell advances with each result."""

    async def main() -> None:
        code = "import time\nbefore = time.time()\nawait sleep(hours=1)\nround(time.time() - before)"
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(code)
            memory.clock.advance(3_600)
            assert outcomes((await go_on(session)).messages) == [3_600]

    asyncio.run(main())


# Results from outside


def test_an_outside_system_delivers_a_result_to_the_cell(place: Place, shop: Shop) -> None:
    """Seed: an external completion comes from another runtime, with a value or an error, once."""

    async def main() -> None:
        code = (
            "came = ordered('tea')\ntry:\n    ordered('milk')\n"
            "except RuntimeError as error:\n    came['milk'] = str(error)\ncame"
        )
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn(code)
        async with place.runtime() as runtime:
            await runtime.complete(shop.tokens[0], {"tea": [1, 2]})
            with pytest.raises(TokenAlreadyUsed):
                await runtime.complete(shop.tokens[0], {"tea": 3})
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await go_on(session)).status == "waiting"
        async with place.runtime() as runtime:
            await runtime.fail(shop.tokens[1], ToolError("SOLD_OUT", "sold out"))
            session = await runtime.session("s", agent=agent)
            (found,) = outcomes((await go_on(session)).messages)
            assert found["tea"] == [1, 2]
            assert "sold out" in found["milk"]
            assert shop.did == ["ordered tea", "ordered milk"]

    asyncio.run(main())


# Several waits

ORDERS = list(itertools.permutations(["approval", "timer", "completion"]))
THREE = """
import asyncio
found = await asyncio.gather(refund("A", 3), sleep(hours=1), ordered("tea"))
found
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", list(itertools.permutations(["approval", "timer", "completion"])), ids="-".join
)
def test_an_approval_a_timer_and_a_completion_can_end_in_any_order_in_any_runtime(
    filed: Place, shop: Shop, order: tuple[str, ...]
) -> None:
    """Ours: one `gather` has three waits, each ended by another runtime."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn(THREE.strip())
            assert sorted(one.kind for one in waiting.waits) == ["approval", "completion", "timer"]
            assert holds_nothing(runtime)
        approval = next(one for one in waiting.waits if one.kind == "approval")
        for kind in order:
            async with filed.runtime() as runtime:
                if kind == "approval":
                    await runtime.approve(approval.wait_id)
                elif kind == "timer":
                    filed.clock.advance(3_600)
                else:
                    await runtime.complete(shop.tokens[0], "brewed")
            async with filed.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                result = await go_on(session)
        assert outcomes(result.messages) == [[3, None, "brewed"]]
        assert sorted(shop.did) == ["ordered tea", "refund A 3"]

    asyncio.run(main())


@pytest.mark.parametrize("first", [0, 1])
def test_one_of_two_approvals_in_a_gather_can_be_granted_and_the_other_denied(
    place: Place, shop: Shop, first: int
) -> None:
    """Ours: each decision applies to one call, and the code sees both."""

    async def main() -> None:
        code = """
        import asyncio
        async def tried(order, cents):
            try:
                return await refund(order, cents)
            except PermissionError:
                return "refused"
        await asyncio.gather(tried("A", 1), tried("B", 2))
        """
        agent = coder(cell(code), "done", tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waits = (await session.turn("go")).waits
            assert [one.kind for one in waits] == ["approval"] * 2
            for number in (first, 1 - first):
                decide = session.approve if number else session.deny
                result = await decide(waits[number].wait_id)
            assert outcomes(result.messages) == [["refused", 2]]
            assert shop.did == ["refund B 2"]

    asyncio.run(main())


def test_a_gather_with_one_denial_fails_and_abandons_the_other_wait(place: Place, shop: Shop) -> None:
    """Ours: when a cell has ended, its waiting calls are abandoned."""

    async def main() -> None:
        code = "import asyncio\nawait asyncio.gather(refund('A', 1), refund('B', 2))"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=coder(cell(code), "sorry", tools=shop.tools))
            one, other = (await session.turn("go")).waits
            result = await session.deny(one.wait_id)
            assert (result.output, outcomes(result.messages)) == ("sorry", [Code.PERMISSION_DENIED])
            assert shop.did == []
            assert await session.approvals(pending=True) == []
            assert other.wait_id in {one.approval_id for one in await session.approvals()}

    asyncio.run(main())


# Ends


def test_a_turn_whose_cell_waits_can_be_cancelled(place: Place, shop: Shop) -> None:
    """Ours: the variables are as before the cell, and the session stays usable."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("x = 1")
            waiting = await session.turn('x = 2\nrefund("A")')
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.cancel()

            async def over() -> bool:
                return await session.unfinished() is None

            await until(over)
            record = (await session.turns())[-1]
            assert record.summary is not None
            assert isinstance(record.summary.outcome, Stopped)
            assert record.summary.outcome.reason is StopReason.CANCELLED
            assert record.turn_id == waiting.turn_id
            assert await session.approvals(pending=True) == []
            assert await value_of(session, "x") == 1
            assert shop.did == []

    asyncio.run(main())


def test_the_suspended_state_of_a_cancelled_cell_is_not_kept(filed: Place, shop: Shop) -> None:
    """Ours: no process can resume the cell, so its suspended state is not needed."""

    async def main() -> None:
        async with filed.runtime(keep_journals=0) as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            await session.turn("x = 1")
            await session.turn('text = "x" * 300_000\nrefund("A")')
            await session.cancel()

            async def over() -> bool:
                return await session.unfinished() is None

            await until(over)
            await runtime.prune(branches=True)
            assert filed.path is not None
            assert blob_sizes(filed.path) == []
            assert await value_of(session, "x") == 1

    asyncio.run(main())


def test_a_fork_of_a_session_with_a_waiting_cell_begins_before_that_turn(place: Place, shop: Shop) -> None:
    """Ours: a waiting turn is not part of the history yet."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("x = 1")
            waiting = await session.turn('x = refund("A", 5)\nx')
            other = await session.fork("f")
            assert await value_of(other, "x") == 1
            await other.turn("x = 'other'")
            result = await session.approve(waiting.waits[0].wait_id)
            assert outcomes(result.messages) == [5]
            assert await value_of(session, "x") == 5
            assert await value_of(other, "x") == "other"

    asyncio.run(main())


def test_a_session_with_a_waiting_cell_cannot_be_rewound(place: Place, shop: Shop) -> None:
    """Ours: an unfinished turn must end before its session can be rewound."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            await session.turn("x = 1")
            await session.turn("x = 2")
            waiting = await session.turn('x = refund("A", 3)')
            with pytest.raises(SessionBusy):
                await session.rewind(turns=1)
            await session.approve(waiting.waits[0].wait_id)
            assert await value_of(session, "x") == 3
            await session.rewind(turns=2)
            assert await value_of(session, "x") == 2

    asyncio.run(main())


def test_an_agent_that_does_not_run_code_cannot_resume_a_cell(place: Place, shop: Shop) -> None:
    """Bug: the agent executed the approved call, then failed, and the call's result was lost."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            waiting = await session.turn('[refund("A", 5)]')
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(protocol="standard", tools=shop.tools))
            with pytest.raises(CodeExecutionUnavailable, match="in the middle of a cell"):
                await session.approve(waiting.waits[0].wait_id)
            assert shop.did == []
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            assert outcomes((await go_on(session)).messages) == [[5]]

    asyncio.run(main())


def test_an_agent_that_does_not_run_code_can_cancel_the_turn(place: Place, shop: Shop) -> None:
    """Ours: a session can be freed from a turn whose agent no longer exists."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(tools=shop.tools))
            await session.turn('refund("A", 5)')
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(protocol="standard", tools=shop.tools))
            assert await session.cancel()

            async def over() -> bool:
                return await session.unfinished() is None

            await until(over)
            assert (await session.turn("say hello")).output == "hello"
            assert shop.did == []

    asyncio.run(main())


def test_pruning_keeps_a_waiting_cell(filed: Place, shop: Shop) -> None:
    """Ours: an approval may wait for weeks, and the suspended state is needed then."""

    async def main() -> None:
        agent = typing(tools=shop.tools)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("items = [str(n) for n in range(20_000)]")
            waiting = await session.turn("x = len(text) + len(items) + refund('A')", inputs={"text": "abc"})
            filed.clock.advance(3_600)
            await runtime.prune(older_than_s=0, frames=True, branches=True)
        async with filed.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.approve(waiting.waits[0].wait_id)
            assert await value_of(session, "x") == 20_004

    asyncio.run(main())


# Processes

PROGRAM = """
import asyncio, json, os, sys
from standfast import Agent, CompleteLater, RunContext, Runtime, tool
from standfast.runtime.result import TurnResult
sys.path.insert(0, sys.argv[1])
from code_stand_ins import outcomes, typing

DATABASE, LEDGER, JOB = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])

def note(line):
    handle = os.open(LEDGER, os.O_WRONLY | os.O_APPEND)
    os.write(handle, (line + "\\n").encode())
    os.close(handle)

@tool(side_effect="external_system", approval="manual")
async def refund(order: str, cents: int = 1) -> int:
    note(f"refund {order} {cents}")
    return cents

@tool(side_effect="external_system")
async def ordered(ctx: RunContext[None], what: str = "") -> CompleteLater:
    note(f"ordered {what}")
    return CompleteLater(ctx.completion_token())

def children():
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            found += int(fields[1]) == os.getpid() and fields[0] != "Z"
    return found

async def main():
    async with Runtime(DATABASE) as runtime:
        if JOB["do"] == "decide":
            for wait_id in JOB["approve"]:
                await runtime.approve(wait_id)
            for token, value in JOB["complete"]:
                await runtime.complete(token, value)
            print(json.dumps({}))
            return
        session = await runtime.session("s", agent=typing(tools=[refund, ordered]))
        if JOB["do"] == "turn":
            result = await session.turn(JOB["code"])
        else:
            turn = await session.resume()
            result = await (turn or session.follow((await session.turns())[-1].turn_id)).settled()
        engines = runtime._open.services.engines._opened
        busy = {name: len(engine.cells.live) for name, engine in engines.items()}
        print(json.dumps({
            "status": result.status,
            "waits": [[one.kind, one.wait_id] for one in result.waits],
            "outcomes": outcomes(result.messages),
            "busy": sum(busy.values()),
        }))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_decision_in_any_process_resumes_the_cell(child: Start, tmp_path: Path, ledger: Path) -> None:
    """Ours: a cell can be started, decided and resumed in different processes."""

    def run(**job: Any) -> Any:
        return json.loads(
            child(PROGRAM, Path(__file__).parent, tmp_path / "standfast.db", ledger, json.dumps(job)).output()
        )

    code = (
        "import asyncio\nbase = 10\n"
        "found = await asyncio.gather(refund('A', 1), refund('B', 2), ordered('tea'))\n"
        "[base, found, refund('C', sum(found))]"
    )
    begun = run(do="turn", code=code)
    assert (begun["status"], begun["busy"]) == ("waiting", 0)
    kinds = {kind: [one for kind_, one in begun["waits"] if kind_ == kind] for kind, _ in begun["waits"]}
    run(do="decide", approve=kinds["approval"][1:], complete=[])
    assert run(do="resume")["status"] == "waiting"
    run(do="decide", approve=[], complete=[[kinds["completion"][0], 4]])
    run(do="decide", approve=kinds["approval"][:1], complete=[])
    asked = run(do="resume")
    assert [kind for kind, _ in asked["waits"]] == ["approval"]
    run(do="decide", approve=[asked["waits"][0][1]], complete=[])
    assert run(do="resume")["outcomes"] == [[10, [1, 2, 4], 7]]
    assert sorted(ledger.read_text().split("\n")) == [
        "",
        "ordered tea",
        "refund A 1",
        "refund B 2",
        "refund C 7",
    ]
