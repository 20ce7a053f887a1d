"""Chat Completions, as everybody serves it: `openai-compatible:MODEL@BASE_URL`."""

from standfast.providers.openai_compatible.model import OpenAICompatibleModel
from standfast.providers.openai_compatible.name import split_name

__all__ = ["OpenAICompatibleModel", "split_name"]
