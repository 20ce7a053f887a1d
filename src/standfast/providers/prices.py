"""The cost of model calls.

A price is looked up in the user's table, under the name of the model that served the reply or of the
requested one, and then in the data of `genai-prices` (the extra `prices`). A scripted model is free. For a
fallback (`fallback:A|B`), the model that served the reply counts. Lookups are cached.

Rules
-----
1. A cost is a whole number of 1e-9 dollars, rounded up once per reply, so sums are exact.
2. An unknown cost is None, never zero.
3. Nothing is fetched. The data is imported only when a model may be in it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument, NotConfigured
from standfast.model.limits import NANO, Usage

PriceTable = Mapping[str, "Mapping[str, float | str | Decimal] | Price"]
"""Prices by model name, with the provider (`openai:gpt-5`) or without."""

_Pricer = Callable[[Usage], int | None]

_CATALOGUED: Final = frozenset((
    "anthropic", "aws", "azure", "cerebras", "cohere", "deepseek", "fireworks", "google", "groq", "mistral",
    "moonshotai", "novita", "openai", "openrouter", "perplexity", "together", "x-ai", "zai",
))  # fmt: skip
"""The providers that `genai-prices` knows under our names."""

_SEVERAL: Final = "fallback:"
_BY_URL: Final = "openai-compatible"
_FREE: Final = "scripted"
_REMEMBERED: Final = 1_000


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens. Cached input costs the same as other input unless given."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None

    def of(self, usage: Usage) -> int:
        """Return the cost of *usage*."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        per_million = (
            self.input * usage.input
            + read * usage.cache_read
            + write * usage.cache_write
            + self.output * usage.output
        )
        return _nano(per_million / 1_000_000)


class Prices:
    """The prices of models. *given* is a table, or the path of a JSON file with one."""

    def __init__(self, given: PriceTable | str | os.PathLike[str] | None = None) -> None:
        self._given = _read(given)
        self._pricers: dict[tuple[str, str], _Pricer | None] = {}
        self._calculate: Callable[..., Any] | None = None
        self._loaded = self._asked_to_load = False
        self._needs_nothing: set[str] = set()

    def cost(self, model_id: str, served_model: str, usage: Usage) -> int | None:
        """Return the cost of a reply in 1e-9 dollars, None if it is unknown."""
        key = (model_id, served_model)
        if key not in self._pricers:
            if len(self._pricers) >= _REMEMBERED:
                self._pricers.clear()
            self._pricers[key] = self._pricer(*key)
        pricer = self._pricers[key]
        return None if pricer is None else pricer(usage)

    def knows(self, model_id: str) -> bool:
        """Return whether this model, or each member of a fallback, has a price. May load the data."""
        return all(self.cost(member, "", Usage()) is not None for member in _members(model_id))

    def must_load(self, model_id: str) -> bool:
        """Return whether to call `load` before the first call of this model; True at most once."""
        if self._asked_to_load or model_id in self._needs_nothing:
            return False
        if any(_is_catalogued(member.partition(":")[0]) for member in _members(model_id)):
            self._asked_to_load = True
        else:
            self._needs_nothing.add(model_id)
        return self._asked_to_load

    def load(self) -> None:
        """Import the data of `genai-prices`, if it is installed. Takes about 0.2 s."""
        if self._loaded:
            return
        try:
            library = importlib.import_module("genai_prices")
            importlib.import_module("genai_prices.data")
        except ImportError:
            pass
        else:
            self._calculate = library.calc_price
        self._loaded = True

    def _pricer(self, model_id: str, served_model: str) -> _Pricer | None:
        """Return the function that prices a model, None if its price is unknown."""
        likely = _members(model_id)
        if len(likely) > 1 and served_model:  # those of the reply's provider, closest name first
            likely = [one for one in likely if one.partition(":")[0] == served_model.partition(":")[0]]
            likely.sort(key=lambda one: len(one) if served_model.startswith(one) else 0, reverse=True)
        names = [name for member in likely for name in _names(member, served_model)]
        for name in names:
            for key in (f"{name.provider}:{name.model}", name.model):
                if (price := self._given.get(key)) is not None:
                    return price.of
        for name in names:
            if name.provider == _FREE:
                return lambda usage: 0
            if _is_catalogued(name.provider) and (found := self._catalogued(name)) is not None:
                return found
        return None

    def _catalogued(self, name: _Name) -> _Pricer | None:
        """Return a function that prices a model with `genai-prices`, None if the library cannot."""
        self.load()
        calculate = self._calculate
        if calculate is None:
            return None
        library = importlib.import_module("genai_prices")
        where = {"provider_api_url": name.url} if name.provider == _BY_URL else {"provider_id": name.provider}

        def pricer(usage: Usage) -> int | None:
            tokens = library.Usage(  # its input includes cached tokens
                input_tokens=usage.input + usage.cache_read + usage.cache_write,
                cache_read_tokens=usage.cache_read,
                cache_write_tokens=usage.cache_write,
                output_tokens=usage.output,
            )
            try:
                return _nano(calculate(tokens, name.model, **where).total_price)
            except (LookupError, ValueError):
                return None

        return None if pricer(Usage(input=1, output=1)) is None else pricer


class _Name(msgspec.Struct, frozen=True, gc=False):
    """A name of a model. `url` is the server's, if that is part of the name."""

    provider: str
    model: str
    url: str = ""


def _names(model_id: str, served_model: str) -> Iterator[_Name]:
    """Yield the names under which a price may be found, best first."""
    provider, _, rest = model_id.partition(":")
    model, _, url = rest.partition("@") if provider == _BY_URL else (rest, "", "")
    prefix, _, bare = served_model.partition(":")
    if bare and prefix != provider and (prefix == _FREE or prefix in _CATALOGUED):
        yield _Name(prefix, bare)  # a user's own model that calls one of ours
    elif served_model:
        yield _Name(provider, served_model.removeprefix(f"{provider}:"), url)
    yield _Name(provider, model, url)
    if url:
        yield _Name(provider, rest, url)


def _members(model_id: str) -> list[str]:
    """Return the models that a name refers to."""
    if not model_id.startswith(_SEVERAL):
        return [model_id]
    return model_id.removeprefix(_SEVERAL).split("|")


def _is_catalogued(provider: str) -> bool:
    return provider in _CATALOGUED or provider == _BY_URL


def _nano(dollars: Decimal) -> int:
    return int((dollars * NANO).to_integral_value(ROUND_CEILING))


def _read(given: PriceTable | str | os.PathLike[str] | None) -> dict[str, Price]:
    if given is None:
        return {}
    table, source = given, "prices"
    if isinstance(given, (str, os.PathLike)):
        source = os.fspath(given)
        try:
            with open(os.path.expanduser(given), "rb") as file:
                table = msgspec.json.decode(file.read())
        except (OSError, msgspec.DecodeError) as error:
            raise NotConfigured(f"the prices in {source} cannot be read: {error}") from None
    try:
        found = msgspec.convert(table, dict[str, Price])
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{source}: {error}", hint=_SHAPE) from None
    for name, price in found.items():
        for bucket in price.__struct_fields__:
            value = getattr(price, bucket)
            if value is not None and not (value.is_finite() and value >= 0):
                raise InvalidArgument(f"{source}: {bucket} of {name} is {value}", hint=_SHAPE)
    return found


_SHAPE: Final = 'dollars for a million tokens: {"model": {"input": 2.5, "output": 10, "cache_read": 0.25}}'
