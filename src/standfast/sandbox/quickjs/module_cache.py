"""The guest compiled to machine code, kept on disk: making it takes seconds, loading it milliseconds.

Rules
-----
1. Loading compiled code is running it. So a file is loaded only if nobody but us could have written it: it
   and its directory belong to our user, are no links, and give nobody else any right. Whoever can write them
   can run code as us anyway. A digest in the file finds what a broken disk has changed; wasmtime itself
   refuses code of another version or for another processor.
2. A file is written beside its place and then renamed: others see all of it or nothing.
3. Where nothing can be written, the guest is made in memory, each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Final

import msgspec
import wasmtime

_DIGEST_BYTES: Final = 32


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be known of a guest that has run the prelude.

    Its memory above the stack begins at `data` and is `image_bytes` long; `digest` is that of the image.
    `heap` is the allocator's first chunk, `scratch` a piece of memory for us. `handles` are those of the
    bridge's functions, `overflow` and `rejected` two of them as the engine's own words. `grower` is the
    function that traps for want of memory.
    """

    data: int
    heap: int
    image_bytes: int
    digest: bytes
    handles: dict[str, int]
    undefined: int
    scratch: int
    overflow: int
    rejected: int
    grower: int


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """What a file holds, behind its digest."""

    boot: Boot
    code: bytes


def load(engine: wasmtime.Engine, build: bytes) -> tuple[wasmtime.Module, Boot] | None:
    """The guest of this build, if it is in the cache."""
    path = _path(build)
    data = _read(path) if path is not None else None
    if data is None:
        return None
    try:
        stored = msgspec.msgpack.decode(data, type=Stored)
        return wasmtime.Module.deserialize(engine, stored.code), stored.boot
    except (msgspec.DecodeError, wasmtime.WasmtimeError):
        return None


def store(build: bytes, module: wasmtime.Module, boot: Boot) -> None:
    """Keep a guest, if there is a place for it."""
    path = _path(build)
    if path is not None:
        _write(path, msgspec.msgpack.encode(Stored(boot, bytes(module.serialize()))))


def _path(build: bytes) -> Path | None:
    folder = _folder()
    key = hashlib.sha256(build + _compiler().encode()).hexdigest()[:32]
    return folder / f"quickjs-{key}.bin" if folder is not None else None


def _compiler() -> str:
    """What the code depends on beside the guest: the compiler's version, and the kind of machine.

    The version is read from the name of a directory: to ask for it properly takes longer than the loading.
    """
    home = Path(wasmtime.__file__).parents[1]
    versions = sorted(path.name for path in home.glob("wasmtime-*.dist-info"))
    return " ".join([*versions, os.uname().machine])


def _folder() -> Path | None:
    """The directory of the cache, made if need be; None if there is none that is ours alone."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    try:
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        folder = root / "standfast"
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        return folder if stat.S_ISDIR(status.st_mode) and _is_ours(status) else None
    except (OSError, RuntimeError):
        return None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _read(path: Path) -> bytes | None:
    """What a file holds, if it is ours and whole."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status):
                return None
            digest, data = file.read(_DIGEST_BYTES), file.read()
    except OSError:
        return None
    return data if hashlib.sha256(data).digest() == digest else None


def _write(path: Path, data: bytes) -> None:
    beside = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "wb") as file:
            file.write(hashlib.sha256(data).digest())
            file.write(data)
        os.replace(beside, path)
