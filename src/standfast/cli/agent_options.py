"""The agent of a command line, as its session records it: model, tool files, instructions and protocol.

Rule: recorded paths are absolute, because a later process may have another working directory.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from standfast.model.code import Language, language_of

MODEL_VARIABLE = "STANDFAST_MODEL"
DEMO_MODEL = "scripted:demo"
DEMO_NOTE = f"This is a scripted demo, not a real model. Choose one with --model MODEL or {MODEL_VARIABLE}."
AGENT_NAME = "chat"
PROTOCOLS = ("standard", "code")
LANGUAGES = ("python", "typescript")
ENGINES = ("monty", "cpython", "auto", "quickjs")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Given or recorded settings. An empty field was not given."""

    model: str = ""
    tools: tuple[str, ...] = ()
    instructions: str | None = None
    protocol: str = ""
    language: str = ""
    engine: str = ""
    mcp: str = ""
    app: str = ""
    agent: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AgentSettings:
        """Read a session's record; the result is empty if another program created the session."""
        tools = record.get("tools")
        instructions = record.get("instructions")
        return cls(
            model=str(record.get("model") or ""),
            tools=tuple(str(file) for file in tools) if isinstance(tools, list) else (),
            instructions=instructions if isinstance(instructions, str) else None,
            protocol=str(record.get("protocol") or ""),
            language=next((one for one in LANGUAGES if one == record.get("language")), ""),
            engine=next((one for one in ENGINES if one == record.get("engine")), ""),
            mcp=str(record.get("mcp") or ""),
            app=str(record.get("app") or ""),
            agent=str(record.get("agent") or ""),
        )

    def record(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tools": list(self.tools),
            "instructions": self.instructions or "",
            "protocol": self.protocol or PROTOCOLS[0],
            **({"language": self.language} if self.language else {}),
            **({"engine": self.engine} if self.engine else {}),
            **({"mcp": self.mcp} if self.mcp else {}),
            **({"app": self.app, "agent": self.agent} if self.app else {}),
        }

    def over(self, recorded: AgentSettings) -> AgentSettings:
        """Return these settings, with the *recorded* ones where nothing was given."""
        return AgentSettings(
            model=self.model or recorded.model,
            tools=self.tools or recorded.tools,
            instructions=recorded.instructions if self.instructions is None else self.instructions,
            protocol=self.protocol or recorded.protocol,
            language=self.language or ("" if self.engine else recorded.language),
            engine=self.engine or ("" if self.language else recorded.engine),
            mcp=self.mcp or recorded.mcp,
            app=self.app or ("" if self.model else recorded.app),
            agent=self.agent or recorded.agent,
        )

    def or_default(self) -> AgentSettings:
        """Fill in the environment's model, or the demo, if none is given; a real model replaces the demo."""
        chosen = absolute_model(os.environ.get(MODEL_VARIABLE, ""))
        if self.app or (self.model and not (self.is_demo and chosen)):
            return self
        return replace(self, model=chosen or DEMO_MODEL)

    def acting(self) -> object:
        """Return the agent's protocol; raise `InvalidArgument` if language and engine do not match."""
        if self.protocol != "code":
            return self.protocol or PROTOCOLS[0]
        from standfast.protocols.code.plugin import CodeProtocol  # only agents that act in code need it

        usual = language_of(self.engine or "") or Language.PYTHON
        return CodeProtocol(language=Language(self.language or usual), engine=self.engine)

    @property
    def is_demo(self) -> bool:
        return self.model == DEMO_MODEL


def absolute_model(name: str) -> str:
    """Return a model's name in its recorded form: the path of a script is absolute."""
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
        help="The engine for code: for Python monty (fast), cpython (all of Python) or auto (monty until "
        "code needs more); for TypeScript quickjs.  [default: monty or quickjs]",
    ),
    click.option(
        "--language",
        type=click.Choice(LANGUAGES),
        help="The language of a model that acts in code; implies --protocol code.  [default: python]",
    ),
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        help="How the model acts: by native tool calls, or by writing code.  [default: standard]",
    ),
    click.option("--instructions", metavar="TEXT", help="The system prompt of the model."),
    click.option(
        "--mcp",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        help="Let the model use the MCP servers of this file, such as mcp.json.",
    ),
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
    """Add `--model`, `--tools`, `--instructions`, `--protocol` and so on, passed as `given`."""

    @functools.wraps(function)
    def collect(
        *args: Any,
        model: str | None,
        tools: tuple[str, ...],
        instructions: str | None,
        protocol: str | None,
        language: str | None,
        engine: str | None,
        mcp: str | None,
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
            mcp=str(Path(mcp).absolute()) if mcp else "",
        )
        return function(*args, given=given, **rest)

    return functools.reduce(lambda made, option: option(made), _options, collect)
