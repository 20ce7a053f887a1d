"""What the sessions of one runtime share: store, clock, leases, threads, providers, dispatchers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.durable.leases import LeaseKeeper
from holdfast.errors import InvalidArgument
from holdfast.model.canonical import Json
from holdfast.ports.clock import Clock
from holdfast.ports.model_provider import ModelProvider
from holdfast.ports.session_store import Claimant, SessionStore
from holdfast.protocols.standard import Bench, Persona
from holdfast.runtime.agent import Agent
from holdfast.tools.dispatch import Dispatcher
from holdfast.tools.threads import DaemonThreads


class RuntimeConfig(msgspec.Struct, frozen=True):
    """Times in milliseconds."""

    epoch: str
    lease_ms: int = 30_000
    approval_ttl_ms: int = 24 * 3600 * 1000
    busy_timeout_ms: int = 60_000
    poll_ms: int = 1_000
    cached_frames: int = 64


class Staff(msgspec.Struct, frozen=True):
    """An agent ready to work: its model open, its tools dispatched."""

    agent: Agent[Any, Any]
    persona: Persona
    bench: Bench


@dataclass(slots=True)
class Workplace:
    """Made by `Runtime`; used by its sessions."""

    store: SessionStore
    clock: Clock
    config: RuntimeConfig
    leases: LeaseKeeper
    resolve: Callable[[str], ModelProvider]
    owns_models: bool = True
    is_open: bool = True
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    threads: DaemonThreads = field(default_factory=lambda: DaemonThreads("holdfast-turns"))
    _rules: LazyRules | None = None
    _providers: dict[str, ModelProvider] = field(default_factory=dict)
    _staff: dict[int, Staff] = field(default_factory=dict)

    def staff(self, agent: Agent[Any, Any]) -> Staff:
        """The agent with its model and its dispatcher; made once for each agent."""
        found = self._staff.get(id(agent))
        if found is None:
            found = self._staff[id(agent)] = self._hire(agent)
        return found

    def claimant(self, owner: str) -> Claimant:
        return Claimant(owner=owner, now_ms=self.clock.now_ms(), lease_ms=self.config.lease_ms)

    async def close(self) -> None:
        """Close what was made here. Models that were passed in are their owner's."""
        for staff in self._staff.values():
            staff.bench.dispatcher.close()
        if self._rules is not None:
            self._rules.close()
        self.threads.close()
        providers, self._providers = self._providers if self.owns_models else {}, {}
        errors = []
        for provider in providers.values():
            try:
                await provider.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _hire(self, agent: Agent[Any, Any]) -> Staff:
        model = agent.model
        if isinstance(model, str):
            model = self._providers.get(agent.model_id) or self._open_provider(agent.model_id)
        if self._rules is None:
            self._rules = LazyRules()
        dispatcher = Dispatcher(
            agent.registry, threads=self.threads, clock=self.clock, evaluate_rule=self._rules
        )
        dispatcher.tool_loop = asyncio.get_running_loop()
        persona = Persona(
            model=model,
            instructions=agent.instructions,
            capabilities=tuple(agent.registry.capabilities()),
            output=agent.output_type,
            settings=agent.settings,
        )
        bench = Bench(dispatcher, self.threads, self.clock, self.config.approval_ttl_ms)
        return Staff(agent, persona, bench)

    def _open_provider(self, name: str) -> ModelProvider:
        provider = self._providers[name] = self.resolve(name)
        return provider


class LazyRules:
    """Approval rules, evaluated by an engine that is started when the first rule needs it."""

    def __init__(self) -> None:
        self._workers: Any = None
        self._evaluate: Any = None

    def __call__(self, rule: str, args: list[Json], kwargs: dict[str, Json], session_id: str) -> bool:
        if self._evaluate is None:
            from holdfast.sandbox.monty.rules import RuleEvaluator
            from holdfast.sandbox.monty.workers import Workers

            self._workers = Workers(1)
            self._evaluate = RuleEvaluator(self._workers)
        return bool(self._evaluate(rule, args, kwargs, session_id))

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def runtime_not_open() -> InvalidArgument:
    return InvalidArgument(
        "this runtime is not open", hint='use `async with Runtime("holdfast.db") as runtime:`'
    )


def new_turn_id() -> str:
    return f"t_{secrets.token_hex(10)}"


def is_turn_id(value: str) -> bool:
    """Whether this is the name of a turn, and not of nodes that the host has appended."""
    return value.startswith("t_")


def new_input_id() -> str:
    return f"in_{secrets.token_hex(8)}"
