"""JWTs of an identity provider, verified against its key set. Needs `pip install standfast[jwt]`.

Rules
-----
1. Only asymmetric algorithms are accepted, and issuer, audience and expiry are required.
2. An unknown key id triggers at most one fetch per `REFRESH_S` seconds; a key that the provider withdraws is
   dropped after `KEPT_S` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

from standfast.errors import InvalidArgument, NotConfigured
from standfast.server.credentials import GRANTED, Credential
from standfast.server.tenants import checked_tenant

REFRESH_S: Final = 30.0
KEPT_S: Final = 300.0
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")


class JwtAuth:
    """Accepts bearer tokens that an identity provider has signed.

    Args:
        issuer: the `iss` that tokens must have.
        audience: the `aud` that tokens must have.
        jwks_url: the URL of the provider's key set.
        tenant_claim: the claim that names the tenant; a token without it has no tenant. With None, no token
            has one.
        scope_claim: the claim with the scopes, as a list or separated by spaces. Unknown scopes are ignored.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        jwks_url: str,
        tenant_claim: str | None = "tenant",
        scope_claim: str = "scope",
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise NotConfigured("JWTs need PyJWT", hint="pip install 'standfast[jwt]'") from None
        self._jwt = jwt
        self._issuer = issuer
        self._audience = audience
        self._tenant_claim = tenant_claim
        self._scope_claim = scope_claim
        self._keys = jwt.PyJWKClient(jwks_url, cache_jwk_set=False, timeout=5)
        self._known: dict[str, Any] = {}
        self._fetched_at = -REFRESH_S

    async def authenticate(self, token: str) -> Credential | None:
        """Return the credential of a valid JWT."""
        jwt = self._jwt
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                issuer=self._issuer,
                audience=self._audience,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            given = claims.get(self._scope_claim, "")
            scopes: Iterable[Any] = given.split() if isinstance(given, str) else given
            tenant = "" if self._tenant_claim is None else claims.get(self._tenant_claim, "")
            return Credential(
                id=f"jwt:{str(claims['sub'])[:200]}",
                name=str(claims.get("email", ""))[:100],
                tenant=checked_tenant(str(tenant)),
                scopes=frozenset(str(one) for one in scopes if one in GRANTED),
                expires_at=int(claims["exp"]) * 1000,
            )
        except (jwt.PyJWTError, InvalidArgument):
            return None

    async def _key(self, key_id: str) -> Any:
        """Return the provider's key with this id, fetching the key set if it is stale or lacks the id."""
        age_s = time.monotonic() - self._fetched_at
        if age_s < REFRESH_S or (age_s < KEPT_S and key_id in self._known):
            return self._known.get(key_id)
        self._fetched_at = time.monotonic()
        found = await asyncio.to_thread(self._keys.get_signing_keys, True)
        self._known = {str(one.key_id): one.key for one in found}
        return self._known.get(key_id)
