"""The guest compiled to machine code, kept on disk: making it takes seconds, loading it milliseconds.

Rules
-----
1. Loading compiled code is running it. So a file is loaded only if no other user could have written it: it
   and its directory belong to our user, are no links, and give others no right. A digest in the file detects
   a broken disk; wasmtime itself refuses code of another version or for another processor.
2. A file is written beside its place and then renamed: other processes see all of it or nothing.
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
    """Facts about a guest that has run the prelude.

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


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The content of a file, behind its digest."""

    boot: Boot
    code: bytes


def load(engine: wasmtime.Engine, build: bytes) -> tuple[wasmtime.Module, Boot] | None:
    """Return the guest of this build, if it is in the cache, ours and whole."""
    path = _path(build)
    if path is None:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_ours(status):
                return None
            digest, data = file.read(_DIGEST_BYTES), file.read()
        if hashlib.sha256(data).digest() != digest:
            return None
        stored = msgspec.msgpack.decode(data, type=_Stored)
        return wasmtime.Module.deserialize(engine, stored.code), stored.boot
    except (OSError, msgspec.DecodeError, wasmtime.WasmtimeError):
        return None


def store(build: bytes, module: wasmtime.Module, boot: Boot) -> None:
    """Keep a guest, if there is a place for it."""
    path = _path(build)
    if path is None:
        return
    data = msgspec.msgpack.encode(_Stored(boot, bytes(module.serialize())))
    beside = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "wb") as file:
            file.write(hashlib.sha256(data).digest())
            file.write(data)
        os.replace(beside, path)


def _path(build: bytes) -> Path | None:
    """Return the file of this build, in a directory that is made if need be; None if none is ours alone.

    The code depends on the compiler's version too. It is read from the name of a directory: to ask for it
    properly takes longer than loading the code.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    try:
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        folder = root / "standfast"
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return None
    if not stat.S_ISDIR(status.st_mode) or not _is_ours(status):
        return None
    packages = Path(wasmtime.__file__).parents[1]
    versions = sorted(path.name for path in packages.glob("wasmtime-*.dist-info"))
    compiler = " ".join([*versions, os.uname().machine])
    return folder / f"quickjs-{hashlib.sha256(build + compiler.encode()).hexdigest()[:32]}.bin"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
