"""OpenAI's models, over the Responses API."""

from __future__ import annotations

from standfast.providers.openai.model import OpenAIModel

__all__ = ["OpenAIModel"]
