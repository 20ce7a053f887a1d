"""What the parts of a sandbox share."""

from __future__ import annotations

from dataclasses import dataclass

from standfast.errors import Code, SnapshotRefused
from standfast.model.session import SessionMeta
from standfast.ports.clock import Clock
from standfast.ports.sandbox_store import SandboxStore
from standfast.sandbox.config import SandboxConfig
from standfast.sandbox.engines import KINDS, EngineParts, Engines
from standfast.sandbox.monty.rules import RuleEvaluator
from standfast.sandbox.monty.workers import Workers
from standfast.sandbox.session_engine import SessionEngine
from standfast.sandbox.snapshots import (
    PausedRun,
    SnapshotCodec,
    SnapshotHeader,
    check_capabilities,
    check_engine,
)
from standfast.sandbox.watchdog import Watchdog
from standfast.tools.dispatch import Dispatcher
from standfast.tools.registry import ToolRegistry
from standfast.tools.threads import DaemonThreads

ALWAYS_THERE = frozenset({"list_tools", "describe_tool", "current_policy"})
"""Capabilities of every sandbox; snapshots do not depend on them."""


@dataclass(frozen=True, slots=True)
class SandboxServices:
    """The registry, the store, the engines, and what is made of them."""

    registry: ToolRegistry
    store: SandboxStore
    config: SandboxConfig
    threads: DaemonThreads
    workers: Workers
    engines: Engines
    codec: SnapshotCodec
    dispatcher: Dispatcher
    watchdog: Watchdog

    @classmethod
    def of(cls, registry: ToolRegistry, store: SandboxStore, config: SandboxConfig) -> SandboxServices:
        threads = DaemonThreads("standfast-sandbox")
        workers = Workers(config.workers)
        dispatcher = Dispatcher(
            registry, threads=threads, clock=config.clock, evaluate_rule=RuleEvaluator(workers)
        )
        watchdog = Watchdog()
        engines = Engines(
            EngineParts(registry, workers, watchdog, config.clock, config.workers, config.packages)
        )
        codec = SnapshotCodec(config.snapshot_key)
        return cls(registry, store, config, threads, workers, engines, codec, dispatcher, watchdog)

    def close(self) -> None:
        """End processes and threads. What is stored stays."""
        self.watchdog.close()
        self.engines.close()
        self.workers.close()
        self.dispatcher.close()
        self.store.close()
        self.threads.close()

    @property
    def clock(self) -> Clock:
        return self.config.clock

    def seal(
        self, meta: SessionMeta, engine: SessionEngine, state: bytes, paused: PausedRun | None = None
    ) -> bytes:
        """A signed snapshot under the contracts registered now."""
        digests = self.registry.digests()
        header = SnapshotHeader(
            meta=meta,
            engine=engine.name,
            engine_version=engine.version,
            capabilities={name: digests[name] for name in digests if name not in ALWAYS_THERE},
            host=self.config.host,
            paused=paused,
        )
        return self.codec.seal(header, state)

    def unseal(self, data: bytes) -> tuple[SnapshotHeader, bytes]:
        """Take a snapshot apart, if it is whole and fits this sandbox."""
        header, state = self.codec.open(data)
        if header.engine not in KINDS:
            raise SnapshotRefused(
                Code.SNAPSHOT_VERSION_MISMATCH,
                f"the snapshot was made by {header.engine}, an engine that this Standfast does not have",
            )
        engine = self.engines.get(header.engine)
        check_engine(header, engine.name, engine.version)
        check_capabilities(header, self.registry.digests())
        return header, state
