"""What all built-in tools share: their owner, and the refusal of what was not granted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from standfast.errors import CallerError, Code
from standfast.tools.decorator import Tool
from standfast.tools.registered_tool import RegisteredTool


class AccessDenied(CallerError):
    """A path or an address that was not granted. Nothing was opened and nothing was sent."""

    code = Code.PERMISSION_DENIED


def built_in(*made: Tool[Any, Any]) -> list[RegisteredTool]:
    return [replace(each.registered, owner="standfast built-in") for each in made]
