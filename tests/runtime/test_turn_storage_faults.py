"""Turns on a disk that is full, fails, or returns wrong bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_scenarios.theatre import ForkServer, Theatre, Truth

from standfast import Agent, Attachment, CompleteLater, RunContext, Runtime, Session, tool
from standfast.errors import RecordCorrupt, StoreError, StoreUnavailable
from standfast.providers.scripted import ScriptedModel
from standfast.store.sqlite.connection import open_checked


@pytest.fixture
def theatre(tmp_path: Path, sampled: Callable[[int], slice]) -> Iterator[Theatre]:
    made = Theatre(tmp_path, range(1, 1_000)[sampled(29)])
    yield made
    made.close()


# A full disk


def _same_process(server: ForkServer, home: Path, number: int) -> bool:
    """Let the disk fail from that write on; once it works again, the same runtime resumes."""
    report = server.run("sequence", home, fails_at=number, full=number % 2 == 0, lease_s=0.3)
    assert report.get("status") == "done", (number, report)
    Truth(home, report).check("sequence")
    return bool(report["failures"])


def _next_process(server: ForkServer, home: Path, number: int) -> bool:
    """Let the disk fail from that write on, and the process give up; another process resumes."""
    report = server.run("sequence", home, fails_at=number, full=number % 2 == 0, gives_up=True, lease_s=0.3)
    failed = report.get("status") != "done"
    if failed:
        assert report.get("raised") == "StoreUnavailable", (number, report)
        report = server.run("sequence", home, how=("request", "resume", "recover")[number % 3])
    assert report.get("status") == "done", (number, report)
    Truth(home, report).check("sequence")
    return failed


@pytest.mark.slow
@pytest.mark.parametrize("case", [_same_process, _next_process])
def test_a_disk_that_fails_at_any_write_of_a_turn_breaks_nothing(
    theatre: Theatre, case: Callable[[ForkServer, Path, int], bool]
) -> None:
    """Ours: a full disk gives a typed error and no partial commit; the turn resumes when there is space."""
    assert theatre.enumerate(case, theatre.points) > 80


def test_a_full_disk_raises_a_typed_error_and_the_turn_resumes_when_there_is_space(tmp_path: Path) -> None:
    """Ours: the operating system refuses to extend the file; no turn is lost or duplicated."""

    async def scenario() -> None:
        agent = Agent(ScriptedModel([f"reply {n}" for n in range(1, 200)], strict=False))
        async with Runtime(tmp_path / "standfast.db") as runtime:
            session = await runtime.session("s", agent=agent)
            await session.turn("first")
            with no_room(tmp_path / "standfast.db-wal"), pytest.raises(StoreUnavailable):
                await session.turn("x" * 50_000, idempotency_key="big")
            assert (await session.turn("x" * 50_000, idempotency_key="big")).output == "reply 2"
            assert (await session.turn("last")).output == "reply 3"
            assert [turn.state for turn in await session.turns()] == ["ended"] * 3
            assert len(await session.messages()) == 6

    asyncio.run(scenario())


class no_room:
    """A context in which files cannot grow beyond the current size of *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(self._path), self._limits[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        signal.signal(signal.SIGXFSZ, self._handler)


# Damaged bytes


@tool(approval="manual")
def pay(ctx: RunContext[None]) -> str:
    """Needs a person."""
    return "paid"


@tool
async def order(ctx: RunContext[None]) -> CompleteLater:
    """Leave the result to an outside system."""
    return CompleteLater(ctx.completion_token())


def _agent() -> Agent[Any, str]:
    replies: list[Any] = [
        "an answer",
        {"tool_calls": [{"name": "pay"}, {"name": "order"}]},
        "all done",
    ]
    return Agent(ScriptedModel(replies, strict=False), name="clerk", tools=[pay, order])


Facts = dict[str, str]


@pytest.fixture(scope="module")
def full_of_records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Facts]:
    """Return a session with a history, an attachment, a queued input, and a turn with two waits."""
    path = tmp_path_factory.mktemp("records") / "standfast.db"

    async def make() -> Facts:
        async with Runtime(path) as runtime:
            session = await runtime.session("s", agent=_agent())
            first = await session.turn(["look", Attachment(b"picture", media_type="image/png")])
            waiting = await session.turn("go")
            input_id = await session.inject("and then")
            approval, completion = (wait.wait_id for wait in waiting.waits)
            (digest,) = (part.digest for part in first.messages[0].content if hasattr(part, "digest"))
            return {
                "segment": first.turn_id,
                "turn": waiting.turn_id,
                "approval": approval,
                "token": completion,
                "input": input_id,
                "blob": digest,
            }

    facts = asyncio.run(make())
    with contextlib.closing(open_checked(str(path))) as db:  # only the file itself is copied
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return path, facts


Use = Callable[[Runtime, Session[Any], Facts], Awaitable[object]]


async def _resume(runtime: Runtime, session: Session[Any], facts: Facts) -> object:
    await runtime.complete(facts["token"], "delivered")
    return await session.approve(facts["approval"])


async def _approve(runtime: Runtime, session: Session[Any], facts: Facts) -> object:
    return await session.approve(facts["approval"])


async def _complete(runtime: Runtime, session: Session[Any], facts: Facts) -> object:
    await runtime.complete(facts["token"], "delivered")
    return None


async def _attachment(runtime: Runtime, session: Session[Any], facts: Facts) -> object:
    return await session.attachment(facts["blob"])


async def _read(runtime: Runtime, session: Session[Any], facts: Facts) -> object:
    return await session.messages()


RECORDS: list[tuple[str, str, str, str, Use]] = [
    ("sessions", "head", "id = 's'", "session s", _resume),
    ("segments", "body", "segment_id = '{segment}'", "segment {segment}", _read),
    ("segments", "body", "segment_id = '{segment}'", "segment {segment}", _resume),
    ("turns", "input", "turn_id = '{turn}'", "turn {turn}", _resume),
    ("turns", "summary", "turn_id = '{turn}'", "turn {turn}", _resume),
    ("journal", "body", "name = 'model.1'", "model.1 of turn {turn}", _resume),
    ("approvals", "body", "approval_id = '{approval}'", "{approval}", _approve),
    ("waits", "wait", "wait_id = '{token}'", "wait {token}", _complete),
    ("waits", "wait", "wait_id = '{token}'", "wait {token}", _approve),
    ("inputs", "body", "input_id = '{input}'", "input {input}", _resume),
    ("blobs", "data", "digest = '{blob}'", "blob {blob}", _attachment),
]


@pytest.mark.parametrize(("table", "column", "where", "name", "use"), RECORDS)
def test_the_error_about_a_flipped_byte_in_a_record_that_a_turn_reads_names_the_record(
    full_of_records: tuple[Path, Facts],
    tmp_path: Path,
    table: str,
    column: str,
    where: str,
    name: str,
    use: Use,
) -> None:
    """Ours: SPEC §7, an error that names the record, never a wrong answer."""
    original, facts = full_of_records
    path = tmp_path / "standfast.db"
    shutil.copy(original, path)
    _flip(path, table, column, where.format(**facts))

    async def scenario() -> None:
        async with Runtime(path) as runtime:
            session = await runtime.session("s", agent=_agent())
            await use(runtime, session, facts)

    with pytest.raises(RecordCorrupt) as raised:
        asyncio.run(scenario())
    assert name.format(**facts) in str(raised.value)


def _flip(path: Path, table: str, column: str, where: str) -> None:
    """Change one byte in the middle of a column."""
    with open_checked(str(path)) as db:
        value: bytes = db.execute(f"SELECT {column} FROM {table} WHERE {where}").get
        middle = len(value) // 2
        damaged = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (damaged,))
        assert db.changes() == 1
    db.close()


@pytest.mark.slow
def test_no_flipped_byte_of_the_file_causes_a_wrong_answer(
    full_of_records: tuple[Path, Facts], tmp_path: Path, sampled: Callable[[int], slice]
) -> None:
    """Ours: at any position, even in SQLite's own structures: the same answer or an error."""
    original, _ = full_of_records
    whole = original.read_bytes()

    async def read(path: Path) -> object:
        async with Runtime(path) as runtime:
            session = await runtime.session("s", agent=_agent())
            return await session.messages(), await session.approvals(), await session.turns()

    expected = asyncio.run(read(original))
    refused = 0
    for number, offset in enumerate(range(0, len(whole), 331)[sampled(4)]):
        path = tmp_path / f"{number}.db"
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        try:
            assert asyncio.run(read(path)) == expected, f"byte {offset} changed what is read"
        except StoreError:
            refused += 1
    assert refused > 0
