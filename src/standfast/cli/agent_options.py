"""Which agent a command line means: its model, its tool files, its instructions, and how it acts.

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

from standfast.model.language import EngineName, Language

MODEL_VARIABLE = "STANDFAST_MODEL"
DEMO_MODEL = "scripted:demo"
DEMO_NOTE = f"This is a scripted demo, no real model. Choose one with --model MODEL or {MODEL_VARIABLE}."
AGENT_NAME = "chat"
PROTOCOLS = ("standard", "code")
LANGUAGES = ("python", "typescript")
ENGINES = ("monty", "cpython", "auto", "quickjs")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What was given, or recorded. Nothing in a field means that it was not said."""

    model: str = ""
    tools: tuple[str, ...] = ()
    instructions: str | None = None
    protocol: str = ""
    language: str = ""
    engine: str = ""

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
            language=_one_of(LANGUAGES, record.get("language")),
            engine=_one_of(ENGINES, record.get("engine")),
        )

    def record(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tools": list(self.tools),
            "instructions": self.instructions or "",
            "protocol": self.protocol or PROTOCOLS[0],
            **({"language": self.language} if self.language else {}),
            **({"engine": self.engine} if self.engine else {}),
        }

    def over(self, recorded: AgentSettings) -> AgentSettings:
        """These, and for what was not said the recorded ones."""
        return AgentSettings(
            model=self.model or recorded.model,
            tools=self.tools or recorded.tools,
            instructions=recorded.instructions if self.instructions is None else self.instructions,
            protocol=self.protocol or recorded.protocol,
            language=self.language or ("" if self.engine else recorded.language),
            engine=self.engine or ("" if self.language else recorded.engine),
        )

    def or_default(self) -> AgentSettings:
        """With the model of the environment, or the demo, where no model was said.

        A session that was begun with the demo does not keep its user from a real model.
        """
        chosen = absolute_model(os.environ.get(MODEL_VARIABLE, ""))
        if self.model and not (self.is_demo and chosen):
            return self
        return replace(self, model=chosen or DEMO_MODEL)

    def acting(self) -> object:
        """The protocol, as an agent takes it. Raises `InvalidArgument` if language and engine do not fit."""
        if self.protocol != "code":
            return self.protocol or PROTOCOLS[0]
        from standfast.protocols.code.plugin import CodeProtocol  # only agents that act in code need it

        engine = EngineName(self.engine) if self.engine else None
        usual = engine.language if engine else Language.PYTHON
        return CodeProtocol(language=Language(self.language or usual), engine=engine)

    @property
    def is_demo(self) -> bool:
        return self.model == DEMO_MODEL


def _one_of(known: tuple[str, ...], value: object) -> str:
    return value if isinstance(value, str) and value in known else ""


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
        "--engine",
        type=click.Choice(ENGINES),
        help="What runs the code: for Python monty (fast), cpython (all of Python) or auto (monty until code "
        "needs more); TypeScript has quickjs.  [default: monty or quickjs]",
    ),
    click.option(
        "--language",
        type=click.Choice(LANGUAGES),
        help="What a model that acts in code writes; stands for --protocol code.  [default: python]",
    ),
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
        help="PROVIDER:MODEL, such as anthropic:claude-sonnet-4-5, or scripted:replies.json; see "
        f"`standfast models`.  [default: {MODEL_VARIABLE}, else a demo]",
    ),
)


def agent_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--model`, `--tools`, `--instructions`, `--protocol` and what belongs to it, handed over as `given`."""

    @functools.wraps(function)
    def collect(
        *args: Any,
        model: str | None,
        tools: tuple[str, ...],
        instructions: str | None,
        protocol: str | None,
        language: str | None,
        engine: str | None,
        **rest: Any,
    ) -> Any:
        if (language or engine) and protocol == "standard":
            raise click.UsageError("--language and --engine are for --protocol code")
        given = AgentSettings(
            model=absolute_model(model or ""),
            tools=tuple(str(Path(file).absolute()) for file in tools),
            instructions=instructions,
            protocol=protocol or ("code" if language or engine else ""),
            language=language or "",
            engine=engine or "",
        )
        return function(*args, given=given, **rest)

    collected: Callable[..., Any] = collect
    for option in _options:
        collected = option(collected)
    return collected
