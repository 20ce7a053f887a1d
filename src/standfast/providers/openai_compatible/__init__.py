"""Chat Completions, as many servers implement it: `openai-compatible:MODEL@BASE_URL`."""

from standfast.providers.openai_compatible.model import OpenAICompatibleModel, split_name

__all__ = ["OpenAICompatibleModel", "split_name"]
