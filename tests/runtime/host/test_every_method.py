"""Every method of the host, called by a plugin: its result, its failure, and its error without a runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from host_stage import Stage, said, staged
from stand_ins import Place, until

from standfast import Plugin, action
from standfast.errors import (
    GenerationMismatch,
    InvalidArgument,
    MonitorNotFound,
    ServiceUnavailable,
    SessionExists,
    SessionNotFound,
    TaskExists,
    TaskNotFound,
    TurnNotFound,
    UnknownTool,
)
from standfast.model.capability import ToolAvailability
from standfast.model.host_requests import (
    Appended,
    AppendSessionNodesRequest,
    BranchIsStale,
    DirectRequest,
    SessionCreateRequest,
    SessionHandle,
)
from standfast.model.message import InjectedTurnInput, UserMessage
from standfast.model.monitor import MonitorSpec, MonitorState
from standfast.model.session import PluginNode
from standfast.model.task import TaskSpec, TaskState
from standfast.ports.host import RuntimeSessionHost
from standfast.ports.model_provider import ModelRequest
from standfast.runtime.host.service import methods_of
from standfast.tools.no_host import HARMLESS, SERVICES

Call = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True)
class Row:
    """One method: a call that works and a check of its result; a call that fails, and its error."""

    works: Call
    is_right: Callable[[Any], bool]
    fails: Call | None = None
    error: type[Exception] | None = None


async def _nothing() -> None:
    """Return at once."""


def _task(task_id: str = "t") -> TaskSpec:
    return TaskSpec(id=task_id)


async def _live_task(host: Any) -> Any:
    return await host.register_background_task("root", _task())


async def _then(first: Awaitable[object], second: Callable[[], Awaitable[object]]) -> object:
    await first
    return await second()


def _is_none(answer: object) -> bool:
    return answer is None


async def _a_turn(host: Any) -> str:
    """Return the id of a turn that was started."""
    return str((await host.start_turn_stream("root", said("x"))).turn_id)


_INJECTED = InjectedTurnInput(message=UserMessage(content="x"), id="i")
_ASKED = ModelRequest(messages=[UserMessage(content="x")])
_NODES = AppendSessionNodesRequest(nodes=(PluginNode(plugin_id="p", kind="k"),))
_STALE = AppendSessionNodesRequest(nodes=(), requires_ancestor_node_id="t_0.0")
_FIRST = SessionCreateRequest(session_id="child", first_turn_input=UserMessage(content="go"))
_SLEEPS = MonitorSpec(id="m", command=("sleep", "60"))


async def _monitored(host: Any, what: Callable[[], Awaitable[object]]) -> object:
    """Run a function while a monitor runs."""
    await host.start_monitor("root", _SLEEPS)
    try:
        return await what()
    finally:
        await host.stop_monitor("root", "m")


async def _with_child(host: Any, what: Callable[[], Awaitable[object]]) -> object:
    await host.create_session(_FIRST)
    return await what()


ROWS: dict[str, Row] = {
    "snapshot_current": Row(
        lambda host: host.snapshot_current(), lambda answer: answer.head.session_id == "root"
    ),
    "snapshot_session": Row(
        lambda host: host.snapshot_session("root"),
        lambda answer: answer.head.session_id == "root",
        lambda host: host.snapshot_session("missing"),
        SessionNotFound,
    ),
    "tool_catalog": Row(
        lambda host: host.tool_catalog("root"),
        lambda answer: "look" in [one["name"] for one in answer],
        lambda host: host.tool_catalog("missing"),
        SessionNotFound,
    ),
    "tool_state": Row(
        lambda host: host.tool_state("root"),
        lambda answer: answer.generation >= 1,
        lambda host: host.tool_state("missing"),
        SessionNotFound,
    ),
    "apply_tool_state": Row(
        lambda host: _applied(host, 0),
        lambda answer: isinstance(answer, int),
        lambda host: _applied(host, 1),
        GenerationMismatch,
    ),
    "set_tools_availability": Row(
        lambda host: host.set_tools_availability("root", ["look"], ToolAvailability.OFF),
        lambda answer: isinstance(answer, int),
        lambda host: host.set_tools_availability("root", ["gone"], None),
        UnknownTool,
    ),
    "set_tool_availability": Row(
        lambda host: host.set_tool_availability("root", "look", None),
        lambda answer: isinstance(answer, int),
        lambda host: host.set_tool_availability("root", "gone", None),
        UnknownTool,
    ),
    "create_session": Row(
        lambda host: host.create_session(_FIRST),
        lambda answer: answer == SessionHandle(session_id="child", parent_session_id="root", depth=1),
        lambda host: host.create_session(SessionCreateRequest(session_id="root")),
        SessionExists,
    ),
    "take_first_turn_input": Row(
        lambda host: _with_child(host, lambda: host.take_first_turn_input("child")),
        lambda answer: answer == UserMessage(content="go"),
        lambda host: host.take_first_turn_input("missing"),
        SessionNotFound,
    ),
    "close_session": Row(
        lambda host: _with_child(host, lambda: host.close_session("child")),
        _is_none,
        lambda host: host.close_session("missing"),
        SessionNotFound,
    ),
    "start_turn_stream": Row(
        lambda host: host.start_turn_stream("root", said("x")),
        lambda answer: answer.turn_id.startswith("t_"),
        lambda host: host.start_turn_stream("missing", said("x")),
        SessionNotFound,
    ),
    "await_turn": Row(
        lambda host: _then_with(_a_turn(host), host.await_turn),
        lambda answer: answer.text == "re: x",
        lambda host: host.await_turn("t_missing"),
        TurnNotFound,
    ),
    "cancel_turn": Row(
        lambda host: _then_with(_a_turn(host), host.cancel_turn),
        _is_none,
        lambda host: host.cancel_turn("t_missing"),
        TurnNotFound,
    ),
    "start_turn": Row(
        lambda host: host.start_turn("root", said("x")),
        lambda answer: answer.text == "re: x",
        lambda host: host.start_turn("missing", said("x")),
        SessionNotFound,
    ),
    "inject_turn_input": Row(
        lambda host: host.inject_turn_input("root", _INJECTED),
        lambda answer: answer == "i",
        lambda host: host.inject_turn_input("missing", _INJECTED),
        SessionNotFound,
    ),
    "spawn_hidden_task": Row(
        lambda host: host.spawn_hidden_task("root", "label", _nothing),
        _is_none,
        lambda host: host.spawn_hidden_task("missing", "label", _nothing),
        SessionNotFound,
    ),
    "await_hidden_tasks": Row(lambda host: host.await_hidden_tasks("root"), _is_none),
    "spawn_managed_task": Row(
        lambda host: host.spawn_managed_task("root", _task(), _nothing),
        lambda answer: answer.state is TaskState.RUNNING,
        lambda host: _then(_live_task(host), lambda: host.spawn_managed_task("root", _task(), _nothing)),
        TaskExists,
    ),
    "cancel_managed_task": Row(
        lambda host: _then(_live_task(host), lambda: host.cancel_managed_task("root", "t")),
        _is_none,
        lambda host: host.cancel_managed_task("root", "missing"),
        TaskNotFound,
    ),
    "register_background_task": Row(
        lambda host: host.register_background_task("root", _task()),
        lambda answer: (answer.id, answer.state) == ("t", TaskState.RUNNING),
        lambda host: _then(_live_task(host), lambda: host.register_background_task("root", _task())),
        TaskExists,
    ),
    "unregister_background_task": Row(
        lambda host: _then(_live_task(host), lambda: host.unregister_background_task("root", "t")), _is_none
    ),
    "complete_background_task": Row(
        lambda host: host.complete_background_task("root", "t", TaskState.COMPLETED),
        _is_none,
        lambda host: host.complete_background_task("root", "t", TaskState.IDLE),
        InvalidArgument,
    ),
    "transition_background_task_live_state": Row(
        lambda host: host.transition_background_task_live_state("root", "t", TaskState.IDLE),
        _is_none,
        lambda host: host.transition_background_task_live_state("root", "t", TaskState.FAILED),
        InvalidArgument,
    ),
    "list_background_tasks": Row(
        lambda host: _then(_live_task(host), lambda: host.list_background_tasks("root")),
        lambda answer: [one.id for one in answer] == ["t"],
        lambda host: host.list_background_tasks("missing"),
        SessionNotFound,
    ),
    "cancel_background_task": Row(
        lambda host: _then(_live_task(host), lambda: host.cancel_background_task("root", "t")),
        lambda answer: answer.state is TaskState.CANCELLED,
        lambda host: host.cancel_background_task("root", "missing"),
        TaskNotFound,
    ),
    "cancel_all_background_tasks": Row(
        lambda host: _then(_live_task(host), lambda: host.cancel_all_background_tasks("root")),
        lambda answer: [one.state for one in answer] == [TaskState.CANCELLED],
        lambda host: host.cancel_all_background_tasks("missing"),
        SessionNotFound,
    ),
    "validate_async_handles_visible": Row(
        lambda host: _then(_live_task(host), lambda: host.validate_async_handles_visible("root", ["t"])),
        _is_none,
        lambda host: host.validate_async_handles_visible("root", ["missing"]),
        TaskNotFound,
    ),
    "transfer_async_handles": Row(
        lambda host: _with_child(host, lambda: host.transfer_async_handles("root", "child", [])),
        _is_none,
        lambda host: _with_child(host, lambda: host.transfer_async_handles("root", "child", ["missing"])),
        TaskNotFound,
    ),
    "cancel_unreferenced_async_handles": Row(
        lambda host: _then(_live_task(host), lambda: host.cancel_unreferenced_async_handles("root", ["t"])),
        lambda answer: answer == [],
        lambda host: host.cancel_unreferenced_async_handles("missing", []),
        SessionNotFound,
    ),
    "monitor_snapshot": Row(
        lambda host: _monitored(host, lambda: host.monitor_snapshot("root")),
        lambda answer: [one.state for one in answer.monitors] == [MonitorState.RUNNING],
        lambda host: host.monitor_snapshot("missing"),
        SessionNotFound,
    ),
    "take_monitor_updates": Row(
        lambda host: _monitored(host, lambda: host.take_monitor_updates("root")),
        lambda answer: answer.lost == 0,
        lambda host: host.take_monitor_updates("missing"),
        SessionNotFound,
    ),
    "start_monitor": Row(
        lambda host: _monitored(host, lambda: host.monitor_snapshot("root")),
        lambda answer: answer.monitors[0].spec == _SLEEPS,
        lambda host: host.start_monitor("missing", _SLEEPS),
        SessionNotFound,
    ),
    "stop_monitor": Row(
        lambda host: _then(host.start_monitor("root", _SLEEPS), lambda: host.stop_monitor("root", "m")),
        lambda answer: answer.monitors[0].state is MonitorState.STOPPED,
        lambda host: host.stop_monitor("root", "missing"),
        MonitorNotFound,
    ),
    "append_session_nodes": Row(
        lambda host: host.append_session_nodes("root", _NODES),
        lambda answer: isinstance(answer, Appended),
        lambda host: host.append_session_nodes("missing", _NODES),
        SessionNotFound,
    ),
    "direct_completion": Row(
        lambda host: host.direct_completion(DirectRequest(prompt="x"), "s"),
        lambda answer: answer.text == "re: x",
        lambda host: host.direct_completion(DirectRequest(prompt="x"), ""),
        InvalidArgument,
    ),
    "direct_llm_completion": Row(
        lambda host: host.direct_llm_completion(_ASKED, "s"),
        lambda answer: answer.response.text == "re: x",
        lambda host: host.direct_llm_completion(_ASKED, ""),
        InvalidArgument,
    ),
    "emit_trace_event": Row(lambda host: host.emit_trace_event("name", {"a": 1}), _is_none),
}
"""Where there is no call that fails, the method is documented not to."""


async def _applied(host: Any, more: int) -> object:
    """Apply the session's tool state, of another generation if requested."""
    state = await host.tool_state("root")
    from msgspec.structs import replace

    return await host.apply_tool_state("root", replace(state, generation=state.generation + more))


async def _then_with(first: Awaitable[str], second: Callable[[str], Awaitable[object]]) -> object:
    return await second(await first)


class Prober(Plugin):
    """A plugin that makes a call with the host of an action, and keeps the outcome."""

    def __init__(self, came: list[object]) -> None:
        self._came = came

    def __deepcopy__(self, memo: Any) -> Prober:
        return Prober(self._came)

    @action
    async def hand_out(self, ctx: Any) -> None:
        """Give the test the host that the plugin has."""
        self._came.append(ctx.host)

    @action
    async def probe(self, ctx: Any, args: str) -> None:
        """Make the call of a row."""
        name, _, part = args.partition(".")
        self._came.append(await getattr(ROWS[name], part)(ctx.host))


def _probed(place: Place, name: str) -> object:
    """Return the result of a call that a plugin makes."""
    came: list[object] = []

    async def main() -> None:
        async with staged(place, Prober(came)) as stage:
            await stage.session.plugins.invoke("prober.probe", name)
            await until(lambda: not stage.session._live.busy)

    asyncio.run(main())
    return came[-1]


_SLOW = {"monitor_snapshot", "take_monitor_updates", "start_monitor", "stop_monitor"}


def _rows(*, failing: bool = False) -> list[Any]:
    names = [name for name, row in ROWS.items() if not failing or row.fails is not None]
    return [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name for name in names]


def test_every_method_has_a_row() -> None:
    """Ours: a method that is added to the port has to be tested here."""
    assert set(ROWS) == set(methods_of(RuntimeSessionHost)) == set(SERVICES)


@pytest.mark.parametrize("method", _rows())
def test_a_plugin_may_call_every_method(memory: Place, method: str) -> None:
    """Seed: each method has its documented result."""
    answer = _probed(memory, f"{method}.works")
    assert ROWS[method].is_right(answer), answer


@pytest.mark.parametrize("method", _rows(failing=True))
def test_every_method_fails_with_its_own_error(memory: Place, method: str) -> None:
    """Seed: each method has its documented error."""
    error = ROWS[method].error
    assert error is not None
    with pytest.raises(error):
        _probed(memory, f"{method}.fails")


def test_a_stale_branch_is_a_result_and_not_an_error(memory: Place) -> None:
    """Seed: AppendSessionNodesResult::StaleBranch is a value."""

    async def main() -> None:
        async with staged(memory) as stage:
            await stage.session.turn("x")
            answer = await stage.host.append_session_nodes("root", _STALE)
            assert isinstance(answer, BranchIsStale)

    asyncio.run(main())


async def _refused(host: Any, method: str, call: Call) -> None:
    """Check that nothing happens, or that the service is reported as unavailable by its name."""
    if method in HARMLESS:
        assert await call(host) is None
        return
    with pytest.raises(ServiceUnavailable) as refused:
        await call(host)
    assert refused.value.service == SERVICES[method]


_PLAIN_CALLS: dict[str, tuple[Any, ...]] = {
    "snapshot_current": (),
    "snapshot_session": ("root",),
    "tool_catalog": ("root",),
    "tool_state": ("root",),
    "apply_tool_state": ("root", None),
    "set_tools_availability": ("root", ["look"], None),
    "set_tool_availability": ("root", "look", None),
    "create_session": (_FIRST,),
    "take_first_turn_input": ("root",),
    "close_session": ("root",),
    "start_turn_stream": ("root", said("x")),
    "await_turn": ("t_0",),
    "cancel_turn": ("t_0",),
    "start_turn": ("root", said("x")),
    "inject_turn_input": ("root", _INJECTED),
    "spawn_hidden_task": ("root", "label", _nothing),
    "await_hidden_tasks": ("root",),
    "spawn_managed_task": ("root", _task(), _nothing),
    "cancel_managed_task": ("root", "t"),
    "register_background_task": ("root", _task()),
    "unregister_background_task": ("root", "t"),
    "complete_background_task": ("root", "t", TaskState.COMPLETED),
    "transition_background_task_live_state": ("root", "t", TaskState.IDLE),
    "list_background_tasks": ("root",),
    "cancel_background_task": ("root", "t"),
    "cancel_all_background_tasks": ("root",),
    "validate_async_handles_visible": ("root", ["t"]),
    "transfer_async_handles": ("root", "child", ["t"]),
    "cancel_unreferenced_async_handles": ("root", []),
    "monitor_snapshot": ("root",),
    "take_monitor_updates": ("root",),
    "start_monitor": ("root", _SLEEPS),
    "stop_monitor": ("root", "m"),
    "append_session_nodes": ("root", _NODES),
    "direct_completion": (DirectRequest(prompt="x"), "s"),
    "direct_llm_completion": (_ASKED, "s"),
    "emit_trace_event": ("name",),
}


@pytest.mark.parametrize("method", ROWS)
def test_every_method_is_unavailable_after_the_runtime_is_closed(memory: Place, method: str) -> None:
    """Seed: the traits' defaults; a plugin that kept its host gets an error that names the service."""
    came: list[Any] = []

    async def main() -> None:
        async with staged(memory, Prober(came)) as stage:
            await stage.session.plugins.invoke("prober.hand_out")
            whole = stage.host
        for host in (came[0], whole):
            await _refused(host, method, lambda host: getattr(host, method)(*_PLAIN_CALLS[method]))

    asyncio.run(main())


_NEEDS_AGENT = (
    "tool_catalog", "tool_state", "apply_tool_state", "set_tools_availability", "set_tool_availability",
    "create_session", "start_turn_stream", "start_turn", "direct_completion", "direct_llm_completion",
)  # fmt: skip


@pytest.mark.parametrize("method", _NEEDS_AGENT)
def test_methods_are_unavailable_for_a_session_whose_agent_is_unknown(place: Place, method: str) -> None:
    """Ours: a session that is stored but not open here has no tools, no turns and no model."""

    async def main() -> None:
        async with staged(place):
            pass
        async with place.runtime() as runtime:
            call: Call = lambda host: getattr(host, method)(*_PLAIN_CALLS[method])  # noqa: E731
            with pytest.raises(ServiceUnavailable):
                await call(runtime.host("root"))

    asyncio.run(main())


@pytest.mark.parametrize("method", ["snapshot_session", "list_background_tasks", "monitor_snapshot"])
def test_methods_that_need_no_agent_work_for_any_stored_session(place: Place, method: str) -> None:
    """Ours: a program that only reads need not know the agent."""

    async def main() -> None:
        async with staged(place):
            pass
        async with place.runtime() as runtime:
            await getattr(runtime.host("root"), method)("root")

    asyncio.run(main())


def test_a_host_program_gets_all_services_of_any_session(memory: Place) -> None:
    """Ours: `Runtime.host` gives a program all services of a session."""

    async def main() -> None:
        async with staged(memory) as stage:
            assert isinstance(stage, Stage)
            host: RuntimeSessionHost = stage.runtime.host("root")
            assert repr(host) == "<RuntimeHost of root>"
            assert (await host.snapshot_current()).head.agent == "worker"
            with pytest.raises(SessionNotFound):
                await stage.runtime.host("unknown").snapshot_current()

    asyncio.run(main())
