"""The settings of a model call that all providers share: `Agent(settings={...})`.

An unknown name is an error that lists the known ones. Settings of one provider go into `extra_headers` and
`extra_body`, whose objects are merged with ours and whose lists are appended to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json

Effort = Literal["none", "minimal", "low", "medium", "high"]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a model call. None leaves a setting to the provider.

    reasoning: how much the model thinks first, as a named effort or a number of tokens. tool_choice: `auto`,
    `none`, `required`, or the name of a tool. cache: let the provider cache repeated input.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    max_tokens: Count | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    reasoning: Effort | Count | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    cache: bool = True
    extra_body: dict[str, Json] = msgspec.field(default_factory=dict)
    extra_headers: dict[str, str] = msgspec.field(default_factory=dict)


_DEFAULTS = ModelSettings()


def read_settings(given: Mapping[str, Any]) -> ModelSettings:
    """Convert and validate the settings of a request."""
    if not given:
        return _DEFAULTS
    try:
        return msgspec.convert(given, ModelSettings)
    except msgspec.ValidationError as error:
        names = ", ".join(ModelSettings.__struct_fields__)
        raise InvalidArgument(f"the model's settings: {error}", hint=f"the settings are {names}") from None
