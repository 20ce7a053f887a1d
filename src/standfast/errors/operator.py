"""Errors of the operator: the installation or its configuration is wrong."""

from __future__ import annotations

from standfast.errors.codes import Code, TurnCode
from standfast.errors.kinds import OperatorError


class NotConfigured(OperatorError):
    """A file, variable or agent that this call needs is missing or unreadable."""

    code = Code.NOT_CONFIGURED


class CodeExecutionUnavailable(OperatorError):
    """The engine for this language cannot run on this machine."""

    code = Code.ENGINE_UNAVAILABLE


class TurnNotRunnable(OperatorError):
    """A turn cannot run in this process. It is unchanged, and none of its approvals is used."""

    def __init__(self, message: str, *, turn_id: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.turn_id = turn_id


class DepsMissing(TurnNotRunnable):
    """The turn's agent declares `deps_type`, and this process has no deps for the turn."""

    code = TurnCode.DEPS_MISSING


class WrongAgent(TurnNotRunnable):
    """The turn belongs to agent *owner*, and this process would resume it with another one."""

    code = TurnCode.WRONG_AGENT

    def __init__(self, message: str, *, turn_id: str, owner: str, hint: str | None = None) -> None:
        super().__init__(message, turn_id=turn_id, hint=hint)
        self.owner = owner


class EngineMismatch(TurnNotRunnable):
    """The turn has suspended code that only another build of its engine can resume."""

    code = TurnCode.ENGINE_MISMATCH
    hint = "keep a worker of that build running until the turn has ended, or cancel the turn"

    def __init__(self, turn_id: str, *, needed: str, found: str) -> None:
        message = f"turn {turn_id} has code suspended on {needed}, but this process has {found}"
        super().__init__(message, turn_id=turn_id)
        self.needed, self.found = needed, found


class ProviderMismatch(OperatorError):
    """The session was opened with a model of another provider."""

    code = Code.PROVIDER_MISMATCH
    hint = "open it with a model of the same provider, or fork it: a fork may change its provider"

    def __init__(self, session_id: str, *, expected: str, actual: str) -> None:
        super().__init__(f"session {session_id!r} uses provider {expected}, not {actual}")
        self.session_id, self.expected, self.actual = session_id, expected, actual


class ProviderUnconfigured(OperatorError):
    """The provider of a session's model lacks a setting, such as its API key."""

    code = Code.PROVIDER_UNCONFIGURED
    session_id: str = ""


class ProviderUnavailable(OperatorError):
    """No provider with this id is registered, so the session's model cannot be opened."""

    code = Code.PROVIDER_UNAVAILABLE
    session_id: str = ""

    def __init__(self, provider_id: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.provider_id = provider_id


class RuntimeClosed(OperatorError):
    """The runtime was closed while a turn ran."""

    code = Code.RUNTIME_CLOSED
    hint = "the turn is unfinished, not lost: continue it with `session.resume()`"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"the runtime was closed while turn {turn_id} ran")
        self.turn_id = turn_id
