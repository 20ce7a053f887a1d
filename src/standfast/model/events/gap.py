"""Live events were missed: too many came, or too long ago. What was committed follows as nodes."""

from __future__ import annotations

import msgspec


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag="gap"):
    """Live events were missed: too many came, or too long ago. What was committed follows as nodes."""

    missed: int | None = None
