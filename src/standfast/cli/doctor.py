"""`standfast doctor`: does this installation work, and if not, what to do.

Rule: looking changes nothing. A data directory that is not there yet is not made.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer, console

if TYPE_CHECKING:
    from standfast.errors import ErrorObject
    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.database import Database

_MIN_FREE_BYTES = 100_000_000
_NOT_YET = "not there yet; the first run makes it"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


@click.command("doctor", epilog="\b\nExample:\n  standfast doctor --json\n")
@answers
def command(invocation: Invocation) -> Answer:
    """Check that Python, the data directory, the database and the engines work.

    Engines that are not installed, or that this machine cannot confine, are named with the reason; that
    is no problem until a session asks for one. Providers of models are named if their key is there.
    """
    from standfast.runtime.data_dir import DataDir

    home = DataDir(invocation.data_dir, make=False)
    looks: dict[str, Callable[[], Check]] = {
        "python": _python,
        "platform": _platform,
        "data directory": lambda: _data_dir(home),
        "disk space": lambda: _disk(home),
        "sqlite": _sqlite,
        "database": lambda: _database(home),
        "snapshot key": lambda: _key(home),
        "engine": _monty,
        "engine quickjs": lambda: _other_engine("quickjs", "typescript"),
        "engine cpython": lambda: _other_engine("cpython", "python"),
        "agent sessions": lambda: _agent_sessions(home),
        "approvals": lambda: _approvals(home),
    }
    checks = [_look(name, look) for name, look in looks.items()] + _models()
    healthy = all(check.ok for check in checks)
    return Answer({"ok": healthy, "checks": checks}, lambda: _show(checks), 0 if healthy else 1)


def _look(name: str, look: Callable[[], Check]) -> Check:
    """A check that fails in a way nobody thought of is a finding too."""
    from standfast.errors import StandfastError

    try:
        return look()
    except StandfastError as error:
        return Check(name, False, error.message, error.hint)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _python() -> Check:
    import platform
    import sys

    fits = sys.version_info >= (3, 11)
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return Check("python", fits, found, None if fits else "Standfast needs Python 3.11 or later")


def _platform() -> Check:
    import platform

    fits = os.name == "posix"
    hint = None if fits else "Linux and macOS are supported; try WSL on Windows"
    return Check("platform", fits, platform.platform(), hint)


def _data_dir(data: DataDir) -> Check:
    home = data.directory
    place = _existing(home)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        another = "make it writable, or choose another with --data-dir or STANDFAST_HOME"
        return Check("data directory", False, f"{place} is not a writable directory", another)
    if place != home:
        return Check("data directory", True, f"{home}: {_NOT_YET}")
    mode = stat.S_IMODE(home.stat().st_mode)
    private = data.is_file or not mode & 0o077  # a database in a directory of others is private by itself
    hint = None if private else f"others can look into it: chmod 700 {home}"
    return Check("data directory", private, f"{home} (mode {mode:03o})", hint)


def _existing(home: Path) -> Path:
    """The directory itself, or the nearest one above it that exists."""
    return next(place for place in (home.absolute(), *home.absolute().parents) if place.exists())


def _disk(home: DataDir) -> Check:
    import shutil

    free = shutil.disk_usage(_existing(home.directory)).free
    enough = free >= _MIN_FREE_BYTES
    hint = None if enough else "make room; writes will fail when the disk is full"
    return Check("disk space", enough, f"{free / 1e9:.1f} GB free", hint)


def _sqlite() -> Check:
    import tempfile

    from standfast.store.sqlite.database import Database

    with tempfile.TemporaryDirectory(prefix="standfast-doctor-") as scratch:
        database = Database(Path(scratch) / "probe.db")
        try:
            version = _first(database, "SELECT sqlite_version()")
        finally:
            database.close()
    sound = tuple(int(part) for part in version.split(".")) >= (3, 51, 3)
    hint = None if sound else "older ones can damage a file that two processes write: upgrade apsw"
    return Check("sqlite", sound, version, hint)


def _first(database: Database, query: str) -> str:
    """The first value that a query gives."""
    return database.read(lambda db: str(db.execute(query).get))


def _database(home: DataDir) -> Check:
    from standfast.store.sqlite.database import Database
    from standfast.store.sqlite.sandbox_migration import COMPONENTS

    if not home.database.exists():
        return Check("database", True, f"{home.database}: {_NOT_YET}")
    mode = stat.S_IMODE(home.database.stat().st_mode)
    if home.is_file and mode & 0o077:
        hint = f"others can read it: chmod 600 {home.database}"
        return Check("database", False, f"{home.database} (mode {mode:03o})", hint)
    database = Database(home.database, COMPONENTS)
    try:
        sessions = _first(database, "SELECT count(*) FROM sessions")
        verdict = _first(database, "PRAGMA quick_check")
    finally:
        database.close()
    detail = f"schema {len(COMPONENTS['sessions'])}, {sessions} sessions, quick_check {verdict}"
    return Check("database", verdict == "ok", detail, None if verdict == "ok" else "restore it from a backup")


def _key(home: DataDir) -> Check:
    from standfast.runtime.data_dir import KEY_VARIABLE, key_from_text

    if (given := os.environ.get(KEY_VARIABLE)) is not None:
        key_from_text(given)
        return Check("snapshot key", True, f"from {KEY_VARIABLE}")
    file = home.key_file
    if not file.exists():
        return Check("snapshot key", True, f"{file}: {_NOT_YET}")
    mode, size = stat.S_IMODE(file.stat().st_mode), file.stat().st_size
    if mode & 0o077:
        return Check("snapshot key", False, f"{file} (mode {mode:03o})", f"chmod 600 {file}")
    hint = None if size >= 16 else "restore it from a backup; older snapshots need it"
    return Check("snapshot key", size >= 16, f"{file} (mode {mode:03o}, {size} bytes)", hint)


def _monty() -> Check:
    from standfast.sandbox.monty.state import ENGINE, ENGINE_VERSION

    said, error = _one_and_one("monty", "python")
    hint = "reinstall pydantic-monty; is its binary allowed to run here?" if error else None
    return Check("engine", error is None, f"{ENGINE} {ENGINE_VERSION}: {said}", hint)


def _other_engine(name: str, language: str) -> Check:
    from standfast.errors import Code

    said, error = _one_and_one(name, language)
    if error is None:
        return Check(f"engine {name}", True, f"{language}: {said}")
    if error.code == Code.UNSUPPORTED_FEATURE:
        return Check(f"engine {name}", True, f"not available: {error.message}", error.hint)
    return Check(f"engine {name}", False, said, error.hint)


def _one_and_one(name: str, language: str) -> tuple[str, ErrorObject | None]:
    """What came of a sum on an engine."""
    from standfast.errors import ErrorObject
    from standfast.runtime.blocking import BlockingSandbox

    with BlockingSandbox(language=language, engine=name) as box:
        result = box.run("1 + 1")
    if result.result == 2:
        return f"1 + 1 is 2 ({result.metrics.duration_ms} ms)", None
    error = result.error or ErrorObject(code="RUNTIME_ERROR", message=f"it is {result.result!r}")
    return f"1 + 1 failed: {error.message}", error


def _agent_sessions(home: DataDir) -> Check:
    import asyncio

    if not home.database.exists():
        return Check("agent sessions", True, "0")
    sessions, unfinished = asyncio.run(_count_sessions(home.database))
    hint = "standfast recover" if unfinished else None
    return Check("agent sessions", True, f"{sessions}, {unfinished} with a turn that could go on", hint)


async def _count_sessions(database: Path) -> tuple[int, int]:
    """How many there are, and how many turns nobody goes on with."""
    from standfast.cli.agent_host import open_sessions

    async with open_sessions(database) as runtime:
        unfinished = await runtime.store.unfinished(runtime.now_ms())
        return len(await runtime.sessions()), len(unfinished)


def _approvals(home: DataDir) -> Check:
    from standfast.runtime.blocking import BlockingSandbox

    if not home.database.exists():
        return Check("approvals", True, "0 waiting")
    with BlockingSandbox(data_dir=home.database) as box:
        waiting = len(box.approvals(pending=True))
    hint = "standfast approvals list --pending" if waiting else None
    return Check("approvals", True, f"{waiting} waiting", hint)


def _models() -> list[Check]:
    """A line for each provider of models that has its key, and one for a catalog of the user's."""
    from standfast.providers.catalog import VARIABLE
    from standfast.providers.vendors import VENDORS, status_of

    found = [status_of(vendor) for vendor in VENDORS.values()]
    checks = [
        Check("models", True, f"{one.name}: key from {one.key}{_asked_at(one.base_url)}")
        for one in found
        if one.key is not None
    ]
    if not checks:
        checks = [
            Check("models", True, "no provider has a key; scripted models need none", "standfast models")
        ]
    return [*checks, _look("models", _catalog)] if os.environ.get(VARIABLE) else checks


def _asked_at(base_url: str) -> str:
    return f", {base_url}" if base_url else ""


def _catalog() -> Check:
    from standfast.providers.catalog import VARIABLE, load_catalog

    load_catalog()
    return Check("models", True, f"catalog {os.environ[VARIABLE]} from {VARIABLE}")


def _show(checks: list[Check]) -> None:
    from rich.text import Text

    from standfast.cli.report import plain_table

    table = plain_table("", "", "")
    table.show_header = False
    for check in checks:
        mark = Text("ok", "green") if check.ok else Text("problem", "bold red")
        table.add_row(mark, check.name, _detail(check))
    console().print(table)


def _detail(check: Check) -> Any:
    from rich.text import Text

    detail = Text(check.detail)
    if check.hint:
        detail.append(f"\n{check.hint}", "cyan")
    return detail
