"""Removal of the files that guest code wrote, however deeply they are nested.

Guest code can nest directories more deeply than the limits on path lengths, recursion and open files allow a
program to follow. So each directory that is found is first moved up to the top directory: no path used here
has more than two names below it.
"""

from __future__ import annotations

import contextlib
import os


def clear(home: str) -> None:
    """Remove everything below *home*, which no other process may change; skip whatever cannot be removed."""
    with contextlib.suppress(OSError):
        pending = _emptied(home, home)
        while pending:
            path = pending.pop()
            pending += _emptied(path, home)
            with contextlib.suppress(OSError):
                os.rmdir(path)


def remove(home: str) -> None:
    """Remove a directory with everything below it."""
    clear(home)
    with contextlib.suppress(OSError):
        os.rmdir(home)


def _emptied(path: str, home: str) -> list[str]:
    """Remove the files in *path*, move its directories directly below *home*, and return their new paths."""
    _make_writable(path)
    try:
        with os.scandir(path) as found:
            entries = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in found]
    except OSError:
        return []
    moved = []
    for inner, is_directory in entries:
        with contextlib.suppress(OSError):
            if not is_directory:
                os.unlink(inner)
            elif path == home:
                moved.append(inner)
            else:
                _make_writable(inner)
                target = os.path.join(home, f".{os.urandom(16).hex()}")
                os.rename(inner, target)
                moved.append(target)
    return moved


def _make_writable(path: str) -> None:
    """Restore the permissions of a directory that guest code made read-only."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
