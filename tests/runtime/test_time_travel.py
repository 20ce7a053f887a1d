"""Journals of ended turns: their steps, their spans, and forks in the middle of a turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, results, until

from standfast import Agent, BlockingSandbox, CapabilityLimits, CodeProtocol, Runtime, Session, tool
from standfast.errors import InvalidArgument, JournalNotKept, SessionExists, TurnNotFound
from standfast.model.journal import EditedCall, JournalEdit, JournalStep
from standfast.model.outcome import Finished
from standfast.model.trace_record import TraceRecord
from standfast.providers.scripted import ScriptedModel

CODE = "```python\n{}\n```"


def lookups() -> tuple[Agent[Any, Any], list[str]]:
    """Return an agent that looks up two orders one after the other, and the log of its lookups."""
    seen: list[str] = []

    @tool(side_effect="none")
    def order(order_id: str) -> dict[str, Any]:
        """Look an order up."""
        seen.append(order_id)
        return {"id": order_id, "late": False}

    replies = (asks(("order", {"order_id": "A1"})), asks(("order", {"order_id": "A2"})), "all in time")
    return agent_of(*replies, name="clerk", tools=[order]), seen


async def ended_turn(runtime: Runtime, agent: Agent[Any, Any]) -> tuple[Session[Any], str]:
    session = await runtime.session("s", agent=agent)
    return session, (await session.turn("are they late?")).turn_id


def kinds(steps: list[JournalStep]) -> list[str]:
    return [str(step.input["type"]) for step in steps]


def commands(step: JournalStep) -> list[object]:
    return [one["command"] for one in step.commands]


async def finish(session: Session[Any]) -> Any:
    """Wait until the unfinished turn of a fork has ended, whichever process resumes it."""
    (record,) = (await session.turns())[-1:]
    return await session.follow(record.turn_id).settled()


def test_a_journal_has_the_inputs_and_commands_of_the_machine(place: Place) -> None:
    """Ours: a journal has each input, the state before it and the commands, even for an ended turn."""

    async def main() -> None:
        agent, _ = lookups()
        async with place.runtime() as runtime:
            _, turn_id = await ended_turn(runtime, agent)
        async with place.runtime() as runtime:
            steps = await runtime.session_handle("s").journal(turn_id)
        assert kinds(steps) == [
            "turn_started", "model_replied", "tool_settled", "checkpoint_passed",
            "model_replied", "tool_settled", "checkpoint_passed", "model_replied",
        ]  # fmt: skip
        assert [step.number for step in steps] == list(range(1, 9))
        assert commands(steps[0]) == ["call_model"]
        assert commands(steps[1]) == ["run_tool"]
        assert steps[1].running == (1,)
        assert [type(one).__name__ for one in steps[2].messages] == ["ToolMessage"]
        assert [step.model_calls for step in steps] == [1, 1, 1, 2, 2, 2, 3, 3]
        assert "nonce" not in steps[0].input

    asyncio.run(main())


def test_journals_are_kept_for_as_long_as_the_runtime_is_configured_to(place: Place) -> None:
    """Ours: `keep_journals` is bounded by age, and 0 keeps none."""

    async def main() -> None:
        agent, _ = lookups()
        async with place.runtime(keep_journals=3600) as runtime:
            session, turn_id = await ended_turn(runtime, agent)
            assert await session.journal(turn_id)
            place.clock.advance(3500)
            assert await runtime.store.drop_journals(place.clock.now_ms() - 3_600_000) == 0
            place.clock.advance(200)
        async with place.runtime(keep_journals=3600, agents=[agent]) as runtime:
            await until(lambda: runtime.looked_s is not None)
            with pytest.raises(JournalNotKept, match=turn_id):
                await runtime.session_handle("s").journal(turn_id)
            with pytest.raises(TurnNotFound):
                await runtime.session_handle("s").journal("t_missing")
        async with place.runtime(keep_journals=0) as runtime:
            session = await runtime.session("none", agent=agent)
            turn_id = (await session.turn("and now?")).turn_id
            with pytest.raises(JournalNotKept):
                await session.journal(turn_id)

    asyncio.run(main())


def test_deleting_or_pruning_a_turn_deletes_its_journal(place: Place) -> None:
    """Ours: a journal does not outlive its turn."""

    async def main() -> None:
        agent, _ = lookups()
        async with place.runtime() as runtime:
            _, turn_id = await ended_turn(runtime, agent)
            place.clock.advance(100)
            await runtime.session("other", agent=agent)
            await runtime.prune(older_than_s=50, session="s")
            assert await runtime.store.turn_journal(turn_id) is None
            other = await runtime.session("other", agent=agent)
            turn_id = (await other.turn("again")).turn_id
            assert await runtime.store.turn_journal(turn_id) is not None
            await runtime.delete("other")
            assert await runtime.store.turn_journal(turn_id) is None
            assert await runtime.store.drop_journals(2**50) == 0

    asyncio.run(main())


def test_a_fork_in_the_middle_of_a_turn_continues_with_an_edited_result(place: Place) -> None:
    """Ours: a tool's result can be edited at that point, and the original is unchanged."""

    async def main() -> None:
        agent, seen = lookups()
        async with place.runtime() as runtime:
            session, turn_id = await ended_turn(runtime, agent)
            edit = JournalEdit(value={"id": "A2", "late": True})
            fork = await session.fork("f", at=turn_id, input=6, edit=edit)
            result = await finish(fork)
            assert result.output == "all in time"
            assert results(result.messages) == [{"id": "A1", "late": False}, {"id": "A2", "late": True}]
            assert seen == ["A1", "A2"]
            assert result.turn_id != turn_id
            assert (await fork.head()).forked_from == "s"
            assert len(await session.messages()) == len(result.messages)
            spent, before = [sum(one.usage.output for one in await it.usage()) for it in (fork, session)]
            assert 0 < spent < before  # the original paid for the calls before the fork
            with pytest.raises(SessionExists):
                await session.fork("f", at=turn_id, input=6)

    asyncio.run(main())


def test_a_fork_can_replace_a_reply_or_let_a_call_run_again(place: Place) -> None:
    """Ours: a reply can be replaced; a call without a result at that input is executed by the fork."""

    async def main() -> None:
        agent, seen = lookups()
        async with place.runtime() as runtime:
            session, turn_id = await ended_turn(runtime, agent)
            calls = (EditedCall(name="order", arguments={"order_id": "B7"}),)
            fork = await session.fork("f", at=turn_id, input=2, edit=JournalEdit(text="hm", calls=calls))
            assert (await finish(fork)).output == "all in time"
            assert seen == ["A1", "A2", "B7", "A2"]
            said = await session.fork("g", at=turn_id, input=5, edit=JournalEdit(text="no need to look"))
            assert (await finish(said)).output == "no need to look"
            again = await session.fork("h", at=turn_id, input=5)
            assert (await finish(again)).output == "all in time"
            assert seen == ["A1", "A2", "B7", "A2", "A2"]

    asyncio.run(main())


def test_a_fork_never_reuses_a_decision(place: Place) -> None:
    """Ours: SPEC §5, restoring an earlier state never reuses a decision; the fork asks again."""
    paid: list[int] = []

    @tool(approval="manual")
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    async def main() -> None:
        agent = agent_of(asks(("pay", {"cents": 5})), "end", "end", "end", tools=[pay], name="clerk")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("pay")
            result = await session.approve(waiting.waits[0].wait_id)
            steps = await session.journal(result.turn_id)
            ended = kinds(steps).index("wait_ended") + 1
            for number, name in ((ended, "f"), (ended - 1, "g")):
                fork = await session.fork(name, at=result.turn_id, input=number)
                asked = await finish(fork)
                assert asked.waits
                assert paid == [5]
                assert [one.state for one in await fork.approvals()] == ["pending"]
            done = await session.fork("h", at=result.turn_id, input=kinds(steps).index("tool_settled") + 1)
            assert isinstance((await finish(done)).outcome, Finished)
            assert paid == [5]

    asyncio.run(main())


def test_a_fork_in_the_middle_of_a_cell_has_the_variables_of_that_moment(place: Place) -> None:
    """Ours: the variables of earlier cells are restored, and the cell resumes at its call."""

    @tool(side_effect="none")
    def price(name: str) -> int:
        """Return a price."""
        return {"ink": 5, "pen": 7}[name]

    async def main() -> None:
        replies = (
            CODE.format("base = 100\nnotes = ['first']"),
            CODE.format("a = price('ink')\nb = price('pen')\nbase = base + a + b\nprint(base)"),
            CODE.format("notes.append('last')\nbase = base * 2\nfinish(f'{base} {a} {b} {notes}')"),
        )
        agent = Agent(ScriptedModel(replies), name="coder", tools=[price], protocol=CodeProtocol())
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("add up")
            whole = "224 5 7 ['first', 'last']"
            assert result.output == whole
            steps = await session.journal(result.turn_id)
            settled = [
                step.number
                for step in steps
                if step.input["type"] == "tool_settled" and step.input.get("value") == 5
            ]
            fork = await session.fork("f", at=result.turn_id, input=settled[0], edit=JournalEdit(value=50))
            assert (await finish(fork)).output == "314 50 7 ['first', 'last']"
            cells = [step.number for step in steps if step.input["type"] == "checkpoint_passed"]
            before = await session.fork("g", at=result.turn_id, input=cells[0])
            assert (await finish(before)).output == whole

    asyncio.run(main())


def test_an_invalid_fork_or_edit_is_refused(memory: Place) -> None:
    """Ours: the error names the invalid value, and no fork is created."""

    async def main() -> None:
        agent, _ = lookups()
        async with memory.runtime() as runtime:
            session, turn_id = await ended_turn(runtime, agent)
            for number, edit, words in (
                (0, None, "inputs 1 to 8, got 0"),
                (9, None, "inputs 1 to 8, got 9"),
                (1, JournalEdit(value=1), "turn_started cannot be edited"),
                (2, JournalEdit(value=1), "model_replied cannot be edited"),
                (3, JournalEdit(text="x"), "tool_settled cannot be edited"),
            ):
                with pytest.raises(InvalidArgument, match=words):
                    await session.fork("f", at=turn_id, input=number, edit=edit)
            with pytest.raises(TurnNotFound):
                await session.fork("f", at="t_missing", input=1)
            assert await runtime.store.head("f") is None

    asyncio.run(main())


def spans_by_name(records: list[TraceRecord]) -> dict[str, TraceRecord]:
    return {one.name: one for one in records if one.span_id}


def test_spans_are_available_without_any_configuration(place: Place) -> None:
    """Ours: spans with tokens come from the stored journal, without a configured trace."""

    async def main() -> None:
        agent, _ = lookups()
        async with place.runtime() as runtime:
            session, turn_id = await ended_turn(runtime, agent)
            records = await session.spans(turn_id)
            assert [one.kind for one in records if one.span_id] == [
                "model_call", "tool_call", "model_call", "tool_call", "model_call", "turn",
            ]  # fmt: skip
            turn = next(one for one in records if one.kind == "turn")
            assert (turn.name, turn.status) == ("clerk", "ok")
            assert isinstance(turn.body, dict)
            assert "replays" not in turn.body
            call = spans_by_name(records)["order"]
            assert isinstance(call.body, dict)
            assert "content" not in call.body
            (whole,) = [one for one in await session.spans(turn_id, contents=True) if one.kind == "turn"]
            assert isinstance(whole.body, dict)
            assert whole.body["content"] == {"input": "are they late?", "output": "all in time"}

    asyncio.run(main())


def test_spans_mark_waits_takeovers_and_replayed_effects(place: Place) -> None:
    """Ours: a waterfall distinguishes waits, takeovers and replayed effects."""

    @tool(approval="manual")
    def pay() -> str:
        """Pay."""
        return "paid"

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    async def main() -> None:
        replies = (asks(("look", {})), asks(("pay", {})), "end")
        agent = agent_of(*replies, tools=[pay, look], name="clerk")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("go")
            place.clock.advance(60)
            await session.approve(waiting.waits[0].wait_id, decided_by="ada")
            records = await session.spans(waiting.turn_id)
            spans = spans_by_name(records)
            assert spans["approval"].kind == "wait"
            assert spans["approval"].duration_ms == 60_000
            assert isinstance(spans["look"].body, dict)
            assert isinstance(spans["pay"].body, dict)
            assert (spans["look"].body["replays"], spans["pay"].body.get("replays")) == (1, None)
            names = [one.name for one in records if one.kind == "event"]
            assert names == ["turn_began", "turn_parked", "turn_taken_up"]

    asyncio.run(main())


# Calls and cells


def test_a_call_has_its_attempts_its_wait_and_its_result(place: Place) -> None:
    """Ours: retries of a call are shown with its arguments, result, duration and approval."""
    slow = [True]

    @tool(
        side_effect="external_system",
        limits=CapabilityLimits(timeout_ms=250),
        on_timeout="retry",
        approval="manual",
    )
    async def pay(cents: int) -> str:
        """Pay."""
        if slow and slow.pop():
            await asyncio.sleep(60)
        return "paid"

    async def main() -> None:
        agent = agent_of(asks(("pay", {"cents": 5})), "end", tools=[pay], name="clerk")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            waiting = await session.turn("go")
            place.clock.advance(60)
            await session.approve(waiting.waits[0].wait_id, decided_by="ada")
            (found,) = (await session.call_history(waiting.turn_id)).values()
            assert (found.call.name, found.call.arguments) == ("pay", {"cents": 5})
            assert [one.outcome for one in found.attempts] == ["approval", "timed_out", "ok"]
            assert found.attempts[1].began_ms - found.attempts[0].began_ms == 60_000
            assert (found.settled, found.value, found.error) == (True, "paid", None)

    asyncio.run(main())


def test_the_calls_of_a_cell_are_nested_under_the_cell(place: Place) -> None:
    """Ours: calls made by code have arguments and results, too."""

    @tool(side_effect="none")
    def order(order_id: str) -> dict[str, Any]:
        """Look an order up."""
        return {"id": order_id, "late": False}

    code = CODE.format("one = order('A1')\ntwo = order('A2')")
    coder = agent_of(code, "end", name="coder", tools=[order], protocol=CodeProtocol())

    async def main() -> None:
        async with place.runtime() as runtime:
            session, turn_id = await ended_turn(runtime, coder)
            found = await session.call_history(turn_id)
            cell = next(one for one in found.values() if one.call.name == "run_code")
            assert [one.value for one in cell.inner] == [
                {"id": "A1", "late": False},
                {"id": "A2", "late": False},
            ]

    asyncio.run(main())


def test_a_cell_has_its_variables_before_and_after_it(place: Place) -> None:
    """Ours: this includes the first cell of a later turn, whose state an earlier turn left."""
    replies = [CODE.format("a = 1"), CODE.format("b = a + 1\na = 5"), "end", CODE.format("c = b"), "end"]
    coder = agent_of(*replies, name="coder", protocol=CodeProtocol())

    async def main() -> None:
        async with place.runtime() as runtime:
            session, first = await ended_turn(runtime, coder)
            second = (await session.turn("more")).turn_id
            seen = []
            for turn_id in (first, second):
                for call_id in await session.call_history(turn_id):
                    around = await session.cell_variables(turn_id, call_id)
                    assert around.before is not None
                    assert around.after is not None
                    seen.append(
                        [{one.name: one.text for one in side} for side in (around.before, around.after)]
                    )
            assert seen == [
                [{}, {"a": "1"}],
                [{"a": "1"}, {"a": "5", "b": "2"}],
                [{"a": "5", "b": "2"}, {"a": "5", "b": "2", "c": "2"}],
            ]
            with pytest.raises(InvalidArgument):
                await session.cell_variables(first, 99)

    asyncio.run(main())


@pytest.mark.parametrize("keep", [None, 3600], ids=["without journals", "with journals"])
def test_a_sandbox_run_has_its_variables_before_and_after_it(tmp_path: Path, keep: int | None) -> None:
    """Ours: this includes a run that failed or changed nothing, and needs no journal."""
    options: dict[str, Any] = {} if keep is None else {"keep_journals": keep}
    with BlockingSandbox(data_dir=tmp_path, **options) as box:
        for code in ("a = 1", "b = a + 1\na = 5", "a", "c = 7\n1 / 0", "while True: pass"):
            box.run(code, session="s", limits={"cpu_ms": 200})

    async def main() -> None:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = runtime.session_handle("s")
            seen = []
            for turn in await session.turns():
                around = await session.cell_variables(turn.turn_id, 1)
                assert around.before is not None
                assert around.after is not None
                seen.append([{one.name: one.text for one in side} for side in (around.before, around.after)])
            two = {"a": "5", "b": "2"}
            three = {**two, "c": "7"}
            assert seen == [[{}, {"a": "1"}], [{"a": "1"}, two], [two, two], [two, three], [three, three]]

    asyncio.run(main())


def test_a_waiting_sandbox_run_has_its_variables_before_it(tmp_path: Path) -> None:
    """Ours: the variables after a run that waits are not known yet."""

    @tool(approval="manual")
    def pay() -> str:
        """Pay."""
        return "paid"

    with BlockingSandbox(tools=[pay], data_dir=tmp_path) as box:
        box.run("a = 1", session="s")
        assert box.run("b = pay()", session="s").status == "waiting_for_approval"

    async def main() -> None:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = runtime.session_handle("s")
            turn = (await session.turns())[-1]
            around = await session.cell_variables(turn.turn_id, 1)
            assert [one.name for one in around.before or ()] == ["a"]
            assert around.after is None

    asyncio.run(main())


@pytest.mark.parametrize("keep", [0, 3600], ids=["without journals", "with journals"])
def test_cells_of_a_waiting_turn_have_the_variables_that_are_stored(place: Place, keep: int) -> None:
    """Bug: without journals of ended turns, the variables of an unfinished turn raised `InternalError`."""

    @tool(approval="manual")
    def pay() -> str:
        """Pay."""
        return "paid"

    cells = [CODE.format(code) for code in ("z = 0", "a = z + 1", "b = a + 1", "c = pay()")]
    coder = agent_of(cells[0], "end", *cells[1:], name="coder", tools=[pay], protocol=CodeProtocol())

    async def main() -> None:
        async with place.runtime(keep_journals=keep) as runtime:
            session, _ = await ended_turn(runtime, coder)
            waiting = (await session.turn("more")).turn_id
            seen = []
            for call_id, known in (await session.call_history(waiting)).items():
                if known.call.name != "run_code":
                    continue
                around = await session.cell_variables(waiting, call_id)
                sides = (around.before, around.after)
                seen.append([None if side is None else {one.name for one in side} for side in sides])
            z, a, b = {"z"}, {"z", "a"}, {"z", "a", "b"}
            kept = [[z, a], [a, b], [b, None]] if keep else [[z, None], [None, None], [None, None]]
            assert seen == kept

    asyncio.run(main())


def test_sandbox_runs_have_a_journal_and_spans_if_journals_are_kept(tmp_path: Path) -> None:
    """Ours: a session without a model also has a waterfall and steps."""

    @tool(side_effect="none")
    def order(order_id: str) -> str:
        """Look an order up."""
        return f"order {order_id}"

    def run(**options: Any) -> str:
        with BlockingSandbox(tools=[order], data_dir=tmp_path, **options) as box:
            assert box.run("order('A1')").result == "order A1"
        return str(asyncio.run(read(turns))[-1])

    async def turns(session: Session[Any]) -> list[str]:
        return [one.turn_id for one in await session.turns()]

    async def read(what: Any) -> Any:
        async with Runtime(tmp_path / "standfast.db") as runtime:
            return await what(runtime.session_handle("default"))

    kept = run(keep_journals=3600)
    steps = asyncio.run(read(lambda session: session.journal(kept)))
    assert kinds(steps) == ["turn_started", "cell_paused", "tool_settled", "tool_settled"]
    spans = asyncio.run(read(lambda session: session.spans(kept)))
    assert [one.kind for one in spans if one.span_id] == ["tool_call", "cell", "turn"]
    made = asyncio.run(read(lambda session: session.call_history(kept)))
    assert [one.value for one in made[1].inner] == ["order A1"]
    other = run()
    with pytest.raises(JournalNotKept):
        asyncio.run(read(lambda session: session.journal(other)))
