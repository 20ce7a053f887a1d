"""The directory where one installation keeps what must outlive its processes."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from holdfast.errors import NotConfigured

HOME_VARIABLE: Final = "HOLDFAST_HOME"
KEY_VARIABLE: Final = "HOLDFAST_SNAPSHOT_KEY"
_MIN_KEY_BYTES: Final = 16


class DataDir:
    """`holdfast.db`, `snapshot.key` and the locks, readable by their owner alone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NotConfigured(
                f"the data directory {self.path} cannot be made: {error.strerror or error}",
                hint=f"choose another with --data-dir or {HOME_VARIABLE}",
            ) from None

    @property
    def database(self) -> Path:
        return self.path / "holdfast.db"

    @property
    def key_file(self) -> Path:
        return self.path / "snapshot.key"

    def snapshot_key(self) -> bytes:
        """The key that signs snapshots: from the environment, else from a file made on first use."""
        if (given := os.environ.get(KEY_VARIABLE)) is not None:
            return key_from_text(given)
        try:
            return self._read_key() or self._make_key()
        except OSError as error:
            raise NotConfigured(
                f"the key file {self.key_file} cannot be used: {error.strerror or error}"
            ) from None

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

    def _make_key(self) -> bytes:
        """Write the whole key under another name, then link it: two processes agree on the first."""
        draft = self.path / f".snapshot.key.{os.getpid()}.{secrets.token_hex(4)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(32))
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


def default_data_dir() -> Path:
    """`HOLDFAST_HOME`, else `.holdfast` in the user's home directory."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given) if given else Path.home() / ".holdfast"


def key_from_text(text: str) -> bytes:
    key = text.encode("utf-8", "surrogateescape")
    if len(key) < _MIN_KEY_BYTES:
        raise NotConfigured(f"{KEY_VARIABLE} must have at least {_MIN_KEY_BYTES} bytes")
    return key
