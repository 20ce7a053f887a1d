"""The context that a tool gets for its call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stand_ins import Place, agent_of, asks, go_on, results, until

from standfast import (
    Attachment,
    Capability,
    CompleteAfter,
    CompleteLater,
    ContinueAs,
    RegisteredTool,
    RunContext,
    SideEffect,
    ToolCallContext,
    tool,
)
from standfast.errors import InvalidArgument, ServiceUnavailable
from standfast.model.canonical import digest_bytes


@dataclass
class Bank:
    name: str


Seen = list[RunContext[Any]]


def watcher(seen: Seen, **options: Any) -> Any:
    """Return a tool that keeps the context of each of its calls."""

    @tool(name="note", **options)
    def note(ctx: RunContext[Bank], cents: int = 0) -> str:
        """Note.

        Args:
            cents: how many.
        """
        seen.append(ctx)
        return f"{ctx.deps.name if ctx.deps else None} {cents}"

    return note


def test_a_tool_gets_the_deps_of_the_run() -> None:
    """Seed: `@tool` on a typed function whose first parameter may be `RunContext[Deps]`."""
    seen: Seen = []
    agent = agent_of(asks(("note", {"cents": 5})), "end", tools=[watcher(seen)], deps_type=Bank)
    result = agent.run_sync("hi", deps=Bank("ours"))
    assert results(result.messages) == ["ours 5"]
    (ctx,) = seen
    assert (ctx.session_id, ctx.turn_id, ctx.call_id, ctx.attempt) == ("run", result.turn_id, 1, 1)
    assert ctx.idempotency_key == f"{result.turn_id}.1"


def test_async_tools_get_the_deps_too() -> None:
    """Seed: sync functions run in a thread, async ones on the loop."""

    @tool(side_effect="read")
    async def note(ctx: RunContext[str]) -> str:
        return ctx.deps

    assert results(agent_of(asks(("note", {})), "end", tools=[note]).run_sync("hi", deps="x").messages) == [
        "x"
    ]


def test_the_model_does_not_see_the_context() -> None:
    """Ours: the context is not a parameter of the contract, and cannot be passed in."""
    seen: Seen = []
    noted = watcher(seen)
    assert list(noted.capability.input_schema["properties"]) == ["cents"]
    result = agent_of(asks(("note", {"ctx": {"deps": 1}})), "end", tools=[noted]).run_sync("hi")
    assert results(result.messages) == ["INVALID_ARGUMENT"]
    assert seen == []


def test_a_context_that_is_not_the_first_parameter_is_refused() -> None:
    """Ours: the error is raised when the tool is created."""
    with pytest.raises(InvalidArgument, match="only the first"):

        @tool
        def late(cents: int, ctx: RunContext[Bank]) -> None:
            """Too late."""


def test_every_call_has_its_own_idempotency_key(memory: Place) -> None:
    """Seed: a repeated execution of an idempotent call has the same `idempotency_key`; other calls do not."""
    seen: Seen = []

    async def main() -> None:
        script = [asks(("note", {}), ("note", {"cents": 1})), asks(("note", {"cents": 2})), "end"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, "x", tools=[watcher(seen)]))
            await session.turn("hi")
        assert len({ctx.idempotency_key for ctx in seen}) == 3
        assert sorted(ctx.call_id for ctx in seen) == [1, 2, 3]

    asyncio.run(main())


@pytest.mark.slow
def test_the_idempotency_key_of_a_call_survives_a_restart(place: Place) -> None:
    """Seed: the key can be passed to the system that the tool calls."""
    keys: list[str] = []

    async def main() -> None:
        reached = asyncio.Event()

        @tool(side_effect="read")
        async def note(ctx: RunContext[None]) -> str:
            keys.append(ctx.idempotency_key)
            if len(keys) == 1:
                reached.set()
                await asyncio.Event().wait()
            return "noted"

        agent = agent_of(asks(("note", {})), "end", tools=[note])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await reached.wait()
        async with place.runtime() as second:
            result = await go_on(await second.session("s", agent=agent))
            assert results(result.messages) == ["noted"]
        assert len(keys) == 2
        assert len(set(keys)) == 1

    asyncio.run(main())


@pytest.mark.slow
def test_a_call_that_is_not_idempotent_is_not_run_again(place: Place) -> None:
    """Seed: a call without an outcome after a crash settles as INTERRUPTED, which the model reads."""
    ran: list[str] = []

    async def main() -> None:
        reached = asyncio.Event()

        async def charge() -> None:
            ran.append("charged")
            reached.set()
            await asyncio.Event().wait()

        agent = agent_of(asks(("charge", {})), "end", tools=[charge])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await reached.wait()
        async with place.runtime() as second:
            result = await go_on(await second.session("s", agent=agent))
            assert (result.output, results(result.messages)) == ("end", ["INTERRUPTED"])
        assert ran == ["charged"]

    asyncio.run(main())


@pytest.mark.slow
def test_a_registered_contract_that_does_not_declare_idempotence_is_not_run_again(place: Place) -> None:
    """Bug: a contract made with `Capability` was idempotent whatever its side effect, and paid twice."""
    ran: list[str] = []

    async def main() -> None:
        reached = asyncio.Event()

        async def charge(call: ToolCallContext) -> None:
            ran.append("charged")
            reached.set()
            await asyncio.Event().wait()

        contract = Capability(
            name="charge",
            description="Charge.",
            input_schema={"type": "object"},
            side_effect=SideEffect.EXTERNAL_SYSTEM,
        )
        agent = agent_of(asks(("charge", {})), "end", tools=[RegisteredTool.asynchronous(contract, charge)])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await reached.wait()
        async with place.runtime() as second:
            result = await go_on(await second.session("s", agent=agent))
            assert (result.output, results(result.messages)) == ("end", ["INTERRUPTED"])
        assert ran == ["charged"]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("approve", "outcome", "runs"), [(True, "charged", 2), (False, "INTERRUPTED", 1)])
def test_a_tool_may_let_a_person_decide_whether_to_run_again(
    place: Place, approve: bool, outcome: str, runs: int
) -> None:
    """Seed: `on_interrupted="ask"` asks a person whether to run it again."""
    ran: list[str] = []

    async def main() -> None:
        reached = asyncio.Event()

        @tool(on_interrupted="ask")
        async def charge(ctx: RunContext[None]) -> str:
            ran.append(ctx.idempotency_key)
            if len(ran) == 1:
                reached.set()
                await asyncio.Event().wait()
            return "charged"

        agent = agent_of(asks(("charge", {})), "end", tools=[charge])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await reached.wait()
        async with place.runtime() as second:
            session = await second.session("s", agent=agent)
            waiting = await go_on(session)
            assert waiting.status == "waiting"
            (asked,) = await session.approvals(pending=True)
            assert "interrupted" in (asked.reason or "")
            decide = session.approve if approve else session.deny
            assert results((await decide(asked.approval_id)).messages) == [outcome]
        assert len(ran) == runs
        assert len(set(ran)) == 1

    asyncio.run(main())


def test_a_tool_may_declare_that_running_again_is_safe(place: Place) -> None:
    """Seed: with `"retry"` the tool's author declares that it is safe."""
    ran: list[str] = []

    async def main() -> None:
        reached = asyncio.Event()

        @tool(on_interrupted="retry")
        async def charge() -> str:
            ran.append("ran")
            if len(ran) == 1:
                reached.set()
                await asyncio.Event().wait()
            return "charged"

        agent = agent_of(asks(("charge", {})), "end", tools=[charge])
        async with place.runtime() as first:
            (await first.session("s", agent=agent)).turn("hi").start()
            await reached.wait()
        async with place.runtime() as second:
            assert results((await go_on(await second.session("s", agent=agent))).messages) == ["charged"]
        assert len(ran) == 2

    asyncio.run(main())


def test_a_waiting_turn_keeps_its_deps(memory: Place) -> None:
    """Bug: after an approval the tool was called with the session's deps, or with none."""
    seen: Seen = []

    async def main() -> None:
        agent = agent_of(asks(("note", {})), "end", tools=[watcher(seen, approval="manual")])
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent, deps=Bank("the session's"))
            waiting = await session.turn("hi", deps=Bank("the turn's"))
            result = await session.approve(waiting.waits[0].wait_id)
            assert results(result.messages) == ["the turn's 0"]
        assert [ctx.attempt for ctx in seen] == [2]
        assert seen[0].idempotency_key == f"{waiting.turn_id}.1"

    asyncio.run(main())


def test_after_a_restart_a_turn_gets_the_sessions_deps(place: Place) -> None:
    """Ours: deps are kept in memory only, and are lost with their process."""

    async def main() -> None:
        agent = agent_of(asks(("note", {})), "end", tools=[watcher([], approval="manual")])
        async with place.runtime() as first:
            session = await first.session("s", agent=agent, deps=Bank("old"))
            wait = (await session.turn("hi")).waits[0]
        async with place.runtime() as second:
            session = await second.session("s", agent=agent, deps=Bank("new"))
            assert results((await session.approve(wait.wait_id)).messages) == ["new 0"]

    asyncio.run(main())


def test_a_context_outside_of_a_turn_has_no_completion_token() -> None:
    """Ours: only a turn of an agent can wait."""
    with pytest.raises(InvalidArgument, match="turn"):
        RunContext(None).completion_token()


def test_a_tool_may_declare_an_immediate_or_a_later_value(memory: Place) -> None:
    """Ours: the contract has the type of the value, and a later value is checked against it."""

    def now_or_later(late: bool) -> int | CompleteAfter:
        return CompleteAfter(0, "no number") if late else 5

    def elsewhere() -> int | CompleteLater | ContinueAs:
        return ContinueAs("the task")

    async def main() -> None:
        tools = [now_or_later, elsewhere]
        script = [asks(("now_or_later", {"late": False}), ("now_or_later", {"late": True})), "end"]
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, tools=tools))
            await session.turn("hi")
            assert results((await go_on(session)).messages) == [5, "TOOL_ERROR"]

    asyncio.run(main())


# Attachments and triggers


@tool(side_effect="write")
async def chart(ctx: RunContext[Any], title: str) -> str:
    """Draw a chart."""
    part = ctx.attachments.keep(title.encode(), media_type="image/png", name="chart.png")
    assert await ctx.attachments.read(part.digest) in (None, title.encode())
    return part.digest


@tool(side_effect="write")
def sketch(ctx: RunContext[Any], title: str) -> str:
    """Draw a sketch, on a thread."""
    return ctx.attachments.keep(title.encode(), media_type="image/png", name="sketch.png").digest


@pytest.mark.parametrize("name", ["chart", "sketch"])
@pytest.mark.parametrize("protocol", ["standard", "code"])
def test_a_tool_can_attach_files_to_its_result(place: Place, protocol: str, name: str) -> None:
    """Bug: the seed's tools have the attachment store in their context; ours had none."""

    async def main() -> None:
        script = (asks((name, {"title": "Q3"})), "Done.")
        if protocol == "code":
            script = (f"```python\n{name}('Q3')\n```", "Done.")  # type: ignore[assignment]
        agent = agent_of(*script, tools=[chart, sketch], protocol=protocol)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            result = await session.turn("draw")
            kept = [part for one in result.messages for part in getattr(one, "attachments", ())]
            [part] = [one for one in kept if one.name == f"{name}.png"]
            digest = digest_bytes(b"Q3")
            assert (part.digest, part.media_type, part.size) == (digest, "image/png", 2)
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.attachment(digest) == b"Q3"

    asyncio.run(main())


@pytest.mark.parametrize("given", [{"name": "caf\udce9"}, {"name": 5}, {"media_type": None}])
def test_an_attachment_that_could_not_be_stored_fails_the_call(place: Place, given: dict[str, Any]) -> None:
    """Bug: the turn could not end, or was stored and could not be read."""

    @tool(side_effect="read")
    def scan(ctx: RunContext[Any]) -> None:
        ctx.attachments.keep(b"x", **{"media_type": "image/png", **given})

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(asks(("scan", {})), "Done.", tools=[scan]))
            assert results((await session.turn("scan it")).messages) == ["INVALID_ARGUMENT"]
            with pytest.raises(InvalidArgument, match="the name of an attachment must be text"):
                session.turn(Attachment(b"x", **given))
        async with place.runtime() as runtime:
            assert len(await runtime.session_handle("s").messages()) == 4

    asyncio.run(main())


def test_a_file_whose_name_is_not_utf8_can_be_attached(tmp_path: Path, memory: Place) -> None:
    """Bug: the turn failed with `UnicodeEncodeError`."""
    file = tmp_path / "caf\udce9.png"
    file.write_bytes(b"x")

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("Done."))
            assert (await session.turn(Attachment.from_path(file))).output == "Done."

    asyncio.run(main())


def test_a_tool_can_read_the_users_attachments(memory: Place) -> None:
    """Ours: the digest of an attachment is in the message; a tool reads its bytes on request."""
    read: list[bytes | None] = []

    @tool(side_effect="read")
    async def scan(ctx: RunContext[Any], digest: str) -> None:
        """Read an attachment."""
        read.append(await ctx.attachments.read(digest))

    async def main() -> None:
        digest = digest_bytes(b"%PDF")
        async with memory.runtime() as runtime:
            agent = agent_of(asks(("scan", {"digest": digest})), "Done.", tools=[scan])
            session = await runtime.session("s", agent=agent)
            await session.turn(["read it", Attachment(b"%PDF", media_type="application/pdf")])
        assert read == [b"%PDF"]

    asyncio.run(main())


def test_a_tool_can_report_an_occurrence_once(place: Place) -> None:
    """Bug: the seed's tools have a trigger router in their context; ours had none."""
    woken: list[int] = []

    @tool(side_effect="write")
    async def ship(ctx: RunContext[Any], order: str) -> None:
        """Ship an order."""
        woken.append(await ctx.triggers.occur("shipped", {"order": order}))
        woken.append(await ctx.triggers.occur("shipped", {"order": order}))
        woken.append(await ctx.triggers.occur("shipped", {"order": order}, key="other"))
        assert dict(ctx.triggers.sources) == {}

    async def main() -> None:
        async with place.runtime() as runtime:
            mailer = await runtime.session("mailer", agent=agent_of("Sent.", "Sent.", name="mailer"))
            await runtime.add_trigger("mail", "shipped", "mailer", prompt="Tell them: {payload}")
            agent = agent_of(asks(("ship", {"order": "A1"})), "Done.", tools=[ship], name="clerk")
            await (await runtime.session("s", agent=agent)).turn("ship A1")
            assert woken == [1, 0, 1]

            async def told() -> bool:
                return len(await mailer.turns()) == 2

            await until(told)
            assert "A1" in str((await mailer.messages())[0])

    asyncio.run(main())


def test_a_context_outside_of_turns_has_neither_attachments_nor_triggers() -> None:
    """Ours: an unavailable service raises an error that says so."""

    async def main() -> None:
        ctx: RunContext[None] = RunContext(None)
        with pytest.raises(ServiceUnavailable, match="attachments"):
            ctx.attachments.keep(b"x", media_type="text/plain")
        with pytest.raises(ServiceUnavailable, match="attachments"):
            await ctx.attachments.read("x")
        with pytest.raises(ServiceUnavailable, match="triggers"):
            await ctx.triggers.occur("shipped")

    asyncio.run(main())
