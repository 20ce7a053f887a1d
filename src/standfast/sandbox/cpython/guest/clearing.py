"""Removes what guest code wrote, however it was nested.

Directories can be nested deeper than a path may be long, than functions may call each other and than handles
may be open. So each one that is found is first moved up to the top: no path here is longer than two names.
"""

from __future__ import annotations

import contextlib
import os


def clear(home: str) -> None:
    """Remove everything below a directory that no other process changes. What cannot be removed is left."""
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
    """Remove the files of a directory, give its directories names at the top, and return those."""
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
    """Restore the rights to change a directory that its owner has given up."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
