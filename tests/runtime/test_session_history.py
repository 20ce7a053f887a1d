"""A session's history: branches, frames, appended nodes, attachments, the ledger, and retention."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from stand_ins import EchoModel, Place, StagedModel, agent_of, asks, results, said, until

from standfast import Agent, Attachment, ContinueAs, Runtime, TurnStopped, UserMessage, tool
from standfast.errors import (
    InvalidArgument,
    NodeNotFound,
    ProviderMismatch,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    StaleBranch,
)
from standfast.model.canonical import digest_bytes
from standfast.model.limits import Usage
from standfast.model.message import AssistantMessage, AttachmentPart, ToolMessage
from standfast.model.session import FrameOpened, PluginNode, TurnEnded, TurnState
from standfast.ports.model_provider import ModelRequest, ReplyEnded


def look(key: str) -> str:
    return f"seen {key}"


async def talked(runtime: Any, name: str = "s", turns: int = 3) -> Any:
    """Return a session with some turns."""
    session = await runtime.session(name, agent=Agent(EchoModel()))
    for number in range(1, turns + 1):
        await session.turn(f"n{number}")
    return session


# Fork


def test_a_fork_shares_only_the_past(place: Place) -> None:
    """Seed: fork creates a new session over shared history."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=2)
            fork = await session.fork("other")
            assert await fork.nodes() == await session.nodes()
            await fork.turn("in the fork")
            await session.turn("in the first")
            assert said(await fork.messages()) == ["n1", "n2", "in the fork"]
            assert said(await session.messages()) == ["n1", "n2", "in the first"]
            assert (await fork.head()).forked_from == "s"
            assert [one.usage.calls for one in await fork.usage()] == [1]
            assert len(await fork.turns()) == 1

    asyncio.run(main())


@pytest.mark.slow
def test_a_fork_of_a_long_history_takes_no_more_steps_than_one_of_a_short_history(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed: forking costs O(1). Each node that is read or written takes steps in Python, on some thread."""
    steps: Counter[str] = Counter()
    counted = ""

    def count(frame: FrameType, event: str, argument: object) -> None:
        steps[counted] += 1

    async def main() -> None:
        nonlocal counted
        async with place.runtime() as runtime:
            for name, turns in (("warm-up", 2), ("short", 2), ("long", 60)):
                session = await talked(runtime, name, turns)
                before = await session.nodes()
                counted = name
                fork = await session.fork(f"{name}-fork")
                counted = ""
                assert (await fork.head()).leaf == (await session.head()).leaf
                assert [one.id for one in await fork.nodes()] == [one.id for one in before]

    monkeypatch.setattr(threading, "_profile_hook", count)  # for the store's threads
    outer = sys.getprofile()
    sys.setprofile(count)
    try:
        asyncio.run(main())
    finally:
        sys.setprofile(outer)
    assert 0 < steps["long"] < 2 * steps["short"]  # reading the nodes would make it four times as many


def test_a_fork_may_begin_at_any_node(place: Place) -> None:
    """Ours: nodes after the named one are not in the fork."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime)
            nodes = await session.nodes()
            fork = await session.fork("other", at=nodes[2].id)
            assert said(await fork.messages()) == ["n1", "n2"]
            assert (await fork.head()).depth == 3
            await fork.turn("on")
            assert said(await session.messages()) == ["n1", "n2", "n3"]
            with pytest.raises(NodeNotFound):
                await session.fork("third", at="t_never.0")
            with pytest.raises(InvalidArgument):
                await session.fork("third", at="nonsense")
            with pytest.raises(SessionExists):
                await session.fork("other")
            with pytest.raises(SessionNotFound):
                await runtime.fork("unknown", "third")

    asyncio.run(main())


def test_a_fork_continues_in_another_runtime(place: Place) -> None:
    """Ours: a fork is a session like any other."""

    async def main() -> None:
        async with place.runtime() as first:
            await (await talked(first)).fork("other")
        async with place.runtime() as second:
            fork = await second.session("other", agent=Agent(EchoModel()))
            assert (await fork.turn("on")).output == "re: on"
            assert said(await fork.messages()) == ["n1", "n2", "n3", "on"]

    asyncio.run(main())


# Rewind


def test_a_session_can_be_rewound_by_turns_and_moved_forward_again(place: Place) -> None:
    """Seed: rewind moves the leaf; branching never rewrites."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime)
            last = (await session.head()).leaf
            await session.rewind(turns=2)
            assert said(await session.messages()) == ["n1"]
            await session.turn("another way")
            assert said(await session.messages()) == ["n1", "another way"]
            await session.rewind(last)
            assert said(await session.messages()) == ["n1", "n2", "n3"]
            await session.turn("n4")
            assert said(await session.messages()) == ["n1", "n2", "n3", "n4"]

    asyncio.run(main())


def test_the_model_sees_the_current_branch(place: Place) -> None:
    """Ours: the session cache follows the leaf."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            for text in ("a", "b"):
                await session.turn(text)
            first = (await session.nodes())[1].id
            await session.rewind(first)
            await session.turn("c")
            await session.rewind(first)
            await session.turn("d")
            assert [said(one.messages) for one in model.requests] == [
                ["a"],
                ["a", "b"],
                ["a", "c"],
                ["a", "d"],
            ]
            assert [one.call_number for one in model.requests] == [1, 2, 2, 2]

    asyncio.run(main())


def test_nodes_appended_by_the_host_do_not_count_as_turns_in_a_rewind(place: Place) -> None:
    """Bug: a node appended by the host counted as a turn."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=2)
            await session.append([PluginNode(plugin_id="p", kind="note")])
            await session.rewind(turns=1)
            assert said(await session.messages()) == ["n1"]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [0, -1, 3, 99])
def test_a_session_cannot_be_rewound_past_its_beginning(place: Place, turns: int) -> None:
    """Ours: a clear error is raised, and the leaf does not move."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime)
            with pytest.raises(InvalidArgument, match="cannot go back"):
                await session.rewind(turns=turns)
            assert said(await session.messages()) == ["n1", "n2", "n3"]

    asyncio.run(main())


def test_a_session_can_be_rewound_only_to_its_own_nodes(place: Place) -> None:
    """Ours: a node of another session is not found."""

    async def main() -> None:
        async with place.runtime() as runtime:
            mine, other = await talked(runtime, "mine"), await talked(runtime, "other")
            with pytest.raises(NodeNotFound):
                await mine.rewind((await other.nodes())[0].id)
            with pytest.raises(SessionNotFound):
                await runtime.rewind("unknown", turns=1)

    asyncio.run(main())


def test_calls_left_without_a_result_by_a_rewind_get_one(place: Place) -> None:
    """Seed: every call in the history has a result."""

    async def main() -> None:
        script = [asks(("look", {"key": "a"}), ("look", {"key": "b"})), "end", "next"]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of(*script, "next", tools=[look]))
            await session.turn("hi")
            nodes = await session.nodes()
            await session.rewind(nodes[2].id)  # after the first of the two results
            assert results(await session.messages()) == ["seen a", "CANCELLED"]
            await session.rewind(nodes[1].id)
            assert results(await session.messages()) == ["CANCELLED", "CANCELLED"]
            assert (await session.turn("go on")).status == "finished"
            assert results(await session.messages()) == ["CANCELLED", "CANCELLED"]

    asyncio.run(main())


def test_a_session_cannot_be_rewound_during_a_turn(place: Place) -> None:
    """Ours: a session has one writer at a time."""

    @tool(approval="manual")
    def pay() -> None:
        """Pay."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of("one", asks(("pay", {})), "end", tools=[pay]))
            await session.turn("one")
            await session.turn("two")
            with pytest.raises(SessionBusy):
                await session.rewind((await session.nodes())[0].id)

    asyncio.run(main())


# Frames


def test_the_model_sees_the_current_frame_and_older_frames_stay_readable(place: Place) -> None:
    """Seed: frames are context boundaries inside a session."""

    async def main() -> None:
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            await session.turn("old")
            head = await session.open_frame(reason="compaction", seed=["in short: old"])
            assert head.frame != "initial"
            await session.turn("new")
            assert said(model.requests[-1].messages) == ["in short: old", "new"]
            nodes = await session.nodes()
            assert said(one.payload for one in nodes) == ["old", "new"]
            assert {one.frame for one in nodes} == {"initial", head.frame}
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            await session.turn("newer")
            assert said(model.requests[-1].messages) == ["in short: old", "new", "newer"]

    asyncio.run(main())


def test_rewinding_past_a_frame_switch_restores_the_old_frame(place: Place) -> None:
    """Ours: a rewind also restores the frame."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=2)
            leaf = (await session.head()).leaf
            await session.open_frame(seed=["afresh"])
            await session.turn("n3")
            await session.rewind(leaf)
            assert (await session.head()).frame == "initial"
            await session.turn("n4")
            assert said(await session.messages()) == ["n1", "n2", "n4"]

    asyncio.run(main())


def test_a_tool_may_end_the_turn_by_opening_a_frame_whose_task_runs_next(place: Place) -> None:
    """Seed: `continue_as(task, seed)` opens a frame."""

    def move_on() -> int | ContinueAs:
        return ContinueAs("write the report", seed=(UserMessage(content="what we know"),))

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(asks(("move_on", {})), "the report", tools=[move_on])
            session = await runtime.session("s", agent=agent)
            result = await session.turn("research")
            assert (result.status, result.output) == ("frame_switched", None)
            assert results(result.messages) == ["continued in a new frame"]

            async def both_ended() -> bool:
                return [one.state for one in await session.turns()] == [TurnState.ENDED] * 2

            await until(both_ended)
            messages = await session.messages()
            assert said(messages) == ["what we know", "write the report"]
            assert isinstance(messages[-1], AssistantMessage)
            assert any(isinstance(one.payload, FrameOpened) for one in await session.nodes())

    asyncio.run(main())


@pytest.mark.parametrize("answer", [ContinueAs(5), ContinueAs("x", seed=("text",)), ContinueAs("\ud800")])  # type: ignore[arg-type]
def test_a_frame_that_could_not_be_read_back_is_refused(place: Place, answer: Any) -> None:
    """Bug: such a frame was stored, and the session could not be reopened."""

    def move_on() -> Any:
        return answer

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session(
                "s", agent=agent_of(asks(("move_on", {})), "end", tools=[move_on])
            )
            result = await session.turn("hi")
            assert (result.output, results(result.messages)) == ("end", ["INVALID_ARGUMENT"])

    asyncio.run(main())


# Append


def test_nodes_can_be_appended_at_the_leaf(place: Place) -> None:
    """Seed: `append_session_nodes(nodes, requires_ancestor_node_id)` adds nodes at the leaf."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=1)
            leaf = (await session.head()).leaf
            note = PluginNode(plugin_id="p", kind="note", body={"n": 1})
            head = await session.append([note, UserMessage(content="by the host")], requires=leaf)
            assert head.depth == 4
            nodes = await session.nodes()
            assert nodes[2].payload == note
            assert nodes[2].parent == leaf
            assert (await session.turn("n2")).output == "re: n2"
            assert said(await session.messages()) == ["n1", "by the host", "n2"]

    asyncio.run(main())


def test_appending_after_a_node_off_the_active_path_writes_nothing(place: Place) -> None:
    """Seed: the call raises `StaleBranch{current_leaf_node_id}` and writes nothing."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime)
            gone = (await session.head()).leaf
            await session.rewind(turns=1)
            leaf = (await session.head()).leaf
            with pytest.raises(StaleBranch) as caught:
                await session.append([UserMessage(content="late")], requires=gone)
            assert caught.value.current_leaf_node_id == leaf
            assert (await session.head()).leaf == leaf
            await session.append([UserMessage(content="fine")], requires=(await session.nodes())[0].id)

    asyncio.run(main())


@pytest.mark.parametrize("payload", ["text", 5, None, UserMessage(content=5), UserMessage(content="\ud800")])  # type: ignore[arg-type]
def test_an_invalid_node_is_refused(place: Place, payload: Any) -> None:
    """Bug: such a node was stored, and the session could not be reopened."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=1)
            with pytest.raises(InvalidArgument):
                await session.append([payload])
            assert (await session.turn("n2")).output == "re: n2"

    asyncio.run(main())


def test_appending_an_empty_list_changes_nothing(place: Place) -> None:
    """Ours: the leaf and the depth stay the same."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime, turns=1)
            before = await session.head()
            after = await session.append([])
            assert (after.leaf, after.depth) == (before.leaf, before.depth)

    asyncio.run(main())


def test_a_stopped_turn_records_its_end_in_the_history(place: Place) -> None:
    """Ours: the history shows a reader why there is no answer."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent_of({"failure": {"message": "no"}}))
            with pytest.raises(TurnStopped):
                await session.turn("hi")
            last = (await session.nodes())[-1].payload
            assert isinstance(last, TurnEnded)
            assert last.outcome.error.message == "no"

    asyncio.run(main())


# Usage


def test_the_ledger_has_an_entry_for_each_source_and_model(place: Place) -> None:
    """Seed: the usage ledger is by source and model."""

    async def main() -> None:
        async def two_models(request: ModelRequest) -> Any:
            model = f"staged:{request.call_number % 2}"
            yield ReplyEnded(text="x", usage=Usage(input=10, output=5, reasoning=2), model=model)

        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(StagedModel(two_models)))
            for text in ("a", "b", "c"):
                result = await session.turn(text)
                assert result.usage == Usage(input=10, output=5, reasoning=2, calls=1)
            lines = {(one.source, one.model): one.usage for one in await session.usage()}
            assert lines == {
                ("turn", "staged:1"): Usage(input=20, output=10, reasoning=4, calls=2),
                ("turn", "staged:0"): Usage(input=10, output=5, reasoning=2, calls=1),
            }

    asyncio.run(main())


# Attachments


def test_an_attachment_is_stored_once_by_its_content(place: Place) -> None:
    """Seed: attachments are stored once by content, and never inside rows."""

    async def main() -> None:
        data = b"\x89PNG" + bytes(100_000)
        digest = digest_bytes(data)
        model = EchoModel()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(model))
            picture = Attachment(data, "image/png", "a.png")
            await session.turn(["what is this?", picture])
            size = place.path.stat().st_size if place.path else 0
            await session.turn(["and this?", picture, Attachment(data, "image/png", "b.png")])
            await session.inject(picture)
            await session.turn("well?")
            assert await session.attachment(digest) == data
            parts = [
                part
                for message in model.requests[-1].messages
                if isinstance(message, UserMessage) and not isinstance(message.content, str)
                for part in message.content
                if isinstance(part, AttachmentPart)
            ]
            assert {part.digest for part in parts} == {digest}
            assert [part.name for part in parts] == ["a.png", "a.png", "b.png", "a.png"]
            assert {(part.media_type, part.size) for part in parts} == {("image/png", len(data))}
            if place.path:
                assert place.path.stat().st_size - size < len(data)
            with pytest.raises(InvalidArgument, match="no attachment"):
                await session.attachment("0" * 64)

    asyncio.run(main())


def test_a_file_is_attached_with_its_media_type(tmp_path: Path) -> None:
    """Ours: the media type of an attachment comes from its path."""
    file = tmp_path / "a.png"
    file.write_bytes(b"x")
    assert Attachment.from_path(file) == Attachment(b"x", "image/png", "a.png")
    assert Attachment.from_path(file, "text/plain").media_type == "text/plain"
    with pytest.raises(InvalidArgument, match="cannot read"):
        Attachment.from_path(tmp_path / "none.png")


def test_data_that_is_not_bytes_is_refused(memory: Place) -> None:
    """Bug: the caller got a TypeError of the digest function."""

    async def main() -> None:
        async with memory.runtime() as runtime:
            session = await runtime.session("s", agent=Agent(EchoModel()))
            with pytest.raises(InvalidArgument, match="bytes"):
                session.turn(Attachment("text"))  # type: ignore[arg-type]

    asyncio.run(main())


# Sessions


def test_a_session_stays_with_its_provider_but_a_fork_may_change_it(place: Place) -> None:
    """Seed: ProviderMismatch is raised if the stored provider is not that of the agent."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await talked(runtime)
            with pytest.raises(ProviderMismatch) as caught:
                await runtime.session("s", agent=agent_of("hello"))
            assert (caught.value.expected, caught.value.actual) == ("echo:one", "scripted:script")
            assert (await session.turn("n4")).output == "re: n4"
            await session.fork("other")
            other = await runtime.session("other", agent=agent_of(*["hello"] * 9))
            assert (await other.turn("hi")).output == "hello"

    asyncio.run(main())


def test_another_model_of_the_same_provider_may_take_over(place: Place) -> None:
    """Ours: the history depends on the provider, not on the model."""

    async def main() -> None:
        async with place.runtime() as runtime:
            await talked(runtime)
            model = EchoModel()
            model.model_id = "echo:two"
            session = await runtime.session("s", agent=Agent(model))
            await session.turn("n4")
            assert (await session.head()).model == "echo:two"

    asyncio.run(main())


def test_sessions_are_listed_with_the_last_used_first(place: Place) -> None:
    """Ours: users usually look for the most recent session."""

    async def main() -> None:
        async with place.runtime(host={"program": "test"}) as runtime:
            for name in ("a", "b", "c"):
                await talked(runtime, name, turns=1)
                place.clock.advance(1)
            await (await runtime.session("a")).turn("again")
            heads = await runtime.sessions()
            assert [one.session_id for one in heads] == ["a", "c", "b"]
            assert (heads[0].agent, heads[0].model) == ("agent", "echo:one")
            assert heads[0].host == {"program": "test"}
            assert await runtime.delete("b")
            assert not await runtime.delete("b")
            assert [one.session_id for one in await runtime.sessions()] == ["a", "c"]

    asyncio.run(main())


def test_pruned_data_is_deleted_and_the_rest_stays_usable(place: Place) -> None:
    """Seed: `prune` deletes by age, frame or branch, and the file shrinks."""

    async def main() -> None:
        async with place.runtime() as runtime:
            await talked(runtime, "old")
            place.clock.advance(3600)
            session = await talked(runtime, "s")
            await session.rewind(turns=1)
            assert (await runtime.prune(branches=True)).segments == 1
            assert said(await session.messages()) == ["n1", "n2"]
            await session.open_frame(seed=["in short"])
            assert (await runtime.prune(frames=True, session="s")).segments == 2
            assert (await session.turn("n3")).output == "re: n3"
            assert said(await session.messages()) == ["in short", "n3"]
            assert (await runtime.prune(older_than_s=1800)).sessions == 1
            assert [one.session_id for one in await runtime.sessions()] == ["s"]

    asyncio.run(main())


def test_the_history_of_a_turn_is_a_chain_of_nodes(place: Place) -> None:
    """Seed: a node has an id, a parent, a frame, a cause, a time and a payload."""

    async def main() -> None:
        async with place.runtime() as runtime:
            agent = agent_of(asks(("look", {"key": "a"})), "end", tools=[look])
            session = await runtime.session("s", agent=agent)
            result = await session.turn("hi")
            nodes = await session.nodes()
            assert [type(one.payload) for one in nodes] == [
                UserMessage,
                AssistantMessage,
                ToolMessage,
                AssistantMessage,
            ]
            assert [one.parent for one in nodes] == [None, *(one.id for one in nodes[:-1])]
            assert {one.caused_by for one in nodes} == {result.turn_id}
            assert {one.at_ms for one in nodes} == {place.clock.now_ms()}
            assert tuple(one.payload for one in nodes) == result.messages

    asyncio.run(main())


def test_prune_refuses_a_negative_age() -> None:
    """Bug: it deleted every idle session, whatever its age."""

    async def main() -> None:
        async with Runtime() as runtime:
            await (await runtime.session("s", agent=agent_of("end"))).turn("one")
            with pytest.raises(InvalidArgument, match="older_than_s must be a number of seconds"):
                await runtime.prune(older_than_s=-1)
            assert [head.session_id for head in await runtime.sessions()] == ["s"]

    asyncio.run(main())
