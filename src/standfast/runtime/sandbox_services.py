"""What the sessions of one sandbox share: store, engines, dispatcher, leases, the codec of snapshots."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from standfast.durable.journal import LeaseKeeper
from standfast.errors import Code, SnapshotRefused
from standfast.model.diagnostic import Diagnostic
from standfast.model.language import Language
from standfast.model.session import SessionMeta
from standfast.plugins.runtime_services import RuntimeSettings
from standfast.ports.session_store import SessionStore
from standfast.runtime.code_turns import CodeTurns, CodeTurnServices
from standfast.sandbox.config import SandboxConfig
from standfast.sandbox.engine_kinds import CodeEngines, find_kind, kind_of, usual_engine
from standfast.sandbox.monty.rules import RuleEvaluator
from standfast.sandbox.monty.validate import too_slow
from standfast.sandbox.monty.workers import MontyWorkers
from standfast.sandbox.snapshots import (
    PausedTurn,
    SnapshotCodec,
    SnapshotHeader,
    check_capabilities,
    check_engine,
)
from standfast.tools.blocking_loop import run_blocking
from standfast.tools.dispatch import Dispatcher
from standfast.tools.registry import ToolRegistry
from standfast.tools.threads import DaemonThreads

ALWAYS_THERE: Final = frozenset({"list_tools", "describe_tool", "current_policy"})
"""Capabilities of every sandbox; snapshots do not depend on them."""
_LEASE_MS: Final = 30_000


class SandboxServices:
    """Made once for a sandbox."""

    def __init__(self, registry: ToolRegistry, store: SessionStore, config: SandboxConfig) -> None:
        self.registry = registry
        self.store = store
        self.config = config
        self.epoch = secrets.token_hex(4)
        self.threads = DaemonThreads("standfast-sandbox")
        self.workers = MontyWorkers(config.workers)
        self.dispatcher = Dispatcher(
            registry, threads=self.threads, clock=config.clock, evaluate_rule=RuleEvaluator(self.workers)
        )
        self.engines = CodeEngines(self.workers, config.workers, config.packages)
        self.codec = SnapshotCodec(config.snapshot_key)
        self.leases = RunLeases(store, config)
        settings = RuntimeSettings(self.epoch, approval_ttl_ms=config.approval_ttl_ms)
        tracer = None
        if config.trace is not None:
            from standfast.trace.tracer import Tracer  # only a sandbox that keeps a trace needs it

            tracer = Tracer(config.trace, config.clock)
        services = CodeTurnServices(store, config.clock, settings, tracer=tracer)
        self.turns = CodeTurns(services, self.dispatcher, registry)
        self._asked = {kind_of(config.engine).language: config.engine} if config.engine else {}

    def close(self) -> None:
        """End processes and threads. What is stored stays."""
        self.leases.close()
        self.engines.close()
        self.workers.close()
        self.dispatcher.close()
        run_blocking(self.store.close())
        self.threads.close()

    def asked_engine(self, language: Language) -> str | None:
        """The engine that the sandbox was made with, if it runs *language*."""
        return self._asked.get(language)

    def engine_for(self, language: Language) -> str:
        """The engine of a new session."""
        return self._asked.get(language) or usual_engine(language)

    def seal(self, meta: SessionMeta, engine: str, variables: bytes, paused: PausedTurn | None) -> bytes:
        """A signed snapshot under the contracts registered now."""
        digests = self.registry.digests()
        header = SnapshotHeader(
            meta=meta,
            engine=engine,
            engine_version=self.engines.get(engine).version,
            capabilities={name: digests[name] for name in digests if name not in ALWAYS_THERE},
            host=self.config.host,
            paused=paused is not None,
        )
        if paused is None:
            return self.codec.seal(header, variables)
        return self.codec.seal(
            header, msgspec.msgpack.encode(msgspec.structs.replace(paused, variables=variables))
        )

    def unseal(self, data: bytes) -> tuple[SnapshotHeader, bytes, PausedTurn | None]:
        """Take a snapshot apart, if it is whole and fits this sandbox: header, variables, waiting turn."""
        header, state = self.codec.open(data)
        if find_kind(header.engine) is None:
            raise SnapshotRefused(
                Code.SNAPSHOT_VERSION_MISMATCH,
                f"the snapshot was made by {header.engine}, an engine that this Standfast does not have",
            )
        check_engine(header, header.engine, self.engines.get(header.engine).version)
        check_capabilities(header, self.registry.digests())
        if not header.paused:
            return header, state, None
        try:
            paused = msgspec.msgpack.decode(state, type=PausedTurn)
        except msgspec.DecodeError as error:
            raise SnapshotRefused(Code.SNAPSHOT_CORRUPT, f"the waiting run cannot be read: {error}") from None
        return header, paused.variables, paused


class RunLeases(LeaseKeeper):
    """The leases of runs: a thread renews them, for their own threads compute."""

    def __init__(self, store: SessionStore, config: SandboxConfig) -> None:
        super().__init__(store, config.clock, _LEASE_MS)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:  # type: ignore[override]
        self._closed.set()

    def start_renewing(self) -> None:
        if self._store.durable and self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="standfast-leases", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        rounds = 0
        while not self._closed.wait(1.0):
            if not self._holders:
                continue
            rounds += 1
            run_blocking(self.renew_all() if rounds % (self.lease_ms // 3000) == 0 else self.look())


def check_within(timeout_ms: int, check: Callable[[], list[Diagnostic]]) -> list[Diagnostic]:
    """What a check finds, if it does so in time. One that does not is left behind with its thread."""
    answer: queue.SimpleQueue[list[Diagnostic] | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(check())
        except Exception as error:
            answer.put(error)

    threading.Thread(target=work, name="standfast-check", daemon=True).start()
    try:
        found = answer.get(timeout=timeout_ms / 1000)
    except queue.Empty:
        raise too_slow(timeout_ms) from None
    if isinstance(found, Exception):
        raise found
    return found
