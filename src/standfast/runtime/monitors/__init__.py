"""Monitors: commands that watch something for a session, and wake it."""

from __future__ import annotations

from standfast.runtime.monitors.monitors import Monitors

__all__ = ["Monitors"]
