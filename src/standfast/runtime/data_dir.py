"""The location of an installation's persistent data: a directory, a database file or a database URL.

Rules
-----
1. An existing directory is a data directory, an existing file is a database. A path that does not exist yet
   is a database if it ends in `.db`, `.sqlite` or `.sqlite3`, and a data directory otherwise.
2. The path of `standfast.db` in a data directory means that data directory, so both paths have the same key
   and history.
3. The files that belong to any other database are next to it, and their names begin with its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from standfast.errors import NotConfigured
from standfast.model.former_name import FORMER_DATABASE, FORMER_HOME

if TYPE_CHECKING:
    from standfast.store.postgres.sessions import PostgresSessionStore
    from standfast.store.sqlite.sessions import SqliteSessionStore

STORE_VARIABLE: Final = "STANDFAST_STORE"
BLOBS_VARIABLE: Final = "STANDFAST_BLOBS"
HOME_VARIABLE: Final = "STANDFAST_HOME"
KEY_VARIABLE: Final = "STANDFAST_SNAPSHOT_KEY"
_MIN_KEY_BYTES: Final = 16
DATABASE: Final = "standfast.db"
HOME: Final = ".standfast"
_DATABASE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")
_URL_SCHEMES: Final = ("postgresql", "postgres")
_URL: Final = r"([A-Za-z][A-Za-z0-9+.-]*)://"
_PASSWORDS: Final = (r"(?<=://)([^/@:]*:)[^/?]*(?=@)", r"([?&]password=)[^&]*")
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_ANOTHER: Final = f"choose another with --store or {STORE_VARIABLE}"


class DataDir:
    """A database with its `snapshot.key`, command history and trace. Only their owner can read these files.

    Args:
        path: a directory, a database file such as the `shop.db` of `Runtime("shop.db")`, or the URL of a
            PostgreSQL database, whose other files are in the default directory.
        make: create the directory if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        self.url = str(path) if is_url(path) else None
        if self.url is not None:
            self.is_file = False
            self.directory = default_data_dir()
            self.database: Path | str = self.url
            return
        given = Path(path).expanduser()
        self.is_file = _is_database(given)
        self.database = given if self.is_file else database_in(given)
        self.directory = self.database.parent
        if make:
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise NotConfigured(
                    f"the data directory {self.directory} cannot be created: {error.strerror or error}",
                    hint=_ANOTHER,
                ) from None

    @property
    def file(self) -> Path:
        """The file of the database; raise `NotConfigured` if it is in PostgreSQL."""
        if isinstance(self.database, str):
            raise NotConfigured(
                "this works on the file of a SQLite store, not on PostgreSQL",
                hint="use the tools of PostgreSQL, such as pg_dump",
            )
        return self.database

    @property
    def exists(self) -> bool:
        """Whether there is a store already."""
        if self.url is None:
            return self.file.exists()
        _require_psycopg()
        from standfast.store.postgres.installation import examine

        return examine(self.url)[1] is not None

    def beside(self, name: str) -> Path:
        """Return the path of the file *name* that belongs to this database."""
        if self.url is not None:
            return self.directory / name
        own = self.file.name == DATABASE
        return self.directory / (name if own else f"{self.file.name}.{name}")

    @property
    def key_file(self) -> Path:
        return self.beside("snapshot.key")

    def snapshot_key(self) -> bytes:
        """Return the key that signs snapshots: from the environment, or a file or row, created if missing."""
        if (given := os.environ.get(KEY_VARIABLE)) is not None:
            return key_from_text(given)
        if self.url is not None:
            _require_psycopg()
            from standfast.store.postgres.installation import snapshot_key

            return snapshot_key(self.url)
        try:
            return self._read_key() or self._make_key()
        except OSError as error:
            raise NotConfigured(
                f"the key file {self.key_file} cannot be used: {error.strerror or error}"
            ) from None

    def take_key(self, other: DataDir) -> None:
        """Sign snapshots with the key of *other*, whose snapshots were copied here."""
        if KEY_VARIABLE in os.environ or (other.url is None and not other.key_file.exists()):
            return
        key = other.snapshot_key()
        if self.url is not None:
            from standfast.store.postgres.installation import set_snapshot_key

            set_snapshot_key(self.url, key)
        else:
            self.key_file.unlink(missing_ok=True)
            self._make_key(key)

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

    def _make_key(self, made: bytes | None = None) -> bytes:
        """Write the key to a temporary file, then link it, so that concurrent processes use the same key."""
        draft = self.directory / f".{self.key_file.name}.{os.getpid()}.{os.urandom(4).hex()}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(made or os.urandom(32))
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
    """Return whether *path* is a database file. Raise `NotConfigured` if it is neither file nor directory."""
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


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether *location* is the URL of a database rather than a path.

    Raise `NotConfigured` for any other URL, which as a path would be a new, empty store.
    """
    found = None if isinstance(location, os.PathLike) else re.match(_URL, location)
    if found is not None and found[1] not in _URL_SCHEMES:
        raise NotConfigured(
            f"{found[0]} is not the URL of a store",
            hint="write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or the path of a file or directory",
        )
    return found is not None


def without_password(location: str) -> str:
    """Return a URL with its password replaced by `***`, or a path unchanged."""
    for password in _PASSWORDS:
        location = re.sub(password, r"\1***", location)
    return location


def default_location() -> Path | str:
    """Return the location of data if no option is given: `STANDFAST_STORE`, or the default directory."""
    given = os.environ.get(STORE_VARIABLE)
    if not given:
        return default_data_dir()
    return given if is_url(given) else Path(given)


def default_data_dir() -> Path:
    """Return `STANDFAST_HOME`, or `.standfast` in the user's home directory."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given)
    _refuse_former_name(Path.home(), HOME, FORMER_HOME)
    return Path.home() / HOME


def database_in(directory: Path) -> Path:
    """Return the path of the database in a data directory."""
    _refuse_former_name(directory, DATABASE, FORMER_DATABASE, str(directory))
    return directory / DATABASE


def _refuse_former_name(parent: Path, name: str, former: str, *migrated: str) -> None:
    """Raise `NotConfigured` if *parent* holds data under a former name, rather than start with no data."""
    if (parent / former).exists() and not (parent / name).exists():
        import shlex

        command = shlex.join(("standfast", "migrate", *migrated))
        raise NotConfigured(f"{parent / former} has the name of an earlier release", hint=f"run: {command}")


def open_sql_store(
    location: str | Path, owner_is_dead: Callable[[str], bool], blobs: str | None = None
) -> PostgresSessionStore | SqliteSessionStore:
    """Open the store at a PostgreSQL URL or in a SQLite file.

    Large blobs are in the object store *blobs*, or by default in the one of `blobs_location`. Raise
    `NotConfigured` if an extra is not installed.
    """
    objects = None
    if place := blobs or blobs_location(location):
        from standfast.store.object_blobs import ObjectBlobs

        objects = ObjectBlobs(place)
    if not is_url(location):
        from standfast.store.sqlite.sessions import SqliteSessionStore

        return SqliteSessionStore(location, owner_is_dead=owner_is_dead, blobs=objects)
    _require_psycopg()
    from standfast.store.postgres.sessions import PostgresSessionStore

    return PostgresSessionStore(str(location), owner_is_dead=owner_is_dead, blobs=objects)


def blobs_location(location: str | Path) -> str | None:
    """Return the location of a store's large blobs: `blobs=` in its URL, or `STANDFAST_BLOBS`, or None."""
    named = dict(parse_qsl(urlsplit(str(location)).query)).get("blobs") if is_url(location) else None
    return named or os.environ.get(BLOBS_VARIABLE) or None


def _require_psycopg() -> None:
    from importlib.util import find_spec

    if find_spec("psycopg") is None or find_spec("psycopg_pool") is None:
        raise NotConfigured("a store in PostgreSQL needs psycopg", hint="pip install 'standfast[postgres]'")


def key_from_file(path: Path) -> bytes:
    """Return the snapshot key in a secret file; raise `NotConfigured` if it is too short."""
    try:
        key = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise NotConfigured(f"the key file {path} cannot be read: {error.strerror or error}") from None
    if len(key) < _MIN_KEY_BYTES:
        raise NotConfigured(f"the key file {path} must have at least {_MIN_KEY_BYTES} bytes, got {len(key)}")
    return key


def key_from_text(text: str) -> bytes:
    key = text.encode("utf-8", "surrogateescape")
    if len(key) < _MIN_KEY_BYTES:
        raise NotConfigured(f"{KEY_VARIABLE} must have at least {_MIN_KEY_BYTES} bytes")
    return key
