"""The methods that each role may call on the runtime, and the proof that no others are reachable."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, Plugin, RunContext, Runtime, action, hook, tool
from standfast.errors import ServiceUnavailable
from standfast.model.host_requests import SessionSnapshot, TurnInput
from standfast.model.message import UserMessage
from standfast.plugins.contexts import NoHosts
from standfast.ports import host as ports
from standfast.providers.scripted import ScriptedModel
from standfast.runtime.host.runtime_host import RuntimeHost
from standfast.runtime.host.service import ROLE_OF_HOOK, methods_of, plugin_view, view
from standfast.tools.no_host import HARMLESS, NO_HOST, SERVICES

SEED_SERVICES: dict[str, str] = {
    "SessionSnapshotHost": "snapshot_current snapshot_session",
    "ToolCatalogHost": "tool_catalog",
    "ToolStateHost": "tool_state apply_tool_state set_tools_availability set_tool_availability",
    "SessionLifecycleHost": "create_session take_first_turn_input close_session",
    "TurnHost": "start_turn_stream await_turn cancel_turn start_turn",
    "TaskHost": """inject_turn_input spawn_hidden_task await_hidden_tasks spawn_managed_task
        cancel_managed_task register_background_task unregister_background_task complete_background_task
        transition_background_task_live_state list_background_tasks cancel_background_task
        cancel_all_background_tasks validate_async_handles_visible transfer_async_handles
        cancel_unreferenced_async_handles""",
    "MonitorHost": "monitor_snapshot take_monitor_updates start_monitor stop_monitor",
    "SessionGraphHost": "append_session_nodes",
    "DirectCompletionHost": "direct_completion direct_llm_completion",
    "TraceHost": "emit_trace_event",
}
"""The seed's services and their methods, copied by hand."""

_ALL = tuple(SEED_SERVICES)

SEED_ROLES: dict[str, tuple[str, ...]] = {
    "PromptHookHost": ("SessionSnapshotHost", "ToolCatalogHost", "TaskHost", "DirectCompletionHost"),
    "TurnHookHost": ("SessionSnapshotHost", "ToolStateHost", "SessionLifecycleHost", "TraceHost"),
    "ToolHookHost": _ALL,
    "TurnResultHookHost": ("SessionLifecycleHost", "TraceHost"),
    "CheckpointHookHost": ("SessionLifecycleHost", "TraceHost"),
    "HistoryHost": (
        "SessionSnapshotHost", "SessionLifecycleHost", "TurnHost", "TaskHost", "SessionGraphHost",
        "DirectCompletionHost",
    ),
    "PluginActionHost": _ALL,
    "RuntimeSessionHost": _ALL,
}  # fmt: skip
"""The seed's role compositions, copied by hand."""

METHODS = [name for names in SEED_SERVICES.values() for name in names.split()]


class Whole:
    """A stand-in for the whole host that logs calls to its methods."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: object, **kwargs: object) -> str:
            self.called.append(name)
            return name

        return call


def _role(name: str) -> Any:
    return getattr(ports, name)


def _may(role: str) -> set[str]:
    return {method for service in SEED_ROLES[role] for method in SEED_SERVICES[service].split()}


# The table


@pytest.mark.parametrize("service", SEED_SERVICES)
def test_a_service_has_exactly_the_methods_of_the_seed(service: str) -> None:
    """Seed: each service has the methods of its trait in plugin_runtime_host.rs."""
    assert set(methods_of(_role(service))) == set(SEED_SERVICES[service].split())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("role", SEED_ROLES)
def test_a_role_has_a_method_or_no_such_attribute(role: str, method: str) -> None:
    """Seed: the role compositions, checked for every role and every method."""
    whole = Whole()
    seen = view(lambda: whole, _role(role))
    if method in _may(role):
        assert asyncio.run(getattr(seen, method)("s")) == method
        assert whole.called == [method]
    else:
        with pytest.raises(AttributeError):
            getattr(seen, method)


@pytest.mark.parametrize("role", SEED_ROLES)
def test_a_view_has_only_the_methods_of_its_role(role: str) -> None:
    """Ours: nothing can be added to a view either."""
    seen = view(Whole, _role(role))
    assert {name for name in dir(seen) if not name.startswith("_")} == _may(role)
    with pytest.raises(AttributeError):
        seen.more = 1


def test_the_methods_of_a_view_have_the_signatures_of_the_protocol() -> None:
    """Ours: `help` and editors show the parameters."""
    seen = view(Whole, _role("HistoryHost"))
    assert list(inspect.signature(seen.start_turn).parameters) == ["session_id", "input"]
    assert seen.start_turn.__doc__ == ports.TurnHost.start_turn.__doc__


# No way around the roles


_OF_FUNCTIONS = ("__self__", "__func__", "__closure__", "__wrapped__", "__defaults__", "__dict__")


def _reachable(start: object) -> list[object]:
    """Return all objects reachable through attributes, closures and containers, except functions' modules."""
    found: list[object] = []
    seen: set[int] = set()
    todo: list[object] = [start]
    while todo:
        at = todo.pop()
        if id(at) not in seen and not isinstance(at, (str, int, float, types.ModuleType)):
            seen.add(id(at))
            found.append(at)  # holding it also prevents its id from being reused
            todo += _beside(at)
    return found


def _beside(value: object) -> list[object]:
    if isinstance(value, (dict, types.MappingProxyType)):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, types.CellType):
        return [value.cell_contents]
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return [getattr(value, name, None) for name in _OF_FUNCTIONS]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    members = [getattr(value, name, None) for name in slots if name != "__weakref__"]
    return [*members, getattr(value, "__dict__", None), type(value)]


def test_a_wrapper_that_holds_the_host_would_be_detected() -> None:
    """Ours: the search below must find a host that is reachable."""
    whole = Whole()

    async def wrapped() -> None:
        await whole.start_turn()

    assert any(one is whole for one in _reachable(wrapped))
    assert any(one is whole for one in _reachable([{"host": (whole,)}]))
    assert any(one is whole for one in _reachable(RuntimeHost(whole, whole, "s")))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", SEED_ROLES)
def test_no_attribute_of_a_view_leads_to_the_host(role: str) -> None:
    """Ours: a role's host does not expose the whole host."""
    whole = Whole()
    seen = view(lambda: whole, _role(role))
    assert not any(one is whole for one in _reachable(seen))
    assert not any(one is whole for name in _may(role) for one in _reachable(getattr(seen, name)))


# In a session


class Looker(Plugin):
    """A plugin that keeps the host given to each of its hooks."""

    def __init__(self, seen: dict[str, Any]) -> None:
        self._seen = seen

    def __deepcopy__(self, memo: Any) -> Looker:
        return Looker(self._seen)

    @hook
    async def prompt_contributor(self, ctx: Any) -> None:
        self._seen["prompt_contributor"] = ctx.host

    @hook
    async def context_transform(self, ctx: Any, messages: Any) -> Any:
        self._seen["context_transform"] = ctx.host
        return messages

    @hook
    async def compactor(self, ctx: Any) -> None:
        self._seen["compactor"] = ctx.host

    @hook
    async def before_turn(self, ctx: Any) -> None:
        self._seen["before_turn"] = ctx.host

    @hook
    async def checkpoint(self, ctx: Any) -> None:
        self._seen["checkpoint"] = ctx.host

    @hook
    async def after_turn(self, ctx: Any) -> None:
        self._seen["after_turn"] = ctx.host

    @hook
    async def before_tool_call(self, ctx: Any) -> None:
        self._seen["before_tool_call"] = ctx.host

    @hook
    async def after_tool_call(self, ctx: Any) -> None:
        self._seen["after_tool_call"] = ctx.host

    @action
    async def look(self, ctx: Any) -> None:
        self._seen["action"] = ctx.host

    @tool(side_effect="read")
    async def peek(self, ctx: RunContext[None]) -> str:
        """Look from inside a tool."""
        self._seen["tool"] = ctx.host
        return "seen"


def _asking() -> ScriptedModel:
    return ScriptedModel(["hi", {"tool_calls": [{"name": "peek", "arguments": {}}]}, "done"])


def test_each_hook_is_given_only_the_services_of_its_role() -> None:
    """Seed: each hook context has its role's host."""
    seen: dict[str, Any] = {}

    async def main() -> None:
        async with Runtime() as runtime:
            agent = Agent(_asking(), plugins=[Looker(seen)])
            session = await runtime.session("s", agent=agent)
            await session.turn("one")
            await session.turn("two")
            await session.plugins.invoke("looker.look")
            assert isinstance(await seen["prompt_contributor"].snapshot_current(), SessionSnapshot)

    asyncio.run(main())
    for kind, host in seen.items():
        role = ports.ToolHookHost if kind == "tool" else ROLE_OF_HOOK[kind]
        assert role is not None
        assert {name for name in dir(host) if not name.startswith("_")} == set(methods_of(role)), kind
    assert set(seen) == {kind for kind, role in ROLE_OF_HOOK.items() if role is not None} | {"tool"}


class Sneak(Plugin):
    """A plugin that tries to start a turn from its prompt hook, in every possible way."""

    def __init__(self, came_to: list[object]) -> None:
        self._came_to = came_to

    def __deepcopy__(self, memo: Any) -> Sneak:
        return Sneak(self._came_to)

    @hook
    async def prompt_contributor(self, ctx: Any) -> None:
        for host in (ctx.host, self.session.host):
            try:
                await host.start_turn("s", TurnInput(message=UserMessage(content="sneaked")))
            except (AttributeError, ServiceUnavailable) as error:
                self._came_to.append(type(error))
        self._came_to.append(await self.session.host.list_background_tasks("s"))
        self._came_to.append(any(isinstance(one, RuntimeHost) for one in _reachable(ctx.host)))
        self._came_to.append(any(isinstance(one, RuntimeHost) for one in _reachable(self.session.host)))


def test_a_prompt_hook_cannot_start_a_turn() -> None:
    """Seed: PromptHookHost has no TurnHost; neither the hook's host nor the plugin's leads there."""
    came_to: list[object] = []

    async def main() -> int:
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=Agent(ScriptedModel(["hi"]), plugins=[Sneak(came_to)]))
            await session.turn("one")
            return len(await session.turns())

    assert asyncio.run(main()) == 1
    assert came_to == [AttributeError, ServiceUnavailable, [], False, False]


@pytest.mark.parametrize("kind", ROLE_OF_HOOK)
def test_within_a_hook_the_plugins_own_host_has_only_the_hooks_services(kind: str) -> None:
    """Ours: a stored host does not bypass the roles of a plugin's hooks."""
    from standfast.plugins.running import HOOK

    role = ROLE_OF_HOOK[kind]
    allowed = set() if role is None else set(methods_of(role))

    async def main() -> set[str]:
        HOOK.set(kind)
        own, could = plugin_view(Whole), set()
        for name in METHODS:
            with contextlib.suppress(ServiceUnavailable):
                await getattr(own, name)("s")
                could.add(name)
        return could

    assert asyncio.run(main()) == allowed


# Without a runtime


@pytest.mark.parametrize("method", METHODS)
def test_without_a_runtime_every_service_is_unavailable_by_name(method: str) -> None:
    """Seed: harmless methods do nothing by default; the others name the missing service."""
    if method in HARMLESS:
        assert asyncio.run(getattr(NO_HOST, method)("s")) is None
        return
    with pytest.raises(ServiceUnavailable, match=SERVICES[method]) as refused:
        asyncio.run(getattr(NO_HOST, method)("s"))
    assert (refused.value.service, refused.value.code) == (SERVICES[method], "SERVICE_UNAVAILABLE")


def test_an_unknown_method_of_the_host_is_an_attribute_error_without_a_runtime_too() -> None:
    """Ours: a misspelt method is not a missing service."""
    with pytest.raises(AttributeError):
        _ = NO_HOST.start_trun
    assert repr(NoHosts().prompt) == "<no host>"


def test_every_method_names_the_service_it_needs() -> None:
    """Ours: every method of the host has an entry in the table of names."""
    assert set(SERVICES) == set(METHODS)


# The documentation


def test_the_documentation_shows_which_role_has_which_service() -> None:
    """Ours: the tables in docs/guides/host-services.md match the code."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "host-services.md").read_text()
    roles = [name for name in SEED_ROLES if name != "RuntimeSessionHost"]
    header = next(line for line in page.splitlines() if line.startswith("| service | `"))
    assert re.findall(r"`(\w+)`", header) == roles
    for service, names in SEED_SERVICES.items():
        has, methods = [
            [cell.strip() for cell in line.strip("|").split("|")[1:]]
            for line in page.splitlines()
            if line.startswith(f"| `{service}`")
        ]
        assert [cell == "yes" for cell in has] == [service in SEED_ROLES[role] for role in roles]
        assert set(re.findall(r"`(\w+)`", methods[0])) == set(names.split())
