"""Commands of monitors as real processes: their output, and how they and their descendants end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
from monitor_stage import LONG_S, gone, is_running, pids_in, until, until_now

from standfast.errors import CommandNotStarted
from standfast.runtime.monitors.process import (
    Command,
    Lines,
    MonitorProcess,
    end_orphans,
    is_alive,
    mark_of,
    marked,
)

pytestmark = pytest.mark.slow


class Ear:
    """A listener that records its updates."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.count = 0
        self.ends: list[int | None] = []

    def heard(self, kind: str, lines: Lines) -> None:
        self.count += len(lines.texts) + lines.skipped
        self.lines += [(kind, text) for text in lines.texts]

    def ended(self, code: int | None) -> None:
        self.ends.append(code)


async def _begin(
    command: str | list[str], *, cwd: str | None = None, **env: str
) -> tuple[MonitorProcess, Ear]:
    ear = Ear()
    process = MonitorProcess(Command(command, cwd, env), ear)
    await process.run()
    return process, ear


async def _run(command: str | list[str], *, cwd: str | None = None, **env: str) -> Ear:
    process, ear = await _begin(command, cwd=cwd, **env)
    await until(lambda: ear.ends)
    assert gone(process.mark.token)
    return ear


def _whole(command: str | list[str], *, cwd: str | None = None, **env: str) -> Ear:
    return asyncio.run(_run(command, cwd=cwd, **env))


# Output


def test_output_lines_are_updates_error_lines_are_notices_and_the_end_comes_last() -> None:
    """Seed: each line is an update; an unfinished line counts when the command exits."""
    ear = _whole("echo one; echo two >&2; printf three")
    assert sorted(ear.lines) == [("notice", "two"), ("update", "one"), ("update", "three")]
    assert ear.ends == [0]


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("true", 0)])
def test_the_exit_code_is_reported(command: str, code: int) -> None:
    """Ours: a monitor of a build reports whether the build succeeded."""
    assert _whole(command).ends == [code]


def test_a_list_is_a_program_and_its_arguments_without_a_shell() -> None:
    """Ours: a shell does not expand the arguments."""
    assert _whole(["printf", "%s\\n", "$HOME *"]).lines == [("update", "$HOME *")]


def test_a_command_runs_in_the_given_directory_with_empty_input(tmp_path: Path) -> None:
    """Ours: `cwd` is respected; standard input is empty, so that no command waits for it."""
    assert _whole("pwd; cat", cwd=str(tmp_path)).lines == [("update", str(tmp_path))]


def test_a_command_sees_a_small_environment_and_the_given_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: SPEC §11, commands do not see the runtime's API keys."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    seen = [text for _, text in _whole("env", GREETING="hello").lines]
    assert "GREETING=hello" in seen
    assert "LANG=C.UTF-8" in seen
    assert not any("secret" in text for text in seen)


def test_a_flood_of_output_is_read_to_its_end_while_the_loop_keeps_running() -> None:
    """Ours: a million lines block no other task, and every one of them is counted."""

    async def flood() -> tuple[Ear, float]:
        _process, ear = await _begin("seq 1000000")
        longest, last = 0.0, time.perf_counter()
        while not ear.ends:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        return ear, longest

    ear, longest = asyncio.run(flood())
    assert ear.count == 1_000_000
    assert ear.lines[-1] == ("update", "1000000")
    assert longest < 0.25


def test_a_command_that_closes_its_output_keeps_running() -> None:
    """Ours: closed output does not mean that the command has ended."""

    async def close_output() -> tuple[bool, list[int | None]]:
        process, ear = await _begin("echo here; exec >&- 2>&-; read -r line </dev/zero; sleep 1000")
        await until(lambda: ear.lines and not process._streams)
        ran = not ear.ends
        await process.stop()
        return ran, ear.ends

    ran, ends = asyncio.run(close_output())
    assert (ran, len(ends)) == (True, 1)


# Not started


@pytest.mark.parametrize(
    ("command", "cwd", "why"),
    [
        (["no-such-program"], None, "'no-such-program': No such file"),
        (["/"], None, "Permission denied"),
        (["true"], "/no/such/place", "the directory '/no/such/place': No such file"),
        (["true", "a\0b"], None, "embedded null byte"),
        (["true", "x" * 3_000_000], None, "Argument list too long"),
    ],
)
def test_a_command_that_cannot_be_started_reports_the_reason(
    command: list[str], cwd: str | None, why: str
) -> None:
    """Ours: the failure is typed and names the reason."""
    with pytest.raises(CommandNotStarted, match=why) as found:
        _whole(command, cwd=cwd)
    assert found.value.code == "IO_ERROR"


def test_a_command_does_not_run_before_it_is_released(tmp_path: Path) -> None:
    """Ours: the record is written before the command runs; giving up in between leaves no process."""

    async def give_up() -> str:
        process = MonitorProcess(Command(f"touch {tmp_path / 'ran'}", None, {}), Ear())
        await until(lambda: is_alive(process.mark))
        await process.abandon()
        return process.mark.token

    assert gone(asyncio.run(give_up()))
    assert not (tmp_path / "ran").exists()


# Ended

_ENDLESS = {
    "plain": "echo $$ > A; echo up; sleep 1000",
    "ignores SIGTERM": "trap '' TERM; echo $$ > A; echo up; while :; do sleep 1000; done",
    "with children in the background": (
        "sh -c 'echo $$ > A; sleep 1000' & sh -c 'trap \"\" TERM; echo $$ > B; sleep 1000' & "
        "while ! [ -s A -a -s B ]; do :; done; echo up; wait"
    ),
    "stopped": "echo $$ > A; echo up; kill -STOP $$; sleep 1000",
    "a daemon in a session of its own": (
        "(setsid sh -c 'trap \"\" TERM; echo $$ > A; sleep 1000' >/dev/null 2>&1 &) ; "
        "while ! [ -s A ]; do :; done; echo up; sleep 1000"
    ),
    "a daemon without the environment": (
        "(env -i setsid setsid sh -c 'echo $$ > A; sleep 1000' &) ; while ! [ -s A ]; do :; done; echo up; "
        "sleep 1000"
    ),
}


@pytest.mark.parametrize("command", _ENDLESS.values(), ids=_ENDLESS)
def test_stopping_ends_every_process_that_a_command_started(command: str, tmp_path: Path) -> None:
    """Seed: SPEC §9, SIGTERM, 200 ms, SIGKILL for the process group, and for processes that left it."""

    async def stop() -> tuple[str, float]:
        process, ear = await _begin(command, cwd=str(tmp_path))
        await until(lambda: ear.lines)
        began = time.monotonic()
        await process.stop()
        assert len(ear.ends) == 1
        return process.mark.token, time.monotonic() - began

    token, took = asyncio.run(stop())
    assert gone(token)
    assert not [pid for pid in pids_in(*tmp_path.iterdir()) if is_running(pid)]
    assert took < 2.0


def test_a_command_has_200_ms_to_exit_by_itself() -> None:
    """Seed: SIGTERM comes first; output written before the exit is kept."""

    async def stop() -> Ear:
        process, ear = await _begin("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done")
        await until(lambda: ear.lines)
        await process.stop()
        return ear

    ear = asyncio.run(stop())
    assert (ear.lines[-1], ear.ends) == (("update", "bye"), [7])


def test_processes_left_behind_by_a_command_end_with_it(tmp_path: Path) -> None:
    """Ours: a monitor ends with its command, even if a child keeps the pipes open."""
    ear = _whole("(trap '' TERM; sleep 1000) & echo $! > A; sh -c 'exit 5'", cwd=str(tmp_path))
    assert ear.ends == [5]
    assert not is_running(*pids_in(tmp_path / "A"))


def test_a_remaining_child_may_write_its_last_output(tmp_path: Path) -> None:
    """Ours: remaining processes get SIGTERM before SIGKILL."""
    child = "trap 'echo last; exit' TERM; echo $$ > A; while :; do sleep 0.01; done"
    ear = _whole(f"({child}) & while ! [ -s A ]; do :; done", cwd=str(tmp_path))
    assert ("update", "last") in ear.lines


def test_a_process_ends_when_its_handle_is_dropped() -> None:
    """Ours: a loop that is closed early leaves no process and no warning."""

    async def begin() -> str:
        process, ear = await _begin("echo up; sleep 1000")
        await until(lambda: ear.lines)
        return process.mark.token

    token = asyncio.run(begin())
    gc.collect()
    until_now(lambda: gone(token))


def test_killing_the_supervisor_ends_its_command(tmp_path: Path) -> None:
    """Ours: killing the supervisor does not free a command from its control."""

    async def kill() -> Ear:
        process, ear = await _begin(
            "(setsid sleep 1000 & echo $! > B); echo $$ > A; echo up; sleep 1000", cwd=str(tmp_path)
        )
        await until(lambda: ear.lines)
        os.kill(process.mark.pid, signal.SIGKILL)
        await until(lambda: ear.ends)
        return ear

    assert asyncio.run(kill()).ends == [None]
    assert not [pid for pid in pids_in(tmp_path / "A", tmp_path / "B") if is_running(pid)]


def test_a_stopped_supervisor_keeps_nothing_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: ending the processes does not depend on the supervisor."""
    monkeypatch.setattr("standfast.runtime.monitors.process._PATIENCE_S", 0.1)

    async def stop() -> str:
        process, ear = await _begin("echo up; sleep 1000")
        await until(lambda: ear.lines)
        os.kill(process.mark.pid, signal.SIGSTOP)
        await process.stop()
        return process.mark.token

    assert gone(asyncio.run(stop()))


def test_sigterm_to_the_supervisor_ends_everything() -> None:
    """Ours: SIGTERM to the supervisor stops the monitor."""

    async def terminate() -> Ear:
        process, ear = await _begin("echo up; sleep 1000")
        await until(lambda: ear.lines)
        os.kill(process.mark.pid, signal.SIGTERM)
        await until(lambda: ear.ends)
        return ear

    assert asyncio.run(terminate()).ends == [-signal.SIGTERM]


# Orphans


def test_a_pid_that_was_reused_by_another_process_is_never_killed() -> None:
    """Ours: a matching pid and start time are not enough; only a process with the mark is killed."""

    async def look() -> None:
        process, ear = await _begin("echo up; sleep 1000")
        await until(lambda: ear.lines)
        other = mark_of(process.mark.pid, "another token")
        assert not is_alive(other)
        assert await asyncio.to_thread(end_orphans, other) == 0
        assert is_alive(process.mark)
        assert len(marked(process.mark.token)) >= 2
        await process.stop()

    asyncio.run(look())


def test_processes_recorded_on_another_machine_are_left_alone() -> None:
    """Ours: process ids of another machine have no meaning here."""

    async def look() -> None:
        process, ear = await _begin("echo up; sleep 1000")
        elsewhere = msgspec.structs.replace(process.mark, machine="elsewhere/boot")
        assert not is_alive(elsewhere)
        assert end_orphans(elsewhere) == 0
        assert is_alive(process.mark)
        assert await asyncio.to_thread(end_orphans, process.mark) >= 1
        async with asyncio.timeout(LONG_S):
            await process._over.wait()
        assert len(ear.ends) == 1

    asyncio.run(look())
