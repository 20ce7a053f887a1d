"""Keys are used but never shown."""

from __future__ import annotations

import copy
import pickle

import pytest
from plain_vendor import KEY, plain_model

from standfast.errors import ProviderUnconfigured
from standfast.providers.http.endpoint import Endpoint, Secret
from standfast.providers.http.event_stream import StreamClient


def test_no_object_that_holds_a_key_shows_it() -> None:
    """Seed: secrets never appear in a `repr`."""
    secret = Secret(KEY)
    address = Endpoint("http://localhost", secret, lambda key: {"authorization": key})

    for holder in (secret, address, StreamClient(address), plain_model("http://localhost")):
        assert KEY not in f"{holder!r} {holder!s} {holder}"


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_secret_can_be_neither_pickled_nor_copied(take: object) -> None:
    """Ours: a secret that can be pickled may end up in a file."""
    with pytest.raises(TypeError, match="not pickled"):
        take(Secret(KEY))  # type: ignore[operator]


def test_a_key_is_redacted_in_every_form() -> None:
    """Seed: the error has the vendor's message without the key."""
    secret = Secret("sk/live+abc=def&ghi")
    said = "sk/live+abc=def&ghi and sk%2Flive%2Babc%3Ddef%26ghi"

    assert secret.scrub(said) == "[key] and [key]"


def test_a_placeholder_key_for_a_local_server_is_not_redacted() -> None:
    """Ours: with `ollama` as the key, messages that contain the word must stay readable."""
    assert Secret("ollama").scrub("no such model; run ollama pull") == "no such model; run ollama pull"


def test_a_key_read_from_a_file_may_end_with_a_newline() -> None:
    """Ours: a newline is not valid in a header."""
    assert Secret(f" {KEY}\n").reveal() == KEY


@pytest.mark.parametrize(
    "key", ["two words", "line\nend-of-it", "schlüssel-aus-umlauten", "nul\x00in-the-key"]
)
def test_a_key_that_is_not_valid_in_a_header_is_refused_and_not_repeated(key: str) -> None:
    """Ours: the HTTP library would print the illegal header."""
    with pytest.raises(ProviderUnconfigured) as caught:
        Secret(key)

    assert key not in str(caught.value)


def test_a_missing_key_is_falsy_and_redacts_nothing() -> None:
    """Ours: local servers need no key."""
    assert not Secret(None)
    assert not Secret("")
    assert Secret(None).scrub("anything") == "anything"
