"""How the server listens: TLS, and forwarding headers that are accepted only from a trusted proxy."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerStage

from standfast.errors import InvalidArgument
from standfast.server import Listen


def make_certificate(home: Path) -> tuple[str, str]:
    """Create a self-signed certificate for 127.0.0.1; return the paths of the certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "standfast test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = home / "cert.pem", home / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(pem, form, plain))
    return str(certificate), str(secret)


def test_with_a_certificate_the_server_speaks_only_https(tmp_path: Path) -> None:
    """Seed: with `--tls-cert` and `--tls-key`, the browser's cookie is for https only."""
    certificate, key = make_certificate(tmp_path)
    listen = Listen(port=0, grace_s=1.0, tls_cert=certificate, tls_key=key)
    with ServerStage(tmp_path, listen=listen) as stage:
        url = f"https://127.0.0.1:{stage.port}"
        with httpx2.Client(verify=ssl.create_default_context(cafile=certificate)) as client:
            assert client.get(f"{url}/healthz").is_success
            code = stage.run(stage.app.state.tokens.make_code())
            signed_in = client.post(f"{url}/signin", data={"code": code}, headers={"origin": url})
            assert "; Secure" in signed_in.headers["set-cookie"]
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"http://127.0.0.1:{stage.port}/healthz")
    with pytest.raises(InvalidArgument, match="both"):
        Listen(tls_cert=certificate).check()


@pytest.mark.parametrize(
    ("proxy", "believed"), [("127.0.0.0/8", True), ("10.0.0.0/8", False), (None, False)], ids=str
)
def test_forwarding_headers_are_accepted_only_from_the_trusted_proxy(
    tmp_path: Path, proxy: str | None, believed: bool
) -> None:
    """Seed: only a proxy in `--trusted-proxy CIDR` may send forwarding headers."""
    forwarded = {"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"}
    with ServerStage(tmp_path, listen=Listen(port=0, grace_s=1.0, trusted_proxy=proxy)) as stage:
        assert httpx2.get(f"{stage.url}/v1/agents", headers=forwarded).status_code == 401
        code = stage.run(stage.app.state.tokens.make_code())
        origin = stage.url.replace("http:", "https:") if believed else stage.url
        headers = {**forwarded, "origin": origin}
        signed_in = httpx2.post(f"{stage.url}/signin", data={"code": code}, headers=headers)
        assert ("; Secure" in signed_in.headers["set-cookie"]) is believed
    refused = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])
    assert refused["client"] == ("203.0.113.7" if believed else "127.0.0.1")


def test_an_invalid_address_range_is_refused() -> None:
    """Ours: a misspelt proxy must not leave forwarding headers unchecked."""
    with pytest.raises(InvalidArgument, match="not an address range"):
        Listen(trusted_proxy="everyone").check()


def test_a_request_head_that_is_too_large_is_refused_however_it_arrives(tmp_path: Path) -> None:
    """Bug: a head of 100 KB in one piece, or during a response, was accepted."""
    large = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n"
    with ServerStage(tmp_path) as stage:
        with socket.create_connection(("127.0.0.1", stage.port), 10) as one:
            one.sendall(large)
            assert one.recv(1000).startswith(b"HTTP/1.1 400 ")
        with stage.client() as client:
            client.post("/v1/sessions", json={"session_id": "a", "agent": "clerk"}).raise_for_status()
            client.post("/v1/sessions/a/turns", json={"input": "b" * 100_000}).raise_for_status()
            token = stage.token()
            with socket.create_connection(("127.0.0.1", stage.port), 10) as one:
                head = (
                    f"GET /v1/sessions/a/events HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}"
                )
                one.sendall(head.encode() + b"\r\n\r\n")
                assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
                with pytest.raises(
                    (BrokenPipeError, ConnectionResetError)
                ):  # the connection is closed in the middle
                    send_endless_head(one)
            assert client.get("/v1/sessions/a").is_success


def send_endless_head(one: socket.socket) -> None:
    one.sendall(b"GET / HTTP/1.1\r\n")
    for _ in range(1000):
        one.sendall(b"x: " + b"a" * 8000 + b"\r\n")
        time.sleep(0.001)
