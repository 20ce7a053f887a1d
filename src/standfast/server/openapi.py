"""The OpenAPI 3.1 document, generated from the route table and the value types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from inspect import cleandoc
from typing import Any, Final

import msgspec

from standfast import __version__
from standfast.model.events import Event
from standfast.model.session import SESSION_ID_PATTERN
from standfast.runtime.http_values import Problem, SessionEvent
from standfast.server.calls import BINARY, EVENT_STREAM, JSON, Route
from standfast.server.credentials import Scope
from standfast.server.problems import PROBLEM

_REF: Final = "#/components/schemas/{name}"
_NAME: Final = "^[a-zA-Z0-9_.:-]{1,100}$"
PATH_PATTERNS: Final = {
    "session_id": SESSION_ID_PATTERN,
    "agent": SESSION_ID_PATTERN,
    "turn_id": "^[a-zA-Z0-9_-]{1,64}$",
    "approval_id": "^[a-zA-Z0-9_-]{1,64}$",
    "grant_id": "^[a-zA-Z0-9_-]{1,64}$",
    "call_id": "^[0-9]{1,9}$",
    "snapshot_id": "^[a-zA-Z0-9_-]{1,80}$",
    "input_id": "^[a-zA-Z0-9_.:-]{1,160}$",
    "task_id": "^[a-zA-Z0-9_.:-]{1,128}$",
    "monitor_id": "^[a-zA-Z0-9_.:-]{1,128}$",
    "digest": "^[0-9a-f]{64}$",
    "chat_id": _NAME,
    "response_id": "^resp_t_[a-zA-Z0-9_-]{1,64}$",
    "name": _NAME,
    "source": _NAME,
}
"""The pattern of each path parameter; a path with any other value gets a 404."""


def openapi_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of *routes*."""
    table = list(routes)
    kinds = [kind for route in table for kind in (route.body, route.answer) if kind not in (None, bytes, str)]
    queries = [route.query for route in table if route.query is not None]
    shared = (Problem, SessionEvent, Event)  # the last two occur in streams
    schemas, components = msgspec.json.schema_components((*kinds, *queries, *shared), ref_template=_REF)
    made = dict(zip(map(_key, (*kinds, *queries)), schemas, strict=False))
    paths: dict[str, Any] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, made, components)
    for query in {kind.__name__ for kind in queries}:
        components.pop(query, None)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Standfast",
            "version": __version__,
            "description": "Sessions, turns, approvals and code runs of a Standfast server.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
    }
    tidy: dict[str, Any] = _tidy(document)
    return tidy


_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token from `standfast tokens create`."},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "standfast", "description": "Set by `/signin`."},
    "signature": {"type": "apiKey", "in": "header", "name": "Webhook-Signature"},
}
_SCHEMES: Final[dict[Scope, list[dict[str, list[str]]]]] = {
    Scope.PUBLIC: [],
    Scope.SIGNED: [{"signature": []}],
}
"""The security schemes of the scopes that need no credential."""


def _operation(route: Route, made: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    words = cleandoc(route.handler.__doc__ or "").split("\n\n")
    text, names = {"type": "string"}, re.findall(r"{(\w+)}", route.path)
    in_path = {name: {"type": "string", "pattern": PATH_PATTERNS[name]} for name in names}
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": words[0].replace("\n", " "),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": one} for name, one in in_path.items()),
            *_query_parameters(route, made, components),
            *(
                {"name": name, "in": "header", "required": False, "description": words, "schema": text}
                for name, words in route.headers.items()
            ),
        ],
        "responses": _responses(route, made),
        "security": _SCHEMES.get(route.scope, [{"token": []}, {"cookie": []}]),
        "x-standfast-scope": str(route.scope),
    }
    if len(words) > 1:
        operation["description"] = "\n\n".join(words[1:])
    if route.operator_only:
        operation["x-standfast-operator-only"] = True
    if route.body is not None:
        media, schema = JSON, made.get(_key(route.body), {})
        if route.body is bytes:
            media, schema = route.form or BINARY, _FORM if route.form else _BYTES
        operation["requestBody"] = {"required": True, "content": {media: {"schema": schema}}}
    return operation


_BYTES: Final = {"type": "string", "format": "binary", "minLength": 1}
_FORM: Final = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_STREAMED_EVENT: Final = {
    "type": "object",
    "description": "One event of the stream; `data` is JSON, or the protocol's closing mark.",
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""Before OpenAPI 3.2, the schema of an event stream describes each of its events."""


def _responses(route: Route, made: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.answer is bytes:
        content[BINARY] = {}
    elif route.answer is str:
        content["text/html" if route.path == "/signin" else "text/plain"] = {"schema": {"type": "string"}}
    elif route.answer is not None:
        content[JSON] = {"schema": made[_key(route.answer)]}
    if route.streams:
        content[EVENT_STREAM] = {"schema": _STREAMED_EVENT}
    good: dict[str, Any] = {"description": "The request succeeded."}
    if content:
        good["content"] = content
    problem = {
        "description": "The request failed; `code` says why.",
        "content": {PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    empty = {"description": "There is nothing to show."}
    more = {str(status): empty if status == 204 else good for status in route.other_statuses}
    return {str(route.status): good, **more, "default": problem}


def _query_parameters(route: Route, made: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = made[_key(route.query)]
    schema = components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _not_null(one)}
        for name, one in schema["properties"].items()
    ]


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema without null, because a parameter is omitted instead."""
    kept = {key: value for key, value in schema.items() if key != "default" or value is not None}
    if "anyOf" in kept:
        choices = [one for one in kept.pop("anyOf") if one != {"type": "null"}]
        return {**kept, **choices[0]} if len(choices) == 1 else {**kept, "anyOf": choices}
    if None in kept.get("enum", ()):
        kept["enum"] = [one for one in kept["enum"] if one is not None]
    return kept


def _key(kind: Any) -> str:
    return repr(kind)


def _tidy(schema: Any) -> Any:
    """Return the document with its descriptions dedented."""
    if isinstance(schema, list):
        return [_tidy(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(text := schema.get("description"), str):
        tidy["description"] = cleandoc(text)
    return tidy
