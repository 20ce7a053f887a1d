"""Files for tests of page checksums: without any, with one flipped bit, and on a disk that dies at the n-th
write. As a program it upgrades a file and dies on the way: `page_damage.py FILE NUMBER`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from holdfast.store.sqlite import schema, session_schema
from holdfast.store.sqlite.database import Database

COMPONENTS = {
    schema.COMPONENT: schema.MIGRATIONS,
    session_schema.COMPONENT: session_schema.MIGRATIONS,
}


def open_database(path: Path) -> Database:
    return Database(path, COMPONENTS)


def without_checksums(path: Path, into: Path) -> None:
    """Write the file that a release before page checksums would have: same rows, an older schema version."""
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
            db.execute("UPDATE holdfast_schema SET version = 1 WHERE component = 'sandbox'")
        db.execute("DETACH source")
    assert into.read_bytes()[20] == 0


def rows_of(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, but for the versions of the schema."""

    def query(db: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            name: sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)
            for name in names
            if name != "holdfast_schema"
        }

    return database.read(query)


def pages_of(path: Path, name: str) -> list[int]:
    """The pages of a table or an index."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        found = db.execute("SELECT pageno FROM dbstat WHERE name = ? ORDER BY pageno", (name,)).fetchall()
    return [int(page) for (page,) in found]


def flipped(path: Path, bit: int, into: Path) -> None:
    """Copy the file to *into* with one bit changed."""
    shutil.copyfile(path, into)
    with open(into, "r+b") as file:
        file.seek(bit // 8)
        old = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


class MortalDisk(apsw.VFS):
    """The default VFS of this process from now on: the n-th write, sync, truncation or deletion kills it."""

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


def dies(path: Path, number: int) -> bool:
    """Upgrade the file in a child process that dies at the n-th change; false if it lives to the end."""
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
    """Kill an upgrade of the file at every STEP-th change, and continue with it; print how many died."""
    old, home, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    number, deaths = 1, 0
    while True:
        place = home / str(number)
        place.mkdir()
        for part in old.parent.glob(old.name + "*"):
            shutil.copyfile(part, place / part.name)
        if not dies(place / old.name, number):
            break
        deaths += 1
        if deaths % 3 == 0 and dies(place / old.name, 1 + number % 40):  # it dies again on the way
            deaths += 1
        number += step
    print(deaths)


if __name__ == "__main__":
    main()
