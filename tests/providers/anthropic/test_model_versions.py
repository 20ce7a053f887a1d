"""Features that are derived from a model's name."""

from __future__ import annotations

import pytest

from standfast.providers.anthropic.request import (
    _version,
    default_max_tokens,
    takes_output_format,
    thinks_adaptively,
)


@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("claude-3-haiku-20240307", (3, 0)),
        ("claude-3-7-sonnet-20250219", (3, 7)),
        ("claude-opus-4-20250514", (4, 0)),
        ("claude-haiku-4-5-20251001", (4, 5)),
        ("claude-opus-4@20250514", (4, 0)),
        ("anthropic.claude-opus-4-6-v1:0", (4, 6)),
        ("claude-sonnet-5", (5, 0)),
        ("claude-opus-5-5", (5, 5)),
        ("claude-mythos-preview", (99, 0)),
        ("glm-4.6", None),
    ],
)
def test_the_version_is_read_from_the_name(model: str, version: tuple[int, int] | None) -> None:
    """Ours: names have the version before or after the family, often followed by a date."""
    assert _version(model) == version


@pytest.mark.parametrize(
    ("model", "adaptive", "native", "tokens"),
    [
        ("claude-3-haiku-20240307", False, False, 4096),
        ("claude-3-7-sonnet-20250219", False, False, 8192),
        ("claude-sonnet-4-5", False, True, 8192),
        ("claude-opus-4-6", False, True, 8192),
        ("claude-opus-4-7", True, True, 8192),
        ("claude-fable-5", True, True, 8192),
        ("glm-4.6", False, True, 8192),
    ],
)
def test_features_depend_on_the_models_generation(
    model: str, adaptive: bool, native: bool, tokens: int
) -> None:
    """Ours: the vendor refuses a form of thinking that a model does not support."""
    assert thinks_adaptively(model) is adaptive
    assert takes_output_format(model) is native
    assert default_max_tokens(model) == tokens
