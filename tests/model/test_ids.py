"""Session ids are validated wherever they come from."""

from __future__ import annotations

import msgspec
import pytest

from standfast import session_id_from
from standfast.errors import InvalidArgument, InvalidSessionId
from standfast.model.approval import Approval
from standfast.model.run import RunRequest
from standfast.model.session import SessionHead, SessionId, SessionMeta

GOOD = ["a", "agent-123_ok", "Z" * 64, "_", "-", "0", "default"]
BAD = ["", "bad/slash", "a\n", "\na", "a b", "x" * 65, "é", "١٢", "a\0", "../x", "a.b", "ａ", " a", "a\u200b"]


@pytest.mark.parametrize("value", GOOD)
def test_a_session_id_of_ascii_letters_digits_dashes_and_underscores_is_accepted(value: str) -> None:
    """Seed: SessionId::new accepts ^[a-zA-Z0-9_-]{1,64}$."""
    assert SessionId(value) == value


@pytest.mark.parametrize("value", BAD)
def test_any_other_session_id_is_refused_on_construction(value: str) -> None:
    """Seed: everything else is INVALID_SESSION_ID. Ours: a trailing newline and Unicode digits too."""
    with pytest.raises(InvalidSessionId) as caught:
        SessionId(value)
    assert caught.value.error_object().code == "INVALID_SESSION_ID"


@pytest.mark.parametrize("value", [None, 7, b"a", ["a"]])
def test_a_session_id_that_is_not_text_is_refused(value: object) -> None:
    """Ours: ids are strings."""
    with pytest.raises(InvalidSessionId):
        SessionId(value)  # type: ignore[arg-type]


def test_the_default_session_is_called_default() -> None:
    """Seed: SessionId::default."""
    assert SessionId() == "default" == RunRequest().session_id == SessionMeta().id


@pytest.mark.parametrize("value", BAD)
def test_decoding_checks_session_ids_too(value: str) -> None:
    """Ours: SPEC §3 requires the check on every decode, where the seed has none."""
    approval = {
        "approval_id": "apr_1", "state": "pending", "session_id": value, "capability": "f", "args": [],
        "kwargs": {}, "requested_at": 0, "expires_at": 1, "binding": "b", "run_id": "r", "call_id": 0,
    }  # fmt: skip
    head = {"session_id": value, "created_at": 0, "updated_at": 0}
    for data, kind in (
        ({"session_id": value, "code": ""}, RunRequest),
        ({"id": value}, SessionMeta),
        (approval, Approval),
        (head, SessionHead),
    ):
        for codec in (msgspec.json, msgspec.msgpack):
            with pytest.raises(InvalidSessionId):
                codec.decode(codec.encode(data), type=kind)


def test_constructing_a_request_checks_its_session_id() -> None:
    """Seed: RunRequest::new returns the id's error."""
    with pytest.raises(InvalidSessionId):
        RunRequest(session_id="a/b", code="1")


@pytest.mark.parametrize(
    "text", [*BAD, "user@example.com/42", "x" * 1000, "\ud800", "-" * 65, "ok-" + "0" * 32, "中文"]
)
def test_any_text_yields_a_valid_id_and_always_the_same_one(text: str) -> None:
    """Ours: products have their own ids: addresses, paths, ticket numbers."""
    made = session_id_from(text)
    assert SessionId(made) == made == session_id_from(text)
    assert made != text


@pytest.mark.parametrize("text", GOOD)
def test_a_valid_id_is_returned_unchanged(text: str) -> None:
    """Ours: a program that already has valid ids keeps its sessions."""
    assert session_id_from(text) == text


def test_similar_texts_yield_different_ids() -> None:
    """Ours: one user must not end up in another user's session."""
    texts = ["a@b", "a/b", "a b", "a.b", "a-b", "a--b", "A@b", "", " ", "x" * 100, "x" * 101, "é", "e\u0301"]
    made = [session_id_from(text) for text in texts]
    assert len(set(made)) == len(texts)
    assert not set(made) & {session_id_from(one) for one in made if one not in texts}


def test_the_readable_part_of_the_text_is_kept() -> None:
    """Ours: a person who reads a list of sessions recognizes them."""
    assert session_id_from("user@example.com/42").startswith("user-example-com-42-")
    with pytest.raises(InvalidArgument, match="not from int"):
        session_id_from(42)  # type: ignore[arg-type]


def test_the_error_for_an_invalid_id_names_the_helper() -> None:
    """Ours: a hint is an instruction."""
    with pytest.raises(InvalidSessionId, match=r"session_id_from\(text\)"):
        SessionId("user@example.com")
