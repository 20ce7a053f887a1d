"""The instructions of a model that acts in code, for each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from standfast.model.language import EngineName, Language, language_of

LANGUAGE_NAMES: Final[Mapping[Language, str]] = {
    Language.PYTHON: "Python",
    Language.TYPESCRIPT: "TypeScript",
}

_FENCES: Final = """\
You act by writing {language}. A reply may hold one cell, a fence like this:

```{tag}
{example}
```

The cell is run, and you are shown what it printed, the value of its last expression, the calls it made and
what went wrong. Then you write the next cell. Words outside of the fence are shown to the user."""

_TOOL_CALL: Final = """\
You act by writing {language}: call run_code with one cell at a time. The cell is run, and you are shown what
it printed, the value of its last expression, the calls it made and what went wrong."""

_NATIVE: Final = """\
run_code runs a cell of {language} in which every other tool is a function of the same name: use it when one
program can do what would take many calls. You are shown what it printed, the value of its last expression,
the calls it made and what went wrong."""

_ANSWER: Final = """\
- A reply without a cell is your answer to the user, and ends the turn."""


class _Words(NamedTuple):
    """The instructions of one language: a cell as an example, and the rules."""

    example: str
    rules: str


_PYTHON: Final = _Words(
    example="""\
total = sum(item["cents"] for item in orders)
total""",
    rules="""\
- Variables, functions and imports stay for the next cell, and for the next turn.
- Tools are functions, called by name: `order("A1")`, or several at once:
  `import asyncio` and `await asyncio.gather(order("A1"), order("A2"))`. A tool that fails raises; catch what
  you can deal with. A call that needs a person's word waits there until it is given.
- `finish(value)` ends the turn with your answer to the user. Call it when the task is done.
- `continue_as(task, seed)` ends the turn and begins `task` in a fresh context that knows only `seed`.
- `history[n]` is the result of cell n: `history[-1]["stdout"]`, `["result"]`, `["error"]`. What was too long
  to show you is whole there.
- `attachments["name"]` is a file that the user sent; inputs are read-only variables. Search them, slice them,
  and do not print them whole.
- `llm(prompt, data=..., schema=...)` asks a language model from inside the code, for what code cannot do.
- `await sleep(days=2)` waits, however long.""",
)

_TYPESCRIPT: Final = _Words(
    example="""\
const total = orders.reduce((sum, item) => sum + item.cents, 0);
total""",
    rules="""\
- Variables, functions and classes stay for the next cell, and for the next turn; a later cell may declare a
  `const` or `let` of the same name again.
- Tools are functions that take one object and return a promise: `await order({order_id: "A1"})`, or several
  at once: `await Promise.all([order({order_id: "A1"}), order({order_id: "A2"})])`. `await` works at the top
  level. A tool that fails rejects with an Error that has `name`, `message` and `code`; catch what you can
  deal with. A call that needs a person's word waits there until it is given.
- `finish(value)` ends the turn with your answer to the user. Call it last, when the task is done.
- `continue_as({task, seed})` ends the turn and begins `task` in a fresh context that knows only `seed`.
- `history[n]` is the result of cell n: `history.at(-1).stdout`, `.result`, `.error`. What was too long to
  show you is whole there.
- `attachments["name"]` is a file that the user sent; inputs are read-only constants. Search them, slice them,
  and do not print them whole.
- `await llm({prompt, data, schema})` asks a language model from inside the code, for what code cannot do.
- `await sleep({days: 2})` waits, however long.""",
)

_WORDS: Final = {Language.PYTHON: _PYTHON, Language.TYPESCRIPT: _TYPESCRIPT}

_WHAT_THERE_IS: Final[dict[str, str]] = {
    EngineName.MONTY: """\
- Python here has no classes with bases, no `yield`, no `del`, no `with` on files, no `return_exceptions` in
  `gather`, and of the standard library only asyncio, collections, datetime, functools, itertools, json, math,
  random, re, time and a few more.""",
    EngineName.CPYTHON: """\
- All of Python and its standard library are here, but no network, no other processes, and no files except in
  a temporary directory that does not last.""",
    EngineName.AUTO: "",
    EngineName.QUICKJS: """\
- There is the language and what goes with it: `console`, `setTimeout`, `URL`, `TextEncoder`,
  `crypto.randomUUID`, `structuredClone`. There are no imports, no `require`, no `fetch`, no files and no
  `process`: whatever you want of the world is a tool.""",
}


def how_to_act(
    *,
    fences: bool,
    native: bool = False,
    engine: str = EngineName.MONTY,
    language: Language | None = None,
    finish: bool = True,
) -> str:
    """Return the rules of acting in code for the system prompt; with *finish*, code may end the turn."""
    language = language or language_of(engine) or Language.PYTHON
    words = _WORDS[language]
    beginning = _NATIVE if native else _FENCES if fences else _TOOL_CALL
    told = beginning.format(language=LANGUAGE_NAMES[language], tag=language, example=words.example)
    lines = words.rules.splitlines()
    if not finish:
        lines = [line for line in lines if not line.startswith(("- `finish(", "- `continue_as("))]
    rules = ["\n".join(lines), _WHAT_THERE_IS.get(engine, ""), "" if native else _ANSWER]
    return f"{told}\n\n" + "\n".join(filter(None, rules))
