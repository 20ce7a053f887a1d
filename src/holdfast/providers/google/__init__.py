"""Google's Gemini models."""

from holdfast.providers.google.model import GoogleModel

__all__ = ["GoogleModel"]
