"""Checking code without running any of it.

The engine's type checker reads the code against stubs of the capabilities and of the session's names. Then
the engine itself is given the code behind a call that is never answered, so that it compiles everything and
runs nothing; each feature that it refuses is reported and blanked out until nothing is left to refuse.
"""

from __future__ import annotations

import ast
import builtins
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from standfast.errors import Code, Span, StandfastError
from standfast.model.diagnostic import Diagnostic, Severity
from standfast.model.limits import SessionLimits
from standfast.sandbox.monty import engine
from standfast.sandbox.monty.failures import MODULES, unsupported_feature
from standfast.sandbox.monty.program import WAITERS, called_name
from standfast.sandbox.monty.syntax import misread, parse
from standfast.sandbox.monty.workers import MontyWorker, MontyWorkers
from standfast.sandbox.workers import Watchdog

_GATE: Final = "validate_gate__"
_MAX_REFUSALS: Final = 50
_MAX_DIAGNOSTICS: Final = 200
_ENGINE_ONLY_BUILTINS: Final = frozenset({
    "filter", "format", "getattr", "hasattr", "map", "setattr", "FileExistsError", "FileNotFoundError",
    "ImportError", "IsADirectoryError", "ModuleNotFoundError", "NotADirectoryError", "PermissionError",
    "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError",
})  # fmt: skip
"""Built-ins that the engine runs but its checker does not know."""
_NOT_AWAITABLE: Final = frozenset({"invalid-await", "no-matching-overload", "invalid-argument-type"})
_NAME = re.compile(r"Name `(\w+)` used when not defined")
_CHECK_LIMITS: Final = SessionLimits(memory_mb=512, cpu_ms=10_000, max_stack_depth=1000)


@runtime_checkable
class Declared(Protocol):
    """The functions that guest code may call, for checking it."""

    def __contains__(self, name: object, /) -> bool: ...

    def suggest(self, name: str) -> str | None: ...

    def stubs(self) -> str:
        """Return one `def` per function."""


class Validator:
    """Checks code for a session. Blocking."""

    def __init__(self, workers: MontyWorkers, functions: Declared, watchdog: Watchdog) -> None:
        self._workers = workers
        self._functions = functions
        self._watchdog = watchdog

    def check(self, code: str, names: Iterable[str], timeout_ms: int) -> list[Diagnostic]:
        """Everything that is wrong with *code*, in the order of its lines, as far as it is found in time."""
        deadline = time.monotonic() + timeout_ms / 1000
        known = sorted(set(names))
        try:
            found = self._type_check(code, known, deadline)
            found += [item for item in self._refusals(code, deadline) if not _covered(item, found)]
            found += misread(code, parse(code))
        except engine.MontyCrashedError:
            raise too_slow(timeout_ms) from None
        return sorted(found, key=_place)[:_MAX_DIAGNOSTICS]

    def refusals(self, code: str, timeout_ms: int) -> list[Diagnostic]:
        """What the engine itself refuses of *code*: syntax and features, no types."""
        try:
            return list(self._refusals(code, time.monotonic() + timeout_ms / 1000))
        except engine.MontyCrashedError:
            raise too_slow(timeout_ms) from None

    @contextmanager
    def _checking(self, deadline: float, **options: Any) -> Iterator[MontyWorker]:
        """A worker for one check, which is killed when the time is over."""
        worker = self._workers.attach_bare(_CHECK_LIMITS, **options)
        try:
            self._watchdog.watch(worker, max(0.01, deadline - time.monotonic()), worker.kill)
            yield worker
        finally:
            self._watchdog.forget(worker)
            worker.close()

    def _type_check(self, code: str, names: list[str], deadline: float) -> list[Diagnostic]:
        stubs = f"from typing import Any, Literal\n{self._functions.stubs()}\n"
        stubs += "".join(f"{name}: Any\n" for name in names if name not in self._functions)
        stubs += f"def {_GATE}() -> None: ...\n"
        with self._checking(
            deadline, type_check=True, type_check_stubs=stubs, type_check_format="json"
        ) as worker:
            try:
                _feed_to_gate(worker, code)
            except engine.MontyTypingError as error:
                return list(self._type_errors(error.display(), code, set(names)))
            except (engine.MontySyntaxError, engine.MontyRuntimeError) as error:
                _must_fit(error)  # else the engine's own parser refuses it; the second pass says where
        return []

    def _type_errors(self, text: str, source: str, known: set[str]) -> Iterator[Diagnostic]:
        places = _Places(source)
        for item in msgspec.json.decode(text)[:_MAX_DIAGNOSTICS]:
            span = _span(item)
            rule, message = str(item["code"]), str(item["message"])
            if rule in _NOT_AWAITABLE and places.touches_awaited(span):
                continue
            if (name := _NAME.match(message)) and name[1] in _ENGINE_ONLY_BUILTINS | known:
                continue
            code, hint = self._meaning(rule, message, span, places)
            severity = Severity.WARNING if item.get("severity") == "warning" else Severity.ERROR
            yield Diagnostic(
                severity=severity, code=code, message=message.replace("`", "'"), hint=hint, span=span
            )

    def _meaning(self, rule: str, message: str, span: Span, places: _Places) -> tuple[str, str | None]:
        if rule == "invalid-syntax":
            return Code.SYNTAX_ERROR, None
        if rule in ("unresolved-import", "unresolved-module"):
            return Code.UNSUPPORTED_FEATURE, f"the sandbox has these modules: {MODULES}"
        if rule == "unresolved-reference" and (name := _NAME.match(message)) and places.is_called(span):
            return Code.UNKNOWN_TOOL, self._hint_for(name[1])
        return Code.TYPE_ERROR, None

    def _hint_for(self, name: str) -> str:
        if name == "open":
            return "files are read with read_text(path) from a granted mount"
        if hasattr(builtins, name):
            return f"the sandbox's Python has no {name}()"
        return self._functions.suggest(name) or "list_tools() names what can be called"

    def _refusals(self, code: str, deadline: float) -> Iterator[Diagnostic]:
        """Features that the engine does not have, one compilation each."""
        for _ in range(_MAX_REFUSALS):
            with self._checking(deadline) as worker:
                try:
                    _feed_to_gate(worker, code)
                    return
                except (engine.MontySyntaxError, engine.MontyRuntimeError) as error:
                    _must_fit(error)
                    yield (found := _refusal(error))
            blanked = _blank_out(code, found.span)
            if blanked is None or blanked == code:
                return
            code = blanked


class CheckFailed(StandfastError):
    """The code could not be checked within its limits."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message, hint="check less code at once")
        self.code = code


def too_slow(timeout_ms: int) -> CheckFailed:
    return CheckFailed(Code.TIMEOUT_WALL, f"the check took longer than {timeout_ms} ms")


class _Places:
    """Questions about places in the code, answered from its tree where there is one."""

    def __init__(self, code: str) -> None:
        self._lines = code.encode().split(b"\n")
        self.tree = parse(code)
        nodes = list(ast.walk(self.tree)) if self.tree is not None else []
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._called = {self._start(call.func) for call in calls if isinstance(call.func, ast.Name)}
        self._awaiting: list[ast.expr] = [node for node in nodes if isinstance(node, ast.Await)]
        self._awaiting += [call for call in calls if called_name(call) in WAITERS]

    def is_called(self, span: Span) -> bool:
        """Whether the name at this place is called."""
        return self.tree is None or (span.line, span.column) in self._called

    def touches_awaited(self, span: Span) -> bool:
        """Whether the place is what is awaited, or what waits: tools may be awaited, whatever stubs say."""
        return self.tree is None or any(self.holds(node, span) for node in self._awaiting)

    def holds(self, node: ast.expr | ast.stmt, span: Span) -> bool:
        """Whether the place lies in *node*."""
        end = self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return self._start(node) <= (span.line, span.column) <= end

    def _start(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset)

    def _at(self, line: int, offset: int) -> tuple[int, int]:
        """Line and column in characters, of an offset in bytes."""
        return line, len(self._lines[line - 1][:offset].decode("utf-8", "replace")) + 1


def _feed_to_gate(worker: MontyWorker, code: str) -> None:
    """Let the engine read *code* and stop before its first statement."""
    snapshot: Any = worker.feed(f"{_GATE}()\n{code}", print_callback=_ignore)
    while isinstance(snapshot, engine.FunctionSnapshot) and snapshot.is_os_function:
        snapshot = snapshot.resume_not_handled()


_ignore: Callable[[str, str], None] = lambda stream, text: None  # noqa: E731 - a value to pass


def _must_fit(error: engine.MontyError) -> None:
    """The engine's parser and checker have limits of their own."""
    text = str(error)
    if "memory limit" in text:
        raise CheckFailed(Code.MEMORY_EXCEEDED, "the check needs more memory than it may use")
    if "time limit" in text:
        raise CheckFailed(Code.TIMEOUT_CPU, "the check computes for longer than it may")


def _refusal(error: Any) -> Diagnostic:
    frames = error.traceback()
    span = None
    if frames:
        frame = frames[-1]
        span = Span(
            line=max(1, frame.line - 1),
            column=frame.column,
            end_line=max(1, frame.end_line - 1),
            end_column=frame.end_column,
        )
    text = error.display("msg")
    what = unsupported_feature(text)
    code = Code.UNSUPPORTED_FEATURE if what else Code.SYNTAX_ERROR
    return Diagnostic(severity=Severity.ERROR, code=code, message=what or text, span=span)


def _blank_out(code: str, span: Span | None) -> str | None:
    """Replace the innermost statement at *span* by `pass`, lines kept as they are."""
    places = _Places(code)
    if places.tree is None or span is None:
        return None
    statements = (node for node in ast.walk(places.tree) if isinstance(node, ast.stmt))
    inside = [node for node in statements if places.holds(node, span)]
    if not inside:
        return None
    node = max(inside, key=lambda item: (item.lineno, item.col_offset))
    lines = code.encode().split(b"\n")
    first, last = _first_line(node) - 1, (node.end_lineno or node.lineno) - 1
    tail = lines[last][node.end_col_offset or 0 :]
    lines[first : last + 1] = [lines[first][: node.col_offset] + b"pass" + tail, *([b""] * (last - first))]
    return b"\n".join(lines).decode()


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(item.lineno for item in decorators)])


def _span(item: dict[str, Any]) -> Span:
    start, end = item["location"], item["end_location"]
    return Span(
        line=max(1, start["row"] - 1),
        column=start["column"],
        end_line=max(1, end["row"] - 1),
        end_column=end["column"],
    )


def _place(item: Diagnostic) -> tuple[int, int]:
    return (item.span.line, item.span.column) if item.span else (0, 0)


def _covered(item: Diagnostic, others: list[Diagnostic]) -> bool:
    return item.code == Code.SYNTAX_ERROR and any(other.code == Code.SYNTAX_ERROR for other in others)
