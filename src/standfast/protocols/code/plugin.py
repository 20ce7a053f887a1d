"""The plugins `CodeProtocol` and `CodeMode`, and their instructions for the model.

The protocol finds cells in the text of a streaming reply, unless the model sends them as tool calls. Code
mode adds the tool `run_code` to another protocol.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.canonical import Json
from standfast.model.code import RUN_CODE, USUAL_ENGINE, EngineName, Language, language_of
from standfast.model.limits import SessionLimits
from standfast.model.message import Message, RequestedCall
from standfast.model.prompt import PromptContribution, PromptSlot
from standfast.model.prompt_record import Reading
from standfast.plugins.actions import PluginActionContext, action
from standfast.plugins.contexts import PromptHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin
from standfast.plugins.protocol import ProtocolBuildInput, ProtocolSessionPlugin
from standfast.plugins.registrar import PluginRegistrar
from standfast.plugins.turn_hooks import TurnContext
from standfast.plugins.turn_protocol import TurnDriverPreamble
from standfast.ports.code_engine import Check
from standfast.ports.model_provider import ReplyEnded
from standfast.protocols.code.cell_finder import CellFinder, find_cells
from standfast.protocols.code.cell_tool import cell_tool
from standfast.protocols.code.executor import CELL_LIMITS, CellOptions, CodeExecutor
from standfast.protocols.code.own_functions import SessionFunctions
from standfast.protocols.standard.host import StandardHost
from standfast.protocols.standard.model_call import ModelCall, ReadReply, StreamFilter
from standfast.protocols.tool_docs.tool_guide import guide

LANGUAGE_NAMES: Final[Mapping[Language, str]] = {Language.PYTHON: "Python", Language.TYPESCRIPT: "TypeScript"}

_FENCES: Final = """\
You act by writing {language}. A reply may contain one cell, in a fence like this:

```{tag}
{example}
```

The cell is run, and you read its output, the value of its last expression, the calls it made and its error,
if any. Then you write the next cell. Text outside the fence is shown to the user."""

_TOOL_CALL: Final = """\
You act by writing {language}: call run_code with one cell at a time. The cell is run, and you read its
output, the value of its last expression, the calls it made and its error, if any."""

_NATIVE: Final = """\
run_code runs a cell of {language} in which every other tool is a function of the same name: use it when one
program can do what would take many calls. You read its output, the value of its last expression, the
calls it made and its error, if any."""

_ANSWER: Final = """\
- A reply without a cell is your answer to the user, and ends the turn."""


class _LanguageGuide(NamedTuple):
    """The instructions for one language: an example of a cell, and the rules."""

    example: str
    rules: str


_PYTHON: Final = _LanguageGuide(
    example="""\
total = sum(item["cents"] for item in orders)
total""",
    rules="""\
- Variables, functions and imports are kept for the next cell and the next turn.
- Tools are functions, called by name: `order("A1")`, or several at once:
  `import asyncio` and `await asyncio.gather(order("A1"), order("A2"))`. A tool that fails raises; catch the
  errors that you can handle. A call that needs approval waits there until a person decides.
- `finish(value)` ends the turn with your answer to the user. Call it when the task is done.
- `continue_as(task, seed)` ends the turn and begins `task` in a fresh context that knows only `seed`.
- `history[n]` is the result of cell n: `history[-1]["stdout"]`, `["result"]`, `["error"]`. Output that was
  too long to show you is complete there.
- `attachments["name"]` is a file that the user sent; inputs are read-only variables. Search them, slice them,
  and do not print them whole.
- `llm(prompt, data=..., schema=...)` asks a language model, for tasks that code cannot do.
- `await sleep(days=2)` waits for any length of time.""",
)

_TYPESCRIPT: Final = _LanguageGuide(
    example="""\
const total = orders.reduce((sum, item) => sum + item.cents, 0);
total""",
    rules="""\
- Variables, functions and classes are kept for the next cell and the next turn; a later cell may declare a
  `const` or `let` of the same name again.
- Tools are functions that take one object and return a promise: `await order({order_id: "A1"})`, or several
  at once: `await Promise.all([order({order_id: "A1"}), order({order_id: "A2"})])`. `await` works at the top
  level. A tool that fails rejects with an Error that has `name`, `message` and `code`; catch the errors
  that you can handle. A call that needs approval waits there until a person decides.
- `finish(value)` ends the turn with your answer to the user. Call it last, when the task is done.
- `continue_as({task, seed})` ends the turn and begins `task` in a fresh context that knows only `seed`.
- `history[n]` is the result of cell n: `history.at(-1).stdout`, `.result`, `.error`. Output that was too
  long to show you is complete there.
- `attachments["name"]` is a file that the user sent; inputs are read-only constants. Search them, slice them,
  and do not print them whole.
- `await llm({prompt, data, schema})` asks a language model, for tasks that code cannot do.
- `await sleep({days: 2})` waits for any length of time.""",
)

_WORDS: Final = {Language.PYTHON: _PYTHON, Language.TYPESCRIPT: _TYPESCRIPT}

_WHAT_THERE_IS: Final[dict[str, str]] = {
    EngineName.MONTY: """\
- This Python has no classes with bases, no `yield`, no `del`, no `with` on files, no `return_exceptions` in
  `gather`, and of the standard library only asyncio, collections, datetime, functools, itertools, json, math,
  random, re, time and a few more.""",
    EngineName.CPYTHON: """\
- All of Python and its standard library are available, but no network, no other processes, and no
  files except in a temporary directory that does not last.""",
    EngineName.AUTO: "",
    EngineName.QUICKJS: """\
- Available besides the language itself: `console`, `setTimeout`, `URL`, `TextEncoder`, `crypto.randomUUID`,
  `structuredClone`. There are no imports, no `require`, no `fetch`, no files and no `process`: everything
  outside is a tool.""",
}


def how_to_act(
    *,
    fences: bool,
    native: bool = False,
    engine: str = EngineName.MONTY,
    language: Language | None = None,
    finish: bool = True,
) -> str:
    """Return the instructions about cells for the system prompt; if *finish*, code may end the turn."""
    language = language or language_of(engine) or Language.PYTHON
    words = _WORDS[language]
    beginning = _NATIVE if native else _FENCES if fences else _TOOL_CALL
    told = beginning.format(language=LANGUAGE_NAMES[language], tag=language, example=words.example)
    lines = words.rules.splitlines()
    if not finish:
        lines = [line for line in lines if not line.startswith(("- `finish(", "- `continue_as("))]
    rules = ["\n".join(lines), _WHAT_THERE_IS.get(engine, ""), "" if native else _ANSWER]
    return f"{told}\n\n" + "\n".join(filter(None, rules))


CellForm = Literal["fences", "tool_call"]
"""How a model sends its cells: as Markdown fences in its text, or as calls of a tool."""


@dataclass(kw_only=True, eq=False, repr=False)
class _ActsInCode(Plugin):
    """The base class of both plugins, with the options of cells and the executor."""

    language: Literal["python", "typescript"] | Language = Language.PYTHON
    engine: str | None = None
    check: Check = "calls"
    limits: SessionLimits | None = None
    observation_chars: int = 8_000
    finish: bool = True

    def options(self) -> CellOptions:
        """The validated options."""
        try:
            language = msgspec.convert(self.language, Language)
            given = {name: getattr(self, name) for name in CellOptions.__struct_fields__}
            given |= {"language": language, "engine": self.engine or USUAL_ENGINE[language]}
            given["limits"] = msgspec.to_builtins(CELL_LIMITS if self.limits is None else self.limits)
            options = msgspec.convert(given, CellOptions)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the options of plugin {self.id!r} are invalid: {error}") from None
        runs = language_of(options.engine)
        if runs is None:
            from importlib.metadata import entry_points  # slow to import

            if not entry_points(group="standfast.engines", name=options.engine):
                raise InvalidArgument(
                    f"the options of plugin {self.id!r} are invalid: there is no engine {options.engine!r}",
                    hint=f"use one of {', '.join(EngineName)}, or install the package that provides it",
                )
        if runs not in (None, language):
            raise InvalidArgument(
                f"engine {options.engine} runs {runs}, not {language}",
                hint=f'leave engine= out, or use language="{runs}"',
            )
        return options

    def executor(self) -> CodeExecutor:
        self._executor = CodeExecutor(self.options())
        return self._executor

    @action(kind="command", session="required")
    async def reset(self, ctx: PluginActionContext) -> None:
        """Delete every variable of the session's code."""
        self._executor.reset()


@dataclass(kw_only=True, eq=False, repr=False)
class CodeProtocol(_ActsInCode):
    """A protocol in which the model writes one cell per step; variables persist, and tools are functions.

    Args:
        cells: how the model sends cells: as Markdown fences in its text (`"fences"`), or as native calls of
            the tool `run_code` (`"tool_call"`), for models that are better at that.
        language: the language of the cells, which is fixed for a session.
        engine: the engine that runs them. For Python, `"monty"` (the default: fast, a subset of the
            language), `"cpython"` (the whole language, in a jail) or `"auto"` (Monty until a cell needs
            more); for TypeScript, `"quickjs"`.
        check: how thoroughly a cell is checked before it runs: `"calls"`, or `"types"` for the type checker.
        limits: the limits of one cell.
        observation_chars: how many characters of a cell's output and result the model sees at most.
        guide_chars: how many characters the tools may take in the prompt; beyond that, they are listed in
            groups and found by searching.
        finish: whether code may end the turn, with `finish` and `continue_as`.
    """

    id = "code"
    summary = (
        "Protocol: the model writes cells of Python or TypeScript; tools are functions, variables persist."
    )

    cells: CellForm = "fences"
    guide_chars: int = 16_000

    def __post_init__(self) -> None:
        self.options()
        if self.cells not in ("fences", "tool_call"):
            raise InvalidArgument(f"cells= must be 'fences' or 'tool_call', got {self.cells!r}")
        self._shared = True

    def configure(self, options: Json) -> None:
        super().configure(options)
        self._shared = False

    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        registrar.protocol.session(ProtocolSessionPlugin())
        registrar.protocol.driver(CodeDriver(self))
        registrar.protocol.code_executor(self.executor())
        if self.cells == "fences":
            registrar.protocol.prose_projector(ProseProjector(self.options().language))

    @property
    def shares_preambles(self) -> bool:
        """Whether the preamble depends on the catalog alone, so that sessions can share it."""
        return self._shared


class CodeDriver:
    """The protocol's driver, which describes tools in the prompt as functions."""

    def __init__(self, protocol: CodeProtocol) -> None:
        self._protocol = protocol
        self.shares_preambles = protocol.shares_preambles

    def build_preamble(self, given: ProtocolBuildInput) -> TurnDriverPreamble:
        protocol, options = self._protocol, self._protocol.options()
        language = options.language
        SessionFunctions(given.tool_catalog, given.resolve)  # raises if a name is used twice
        fences = protocol.cells == "fences"
        model_call: Any = functools.partial(FencedCellCall, language) if fences else ModelCall
        words = how_to_act(fences=fences, engine=options.engine, language=language, finish=options.finish)
        tools = guide(given.tool_catalog, given.resolve, budget_chars=protocol.guide_chars, language=language)
        return TurnDriverPreamble(
            host=functools.partial(StandardHost, model_call=model_call),
            tools=() if fences else (cell_tool(language).capability,),
            prompt=(
                PromptContribution(content=words, slot=PromptSlot.EXECUTION),
                PromptContribution(content=tools, slot=PromptSlot.EXECUTION, priority=1),
                *given.extra_prompt_contributions,
            ),
            warns_of_budget=True,
        )


class ProseProjector:
    """A projector that returns the prose of a reply, which is the text without its cells."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def project_assistant_prose(self, text: str) -> str:
        return find_cells(text, self._language)[0]


class CodeMode(_ActsInCode):
    """A plugin that adds the tool `run_code` to the native ones, with the options of `CodeProtocol`."""

    id = "code-mode"
    summary = "A tool run_code: cells of code that call the session's tools, in any protocol."

    def register(self, registrar: PluginRegistrar) -> None:
        super().register(registrar)
        registrar.tools.add(cell_tool(self.options().language))
        registrar.protocol.code_executor(self.executor())

    @hook("prompt_contributor")
    async def explain(self, ctx: PromptHookContext) -> list[PromptContribution]:
        options = self.options()
        words = how_to_act(
            fences=False, native=True, engine=options.engine, language=options.language, finish=options.finish
        )
        return [PromptContribution(content=words, slot=PromptSlot.EXECUTION)]


class FencedCellCall(ModelCall):
    """A model call whose reply may contain cells as Markdown fences."""

    def __init__(
        self, language: Language, turn: TurnContext, number: int, key: str, attempt: int = 1
    ) -> None:
        super().__init__(turn, number, key, attempt)
        self._language = language
        self._cells: _CellFilter | None = None

    def make_filter(self) -> StreamFilter | None:
        self._cells = _CellFilter(self._language)
        return self._cells

    def read(self, reply: ReplyEnded) -> ReadReply:
        """Convert the first cell of the reply into the call that runs it."""
        found = self._cells
        if found is not None and "".join(found.text) == reply.text:
            prose, cells = "".join(found.prose), tuple(found.finder.cells)
        else:  # plugins have changed the reply
            prose, cells = find_cells(reply.text, self._language)
        if not cells:
            return ReadReply(reply.text, None, reply.calls)
        arguments = msgspec.json.encode({"code": cells[0].code}).decode()
        return ReadReply(prose, reply.text, (RequestedCall(name=RUN_CODE, arguments=arguments), *reply.calls))

    @property
    def reading(self) -> Reading:
        executor = self._turn.executor
        return executor.written.reading if isinstance(executor, CodeExecutor) else super().reading

    def shown_messages(self, messages: list[Message]) -> list[Message]:
        executor = self._turn.executor
        if not isinstance(executor, CodeExecutor):
            return super().shown_messages(messages)
        return executor.written.of(messages)


class _CellFilter:
    """Shows the prose of a reply while it streams, and collects its cells."""

    def __init__(self, language: Language) -> None:
        self.finder = CellFinder(language)
        self.text: list[str] = []
        self.prose: list[str] = []

    def feed(self, chunk: str) -> str:
        self.text.append(chunk)
        self.prose.append(self.finder.feed(chunk))
        return self.prose[-1]

    def end(self) -> str:
        self.prose.append(self.finder.end())
        return self.prose[-1]
