"""Every route, with every way to refuse a request. The cases come from the OpenAPI document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerStage

from standfast.server.openapi import openapi_document
from standfast.server.routes import ROUTES

DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi_document(ROUTES)))
ENDLESS = {"/v1/events", "/v1/sessions/{session_id}/events"}


@dataclass(frozen=True)
class Operation:
    """One operation of the document."""

    method: str
    path: str
    spec: dict[str, Any]

    @property
    def scope(self) -> str:
        return str(self.spec["x-standfast-scope"])

    @property
    def needs_token(self) -> bool:
        return self.scope not in ("public", "signed")

    @property
    def media_type(self) -> str | None:
        content = self.spec.get("requestBody", {}).get("content", {})
        return next(iter(content), None)

    def parameters(self, place: str) -> list[dict[str, Any]]:
        return [one for one in self.spec["parameters"] if one["in"] == place]

    def body(self) -> bytes | None:
        if self.media_type is None:
            return None
        if self.media_type != "application/json":
            return b"x"
        return json.dumps(example(self.spec["requestBody"]["content"][self.media_type]["schema"])).encode()


OPERATIONS = [
    Operation(method.upper(), path, spec)
    for path, methods in DOCUMENT["paths"].items()
    for method, spec in methods.items()
]
each = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")


def example(schema: dict[str, Any]) -> Any:
    """Return a small value that satisfies a schema."""
    if "$ref" in schema:
        return example(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            names = schema.get("required", [])
            return {name: example(schema["properties"][name]) for name in names}
        case "array":
            return [example(schema["prefixItems"][0])] if "prefixItems" in schema else []
        case "boolean":
            return True
        case "integer":
            return schema.get("minimum", 1)
        case _:
            return "snap_a" if "snap" in schema.get("pattern", "") else "a"


class Acme:
    """A server on which the tenant `acme` has one of every resource, and a rival tenant has none."""

    def __init__(self, stage: ServerStage) -> None:
        self.stage = stage
        self.http = httpx2.Client(base_url=stage.url, timeout=30)
        self.tokens = {
            scope: stage.token(scope, tenant="acme") for scope in ("read", "run", "approve", "admin")
        }
        self.operator = stage.token("admin")
        self.revoked = stage.token("admin", tenant="acme")
        revoked_id = self.revoked.split("_")[1]
        assert stage.run(stage.app.state.tokens.revoke(revoked_id))
        with self.client(self.tokens["admin"]) as client:
            self.ids = self._furnish(client)

    def admin(self, operation: Operation) -> str:
        """Return a token of the tenant with all scopes, or the operator's for operator-only operations."""
        operators_own = operation.spec.get("x-standfast-operator-only", False)
        return self.operator if operators_own else self.tokens["admin"]

    def client(self, token: str | None) -> httpx2.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.stage.url, headers=headers, timeout=30)

    def _furnish(self, client: httpx2.Client) -> dict[str, str]:
        def post(path: str, **body: Any) -> dict[str, Any]:
            response = client.post(path, json=body)
            assert response.is_success, response.text
            return dict(response.json())

        assert post("/v1/sessions", session_id="desk", agent="clerk")["session_id"] == "_acme_desk"
        turn = post("/v1/sessions/desk/turns", input="refund")
        post("/v1/runs", code="x = 1", session_id="cell")
        snapshot = post("/v1/sessions/cell/snapshots")["snapshot_id"]
        digest = client.post("/v1/attachments", content=b"secret of acme").json()["digest"]
        queued = post("/v1/sessions/desk/inputs", input="later")["input_id"]
        grant = post("/v1/grants", capability="other", session_id="desk", expires_at=2**52)
        post("/v1/sessions/desk/monitors", id="watch", command="true")
        client.put("/v1/triggers/nightly", json={"source": "clock", "session_id": "desk"}).raise_for_status()
        return {
            "session_id": "_acme_desk",
            "agent": "clerk",
            "turn_id": turn["turn_id"],
            "approval_id": turn["waits"][0]["wait_id"],
            "grant_id": grant["grant_id"],
            "snapshot_id": snapshot,
            "digest": digest,
            "input_id": queued,
            "task_id": "watch",
            "monitor_id": "watch",
            "name": "_acme_nightly",
            "source": "shop",
            "chat_id": "_acme_desk",
            "response_id": f"resp_{turn['turn_id']}",
        }

    def send(self, operation: Operation, token: str | None, **changes: Any) -> httpx2.Response:
        """Send a valid request with *changes*; read only the head of an endless stream."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        headers |= {"content-type": operation.media_type} if operation.media_type else {}
        asking = {"content": operation.body(), **changes, "headers": headers | changes.get("headers", {})}
        path = asking.pop("path", None) or operation.path.format(**self.ids)
        with self.http.stream(operation.method, path, **asking) as answer:
            if operation.path not in ENDLESS or not answer.is_success:
                answer.read()
            return answer


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acme]:
    with ServerStage(tmp_path_factory.mktemp("acme")) as stage:
        acme = Acme(stage)
        yield acme
        acme.http.close()


def refused(answer: httpx2.Response, *statuses: int) -> None:
    """Check that a refusal is a problem document with one of the statuses, and reveals nothing."""
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["code"]
    assert "secret of acme" not in answer.text


@each
@pytest.mark.parametrize("kind", ["none", "wrong", "garbled", "revoked"])
def test_a_request_without_a_valid_token_is_refused(acme: Acme, operation: Operation, kind: str) -> None:
    """Seed: every route needs a credential, except those that are public by name."""
    wrong = acme.tokens["admin"][:-3] + "abc"
    token = {"none": None, "wrong": wrong, "garbled": "sf_x_y", "revoked": acme.revoked}[kind]
    if operation.needs_token:
        answer = acme.send(operation, token)
        refused(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    elif operation.scope == "signed":
        refused(acme.send(operation, token), 401)
    else:
        assert operation.path in ("/healthz", "/readyz", "/signin")


@each
def test_a_token_without_the_scope_is_refused(acme: Acme, operation: Operation) -> None:
    """Seed: each token has scopes, and a route needs one of them."""
    if not operation.needs_token:
        return
    others = [scope for scope in ("read", "run", "approve") if scope != operation.scope]
    refused(acme.send(operation, acme.stage.token(*others, tenant="acme")), 403)


@each
def test_another_tenant_finds_nothing(acme: Acme, operation: Operation) -> None:
    """Seed: one tenant can neither see nor guess another's resources."""
    if not operation.needs_token:
        return
    rival = acme.stage.token("admin", tenant="rival")  # a separate token: one of the operations signs it out
    answer = acme.send(operation, rival)
    named = [one["name"] for one in operation.parameters("path") if one["name"] != "agent"]
    if operation.spec.get("x-standfast-operator-only"):
        refused(answer, 403)
    elif operation.path == "/vercel/chat/{chat_id}/stream":
        assert answer.status_code == 204  # the SDK treats any other answer as an error
    elif named and operation.path != "/v1/triggers/{name}":
        refused(answer, 404)
    elif operation.path not in ENDLESS:
        assert "_acme_" not in answer.text.replace("_acme_nightly", "")
        for value in acme.ids.values():
            assert value in ("shop", "watch", "clerk", "_acme_nightly") or value not in answer.text
    with acme.client(acme.tokens["read"]) as client:
        assert client.get("/v1/sessions/desk").is_success
        assert [one["name"] for one in client.get("/v1/triggers").json()] == ["_acme_nightly"]


@each
def test_another_host_is_refused(acme: Acme, operation: Operation) -> None:
    """Seed: Host has an allow-list, so a page cannot reach the server under its own name."""
    refused(acme.send(operation, acme.tokens["admin"], headers={"host": "evil.example"}), 421)


@each
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_another_origin_is_refused(acme: Acme, operation: Operation, origin: str) -> None:
    """Seed: Origin has an allow-list."""
    refused(acme.send(operation, acme.tokens["admin"], headers={"origin": origin}), 403)


@each
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_without_origin_is_refused(acme: Acme, operation: Operation, site: str) -> None:
    """Seed: a missing Origin does not exempt a browser's request."""
    refused(acme.send(operation, acme.tokens["admin"], headers={"sec-fetch-site": site}), 403)


@each
def test_a_body_that_is_too_large_is_refused(acme: Acme, operation: Operation) -> None:
    """Seed: every size is limited, whether or not it is announced."""
    if operation.media_type is None:
        return
    large = b" " * ((1 << 20) + 1)
    refused(acme.send(operation, acme.admin(operation), content=large), 413)
    refused(acme.send(operation, acme.admin(operation), content=iter([large[: 1 << 19]] * 3)), 413)


@each
@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"a": 1,}', b"[" * 100_000, b"NaN"])
def test_a_malformed_body_is_refused(acme: Acme, operation: Operation, body: bytes) -> None:
    """Ours: a body that is not JSON is the client's error, not ours."""
    if operation.media_type == "application/json":
        refused(acme.send(operation, acme.admin(operation), content=body), 400)


@each
def test_a_value_of_the_wrong_type_is_refused(acme: Acme, operation: Operation) -> None:
    """Ours: body, query and path are validated against their types."""
    token = acme.admin(operation)
    if operation.media_type == "application/json":
        good = json.loads(operation.body() or b"{}")
        wrongs: list[Any] = [[], "text", {**good, "no_such_field": 1}, {name: {"x": []} for name in good}]
        for wrong in wrongs:
            if wrong != good:
                refused(acme.send(operation, token, content=json.dumps(wrong).encode()), 400)
        refused(acme.send(operation, token, headers={"content-type": "text/plain"}), 415)
    if operation.needs_token:
        answer = acme.send(operation, token, params={"no_such_parameter": "1"})
        refused(answer, 400, 403)
    for parameter in operation.parameters("query"):
        if parameter["schema"].get("type") in ("integer", "boolean"):
            refused(acme.send(operation, token, params={parameter["name"]: "many"}), 400)
    for parameter in operation.parameters("path"):
        ids = {**acme.ids, parameter["name"]: "%00"}
        refused(acme.send(operation, token, path=operation.path.format(**ids)), 404, 401)


@each
def test_an_unsupported_method_is_refused(acme: Acme, operation: Operation) -> None:
    """Ours: 405 lists the supported methods."""
    with acme.client(acme.tokens["admin"]) as client:
        answer = client.request("PATCH", operation.path.format(**acme.ids))
    refused(answer, 405)
    assert operation.method in answer.headers["allow"]


def test_a_cookie_with_a_malformed_referer_is_refused(acme: Acme) -> None:
    """Bug: a Referer that is not a URL was an internal error."""
    headers = {"cookie": f"standfast={acme.tokens['admin']}", "referer": "http://[::1"}
    with acme.client(None) as client:
        refused(client.get("/v1/agents", headers=headers), 403)


def test_an_unknown_path_looks_like_a_known_one_without_a_token(acme: Acme) -> None:
    """Ours: a client without a credential learns nothing about routes."""
    with acme.client(None) as client:
        refused(client.get("/v1/no-such-route"), 401)
    with acme.client(acme.tokens["read"]) as client:
        refused(client.get("/v1/no-such-route"), 404)


def test_every_refusal_is_in_the_audit_log(acme: Acme) -> None:
    """Seed: an audit log records each refused request with the credential's id."""
    token = acme.stage.token("read", tenant="acme")
    with acme.client(token) as client:
        client.post("/v1/sessions", json={"session_id": "x", "agent": "clerk"})
    lines = [json.loads(line) for line in (acme.stage.home / "audit.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "refused"][-1]
    assert last["credential"] == token.split("_")[1]
    assert (last["status"], last["code"], last["path"]) == (403, "PERMISSION_DENIED", "/v1/sessions")
    assert token.split("_", 2)[2] not in (acme.stage.home / "audit.jsonl").read_text()
