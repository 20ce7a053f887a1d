"""Credentials: tokens, sign-in codes for browsers, and the identities behind them.

Theory of operation
------------------- A token is `sf_ID_SECRET`. The store has the SHA-256 of the secret, never the secret
itself: it has 256 random bits, so a slow hash would add nothing. A browser exchanges a single-use code for
its own token, which it keeps in a cookie; such a token is listed and revoked like any other.

Rules
-----
1. A token is shown once, when it is created.
2. A revoked or expired token stops working within `CACHE_S` seconds in every process; its streams end with
   it.
3. A code works once and for `CODE_S` seconds: the store records its use atomically, as it does an occurrence.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable
from typing import Final, Literal, Protocol

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.limits import U64
from standfast.model.trigger import Occurrence
from standfast.ports.session_store import SessionStore
from standfast.server.tenants import checked_tenant

CACHE_S: Final = 1.0
CODE_S: Final = 60
BROWSER_S: Final = 12 * 3600
_PREFIX: Final = "sf_"
_OWNER: Final = "standfast.server"
_MAX_CACHED: Final = 10_000


class Scope(enum.StrEnum):
    """What a route requires. `PUBLIC` requires no credential, `SIGNED` a webhook's signature."""

    READ = "read"
    RUN = "run"
    APPROVE = "approve"
    ADMIN = "admin"
    PUBLIC = "public"
    SIGNED = "signed"


GRANTED: Final = (Scope.READ, Scope.RUN, Scope.APPROVE, Scope.ADMIN)
"""The scopes that a credential can have. `admin` includes the others."""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a valid token. `id` goes into the audit log and, with `name`, into decision records."""

    id: str
    name: str = ""
    tenant: str = ""
    scopes: frozenset[str] = frozenset()
    expires_at: int | None = None

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def identity(self) -> str:
        """The name stored with a decision."""
        return f"{self.name} ({self.id})" if self.name else self.id


class Authenticator(Protocol):
    """Maps tokens to credentials."""

    async def authenticate(self, token: str) -> Credential | None:
        """Return the credential of a valid token; None if it is invalid or of another kind."""


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a token. `kind` is "browser" for the cookie of a signed-in browser."""

    id: str
    digest: str
    name: str = ""
    tenant: str = ""
    scopes: tuple[Scope, ...] = ()
    created_at: U64 = 0
    expires_at: U64 | None = None
    revoked_at: U64 | None = None
    kind: Literal["token", "browser"] = "token"

    def is_valid(self, now_ms: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now_ms < self.expires_at)

    def credential(self) -> Credential:
        return Credential(
            id=self.id,
            name=self.name,
            tenant=self.tenant,
            scopes=frozenset(self.scopes),
            expires_at=self.expires_at,
        )


class _Code(msgspec.Struct, frozen=True, kw_only=True):
    """A stored sign-in code."""

    name: str
    tenant: str
    scopes: tuple[Scope, ...]
    expires_at: U64


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Tokens:
    """The tokens in a store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._cached: dict[str, tuple[TokenRecord, Credential, float]] = {}

    async def create(
        self,
        *,
        name: str = "",
        tenant: str = "",
        scopes: Iterable[str] = (Scope.READ, Scope.RUN, Scope.APPROVE),
        expires_in_s: float | None = None,
        kind: Literal["token", "browser"] = "token",
    ) -> tuple[str, TokenRecord]:
        """Create a token; return it, which is the only time it is shown, and its record."""
        secret, now = secrets.token_urlsafe(32), _now_ms()
        record = TokenRecord(
            id=f"tok{secrets.token_hex(6)}",
            digest=_digest(secret),
            name=_checked_name(name),
            tenant=checked_tenant(tenant),
            scopes=_checked_scopes(scopes),
            created_at=now,
            expires_at=None if expires_in_s is None else now + int(expires_in_s * 1000),
            kind=kind,
        )
        await self._put(record)
        return f"{_PREFIX}{record.id}_{secret}", record

    async def list(self) -> list[TokenRecord]:
        """Return all tokens, oldest first."""
        found = await self._store.plugin_records(_OWNER, "tokens")
        return sorted((_decode(body) for _, body in found), key=lambda record: record.created_at)

    async def revoke(self, token_id: str) -> bool:
        """Revoke a token; return False if no token has this id."""
        body = await self._store.plugin_record(_OWNER, "tokens", token_id)
        if body is None:
            return False
        record = _decode(body)
        if record.revoked_at is None:
            await self._put(msgspec.structs.replace(record, revoked_at=_now_ms()))
        return True

    async def authenticate(self, token: str) -> Credential | None:
        """Return the credential of a valid token."""
        token_id, _, secret = token.removeprefix(_PREFIX).partition("_")
        if not token.startswith(_PREFIX) or not secret or len(token) > 200:
            return None
        found = await self._find(token_id)
        if found is None or not hmac.compare_digest(found[0].digest, _digest(secret)):
            return None
        return found[1] if found[0].is_valid(_now_ms()) else None

    async def is_valid(self, credential: Credential) -> bool:
        """Return whether the credential's token is still valid."""
        found = await self._find(credential.id)
        return found is not None and found[0].is_valid(_now_ms())

    async def make_code(
        self,
        *,
        name: str = "",
        tenant: str = "",
        scopes: Iterable[str] = (Scope.READ, Scope.RUN, Scope.APPROVE),
    ) -> str:
        """Return a single-use code that signs a browser in within a minute."""
        code = secrets.token_urlsafe(24)
        kept = _Code(
            name=_checked_name(name),
            tenant=checked_tenant(tenant),
            scopes=_checked_scopes(scopes),
            expires_at=_now_ms() + CODE_S * 1000,
        )
        body = msgspec.json.encode(kept)
        await self._store.put_plugin_record(_OWNER, "codes", _digest(code), body, _now_ms())
        return code

    async def redeem(self, code: str) -> tuple[str, TokenRecord] | None:
        """Exchange a sign-in code for a browser's token; None if the code is invalid or already used."""
        key, now = _digest(code), _now_ms()
        body = await self._store.plugin_record(_OWNER, "codes", key)
        if body is None:
            return None
        used = Occurrence(source="standfast/sign-in", key=key, at_ms=now)
        first = await self._store.occur(used, ())
        await self._store.put_plugin_record(_OWNER, "codes", key, None, now)
        kept = msgspec.json.decode(body, type=_Code)
        if not first or now >= kept.expires_at:
            return None
        return await self.create(
            name=kept.name, tenant=kept.tenant, scopes=kept.scopes, expires_in_s=BROWSER_S, kind="browser"
        )

    async def put_address(self, url: str) -> None:
        """Store the URL of the server that accepts these tokens, for `address`."""
        await self._store.put_plugin_record(_OWNER, "address", "url", url.encode(), _now_ms())

    async def address(self) -> str | None:
        """Return the URL of the server that started last, None if no server has."""
        found = await self._store.plugin_record(_OWNER, "address", "url")
        return None if found is None else found.decode()

    async def forget_expired(self) -> None:
        """Delete expired codes and expired or revoked browser tokens."""
        now = _now_ms()
        for key, body in await self._store.plugin_records(_OWNER, "codes"):
            if msgspec.json.decode(body, type=_Code).expires_at <= now:
                await self._store.put_plugin_record(_OWNER, "codes", key, None, now)
        for record in await self.list():
            if record.kind == "browser" and not record.is_valid(now):
                await self._store.put_plugin_record(_OWNER, "tokens", record.id, None, now)

    async def _find(self, token_id: str) -> tuple[TokenRecord, Credential] | None:
        """Return a token's record and its holder's credential, cached for at most `CACHE_S` seconds."""
        now = time.monotonic()
        cached = self._cached.get(token_id)
        if cached is not None and now - cached[2] < CACHE_S:
            return cached[:2]
        body = await self._store.plugin_record(_OWNER, "tokens", token_id)
        if body is None:
            self._cached.pop(token_id, None)
            return None
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        record = _decode(body)
        credential = record.credential()
        self._cached[token_id] = (record, credential, now)
        return record, credential

    async def _put(self, record: TokenRecord) -> None:
        self._cached.pop(record.id, None)
        await self._store.put_plugin_record(
            _OWNER, "tokens", record.id, msgspec.json.encode(record), _now_ms()
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _decode(body: bytes) -> TokenRecord:
    return msgspec.json.decode(body, type=TokenRecord)


def _checked_name(name: str) -> str:
    if len(name) > 100 or not name.isprintable():
        raise InvalidArgument(
            f"the name of a token must have at most 100 printable characters, got {name[:80]!r}"
        )
    return name.strip()


def _checked_scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    given = list(dict.fromkeys(scopes))
    unknown = [one for one in given if one not in GRANTED]
    if unknown or not given:
        raise InvalidArgument(
            f"{', '.join(unknown) or 'no scope'} is not a scope", hint=f"the scopes are {', '.join(GRANTED)}"
        )
    return tuple(Scope(one) for one in given)
