"""The system prompt of a session: four layers over six slots; a turn's layer survives its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from plugin_stand_ins import ObedientModel
from stand_ins import Place, StagedModel, go_on

from standfast import Agent, Plugin, hook, tool
from standfast.errors import InvalidArgument
from standfast.model.prompt import PromptContribution, PromptLayer, PromptSlot
from standfast.ports.model_provider import ModelDelta, ModelRequest, ReplyEnded


def piece(content: str, slot: PromptSlot = PromptSlot.GUIDANCE, priority: int = 0) -> PromptContribution:
    return PromptContribution(content=content, slot=slot, priority=priority)


def everywhere(layer: str, *replaced: PromptSlot) -> PromptLayer:
    """Return a layer with a text in every slot."""
    return PromptLayer(
        contributions=tuple(piece(f"{layer} {slot}", slot) for slot in PromptSlot),
        replaces=frozenset(replaced),
    )


async def prompt_of(
    place: Place,
    *,
    runtime: Any = None,
    agent: Any = None,
    session: Any = (),
    turn: Any = None,
    instructions: str = "",
    plugins: Any = (),
) -> str:
    """Return the prompt of a turn with these layers."""
    model = ObedientModel()
    async with place.runtime(system=runtime) as opened:
        made = await opened.session(
            "s", agent=Agent(model, instructions=instructions, system=agent, plugins=plugins)
        )
        await made.set_context_overlay(prompt_contributions=session)
        await made.turn("hello", system=turn)
    return model.prompts[0]


def test_four_layers_contribute_to_six_slots(memory: Place) -> None:
    """Seed: slots come in their order; within one, the layers from the runtime up to the turn."""
    prompt = asyncio.run(
        prompt_of(
            memory,
            runtime=everywhere("runtime"),
            agent=everywhere("agent"),
            session=everywhere("session").contributions,
            turn=everywhere("turn"),
        )
    )
    layers = ("runtime", "agent", "session", "turn")
    assert prompt == "\n\n".join(f"{layer} {slot}" for slot in PromptSlot for layer in layers)
    assert [str(slot) for slot in PromptSlot] == [
        "intro",
        "execution",
        "guidance",
        "project_instructions",
        "runtime_context",
        "environment",
    ]


def test_a_priority_takes_precedence_over_a_layer(memory: Place) -> None:
    """Seed: sorted by slot, then by ascending priority; the sort is stable."""
    prompt = asyncio.run(
        prompt_of(
            memory,
            runtime=[piece("r1", priority=1), piece("r0")],
            agent=[piece("a0"), piece("a-5", priority=-5)],
            turn=[piece("t1", priority=1), "t0"],
        )
    )
    assert prompt.split("\n\n") == ["a-5", "r0", "a0", "t0", "r1", "t1"]


def test_duplicate_contributions_appear_once(memory: Place) -> None:
    """Seed: duplicates by (slot, priority, stripped text) are dropped; the first one wins."""
    prompt = asyncio.run(
        prompt_of(
            memory,
            runtime=["be brief", piece("be brief", priority=1), piece("be brief", PromptSlot.INTRO)],
            agent=["  be brief\n"],
            session=["be kind", " "],
            turn=["be brief", "be kind"],
        )
    )
    assert prompt.split("\n\n") == ["be brief", "be brief", "be kind", "be brief"]


def test_the_agents_instructions_fill_the_first_slot(memory: Place) -> None:
    """Ours: `instructions` is the agent's text in the first slot."""
    prompt = asyncio.run(
        prompt_of(
            memory,
            instructions="You are a clerk.",
            agent=["mind the queue"],
            runtime=[piece("House rules.", PromptSlot.INTRO)],
        )
    )
    assert prompt == "House rules.\n\nYou are a clerk.\n\nmind the queue"


@pytest.mark.parametrize("slot", PromptSlot)
def test_a_layer_can_replace_slots_of_the_layers_below_it(memory: Place, slot: PromptSlot) -> None:
    """Seed: a layer may replace whole slots of the layers below it, and of no others."""
    prompt = asyncio.run(
        prompt_of(
            memory,
            runtime=everywhere("runtime"),
            agent=everywhere("agent", slot),
            session=everywhere("session").contributions,
        )
    )
    said = prompt.split("\n\n")
    assert f"runtime {slot}" not in said
    assert len(said) == 3 * len(PromptSlot) - 1


def test_a_turn_may_replace_everything_but_only_for_itself(memory: Place) -> None:
    """Ours: the next turn has the original prompt."""

    async def main() -> None:
        model = ObedientModel()
        async with memory.runtime(system=everywhere("runtime")) as runtime:
            session = await runtime.session("s", agent=Agent(model, instructions="You are a clerk."))
            await session.turn("hello", system=PromptLayer(replaces=frozenset(PromptSlot)))
            await session.turn("hello", system=everywhere("turn", *PromptSlot))
            await session.turn("hello")
        assert model.prompts[0] == ""
        assert model.prompts[1] == "\n\n".join(f"turn {slot}" for slot in PromptSlot)
        assert model.prompts[2].startswith("runtime intro\n\nYou are a clerk.\n\nruntime execution")

    asyncio.run(main())


def test_plugins_contribute_after_all_layers_and_cannot_be_replaced(memory: Place) -> None:
    """Ours: a turn's own text must not silence a guard that warns the model."""

    class Warns(Plugin):
        @hook
        async def prompt_contributor(self, ctx: Any) -> Any:
            return [piece("never pay twice"), piece("first of all", PromptSlot.INTRO, -1)]

    prompt = asyncio.run(
        prompt_of(
            memory,
            agent=["agent"],
            turn=PromptLayer(contributions=(piece("turn"),), replaces=frozenset(PromptSlot)),
            plugins=[Warns()],
        )
    )
    assert prompt.split("\n\n") == ["first of all", "turn", "never pay twice"]


# Durability


@tool(approval="manual")
async def refund() -> str:
    """Needs a person."""
    return "paid"


class Numbered(Plugin):
    """A plugin whose text changes with each model call."""

    @hook
    async def prompt_contributor(self, ctx: Any) -> str:
        return f"call {ctx.iteration}"


@pytest.mark.parametrize("part", [5, None, {"content": "Be polite."}])
def test_a_part_of_the_prompt_that_is_not_text_is_refused(place: Place, part: Any) -> None:
    """Bug: the turn was stored with it and failed, and then the session could not be used."""

    async def main() -> None:
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=Agent("scripted:demo"))
            with pytest.raises(InvalidArgument, match="a part of the system prompt must be a str"):
                session.turn("hello", system=[part])
            assert await session.messages() == []

    asyncio.run(main())


@pytest.mark.parametrize("plugins", [(), (Numbered(),)])
def test_a_turn_that_waited_keeps_the_prompt_it_began_with(place: Place, plugins: Any) -> None:
    """Ours: `system=` is part of the turn's stored input."""

    async def main() -> None:
        model = ObedientModel()

        def agent() -> Agent[Any, Any]:
            return Agent(model, name="clerk", instructions="base", tools=[refund], plugins=plugins)

        layer = PromptLayer(
            contributions=(piece("only now", PromptSlot.ENVIRONMENT),), replaces=frozenset([PromptSlot.INTRO])
        )
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent())
            assert (await session.turn("call refund", system=layer).settled()).status == "waiting"
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agent())
            (approval,) = await session.approvals(pending=True)
            await session.approve(approval.approval_id)
            await session.turn("hello")
        if plugins:
            assert model.prompts == ["call 1\n\nonly now", "call 2\n\nonly now", "base\n\ncall 1"]
        else:
            assert model.prompts == ["only now", "only now", "base"]

    asyncio.run(main())


@pytest.mark.parametrize("plugins", [(), (Numbered(),)])
def test_a_model_call_repeated_after_a_crash_has_the_same_prompt(place: Place, plugins: Any) -> None:
    """Ours: the repeated request is the same, under the same idempotency key."""

    async def main() -> None:
        started = asyncio.Event()

        async def hangs(request: ModelRequest) -> AsyncIterator[ModelDelta]:
            started.set()
            await asyncio.Event().wait()
            yield ReplyEnded(text="never")

        async def answers(request: ModelRequest) -> AsyncIterator[ModelDelta]:
            yield ReplyEnded(text="ok")

        models = [StagedModel(hangs), StagedModel(answers)]
        agents = [
            Agent(one, name="clerk", instructions="base", plugins=plugins, settings={"seed": 1, "top_p": 0.5})
            for one in models
        ]
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agents[0])
            session.turn("hello", system=["only now"], settings={"seed": 2}).start()
            await started.wait()
        async with place.runtime() as runtime:
            session = await runtime.session("s", agent=agents[1])
            assert (await go_on(session)).output == "ok"
        (first,), (second,) = models[0].requests, models[1].requests
        assert first.instructions == second.instructions
        assert "only now" in first.instructions
        assert first.settings == second.settings == {"seed": 2, "top_p": 0.5}
        assert (first.idempotency_key, first.messages) == (second.idempotency_key, second.messages)

    asyncio.run(main())
