"""Loads what `serve` and `chat` are given as APP: agents, or a runtime with its agents."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from standfast.errors import NotConfigured
from standfast.runtime.agent import Agent
from standfast.runtime.agent_runtime import Runtime

_FORMS = "write module:name or file.py:name, where name is an agent, a list of agents, or a function"


@dataclass(frozen=True, slots=True)
class LoadedApp:
    """The agents of an APP, or the runtime that it makes."""

    agents: tuple[Agent[Any, Any], ...] = ()
    runtime: Runtime | None = None
    source: Path | None = None
    """The file that APP is in."""


def load_app(text: str) -> LoadedApp:
    """Load APP; raise `NotConfigured` if it does not name agents or a runtime."""
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = _load_module(place, text)
    source = Path(module.__file__) if module.__file__ else None
    if not name:
        found = [value for value in vars(module).values() if isinstance(value, Agent)]
        return LoadedApp(_agents(text, {agent.name: agent for agent in found}.values()), None, source)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise NotConfigured(f"{place} has no {name!r}", hint=_FORMS)
        value = getattr(value, part)
    if callable(value) and not isinstance(value, (Agent, Runtime)):
        value = _called(text, value)
    if isinstance(value, Runtime):
        return LoadedApp((), value, source)
    if isinstance(value, Mapping):
        value = value.values()
    return LoadedApp(_agents(text, [value] if isinstance(value, Agent) else value), None, source)


def _load_module(place: str, text: str) -> ModuleType:
    from standfast.tools.module_file import load_file

    try:
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise NotConfigured(f"there is no file {place}", hint=_FORMS)
            return load_file(Path(place))
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return import_module(place)
    except NotConfigured:
        raise
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}"
        raise NotConfigured(f"{text} cannot be loaded: {problem}", hint=_FORMS) from error


def _called(text: str, make: Callable[[], Any]) -> Any:
    try:
        made = make()
        if inspect.isawaitable(made):
            waiting = made

            async def wait() -> Any:
                return await waiting

            made = asyncio.run(wait())
    except Exception as error:
        raise NotConfigured(f"{text} failed: {type(error).__name__}: {error}") from error
    return made


def _agents(text: str, values: Any) -> tuple[Agent[Any, Any], ...]:
    found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else ()
    if not found or not all(isinstance(one, Agent) for one in found):
        raise NotConfigured(f"{text} names no agent", hint=_FORMS)
    return found
