"""`standfast doctor`: checks this installation and says how to repair it; nothing is changed."""

from __future__ import annotations

import asyncio
import functools
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput, console, styled
from standfast.cli.report import plain_table

if TYPE_CHECKING:
    from standfast.errors import ErrorObject
    from standfast.runtime.data_dir import DataDir
    from standfast.store.sqlite.database import Database

Finding = tuple[bool, str, str | None]
"""Whether the check passed, what it found, and how to fix it."""

_MIN_FREE_BYTES = 100_000_000
_NOT_YET = "does not exist yet; the first run creates it"


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its finding."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


@click.command("doctor", epilog="\b\nExample:\n  standfast doctor --json\n")
@answers
def command(invocation: Invocation) -> CommandOutput:
    """Check that Python, the store and the engines work.

    An engine that is not installed, or that this machine cannot confine, is listed with the reason; this is a
    problem only if a session needs it. Model providers are listed if their API key is set.
    """
    from standfast.runtime.data_dir import DataDir, blobs_location

    home = DataDir(invocation.data_dir, make=False)
    files: dict[str, Callable[[], Finding]] = {
        "data directory": lambda: _data_dir(home),
        "disk space": lambda: _disk(home),
        "sqlite": _sqlite,
        "database": lambda: _database(home),
        "snapshot key": lambda: _key(home),
    }
    looks: dict[str, Callable[[], Finding]] = {
        "python": lambda: _fits(
            sys.version_info >= (3, 11),
            f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}",
            "Standfast needs Python 3.11 or later",
        ),
        "platform": lambda: _fits(
            os.name == "posix", platform.platform(), "Linux and macOS are supported; try WSL on Windows"
        ),
        **(_postgres(home.url) if home.url is not None else files),
        **({"blobs": lambda: _blobs(place)} if (place := blobs_location(home.database)) else {}),
        "engine": _monty,
        "engine quickjs": lambda: _other_engine("quickjs", "typescript"),
        "engine cpython": lambda: _other_engine("cpython", "python"),
        **_contents(home),
    }
    checks = [_look(name, look) for name, look in looks.items()] + _models()
    healthy = all(check.ok for check in checks)

    def show() -> None:
        table = plain_table("", "", "")
        for check in checks:
            detail = styled(check.detail)
            if check.hint:
                detail.append(f"\n{check.hint}", "cyan")
            mark = styled("ok", "green") if check.ok else styled("problem", "bold red")
            table.add_row(mark, check.name, detail)
        console().print(table)

    return CommandOutput({"ok": healthy, "checks": checks}, show, 0 if healthy else 1)


def _look(name: str, look: Callable[[], Finding]) -> Check:
    """Run one check; an unexpected exception is a finding too."""
    from standfast.errors import StandfastError

    try:
        return Check(name, *look())
    except StandfastError as error:
        return Check(name, False, error.message, error.hint)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


def _fits(ok: bool, detail: str, otherwise: str) -> Finding:
    return ok, detail, None if ok else otherwise


def _postgres(url: str) -> dict[str, Callable[[], Finding]]:
    """Return the checks of a PostgreSQL store: the settings that durability depends on, and the tables."""
    from standfast.errors import StandfastError
    from standfast.store.postgres.installation import examine
    from standfast.store.postgres.settings import Setting

    def shown(setting: Setting) -> Finding:
        return setting.refused is None, setting.value, setting.refused or setting.warning

    try:
        settings, sessions = examine(url)
    except StandfastError as error:
        return {"postgresql": lambda error=error: (False, error.message, error.hint)}  # type: ignore[misc]
    detail = _NOT_YET if sessions is None else f"{sessions} sessions"
    checks: dict[str, Callable[[], Finding]] = {"postgresql": lambda: (True, detail, None)}
    for setting in settings:
        checks[f"postgresql {setting.name}"] = functools.partial(shown, setting)
    return checks


def _data_dir(data: DataDir) -> Finding:
    home = data.directory
    place = _existing(home)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        another = "make it writable, or choose another with --store or STANDFAST_STORE"
        return False, f"{place} is not a writable directory", another
    if place != home.absolute():
        return True, f"{home}: {_NOT_YET}", None
    mode = stat.S_IMODE(home.stat().st_mode)
    private = data.is_file or not mode & 0o077  # a database file in a shared directory is itself private
    return _fits(private, f"{home} (mode {mode:03o})", f"other users can list it: chmod 700 {home}")


def _existing(home: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    return next(place for place in (home.absolute(), *home.absolute().parents) if place.exists())


def _disk(home: DataDir) -> Finding:
    free = shutil.disk_usage(_existing(home.directory)).free
    hint = "make room; writes will fail when the disk is full"
    return _fits(free >= _MIN_FREE_BYTES, f"{free / 1e9:.1f} GB free", hint)


def _sqlite() -> Finding:
    from standfast.store.sqlite.database import Database

    with (
        tempfile.TemporaryDirectory(prefix="standfast-doctor-") as scratch,
        closing(Database(Path(scratch) / "probe.db")) as database,
    ):
        version = _first(database, "SELECT sqlite_version()")
    sound = tuple(int(part) for part in version.split(".")) >= (3, 51, 3)
    return _fits(sound, version, "older ones can damage a file that two processes write: upgrade apsw")


def _first(database: Database, query: str) -> str:
    """Return the first value of a query's result."""
    return database.read(lambda db: str(db.execute(query).get))


def _database(home: DataDir) -> Finding:
    from standfast.store.sqlite.database import Database
    from standfast.store.sqlite.sandbox_migration import COMPONENTS

    file = home.file
    if not file.exists():
        return True, f"{file}: {_NOT_YET}", None
    mode = stat.S_IMODE(file.stat().st_mode)
    if home.is_file and mode & 0o077:
        return False, f"{file} (mode {mode:03o})", f"other users can read it: chmod 600 {file}"
    with closing(Database(file, COMPONENTS)) as database:
        sessions = _first(database, "SELECT count(*) FROM sessions")
        verdict = _first(database, "PRAGMA quick_check")
    detail = f"schema {len(COMPONENTS['sessions'])}, {sessions} sessions, quick_check {verdict}"
    return _fits(verdict == "ok", detail, "restore it from a backup")


def _key(home: DataDir) -> Finding:
    from standfast.runtime.data_dir import KEY_VARIABLE, key_from_text

    if (given := os.environ.get(KEY_VARIABLE)) is not None:
        key_from_text(given)
        return True, f"from {KEY_VARIABLE}", None
    file = home.key_file
    if not file.exists():
        return True, f"{file}: {_NOT_YET}", None
    mode, size = stat.S_IMODE(file.stat().st_mode), file.stat().st_size
    if mode & 0o077:
        return False, f"{file} (mode {mode:03o})", f"chmod 600 {file}"
    detail = f"{file} (mode {mode:03o}, {size} bytes)"
    return _fits(size >= 16, detail, "restore it from a backup; older snapshots need it")


def _blobs(place: str) -> Finding:
    from standfast.store.object_blobs import ObjectBlobs

    objects = ObjectBlobs(place, retry_s=5)
    objects.check()
    return True, f"{objects.url} for blobs over {objects.over_bytes} bytes", None


def _monty() -> Finding:
    from standfast.sandbox.monty.workers import ENGINE, ENGINE_VERSION

    said, error = _one_and_one("monty", "python")
    hint = "reinstall pydantic-monty; is its binary allowed to run here?"
    return _fits(error is None, f"{ENGINE} {ENGINE_VERSION}: {said}", hint)


def _other_engine(name: str, language: str) -> Finding:
    from standfast.errors import Code

    said, error = _one_and_one(name, language)
    if error is None:
        return True, f"{language}: {said}", None
    if error.code == Code.ENGINE_UNAVAILABLE:
        return True, f"not available: {error.message}", error.hint
    return False, said, error.hint


def _one_and_one(name: str, language: str) -> tuple[str, ErrorObject | None]:
    """Run `1 + 1` on an engine; return a description of the outcome, and its error."""
    from standfast.errors import Code, ErrorObject
    from standfast.runtime.blocking import BlockingSandbox

    with BlockingSandbox(language=language, engine=name) as box:
        result = box.run("1 + 1")
    if result.result == 2:
        return f"1 + 1 is 2 ({result.metrics.duration_ms} ms)", None
    error = result.error or ErrorObject(code=Code.RUNTIME_ERROR, message=f"it is {result.result!r}")
    return f"1 + 1 failed: {error.message}", error


def _contents(home: DataDir) -> dict[str, Callable[[], Finding]]:
    """Return the checks of the store's contents: sessions, turns and approvals. It is read once."""
    from standfast.cli.agent_host import open_sessions
    from standfast.ports.session_store import TurnCounts

    async def count() -> tuple[int, int, TurnCounts, int]:
        async with open_sessions(home.database) as runtime:
            unfinished = await runtime.store.unfinished(runtime.now_ms())
            waiting = await runtime.approvals(pending=True)
            sessions, turns = await runtime.sessions(), await runtime.turn_counts()
            return len(sessions), len(unfinished), turns, len(waiting)

    @functools.cache
    def counted() -> tuple[int, int, TurnCounts, int]:
        return asyncio.run(count()) if home.exists else (0, 0, TurnCounts(), 0)

    def sessions() -> Finding:
        number, unfinished, _, _ = counted()
        detail = f"{number}, {unfinished} with a turn to resume" if home.exists else "0"
        return True, detail, "standfast recover" if unfinished else None

    def turns() -> Finding:
        found = counted()[2]
        detail = f"{found.queued} queued, {found.running} running, {found.waiting} waiting"
        hint = "start a worker with their agents, or: standfast recover" if found.stuck else None
        return True, f"{detail}, {found.stuck} stuck", hint

    def approvals() -> Finding:
        waiting = counted()[3]
        return True, f"{waiting} waiting", "standfast approvals list --pending" if waiting else None

    return {"agent sessions": sessions, "turns": turns, "approvals": approvals}


def _models() -> list[Check]:
    """Return a check for each model provider with a key, and one for the user's catalog."""
    from standfast.providers.catalog import VARIABLE, load_catalog
    from standfast.providers.vendors import VENDORS, status_of

    def read_catalog() -> Finding:
        load_catalog()
        return True, f"catalog {os.environ[VARIABLE]} from {VARIABLE}", None

    checks = []
    for one in map(status_of, VENDORS.values()):
        if one.key is not None:
            url = f", {one.base_url}" if one.base_url else ""
            checks.append(Check("models", True, f"{one.name}: key from {one.key}{url}"))
    if not checks:
        detail = "no provider has a key; scripted models need none"
        checks.append(Check("models", True, detail, "standfast models"))
    return [*checks, _look("models", read_catalog)] if os.environ.get(VARIABLE) else checks
