"""A running cell that a model wrote. After `finish` or `continue_as`, its code can make no more calls."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from standfast.errors import Code, ErrorObject
from standfast.model.canonical import Json
from standfast.model.capability import GuestException
from standfast.model.code import Diagnostic, Severity
from standfast.model.limits import SessionLimits
from standfast.plugins.turn_protocol import CodeExecutionContext, ExecRequest
from standfast.ports import code_engine
from standfast.protocols.code.memory import CellEnding, Suspended, answer_text
from standfast.protocols.code.own_functions import CONTINUE_AS, FINISH
from standfast.protocols.code.values import ReadOnlyValues
from standfast.protocols.standard.cells import RunningCell
from standfast.tools.settlement import GUEST_EXCEPTION

_MAX_ANSWER_BYTES: Final = 1 << 20
_LAST: Final = frozenset({FINISH})
QUICKLY_STORED_BYTES: Final = 16 << 10
"""Variables up to this size are stored faster than the loop could be woken to report the result early."""


class ModelCell(RunningCell):
    """A cell that a model wrote."""

    def __init__(
        self,
        ctx: CodeExecutionContext,
        request: ExecRequest,
        values: ReadOnlyValues,
        engine: code_engine.CodeEngine,
    ) -> None:
        super().__init__(ctx, engine)
        self._request = request
        self._values = values
        self._check: code_engine.Check = "calls"
        self._early: code_engine.CellEnd | None = None
        self.ending: CellEnding | None = None

    async def run(
        self, state: bytes, suspended: Suspended | None, limits: SessionLimits, check: code_engine.Check
    ) -> code_engine.CellEnd:
        """Check the cell and run its code to the end. A suspended cell is not checked again."""
        self._check = check
        code = self._request.code
        named = [name for name in self._values.names() if name in code]
        touched = self._engine.touched(code, named).names if named else {}
        inputs = {name: await self._values.load(name, keys) for name, keys in touched.items()}
        if suspended is not None:
            self.ending = suspended.ending
            self.heard_before(suspended.heard)
        return await self.run_request(
            code_engine.CellRequest(
                key=self._ctx.session_id,
                code=code,
                state=state,
                paused=b"" if suspended is None else suspended.data,
                limits=limits,
                functions=self._ctx.functions,
                inputs=inputs,
                load=lambda name: asyncio.run_coroutine_threadsafe(
                    self._values.load(name), self._loop
                ).result(),
                answer_now=self._answer_now,
                last=_LAST if self._request.accept_finish else frozenset(),
                through=self._tell if len(state) > QUICKLY_STORED_BYTES else None,
                measured=False,
                now_ms=self._ctx.now_ms,
                seed=self._ctx.seed,
            )
        )

    def _begin(self, request: code_engine.CellRequest) -> code_engine.CellStep:
        """Check and start the cell, in the engine's thread."""
        if not request.paused:
            found = self._engine.check(
                request.code,
                state=request.state,
                functions=request.functions,
                inputs=self._values.names(),
                check=self._check,
            )
            for one in found:
                if one.severity is Severity.ERROR:
                    raise CellCheckFailed(msgspec.convert(one, ErrorObject, from_attributes=True), found)
        return super()._begin(request)

    async def suspend(self) -> Suspended:
        return Suspended(
            turn_id=self._ctx.turn_id,
            call_id=self._ctx.call_id,
            heard=self._heard,
            data=await self.suspend_run(),
            ending=self.ending,
        )

    # Called in the engine's thread

    def _tell(self, end: code_engine.CellEnd) -> None:
        """Report to the loop that the code has ended, while its variables are still being stored."""
        self._early = self._with_last_call(end)
        self._say(self._came_through, self._early)

    def _whole(self, end: code_engine.CellEnd) -> code_engine.CellEnd:
        if self._early is None or end.hard:
            return self._with_last_call(end)
        return msgspec.structs.replace(self._early, state=end.state)

    def _with_last_call(self, ended: code_engine.CellEnd) -> code_engine.CellEnd:
        """Answer the call that the code ended with, if any. If that raises, it is the cell's error."""
        last = ended.last_call
        if last is None:
            return ended
        answer = self._answer_now(last.call)
        if self.ending is not None or answer is None or answer.exception is None:
            return ended
        raised = answer.exception
        error = ErrorObject(
            code=Code.RUNTIME_ERROR, message=f"{raised.type}: {raised.message}", span=last.span
        )
        return msgspec.structs.replace(ended, error=error)

    def _answer_now(self, call: code_engine.CellCall) -> code_engine.CallAnswer | None:
        if self.ending is not None:
            return _OVER
        if call.name not in (FINISH, CONTINUE_AS):
            return None
        if call.problem is not None:
            kind = GUEST_EXCEPTION.get(call.problem.code, "RuntimeError")
            return _raised(kind, call.problem.message)
        if not self._request.accept_finish:
            return _raised("RuntimeError", f"{call.name}() cannot be called here")
        problem = self._finish(call) if call.name == FINISH else self._continue_as(call)
        return _OVER if problem is None else _raised("ValueError", problem)

    def _finish(self, call: code_engine.CellCall) -> str | None:
        """Accept the turn's answer from a call; return the problem if it is refused."""
        value = call.args[0] if call.args else call.kwargs.get("value")
        output = self._ctx.output
        text = answer_text(value, output)
        if len(text) > _MAX_ANSWER_BYTES or len(text.encode("utf-8", "replace")) > _MAX_ANSWER_BYTES:
            return f"the answer is larger than {_MAX_ANSWER_BYTES} bytes"
        if output is not None and (problem := output.check(text).problem) is not None:
            return f"the answer is not valid: {problem}"
        self.ending = CellEnding(value=value)
        return None

    def _continue_as(self, call: code_engine.CellCall) -> str | None:
        named = {**dict(zip(("task", "seed"), call.args, strict=False)), **call.kwargs}
        task, seed = named.get("task"), named.get("seed")
        if not isinstance(task, str) or not task.strip():
            return "continue_as() takes a task, as text"
        value: Json = task if seed is None else {"task": task, "seed": seed}
        self.ending = CellEnding(value=value, frame_id=f"{self._ctx.turn_id}.f{self._ctx.call_id}")
        return None


class CellCheckFailed(Exception):
    """The code failed its check and was not run."""

    def __init__(self, error: ErrorObject, diagnostics: list[Diagnostic]) -> None:
        super().__init__(error.message)
        self.error = error
        self.diagnostics = diagnostics


def _raised(kind: str, message: str) -> code_engine.CallAnswer:
    return code_engine.CallAnswer(exception=GuestException(type=kind, message=message))


_OVER: Final = _raised("SystemExit", "the turn is over")
"""The answer to a call that code makes after it has ended the turn. Code should not catch it."""
