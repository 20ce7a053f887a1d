"""The cost of model calls: the user's prices, the catalogue's, and unknown ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import InvalidArgument, NotConfigured
from standfast.model.limits import Usage
from standfast.providers.prices import Price, Prices

USED = Usage(input=700, cache_read=200, cache_write=100, output=50, reasoning=20, calls=1)
TEN = {"input": 10, "output": 10}


def test_the_users_prices_are_applied_to_every_bucket() -> None:
    """Ours: prices are in dollars per million tokens; reasoning is part of the output."""
    prices = Prices({"own:m": {"input": 2, "cache_read": 0.5, "cache_write": 2.5, "output": 8}})
    assert prices.cost("own:m", "", USED) == 700 * 2000 + 200 * 500 + 100 * 2500 + 50 * 8000


def test_cached_input_costs_as_much_as_input_unless_it_has_its_own_price() -> None:
    """Ours: a price needs only two numbers."""
    assert Prices({"own:m": {"input": 1, "output": 2}}).cost("own:m", "", USED) == 1000 * 1000 + 50 * 2000


def test_a_fraction_of_the_smallest_unit_is_rounded_up() -> None:
    """Ours: a cost must not look smaller than it is."""
    prices = Prices({"m": {"input": "0.0000001", "output": 0}})
    assert prices.cost("own:m", "", Usage(input=1)) == 1


@pytest.mark.parametrize(
    ("key", "model_id", "served"),
    [
        ("own:m", "own:m", ""),
        ("m", "own:m", ""),
        ("m-2025", "own:m", "m-2025"),
        ("own:m-2025", "own:m", "m-2025"),
        ("m", "own:m", "m-2025"),
        ("llama", "openai-compatible:llama@http://127.0.0.1:8000/v1", ""),
        (
            "openai-compatible:llama@http://127.0.0.1:1/v1",
            "openai-compatible:llama@http://127.0.0.1:1/v1",
            "x",
        ),
        ("openai-compatible:llama", "openai-compatible:llama@http://127.0.0.1:1/v1", "llama"),
        ("gpt-4.1", "fallback:own:m|openai:gpt-4.1", "openai:gpt-4.1"),
        ("own:m", "fallback:openai:gpt-4.1|own:m", "own:m-2025"),
        ("own:m-mini", "fallback:own:m|own:m-mini", "own:m-mini-2025"),
        ("scripted:script", "scripted:script", "scripted:script"),
        ("gpt-4.1", "wrapped:one", "openai:gpt-4.1"),
        ("llama3:8b", "own:llama", "llama3:8b"),
    ],
)
def test_a_price_is_found_under_any_name_of_its_model(key: str, model_id: str, served: str) -> None:
    """Ours: with or without the provider, for the requested model or the one that served it."""
    assert Prices({key: TEN}).cost(model_id, served, Usage(input=1)) == 10_000


def test_the_price_of_the_model_that_served_the_reply_takes_precedence() -> None:
    """Ours: the model that answered is billed."""
    prices = Prices({"m": TEN, "m-large": {"input": 99, "output": 99}})
    assert prices.cost("own:m", "m-large", Usage(input=1)) == 99_000


def test_a_fallback_has_a_price_only_if_each_of_its_models_has_one() -> None:
    """Ours: fail closed, because it is unknown which of them will serve a reply."""
    prices = Prices({"own:m": TEN})
    assert prices.knows("fallback:own:m|scripted:demo")
    assert not prices.knows("fallback:own:m|own:other")
    assert prices.cost("fallback:own:m|else:other", "else:other-2025", USED) is None
    assert prices.must_load("fallback:own:m|openai:gpt-4.1")


def test_a_scripted_model_has_a_known_price_of_zero() -> None:
    """Ours: a cost limit must not get in the way of a test."""
    prices = Prices()
    assert prices.cost("scripted:script", "scripted:script", USED) == 0
    assert prices.knows("scripted:demo.json")
    assert not prices.must_load("scripted:demo.json")


def test_an_unknown_model_has_no_price_and_does_not_load_the_catalogue() -> None:
    """Ours: an unknown price is not zero; a custom provider is in no catalogue."""
    prices = Prices({"m": TEN})
    assert prices.cost("own:other", "", USED) is None
    assert not prices.knows("own:other")
    assert not prices.must_load("own:other")
    assert not prices._loaded


def test_loading_is_requested_only_once() -> None:
    """Ours: one thread loads the catalogue."""
    prices = Prices()
    assert [prices.must_load("openai:gpt-4.1"), prices.must_load("openai:gpt-4.1")] == [True, False]


def test_prices_can_be_read_from_a_file(tmp_path: Path) -> None:
    """Ours: the file has the same table as JSON."""
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"own:m": {"input": 0.15, "output": 0.6}}))
    for given in (path, str(path)):
        assert Prices(given).cost("own:m", "", Usage(input=1000, output=1)) == 150_600


@pytest.mark.parametrize("text", [None, "{", "\xff"])
def test_an_unreadable_file_is_an_error_that_names_its_path(tmp_path: Path, text: str | None) -> None:
    """Ours: the error is the operator's to fix."""
    path = tmp_path / "prices.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(NotConfigured, match=r"prices\.json"):
        Prices(path)


@pytest.mark.parametrize(
    "table",
    [
        {"m": {"input": 1}},
        {"m": {"input": 1, "output": -1}},
        {"m": {"input": "NaN", "output": 1}},
        {"m": {"input": 1, "output": 1, "cached": 1}},
        {"m": {"input": "cheap", "output": 1}},
        {"m": 3},
        ["m"],
    ],
)
def test_an_invalid_price_table_is_refused(table: Any) -> None:
    """Ours: a misspelt bucket would make a model look cheaper."""
    with pytest.raises(InvalidArgument, match="prices") as caught:
        Prices(table)
    assert "dollars for a million tokens" in (caught.value.hint or "")


def test_prices_may_be_given_as_typed_values() -> None:
    """Ours: a typed table is equivalent to a dict."""
    from decimal import Decimal

    table = {"m": Price(input=Decimal(3), output=Decimal(15))}
    assert Prices(table).cost("own:m", "", Usage(output=1)) == 15_000


def test_without_the_optional_dependency_there_are_no_catalogue_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ours: genai-prices is an optional dependency."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert Prices().cost("openai:gpt-4.1", "", USED) is None
    assert Prices({"gpt-4.1": TEN}).cost("openai:gpt-4.1", "", Usage(input=1)) == 10_000


# The catalogue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_id", "served", "nano"),
    [
        # 2 / 0.5 / 8 dollars per million; writing to the cache costs as much as input
        ("openai:gpt-4.1", "gpt-4.1-2025-04-14", 800 * 2_000 + 200 * 500 + 50 * 8_000),
        # 3 / 0.3 / 3.75 / 15
        ("anthropic:claude-sonnet-4-5", "", 700 * 3_000 + 200 * 300 + 100 * 3_750 + 50 * 15_000),
        ("anthropic:claude-sonnet-4-5", "an-unknown-name", 3_285_000),
        ("fallback:own:m|anthropic:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5", 3_285_000),
        ("openai-compatible:gpt-4.1@https://api.openai.com/v1", "", 2_100_000),
    ],
)
def test_the_catalogue_has_the_usual_models(model_id: str, served: str, nano: int) -> None:
    """Ours: the five buckets match the library's; cached input is not charged twice."""
    assert Prices().cost(model_id, served, USED) == nano


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_id",
    ["openai:no-such-model", "openai-compatible:llama@http://127.0.0.1:8000/v1", "google:no-such-model"],
)
def test_a_model_missing_from_the_catalogue_has_no_price(model_id: str) -> None:
    """Ours: no price is guessed from a similar name."""
    assert not Prices().knows(model_id)
    assert Prices().cost(model_id, "", USED) is None


@pytest.mark.slow
def test_the_catalogue_is_imported_only_for_models_that_may_be_in_it() -> None:
    """Ours: the import takes 0.2 s, and brings httpx2 and pydantic."""
    code = (
        "import sys\n"
        "from standfast import Agent, Runtime\n"
        "from standfast.providers.scripted import ScriptedModel\n"
        "assert Agent(ScriptedModel(['hi'])).run_sync('hello').usage.priced == 1\n"
        "print([name for name in ('genai_prices', 'httpx2', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
