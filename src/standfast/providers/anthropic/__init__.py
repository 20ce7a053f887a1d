"""Anthropic's models, over the Messages API."""

from __future__ import annotations

from standfast.providers.anthropic.model import AnthropicModel

__all__ = ["AnthropicModel"]
