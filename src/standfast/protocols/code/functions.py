"""What the code of a session may call: its tools, and the functions that only code has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from standfast.errors import ToolNameTaken
from standfast.model.capability import Capability
from standfast.model.cell import RUN_CODE
from standfast.model.language import Language
from standfast.model.limits import SessionLimits
from standfast.protocols.code.own_functions import OWNER, own_functions
from standfast.tools.catalog import ToolCatalog
from standfast.tools.registered_tool import RegisteredTool


class SessionFunctions:
    """The `CodeFunctions` of one catalog. Read from any thread."""

    def __init__(
        self,
        catalog: ToolCatalog,
        resolve: Callable[[str], RegisteredTool],
        language: Language = Language.PYTHON,
        limits: SessionLimits | None = None,
    ) -> None:
        self.catalog = catalog
        self._resolve = resolve
        self._own = own_functions(catalog, resolve, language, limits)
        for name, own in self._own.items():
            if catalog.find(name) is not None and resolve(name).handler is not own.handler:
                raise ToolNameTaken(name, OWNER, resolve(name).owner)

    def __contains__(self, name: object) -> bool:
        if name == RUN_CODE:  # code does not run code
            return False
        return name in self._own or (isinstance(name, str) and self.catalog.may_call(name))

    def names(self) -> Iterable[str]:
        known = [*self._own, *(tool.name for tool in self.catalog.callable())]
        return [name for name in known if name != RUN_CODE]

    def capability(self, name: str) -> Capability:
        return self._tool(name).capability

    def is_async(self, name: str) -> bool:
        return self._tool(name).async_mode

    def own(self, name: str) -> RegisteredTool | None:
        return self._own.get(name)

    def suggest(self, name: str) -> str | None:
        close = difflib.get_close_matches(name, list(self.names()), n=3, cutoff=0.6)
        if close:
            return f"did you mean {', '.join(f'{one}()' for one in close)}?"
        return "search_tools(query) finds what can be called"

    def _tool(self, name: str) -> RegisteredTool:
        return self._own.get(name) or self._resolve(name)
