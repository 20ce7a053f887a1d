"""Defaults for the optional members of a code executor.

An executor that has only `execute_code` keeps no variables, lets code call the session's tools, and reruns a
cell from its beginning if its turn was parked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from standfast.model.capability import Capability
from standfast.model.message import AssistantMessage, Message
from standfast.plugins.protocol import CodeExecutorPlugin
from standfast.plugins.turn_protocol import CodeExecutionContext, ExecRequest, ExecResponse
from standfast.tools.registered_tool import RegisteredTool
from standfast.tools.registry import ToolCatalog

CELL_TOOL: Final = "run_code"

_MEMBERS: Final = (
    "accepts_finish", "cell_language", "cell_tool", "execution_state_dirty", "functions", "language", "park",
    "referenced_blobs", "restore_execution_state", "snapshot_execution_state", "turn_over",
)  # fmt: skip
"""The optional members of an executor."""

_MEMORY: Final = ("execution_state_dirty", "snapshot_execution_state", "restore_execution_state")


class ExecutesCode(Protocol):
    """The one method that every code executor has."""

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse: ...


class CatalogFunctions:
    """The `CodeFunctions` of one catalog: its tools, and the functions *own*. Thread-safe."""

    def __init__(
        self,
        catalog: ToolCatalog,
        resolve: Callable[[str], RegisteredTool],
        cell_tool: str,
        own: Mapping[str, RegisteredTool] | None = None,
    ) -> None:
        self.catalog = catalog
        self._resolve = resolve
        self._cell_tool = cell_tool
        self._own = own or {}

    def __contains__(self, name: object) -> bool:
        if name == self._cell_tool:  # code cannot call the tool that runs code
            return False
        return name in self._own or (isinstance(name, str) and self.catalog.may_call(name))

    def names(self) -> Iterable[str]:
        known = [*self._own, *(tool.name for tool in self.catalog.callable())]
        return [name for name in known if name != self._cell_tool]

    def capability(self, name: str) -> Capability:
        return (self._own.get(name) or self._resolve(name)).capability

    def is_async(self, name: str) -> bool:
        return (self._own.get(name) or self._resolve(name)).async_mode

    def suggest(self, name: str) -> str | None:
        import difflib  # needed only for code with an unknown name

        close = difflib.get_close_matches(name, list(self.names()), n=3, cutoff=0.6)
        return f"did you mean {', '.join(f'{one}()' for one in close)}?" if close else None

    def own(self, name: str) -> RegisteredTool | None:
        return self._own.get(name)


class DefaultExecutor:
    """A complete code executor around an object that has at least `execute_code`."""

    cell_tool = CELL_TOOL
    language = "python"
    accepts_finish = True

    def __init__(self, given: Any) -> None:
        self._given = given

    async def execute_code(self, ctx: CodeExecutionContext, request: ExecRequest) -> ExecResponse:
        response: ExecResponse = await self._given.execute_code(ctx, request)
        return response

    def cell_language(self, reply: AssistantMessage, code: str) -> str:
        return self.language

    def functions(self, catalog: ToolCatalog, resolve: Callable[[str], RegisteredTool]) -> CatalogFunctions:
        return CatalogFunctions(catalog, resolve, self.cell_tool)

    async def park(self) -> None:
        """Do nothing: there is no suspended cell to keep, because the cell is rerun."""

    def turn_over(self, messages: Sequence[Message]) -> None:
        """Do nothing: no state depends on the turn."""

    def execution_state_dirty(self) -> bool:
        return False

    def snapshot_execution_state(self) -> bytes:
        return b""

    def referenced_blobs(self) -> Mapping[str, str]:
        return {}

    def restore_execution_state(self, data: bytes) -> None:
        """Do nothing: there is no state to restore."""


def lacking_member(given: object) -> str:
    """Return the method missing from *given* though it has its counterpart; variables would get lost."""
    missing = [name for name in _MEMORY if not hasattr(given, name)]
    return missing[0] if 0 < len(missing) < len(_MEMORY) else ""


def completed(given: Any) -> CodeExecutorPlugin:
    """Return *given* with defaults for the members that it lacks."""
    present = [name for name in _MEMBERS if hasattr(given, name)]
    if len(present) == len(_MEMBERS):
        whole: CodeExecutorPlugin = given
        return whole
    made = DefaultExecutor(given)
    for name in present:
        setattr(made, name, getattr(given, name))
    return made
