"""Virtual POSIX paths over directories of the host.

A guest path consists of a mount (the longest that matches) and components below it. The components are walked
one by one, each opened relative to the directory before it and never through a symlink. A symlink is read and
its target is walked instead, with a stack of open directories for `..`. So the checked file is the one that
is opened, whatever happens on the disk in the meantime.

Rules
-----
1. No path reaches above its mount's directory: not by `..`, not by a symlink, absolute or relative.
2. Only regular files are read and written; FIFOs, sockets and devices are refused without blocking.
3. Messages name virtual paths, never the host's.
4. A write that would exceed a mount's quota is refused before the file is created or truncated. A write that
   does not grow the mount is always allowed.
5. Writes by this process to one directory are serialized, so that together they respect the quota. Changes by
   other processes are noticed within a second.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import msgspec

from standfast.errors import AccessDenied, InvalidArgument, ToolError

QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_FRESH_S: Final = 1.0


class MountQuota:
    """The number of bytes and files in a directory of the host, as counted last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._bytes = 0
        self._files = 0
        self._counted_at = float("-inf")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Serialize writes; if one fails, count again before the next."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._counted_at = float("-inf")
                raise

    def require(self, shown: str, grows: int, new_files: int, limits: tuple[int | None, int | None]) -> None:
        """Raise QUOTA_EXCEEDED if the write would exceed the quota; otherwise add it to the count."""
        if grows > 0 or new_files:
            if not self._fits(grows, new_files, limits) or time.monotonic() - self._counted_at > _FRESH_S:
                self._count()
            if not self._fits(grows, new_files, limits):
                max_bytes, max_files = limits
                if max_bytes is not None and grows > 0 and self._bytes + grows > max_bytes:
                    held = f"holds {self._bytes} bytes, and {grows} more exceed its quota of {max_bytes}"
                else:
                    held = f"holds {self._files} files and directories, its quota is {max_files}"
                raise ToolError(
                    QUOTA_EXCEEDED,
                    f"{shown} cannot be written: its mount {held}",
                    hint="write less, overwrite a file, or raise Mount(max_bytes=..., max_files=...)",
                )
        self._bytes += grows
        self._files += new_files

    def _fits(self, grows: int, new_files: int, limits: tuple[int | None, int | None]) -> bool:
        max_bytes, max_files = limits
        too_large = max_bytes is not None and grows > 0 and self._bytes + grows > max_bytes
        return not too_large and not (max_files is not None and new_files and self._files >= max_files)

    def _count(self) -> None:
        self._bytes = self._files = 0
        pending = [self._path]
        while pending:
            try:
                with os.scandir(pending.pop()) as found:
                    for entry in found:
                        self._files += 1
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                        else:
                            self._bytes += entry.stat(follow_symlinks=False).st_size
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # it was deleted, or we may not read it
        self._counted_at = time.monotonic()


@functools.lru_cache(maxsize=1024)
def quota_of(path: str) -> MountQuota:
    """Return the count of a directory, which all sandboxes of the process share."""
    return MountQuota(path)


MAX_HOPS: Final = 40
MAX_DEPTH: Final = 64
"""Levels below a mount. Each one is an open directory while a path is walked."""
MAX_PATH_CHARS: Final = 4096
MOUNT_MAX_BYTES: Final = 1 << 30
MOUNT_MAX_FILES: Final = 100_000

_COMMON: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_WALK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAYBE_SYMLINK: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


class Mount(msgspec.Struct, frozen=True):
    """A directory of the host that guest code may read and, if `writable`, write.

    A writable mount may contain at most `max_bytes` in `max_files` files and directories, including its
    initial contents; None means no limit.
    """

    path: str
    writable: bool = False
    max_bytes: int | None = MOUNT_MAX_BYTES
    max_files: int | None = MOUNT_MAX_FILES


class _Place(msgspec.Struct, frozen=True):
    """A guest path, split into its mount and the components below it."""

    shown: str
    mount: Mount
    below: tuple[str, ...]


class MountTable:
    """The mounts, by their virtual paths."""

    def __init__(self, mounts: Mapping[str, Mount | str | os.PathLike[str]]) -> None:
        self._mounts: dict[tuple[str, ...], Mount] = {}
        for virtual, given in mounts.items():
            try:
                parts = _guest_parts(virtual)
            except AccessDenied as error:
                raise InvalidArgument(f"mount point: {error.message}", hint=error.hint) from None
            if (normal := "/" + "/".join(parts)) != virtual:
                raise InvalidArgument(f"mount point {virtual!r} is not normalised", hint=f"write {normal}")
            mount = given if isinstance(given, Mount) else Mount(os.fspath(given))
            path = os.path.realpath(mount.path)
            if not os.path.isdir(path):
                host_path = os.fspath(mount.path)
                raise InvalidArgument(f"mount {virtual}: {host_path!r} is not a directory of the host")
            for name, value in (("max_bytes", mount.max_bytes), ("max_files", mount.max_files)):
                if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                    raise InvalidArgument(
                        f"mount {virtual}: {name} must be a whole number from 0, got {value!r}"
                    )
            self._mounts[parts] = msgspec.structs.replace(mount, path=path)

    @property
    def mounts(self) -> dict[str, Mount]:
        """The mounts by virtual path, with absolute host paths."""
        return {"/" + "/".join(parts): mount for parts, mount in sorted(self._mounts.items())}

    @property
    def writable(self) -> bool:
        """Whether any mount is writable."""
        return any(mount.writable for mount in self._mounts.values())

    @contextmanager
    def open_to_read(self, path: str) -> Iterator[int]:
        """Open a regular file for reading and yield its descriptor."""
        with _open_file(self._place(path), os.O_RDONLY) as file:
            yield file

    @contextmanager
    def open_to_write(self, path: str, size: int) -> Iterator[int]:
        """Create or truncate a regular file to write *size* bytes, and yield its descriptor."""
        place = self._place(path)
        mount = place.mount
        if not mount.writable:
            raise AccessDenied(f"{path} is on a read-only mount", hint=self._hint())
        quota = quota_of(mount.path)
        with quota.writing():
            held = None  # bytes in a file that is about to be overwritten
            with suppress(FileNotFoundError), _open_file(place, os.O_WRONLY) as file:
                held = os.fstat(file).st_size
            limits = (mount.max_bytes, mount.max_files)
            quota.require(path, size - (held or 0), 1 if held is None else 0, limits)
            with _open_file(place, os.O_WRONLY | os.O_CREAT) as file:
                os.ftruncate(file, 0)
                yield file

    def entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield name and is-a-directory of each entry of a directory, including mount points, unordered."""
        parts = _guest_parts(path)
        depth = len(parts)
        points = {point[depth] for point in self._mounts if len(point) > depth and point[:depth] == parts}
        yield from ((name, True) for name in points)
        if self._mount_of(parts) is None and (points or not parts):
            return
        try:
            yield from (entry for entry in _scan(self._place(path)) if entry[0] not in points)
        except FileNotFoundError:
            if not points:
                raise

    def _place(self, path: str) -> _Place:
        parts = _guest_parts(path)
        if (found := self._mount_of(parts)) is None:
            raise AccessDenied(f"{path} is not on a mount", hint=self._hint())
        length, mount = found
        return _Place(path, mount, parts[length:])

    def _mount_of(self, parts: tuple[str, ...]) -> tuple[int, Mount] | None:
        for length in range(len(parts), -1, -1):
            if (mount := self._mounts.get(parts[:length])) is not None:
                return length, mount
        return None

    def _hint(self) -> str:
        shown = [path + (" (writable)" if mount.writable else "") for path, mount in self.mounts.items()]
        return f"the mounts are: {', '.join(shown) or 'none'}"


class _Walk:
    """A walk from a mount's directory down, one component at a time."""

    def __init__(self, place: _Place, closing: ExitStack) -> None:
        self.place = place
        self._hops = 0
        self._ahead = deque(place.below)
        self._stack: list[int] = []
        closing.callback(lambda: deque(map(os.close, self._stack), 0))
        self._enter(os.open(place.mount.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    @property
    def directory(self) -> int:
        return self._stack[-1]

    def to_parent(self) -> str | None:
        """Walk until one component is left and return it; None if the path ended in a directory."""
        while self._ahead:
            name = self._ahead.popleft()
            if name == "..":
                if len(self._stack) == 1:
                    raise AccessDenied(f"{self.place.shown} leads out of its mount")
                os.close(self._stack.pop())
            elif not self._ahead:
                return name
            elif name not in ("", "."):
                self.descend(name)
        return None

    def descend(self, name: str) -> None:
        """Enter a directory, or prepend a symlink's target to the remaining components."""
        try:
            self._enter(os.open(name, _WALK, dir_fd=self.directory))
        except OSError as error:
            if error.errno not in _MAYBE_SYMLINK or not self.follow(name):
                raise

    def follow(self, name: str) -> bool:
        """Prepend the target of symlink *name* to the remaining components; False if it is not a symlink."""
        try:
            target = os.readlink(name, dir_fd=self.directory)
        except OSError:
            return False
        self._hops += 1
        if self._hops > MAX_HOPS:
            raise AccessDenied(f"{self.place.shown} leads through more than {MAX_HOPS} symlinks")
        if target.startswith("/"):
            raise AccessDenied(f"{self.place.shown} leads through an absolute symlink")
        self._ahead.extendleft(reversed(target.split("/")))
        return True

    def _enter(self, directory: int) -> None:
        self._stack.append(directory)
        if len(self._stack) > MAX_DEPTH:
            raise AccessDenied(f"{self.place.shown} is more than {MAX_DEPTH} levels deep")


@contextmanager
def _open_file(place: _Place, flags: int) -> Iterator[int]:
    with ExitStack() as closing:
        with _translated(place):
            walk = _Walk(place, closing)
            while (name := walk.to_parent()) not in (None, "", "."):
                assert name is not None
                with suppress(FileNotFoundError):  # check first, because opening a device can have effects
                    found = os.stat(name, dir_fd=walk.directory, follow_symlinks=False)
                    if not stat.S_ISLNK(found.st_mode):
                        _require_regular(found, place)
                try:
                    file = os.open(name, flags | _COMMON, 0o666, dir_fd=walk.directory)
                    break
                except OSError as error:
                    if error.errno not in _MAYBE_SYMLINK or not walk.follow(name):
                        raise
            else:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            closing.callback(os.close, file)
            _require_regular(os.fstat(file), place)
        yield file


def _scan(place: _Place) -> Iterator[tuple[str, bool]]:
    with ExitStack() as closing:
        with _translated(place):
            walk = _Walk(place, closing)
            while (name := walk.to_parent()) is not None:
                if name not in ("", "."):
                    walk.descend(name)
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walk.directory)
            closing.callback(os.close, directory)
        for entry in closing.enter_context(os.scandir(directory)):
            shown = os.fsencode(entry.name).decode("utf-8", "replace")
            yield shown, entry.is_dir(follow_symlinks=False)


def _require_regular(found: os.stat_result, place: _Place) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise AccessDenied(f"{place.shown} is not a regular file")


@contextmanager
def _translated(place: _Place) -> Iterator[None]:
    """Convert errors of the operating system to errors about the virtual path."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "cannot be opened"
        if isinstance(error, PermissionError) or error.errno == errno.ENXIO:
            raise AccessDenied(f"{place.shown}: {reason}") from None
        raise type(error)(f"{place.shown}: {reason}") from None


def _guest_parts(path: str) -> tuple[str, ...]:
    """Return the components of a path.

    Backslashes, and percent signs that hide no separator, are ordinary.
    """
    if not path.startswith("/"):
        raise AccessDenied(f"path {path[:80]!r} is not absolute", hint="paths begin with '/'")
    if len(path) > MAX_PATH_CHARS:
        raise AccessDenied(f"a path of {len(path)} characters is too long, the limit is {MAX_PATH_CHARS}")
    if "\0" in path or any("\ud800" <= char <= "\udfff" for char in path):
        raise AccessDenied(f"path {path[:80]!r} contains a character that paths cannot have")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise AccessDenied(f"path {path[:80]!r} has a '..' component", hint="name the path without '..'")
    if any(map(_hides_a_step, parts)):
        raise AccessDenied(f"path {path[:80]!r} hides a step in percent codes", hint="name the path as it is")
    return parts


def _hides_a_step(part: str) -> bool:
    """Return whether percent codes, decoded repeatedly, contain a separator, a NUL or `..`."""
    if "%" not in part:
        return False
    from urllib.parse import unquote

    while (decoded := unquote(part, errors="replace")) != part:
        part = decoded
        if part in (".", "..") or any(char in part for char in "/\\\0"):
            return True
    return False
