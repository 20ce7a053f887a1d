"""Files for tests of page checksums: without checksums, with one flipped bit, or on a disk that fails.

The disk kills its process at the n-th write. Run as a program, this module upgrades a file on such a disk:
`page_damage.py FILE NUMBER`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from standfast.store.sqlite import schema
from standfast.store.sqlite.database import Database
from standfast.store.sqlite.sandbox_migration import COMPONENTS


def open_database(path: Path) -> Database:
    return Database(path, COMPONENTS)


def without_checksums(path: Path, into: Path) -> None:
    """Write a file as a release before page checksums would have: same rows, an older schema version."""
    with contextlib.closing(apsw.Connection(str(into))) as db:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("ATTACH ? AS source", (str(path),))
        entries = db.execute(
            "SELECT type, name, sql FROM source.sqlite_schema WHERE sql IS NOT NULL"
        ).fetchall()
        made = [(kind, name, sql) for kind, name, sql in entries if not str(name).startswith("sqlite_")]
        with db:
            for kind, name, sql in sorted(made, key=lambda entry: entry[0] != "table"):
                db.execute(str(sql))
                if kind == "table":
                    db.execute(f'INSERT INTO main."{name}" SELECT * FROM source."{name}"')
            db.execute("DELETE FROM main.sqlite_sequence")
            db.execute("INSERT INTO main.sqlite_sequence SELECT * FROM source.sqlite_sequence")
            _take_back_last_migrations(db)
        db.execute("DETACH source")
    assert into.read_bytes()[20] == 0


def _take_back_last_migrations(db: apsw.Connection) -> None:
    """Restore the tables as they were before page checksums; tables that no longer exist are empty."""
    with contextlib.closing(apsw.Connection(":memory:")) as former:
        for sql in (*schema.SESSIONS[:4], *schema.SANDBOX_BEFORE):
            former.execute(str(sql))
        found: Any = former.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    made: dict[str, str] = dict(found)
    for name in ("sandbox_sessions", "sandbox_retired", "sandbox_runs", "sandbox_calls", "sandbox_leftovers"):
        db.execute(made[name])
    db.execute("DROP TABLE journals")
    for index in ("journal_by_turn", "sessions_by_family", "states_by_family"):
        db.execute(f"DROP INDEX IF EXISTS {index}")
        db.execute(made[index])
    db.execute("ALTER TABLE snapshots RENAME TO sandbox_snapshots")
    db.execute("ALTER TABLE plugin_records RENAME TO shelf")
    db.execute("UPDATE standfast_schema SET version = 1 WHERE component = 'sandbox'")
    db.execute("UPDATE standfast_schema SET version = 4 WHERE component = 'sessions'")


def rows_of(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, except the schema versions."""

    def query(db: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)
            for name in names
            if name != "standfast_schema"
        }

    return database.read(query)


def pages_of(path: Path, name: str) -> list[int]:
    """Return the pages of a table or an index."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        found = db.execute("SELECT pageno FROM dbstat WHERE name = ? ORDER BY pageno", (name,)).fetchall()
    return [int(str(page)) for (page,) in found]


def flipped(path: Path, bit: int, into: Path) -> None:
    """Copy the file to *into* with one bit flipped."""
    shutil.copyfile(path, into)
    with open(into, "r+b") as file:
        file.seek(bit // 8)
        old = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


class MortalDisk(apsw.VFS):
    """The default VFS of this process once created: the n-th write, sync, truncation or deletion kills it."""

    def __init__(self, number: int) -> None:
        super().__init__("mortal", "unix", makedefault=True)
        self._left = number

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def xOpen(self, name: Any, flags: list[int]) -> _MortalFile:
        return _MortalFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        self.step()
        super().xDelete(name, sync)


class _MortalFile(apsw.VFSFile):
    def __init__(self, disk: MortalDisk, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.step()
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self._disk.step()
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        self._disk.step()
        super().xSync(flags)


class RecordingDisk(apsw.VFS):
    """The default VFS of this process once created: it records writes, syncs and deletions in order."""

    def __init__(self) -> None:
        super().__init__("recording", "unix", makedefault=True)
        self.steps: list[tuple[Any, ...]] = []

    def xOpen(self, name: Any, flags: list[int]) -> _RecordedFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return _RecordedFile(self, path, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        super().xDelete(name, sync)
        self.steps.append(("delete", Path(name).name, sync))


class _RecordedFile(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, path: str | None, name: Any, flags: list[int]) -> None:
        self._file = None if path is None else Path(path).name
        self._disk = disk
        self._is_new = path is not None and not os.path.exists(path)
        super().__init__("unix", name, flags)

    def _note(self, *step: Any) -> None:
        if self._file is not None:
            self._disk.steps.append((step[0], self._file, *step[1:]))

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._note("write", offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._note("truncate", size)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._note("sync", self._is_new)
        self._is_new = False


class Platter:
    """The bytes that are safely on a disk, and the writes that are not synced yet."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.safe = {name: bytearray(data) for name, data in files.items()}
        self._told: list[tuple[Any, ...]] = []

    def take(self, step: tuple[Any, ...]) -> None:
        """Apply one step: a sync makes the writes to its file safe; for a new file, deletions as well."""
        if step[0] == "delete" and step[2]:
            self._settle(lambda told: told[0] == "delete")
            self.safe.pop(step[1], None)
            self._told = [told for told in self._told if told[1] != step[1]]
        elif step[0] == "sync":
            name, is_new = step[1], step[2]
            self._settle(lambda told: told[1] == name or (is_new and told[0] == "delete"))
        else:
            self._told.append(step)

    def _settle(self, certain: Any) -> None:
        for told in [told for told in self._told if certain(told)]:
            _apply(self.safe, told)
            self._told.remove(told)

    def after_power_loss(self, chance: random.Random | None) -> dict[str, bytes]:
        """Return the files after a power loss: without unsynced writes, or with those that `chance` keeps."""
        files = {name: bytearray(data) for name, data in self.safe.items()}
        for told in self._told if chance is not None else ():
            if chance is not None and chance.random() < 0.5:
                _apply(files, told)
        return {name: bytes(data) for name, data in files.items()}


def _apply(files: dict[str, bytearray], step: tuple[Any, ...]) -> None:
    kind, name = step[:2]
    if kind == "delete":
        files.pop(name, None)
        return
    data = files.setdefault(name, bytearray())
    if kind == "truncate":
        del data[step[2] :]
        return
    offset, written = step[2:]
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def lose_power(old: Path, home: Path, every: int) -> int:
    """Upgrade the file on a recording disk, and write to *home* the files after a power loss at each step."""
    before = {part.name: part.read_bytes() for part in old.parent.glob(old.name + "*")}
    disk = RecordingDisk()
    open_database(old).close()
    platter, chance, states = Platter(before), random.Random(1), 0
    for number, step in enumerate(disk.steps):
        platter.take(step)
        if number % every:
            continue
        for survivor in (None, chance):
            place = home / str(states)
            place.mkdir()
            for name, data in platter.after_power_loss(survivor).items():
                (place / name).write_bytes(data)
            states += 1
    return states


def dies(path: Path, number: int) -> bool:
    """Upgrade the file in a child process that dies at the n-th change; return False if it survives."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            disk = MortalDisk(number)
            open_database(path).close()
            status = 0 if disk else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(ended) == 0, "the upgrade failed"
    return False


def main() -> None:
    """Kill an upgrade of the file at every STEP-th change, then resume it; print the number of kills."""
    old, home, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["power"]:
        print(lose_power(old, home, step))
        return
    number, deaths = 1, 0
    while True:
        place = home / str(number)
        place.mkdir()
        for part in old.parent.glob(old.name + "*"):
            shutil.copyfile(part, place / part.name)
        if not dies(place / old.name, number):
            break
        deaths += 1
        if deaths % 3 == 0 and dies(place / old.name, 1 + number % 40):  # the resumed upgrade is killed again
            deaths += 1
        number += step
    print(deaths)


if __name__ == "__main__":
    main()
