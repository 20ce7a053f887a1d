"""Carries out the turns of the code protocol: as the standard protocol's, with cells found in the text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from standfast.model.cell import RUN_CODE
from standfast.model.language import Language
from standfast.model.message import Message, RequestedCall
from standfast.plugins.turn_hooks import TurnContext
from standfast.ports.model_provider import ReplyEnded
from standfast.protocols.code.cell_finder import CellFinder, FoundCell, find_cells
from standfast.protocols.code.executor import CodeExecutor
from standfast.protocols.standard.host import Heard, StandardHost, Strainer


class CodeHost(StandardHost):
    """The `EffectHost` of the code protocol, for one turn. Without a language, cells are native calls."""

    def __init__(self, turn: TurnContext, language: Language | None) -> None:
        super().__init__(turn)
        self._language = language
        self._strained: _Strained | None = None

    def _strainer(self) -> Strainer | None:
        self._strained = None if self._language is None else _Strained(self._language)
        return self._strained

    def _heard(self, reply: ReplyEnded) -> Heard:
        """The reply, its first cell as the call that runs it."""
        if self._language is None:
            return super()._heard(reply)
        strained = self._strained
        if strained is not None and strained.text == reply.text:
            prose, cells = strained.prose, strained.cells
        else:  # plugins have changed the reply
            prose, cells = find_cells(reply.text, self._language)
        if not cells:
            return Heard(reply.text, None, reply.calls)
        return Heard(prose, reply.text, (_call_of(cells[0]), *reply.calls))

    def _shown_messages(self, messages: Sequence[Message]) -> list[Message]:
        executor = self._turn.executor
        if self._language is None or not isinstance(executor, CodeExecutor):
            return super()._shown_messages(messages)
        return executor.written.of(list(messages))


class _Strained:
    """A reply while it streams: what is shown of it, and the cells in it."""

    def __init__(self, language: Language) -> None:
        self._finder = CellFinder(language)
        self._pieces: list[str] = []
        self._shown: list[str] = []

    def feed(self, chunk: str) -> str:
        self._pieces.append(chunk)
        shown = self._finder.feed(chunk)
        self._shown.append(shown)
        return shown

    def end(self) -> str:
        shown = self._finder.end()
        self._shown.append(shown)
        return shown

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def prose(self) -> str:
        return "".join(self._shown)

    @property
    def cells(self) -> tuple[FoundCell, ...]:
        return tuple(self._finder.cells)


def _call_of(cell: FoundCell) -> RequestedCall:
    return RequestedCall(name=RUN_CODE, arguments=msgspec.json.encode({"code": cell.code}).decode())
