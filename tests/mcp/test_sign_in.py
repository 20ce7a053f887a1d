"""Signing in to MCP servers: a real authorization server, stored credentials, and servers that lie."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import pytest
from auth_server import AuthServer, auth_server
from conformance_client import visit

from standfast import McpServer, McpSignIn
from standfast.errors import McpServerFailed, McpSignInRequired, NotConfigured
from standfast.mcp import sign_in as sign_in_module
from standfast.mcp.credentials import CredentialFile, Credentials

pytestmark = pytest.mark.slow


@pytest.fixture
def issuer() -> Iterator[AuthServer]:
    with auth_server() as running:
        yield running


@pytest.fixture
def guarded(issuer: AuthServer, tmp_path: Path) -> Callable[..., McpServer]:
    """Return a function that makes a client of the guarded server, as a separate process would."""

    def make(**options: Any) -> McpServer:
        return McpServer(f"{issuer.url}/mcp", name="shop", data_dir=tmp_path, connect_s=120, **options)

    return make


def run(server: McpServer, *works: Any) -> list[Any]:
    """Await the result of each of *works* in turn, and close the server."""

    async def each() -> list[Any]:
        try:
            return [await work() for work in works]
        finally:
            await server.close()

    return asyncio.run(each())


def test_without_a_person_the_error_says_how_to_sign_in(
    issuer: AuthServer, guarded: Callable[..., McpServer]
) -> None:
    """Ours: a worker neither registers a client nor opens a page."""
    server = guarded()
    with pytest.raises(McpSignInRequired, match="requires sign-in") as caught:
        run(server, server.advertised)
    assert caught.value.hint == "run: standfast mcp sign-in shop"
    assert set(issuer.seen) == {"401"}


def test_after_one_sign_in_every_process_is_signed_in(
    issuer: AuthServer, guarded: Callable[..., McpServer], tmp_path: Path
) -> None:
    """Ours: credentials outlive the process, encrypted and readable only by their owner."""
    server = guarded()
    assert run(server, lambda: server.sign_in(visit)) == [True]
    other = guarded()
    assert run(other, lambda: other.call("look")) == ["secret"]
    assert issuer.seen["authorize"] == issuer.seen["register"] == 1
    (file,) = (tmp_path / "mcp").glob("*.credentials")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_bytes()
    assert not any(token.encode() in kept for token in (*issuer.access, *issuer.refresh))


@pytest.mark.parametrize("known_to_the_client", [True, False])
def test_an_expired_token_is_renewed_by_its_issuer(
    issuer: AuthServer, guarded: Callable[..., McpServer], tmp_path: Path, known_to_the_client: bool
) -> None:
    """Ours: a token is renewed when it expires or on a 401; the rotated refresh token is stored."""
    server, file = guarded(), CredentialFile(tmp_path, "shop", f"{issuer.url}/mcp")
    run(server, lambda: server.sign_in(visit))
    for expected in (1, 2):
        issuer.access.clear()
        if known_to_the_client:
            file.write(msgspec.structs.replace(file.read(), expires_at=1.0))
        again = guarded()
        assert run(again, partial(again.call, "look")) == ["secret"]
        assert issuer.seen["refresh"] == expected
    assert issuer.seen["authorize"] == 1


def test_more_scopes_are_requested_when_a_tool_needs_them(
    issuer: AuthServer, guarded: Callable[..., McpServer]
) -> None:
    """Ours: step-up: without a person the error names the scopes; with one, earlier scopes are kept."""
    server = guarded()
    run(server, lambda: server.sign_in(visit))
    with pytest.raises(McpSignInRequired, match="'write'"):
        run(server, lambda: server.call("erase"))
    present = guarded(sign_in=McpSignIn(open_page=visit))
    assert run(present, lambda: present.call("erase"), lambda: present.call("look")) == ["gone", "secret"]
    assert {tuple(sorted(one.scopes)) for one in issuer.access.values()} == {("read",), ("read", "write")}


def test_signing_in_again_adds_scopes(issuer: AuthServer, guarded: Callable[..., McpServer]) -> None:
    """Ours: `standfast mcp sign-in NAME --scope write` adds a scope."""
    server = guarded()
    run(server, lambda: server.sign_in(visit), lambda: server.sign_in(visit, scopes=["write"]))
    assert run(server, lambda: server.call("erase")) == ["gone"]


def test_signing_out_revokes_the_tokens_and_removes_the_file(
    issuer: AuthServer, guarded: Callable[..., McpServer], tmp_path: Path
) -> None:
    """Ours: no token is left on either side."""
    server = guarded()
    run(server, lambda: server.sign_in(visit))
    assert run(server, server.sign_out, server.sign_out) == [True, False]
    assert issuer.seen["revoke"] == 1
    assert not list((tmp_path / "mcp").glob("*.credentials"))
    with pytest.raises(McpSignInRequired):
        run(server, server.advertised)


def test_a_redirect_with_another_state_is_ignored(
    issuer: AuthServer, guarded: Callable[..., McpServer]
) -> None:
    """Ours: another page in the browser can send a code to the port."""

    async def attacked(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as browser:
            for query in ("?code=evil&state=evil", "?code=evil", "?error=no&state=x", ""):
                assert (await browser.get(back + query)).status_code == 404
            assert (await browser.get(back.replace("callback", "x"))).status_code == 404
        await visit(address)

    server = guarded()
    assert run(server, lambda: server.sign_in(attacked)) == [True]


def test_a_person_who_refuses_ends_the_sign_in(issuer: AuthServer, guarded: Callable[..., McpServer]) -> None:
    """Ours: the error is the one from the sign-in page."""

    async def refuse(address: str) -> None:
        asked = parse_qs(urlsplit(address).query)
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as browser:
            query = {"error": "access_denied", "state": asked["state"][0]}
            await browser.get(asked["redirect_uri"][0], params=query)

    server = guarded()
    with pytest.raises(McpServerFailed, match="access_denied"):
        run(server, lambda: server.sign_in(refuse))


CLOUD = "169.254.169.254"
HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another resource": ({"resource": "https://bank.example/mcp"}, {}, "does not match"),
    "another issuer": ({}, {"issuer": "https://evil.example"}, "issuer mismatch"),
    "no PKCE": ({}, {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
    "PKCE is not mentioned": ({}, {"code_challenge_methods_supported": None}, "PKCE"),
    "machine credentials as the issuer": (
        {"authorization_servers": ["http://169.254.169.254"]},
        {},
        "private",
    ),
    "machine credentials as the token endpoint": (
        {},
        {"token_endpoint": "https://169.254.169.254/t"},
        "private",
    ),
    "registration without TLS": ({}, {"registration_endpoint": "http://192.0.2.1/r"}, "not https"),
    "a page without TLS": ({}, {"authorization_endpoint": "http://192.0.2.1/a"}, "not https"),
}


@pytest.mark.parametrize("lie", HOSTILE)
def test_hostile_metadata_is_refused(issuer: AuthServer, guarded: Callable[..., McpServer], lie: str) -> None:
    """Ours: nothing is sent to an unchecked address, and no token is stored."""
    issuer.resource, issuer.metadata, reason = HOSTILE[lie]
    server = guarded()
    with pytest.raises(McpServerFailed, match=reason):
        run(server, lambda: server.sign_in(visit))
    assert not issuer.access


ADDRESSES = {
    "shop.example": ["93.184.216.34"],
    "login.example": ["2606:4700::1111", "93.184.216.35"],
    "inside.example": ["10.0.0.5"],
    "mixed.example": ["93.184.216.34", "127.0.0.1"],
    "here.example": ["127.0.0.1"],
    "corp.example": ["10.0.0.1"],
}


@pytest.mark.parametrize(
    ("server", "target", "expected"),
    [
        ("https://shop.example/mcp", "https://login.example/token", "93.184.216.35"),
        ("https://shop.example/mcp", "https://shop.example/token", None),
        ("https://shop.example/mcp", "https://shop.example:8443/token", "93.184.216.34"),
        ("https://shop.example/mcp", "http://login.example/token", "not https"),
        ("https://shop.example/mcp", "https://inside.example/token", "private"),
        ("https://shop.example/mcp", "https://mixed.example/token", "private"),
        ("https://shop.example/mcp", "https://here.example/token", "private"),
        ("https://corp.example/mcp", "https://inside.example/token", "10.0.0.5"),
        ("https://corp.example/mcp", "https://here.example/token", "this machine"),
        ("https://corp.example/mcp", "http://inside.example/token", "not https"),
        ("http://here.example/mcp", "https://login.example/token", "93.184.216.35"),
    ],
)
def test_metadata_may_only_refer_to_addresses_that_its_server_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, target: str, expected: str | None
) -> None:
    """Ours: metadata cannot forge requests, and the connection is made to the checked address."""
    monkeypatch.setattr(sign_in_module, "system_addresses", lambda host, port: ADDRESSES[host])
    auth = sign_in_module.SignIn("shop", server, McpSignIn(), CredentialFile(tmp_path, "shop", server))
    request = httpx2.Request("POST", target)
    if expected is None or expected[0].isdigit():
        admitted = asyncio.run(auth._admitted(request))
        assert admitted.url.host == (expected or "shop.example")
        assert admitted.headers["Host"].split(":")[0] == urlsplit(target).hostname
    else:
        with pytest.raises(McpServerFailed, match=expected):
            asyncio.run(auth._admitted(request))


def test_credentials_can_be_decrypted_only_for_their_server_url_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a file that is copied to another server, or opened with another key, is refused."""
    file = CredentialFile(tmp_path, "shop", "https://shop.example/mcp")
    file.write(Credentials(tokens={"access_token": "t"}))
    assert file.read().tokens == {"access_token": "t"}
    other = CredentialFile(tmp_path, "shop", "https://evil.example/mcp")
    assert other.read() == Credentials()
    other.path.write_bytes(file.path.read_bytes())
    with pytest.raises(NotConfigured, match="sealed with another key"):
        other.read()
    monkeypatch.setenv("STANDFAST_MCP_KEY", "another-key-for-tests")
    with pytest.raises(NotConfigured, match="sealed with another key"):
        file.read()
    monkeypatch.setenv("STANDFAST_MCP_KEY", "short")
    with pytest.raises(NotConfigured, match="5 characters"):
        file.read()


def test_the_key_is_in_the_keyring_or_in_a_file_apart_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a copy of the data directory cannot be decrypted."""
    import keyring
    from keyring.backend import KeyringBackend
    from keyring.backends.fail import Keyring as NoKeyring
    from keyring.compat import properties

    class Memory(KeyringBackend):
        kept: ClassVar[dict[tuple[str, str], str]] = {}

        @properties.classproperty
        def priority(self) -> float:
            return 1

        def get_password(self, service: str, username: str) -> str | None:
            return self.kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.kept[service, username] = password

    monkeypatch.delenv("STANDFAST_MCP_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = CredentialFile(tmp_path / "data", "shop", "https://shop.example/mcp")
    before = keyring.get_keyring()
    try:
        keyring.set_keyring(Memory())  # type: ignore[no-untyped-call]
        file.write(Credentials(tokens={"access_token": "t"}))
        assert set(Memory.kept) == {("standfast", "mcp")}
        assert not (tmp_path / "config").exists()
        keyring.set_keyring(NoKeyring())  # type: ignore[no-untyped-call]
        with pytest.raises(NotConfigured, match="another key"):
            file.read()
        file.write(Credentials(tokens={"access_token": "u"}))
        key = tmp_path / "config" / "standfast" / "mcp.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert file.read().tokens == {"access_token": "u"}
    finally:
        keyring.set_keyring(before)
