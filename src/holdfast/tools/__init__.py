"""Capabilities: how they are declared, registered and called."""

from holdfast.tools.decorator import Tool, as_registered, collect_tools, tool
from holdfast.tools.dispatch import Dispatcher
from holdfast.tools.registered_tool import RegisteredTool
from holdfast.tools.registry import ToolRegistry

__all__ = ["Dispatcher", "RegisteredTool", "Tool", "ToolRegistry", "as_registered", "collect_tools", "tool"]
