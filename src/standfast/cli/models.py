"""`standfast models`: the configured providers (never a key, only its variable), and model capabilities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.host import wrong_grants_are_wrong_usage
from standfast.cli.options import Invocation, answers
from standfast.cli.output import CommandOutput, console, styled
from standfast.cli.report import facts_table, plain_table

if TYPE_CHECKING:
    from standfast.providers.catalog import Catalog
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
    help="A JSON file that describes more models.  [default: STANDFAST_MODELS]",
)
@answers
def command(_: Invocation, *, name: str | None, catalog: Path | None) -> CommandOutput:
    """List the configured providers, and the known models with their capabilities.

    With the NAME of a provider, show its configuration and its models; with the NAME of a model, show its
    capabilities. Standfast ships with a catalog of models; --catalog adds and replaces entries.
    """
    from standfast.providers.catalog import load_catalog
    from standfast.providers.vendors import VENDORS, status_of

    if catalog is None:
        known = load_catalog()
    else:
        with wrong_grants_are_wrong_usage():
            known = load_catalog(catalog)
    if name is not None and name not in VENDORS:
        return _describe(name, known)
    providers = [status_of(vendor) for vendor in VENDORS.values() if name in (None, vendor.name)]
    models = [one for one in known.entries.values() if name is None or one.name.startswith(f"{name}:")]

    def show() -> None:
        keys = [styled(_key(one), "green" if one.configured else "dim") for one in providers]
        rows = [(one.name, key, _base_url(one)) for one, key in zip(providers, keys, strict=True)]
        console().print(plain_table("provider", "key", "base URL", rows=rows, whole=(0,)))
        if models:
            console().print(f"\nKnown models (as of {known.as_of}; * matches any text):\n")
            table = plain_table("model", "window", "output", "can", whole=(0,))
            table.columns[1].justify = table.columns[2].justify = "right"
            for one in models:
                can = ", ".join(words for field, words in _ABILITIES.items() if getattr(one, field))
                table.add_row(one.name, _count(one.window), _count(one.max_output), can)
            console().print(table)

    return CommandOutput({"as_of": known.as_of, "providers": providers, "models": models}, show)


def _describe(name: str, known: Catalog) -> CommandOutput:
    """Output the catalog's entry of one model."""
    from standfast.errors import InvalidArgument
    from standfast.providers.catalog import providers_of
    from standfast.providers.vendors import VENDORS, status_of

    info = known.describe(name)
    if info is None:
        close = [f"{one}:{name}" for one in providers_of(name)] or known.close_to(name)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        raise InvalidArgument(
            f"the model {name[:80]!r} is not in the catalog",
            hint=f"{meant}it may still work; list models with `standfast models`, add them with --catalog",
        )
    vendor = VENDORS.get(name.partition(":")[0])
    provider = None if vendor is None else status_of(vendor)
    answers = {None: "not known", True: "yes", False: "no"}
    facts = (
        ("model", name),
        ("known as", info.name),
        *((("key", _key(provider)), ("base URL", _base_url(provider))) if provider is not None else ()),
        ("window", _count(info.window)),
        ("output", _count(info.max_output)),
        *((words, answers[getattr(info, field)]) for field, words in _ABILITIES.items()),
    )
    document = {"model": name, "provider": provider, "info": info, "as_of": known.as_of}
    return CommandOutput(document, lambda: console().print(facts_table(facts)))


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


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"
