"""A trace in a file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
from trace_stand_ins import agent_of

from standfast import Runtime
from standfast.errors import InvalidArgument
from standfast.model.trace_record import TraceRecord
from standfast.trace import JsonlTrace, read_trace

WRITER = """
import sys
from standfast.model.trace_record import TraceRecord
from standfast.trace import JsonlTrace

sink = JsonlTrace(sys.argv[1], max_bytes=int(sys.argv[3]) or None)
for number in range(200):
    sink.record(TraceRecord(at_ms=number, name=sys.argv[2], body={"text": "x" * 500}))
"""


def note(number: int = 1, **fields: object) -> TraceRecord:
    return TraceRecord(at_ms=number, name="note", **fields)  # type: ignore[arg-type]


def test_a_record_is_a_line_of_json_that_can_be_read_back(tmp_path: Path) -> None:
    """Ours: people and programs read the file."""
    given = [note(1, body={"ü": [1, None]}), note(2, kind="hook", span_id="ab" * 8, duration_ms=0.25)]
    with JsonlTrace(tmp_path / "deep" / "t.jsonl") as sink:
        for one in given:
            sink.record(one)
    lines = (tmp_path / "deep" / "t.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[0]) == {"at_ms": 1, "name": "note", "body": {"ü": [1, None]}}
    assert list(read_trace(tmp_path / "deep" / "t.jsonl")) == given
    assert stat.S_IMODE(os.stat(tmp_path / "deep" / "t.jsonl").st_mode) == 0o600


def test_every_record_is_in_the_file_when_the_turn_ends(tmp_path: Path) -> None:
    """Ours: nothing is buffered in the process."""

    async def main() -> None:
        sink = JsonlTrace(tmp_path / "t.jsonl")
        async with Runtime(trace=sink) as runtime:
            done = await (await runtime.session("s", agent=agent_of("end"))).turn("go")
            turn = list(read_trace(sink.path))[-1]
            assert (turn.kind, turn.turn_id) == ("turn", done.turn_id)
        sink.close()

    asyncio.run(main())


def _wrote(path: Path, max_bytes: int) -> list[TraceRecord]:
    writers = [
        interpreters.Interpreter([sys.executable, "-c", WRITER, str(path), name, str(max_bytes)])
        for name in ("one", "two", "three")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    return list(read_trace(path))


@pytest.mark.slow
def test_several_processes_write_whole_lines_into_one_file(tmp_path: Path) -> None:
    """Ours: one write per line, at the end of the file, even if another process has written in between."""
    found = _wrote(tmp_path / "t.jsonl", 0)
    for name in ("one", "two", "three"):
        assert [one.at_ms for one in found if one.name == name] == list(range(200))
    assert len(found) == (tmp_path / "t.jsonl").read_bytes().count(b"\n") == 600


@pytest.mark.slow
def test_several_processes_agree_on_when_to_rotate_the_file(tmp_path: Path) -> None:
    """Ours: one of the processes rotates the file and the others follow; no line is torn."""
    found = _wrote(tmp_path / "t.jsonl", 150_000)
    kept = sum(file.read_bytes().count(b"\n") for file in tmp_path.iterdir())
    assert len(found) == kept
    assert len(found) > 250
    assert sorted(file.name for file in tmp_path.iterdir()) in (["t.jsonl", "t.jsonl.1"], ["t.jsonl.1"])


def test_a_file_that_is_large_enough_is_rotated(tmp_path: Path) -> None:
    """Ours: there are at most two files, and the older one is read first."""
    sink = JsonlTrace(tmp_path / "t.jsonl", max_bytes=100)
    for number in range(5):
        sink.record(note(number, body="x" * 30))
    sink.close()
    assert [one.at_ms for one in read_trace(tmp_path / "t.jsonl")] == [2, 3, 4]
    with pytest.raises(InvalidArgument, match="max_bytes"):
        JsonlTrace(tmp_path / "t.jsonl", max_bytes=0)


def test_a_file_moved_by_another_program_is_started_anew(tmp_path: Path) -> None:
    """Ours: log rotation by other programs works too."""
    sink = JsonlTrace(tmp_path / "t.jsonl", max_bytes=10_000)
    sink.record(note(1))
    (tmp_path / "t.jsonl").rename(tmp_path / "moved")
    sink.record(note(2))
    sink.close()
    assert [one.at_ms for one in read_trace(tmp_path / "t.jsonl")] == [2]


def test_an_unwritable_file_is_logged_once_and_does_not_fail_the_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: a trace never fails the turn that it records."""
    (tmp_path / "t.jsonl").mkdir()

    async def main() -> object:
        async with Runtime(trace=JsonlTrace(tmp_path / "t.jsonl")) as runtime:
            return (await (await runtime.session("s", agent=agent_of("end"))).turn("go")).output

    with caplog.at_level(logging.WARNING, "standfast"):
        assert asyncio.run(main()) == "end"
    assert len([one for one in caplog.records if "cannot be written" in one.message]) == 1


def test_a_torn_line_affects_neither_the_next_one_nor_the_reader(tmp_path: Path) -> None:
    """Ours: a full disk may truncate a line."""
    path = tmp_path / "t.jsonl"
    sink = JsonlTrace(path)
    sink.record(note(1))
    sink._torn = True
    with path.open("ab") as file:
        file.write(b'{"at_ms":2,"na')
    sink.record(note(3))
    sink.close()
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n[]\n")
    assert [one.at_ms for one in read_trace(path)] == [1, 3]


KILLED = """
import asyncio, os, signal, sys
from standfast import Agent, Runtime, tool
from standfast.providers.scripted import ScriptedModel
from standfast.trace import JsonlTrace

@tool
async def fine() -> str:
    return "fine"

@tool(on_interrupted="retry")
async def fatal() -> str:
    if sys.argv[2] == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

def asks(name):
    return {"tool_calls": [{"name": name, "arguments": {}}]}

async def main():
    model = ScriptedModel([asks("fine"), asks("fatal"), {"text": "end"}])
    agent = Agent(model, tools=[fine, fatal])
    async with Runtime(sys.argv[1], trace=JsonlTrace(sys.argv[1] + "/t.jsonl")) as runtime:
        session = await runtime.session("s", agent=agent)
        turn = await session.resume() if sys.argv[2] == "second" else session.turn("go")
        if turn is None:
            turn = session.follow((await session.turns())[-1].turn_id)
        await turn

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_finished_span(tmp_path: Path) -> None:
    """Ours: ended spans are in the file, and the process that takes over completes the same trace."""
    first = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "first"], check=False)
    assert first.returncode == -signal.SIGKILL
    before = list(read_trace(tmp_path / "t.jsonl"))
    assert [one.name for one in before if one.kind == "tool_call"] == ["fine"]
    assert len([one for one in before if one.kind == "model_call"]) == 2
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "second"], check=True)
    spans = [one for one in read_trace(tmp_path / "t.jsonl") if one.span_id and one.turn_id]
    assert sorted((one.kind, one.name) for one in spans if one.kind != "hook") == [
        ("model_call", "scripted:script"),
        ("model_call", "scripted:script"),
        ("model_call", "scripted:script"),
        ("tool_call", "fatal"),
        ("tool_call", "fine"),
        ("turn", "agent"),
    ]
    assert {one.trace_id for one in spans} == {before[-1].trace_id}
    (turn,) = [one for one in spans if one.kind == "turn"]
    assert {one.parent_id for one in spans if one.kind == "tool_call"} == {turn.span_id}
