"""The guest: how it is created, snapshotted and called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime

from standfast.sandbox.quickjs import booting, module_cache
from standfast.sandbox.quickjs.booting import CompiledGuest
from standfast.sandbox.quickjs.build import GuestMissing, build_id
from standfast.sandbox.quickjs.guest import (
    Broken,
    Guest,
    GuestSnapshot,
    Trapped,
    load_snapshot,
    new_engine,
)
from standfast.sandbox.quickjs.module_cache import BootFacts

MEMORY = 64 << 20


@pytest.fixture(scope="module")
def machine() -> CompiledGuest:
    return CompiledGuest()


@pytest.fixture
def guest(machine: CompiledGuest) -> Iterator[Guest]:
    made = machine.guest(MEMORY)
    made.limit(memory=MEMORY, depth=256, fuel=1 << 40)
    yield made
    made.close()


def evaluate(guest: Guest, code: str) -> bytes:
    guest.call("open", b"[]", b"[[],false,1000,0]")
    assert guest.begin(code.encode()), guest.exception()
    guest.run_jobs()
    return guest.call("poll")


def taken_of(guest: Guest) -> bytes:
    snapshot = GuestSnapshot(guest)
    taken = b"".join(snapshot.parts())
    assert len(taken) == snapshot.size
    return taken


def test_a_guest_runs_code_and_reports_where_it_paused(guest: Guest) -> None:
    """Ours: one call runs the code, another reads where it paused."""
    assert evaluate(guest, "[1, 2].map(n => n * 2)") == b'[[],"","",0,"value",[2,4],[]]'
    assert not guest.begin(b"const x = (")
    assert guest.exception()[0] == "SyntaxError"


def test_a_snapshot_contains_only_what_has_changed(machine: CompiledGuest, guest: Guest) -> None:
    """Ours: a new guest has nothing to store, and a restored guest has its snapshot."""
    assert len(taken_of(machine.guest(MEMORY))) < 100
    evaluate(guest, "var kept = 'kept'")
    taken = taken_of(guest)
    assert len(taken) < 20_000
    for piece in (1, 7, len(taken)):
        other = machine.guest(MEMORY)
        load_snapshot(other, len(taken), [taken[at : at + piece] for at in range(0, len(taken), piece)])
        assert taken_of(other) == taken
    assert evaluate(other, "kept") == b'[[],"","",0,"value","kept",["kept"]]'


@pytest.mark.slow
def test_every_machine_creates_the_same_guest(machine: CompiledGuest) -> None:
    """Ours: a snapshot of one process works in any other."""
    module, boot = booting.booted(new_engine(optimize=False))
    assert boot == machine.boot
    assert module.imports


def test_a_guest_that_runs_out_of_memory_traps(machine: CompiledGuest) -> None:
    """Ours: no guest code keeps running once its memory is used up."""
    guest = machine.guest(2 << 20)
    with pytest.raises(Trapped) as trapped:
        evaluate(guest, "try { new Uint8Array(4e6) } catch { 5 }")
    assert trapped.value.reason == "memory"


def test_addresses_outside_the_memory_are_refused(guest: Guest) -> None:
    """Ours: a guest may return any address."""
    for at, size in ((-1, 4), (guest.size, 1), (0, 1 << 33), (guest.size - 2, 4)):
        with pytest.raises(Broken):
            guest.read(at, size)
    with pytest.raises(Broken):
        guest.write(guest.size - 1, b"ab")


def test_an_unknown_guest_binary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: function indexes are valid for one build only."""
    monkeypatch.setattr(booting, "guest_wasm", lambda: b"\0asm\1\0\0\0")
    with pytest.raises(GuestMissing, match="quickjs-rs"):
        booting.booted(new_engine(optimize=False))


# ── the cache ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "standfast"


def kept(machine: CompiledGuest) -> tuple[wasmtime.Engine, BootFacts]:
    """Cache a small module in place of the guest."""
    engine = new_engine()
    module_cache.store(build_id(), wasmtime.Module(engine, "(module)"), machine.boot)
    return engine, machine.boot


def test_a_cached_module_is_private_and_can_be_loaded(machine: CompiledGuest, folder: Path) -> None:
    """Ours: compiled code is loaded only from a folder that no other user can write to."""
    engine, boot = kept(machine)
    (path,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    found = module_cache.load(engine, build_id())
    assert found is not None
    assert found[1] == boot
    assert module_cache.load(engine, bytes(16)) is None


def test_a_module_that_others_could_have_written_is_not_loaded(machine: CompiledGuest, folder: Path) -> None:
    """Ours: loading compiled code means running it."""
    engine, _ = kept(machine)
    (path,) = folder.iterdir()
    path.chmod(0o620)
    assert module_cache.load(engine, build_id()) is None
    path.chmod(0o600)
    folder.chmod(0o770)
    assert module_cache.load(engine, build_id()) is None
    folder.chmod(0o700)
    moved = path.rename(folder / "elsewhere")
    path.symlink_to(moved)
    assert module_cache.load(engine, build_id()) is None


def test_a_damaged_module_is_not_loaded(machine: CompiledGuest, folder: Path) -> None:
    """Ours: a damaged disk must not lead to damaged code."""
    engine, _ = kept(machine)
    (path,) = folder.iterdir()
    data = path.read_bytes()
    for broken in (data[:-1], data[:100], b"", data[:50] + b"\xff" + data[51:]):
        path.write_bytes(broken)
        assert module_cache.load(engine, build_id()) is None


def test_an_unwritable_cache_is_ignored(machine: CompiledGuest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: code runs even if the cache cannot be written."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    engine, _ = kept(machine)
    assert module_cache.load(engine, build_id()) is None
    assert not os.path.exists("/dev/null/nowhere")
