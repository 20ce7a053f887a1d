"""Capabilities: their declaration, registration and execution. Each name is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.exports import lazy_exports

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "standfast.tools.decorator": "Tool as_registered collect_tools tool",
        "standfast.tools.dispatch": "Dispatcher",
        "standfast.tools.registered_tool": "RegisteredTool",
        "standfast.tools.registry": "StaticTools ToolRegistry",
    },
)

if TYPE_CHECKING:
    from standfast.tools.decorator import Tool as Tool
    from standfast.tools.decorator import as_registered as as_registered
    from standfast.tools.decorator import collect_tools as collect_tools
    from standfast.tools.decorator import tool as tool
    from standfast.tools.dispatch import Dispatcher as Dispatcher
    from standfast.tools.registered_tool import RegisteredTool as RegisteredTool
    from standfast.tools.registry import StaticTools as StaticTools
    from standfast.tools.registry import ToolRegistry as ToolRegistry
