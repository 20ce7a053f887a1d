"""Model calls of the code protocol: cells are found in the text of the reply."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from standfast.model.cell import RUN_CODE
from standfast.model.language import Language
from standfast.model.message import Message, RequestedCall
from standfast.plugins.turn_hooks import TurnContext
from standfast.ports.model_provider import ReplyEnded
from standfast.protocols.code.cell_finder import CellFinder, find_cells
from standfast.protocols.code.executor import CodeExecutor
from standfast.protocols.standard.model_call import ModelCall, ReadReply, StreamFilter


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

    def shown_messages(self, messages: Sequence[Message]) -> list[Message]:
        executor = self._turn.executor
        if not isinstance(executor, CodeExecutor):
            return super().shown_messages(messages)
        return executor.written.of(list(messages))


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
