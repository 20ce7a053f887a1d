"""`standfast models`: which providers are set up, and what a model can do.

Rule: a key is never shown, only the name of the variable that holds it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.host import wrong_grants_are_wrong_usage
from standfast.cli.options import Invocation, answers
from standfast.cli.output import Answer, console
from standfast.cli.report import facts_table, plain_table

if TYPE_CHECKING:
    from standfast.providers.catalog import Catalog, ModelInfo
    from standfast.providers.vendors import VendorStatus

_ABILITIES = {
    "tools": "tools",
    "images": "images",
    "files": "files",
    "reasoning": "reasoning",
    "structured_output": "structured output",
}


@click.command(
    "models",
    epilog="""\b
Examples:
  standfast models
  standfast models anthropic
  standfast models anthropic:claude-sonnet-4-5 --json
  standfast models ollama:my-model --catalog models.json
""",
)
@click.argument("name", required=False)
@click.option(
    "--catalog",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="What else is known of models, as JSON.  [default: STANDFAST_MODELS]",
)
@answers
def command(_: Invocation, *, name: str | None, catalog: Path | None) -> Answer:
    """Say which providers are set up, and what the models can do that are known.

    With the NAME of a provider: how it is set up, and its models. With that of a model: what it can do. What
    is known comes from data that a file of yours can add to and change.
    """
    from standfast.providers.vendors import VENDORS, status_of

    known = _catalog_of(catalog)
    if name is not None and name not in VENDORS:
        return _one_model(name, known)
    providers = [status_of(vendor) for vendor in VENDORS.values() if name in (None, vendor.name)]
    models = [entry for entry in known.entries.values() if name is None or _is_of(entry, name)]
    document = {"as_of": known.as_of, "providers": providers, "models": models}
    return Answer(document, lambda: _show_all(providers, models, known.as_of))


def _catalog_of(given: Path | None) -> Catalog:
    from standfast.providers.catalog import load_catalog

    if given is None:
        return load_catalog()
    with wrong_grants_are_wrong_usage():
        return load_catalog(given)


def _is_of(entry: ModelInfo, provider: str) -> bool:
    return entry.name.startswith(f"{provider}:")


def _one_model(name: str, known: Catalog) -> Answer:
    from standfast.errors import InvalidArgument
    from standfast.providers.vendors import VENDORS, status_of

    found = known.describe(name)
    if found is None:
        raise InvalidArgument(f"nothing is known of the model {name[:80]!r}", hint=_hint(name, known))
    vendor = VENDORS.get(name.partition(":")[0])
    provider = None if vendor is None else status_of(vendor)
    document = {"model": name, "provider": provider, "info": found, "as_of": known.as_of}
    return Answer(document, lambda: _show_one(name, provider, found))


def _hint(name: str, known: Catalog) -> str:
    from standfast.providers.catalog import providers_of

    close = [f"{one}:{name}" for one in providers_of(name)] or known.close_to(name)
    more = "it may work all the same; `standfast models` lists what is known, --catalog FILE adds to it"
    return f"did you mean {' or '.join(close)}? {more}" if close else more


def _show_all(providers: list[VendorStatus], models: list[ModelInfo], as_of: str) -> None:
    shown = console()
    shown.print(_providers_table(providers))
    if models:
        shown.print(f"\nWhat is known of models (as of {as_of}; * is anything):\n")
        shown.print(_models_table(models))


def _providers_table(providers: list[VendorStatus]) -> Any:
    from rich.text import Text

    table = plain_table("provider", "key", "base URL")
    table.columns[0].no_wrap = True
    for one in providers:
        ready = Text(_key(one), "green" if one.configured else "dim")
        table.add_row(one.name, ready, _base_url(one))
    return table


def _key(one: VendorStatus) -> str:
    if one.key is not None:
        return f"from {one.key}"
    variables = " or ".join(one.key_variables)
    if one.configured:
        return f"none needed, or {variables}" if variables else "none needed"
    return f"not set: {variables}"


def _base_url(one: VendorStatus) -> str:
    if not one.base_url:
        return "part of the name: MODEL@BASE_URL"
    return f"{one.base_url} (from {one.base_url_from})" if one.base_url_from else one.base_url


def _models_table(models: list[ModelInfo]) -> Any:
    table = plain_table("model", "window", "output", "can")
    table.columns[0].no_wrap = True
    for column in table.columns[1:3]:
        column.justify = "right"
    for entry in models:
        table.add_row(entry.name, _count(entry.window), _count(entry.max_output), _abilities(entry))
    return table


def _abilities(entry: ModelInfo) -> str:
    return ", ".join(words for field, words in _ABILITIES.items() if getattr(entry, field))


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _show_one(name: str, provider: VendorStatus | None, info: ModelInfo) -> None:
    facts = (
        ("model", name),
        ("known as", info.name),
        *((("key", _key(provider)), ("base URL", _base_url(provider))) if provider is not None else ()),
        ("window", _count(info.window)),
        ("output", _count(info.max_output)),
        *((words, _yes_or_no(getattr(info, field))) for field, words in _ABILITIES.items()),
    )
    console().print(facts_table(facts))


def _yes_or_no(value: bool | None) -> str:
    return {None: "not known", True: "yes", False: "no"}[value]
