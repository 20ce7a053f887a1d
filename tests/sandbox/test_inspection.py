"""Descriptions of variables: names, types and short texts, limited in size, on every engine."""

from __future__ import annotations

import asyncio

import pytest

from standfast import Agent, CodeProtocol, Runtime
from standfast.model.code import Variable
from standfast.providers.scripted import ScriptedModel
from standfast.sandbox.inspection import MAX_CHARS

PYTHON = """```python
count = 3
name = 'ink'
rows = [1, 2, 3]
long = 'x' * 5000
finish('done')
```"""
TYPESCRIPT = """```typescript
const count = 3;
const name = 'ink';
const rows = [1, 2, 3];
const long = 'x'.repeat(5000);
finish('done');
```"""


@pytest.mark.parametrize(
    ("engine", "reply", "types"),
    [
        ("monty", PYTHON, ("int", "str", "list")),
        pytest.param("cpython", PYTHON, ("int", "str", "list"), marks=pytest.mark.slow),
        pytest.param("quickjs", TYPESCRIPT, ("number", "string", "array"), marks=pytest.mark.slow),
    ],
)
def test_variables_have_names_types_and_short_texts(engine: str, reply: str, types: tuple[str, ...]) -> None:
    """Ours: `inspect(state)` works on every engine, for the variables before and after a cell."""

    async def main() -> tuple[Variable, ...]:
        protocol = CodeProtocol(engine=engine, language="typescript" if engine == "quickjs" else "python")
        agent = Agent(ScriptedModel([reply]), name="coder", protocol=protocol)
        async with Runtime() as runtime:
            session = await runtime.session("s", agent=agent)
            assert await session.variables() == ()
            await session.turn("go")
            return await session.variables()

    found = {one.name: one for one in asyncio.run(main())}
    assert tuple(found[name].type for name in ("count", "name", "rows")) == types
    assert found["count"].text == "3"
    assert "ink" in found["name"].text
    assert found["rows"].text.replace(" ", "") == "[1,2,3]"
    assert len(found["long"].text) == MAX_CHARS
