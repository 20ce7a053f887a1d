"""The place where one installation keeps what must outlive its processes: a directory, or a database file.

Rules
-----
1. An existing directory is a data directory, an existing file is a database. A path that does not exist yet
   is a database if it ends in `.db`, `.sqlite` or `.sqlite3`, and a data directory otherwise.
2. `standfast.db` in a data directory is that data directory: both paths lead to the same key and history.
3. The files that belong to any other database are beside it, and their names begin with its name.
"""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path
from typing import Final

from standfast.errors import NotConfigured
from standfast.model.former_name import FORMER_DATABASE, FORMER_HOME

HOME_VARIABLE: Final = "STANDFAST_HOME"
KEY_VARIABLE: Final = "STANDFAST_SNAPSHOT_KEY"
_MIN_KEY_BYTES: Final = 16
DATABASE: Final = "standfast.db"
HOME: Final = ".standfast"
_DATABASE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_ANOTHER: Final = f"choose another with --data-dir or {HOME_VARIABLE}"


class DataDir:
    """A database, `snapshot.key`, the history of what was typed, a trace: readable by their owner alone.

    Args:
        path: a directory, or a database file such as the `shop.db` of `Runtime("shop.db")`.
        make: make the directory if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        given = Path(path).expanduser()
        self.is_file = _is_database(given)
        self.database = given if self.is_file else database_in(given)
        self.directory = self.database.parent
        if make:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise NotConfigured(
                    f"the data directory {self.directory} cannot be made: {error.strerror or error}",
                    hint=_ANOTHER,
                ) from None

    def beside(self, name: str) -> Path:
        """Return the path of the file *name* that belongs to this database."""
        own = self.database.name == DATABASE
        return self.directory / (name if own else f"{self.database.name}.{name}")

    @property
    def key_file(self) -> Path:
        return self.beside("snapshot.key")

    def snapshot_key(self) -> bytes:
        """Return the key that signs snapshots: from the environment, or from a file made on first use."""
        if (given := os.environ.get(KEY_VARIABLE)) is not None:
            return key_from_text(given)
        try:
            return self._read_key() or self._make_key()
        except OSError as error:
            raise NotConfigured(
                f"the key file {self.key_file} cannot be used: {error.strerror or error}"
            ) from None

    def _read_key(self) -> bytes | None:
        try:
            key = self.key_file.read_bytes()
        except FileNotFoundError:
            return None
        if len(key) < _MIN_KEY_BYTES:
            raise NotConfigured(
                f"the key file {self.key_file} is damaged: it has {len(key)} bytes",
                hint="restore it from a backup; without it older snapshots cannot be restored",
            )
        return key

    def _make_key(self) -> bytes:
        """Write the whole key under another name, then link it: two processes agree on the first."""
        draft = self.directory / f".{self.key_file.name}.{os.getpid()}.{secrets.token_hex(4)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, self.key_file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        key = self._read_key()
        assert key is not None
        return key


def _is_database(path: Path) -> bool:
    """Return whether *path* means a database file; `NotConfigured` if it is neither file nor directory."""
    try:
        if path.is_dir():
            return False
        if not path.exists():
            return path.suffix in _DATABASE_SUFFIXES
        if not path.is_file():
            raise NotConfigured(f"{path} is neither a directory nor a database file", hint=_ANOTHER)
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_MAGIC))
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise NotConfigured(f"the data location {path} cannot be read: {problem}", hint=_ANOTHER) from None
    if start not in (b"", _SQLITE_MAGIC):
        raise NotConfigured(f"{path} is a file, but not a database", hint=_ANOTHER)
    return True


def default_data_dir() -> Path:
    """Return `STANDFAST_HOME`, else `.standfast` in the user's home directory."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given)
    _refuse_former_name(Path.home(), HOME, FORMER_HOME, "standfast migrate")
    return Path.home() / HOME


def database_in(directory: Path) -> Path:
    """Return the path of the database in a data directory."""
    _refuse_former_name(
        directory, DATABASE, FORMER_DATABASE, shlex.join(("standfast", "migrate", str(directory)))
    )
    return directory / DATABASE


def _refuse_former_name(parent: Path, name: str, former: str, command: str) -> None:
    """Raise `NotConfigured` if *parent* holds data under a former name, rather than start with no data."""
    if (parent / former).exists() and not (parent / name).exists():
        raise NotConfigured(f"{parent / former} has the name of an earlier release", hint=f"run: {command}")


def key_from_text(text: str) -> bytes:
    key = text.encode("utf-8", "surrogateescape")
    if len(key) < _MIN_KEY_BYTES:
        raise NotConfigured(f"{KEY_VARIABLE} must have at least {_MIN_KEY_BYTES} bytes")
    return key
