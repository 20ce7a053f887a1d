"""Redaction of secrets in traces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trace_stand_ins import agent_of, asks

from standfast import Runtime, tool
from standfast.errors import InvalidArgument
from standfast.model.trace_record import TraceRecord
from standfast.trace import JsonlTrace
from standfast.trace.redaction import Redaction

KEY = "sk-" + "a1B2" * 8


def cleaned(body: Any, **options: Any) -> Any:
    record = Redaction(**options).clean(TraceRecord(at_ms=1, name="n", kind="tool_call", body=body))
    assert record is not None
    return record.body


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        "AKIA" + "A1B2" * 4,
        "ghp_" + "a1B2" * 8,
        "github_pat_" + "a1B2" * 8,
        "xoxb-" + "a1B2" * 4,
        "Bearer abc123def456",
        "BEARER\nabc123def456",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_text_that_looks_like_a_key_is_replaced_everywhere(secret: str) -> None:
    """Ours: the patterns of the plugin `redact` apply in values, in lists and in keys."""
    assert cleaned({"a": [f"see {secret} there"], secret: 1}) == {
        "a": ["see [redacted] there"],
        "[redacted]": 1,
    }


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "token", "accessToken", "Authorization", "api_key", "apiKey", "client-secret",
     "cookie", "Set-Cookie", "credentials", "AWS_SECRET_ACCESS_KEY", "private_key"],
)  # fmt: skip
def test_a_value_whose_key_names_a_secret_is_replaced(name: str) -> None:
    """Ours: the content of the value does not matter."""
    assert cleaned({"headers": {name: "plain words"}}) == {"headers": {name: "[redacted]"}}
    assert cleaned({name: {"deep": [1]}}) == {name: "[redacted]"}


def test_keys_that_only_resemble_the_name_of_a_secret_are_kept() -> None:
    """Ours: users read traces for token counts."""
    body = {"input_tokens": 5, "tokens": [1], "secretary": "Ann", "keys": 1, "token": None, "passwords": 2}
    assert cleaned(body) == body


def test_custom_secrets_are_replaced() -> None:
    """Ours: for instance values of environment variables, in their JSON encoding too."""
    assert cleaned({"a": 'it is hun"ter2!'}, secrets=['hun"ter2']) == {"a": "it is [redacted]!"}
    with pytest.raises(InvalidArgument, match="shorter"):
        Redaction(secrets=["abc"])
    assert cleaned({"a": "id 12345-x"}, patterns=[r"\d{5}-x"]) == {"a": "id [redacted]"}


def test_a_custom_function_is_applied_first_and_may_drop_records() -> None:
    """Ours: values that the function adds are redacted too."""

    def change(record: TraceRecord) -> TraceRecord | None:
        return None if record.name == "n" else msgspec.structs.replace(record, body={"note": KEY})

    redaction = Redaction(change)
    assert redaction.line(TraceRecord(at_ms=1, name="n")) is None
    kept = redaction.clean(TraceRecord(at_ms=1, name="m"))
    assert kept is not None
    assert kept.body == {"note": "[redacted]"}


@pytest.mark.parametrize("broken", [{"a": object()}, "fails"])
def test_a_record_that_cannot_be_redacted_is_written_without_its_body(broken: Any) -> None:
    """Ours: when in doubt, nothing is written."""

    def change(record: TraceRecord) -> TraceRecord:
        if broken == "fails":
            raise ValueError(KEY)
        return record

    given = TraceRecord(at_ms=1, name=KEY, kind="hook", span_id="ab" * 8, body=broken)
    line = Redaction(change).line(given)
    assert line is not None
    assert KEY.encode() not in line
    assert msgspec.json.decode(line)["body"]["left_out"].startswith("the record could not be redacted: ")
    assert msgspec.json.decode(line)["span_id"] == "ab" * 8


def test_a_secret_that_passes_through_a_whole_turn_never_reaches_the_file(tmp_path: Path) -> None:
    """Ours: records are redacted when they are written, including contents."""

    @tool
    async def fetch(url: str, password: str) -> dict[str, str]:
        return {"header": f"Bearer {KEY}", "token": "hunter2-and-more"}

    async def main() -> None:
        agent = agent_of(
            asks(("fetch", {"url": f"http://x/?k={KEY}", "password": "hunter2-and-more"})),
            "end",
            tools=[fetch],
        )
        sink = JsonlTrace(tmp_path / "t.jsonl", contents=True)
        async with Runtime(trace=sink) as runtime:
            await (await runtime.session("s", agent=agent)).turn(f"use {KEY}")
        sink.close()

    asyncio.run(main())
    text = (tmp_path / "t.jsonl").read_text("utf-8")
    assert KEY not in text
    assert "hunter2" not in text
    assert text.count("[redacted]") >= 5
    assert '"result":{"header":"[redacted]","token":"[redacted]"}' in text
