"""Actions: methods that plugins offer to others by name, with JSON or typed values."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from plugin_bench import Actor, PhaseLog, session_of
from stand_ins import EchoModel, HeldModel, Place, until

from standfast import Agent
from standfast.errors import (
    InvalidArgument,
    InvalidPlugin,
    MissingSession,
    PluginActionError,
    PluginFailed,
    SessionBusy,
    UnexpectedSession,
    UnknownAction,
    UnknownSession,
)
from standfast.model.task import TaskRecord, TaskState
from standfast.plugins.actions import ActionMark, PluginActionContext, PluginActionDef, action, make_action
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.running import HookRunner


class Wanted(msgspec.Struct):
    """The item to add."""

    text: str
    times: int = 1


class Added(msgspec.Struct):
    """The result of adding an item."""

    total: int


class Board(Plugin):
    """A plugin that keeps a list."""

    @action
    async def status(self, ctx: PluginActionContext) -> dict[str, Any]:
        """Return the status of the board."""
        return {"items": self.state or [], "session": ctx.session_id}

    @action(kind="command", session="required")
    async def add(self, ctx: PluginActionContext, args: Wanted) -> Added:
        self.state = [*(self.state or []), *([args.text] * args.times)]
        return Added(total=len(self.state))

    @action(kind="task", session="forbidden", name="board.sweep")
    async def sweep_all(self, ctx: PluginActionContext) -> None:
        assert ctx.session_id is None

    @action
    async def echo(self, ctx: PluginActionContext, args: Any) -> Any:
        return args

    @action
    async def lie(self, ctx: PluginActionContext) -> int:
        return "not a number"  # type: ignore[return-value]


# Definitions


def test_an_action_is_described_by_its_types_and_its_docstring() -> None:
    """Seed: query, command or task with JSON Schemas and a session parameter."""
    found = {one.name: one for one in session_of(Board()).plugin_actions()}
    assert list(found) == ["board.status", "board.add", "board.sweep", "board.echo", "board.lie"]
    assert found["board.status"].description == "Return the status of the board."
    assert found["board.status"].input_schema == {"type": "null"}
    assert found["board.status"].output_schema["type"] == "object"
    add = found["board.add"]
    assert (add.plugin_id, add.kind, add.session_param) == ("board", "command", "required")
    assert add.input_schema["$defs"]["Wanted"]["required"] == ["text"]
    assert add.output_schema["$defs"]["Added"]["properties"] == {"total": {"type": "integer"}}
    sweep = found["board.sweep"]
    assert (sweep.kind, sweep.session_param, sweep.output_schema) == ("task", "forbidden", {"type": "null"})


def test_a_definition_can_be_sent() -> None:
    """Ours: clients receive actions as data."""
    [first, *_] = session_of(Board()).plugin_actions()
    assert msgspec.json.decode(msgspec.json.encode(first), type=PluginActionDef) == first


@pytest.mark.parametrize("wrong", [{"kind": "wish"}, {"session": "maybe"}])
def test_an_action_of_an_unknown_kind_is_refused(wrong: dict[str, Any]) -> None:
    """Ours: the decorator checks its arguments."""
    with pytest.raises(InvalidPlugin, match="an action cannot have kind"):
        action(**wrong)


def refused(method: Any) -> str:
    plugin = type("Broken", (Plugin,), {"act": action(method)})()
    with pytest.raises(InvalidPlugin) as caught:
        session_of(plugin)
    return caught.value.message


def test_an_action_with_an_invalid_signature_is_refused_when_the_session_is_built() -> None:
    """Ours: signatures are checked at registration."""

    def plain(self: Any, ctx: Any) -> None: ...

    async def nothing(self: Any) -> None: ...

    async def much(self: Any, ctx: Any, args: Any, more: Any) -> None: ...

    async def odd(self: Any, ctx: Any, args: complex) -> None: ...

    assert "is not `async def`" in refused(plain)
    assert "takes 0 parameters" in refused(nothing)
    assert "takes 3 parameters" in refused(much)
    assert "has no JSON Schema" in refused(odd)


def test_annotations_that_cannot_be_resolved_are_refused() -> None:
    """Ours: an action without types has no contract."""

    async def lost(self: Any, ctx: Any, args: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    assert "annotations of lost() of plugin 'broken' cannot be read" in refused(lost)


def test_an_action_can_be_registered_without_the_decorator() -> None:
    """Ours: a plugin can register its methods by hand."""

    class Handmade(Plugin):
        def register(self, registrar: PluginRegistrar) -> None:
            registrar.actions.add(self.ping)

        async def ping(self, ctx: PluginActionContext) -> str:
            return "pong"

    assert asyncio.run(session_of(Handmade()).invoke_plugin_action("handmade.ping")) == "pong"


# Calls


def test_an_action_accepts_and_returns_json() -> None:
    """Seed: actions can be invoked with JSON."""

    async def main() -> None:
        session = session_of(Board())
        assert await session.invoke_plugin_action("board.add", {"text": "a", "times": 2}) == {"total": 2}
        assert await session.invoke_plugin_action("board.status") == {"items": ["a", "a"], "session": "s"}
        assert await session.invoke_plugin_action("board.sweep") is None
        assert await session.invoke_plugin_action("board.echo", [1, {"a": None}]) == [1, {"a": None}]

    asyncio.run(main())


def test_an_action_accepts_and_returns_typed_values() -> None:
    """Seed: actions can be called with typed values."""

    async def main() -> None:
        session = session_of(Board())
        assert await session.call_plugin_action("board.add", Wanted(text="a"), Added) == Added(total=1)
        assert await session.call_plugin_action("board.status") == {"items": ["a"], "session": "s"}

    asyncio.run(main())


@pytest.mark.parametrize("arguments", [None, 3, {}, {"text": 1}, {"text": "a", "times": "many"}, []])
def test_invalid_arguments_are_refused_and_the_action_does_not_run(arguments: Any) -> None:
    """Ours: arguments are validated against the schema before the action runs."""

    async def main() -> None:
        session = session_of(Board())
        with pytest.raises(InvalidArgument, match=r"action 'board\.add': "):
            await session.invoke_plugin_action("board.add", arguments)
        assert (await session.invoke_plugin_action("board.status"))["items"] == []

    asyncio.run(main())


def test_an_answer_of_the_wrong_type_is_the_plugins_failure() -> None:
    """Seed: an answer that is not of the requested type is an error."""

    async def main() -> None:
        session = session_of(Board())
        with pytest.raises(PluginFailed, match=r"plugin 'board'.*its answer is invalid"):
            await session.call_plugin_action("board.echo", {"total": "x"}, Added)

    asyncio.run(main())


def test_an_answer_that_violates_the_declared_type_is_the_plugins_failure() -> None:
    """Bug: an action could return a type other than the one it declares."""

    async def main() -> None:
        with pytest.raises(PluginFailed, match="plugin 'board'"):
            await session_of(Board()).invoke_plugin_action("board.lie")

    asyncio.run(main())


def test_an_unknown_action_is_reported_with_the_known_ones() -> None:
    """Seed: an unknown action raises METHOD_NOT_FOUND with the known ones in the hint."""

    async def main() -> None:
        with pytest.raises(UnknownAction, match=r"action 'board\.wipe' does not exist") as caught:
            await session_of(Board()).invoke_plugin_action("board.wipe")
        assert "board.add" in str(caught.value.hint)
        assert caught.value.code == "METHOD_NOT_FOUND"
        with pytest.raises(UnknownAction) as caught:
            await session_of().invoke_plugin_action("board.wipe")
        assert caught.value.hint == "the actions are none"

    asyncio.run(main())


# Sessions


def test_an_action_works_on_the_current_session_unless_another_is_named() -> None:
    """Seed: default_to_current_session applies if no session is named."""

    async def main() -> None:
        session = session_of(Board())
        invoke = session.invoke_plugin_action
        assert (await invoke("board.status"))["session"] == "s"
        assert (await invoke("board.status", session_id="other"))["session"] == "other"
        assert (await invoke("board.status", default_to_current_session=False))["session"] is None

    asyncio.run(main())


def test_an_action_that_needs_a_session_is_refused_without_one() -> None:
    """Seed: an action without the session that it needs raises MissingSession."""

    async def main() -> None:
        with pytest.raises(MissingSession, match=r"action 'board\.add' needs a session"):
            await session_of(Board()).invoke_plugin_action(
                "board.add", {"text": "a"}, default_to_current_session=False
            )

    asyncio.run(main())


@pytest.mark.parametrize("call", ["invoke", "call"])
def test_a_host_may_call_an_action_without_a_session(memory: Place, call: str) -> None:
    """Bug: `session.plugins` always passed its own session, so MissingSession could not be raised."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel(), plugins=[Board()]))
            act = getattr(session.plugins, call)
            assert (await act("board.status"))["session"] == "s"
            assert (await act("board.status", default_to_current_session=False))["session"] is None
            with pytest.raises(MissingSession, match=r"action 'board\.add' needs a session"):
                await act("board.add", {"text": "a"}, default_to_current_session=False)

    asyncio.run(main())


class Indexer(Plugin):
    """A plugin with a long task; it runs in another thread, so the test signals it to continue."""

    def __init__(self, go: threading.Event) -> None:
        self._go = go

    def __deepcopy__(self, memo: Any) -> Indexer:
        return Indexer(self._go)

    @action(kind="task")
    async def index(self, ctx: PluginActionContext, args: list[str]) -> int:
        """Index files."""
        await asyncio.to_thread(self._go.wait, 10)
        if not args:
            raise ValueError("nothing to index")
        self.state = len(args)
        return len(args)

    @action
    async def indexed(self, ctx: PluginActionContext) -> int | None:
        """Return the number of indexed files."""
        return self.state if isinstance(self.state, int) else None


def test_an_action_of_kind_task_runs_as_a_recorded_task(place: Place) -> None:
    """Bug: tasks ran like commands: the caller waited, and the time limit of hooks applied."""

    async def main() -> None:
        go = threading.Event()
        agent: Agent[Any, Any] = Agent(EchoModel(), name="a", plugins=[Indexer(go)])
        async with place.runtime(hook_timeout_s=0.5) as runtime:
            session = await runtime.session("s", agent=agent)
            begun = await session.plugins.invoke("indexer.index", ["a", "b"])
            assert (begun["session_id"], begun["state"]) == ("s", "running")
            record: TaskRecord = await session.plugins.call("indexer.index", [], TaskRecord)
            assert record.label == "indexer.index"
            assert record.body == {"action": "indexer.index", "arguments": []}
            assert (await session.turn("beside it")).output == "re: beside it"
            with pytest.raises(InvalidArgument):
                await session.plugins.invoke("indexer.index", 7)
            await asyncio.sleep(0.6)  # longer than the time limit of hooks
            go.set()

            async def ended() -> bool:
                tasks = await runtime.host("s").list_background_tasks("s")
                return all(one.state.is_terminal for one in tasks)

            await until(ended)
            good, bad = await runtime.host("s").list_background_tasks("s")
            assert (good.id, good.state, good.result) == (begun["id"], TaskState.COMPLETED, 2)
            assert bad.state is TaskState.FAILED
            assert bad.error is not None
            assert "plugin 'indexer' failed in action: ValueError: nothing to index" in bad.error.message
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.plugins.invoke("indexer.indexed") == 2, "its change is kept"

    asyncio.run(main())


def test_the_task_of_an_action_can_be_cancelled(memory: Place) -> None:
    """Ours: the task of an action is a task like any other."""

    async def main() -> None:
        go = threading.Event()
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel(), plugins=[Indexer(go)]))
            begun = await session.plugins.invoke("indexer.index", ["a"])
            ended = await runtime.host("s").cancel_background_task("s", begun["id"])
            assert ended.state is TaskState.CANCELLED
            go.set()

    asyncio.run(main())


def test_an_action_that_takes_no_session_is_refused_with_one() -> None:
    """Seed: an action that is passed a session it does not take raises UnexpectedSession."""

    async def main() -> None:
        with pytest.raises(UnexpectedSession, match=r"action 'board\.sweep' takes no session"):
            await session_of(Board()).invoke_plugin_action("board.sweep", session_id="s")

    asyncio.run(main())


def test_the_errors_of_action_calls_share_a_base_class() -> None:
    """Ours: a caller can catch them together."""
    for kind in (UnknownAction, UnknownSession, MissingSession, UnexpectedSession):
        assert issubclass(kind, PluginActionError)


def test_an_action_is_probed_and_has_a_deadline() -> None:
    """Ours: an action runs under the same probe and deadline as a hook."""

    class Slow(Plugin):
        @action
        async def wait(self, ctx: PluginActionContext) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        log = PhaseLog()
        session = session_of(Slow(), runner=HookRunner(0.01, log))
        with pytest.raises(PluginFailed, match="plugin 'slow' failed in action: it did not answer within"):
            await session.invoke_plugin_action("slow.wait")
        assert log.lines == ["+plugin_hook.action.slow", "-plugin_hook.action.slow"]

    asyncio.run(main())


# Through a runtime's session


def test_a_host_can_call_actions_and_their_changes_are_stored(place: Place) -> None:
    """Seed: a command's changes are durable when the call returns."""

    async def main() -> None:
        agent = Agent(Actor(), plugins=[Board()])
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert "board.add" in [one.name for one in await session.plugins.actions()]
            assert await session.plugins.invoke("board.add", {"text": "a"}) == {"total": 1}
            assert await session.plugins.call("board.add", Wanted(text="b"), Added) == Added(total=2)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.plugins.invoke("board.status") == {"items": ["a", "b"], "session": "s"}

    asyncio.run(main())


def test_an_unknown_session_is_refused(memory: Place) -> None:
    """Seed: an action on a session that does not exist raises UnknownSession."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(Actor(), plugins=[Board()]))
            with pytest.raises(UnknownSession, match="'nowhere', which does not exist"):
                await session.plugins.invoke("board.status", session_id="nowhere")
            found = await session.plugins.invoke("board.status", session_id="s")
            assert found["session"] == "s"
            with pytest.raises(UnexpectedSession):
                await session.plugins.invoke("board.sweep", session_id="s")
            with pytest.raises(UnknownAction):
                await session.plugins.invoke("board.wipe")

    asyncio.run(main())


def test_during_a_turn_a_query_is_answered_and_a_commands_change_is_stored(memory: Place) -> None:
    """Ours: a change during a turn is stored with that turn's next write."""

    async def main() -> None:
        model = HeldModel()
        agent = Agent(model, plugins=[Board()])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            turn = session.turn("go")
            turn.start()
            await model.started.wait()
            await session.plugins.invoke("board.add", {"text": "a"})
            assert (await session.plugins.invoke("board.status"))["items"] == ["a"]
            model.go.set()
            await turn
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.plugins.invoke("board.status"))["items"] == ["a"]

    asyncio.run(main())


def test_a_command_is_refused_while_a_turn_waits(memory: Place) -> None:
    """Ours: plugin state must not change under a waiting turn."""

    class Asker(Plugin):
        @hook
        async def before_tool_call(self, ctx: Any) -> Any:
            from standfast.model.directive import ask_person

            return ask_person("sure?")

    async def note(text: str) -> str:
        """Write a note."""
        return text

    async def main() -> None:
        agent = Agent(Actor(), tools=[note], plugins=[Board(), Asker()])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert (await session.turn("go").settled()).status == "waiting"
            with pytest.raises(SessionBusy):
                await session.plugins.invoke("board.add", {"text": "a"})
            assert (await session.plugins.invoke("board.status"))["items"] == []

    asyncio.run(main())


def test_the_contract_of_an_action_is_built_once_for_all_sessions() -> None:
    """Ours: every session registers its plugins again, but their actions are the same."""

    class Adder(Plugin):
        id = "adder"

        @action
        async def add(self, ctx: PluginActionContext, args: Wanted) -> str:
            """Add a text."""
            return args.text

    first, second = (
        make_action("adder", Adder().add, ActionMark(None, "query", "optional")) for _ in range(2)
    )
    assert first.definition is second.definition
    assert first.handler != second.handler
    assert (first.takes, first.gives) == (Wanted, str)
