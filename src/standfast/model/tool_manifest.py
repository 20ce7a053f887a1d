"""What a tool is in one line: enough to list and search it, without its schemas."""

from __future__ import annotations

from typing import Annotated

import msgspec

from standfast.errors import InvalidToolName
from standfast.model.capability import SideEffect, check_capability_name
from standfast.model.tool_state import ToolAvailability


class ToolManifest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool as its source advertises it.

    The id tells one tool from another across names, sources and restarts; the name is what is called.
    """

    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})]
    description: str = ""
    side_effect: SideEffect
    availability: ToolAvailability = ToolAvailability.SHOWCASED

    def __post_init__(self) -> None:
        check_capability_name(self.name)
        if not self.id:
            raise InvalidToolName(f"tool {self.name!r} has no id", hint="give it one that stays the same")
