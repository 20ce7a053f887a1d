"""`sleep`, the tool that code in a sandbox calls when it sleeps."""

from __future__ import annotations

import asyncio
from typing import Final

from standfast.model.limits import CapabilityLimits
from standfast.tools.decorator import tool

_LONGEST_S: Final = 366 * 86_400.0


@tool(side_effect="none", limits=CapabilityLimits(timeout_ms=2**32 - 1))
async def sleep(seconds: float = 0.0) -> None:
    """Wait; the limit on wall time counts it."""
    await asyncio.sleep(min(max(0.0, seconds), _LONGEST_S))
