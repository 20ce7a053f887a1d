"""Monitors: commands that watch something for a session, and start a turn when it changes."""

from __future__ import annotations

from standfast.runtime.monitors.monitors import Monitors

__all__ = ["Monitors"]
