"""The variables of cells follow the session: to other processes, onto branches, back in time."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from code_stand_ins import (
    RunsCode,
    blob_sizes,
    cell,
    coder,
    finish,
    outcomes,
    reports,
    rows,
    typing,
    value_of,
)
from stand_ins import Place, until

from standfast import Agent, Plugin, Runtime, SessionLimits, hook
from standfast.errors import Code, PluginStateLost, RecordCorrupt
from standfast.model.directive import CreateSession, SessionRequest
from standfast.model.message import UserMessage
from standfast.model.session import TurnState
from standfast.plugins.contexts import TurnHookContext
from standfast.protocols.code.executor import CodeExecutor
from standfast.protocols.code.plugin import CodeMode, CodeProtocol
from standfast.sandbox.monty import workers as engine_state

pytestmark = pytest.mark.slow

BIG = "numbers = [str(n * 7919 % 1000003) for n in range(250_000)]"
"""Leaves some two megabytes behind."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "standfast.db"


# From cell to cell


def test_variables_functions_and_imports_are_kept_for_the_next_cell_and_turn(place: Place) -> None:
    """Ours: SPEC §8, the state of the executor is part of the session's commit."""

    async def main() -> None:
        agent = coder(
            cell("import json\nrate = 3\ndef priced(n):\n    return n * rate"),
            finish("priced(2)"),
            finish("json.dumps([priced(3), rate])"),
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("one")).output == "6"
            assert (await session.turn("two")).output == "[9, 3]"

    asyncio.run(main())


def test_a_new_runtime_sees_the_variables_of_earlier_cells(place: Place) -> None:
    """Ours: SPEC §7, a session continues in any process."""

    async def main() -> None:
        agent = typing()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn(
                "import math\nfound = {'a': [1, 2]}\ndef area(r):\n    return round(math.pi * r)"
            )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "[found, area(2)]") == [{"a": [1, 2]}, 6]
            await session.turn("found['b'] = 3")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "found") == {"a": [1, 2], "b": 3}

    asyncio.run(main())


def test_an_evicted_session_is_restored(place: Place) -> None:
    """Ours: everything in memory can be dropped at any time."""

    async def main() -> None:
        async with place.runtime() as runtime:
            runtime._open.max_cached = 1
            agent = typing()
            one = await runtime.session("one", agent=agent)
            other = await runtime.session("other", agent=agent)
            await one.turn("x = 1")
            await other.turn("x = 2")
            assert one._live._context is None
            assert await value_of(one, "x") == 1
            assert await value_of(other, "x") == 2

    asyncio.run(main())


def test_a_worker_with_an_outdated_state_is_not_used(place: Place) -> None:
    """Ours: another process may have changed the session meanwhile."""

    async def main() -> None:
        agent = typing()
        async with place.runtime() as first, place.runtime() as second:
            here = await first.session("s", agent=agent)
            there = await second.session("s", agent=agent)
            await here.turn("x = 1")
            await there.turn("x = x + 1")
            await here.turn("x = x * 10")
            assert await value_of(there, "x") == 20
            assert await value_of(here, "x") == 20

    asyncio.run(main())


# Branches


def test_each_branch_of_a_fork_has_its_own_variables(place: Place) -> None:
    """Ours: after a fork, both branches have their own variables."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(
                "import json\nx = 1\nseen = [1]\ndef shown():\n    return json.dumps([x, seen])"
            )
            await session.turn("x = 2\nseen.append(2)")
            other = await session.fork("f")
            await session.turn("x = 10\nseen.append('mine')")
            await other.turn("x = 20\nseen.append('theirs')")
            assert await value_of(session, "shown()") == '[10, [1, 2, "mine"]]'
            assert await value_of(other, "shown()") == '[20, [1, 2, "theirs"]]'
        async with place.runtime() as runtime:
            for name, shown in (("s", '[10, [1, 2, "mine"]]'), ("f", '[20, [1, 2, "theirs"]]')):
                session = await runtime.session(name, agent=typing())
                assert await value_of(session, "shown()") == shown

    asyncio.run(main())


def test_a_fork_at_an_earlier_node_has_the_variables_of_that_node(place: Place) -> None:
    """Ours: the state is stored with each point of the history."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("x = 1")
            after_one = (await session.head()).leaf
            await session.turn("x = 2\ny = 2")
            other = await session.fork("f", at=after_one)
            assert await value_of(other, "x") == 1
            assert await value_of(other, "y") == Code.RUNTIME_ERROR
            assert await value_of(session, "[x, y]") == [2, 2]

    asyncio.run(main())


def test_rewinding_restores_earlier_variables(place: Place) -> None:
    """Ours: a rewind also removes definitions made since, and starts a new branch."""

    async def main() -> None:
        agent = typing()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("x = 1\nitems = ['a']")
            await session.turn("x = 2\nitems.append('b')\ndef later():\n    return x")
            await session.turn("x = 3")
            await session.rewind(turns=2)
            assert await value_of(session, "[x, items]") == [1, ["a"]]
            assert await value_of(session, "later()") == Code.UNKNOWN_TOOL
            await session.turn("x = 'another line'")
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "[x, items]") == ["another line", ["a"]]

    asyncio.run(main())


def test_rewinding_to_before_the_first_cell_removes_all_variables(place: Place) -> None:
    """Ours: before the first cell the session has no variables."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("say hello")
            await session.turn("x = 1")
            await session.rewind(turns=1)
            assert await value_of(session, "x") == Code.RUNTIME_ERROR

    asyncio.run(main())


# Failures


def test_variables_bound_before_an_exception_are_kept(memory: Place) -> None:
    """Ours: variables stay bound after an exception, as in a notebook."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "x = 1\ny = 1 / 0\nz = 3") == Code.RUNTIME_ERROR
            assert await value_of(session, "x") == 1
            assert await value_of(session, "z") == Code.RUNTIME_ERROR

    asyncio.run(main())


def test_a_hard_failure_rolls_back_the_variables(place: Place) -> None:
    """Ours: SPEC §5, a cell that exceeds a limit leaves the state unchanged, and the model reads why."""

    async def main() -> None:
        agent = typing(protocol=CodeProtocol(limits=SessionLimits(memory_mb=16)))
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("x = 1\nitems = [1]")
            result = await session.turn("x = 2\nitems.append(2)\nhuge = [0] * 50_000_000")
            (report,) = reports(result.messages)
            assert report.error is not None
            assert report.error.code == Code.MEMORY_EXCEEDED
            assert any("as they were before this cell" in note for note in report.notes)
            assert await value_of(session, "[x, items]") == [1, [1]]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "[x, items]") == [1, [1]]

    asyncio.run(main())


def test_the_limits_of_cells_may_change_between_turns(place: Place) -> None:
    """Ours: limits belong to the agent, variables to the session."""

    async def main() -> None:
        for megabytes in (16, 64, 32):
            agent = typing(protocol=CodeProtocol(limits=SessionLimits(memory_mb=megabytes)))
            async with place.runtime() as runtime:
                session = await runtime.session("s", agent=agent)
                await session.turn(f"try:\n    sizes.append({megabytes})\nexcept NameError:\n    sizes = [1]")
                fits = await value_of(session, "len('x' * 20_000_000)") == 20_000_000
                assert fits == (megabytes > 16)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await value_of(session, "sizes") == [1, 64, 32]

    asyncio.run(main())


# Amount of stored state


@pytest.mark.slow
def test_a_large_state_is_stored_as_one_compressed_blob_per_change(file: Path) -> None:
    """Ours: the state is stored compressed, by content, and only when it changes."""

    async def main() -> None:
        async with Runtime(file) as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(BIG)
            (size,) = blob_sizes(file)
            ((data,),) = rows(file, "SELECT data FROM blobs WHERE length(data) = ?", size)
            assert len(zlib.decompress(data)) > max(2 << 20, 2 * size)
            before = (await session.head()).state
            assert await value_of(session, "len(numbers)") == 250_000
            await session.turn("print(numbers[7])")
            await session.turn("say nothing")
            assert blob_sizes(file) == [size]
            assert (await session.head()).state == before
            await session.turn("numbers[0] = 'changed'")
            assert len(blob_sizes(file)) == 2
        async with Runtime(file) as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "[len(numbers), numbers[0]]") == [250_000, "changed"]
            assert len(blob_sizes(file)) == 2

    asyncio.run(main())


def test_a_cell_that_changes_nothing_writes_no_state(file: Path) -> None:
    """Bug: a cell that only finishes wrote the whole state again, at the end of nearly every turn."""

    async def main() -> None:
        async with Runtime(file) as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("x = [1, 2, 3]")
            states = rows(file, "SELECT count(*) FROM states")
            for code in (
                "x",
                "print(sum(x))",
                "[n for n in x if n > 1]",
                "1 / 0",
                "nowhere()",
                "x = (",
                "finish(len(x))",
                "say so",
            ):
                await session.turn(code)
            assert rows(file, "SELECT count(*) FROM states") == states == [(1,)]
            assert blob_sizes(file) == []

    asyncio.run(main())


def test_several_cells_of_a_turn_leave_one_state(file: Path) -> None:
    """Ours: only the state at the end of a turn is kept; earlier ones are dropped with the journal."""

    async def main() -> None:
        agent = coder(
            cell(f"text = '{'x' * 3_000}'"),
            cell("text = text + 'y'"),
            cell("text = text + 'z'"),
            finish("len(text)"),
        )
        async with Runtime(file, keep_journals=0) as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go")).output == "3002"
            assert rows(file, "SELECT count(*) FROM states") == [(1,)]
            pruned = await runtime.prune(branches=True)
            assert pruned.blobs == 2
            assert len(blob_sizes(file)) == 1
        async with Runtime(file) as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "text[-2:]") == "yz"

    asyncio.run(main())


def test_pruning_keeps_the_states_that_branches_need_and_deletes_the_others(file: Path) -> None:
    """Ours: states that were rewound are dropped; those that a fork or a rewind can reach are kept."""

    async def main() -> None:
        async with Runtime(file, keep_journals=0) as runtime:
            session = await runtime.session("s", agent=typing())
            for number in range(3):
                await session.turn(f"text = '{number}' * 3000")
            other = await session.fork("f")
            await session.rewind(turns=1)
            await session.turn("text = 'new' * 1000")
            await other.rewind(turns=2)
            assert len(blob_sizes(file)) == 4
            pruned = await runtime.prune(branches=True)
            assert pruned.blobs == 1  # the third turn's state, which no branch reaches any more
            assert await value_of(session, "text[:3]") == "new"
            assert await value_of(other, "text[:3]") == "000"
            await session.rewind(turns=2)
            assert await value_of(session, "text[:3]") == "111"

    asyncio.run(main())


# Other agents and protocols


class Remembers(Plugin):
    """A plugin whose state changes with every turn."""

    id = "remembers"

    @hook("before_turn")
    async def remember(self, ctx: TurnHookContext) -> None:
        self.state = ctx.turn_id


@pytest.mark.slow
def test_an_agent_that_does_not_act_in_code_keeps_the_variables(place: Place) -> None:
    """Ours: the state of a plugin that is not loaded is kept, even when other plugins change theirs."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(f"x = 1\n{BIG}")
        async with place.runtime() as runtime:
            plain = typing(protocol="standard", plugins=[Remembers()])
            session = await runtime.session("s", agent=plain)
            assert (await session.turn("say hi")).output == "hi"
            assert (await session.turn("say bye")).output == "bye"
            await runtime.prune(branches=True)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "[x, len(numbers)]") == [1, 250_000]

    asyncio.run(main())


def test_code_mode_continues_with_the_variables_of_the_code_protocol(place: Place) -> None:
    """Ours: every protocol uses the same executor."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("x = 1")
            mixed = Agent(RunsCode("x = x + 1"), name="mixed", plugins=[CodeMode()])
            session = await runtime.session("s", agent=mixed)
            await session.turn("go")
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "x") == 2

    asyncio.run(main())


def test_a_session_created_by_a_plugin_starts_without_variables(memory: Place) -> None:
    """Ours: a child session has its own state."""

    class Makes(Plugin):
        id = "makes"

        @hook("after_turn")
        async def make(self, ctx: Any) -> Any:
            if ctx.session_id != "s":
                return None
            return CreateSession(
                request=SessionRequest(session_id="child", first_input=UserMessage(content="x"))
            )

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = typing(plugins=[Makes()])
            session = await runtime.session("s", agent=agent)
            await session.turn("x = 1")
            child = await runtime.session("child", agent=agent)

            async def over() -> bool:
                return [one.state for one in await child.turns()] == [TurnState.ENDED]

            await until(over)
            assert outcomes(await child.messages()) == [Code.RUNTIME_ERROR]
            assert await value_of(session, "x") == 1

    asyncio.run(main())


def test_sessions_do_not_see_each_others_variables(memory: Place) -> None:
    """Ours: one engine serves many sessions."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            agent = typing()
            sessions = [await runtime.session(f"s{number}", agent=agent) for number in range(12)]
            await asyncio.gather(*[one.turn(f"x = {n}") for n, one in enumerate(sessions)])
            found = await asyncio.gather(*[value_of(one, "x") for one in sessions])
            assert found == list(range(12))

    asyncio.run(main())


# Refused states


class OtherState(CodeProtocol):
    """A plugin that writes its state as another release would."""

    id = "code"

    def executor(self) -> CodeExecutor:
        class Other(CodeExecutor):
            def snapshot_execution_state(self) -> bytes:
                memory = msgspec.msgpack.decode(super().snapshot_execution_state())
                return msgspec.msgpack.encode(rewritten(memory))

        rewritten = self.rewritten
        return Other(self.options())

    def rewritten(self, memory: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


class LaterFormat(OtherState):
    """A state in a format that this release does not know."""

    def rewritten(self, memory: dict[str, Any]) -> dict[str, Any]:
        return {**memory, "version": 2}


class OtherLanguage(OtherState):
    """A state of a session whose cells are TypeScript."""

    def rewritten(self, memory: dict[str, Any]) -> dict[str, Any]:
        return {**memory, "language": "typescript"}


class Garbage(OtherState):
    """Bytes that are not a state at all."""

    def rewritten(self, memory: dict[str, Any]) -> dict[str, Any]:
        return {"version": "x"}


class LaterEngine(OtherState):
    """A state that a newer engine wrote."""

    def rewritten(self, memory: dict[str, Any]) -> dict[str, Any]:
        known = engine_state.decode_state(memory["state"])
        assert known is not None
        return {**memory, "state": engine_state.encode_state(msgspec.structs.replace(known, version="99"))}


@pytest.mark.parametrize(
    ("protocol", "told"),
    [(LaterFormat, "format 2"), (OtherLanguage, "typescript"), (Garbage, "cannot be read")],
)
def test_an_unreadable_state_is_refused_and_kept(place: Place, protocol: type[OtherState], told: str) -> None:
    """Ours: opening the session raises a typed error, and the state is not overwritten."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(protocol=protocol()))
            await session.turn("x = 1")
            before = await session.head()
        async with place.runtime() as runtime:
            for _ in range(2):
                with pytest.raises(PluginStateLost, match=told) as refused:
                    await runtime.session("s", agent=typing())
                assert refused.value.plugin_id == "code"
            (after,) = await runtime.sessions()
            assert (after.state, after.leaf, after.revision) == (before.state, before.leaf, before.revision)
            assert await runtime.store.open_turn("s") is None

    asyncio.run(main())


def test_the_state_of_another_engine_is_refused_by_each_cell_and_kept(place: Place) -> None:
    """Ours: only the engine can detect this; the model reads why, and the other release still works."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing(protocol=LaterEngine()))
            await session.turn("x = 1")
            before = (await session.head()).state
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            result = await session.turn("x = 2")
            (told,) = [one for one in result.messages if getattr(one, "name", "") == "run_code"]
            assert told.error is not None
            assert told.error.code == Code.SNAPSHOT_VERSION_MISMATCH
            assert "monty 99" in str(result.output)
            assert (await session.head()).state == before

    asyncio.run(main())


def test_an_agent_for_another_language_is_refused_and_the_variables_are_kept(place: Place) -> None:
    """Ours: SPEC §5, the language of a session is fixed."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn("x = 1")
        async with place.runtime() as runtime:
            other = typing(protocol=CodeProtocol(language="typescript"))
            with pytest.raises(PluginStateLost, match=r"python.*typescript") as refused:
                await runtime.session("s", agent=other)
            assert "fixed" in str(refused.value.hint)
            session = await runtime.session("s", agent=typing())
            assert await value_of(session, "x") == 1

    asyncio.run(main())


@pytest.mark.parametrize("large", [True, False])
def test_the_error_about_a_state_with_a_flipped_byte_names_it(file: Path, large: bool) -> None:
    """Ours: SPEC §7, stored states have checksums; a damaged one is never run."""

    async def main() -> None:
        async with Runtime(file) as runtime:
            session = await runtime.session("s", agent=typing())
            await session.turn(BIG if large else "x = 'findme'")
            state = (await session.head()).state
        table, column = ("blobs", "data") if large else ("states", "body")
        _flip(file, table, column)
        async with Runtime(file) as runtime:
            with pytest.raises(RecordCorrupt) as refused:
                await runtime.session("s", agent=typing())
            largest = "SELECT digest FROM blobs ORDER BY length(data) DESC"
            named = rows(file, largest)[0][0] if large else str(state)
            assert named in refused.value.message
            assert await runtime.store.open_turn("s") is None

    asyncio.run(main())


def _flip(file: Path, table: str, column: str) -> None:
    """Change one byte in the middle of the largest row."""
    ((data,),) = rows(file, f"SELECT {column} FROM {table} ORDER BY length({column}) DESC LIMIT 1")
    at = len(data) // 2
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    rows(file, f"UPDATE {table} SET {column} = ? WHERE {column} = ?", damaged, data)
