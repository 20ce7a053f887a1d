"""OAuth sign-in settings for MCP servers over HTTP, and the storage of credentials.

Credentials are in a file in the data directory, sealed with AES-256-GCM. The key is `STANDFAST_MCP_KEY`, else
in the system's keyring (if the package `keyring` is installed and works), else in a file in the user's
configuration directory: a copy of the data directory alone decrypts nothing.

Rule: a file can be decrypted only for the server and URL that it was written for.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, NotConfigured
from standfast.mcp.pins import write_private
from standfast.model.canonical import digest_json

KEY_VARIABLE: Final = "STANDFAST_MCP_KEY"
MIN_KEY_CHARS: Final = 16
SIGN_IN_S: Final = 300.0
"""The time limit for a person to sign in."""

_MAGIC: Final = b"SFC1"
_NONCE_BYTES: Final = 12
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSignIn:
    """How Standfast signs in to a server with OAuth. By default, it registers itself with the server.

    Args:
        client_id: the id of a preregistered client.
        client_secret: its secret, if it has one.
        metadata_url: the https URL of a client metadata document, which serves as the client's id where the
            authorization server supports that.
        scopes: the scopes to request if the server names none.
        redirect_port: the port on 127.0.0.1 that the sign-in page redirects to; 0 for any free one.
        open_page: shows a person the URL of the sign-in page. Without it, a server that requires sign-in
            raises an error that says how to sign in.
    """

    client_id: str | None = None
    client_secret: str | None = None
    metadata_url: str | None = None
    scopes: Iterable[str] = ()
    redirect_port: int = 0
    open_page: Callable[[str], Awaitable[object] | object] | None = None

    def __post_init__(self) -> None:
        if self.client_secret is not None and self.client_id is None:
            raise InvalidArgument("client_secret needs client_id", hint="pass both, or neither")
        if isinstance(self.scopes, str):
            raise InvalidArgument(
                f"scopes must be a list, got {self.scopes!r}", hint=f"write [{self.scopes!r}]"
            )
        if not 0 <= self.redirect_port < 65536:
            raise InvalidArgument(f"redirect_port must be a port, got {self.redirect_port}")


class Credentials(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The credentials from a sign-in, in the SDK's format.

    `metadata` and `resource` identify the authorization server of the tokens: a token is refreshed only
    there.
    """

    client: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    metadata: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None


class CredentialFile:
    """The credentials of one server at one URL."""

    def __init__(self, data_dir: Path, server: str, url: str) -> None:
        self.path = data_dir / "mcp" / f"{server}-{digest_json(url)[:16]}.credentials"
        self._bound = f"{server}\n{url}".encode()

    def read(self) -> Credentials:
        """Return the credentials, empty ones if there are none."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            with self.path.open("rb") as file:
                sealed = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return Credentials()
        except OSError as error:
            raise NotConfigured(f"{self.path} cannot be read: {error.strerror or error}") from None
        nonce, content = sealed[4:][:_NONCE_BYTES], sealed[4 + _NONCE_BYTES :]
        try:
            if not sealed.startswith(_MAGIC):
                raise InvalidTag
            return msgspec.json.decode(
                AESGCM(sealing_key()).decrypt(nonce, content, self._bound), type=Credentials
            )
        except (InvalidTag, ValueError, msgspec.DecodeError):
            raise NotConfigured(
                f"{self.path} is damaged, or sealed with another key",
                hint=f"restore the key ({KEY_VARIABLE}, the keyring or {key_file()}), or sign out and in",
            ) from None

    def write(self, credentials: Credentials) -> None:
        """Replace the credentials atomically."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(sealing_key()).encrypt(nonce, msgspec.json.encode(credentials), self._bound)
        write_private(self.path, _MAGIC + nonce + content)

    def remove(self) -> bool:
        """Delete the credentials; return False if there were none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


def key_file() -> Path:
    """Return the path of the key file, used without a keyring. It is outside the data directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "standfast" / "mcp.key"


def sealing_key() -> bytes:
    """Return the key of all credential files, created on first use."""
    if (given := os.environ.get(KEY_VARIABLE)) is not None:
        if len(given) < MIN_KEY_CHARS:
            raise NotConfigured(
                f"{KEY_VARIABLE} has {len(given)} characters", hint=f"use {MIN_KEY_CHARS} or more"
            )
        return hashlib.sha256(given.encode()).digest()
    return _key_in_keyring() or _key_in_file()


def _key_in_keyring() -> bytes | None:
    """Return the key in the system's keyring, None if no keyring works."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        if (found := keyring.get_password("standfast", "mcp")) is None:
            keyring.set_password("standfast", "mcp", secrets.token_hex(32))
            found = keyring.get_password("standfast", "mcp")
        return None if found is None else bytes.fromhex(found)
    except (KeyringError, ValueError):
        return None


def _key_in_file() -> bytes:
    path = key_file()
    try:
        if not path.exists():
            write_private(path, secrets.token_bytes(32), replace=False)
        key = path.read_bytes()
    except OSError as error:
        raise NotConfigured(
            f"the key {path} cannot be used: {error.strerror or error}", hint=f"set {KEY_VARIABLE}"
        ) from None
    if len(key) != 32:
        raise NotConfigured(
            f"the key {path} is damaged: it has {len(key)} bytes", hint="restore or delete it"
        )
    return key
