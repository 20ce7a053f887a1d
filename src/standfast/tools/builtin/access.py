"""The owner of all built-in tools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from standfast.tools.decorator import Tool
from standfast.tools.registered_tool import RegisteredTool


def built_in(*made: Tool[Any, Any]) -> list[RegisteredTool]:
    return [replace(each.registered, owner="standfast built-in") for each in made]
