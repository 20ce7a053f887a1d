"""What a model is told about acting in code."""

from __future__ import annotations

from typing import Final

_FENCES: Final = """\
You act by writing Python. A reply may hold one cell, a fence like this:

```python
total = sum(item["cents"] for item in orders)
total
```

The cell is run, and you are shown what it printed, the value of its last expression, the calls it made and
what went wrong. Then you write the next cell. Words outside of the fence are shown to the user."""

_TOOL_CALL: Final = """\
You act by writing Python: call run_code with one cell at a time. The cell is run, and you are shown what it
printed, the value of its last expression, the calls it made and what went wrong."""

_NATIVE: Final = """\
run_code runs a cell of Python in which every other tool is a function of the same name: use it when one
program can do what would take many calls. You are shown what it printed, the value of its last expression,
the calls it made and what went wrong."""

_RULES: Final = """\
- Variables, functions and imports stay for the next cell, and for the next turn.
- Tools are functions, called by name: `order("A1")`, or several at once:
  `import asyncio` and `await asyncio.gather(order("A1"), order("A2"))`. A tool that fails raises; catch what
  you can deal with. A call that needs a person's word waits there until it is given.
- `finish(value)` ends the turn with your answer to the user. Call it when the task is done.
- `continue_as(task, seed)` ends the turn and begins `task` in a fresh context that knows only `seed`.
- `history[n]` is what came of cell n: `history[-1]["stdout"]`, `["result"]`, `["error"]`. What was too long
  to show you is whole there.
- `attachments["name"]` is a file that the user sent; inputs are read-only variables. Search them, slice them,
  and do not print them whole.
- `llm(prompt, data=..., schema=...)` asks a language model from inside the code, for what code cannot do.
- `await sleep(days=2)` waits, however long.
- Python here has no classes with bases, no `yield`, no `del`, no `with` on files, no `return_exceptions` in
  `gather`, and of the standard library only asyncio, collections, datetime, functools, itertools, json, math,
  random, re, time and a few more."""

_ANSWER: Final = """\
- A reply without a cell is your answer to the user, and ends the turn."""


def how_to_act(*, fences: bool, native: bool = False) -> str:
    """The rules of acting in code, for the system prompt."""
    if native:
        return f"{_NATIVE}\n\n{_RULES}"
    return f"{_FENCES if fences else _TOOL_CALL}\n\n{_RULES}\n{_ANSWER}"
