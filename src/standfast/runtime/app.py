"""The argument APP of commands: agents, or a function that creates a `Runtime`, in a module or a file.

Its form is `module:name` or `file.py:name`. A module or file without a name means all its agents.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from standfast.errors import NotConfigured, StandfastError
from standfast.runtime.agent_definition import AgentDefinition
from standfast.runtime.agent_runtime import Runtime
from standfast.runtime.data_dir import without_password
from standfast.tools.module_file import load_file

_FORMS: Final = "write module:name or file.py:name"
_VALUES: Final = "name an Agent, a list of them, or a function of a store that returns a Runtime"


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The value of APP: `agents`, or `make`, a function that creates a `Runtime`."""

    name: str
    agents: tuple[AgentDefinition[Any, Any], ...] = ()
    make: Callable[..., Any] | None = None

    @property
    def takes_store(self) -> bool:
        """Whether the command chooses the store, rather than the app."""
        return self.make is None or _takes_argument(self.make)

    def runtime(self, store: str | os.PathLike[str] | None = None, **settings: Any) -> Runtime:
        """Return a runtime, not opened yet, with the app's agents over *store*.

        *settings* are passed to `Runtime`, unless the app creates the runtime itself. In that case its
        function gets *store* if it takes an argument. Raise `NotConfigured` if it does not return a
        `Runtime`.
        """
        if self.make is None:
            return Runtime(store, agents=self.agents, **settings)
        if store is not None and not self.takes_store:
            given = without_password(os.fspath(store))
            raise NotConfigured(
                f"{self.name} takes no argument, so it cannot use the store {given}",
                hint=f"write def {self.name.rpartition(':')[2]}(store): return Runtime(store, agents=[...])",
            )
        try:
            made = self.make(store) if self.takes_store else self.make()
        except StandfastError:
            raise
        except Exception as error:
            raise NotConfigured(f"{self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, Runtime):
            if inspect.iscoroutine(made):
                made.close()
            raise NotConfigured(f"{self.name} returned {type(made).__name__}, not a Runtime", hint=_VALUES)
        return made


def load_named(name: str, hint: str = _FORMS) -> Any:
    """Import the value *name*, which is `module:name` or `file.py:name`.

    Raise `NotConfigured` if there is none; *hint* says what the value should be.
    """
    where, separator, attribute = name.rpartition(":")
    if not separator or not where or not attribute:
        raise NotConfigured(f"{name!r} does not name an app", hint=_FORMS)
    value: Any = _load_module(where)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NotConfigured(f"{where} has no {attribute!r}", hint=hint)
        value = getattr(value, part)
    return value


def load_app(name: str) -> App:
    """Import the app *name*, which is `module:name` or `file.py:name`.

    Raise `NotConfigured` if it is none.
    """
    if ":" not in name:
        found = vars(_load_module(name)).values()
        value: Any = {one.name: one for one in found if isinstance(one, AgentDefinition)}
    else:
        value = load_named(name, _VALUES)
    if isinstance(value, AgentDefinition):
        return App(name=name, agents=(value,))
    if isinstance(value, Runtime):
        return App(name=name, make=lambda: value)
    listed = value.values() if isinstance(value, Mapping) else value
    if isinstance(listed, Iterable) and not isinstance(listed, str | bytes):
        agents = tuple(listed)
        if agents and all(isinstance(one, AgentDefinition) for one in agents):
            return App(name=name, agents=agents)
    if inspect.isroutine(value):
        return App(name=name, make=value)
    problem = f"is {type(value).__name__}, not an app" if ":" in name else "has no agents"
    raise NotConfigured(f"{name} {problem}", hint=_VALUES)


def _load_module(where: str) -> ModuleType:
    """Import a module, or a Python file by its path; modules are also found in the working directory."""
    file = Path(where)
    is_file = file.suffix == ".py"
    if is_file and not file.is_file():
        raise NotConfigured(f"file {where} does not exist", hint=_FORMS)
    if not is_file and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return load_file(file) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise NotConfigured(
            f"{where} cannot be imported: {type(error).__name__}: {error}", hint=_FORMS
        ) from error


def _takes_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True
