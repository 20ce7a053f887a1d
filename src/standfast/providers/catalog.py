"""The capabilities of known models, as data that a user can override.

`catalog.json` has entries whose names are patterns: `anthropic:claude-sonnet-4*`, or without a provider
`llama-3.3*` for that model on any host. The matching entry with the longest name describes the model. A
user's file in the same format, from `STANDFAST_MODELS` or passed explicitly, is merged over it. A file is
validated when it is read, and errors name it. Rule: the catalog only informs; nothing is rejected because of
it.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from standfast.errors import InvalidArgument

VARIABLE: Final = "STANDFAST_MODELS"
_OWN: Final = Path(__file__).with_name("catalog.json")
_FIRST_HAND: Final = ("openai", "anthropic", "google")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The capabilities of a model. None means unknown.

    name: the pattern of the entry. window: tokens of input and output together. max_output: tokens of one
    reply. tools: calls tools. images, files: accepts them. reasoning: thinks before it answers.
    structured_output: can be constrained to a JSON schema.
    """

    name: str
    window: int | None = None
    max_output: int | None = None
    tools: bool | None = None
    images: bool | None = None
    files: bool | None = None
    reasoning: bool | None = None
    structured_output: bool | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a catalog file."""

    models: tuple[ModelInfo, ...]
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Entries by name, and the month of their data."""

    entries: dict[str, ModelInfo]
    as_of: str = ""

    def describe(self, model_id: str) -> ModelInfo | None:
        """Return the entry of a model, None if there is none."""
        for name in _names_of(model_id):
            fits = [entry for pattern, entry in self.entries.items() if fnmatchcase(name, pattern.lower())]
            if fits:
                return max(fits, key=lambda entry: len(entry.name))
        return None

    def close_to(self, model_id: str) -> list[str]:
        """Return the names of entries that are similar to *model_id*."""
        return difflib.get_close_matches(model_id, self.entries, n=3, cutoff=0.5)

    def over(self, other: Catalog) -> Catalog:
        """Merge these entries over those of *other*, field by field."""
        merged = dict(other.entries)
        for name, entry in self.entries.items():
            if (under := merged.get(name)) is not None:
                known = {
                    key: value for key, value in msgspec.structs.asdict(entry).items() if value is not None
                }
                entry = msgspec.structs.replace(under, **known)
            merged[name] = entry
        return Catalog(merged, other.as_of)


def load_catalog(path: str | os.PathLike[str] | None = None) -> Catalog:
    """Return the catalog with a user's file merged over it: *path*, or else `STANDFAST_MODELS`."""
    given = path or os.environ.get(VARIABLE)
    return _read(Path(given).expanduser()).over(_own()) if given else _own()


def describe(model_id: str, *, catalog: str | os.PathLike[str] | None = None) -> ModelInfo | None:
    """Return the entry of a model: `describe("anthropic:claude-sonnet-4-5").window`."""
    return load_catalog(catalog).describe(model_id)


def providers_of(model: str) -> list[str]:
    """Return the vendors that make a model of this name, according to the shipped catalog."""
    found = [(one, _own().describe(f"{one}:{model}")) for one in _FIRST_HAND]
    return [one for one, entry in found if entry is not None and entry.name.startswith(f"{one}:")]


@functools.cache
def _own() -> Catalog:
    return _read(_OWN)


def _read(path: Path) -> Catalog:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise InvalidArgument(f"catalog {path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"catalog {path}: {error}",
            hint='it is {"models": [{"name": "provider:model", "window": 128000}]}',
        ) from None
    return Catalog({entry.name: entry for entry in found.models}, found.as_of)


def _names_of(model_id: str) -> Iterator[str]:
    """Yield the names that a model may be listed under: its own, then the name without a router prefix."""
    whole = model_id.lower().partition("@http")[0]
    yield whole
    provider, colon, model = whole.partition(":")
    if not colon:
        return
    maker, slash, bare = model.rpartition("/")
    if slash:
        maker = maker.rpartition("/")[2]
        yield f"{maker}:{bare.replace('.', '-') if maker == 'anthropic' else bare}"
    if provider not in _FIRST_HAND:
        yield bare
