"""Errors of the outside world: a tool, an engine, a plugin, a model or the network failed."""

from __future__ import annotations

from standfast.errors.codes import Code, TurnCode
from standfast.errors.kinds import OutsideError


class ToolError(OutsideError):
    """Raised by a tool to fail with its own code; guest code can catch it.

    Raise it from a handler: `raise ToolError("OUT_OF_STOCK", "none left")`. With `ends_turn` the turn stops
    as `tool_error`, without another model call.
    """

    code: str = Code.TOOL_ERROR

    def __init__(self, code: str, message: str, *, hint: str | None = None, ends_turn: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.ends_turn = ends_turn


class CallRefused(OutsideError):
    """A tool call violates a limit or its contract; `code` says which."""

    def __init__(self, code: Code, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class CommandNotStarted(OutsideError):
    """A monitor's command cannot be started."""

    code = Code.IO_ERROR
    hint = "check `command`, `cwd` and PATH in `env`"

    def __init__(self, why: str) -> None:
        super().__init__(f"the command cannot be started: {why}")


class ServerUnreachable(OutsideError):
    """A Standfast server could not be reached, or its response could not be read."""

    code = Code.IO_ERROR
    retryable = True
    hint = "check the address, and that `standfast serve` runs there"


class EngineFailed(OutsideError):
    """The process that runs guest code died or could not be started."""

    code = Code.INTERRUPTED
    retryable = True


class StateTooLarge(EngineFailed):
    """A session's state does not fit into the memory of a run."""

    code = Code.MEMORY_EXCEEDED
    hint = "run with the memory_mb that the session was last run with, or more"

    def __init__(self, memory_mb: int) -> None:
        super().__init__(f"the session's state cannot be loaded within {memory_mb} MB")


class CellTooLarge(EngineFailed):
    """A waiting cell cannot be suspended and reloaded within its memory limit."""

    code = Code.MEMORY_EXCEEDED
    hint = "hold less data while a call is pending, raise memory_mb, or allow more processes"

    def __init__(self, memory_mb: int) -> None:
        super().__init__(f"the cell cannot be suspended and loaded again within {memory_mb} MB")


class CodeExecutionRuntimeStopped(EngineFailed):
    """The process that ran a cell exited unexpectedly, or diverged when replayed after a restart."""


class ModelError(OutsideError):
    """A model call failed. `retry_after_ms` is the delay that the provider requests."""

    code: str = TurnCode.PROVIDER_ERROR

    def __init__(
        self,
        message: str,
        *,
        code: str = TurnCode.PROVIDER_ERROR,
        retryable: bool = False,
        retry_after_ms: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


class UnexpectedModelCall(ModelError):
    """A scripted model has no reply for a call. *asked* is the last message of the request."""

    def __init__(self, call_number: int, problem: str, asked: str) -> None:
        super().__init__(f"call {call_number} was not expected: {problem}; the last message is {asked!r}")
        self.call_number = call_number


class InstructionsFailed(OutsideError):
    """The function for an agent's instructions raised, or returned no text; the turn did not begin."""

    code = Code.INSTRUCTIONS_FAILED


class PluginFailed(OutsideError):
    """A plugin raised, timed out, or returned an invalid value."""

    code = TurnCode.PLUGIN_ERROR

    def __init__(self, plugin_id: str, where: str, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"plugin {plugin_id!r} failed in {where}: {problem}", hint=hint)
        self.plugin_id = plugin_id


class PluginStateLost(PluginFailed):
    """A plugin could not save its state, or could not restore it."""


class BadToolSource(OutsideError):
    """A tool source raised, or returned an invalid manifest or tool; nothing was changed."""

    code = Code.BAD_TOOL_SOURCE
    hint = "check that the source is running and returns valid tools"

    def __init__(self, source: str, what: str) -> None:
        super().__init__(f"tool source {source!r} {what}")
        self.source = source


class McpServerFailed(OutsideError):
    """An MCP server cannot be started or reached, broke the protocol, or exited during a call."""

    code = Code.MCP_SERVER_FAILED

    def __init__(self, server: str, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"MCP server {server!r} {what}", hint=hint)
        self.server = server


class McpSignInRequired(McpServerFailed):
    """An MCP server requires that a person signs in, or signs in again with more scopes."""

    code = Code.MCP_SIGN_IN_REQUIRED

    def __init__(self, server: str, what: str = "requires sign-in") -> None:
        super().__init__(server, what, hint=f"run: standfast mcp sign-in {server}")


class McpServerChanged(OutsideError):
    """An MCP server differs from the trusted one; nothing was called. `changes` lists the differences."""

    code = Code.MCP_SERVER_CHANGED

    def __init__(self, server: str, changes: tuple[str, ...]) -> None:
        listed = "; ".join(changes)
        super().__init__(
            f"MCP server {server!r} has changed since it was trusted: {listed}",
            hint=f"review the changes; to accept them, run: standfast mcp trust {server}",
        )
        self.server = server
        self.changes = changes
