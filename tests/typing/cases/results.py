"""Results of turns: `output` is typed by `status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never, assert_type

from standfast import (
    Agent,
    FinishedTurn,
    FrameSwitchedTurn,
    Runtime,
    Session,
    StoppedTurn,
    TurnResult,
    TurnStopped,
    WaitingTurn,
)


@dataclass
class Verdict:
    late: bool


@dataclass
class Unsure:
    question: str


text_agent = Agent("scripted:replies.json")
judge = Agent("scripted:replies.json", output_type=Verdict)
judges = Agent("scripted:replies.json", output_type=list[Verdict])
careful = Agent("scripted:replies.json", output_type=Verdict | Unsure)
perhaps = Agent("scripted:replies.json", output_type=Verdict | None)


def run_without_a_runtime() -> None:
    assert_type(text_agent.run_sync("hi").output, str)
    assert_type(judge.run_sync("hi").output, Verdict)
    assert_type(judges.run_sync("hi").output, list[Verdict])
    assert_type(careful.run_sync("hi").output, Verdict | Unsure)
    assert_type(perhaps.run_sync("hi").output, Verdict | None)
    print(judge.run_sync("hi").output.days)  # error
    print(careful.run_sync("hi").output.late)  # error
    number: int = text_agent.run_sync("hi").output  # error
    print(number)


async def run_in_a_session() -> None:
    async with Runtime() as runtime:
        session = await runtime.session("s", agent=judge)
        result = await session.turn("hi")
        assert_type(result.output, Verdict | None)
        print(result.output.late)  # error
        assert_type(result.status, Literal["finished", "frame_switched", "waiting"])
        if result.status == "finished":
            assert_type(result.output, Verdict)
        elif result.status == "waiting":
            print(result.waits[0].kind)
        else:
            print(result.outcome.switch.task)
        decided = await session.approve("a1")
        print(decided.output.late)  # error


async def match_every_result() -> None:
    async with Runtime() as runtime:
        session = await runtime.session("s", agent=judge)
        result = await session.turn("hi").settled()
        match result:
            case FinishedTurn(output=verdict):
                assert_type(verdict, Verdict)
            case WaitingTurn() | FrameSwitchedTurn():
                pass
            case StoppedTurn():
                print(result.reason, result.error.message)
            case _:
                assert_never(result)
        match await session.turn("hi"):
            case FinishedTurn() | WaitingTurn():
                pass
            case FrameSwitchedTurn():
                pass
            case other:
                assert_never(other)  # a turn that stopped is raised


def forget_a_kind(result: TurnResult[str]) -> str:
    match result.status:
        case "finished":
            return result.output
        case "waiting" | "frame_switched":
            return ""
        case _:
            assert_never(result)  # error


def misspell_a_status(result: TurnResult[str]) -> str | None:
    wanted: Literal["finished", "waiting", "frame_switched", "stopped"] = result.status
    print(wanted)
    misspelt: Literal["finnished"] = result.status  # error
    return misspelt


def read_what_stopped(error: TurnStopped) -> str:
    assert_type(error.result, StoppedTurn)
    return error.result.error.message


async def open_without_an_agent(runtime: Runtime, agent: Agent[None, str] | None) -> Session[str]:
    session = await runtime.session("s")
    print((await session.turn("hi")).output)
    return await runtime.session("s", agent=agent)
