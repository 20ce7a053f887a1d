"""Sessions: created, listed, shown, forked, reset, destroyed, expired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import BlockingSandbox, Sandbox, SessionLimits, tool
from standfast.errors import InvalidArgument, InvalidSessionId, SessionNotFound
from standfast.sandbox.monty import workers as state


@tool(approval="manual")
def ask() -> str:
    return "asked"


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {} if request.param == "memory" else {"data_dir": tmp_path / "data"}


@pytest.fixture
def sbox(store: dict[str, Any], clock: Any) -> Iterator[BlockingSandbox]:
    with BlockingSandbox(tools=[ask], clock=clock, **store) as box:
        yield box


def test_a_session_is_created_with_limits_and_timestamps_and_listed(
    sbox: BlockingSandbox, clock: Any
) -> None:
    """Seed: create_session, list_sessions and SessionMeta."""
    made = sbox.create("a", limits={"memory_mb": 16})
    assert made.meta.id == "a"
    assert made.meta.limits == SessionLimits(memory_mb=16)
    assert (made.meta.created_at, made.meta.last_used_at) == (clock.ms, clock.ms)
    assert (made.state, made.approvals, made.expires_at) == ("idle", [], None)
    created = clock.ms
    clock.advance(5)
    sbox.run("x = 1", session="b")
    sbox.run("x = 1", session="a")
    assert [info.meta.id for info in sbox.sessions()] == ["a", "b"]
    shown = sbox.session("a").meta
    assert (shown.created_at, shown.last_used_at) == (created, clock.ms)


def test_an_existing_session_is_not_created_again(sbox: BlockingSandbox) -> None:
    """Ours: creating must not silently empty a session."""
    sbox.run("x = 1", session="a")
    with pytest.raises(InvalidArgument):
        sbox.create("a")
    assert sbox.run("x", session="a").result == 1


def test_an_unknown_session_is_not_found(sbox: BlockingSandbox) -> None:
    """Ours: an unknown session raises SESSION_NOT_FOUND."""
    for call in (
        lambda: sbox.session("nope"),
        lambda: sbox.reset("nope"),
        lambda: sbox.fork("nope", "b"),
        lambda: sbox.snapshot("nope"),
        lambda: sbox.export_snapshot("nope"),
        lambda: sbox.resume("nope"),
    ):
        with pytest.raises(SessionNotFound) as caught:
            call()
        assert caught.value.code == "SESSION_NOT_FOUND"
    assert sbox.destroy("nope") is False
    assert sbox.cancel("nope") is False
    assert sbox.sessions() == []


@pytest.mark.parametrize("wrong", ["", "a/b", "x" * 65, "a\n"])
def test_an_invalid_id_is_refused_everywhere(sbox: BlockingSandbox, wrong: str) -> None:
    """Seed: SessionId::new checks every id."""
    for call in (
        lambda: sbox.create(wrong),
        lambda: sbox.session(wrong),
        lambda: sbox.destroy(wrong),
        lambda: sbox.reset(wrong),
        lambda: sbox.fork("a", wrong),
        lambda: sbox.cancel(wrong),
    ):
        with pytest.raises(InvalidSessionId):
            call()


def test_a_fork_copies_the_variables_and_is_independent(sbox: BlockingSandbox) -> None:
    """Ours: a fork copies a sandbox session."""
    sbox.create("a", limits={"memory_mb": 16})
    sbox.run("x = [1]\ndef f():\n    return len(x)", session="a")
    assert sbox.fork("a", "b") == "b"
    sbox.run("x.append(2)", session="b")
    assert sbox.run("[x, f()]", session="a").result == [[1], 1]
    assert sbox.run("[x, f()]", session="b").result == [[1, 2], 2]
    assert sbox.session("b").meta.limits.memory_mb == 16
    with pytest.raises(InvalidArgument):
        sbox.fork("a", "b")


def test_a_fork_right_after_a_run_includes_its_changes(sbox: BlockingSandbox) -> None:
    """Bug: the state was copied before it had been read from the worker."""
    for index in range(10):
        sbox.run(f"x = {index}", session=f"a{index}")
        sbox.fork(f"a{index}", f"b{index}")
        assert sbox.run("x", session=f"b{index}").result == index


def test_a_fork_of_a_waiting_session_has_the_state_before_the_waiting_run(sbox: BlockingSandbox) -> None:
    """Ours: a fork does not wait for a decision."""
    sbox.run("x = 1", session="a")
    assert sbox.run("x = 2\nask()", session="a").status == "waiting_for_approval"
    sbox.fork("a", "b")
    assert sbox.run("x", session="b").result == 1
    assert len(sbox.approvals(pending=True)) == 1


def test_reset_clears_variables_and_keeps_limits(sbox: BlockingSandbox) -> None:
    """Ours: unlike `destroy`, `reset` keeps the session."""
    sbox.create("a", limits={"memory_mb": 16})
    sbox.run("x = 1", session="a")
    sbox.reset("a")
    assert sbox.run("x", session="a").status == "runtime_error"
    assert sbox.session("a").meta.limits.memory_mb == 16


def test_reset_does_not_need_to_read_a_state_stored_by_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the hint said to reset the session, but resetting read its state first."""
    with BlockingSandbox(data_dir=tmp_path / "data") as box:
        box.create("a", limits={"memory_mb": 16})
        box.run("x = 1", session="a")
    with monkeypatch.context() as upgraded, BlockingSandbox(data_dir=tmp_path / "data") as box:
        upgraded.setattr(state, "ENGINE_VERSION", "another")
        state.decode_state.known.clear()  # as if another process had stored it
        refused = box.run("x", session="a").error
        assert refused is not None
        assert (refused.code, str(refused.hint)[:17]) == ("SNAPSHOT_VERSION_MISMATCH", "reset the session")
        box.reset("a")
        assert box.run("1", session="a").result == 1
        assert box.session("a").meta.limits.memory_mb == 16


def test_a_destroyed_session_is_gone_and_its_id_can_be_reused(sbox: BlockingSandbox) -> None:
    """Seed: destroy_session reports whether the session existed."""
    sbox.run("x = 1", session="a")
    assert sbox.destroy("a") is True
    assert sbox.destroy("a") is False
    assert sbox.sessions() == []
    assert sbox.run("x", session="a").status == "runtime_error"
    sbox.destroy("a")
    assert sbox.create("a", limits={"memory_mb": 20}).meta.limits.memory_mb == 20


def test_a_session_expires(sbox: BlockingSandbox, clock: Any) -> None:
    """Ours: a session is deleted after ttl_s."""
    made = sbox.create("a", ttl_s=10)
    assert made.expires_at == clock.ms + 10_000
    sbox.run("x = 1", session="a")
    clock.advance(9.9)
    assert sbox.run("x", session="a").result == 1
    clock.advance(0.1)
    assert sbox.sessions() == []
    with pytest.raises(SessionNotFound):
        sbox.session("a")
    assert sbox.run("x", session="a").status == "runtime_error"


def test_an_expired_session_cannot_be_shown_forked_or_reset(sbox: BlockingSandbox, clock: Any) -> None:
    """Ours: an expired session is gone for every operation."""
    sbox.create("a", ttl_s=1)
    sbox.run("x = 1", session="a")
    clock.advance(2)
    for call in (lambda: sbox.fork("a", "b"), lambda: sbox.reset("a"), lambda: sbox.snapshot("a")):
        with pytest.raises(SessionNotFound):
            call()
    assert sbox.create("a").expires_at is None


def test_the_size_of_a_sessions_state_is_reported(sbox: BlockingSandbox) -> None:
    """Ours: an operator must see what grows."""
    sbox.run("x = 1", session="a")
    small = sbox.session("a").state_bytes
    sbox.run("x = 'a' * 500_000", session="a")
    assert 0 < small < 20_000
    assert sbox.session("a").state_bytes > 400_000


def test_using_a_sandbox_that_is_not_open_is_a_clear_error() -> None:
    """Ours: the message says that the sandbox is not open, instead of an AttributeError."""
    box = BlockingSandbox()
    with pytest.raises(InvalidArgument, match="open"):
        box.run("1")

    async def go() -> None:
        with pytest.raises(InvalidArgument, match="open"):
            await Sandbox().run("1")
        async with Sandbox() as opened:
            with pytest.raises(InvalidArgument):
                await opened.__aenter__()

    asyncio.run(go())


def test_an_unknown_option_is_refused() -> None:
    """Ours: a misspelt option must not be ignored."""
    with pytest.raises(InvalidArgument):
        BlockingSandbox(toolz=[])  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument):
        Sandbox(toolz=[])  # type: ignore[call-arg]


def test_a_sandbox_can_be_reopened_on_the_same_directory(tmp_path: Path) -> None:
    """Ours: stored data is kept."""
    for index in range(3):
        with BlockingSandbox(data_dir=tmp_path / "data") as box:
            result = box.run("n = 0\nn" if index == 0 else "n += 1\nn")
            assert result.result == index
