"""Checks of code with the engine, without running any of it.

The code is fed to the engine after a call that fails (the *gate*), so that the engine reads everything and
runs nothing. The engine's type checker reads the code first, with stubs of the functions and the session's
names; then the code is compiled. Code with type errors is fed again without the type checker. Each feature
that the engine rejects is reported and blanked out, until the engine rejects nothing more.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from standfast.errors import Code, Span, TypeCheckFailed
from standfast.model.code import Diagnostic, Severity
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.failures import MODULES, unsupported_feature
from standfast.sandbox.monty.program import WAITERS, called_name
from standfast.sandbox.monty.syntax import SourceLines, misread, parse
from standfast.sandbox.monty.workers import MontyWorker, MontyWorkers, ignore_output
from standfast.sandbox.run_errors import by_line, diagnose, too_slow
from standfast.sandbox.workers import Watchdog

_GATE: Final = "validate_gate__"
_VALUE: Final = "validate_value__"
"""A function whose return type is Any. It declares the names that the session has bound."""
_MAX_CHECKS: Final = 256
"""A worker is replaced after this many feeds, because the engine keeps the source of each."""
_MAX_REFUSALS: Final = 50
_MAX_DIAGNOSTICS: Final = 200
_ENGINE_ONLY_BUILTINS: Final = frozenset({
    "filter", "format", "getattr", "hasattr", "map", "setattr", "FileExistsError", "FileNotFoundError",
    "ImportError", "IsADirectoryError", "ModuleNotFoundError", "NotADirectoryError", "PermissionError",
    "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError",
})  # fmt: skip
"""Built-in names that the engine supports but its type checker does not know."""
_NOT_AWAITABLE: Final = frozenset({"invalid-await", "no-matching-overload", "invalid-argument-type"})
_NAME = re.compile(r"Name `(\w+)` used when not defined")
_CHECK_LIMITS: Final = SessionLimits(memory_mb=512, cpu_ms=10_000, max_stack_depth=1000)


@runtime_checkable
class Declared(Protocol):
    """The functions that guest code may call, for the type checker."""

    def __contains__(self, name: object, /) -> bool: ...

    def suggest(self, name: str) -> str | None: ...

    def stubs(self) -> str:
        """Return one `def` per function."""


class Checkers:
    """Keeps one worker with the type checker loaded: loading it takes ten times as long as a check.

    A check leaves nothing in the worker: its code never gets past the gate, and the type checker remembers
    only code that has run to its end. Concurrent checks, and checks with other stubs, use another worker.
    """

    def __init__(self, workers: MontyWorkers) -> None:
        self._workers = workers
        self._keeping = threading.Lock()
        self._kept: MontyWorker | None = None

    @contextmanager
    def checker(self, stubs: str) -> Iterator[MontyWorker]:
        """Yield a worker that type-checks the code it is fed; keep the worker unless the block raises."""
        with self._keeping:
            worker, self._kept = self._kept, None
        if worker is not None and worker.version != stubs:
            worker.close()
            worker = None
        if worker is None:
            worker = self._workers.attach_bare(
                _CHECK_LIMITS, type_check=True, type_check_stubs=stubs, type_check_format="json"
            )
            worker.version = stubs
        try:
            yield worker
        except BaseException:
            worker.close()
            raise
        worker.warm = True
        with self._keeping:
            if self._kept is None and worker.version is not None and worker.next_input < _MAX_CHECKS:
                self._kept, worker = worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        with self._keeping:
            worker, self._kept = self._kept, None
        if worker is not None:
            worker.close()


class Validator:
    """Checks code for a session. Blocking."""

    def __init__(self, checkers: Checkers, functions: Declared, watchdog: Watchdog) -> None:
        self._checkers = checkers
        self._functions = functions
        self._watchdog = watchdog

    def check(self, code: str, names: Iterable[str], timeout_ms: int) -> list[Diagnostic]:
        """Return the problems in *code*, ordered by line; raise `TypeCheckFailed` if this takes too long."""
        known = sorted(set(names))
        found = self._with_checker(timeout_ms, lambda worker: self._problems(worker, code, known))
        found += misread(code, parse(code))
        return sorted(found, key=by_line)[:_MAX_DIAGNOSTICS]

    def refusals(self, code: str, timeout_ms: int) -> list[Diagnostic]:
        """Return the syntax errors and unsupported features in *code*, without checking types."""
        return self._with_checker(timeout_ms, lambda worker: list(self._refusals(worker, code)))

    def _with_checker(
        self, timeout_ms: int, job: Callable[[MontyWorker], list[Diagnostic]]
    ) -> list[Diagnostic]:
        """Run *job* with a worker that is killed after *timeout_ms*; replace the kept one if it has died."""
        stubs = f"from typing import Any, Literal\n{self._functions.stubs()}\n"
        stubs += f"def {_GATE}() -> None: ...\ndef {_VALUE}() -> Any: ...\n"
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            with self._checkers.checker(stubs) as worker:
                was_kept = worker.warm
                self._watchdog.watch(worker, max(0.01, deadline - time.monotonic()), worker.kill)
                try:
                    return job(worker)
                except engine.MontyCrashedError:
                    worker.version = None
                    if not was_kept or time.monotonic() >= deadline:
                        raise too_slow(timeout_ms) from None
                finally:
                    self._watchdog.forget(worker)

    def _problems(self, worker: MontyWorker, code: str, names: list[str]) -> list[Diagnostic]:
        """Return type errors and unsupported features; code without type errors has already been compiled."""
        found = self._type_check(worker, code, names)
        if found is None:
            return []
        known = any(item.code == Code.SYNTAX_ERROR for item in found)
        refusals = self._refusals(worker, code)
        return found + [item for item in refusals if not (known and item.code == Code.SYNTAX_ERROR)]

    def _feed(self, worker: MontyWorker, first: str, code: str, **options: Any) -> None:
        """Feed *code* to the engine after the line *first*, which begins with the gate: none of it runs."""
        worker.next_input += 1
        try:
            snapshot: Any = worker.feed(f"{first}\n{code}", print_callback=ignore_output, **options)
            while isinstance(snapshot, engine.FunctionSnapshot) and snapshot.is_os_function:
                snapshot = snapshot.resume_not_handled()
        except (engine.MontySyntaxError, engine.MontyRuntimeError) as error:
            text = str(error)  # the engine's parser and type checker have their own limits
            if "memory limit" in text:
                message = "the check exceeds its memory limit"
                raise TypeCheckFailed(Code.MEMORY_EXCEEDED, message) from None
            if "time limit" in text:
                raise TypeCheckFailed(Code.TIMEOUT_CPU, "the check exceeds its limit of CPU time") from None
            raise
        with contextlib.suppress(engine.MontyRuntimeError):
            snapshot.resume({"exc_type": "RuntimeError", "message": _GATE})

    def _type_check(self, worker: MontyWorker, code: str, names: list[str]) -> list[Diagnostic] | None:
        """Return the type errors, without those to ignore; None if the engine accepts the code."""
        # A name may be `*`, from `from m import *`.
        bound = "".join(f"{name}=" for name in names if name.isidentifier() and name not in self._functions)
        try:
            self._feed(worker, f"{_GATE}();{bound}{_VALUE}()" if bound else f"{_GATE}()", code)
        except engine.MontyTypingError as error:
            return list(self._type_errors(error.display(), code, set(names)))
        except (engine.MontySyntaxError, engine.MontyRuntimeError):
            return []  # the engine's parser rejects it; the second pass reports where
        return None

    def _type_errors(self, text: str, source: str, known: set[str]) -> Iterator[Diagnostic]:
        places = _Places(source)
        for item in msgspec.json.decode(text)[:_MAX_DIAGNOSTICS]:
            start, end = item["location"], item["end_location"]
            span = Span(
                line=max(1, start["row"] - 1),
                column=start["column"],
                end_line=max(1, end["row"] - 1),
                end_column=end["column"],
            )
            rule, message = str(item["code"]), str(item["message"])
            if rule in _NOT_AWAITABLE and places.touches_awaited(span):
                continue
            name = _NAME.match(message)
            if name and name[1] in _ENGINE_ONLY_BUILTINS | known:
                continue
            code, hint = Code.TYPE_ERROR, None
            if rule == "invalid-syntax":
                code = Code.SYNTAX_ERROR
            elif rule in ("unresolved-import", "unresolved-module"):
                code, hint = Code.UNSUPPORTED_FEATURE, f"the sandbox has these modules: {MODULES}"
            elif rule == "unresolved-reference" and name and places.is_called(span):
                code = Code.UNKNOWN_TOOL
                if name[1] == "open":
                    hint = "files are read with read_text(path) from a granted mount"
                elif hasattr(builtins, name[1]):
                    hint = f"the sandbox's Python has no {name[1]}()"
                else:
                    hint = self._functions.suggest(name[1]) or "list_tools() lists what can be called"
            yield Diagnostic(
                severity=Severity.WARNING if item.get("severity") == "warning" else Severity.ERROR,
                code=code,
                message=message.replace("`", "'"),
                hint=hint,
                span=span,
            )

    def _refusals(self, worker: MontyWorker, code: str) -> Iterator[Diagnostic]:
        """Yield the unsupported features and syntax errors, each found by one compilation."""
        for _ in range(_MAX_REFUSALS):
            try:
                self._feed(worker, f"{_GATE}()", code, skip_type_check=True)
                return
            except (engine.MontySyntaxError, engine.MontyRuntimeError) as error:
                frames, text = error.traceback(), error.display("msg")
            span = None
            if frames:
                span = Span(
                    line=max(1, frames[-1].line - 1),
                    column=frames[-1].column,
                    end_line=max(1, frames[-1].end_line - 1),
                    end_column=frames[-1].end_column,
                )
            what = unsupported_feature(text)
            yield diagnose(Code.UNSUPPORTED_FEATURE if what else Code.SYNTAX_ERROR, what or text, span)
            blanked = _Places(code).without_statement(span) if span is not None else None
            if blanked is None or blanked == code:
                return
            code = blanked


class _Places:
    """Finds the syntax nodes at positions in the code, if the code can be parsed."""

    def __init__(self, code: str) -> None:
        self._lines = SourceLines(code)
        self._tree = parse(code)
        self._nodes = list(ast.walk(self._tree)) if self._tree is not None else []
        calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        self._called = {self._start(call.func) for call in calls if isinstance(call.func, ast.Name)}
        self._awaiting: list[ast.expr] = [node for node in self._nodes if isinstance(node, ast.Await)]
        self._awaiting += [call for call in calls if called_name(call) in WAITERS]

    def is_called(self, span: Span) -> bool:
        """Return whether the name at this position is called."""
        return self._tree is None or (span.line, span.column) in self._called

    def touches_awaited(self, span: Span) -> bool:
        """Return whether the position is in an `await` or in a call of asyncio that waits."""
        return self._tree is None or any(self._holds(node, span) for node in self._awaiting)

    def without_statement(self, span: Span) -> str | None:
        """Return the code with `pass` instead of the innermost statement at *span*, on the same lines."""
        inside = [node for node in self._nodes if isinstance(node, ast.stmt) and self._holds(node, span)]
        if not inside:
            return None
        node = max(inside, key=lambda item: (item.lineno, item.col_offset))
        lines = self._lines.data.split(b"\n")
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(item.lineno for item in decorators)]) - 1
        last = (node.end_lineno or node.lineno) - 1
        tail = lines[last][node.end_col_offset or 0 :]
        blank = [b""] * (last - first)
        lines[first : last + 1] = [lines[first][: node.col_offset] + b"pass" + tail, *blank]
        return b"\n".join(lines).decode()

    def _holds(self, node: ast.expr | ast.stmt, span: Span) -> bool:
        end_line = node.end_lineno or node.lineno
        end = end_line, self._lines.column(end_line, node.end_col_offset or 0)
        return self._start(node) <= (span.line, span.column) <= end

    def _start(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return node.lineno, self._lines.column(node.lineno, node.col_offset)
