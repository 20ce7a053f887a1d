"""The configuration of a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from standfast.model.canonical import Json
from standfast.model.limits import SessionLimits
from standfast.ports.clock import Clock, SystemClock
from standfast.ports.trace import TraceSink


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """`host` describes this process's tools to a process that resumes its waiting runs.

    `engine` runs the sessions of its language; by default an existing session runs on its own engine, and a
    new one on the usual engine of its language. Guest code may import `packages` if its engine can.
    """

    snapshot_key: bytes
    limits: SessionLimits = field(default_factory=SessionLimits)
    approval_ttl_ms: int = 24 * 3600 * 1000
    workers: int = 8
    engine: str | None = None
    packages: tuple[str, ...] = ()
    max_code_bytes: int = 256 << 10
    max_input_bytes: int = 16 << 20
    clock: Clock = field(default_factory=SystemClock)
    host: dict[str, Json] = field(default_factory=dict)
    trace: TraceSink | Sequence[TraceSink] | None = None
