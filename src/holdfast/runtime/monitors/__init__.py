"""Monitors: commands that watch something for a session, and wake it."""

from __future__ import annotations

from holdfast.runtime.monitors.monitors import Monitors

__all__ = ["Monitors"]
