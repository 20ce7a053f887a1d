"""The tool `sleep`, which implements the sleep functions of code in a sandbox."""

from __future__ import annotations

import asyncio
from typing import Final

from standfast.model.limits import CapabilityLimits
from standfast.tools.decorator import tool

_LONGEST_S: Final = 366 * 86_400.0


@tool(side_effect="none", limits=CapabilityLimits(timeout_ms=2**32 - 1))
async def sleep(seconds: float = 0.0) -> None:
    """Wait. The time counts towards the limit on wall time."""
    await asyncio.sleep(min(max(0.0, seconds), _LONGEST_S))
