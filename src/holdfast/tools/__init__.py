"""Capabilities: how they are declared, registered and called."""

from holdfast.tools.decorator import Tool, as_registered, collect_tools, tool
from holdfast.tools.dispatch import Dispatcher
from holdfast.tools.registry import RegisteredTool, ToolRegistry

__all__ = ["Dispatcher", "RegisteredTool", "Tool", "ToolRegistry", "as_registered", "collect_tools", "tool"]
