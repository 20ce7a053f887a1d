"""Which agent a command line means: its model, its tool files, its instructions and its protocol.

A session remembers them as a plain record, so that whoever goes on with it need not repeat them. Rule: paths
are absolute in it, because that may happen in another directory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

MODEL_VARIABLE = "HOLDFAST_MODEL"
DEMO_MODEL = "scripted:demo"
AGENT_NAME = "chat"
PROTOCOLS = ("standard", "code")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What was given, or recorded. Nothing in a field means that it was not said."""

    model: str = ""
    tools: tuple[str, ...] = ()
    instructions: str | None = None
    protocol: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AgentSettings:
        """What a session remembers; nothing if another program made it."""
        tools = record.get("tools")
        instructions = record.get("instructions")
        return cls(
            model=str(record.get("model") or ""),
            tools=tuple(str(file) for file in tools) if isinstance(tools, list) else (),
            instructions=instructions if isinstance(instructions, str) else None,
            protocol=str(record.get("protocol") or ""),
        )

    def record(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tools": list(self.tools),
            "instructions": self.instructions or "",
            "protocol": self.protocol or PROTOCOLS[0],
        }

    def over(self, recorded: AgentSettings) -> AgentSettings:
        """These, and for what was not said the recorded ones."""
        return AgentSettings(
            model=self.model or recorded.model,
            tools=self.tools or recorded.tools,
            instructions=recorded.instructions if self.instructions is None else self.instructions,
            protocol=self.protocol or recorded.protocol,
        )

    def or_default(self) -> AgentSettings:
        """With the model of the environment, or the demo, where no model was said.

        A session that was begun with the demo does not keep its user from a real model.
        """
        chosen = absolute_model(os.environ.get(MODEL_VARIABLE, ""))
        if self.model and not (self.is_demo and chosen):
            return self
        return replace(self, model=chosen or DEMO_MODEL)

    @property
    def is_demo(self) -> bool:
        return self.model == DEMO_MODEL


def absolute_model(name: str) -> str:
    """A model's name as it can be recorded: a script is named by its absolute path."""
    if name == "demo":
        return DEMO_MODEL
    provider, _, file = name.partition(":")
    if provider != "scripted" or not file or name == DEMO_MODEL:
        return name
    return f"scripted:{Path(file).expanduser().absolute()}"


_options = (
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        help="How the model acts: by native tool calls, or by writing code.  [default: standard]",
    ),
    click.option("--instructions", metavar="TEXT", help="What the model is told before anything else."),
    click.option(
        "--tools",
        multiple=True,
        metavar="FILE.py",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        help="Let the model call the @tool functions of this file.",
    ),
    click.option(
        "--model",
        metavar="MODEL",
        help=f"Such as scripted:replies.json.  [default: {MODEL_VARIABLE}, else a demo]",
    ),
)


def agent_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--model`, `--tools`, `--instructions` and `--protocol`, handed over as `given`."""

    @functools.wraps(function)
    def collect(
        *args: Any,
        model: str | None,
        tools: tuple[str, ...],
        instructions: str | None,
        protocol: str | None,
        **rest: Any,
    ) -> Any:
        given = AgentSettings(
            model=absolute_model(model or ""),
            tools=tuple(str(Path(file).absolute()) for file in tools),
            instructions=instructions,
            protocol=protocol or "",
        )
        return function(*args, given=given, **rest)

    collected: Callable[..., Any] = collect
    for option in _options:
        collected = option(collected)
    return collected
