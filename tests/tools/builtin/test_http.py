"""The HTTP tools: which addresses a fetch may reach, and its results. Servers are real and on loopback."""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from standfast.errors import AccessDenied, InvalidArgument, ToolError
from standfast.model.capability import ToolCallContext
from standfast.model.limits import CapabilityLimits
from standfast.tools import RegisteredTool
from standfast.tools.builtin.http import http_tools, is_public

pytestmark = pytest.mark.slow

PUBLIC = "93.184.216.34"
Answer = tuple[int, dict[str, str], bytes]


class Site:
    """A server on loopback; `routes` maps a path to status, headers and body."""

    def __init__(self) -> None:
        self.routes: dict[str, Answer] = {}
        self.requests: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append((self.headers["Host"], self.path))
                site.headers = {name.lower(): value for name, value in self.headers.items()}
                status, headers, body = site.routes.get(self.path, (404, {}, b"no"))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self._drip(body) if "X-Drip" in headers else self._write(body)

            def _write(self, body: bytes) -> bool:
                try:
                    return self.wfile.write(body) > 0
                except OSError:
                    return False

            def _drip(self, body: bytes) -> None:
                while self._write(body):
                    time.sleep(0.02)

            def log_message(self, *_: object) -> None: ...

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


class Resolver:
    """A resolver that returns its answers in turn; the last one is repeated."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def fetch(url: str, allow: Sequence[str], *, name: str = "fetch_text", **options: Any) -> Any:
    tools = {tool.name: tool for tool in http_tools(allow, **options)}
    return run(tools[name], url)


def run(tool: RegisteredTool, url: str) -> Any:
    bound = tool.bind(ToolCallContext(name=tool.name, args=[url]))
    return tool.handler(*bound.args, **bound.kwargs)


def refused(url: str, allow: Sequence[str], **options: Any) -> str:
    with pytest.raises(AccessDenied) as raised:
        fetch(url, allow, **options)
    assert raised.value.code == "PERMISSION_DENIED"
    return str(raised.value)


def never(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} must not be resolved")


def test_text_and_json_are_fetched_from_a_granted_address(site: Site) -> None:
    """Seed: `fetch_text` and `fetch_json` use an allow-list; a private address that is named is granted."""
    site.routes["/t?q=1"] = (200, {"Content-Type": "text/plain; charset=iso-8859-1"}, b"gr\xfcn")
    site.routes["/j"] = (200, {}, b'\xef\xbb\xbf{"a": [1, 2.5, null]}')
    assert fetch(f"http://{site.address}/t?q=1#part", [site.address]) == "grün"
    assert fetch(f"http://{site.address}/j", [site.address], name="fetch_json") == {"a": [1, 2.5, None]}


def test_a_response_that_is_not_json_or_not_a_success_is_a_tool_error(site: Site) -> None:
    """Ours: guest code sees the URL and the unexpected status or body."""
    site.routes["/j"] = (200, {}, b"<html>")
    with pytest.raises(ToolError, match="is not JSON"):
        fetch(f"http://{site.address}/j", [site.address], name="fetch_json")
    with pytest.raises(ToolError, match=f"http://{site.address}/none answered 404") as raised:
        fetch(f"http://{site.address}/none", [site.address])
    assert raised.value.code == "HTTP_ERROR"


def test_the_connection_uses_the_checked_address_and_the_name_in_the_host_header(site: Site) -> None:
    """Seed: the address is resolved once and then pinned, so a second, different answer has no effect."""
    site.routes["/"] = (200, {}, b"ok")
    resolve = Resolver(["127.0.0.1"], ["10.0.0.1"])
    host = f"Shop.Example.:{site.port}"
    allow = [f"shop.example:{site.port}", site.address]
    assert fetch(f"http://{host}", allow, resolve=resolve) == "ok"
    assert resolve.asked == ["shop.example"]
    assert site.requests == [(f"shop.example:{site.port}", "/")]


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["192.168.0.1"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["0.0.0.0"],
        ["224.0.0.1"],
        ["255.255.255.255"],
        ["::1"],
        ["::"],
        ["fe80::1"],
        ["fe80::1%eth0"],
        ["fd00::1"],
        ["ff02::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["64:ff9b:1::1"],
        ["2002:7f00:1::"],
        ["::127.0.0.1"],
        [PUBLIC, "127.0.0.1"],
        ["2606:4700::1111", "::ffff:10.0.0.1"],
        ["not an address"],
    ],
)
def test_a_name_that_resolves_to_a_private_address_is_refused(answer: list[str]) -> None:
    """Seed: private addresses are refused unless granted; one of several is enough for a refusal."""
    refused("http://shop.example/", ["shop.example"], resolve=lambda host, port: answer)


def test_a_named_address_is_granted_for_its_port_only(site: Site) -> None:
    """Ours: a grant for one local port does not cover others."""
    allow = [f"shop.example:{site.port}", f"127.0.0.1:{site.port + 1}"]
    refused(f"http://shop.example:{site.port}/", allow, resolve=Resolver(["127.0.0.1"]))
    assert site.requests == []


def test_private_addresses_can_be_granted_together(site: Site) -> None:
    """Seed: private addresses are refused unless they are granted."""
    site.routes["/"] = (200, {}, b"ok")
    options: dict[str, Any] = {"allow_private": True, "resolve": Resolver(["127.0.0.1"])}
    assert fetch(f"http://a.b.example:{site.port}/", [f"*.example:{site.port}"], **options) == "ok"
    refused(f"http://other.test:{site.port}/", [f"*.example:{site.port}"], **options)


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/",
        "http://shop.example.other.test/",
        "http://notshop.example/",
        "http://sub.shop.example/",
        "http://shop.example:8080/",
        "http://shop.example:443/",
        "https://shop.example:80/",
        "http://any.where.example/",
        "http://wild.test/",
        "http://xwild.test/",
        f"http://{PUBLIC}/",
    ],
)
def test_hosts_and_ports_not_on_the_list_are_refused(url: str) -> None:
    """Seed: hosts have an allow-list; an entry without a port means the scheme's default port."""
    assert "allowed hosts: shop.example, *.wild.test" in refused(
        url, ["shop.example", "*.wild.test"], resolve=never
    )


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop.example",
        "//shop.example/",
        "ftp://shop.example/",
        "file:///etc/passwd",
        "http:///x",
        "http://",
        "http://user@shop.example/",
        "http://user:pw@shop.example/",
        "http://shop.example@other.test/",
        "http://other.test\\@shop.example/",
        "http://shop.example\\.other.test/",
        "http://shop.example\t/",
        "http://shop.example/a b",
        "http://shop.example/\r\nX: y",
        " http://shop.example/",
        "http://shop.example:0/",
        "http://shop.example:99999/",
        "http://shop.example:x/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://127.0.0.01/",
        "http://0177.0.0.1/",
        "http://127.0.0.1.:99999/",
        "http://１２７.1/",
        "http://[::1/",
        "http://[::1%25lo]/",
        "http://[fe80::1%eth0]/",
        "http://shop..example/",
        "http://-shop.example/",
        "http://%73hop.example/",
        "http://shop.example/" + "a" * 9000,
    ],
)
def test_ambiguous_urls_are_refused(url: str) -> None:
    """Ours: parsers disagree about such URLs, so they are refused without parsing."""
    refused(url, ["shop.example", "127.0.0.1", "other.test", "*.example"], allow_private=True, resolve=never)


def test_hosts_are_compared_in_normalised_form(site: Site) -> None:
    """Ours: this covers case, trailing dots, international names and digits of other scripts."""
    site.routes["/"] = (200, {}, b"ok")
    allow = [f"BÜCHER.example.:{site.port}", site.address]
    for host in ("bücher.example", "xn--bcher-kva.EXAMPLE", "BÜCHER。example"):
        assert fetch(f"http://{host}:{site.port}/", allow, resolve=Resolver(["127.0.0.1"])) == "ok"
    assert fetch(f"http://１２７.0.0.1:{site.port}/", allow, resolve=never) == "ok"
    assert {host for host, _ in site.requests[:3]} == {f"xn--bcher-kva.example:{site.port}"}


def test_an_ipv6_entry_is_parsed() -> None:
    """Ours: an address with a port is written in brackets; one without may be bare."""
    for entry in ("[::1]:1", "[0:0::1]:1"):
        with pytest.raises(ToolError, match="cannot be fetched from"):
            fetch("http://[::1]:1/", [entry], resolve=never)
    assert "port 1 is not" in refused("http://[::1]:1/", ["::1"], resolve=never)


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "http://a.example", "a.example/x", "u@a.example", "a.example:0", "a.example:x",
     "*.127.0.0.1", "127.1", "a b", "a.example:70000", "[::1", "**.a.example", "a.*.example"],
)  # fmt: skip
def test_entries_that_are_not_hosts_are_refused(entry: str) -> None:
    """Ours: an ambiguous grant is refused when it is created."""
    with pytest.raises(InvalidArgument, match="allow_hosts"):
        http_tools([entry])
    with pytest.raises(InvalidArgument, match="allow_hosts"):
        http_tools(entry)


def test_a_redirect_is_followed_and_checked_again(site: Site) -> None:
    """Seed: the target of each redirect is checked like a first URL."""
    site.routes["/1"] = (302, {"Location": "/2?x=y", "Set-Cookie": "a=b"}, b"")
    site.routes["/2?x=y"] = (200, {}, b"there")
    assert fetch(f"http://{site.address}/1", [site.address]) == "there"
    assert "cookie" not in site.headers


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest", "http://other.test/", "//other.test/", "file:///etc/passwd", "http://[",
     "http://user@127.0.0.1/", "https://127.0.0.1/"],
)  # fmt: skip
def test_a_redirect_to_an_address_that_is_not_granted_is_refused(site: Site, location: str) -> None:
    """Seed: the target of each redirect is checked like a first URL."""
    site.routes["/1"] = (302, {"Location": location}, b"")
    refused(f"http://{site.address}/1", [site.address], resolve=never)


def test_a_name_that_becomes_private_on_a_redirect_is_refused(site: Site) -> None:
    """Ours: every redirect resolves and checks its host again."""
    site.routes["/1"] = (302, {"Location": "/2"}, b"")
    allow = [f"shop.example:{site.port}", site.address]
    resolve = Resolver(["127.0.0.1"], ["127.0.0.2"])
    assert "127.0.0.2" in refused(f"http://shop.example:{site.port}/1", allow, resolve=resolve)
    assert len(site.requests) == 1


def test_the_number_of_redirects_is_limited(site: Site) -> None:
    """Ours: a fetch follows at most five redirects."""
    site.routes["/1"] = (307, {"Location": "/1"}, b"")
    with pytest.raises(ToolError, match="more than 5 times"):
        fetch(f"http://{site.address}/1", [site.address])
    assert len(site.requests) == 6


def test_an_endless_response_is_cut_at_the_limit(site: Site) -> None:
    """Ours: a body is read only up to the size limit."""
    site.routes["/"] = (200, {"X-Drip": "1"}, b"x" * 10_000)
    with pytest.raises(ToolError, match="more than 25000 bytes") as raised:
        fetch(f"http://{site.address}/", [site.address], limits=CapabilityLimits(max_response_bytes=25_000))
    assert raised.value.code == "RESPONSE_TOO_LARGE"


def test_a_slow_response_ends_at_the_deadline(site: Site) -> None:
    """Seed: `timeout_ms` also applies to a server that sends a byte now and then."""
    site.routes["/"] = (200, {"X-Drip": "1"}, b"x")
    with pytest.raises(ToolError, match="did not answer in time") as raised:
        fetch(f"http://{site.address}/", [site.address], limits=CapabilityLimits(timeout_ms=300))
    assert raised.value.code == "TIMEOUT_TOOL"


def test_a_compressed_response_is_refused(site: Site) -> None:
    """Ours: a small response must not decompress to a large one; the request asks for no compression."""
    site.routes["/"] = (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b")
    with pytest.raises(ToolError, match="encoding"):
        fetch(f"http://{site.address}/", [site.address])
    assert site.headers["accept-encoding"] == "identity"


def test_the_next_address_is_tried_if_one_does_not_connect(site: Site) -> None:
    """Ours: a host with a dead IPv6 address is still reached."""
    site.routes["/"] = (200, {}, b"ok")
    resolve = Resolver(["127.0.0.2", "127.0.0.1"])
    assert fetch(
        f"http://a.example:{site.port}/", [f"a.example:{site.port}"], allow_private=True, resolve=resolve
    )


def test_unresolvable_names_and_closed_ports_are_tool_errors() -> None:
    """Ours: a network failure is a tool error, not a permission error."""

    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    resolvers: list[Callable[[str, int], Sequence[str]]] = [unknown, Resolver([])]
    for resolve in resolvers:
        with pytest.raises(ToolError, match=r"a\.example") as raised:
            fetch("http://a.example/", ["a.example"], resolve=resolve)
        assert raised.value.code == "HTTP_ERROR"
    with pytest.raises(ToolError, match="cannot be fetched from"):
        fetch("http://127.0.0.1:1/", ["127.0.0.1:1"])


def test_proxies_from_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a proxy would resolve the name again, which the tool could not check."""
    site.routes["/"] = (200, {}, b"ok")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(f"http://{site.address}/", [site.address]) == "ok"


def test_tls_verifies_the_host_name_and_the_certificate() -> None:
    """Ours: pinning the address must not weaken TLS."""
    asked: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=_shake_hands, args=(listener, context))
        thread.start()
        with pytest.raises(ToolError, match="cannot be fetched from"):
            fetch(
                f"https://shop.example:{port}/",
                [f"shop.example:{port}", f"127.0.0.1:{port}"],
                resolve=Resolver(["127.0.0.1"]),
            )
        thread.join()
    assert asked == ["shop.example"]


def _shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        context.wrap_socket(connection, server_side=True).close()


@pytest.mark.parametrize(
    ("address", "public"),
    [(PUBLIC, True), ("2606:4700::1111", True), ("64:ff9b::5db8:d822", True), ("::ffff:93.184.216.34", True),
     ("240.0.0.1", False), ("192.0.0.8", False), ("198.18.0.1", False), ("203.0.113.1", False),
     ("2001:db8::1", False), ("fec0::1", False), ("2001:0:7f00:1::", False), ("0.1.2.3", False)],
)  # fmt: skip
def test_only_globally_reachable_addresses_are_public(address: str, public: bool) -> None:
    """Ours: the table covers special addresses, including embedded IPv4 ones."""
    assert is_public(ipaddress.ip_address(address)) is public


def test_fetches_are_idempotent_network_effects_and_cheap_to_import() -> None:
    """Ours: GET may be repeated; importing the tools loads no HTTP client."""
    for made in http_tools([]):
        capability = made.capability
        assert (str(capability.side_effect), capability.idempotent) == ("network", True)
        assert (capability.limits.timeout_ms, made.owner) == (10_000, "standfast built-in")
    code = "import sys, standfast.tools.builtin.http; sys.exit('httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
