"""The OpenAPI document: it is valid and complete, and the server conforms to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import negative_data_rejection

sys.path.insert(0, str(Path(__file__).parent))

from server_stage import ServerStage

from standfast.model.events import Event
from standfast.server.openapi import openapi_document
from standfast.server.routes import ROUTES

DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi_document(ROUTES)))
ENDLESS = {"/v1/events", "/v1/sessions/{session_id}/events"}


def test_every_event_and_every_reference_is_in_the_document() -> None:
    """Seed: the document is generated from the value types themselves."""
    schemas = DOCUMENT["components"]["schemas"]
    assert {kind.__name__ for kind in Event.__args__} <= set(schemas)
    references = {part.split('"')[0] for part in json.dumps(DOCUMENT).split('"#/components/schemas/')[1:]}
    assert references <= set(schemas)


def test_every_route_is_in_the_document_once() -> None:
    """Ours: operation ids are unique, so generated clients are usable."""
    found = [spec["operationId"] for methods in DOCUMENT["paths"].values() for spec in methods.values()]
    assert len(found) == len(set(found)) == len(ROUTES)


def test_every_security_scheme_of_an_operation_is_declared() -> None:
    """Ours: a generated client signs its requests as the document says."""
    named = {
        scheme
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        for either in operation["security"]
        for scheme in either
    }
    assert named == set(DOCUMENT["components"]["securitySchemes"])


def test_generating_the_document_does_not_corrupt_memory() -> None:
    """Bug: msgspec corrupts memory for a string with a pattern in a union with an array."""
    code = (
        "from standfast.server.openapi import openapi_document; from standfast.server.routes import ROUTES; "
        "openapi_document(ROUTES)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONMALLOC": "malloc"})
    assert done.returncode == 0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStage]:
    with ServerStage(tmp_path_factory.mktemp("schema")) as running, running.client() as client:
        client.post("/v1/sessions", json={"session_id": "a", "agent": "clerk"}).raise_for_status()
        yield running


def _with_tokens_alone() -> dict[str, Any]:
    """Return the document without the cookie, which is ignored in a request with a token."""
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    for methods in document["paths"].values():
        for spec in methods.values():
            spec["security"] = [one for one in spec["security"] if "cookie" not in one]
    return document


ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "422", "429", "503"]
"""422 is for values that match the schema but break a rule that no schema can state, such as cron's."""
REFUSED = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429"]
CONFIG = schemathesis.Config.from_dict(
    {
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ACCEPTED},
            "negative_data_rejection": {"expected-statuses": REFUSED},
        }
    }
)
OPERATIONS = [
    (method, path) for path, methods in DOCUMENT["paths"].items() if path not in ENDLESS for method in methods
]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
def test_schemathesis_finds_no_violation(operation: tuple[str, str], stage: ServerStage) -> None:
    """Seed: `schemathesis` finds no violation of the OpenAPI document.

    The token lacks the scope `admin`, so that no random monitor commands run. Cases are created here
    and not by `schema.parametrize()`, which creates those of all operations when tests are collected.
    """

    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(
            base_url=stage.url,
            headers={"Authorization": f"Bearer {_token(stage, case)}"},
            excluded_checks=[negative_data_rejection] if _is_lost_on_the_way(case) else [],
        )

    method, path = operation
    whole = schemathesis.openapi.from_dict(_with_tokens_alone(), config=CONFIG)
    schema = whole.include(path=path, method=method.upper())
    settings = hypothesis.settings(
        max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    (made,) = get_all_tests(schema=schema, test_func=check, settings=settings, given_kwargs=None)
    _, run = made.ok()
    run()


def _is_lost_on_the_way(case: schemathesis.Case[Any]) -> bool:
    """Return whether the invalid part of a request is not sent: an empty list or object in the query.

    The header `Authorization` is always the test's own.
    """
    return any(value in ([], {}) for value in (case.query or {}).values())


def _token(stage: ServerStage, case: schemathesis.Case[Any]) -> str:
    if case.operation.path == "/signout" or stage.tester is None:  # signing out revokes the token
        stage.tester = stage.token("read", "run", "approve")
    return str(stage.tester)
