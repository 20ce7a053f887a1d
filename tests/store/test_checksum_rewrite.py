"""Files that another SQLite program wrote to: they look damaged, but `rewrite_checksums` can tell."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
from page_damage import COMPONENTS, flipped, open_database, pages_of, rows_of

from standfast.errors import InvalidArgument, RecordCorrupt, SchemaTooNew, StoreUnavailable
from standfast.store.sqlite.connection import SqliteConnection, find_damaged_page, is_checked
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.maintenance import rewrite_checksums
from standfast.store.sqlite.schema import migrate_all

COMMAND = "standfast sessions rewrite-checksums"

CRASH = """
import asyncio, os, sys
from standfast import Agent, Runtime
from standfast.providers.scripted import ScriptedModel

async def main():
    agent = Agent(ScriptedModel(["an answer"] * 40), name="clerk")
    async with Runtime(sys.argv[1]) as runtime:
        for number in range(20):
            session = await runtime.session(f"s{number}", agent=agent)
            await session.turn("hello " * 50, idempotency_key=f"key-{number}")
        os._exit(7)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a process that died, with its write-ahead log."""
    path = tmp_path_factory.mktemp("crashed") / "standfast.db"
    assert subprocess.run([sys.executable, "-c", CRASH, str(path)]).returncode == 7
    assert path.with_name("standfast.db-wal").stat().st_size > 0
    return path


def _copied(path: Path, into: Path) -> Path:
    into.mkdir()
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copyfile(part, into / part.name)
    return into / path.name


def _written_by_another_program(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        assert other.execute("SELECT count(*) FROM sessions").fetchone() == (20,)
        for statement in statements:
            other.execute(statement)


@pytest.fixture
def foreign(crashed: Path, tmp_path: Path) -> Path:
    """Return the file after another SQLite program has opened and closed it."""
    path = _copied(crashed, tmp_path / "foreign")
    _written_by_another_program(path)
    assert not path.with_name("standfast.db-wal").exists()
    return path


def _refused(path: Path, match: str) -> None:
    """Check that the command reports the problem and leaves the file unchanged."""
    before = path.read_bytes()
    with pytest.raises(RecordCorrupt, match=match) as caught:
        rewrite_checksums(path)
    assert "backup" in str(caught.value.hint)
    assert path.read_bytes() == before


def test_the_command_accepts_a_file_that_another_program_opened_after_a_crash(
    crashed: Path, foreign: Path, tmp_path: Path
) -> None:
    """Bug: `sqlite3 x.db 'select count(*) from sessions'` after a kill made the file "damaged" for good."""
    with contextlib.closing(open_database(_copied(crashed, tmp_path / "own"))) as database:
        expected = rows_of(database)
    with pytest.raises(RecordCorrupt, match="page 1 ") as caught:
        open_database(foreign)
    assert COMMAND in str(caught.value.hint)
    assert str(foreign) in str(caught.value.hint)
    assert "backup" in str(caught.value.hint)

    records = rewrite_checksums(foreign)

    assert records is not None
    assert records >= 60  # twenty sessions, segments and turns
    assert find_damaged_page(foreign) is None
    with contextlib.closing(open_database(foreign)) as database:
        assert rows_of(database) == expected
        assert database.read(is_checked)


def test_another_program_that_opens_the_file_read_only_preserves_every_checksum(
    crashed: Path, tmp_path: Path
) -> None:
    """Ours: the documentation recommends this way of inspecting the file of a crashed process."""
    path = _copied(crashed, tmp_path / "own")
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as other:
        assert other.execute("SELECT count(*) FROM sessions").fetchone() == (20,)
    with contextlib.closing(open_database(path)) as database:
        assert len(rows_of(database)["sessions"]) == 20
    assert find_damaged_page(path) is None


def test_a_file_with_correct_checksums_is_left_unchanged(crashed: Path, tmp_path: Path) -> None:
    """Ours: checksums are rewritten only if one is wrong, even if a crash left a log behind."""
    path = _copied(crashed, tmp_path / "own")
    assert rewrite_checksums(path) is None
    with contextlib.closing(open_database(path)) as database:
        assert database.read(lambda db: db.execute("SELECT count(*) FROM sessions").get) == 20


def test_a_remaining_write_ahead_log_is_checked_and_kept(crashed: Path, tmp_path: Path) -> None:
    """Ours: another program may have copied part of the log and crashed as well."""
    path = _copied(crashed, tmp_path / "first")
    _written_by_another_program(path)
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('UPDATE sqlite_sequence SET seq = 99 WHERE name = ?', ('sessions',)); db.commit()\n"
        "os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == 0
    assert path.with_name("standfast.db-wal").stat().st_size > 0
    assert rewrite_checksums(path)
    with contextlib.closing(open_database(path)) as database:
        sql = "SELECT seq FROM sqlite_sequence WHERE name = 'sessions'"
        assert database.read(lambda db: db.execute(sql).get) == 99
    assert find_damaged_page(path) is None


def test_a_refused_file_keeps_its_log(crashed: Path, tmp_path: Path) -> None:
    """Ours: if a refusal copied the log to the file, the log's checksums would be lost too."""
    path = _copied(crashed, tmp_path / "first")
    _written_by_another_program(path)
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1])\n"
        "db.execute('UPDATE turns SET agent = 7 WHERE turn_id = (SELECT min(turn_id) FROM turns)')\n"
        "db.commit(); os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == 0
    log = path.with_name("standfast.db-wal").read_bytes()
    _refused(path, "record turn ")
    assert path.with_name("standfast.db-wal").read_bytes() == log


UNSEALED = {"standfast_schema", "sqlite_sequence"}


def _sealed_tables() -> list[str]:
    with contextlib.closing(SqliteConnection(":memory:")) as db:
        migrate_all(db, COMPONENTS, Path(":memory:"))
        names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return sorted({str(name) for (name,) in names} - UNSEALED)


@pytest.mark.parametrize("table", _sealed_tables())
def test_a_record_that_does_not_match_its_digest_is_refused(foreign: Path, table: str) -> None:
    """Ours: this holds for every table, including those of later versions."""
    with contextlib.closing(sqlite3.connect(foreign)) as db:
        columns = db.execute("SELECT type FROM pragma_table_info(?)", (table,)).fetchall()
    values = {"INTEGER": "77", "TEXT": "'seventy'", "BLOB": "x'7b7d'"}
    row = ", ".join(values[kind] for (kind,) in columns)
    _written_by_another_program(foreign, f"INSERT INTO {table} VALUES ({row})")
    _refused(foreign, "stored record .*(seventy|77).* does not match its digest")


def test_an_error_about_a_changed_body_names_its_record(foreign: Path) -> None:
    """Ours: a session head that another program changed is refused by name."""
    _written_by_another_program(foreign, "UPDATE sessions SET head = x'7b7d' WHERE id = 's7'")
    _refused(foreign, "stored record session s7 ")


def test_a_changed_schema_definition_is_refused(foreign: Path) -> None:
    """Ours: an index over the wrong rows would make a known key look new."""
    _written_by_another_program(
        foreign,
        "DROP INDEX turns_open",
        "CREATE UNIQUE INDEX turns_open ON turns (session) WHERE state = 'lost'",
    )
    _refused(foreign, "definition of turns_open")


def test_a_file_of_a_later_release_is_refused(foreign: Path) -> None:
    """Ours: the records of a later release may have other digests."""
    _written_by_another_program(foreign, "UPDATE standfast_schema SET version = 99")
    before = foreign.read_bytes()
    with pytest.raises(SchemaTooNew):
        rewrite_checksums(foreign)
    assert foreign.read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "turns_by_idempotency_key",
        "sqlite_autoindex_sessions_1",
        "sqlite_autoindex_segments_1",
        "sessions",
        "segments",
        "turns",
    ],
)
def test_a_flipped_bit_is_refused_or_changes_no_row(foreign: Path, tmp_path: Path, name: str) -> None:
    """Ours: damage never creates or removes a row or an index entry."""
    whole = _copied(foreign, tmp_path / "whole")
    rewrite_checksums(whole)
    with contextlib.closing(open_database(whole)) as database:
        expected = rows_of(database)
    page = pages_of(foreign, name)[-1]
    refused = 0
    for number, at in enumerate((3, 9, 1000, 2500, 4000, 4080)):
        damaged = tmp_path / f"{number}.db"
        flipped(foreign, ((page - 1) * 4096 + at) * 8 + number, damaged)
        try:
            rewrite_checksums(damaged)
        except RecordCorrupt:
            refused += 1
            continue
        with contextlib.closing(open_database(damaged)) as database:
            assert rows_of(database) == expected, at  # runs `integrity_check`, so indexes are covered too
    assert refused > 0


def test_a_file_that_another_program_has_open_is_refused(foreign: Path) -> None:
    """Ours: pages that the other program writes meanwhile would have no checksum."""
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1])\n"
        "print(db.execute('SELECT count(*) FROM sessions').fetchone(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(foreign)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"(20,)\n"
        log = foreign.with_name("standfast.db-wal")
        before = foreign.read_bytes(), log.read_bytes()
        with pytest.raises(StoreUnavailable, match="locked"):
            rewrite_checksums(foreign)
        assert (foreign.read_bytes(), log.read_bytes()) == before
    assert rewrite_checksums(foreign)


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    """Ours: a wrong path is an error, not a new database."""
    with pytest.raises(InvalidArgument, match=r"none\.db does not exist"):
        rewrite_checksums(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_tables_of_an_older_version_are_migrated_before_they_are_checked(tmp_path: Path) -> None:
    """Ours: the file cannot be opened to be migrated, so the command does both."""
    path = tmp_path / "standfast.db"
    older = {name: known[:2] for name, known in COMPONENTS.items()}
    Database(path, older).close()
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("INSERT INTO sqlite_sequence VALUES ('states', 99)")
    assert find_damaged_page(path) is not None
    assert rewrite_checksums(path) == 0
    with contextlib.closing(open_database(path)) as database:
        sql = "SELECT seq FROM sqlite_sequence WHERE name = 'states'"
        assert database.read(lambda db: db.execute(sql).get) == 99


def _dies(path: Path, number: int) -> bool:
    """Rewrite in a child process that is killed at the n-th change; return False if it survives."""
    script = (
        "import sys; from page_damage import *\n"
        "from standfast.store.sqlite.maintenance import rewrite_checksums\n"
        "disk = MortalDisk(int(sys.argv[2])); rewrite_checksums(Path(sys.argv[1])); assert disk"
    )
    ran = interpreters.run([sys.executable, "-c", script, str(path), str(number)], cwd=Path(__file__).parent)
    assert ran.returncode in (0, -signal.SIGKILL)
    return ran.returncode != 0


@pytest.mark.slow
def test_a_rewrite_killed_at_any_write_is_completed_by_the_next_one(foreign: Path, tmp_path: Path) -> None:
    """Ours: SIGKILL at writes, syncs, truncations and deletions; no row is lost and every page is checked."""
    whole = _copied(foreign, tmp_path / "whole")
    rewrite_checksums(whole)
    with contextlib.closing(open_database(whole)) as database:
        expected = rows_of(database)
    number, deaths = 1, 0
    while _dies(path := _copied(foreign, tmp_path / str(number)), number):
        deaths += 1
        number += 19
        rewrite_checksums(path)
        with contextlib.closing(open_database(path)) as database:
            assert rows_of(database) == expected, number
            assert database.read(is_checked)
        assert find_damaged_page(path) is None, number
    assert deaths > 5
