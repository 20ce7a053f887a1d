"""What an agent promises to answer with: text, or a value of a type."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.machine.inputs import OutputCheck
from standfast.model.canonical import Json
from standfast.runtime.output_union import accepts_text, with_model_unions
from standfast.tools.schema import convert, runs_code, schema_of

_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


class OutputType:
    """Checks an answer against a type, and makes the typed value of it."""

    def __init__(self, type_: Any) -> None:
        try:
            self._type = with_model_unions(type_)
            self.schema = schema_of(self._type)
        except TypeError as error:
            raise InvalidArgument(
                f"output_type {type_!r} cannot be described as JSON: {error}",
                hint="use JSON types, dataclasses, TypedDict, Enum, msgspec structs, pydantic models, or a "
                "union of them",
            ) from None
        self._accepts_text = accepts_text(self._type)
        self.runs_code = runs_code(self._type)

    def check(self, text: str) -> OutputCheck:
        """The answer as JSON, or what is wrong with it in words for the model."""
        try:
            value = msgspec.json.decode(_json_part(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if self._accepts_text and text.strip():
                return OutputCheck(value=text)
            return OutputCheck(problem=f"it must be JSON and nothing else ({error})")
        try:
            convert(value, self._type)
        except Exception as error:  # a user's own type may raise anything
            if self._accepts_text and not isinstance(value, (dict, list)):
                return OutputCheck(value=text)  # a number or a word that is meant as text
            return OutputCheck(problem=str(error) or type(error).__name__)
        return OutputCheck(value=value)

    def load(self, value: Json) -> Any:
        """The typed value of a checked answer."""
        return convert(value, self._type)


def _json_part(text: str) -> str:
    """The answer without a code fence around it."""
    found = _FENCED.fullmatch(text.strip())
    return found.group(1) if found is not None else text
