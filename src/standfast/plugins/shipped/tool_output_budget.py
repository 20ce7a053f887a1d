"""Tool output budget: the model sees only the head and tail of a long result.

The whole output is stored as an attachment of the result. The model can read it in pieces with `read_output`:
later in the turn, in later turns, or after a restart.

Rules
-----
1. Only the text that the model reads is cut. The record of the call keeps the digest of the original.
2. `read_output` reads only outputs that this plugin has stored in this session.
3. Lines of any length can be read: a long line counts as several.
4. Code gets the whole results of its calls; a separate limit applies to the code's own output.

A plugin that changes results, such as `Redact`, must come before this one in `Agent(plugins=[...])`, because
this plugin stores the result as the plugins before it returned it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from standfast.errors import InvalidArgument
from standfast.model.directive import ShortCircuitTool
from standfast.plugins.contexts import ToolResultHookContext
from standfast.plugins.hook import hook
from standfast.plugins.plugin import Plugin, check_numbers
from standfast.plugins.shipped.window import size_of
from standfast.tools.decorator import tool

_MOST_KEPT: Final = 1_000
"""How many of the latest outputs can be read back."""

_NOTE_BYTES: Final = 240
_NOTE_LINES: Final = 3
_NAME_CHARS: Final = 12
"""How many characters of a digest the model sees as the output's name."""


class ToolOutputBudget(Plugin):
    """A plugin for agents whose tools can return more than the model should read.

    Args:
        max_bytes: the largest size of a result that is shown whole, as UTF-8.
        max_lines: the largest number of lines of such a result.
    """

    id = "tool-output-budget"
    summary = "Shows head and tail of long tool output; the model can read back the whole."

    def __init__(self, max_bytes: int = 16_384, max_lines: int = 400) -> None:
        self.max_bytes = max_bytes
        self.max_lines = max_lines
        self.check_options()

    def check_options(self) -> None:
        hint = "a smaller value leaves no room for the note about the rest"
        check_numbers(self, hint, max_bytes=512, max_lines=10)

    @hook
    async def after_tool_call(self, ctx: ToolResultHookContext) -> ShortCircuitTool | None:
        if ctx.parent or ctx.is_cell:
            return None
        if ctx.error is not None:
            text = ctx.error.message
        elif isinstance(ctx.value, str):
            text = ctx.value
        else:
            text = msgspec.json.format(msgspec.json.encode(ctx.value), indent=2).decode()
        text = "\n".join([text, *ctx.texts])
        if text.count("\n") < self.max_lines and len(text.encode()) <= self.max_bytes:
            return None
        is_text = ctx.error is not None or bool(ctx.texts) or isinstance(ctx.value, str)
        kind = "text/plain" if is_text else "application/json"
        part = ctx.attachments.keep(text.encode(), media_type=kind, name=f"output of {ctx.tool_name}")
        if part.digest not in self._kept():
            self.state = [*self._kept(), part.digest][-_MOST_KEPT:]
        cut = self._cut(text, part.digest[:_NAME_CHARS])
        if ctx.error is None:
            return ShortCircuitTool(value=cut)
        return ShortCircuitTool(error=msgspec.structs.replace(ctx.error, message=cut))

    @tool(side_effect="read", loop="runtime")
    async def read_output(self, attachment: str, start_line: int = 1, lines: int = 200) -> str:
        """Read a part of a tool output that was too long to be shown whole.

        Args:
            attachment: the output's name, which is in the shown part of the output.
            start_line: the first line to read, from 1.
            lines: how many lines to read.
        """
        found = [one for one in self._kept() if len(attachment) >= 8 and one.startswith(attachment)]
        data = await self.session.read_attachment(found[0]) if len(found) == 1 else None
        if data is None:
            hint = "use the name that the shown part of the output gives"
            raise InvalidArgument(f"there is no output {attachment[:80]!r} in this session", hint=hint)
        pieces = self._pieces(str(data, "utf-8"))
        if not 1 <= start_line <= len(pieces) or lines < 1:
            raise InvalidArgument(f"it has lines 1 to {len(pieces)}, not {lines} from {start_line} on")
        room = self.max_bytes - _NOTE_BYTES
        shown: list[str] = []
        for piece in pieces[start_line - 1 :][: min(lines, self.max_lines - _NOTE_LINES)]:
            room -= len(piece.encode())
            if room < 0:
                break
            shown.append(piece)
        last = start_line + len(shown) - 1
        more = f"; continue with start_line={last + 1}" if last < len(pieces) else ""
        return f"[lines {start_line} to {last} of {len(pieces)}{more}]\n{''.join(shown)}"

    def _kept(self) -> list[str]:
        return self.state or []

    def _cut(self, text: str, name: str) -> str:
        """Return the head and tail of a text, with a note between them that says how to read the rest."""
        room, lines = (self.max_bytes - _NOTE_BYTES) // 2, (self.max_lines - _NOTE_LINES) // 2
        head, tail = _head(text, room, lines), _tail(text, room, lines)
        left = text[len(head) : len(text) - len(tail)]
        start = len(self._pieces(head + "."))
        size, count = size_of(len(left.encode())), left.count("\n") + 1
        note = (
            f"[{size} in {count} lines left out here; "
            f'read_output(attachment="{name}", start_line={start}) reads them]'
        )
        return f"{head.removesuffix(chr(10))}\n{note}\n{tail}"

    def _pieces(self, text: str) -> list[str]:
        """Split a text into lines with their ends, and very long lines into pieces."""
        width = min(1_000, self.max_bytes // 8)
        lines = [f"{line}\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        if not lines[-1] and len(lines) > 1:
            lines.pop()
        return [line[start : start + width] for line in lines for start in range(0, max(1, len(line)), width)]


def _head(text: str, room: int, lines: int) -> str:
    """Return the beginning: at most *room* bytes and *lines*, to the end of a line if one is near."""
    part = text[:room].encode()[:room].decode(errors="ignore")
    found = part.split("\n")
    if len(found) > lines:
        part = "\n".join(found[:lines]) + "\n"
    end = part.rfind("\n") + 1
    return part[:end] if end > len(part) // 2 else part


def _tail(text: str, room: int, lines: int) -> str:
    """Return the end: at most *room* bytes and *lines*, from the beginning of a line if one is near."""
    part = text[-room:].encode()[-room:].decode(errors="ignore")
    part = "\n".join(part.split("\n")[-lines:])
    start = part.find("\n") + 1
    return part[start:] if 0 < start <= len(part) // 2 else part
