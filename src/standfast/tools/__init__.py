"""Capabilities: their declaration, registration and execution."""

from standfast.tools.decorator import Tool, as_registered, collect_tools, tool
from standfast.tools.dispatch import Dispatcher
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import StaticTools, ToolRegistry

__all__ = [
    "Dispatcher",
    "RegisteredTool",
    "StaticTools",
    "Tool",
    "ToolRegistry",
    "as_registered",
    "collect_tools",
    "tool",
]
