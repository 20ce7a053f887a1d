"""Anthropic's models, over the Messages API."""

from __future__ import annotations

from holdfast.providers.anthropic.model import AnthropicModel

__all__ = ["AnthropicModel"]
