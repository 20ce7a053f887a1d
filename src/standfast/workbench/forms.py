"""Parsing of the form fields that htmx submits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from standfast.server.calls import Call
from standfast.server.problems import malformed


def read_form(call: Call) -> Mapping[str, list[str]]:
    """Return the submitted form fields, each with its values."""
    try:
        return parse_qs(call.body.decode(), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise malformed(f"form: {error}") from None


def field(form: Mapping[str, list[str]], name: str) -> str:
    """Return the first value of a field, stripped, or "" if it is missing."""
    return form.get(name, [""])[0].strip()


def json_object(text: str, what: str) -> dict[str, Any]:
    """Parse *text*, typed by a person, as a JSON object; *what* names it in errors."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{what} are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise malformed(f'{what} must be a JSON object, such as {{"name": 1}}')
    return value
