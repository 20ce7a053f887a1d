"""Google's Gemini models."""

from standfast.providers.google.model import GoogleModel

__all__ = ["GoogleModel"]
