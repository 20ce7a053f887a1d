"""The on-disk cache of the guest, compiled to machine code. Compiling takes seconds, loading milliseconds.

Rules
-----
1. Loading compiled code means running it. So a file is loaded only if no other user could have written it:
   the file and its directory are owned by our user, are not links, and are not accessible to others. A digest
   in the file detects disk errors; wasmtime itself rejects code of another version or for another processor.
2. A file is written under a temporary name and then renamed, so that other processes see all of it or
   nothing.
3. If no file can be written, the guest is compiled in memory each time.
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


class BootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a guest that has run the prelude.

    Its memory above the stack begins at `data` and is `image_bytes` long; `digest` is the image's digest.
    `heap` is the address of the allocator's first chunk, `scratch` that of memory reserved for the host.
    `handles` are handles of the bridge's functions; `overflow` and `rejected` are two of these functions in
    the engine's own representation. `grower` is the number of the function that traps when memory runs out.
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
    """The content of a cache file after its digest."""

    boot: BootFacts
    code: bytes


def load(engine: wasmtime.Engine, build: bytes) -> tuple[wasmtime.Module, BootFacts] | None:
    """Return the guest of this build, if the cache has a file for it that is safe and undamaged."""
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


def store(build: bytes, module: wasmtime.Module, boot: BootFacts) -> None:
    """Write a guest to the cache, if there is a directory for it."""
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
    """Return the path of this build's file, creating its directory; None if no directory is safe to use.

    The machine code also depends on the version of wasmtime, which is read from the name of a directory:
    `importlib.metadata` would take longer than loading the code.
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
