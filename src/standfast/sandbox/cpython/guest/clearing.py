"""Removes what guest code wrote, however it was nested.

Directories can be nested deeper than a path may be long, than functions may call each other and than handles
may be open. So each one that is met is moved up to the top first: no path here is longer than two names.
"""

from __future__ import annotations

import contextlib
import os


def clear(home: str) -> None:
    """Remove everything below a directory that nobody else changes meanwhile. What cannot be is left."""
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
    """Remove the files of a directory and move its directories up; where those are now."""
    _open_up(path)
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
            else:
                moved.append(inner if path == home else _moved_up(inner, home))
    return moved


def _moved_up(path: str, home: str) -> str:
    """Give a directory a name of its own at the top."""
    _open_up(path)
    target = os.path.join(home, f".{os.urandom(16).hex()}")
    os.rename(path, target)
    return target


def _open_up(path: str) -> None:
    """Have the rights to change a directory that its owner has taken from himself."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
