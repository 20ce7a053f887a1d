"""JWTs from an identity provider whose key set is served over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from standfast.server import Credential, JwtAuth

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def auth() -> Iterator[JwtAuth]:
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    keys = json.dumps({"keys": [{**key, "kid": "k1", "use": "sig", "alg": "RS256"}]}).encode()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/keys"
    yield JwtAuth(issuer="https://id.example", audience="standfast", jwks_url=url)
    server.shutdown()
    thread.join()
    server.server_close()


def token(key: Any = KEY, kid: str = "k1", algorithm: str = "RS256", **changes: Any) -> str:
    claims = {
        "iss": "https://id.example",
        "aud": "standfast",
        "sub": "user-7",
        "exp": int(time.time()) + 60,
        "scope": "read run openid",
        "tenant": "acme",
        **changes,
    }
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid})


def authenticate(auth: JwtAuth, given: str) -> Credential | None:
    return asyncio.run(auth.authenticate(given))


def test_a_token_from_the_provider_is_a_credential(auth: JwtAuth) -> None:
    """Seed: the server accepts JWTs and verifies them against the provider's key set."""
    found = authenticate(auth, token(email="eve@example.com"))
    assert found is not None
    assert (found.id, found.tenant, found.scopes) == ("jwt:user-7", "acme", frozenset({"read", "run"}))
    assert found.identity == "eve@example.com (jwt:user-7)"


@pytest.mark.parametrize(
    "changes",
    [
        {"key": OTHER},
        {"kid": "unknown"},
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"tenant": "../acme"},
        {"key": "secret" * 10, "algorithm": "HS256"},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_any_other_token_is_refused(auth: JwtAuth, changes: dict[str, Any]) -> None:
    """Seed: signature, key, issuer, audience, expiry and tenant are all checked."""
    assert authenticate(auth, token(**changes)) is None


def test_a_token_without_a_signature_is_refused(auth: JwtAuth) -> None:
    """Ours: `alg: none` is not accepted, and other text is refused without an internal error."""
    assert authenticate(auth, jwt.encode({"sub": "x"}, None, algorithm="none")) is None  # type: ignore[arg-type]
    assert authenticate(auth, "not a token") is None
