"""Page checksums: damage anywhere in a file is an error that names the page, and old files are upgraded."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from page_damage import flipped, open_database, pages_of, rows_of, without_checksums

from standfast.errors import InvalidArgument, RecordCorrupt, StoreError, StoreUnavailable
from standfast.ports.session_store import Begun, PruneRequest, Repeated
from standfast.store.sqlite import database as database_module
from standfast.store.sqlite.connection import find_damaged_page, is_checked
from standfast.store.sqlite.maintenance import back_up
from standfast.store.sqlite.sessions import SqliteSessionStore
from standfast.testing.session_store_tasks import an_occurrence
from standfast.testing.session_values import (
    NOW,
    a_commit,
    a_head,
    an_input,
    claimant,
    is_dead,
    new_turn,
)

SESSIONS = 60
NAMED = [
    "turns_by_idempotency_key",
    "occurrences",
    "sqlite_autoindex_inputs_1",
    "sqlite_autoindex_sessions_1",
    "sqlite_autoindex_snapshots_1",
]
TABLES = ["turns", "sessions", "inputs", "segments", "snapshots"]


async def _fill(path: Path) -> None:
    """Write sessions, each with an input and a turn that has a key, and occurrences."""
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    for number in range(SESSIONS):
        name = f"session-{number:04}-{'x' * 40}"
        await store.open_session(a_head(name))
        begun = await store.begin(new_turn(f"t{number}", name, key=f"key-{number}-{'k' * 40}"), claimant())
        assert isinstance(begun, Begun)
        await store.commit(begun.lease, a_commit(f"t{number}"))
        await store.put_input(an_input(f"input-{number}-{'i' * 40}", session_id=name))
        await store.occur(an_occurrence(key=f"occurrence-{number}-{'o' * 40}"), ())
        await store.put_snapshot(f"snap_{number}-{'s' * 40}", name, b"variables" * 20, NOW)
    await store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "standfast.db"
    asyncio.run(_fill(path))
    return path


class WrongAnswer(Exception):
    """A key in the file that looks new because of damage."""


async def _ask_everything(path: Path) -> None:
    """Look up every key in the file; raise `WrongAnswer` if one of them looks new."""
    store = SqliteSessionStore(path, owner_is_dead=is_dead)
    try:
        if len(await store.heads()) != SESSIONS:
            raise WrongAnswer("sessions are missing from the list")
        for number in range(SESSIONS):
            name = f"session-{number:04}-{'x' * 40}"
            if await store.head(name) is None or (await store.open_session(a_head(name))).depth == 0:
                raise WrongAnswer(f"{name} looks new")
            again = new_turn(f"again{number}", name, key=f"key-{number}-{'k' * 40}")
            if not isinstance(await store.begin(again, claimant()), Repeated):
                raise WrongAnswer(f"the key of turn {number} looks new")
            if not await store.withdraw_input(f"input-{number}-{'i' * 40}"):
                raise WrongAnswer(f"input {number} is gone")
            if await store.occur(an_occurrence(key=f"occurrence-{number}-{'o' * 40}"), ()):
                raise WrongAnswer(f"occurrence {number} looks new")
            if await store.snapshot(f"snap_{number}-{'s' * 40}") is None:
                raise WrongAnswer(f"snapshot {number} is gone")
    finally:
        await store.close()


def _flip_everywhere(whole: Path, tmp_path: Path, name: str, flips: range) -> None:
    """Flip one bit at a time in the pages of *name*; each flip must raise an error that names its page."""
    page_bits = 4096 * 8
    for number in flips:
        chance = random.Random(f"{name} {number}")
        page = chance.choice(pages_of(whole, name))
        damaged = tmp_path / f"{number}.db"
        flipped(whole, (page - 1) * page_bits + chance.randrange(page_bits), damaged)
        with pytest.raises(RecordCorrupt, match=f"page {page} "):
            asyncio.run(_ask_everything(damaged))


@pytest.mark.parametrize("name", [*NAMED, *TABLES])
def test_a_flipped_bit_in_an_index_or_a_table_is_an_error_that_names_the_page(
    whole: Path, tmp_path: Path, name: str
) -> None:
    """Bug: one flipped bit in an index made a known key look new, and a turn ran and paid again."""
    _flip_everywhere(whole, tmp_path, name, range(4))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMED, *TABLES, "sqlite_schema"])
def test_no_flipped_bit_causes_a_wrong_answer(
    whole: Path, tmp_path: Path, name: str, sampled: Callable[[int], slice]
) -> None:
    """Bug: 14 to 23 of 80 flips in each of four indexes went unnoticed."""
    flips = range(80)[sampled(4)]
    if name == "sqlite_schema":  # page 1 holds the header: damage there may hide that it is a database
        for number in flips:
            chance = random.Random(number)
            damaged = tmp_path / f"{number}.db"
            flipped(whole, chance.randrange(100 * 8 if number % 2 else 4096 * 8), damaged)
            with pytest.raises(StoreError):
                asyncio.run(_ask_everything(damaged))
    else:
        _flip_everywhere(whole, tmp_path, name, flips)


@pytest.mark.parametrize("bit", range(20 * 8, 21 * 8))
def test_damage_to_the_byte_that_enables_checksums_is_detected(whole: Path, tmp_path: Path, bit: int) -> None:
    """Ours: the header says that pages have checksums; a flipped bit there must not disable the checks."""
    damaged = tmp_path / "damaged.db"
    flipped(whole, bit, damaged)
    with pytest.raises(RecordCorrupt, match="page 1 "):
        open_database(damaged)


def test_damage_to_an_open_file_is_detected_by_the_next_reader(whole: Path, tmp_path: Path) -> None:
    """Ours: each reader opens its own connection, which checks the header again."""
    path = tmp_path / "open.db"
    shutil.copyfile(whole, path)
    with contextlib.closing(open_database(path)) as database:
        with open(path, "r+b") as file:
            file.seek(20)
            file.write(b"\0")
        database._readers.clear()
        with pytest.raises(RecordCorrupt, match="page 1 "):
            database.read(lambda db: db.execute("SELECT 1").get)


def test_every_page_still_has_its_checksum_after_pruning(whole: Path, tmp_path: Path) -> None:
    """Ours: pruning runs VACUUM, which rewrites every page."""
    path = tmp_path / "pruned.db"
    shutil.copyfile(whole, path)

    async def prune() -> None:
        store = SqliteSessionStore(path, owner_is_dead=is_dead)
        for number in range(0, SESSIONS, 2):
            await store.delete_session(f"session-{number:04}-{'x' * 40}")
        await store.prune(PruneRequest(frames=True, branches=True))
        assert len(await store.heads()) == SESSIONS // 2
        await store.close()

    asyncio.run(prune())
    assert path.stat().st_size < whole.stat().st_size
    assert find_damaged_page(path) is None


def test_a_backup_made_while_the_file_is_in_use_has_every_row_and_every_checksum(
    whole: Path, tmp_path: Path
) -> None:
    """Bug: `sqlite3 .backup`, which we advised, leaves page 1 of the copy without its checksum."""
    path = tmp_path / "used.db"
    shutil.copyfile(whole, path)
    with contextlib.closing(open_database(path)) as database:
        database.write(lambda db: db.execute("DELETE FROM occurrences").fetchall())
        copy = back_up(database, tmp_path / "copy.db")
        expected = rows_of(database)
        with pytest.raises(InvalidArgument, match="exists"):
            back_up(database, copy)
    with contextlib.closing(open_database(copy)) as copied:
        assert rows_of(copied) == expected
        assert copied.read(is_checked)


def test_the_default_vfs_of_the_process_is_unchanged(whole: Path) -> None:
    """Ours: a program that embeds Standfast may use apsw for its own files."""
    assert apsw.vfs_names()[0] == "unix"


# Upgrading


@pytest.fixture
def old(whole: Path, tmp_path: Path) -> Path:
    path = tmp_path / "old" / "standfast.db"
    path.parent.mkdir()
    without_checksums(whole, path)
    return path


def test_a_file_without_checksums_gets_them_when_it_is_opened(whole: Path, old: Path) -> None:
    """Bug: files of earlier versions had no checksums, and a flipped bit in an index gave a wrong answer."""
    with contextlib.closing(open_database(whole)) as database:
        expected = rows_of(database)
    with contextlib.closing(open_database(old)) as database:
        assert rows_of(database) == expected
        assert database.read(is_checked)
    assert find_damaged_page(old) is None
    asyncio.run(_ask_everything(old))


def test_a_large_file_gets_a_checksum_on_every_page(tmp_path: Path) -> None:
    """Ours: SQLite writes pages early when its cache is full; the checksum VFS would skip them."""
    path = tmp_path / "large.db"
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); CREATE INDEX i ON t (b)")
        with db:
            numbers = ((f"{number:0200}",) for number in range(20_000))
            db.executemany("INSERT INTO t (b) VALUES (?)", numbers)
    with contextlib.closing(open_database(path)) as database:
        assert database.read(lambda db: db.execute("SELECT count(*), max(b) FROM t").fetchall()) == [
            (20_000, f"{19_999:0200}")
        ]
    assert path.stat().st_size > 8_000_000
    assert find_damaged_page(path) is None


def test_a_file_that_another_program_has_open_is_upgraded_once_it_is_closed(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a program that writes no checksums must not write to a file that has them."""
    monkeypatch.setattr(database_module, "UPGRADE_TIMEOUT_MS", 50)
    with contextlib.closing(apsw.Connection(str(old))) as other:
        other.execute("SELECT count(*) FROM turns").fetchall()
        with pytest.raises(StoreUnavailable, match="locked"):
            database_module.Database(old, busy_timeout_ms=50)
        assert other.execute("SELECT count(*) FROM turns").get == SESSIONS
    with contextlib.closing(open_database(old)) as database:
        assert database.read(is_checked)


def test_many_programs_can_open_an_old_file_at_once(old: Path) -> None:
    """Ours: after an upgrade of the program, many workers start at the same time."""
    script = (
        "import sys; from page_damage import *; from standfast.store.sqlite.connection import is_checked\n"
        "d = open_database(Path(sys.argv[1])); assert d.read(is_checked); d.close()"
    )
    command = [sys.executable, "-c", script, str(old)]
    children = [subprocess.Popen(command, cwd=Path(__file__).parent) for _ in range(4)]
    assert [child.wait(120) for child in children] == [0] * 4
    asyncio.run(_ask_everything(old))


@pytest.mark.slow
def test_an_upgrade_that_loses_power_continues_when_the_file_is_next_opened(
    whole: Path, old: Path, tmp_path: Path
) -> None:
    """Ours: whether none or some of the unsynced writes survive, no row is lost."""
    home = tmp_path / "states"
    home.mkdir()
    with contextlib.closing(open_database(whole)) as database:
        expected = rows_of(database)
    program = str(Path(__file__).with_name("page_damage.py"))
    command = [sys.executable, program, str(old), str(home), "11", "power"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 40
    for place in home.iterdir():
        with contextlib.closing(open_database(place / old.name)) as database:
            assert rows_of(database) == expected, place.name
            assert database.read(is_checked)
        assert find_damaged_page(place / old.name) is None, place.name


@pytest.mark.slow
def test_an_upgrade_killed_at_any_write_continues_when_the_file_is_next_opened(
    whole: Path, old: Path, tmp_path: Path
) -> None:
    """Ours: SIGKILL at writes, syncs, truncations and deletions; no row is lost and every page is checked."""
    home = tmp_path / "deaths"
    home.mkdir()
    with contextlib.closing(open_database(whole)) as database:
        expected = rows_of(database)
    program = str(Path(__file__).with_name("page_damage.py"))
    ran = subprocess.run([sys.executable, program, str(old), str(home), "13"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 20
    for place in home.iterdir():
        with contextlib.closing(open_database(place / old.name)) as database:
            assert rows_of(database) == expected, place.name
            assert database.read(is_checked)
        assert find_damaged_page(place / old.name) is None, place.name
