"""A text far larger than any window: cells search it, and ask a model about the few lines that matter.

    python examples/large_text.py

The log is an input: the model gets its name and size, and only code reads it. The model is a script, so it
needs no key; what it would be sent is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from standfast import Agent, Runtime, ScriptedModel
from standfast.providers import ModelDelta, ModelRequest

LINES = 60_000
FAULTS = {10_007: "disk sda1 is full", 31_991: "disk sda1 is full", 48_600: "payment 7 was declined"}

REPLIES = [
    """\
I look at the log first.

```python
lines = log.split("\\n")
print(len(log), "characters,", len(lines), "lines")
lines[0]
```
""",
    """\
```python
import re
faults = [line for line in lines if re.search(r"level=(error|fatal)", line)]
len(faults)
```
""",
    """\
```python
import asyncio
schema = {"type": "object", "properties": {"part": {"type": "string"}}, "required": ["part"]}
asked = [llm("Which part of the system is this about?", data=line, schema=schema) for line in faults]
found = await asyncio.gather(*asked)
parts = {}
for each in found:
    parts[each["part"]] = parts.get(each["part"], 0) + 1
finish(f"{len(faults)} faults: {parts}")
```
""",
    '{"part": "disk"}',
    '{"part": "disk"}',
    '{"part": "payments"}',
]


class Counting(ScriptedModel):
    """Counts the characters that the model is sent."""

    largest = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        sent = len(request.instructions) + sum(len(str(message)) for message in request.messages)
        self.largest = max(self.largest, sent)
        return super().stream(request)


def make_log() -> str:
    """More than five million characters."""
    lines = (
        f"2026-11-01T00:00:00 level={'error' if number in FAULTS else 'info'} request={number:08d} "
        f"message={FAULTS.get(number, 'served in a few milliseconds')!r}"
        for number in range(LINES)
    )
    return "\n".join(lines)


async def main() -> None:
    model = Counting(REPLIES)
    agent = Agent(model, protocol="code")
    log = make_log()
    async with Runtime() as runtime:
        session = await runtime.session("logs", agent=agent)
        result = await session.turn("What went wrong last night?", inputs={"log": log})
        print(f"the log      {len(log):,} characters")
        print(f"the largest  {model.largest:,} characters in one call of the model")
        for line in await session.usage():
            print(f"{line.source:<12} {line.usage.calls} model calls")
        print(f"{result.status}     {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
