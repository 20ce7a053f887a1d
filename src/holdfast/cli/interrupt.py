"""Ctrl-C while guest code runs: the run is cancelled, and its result tells so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.model import RunResult
    from holdfast.runtime import BlockingSandbox

_PATIENCE_S = 0.05


def run_interruptibly(box: BlockingSandbox, session: str, work: Callable[[], RunResult]) -> RunResult:
    """Do *work* on a thread; an interrupt cancels it and waits for the result, a second one does not wait."""
    done: Future[RunResult] = Future()
    threading.Thread(target=_fulfil, args=(done, work), name="holdfast-run", daemon=True).start()
    try:
        return done.result()
    except KeyboardInterrupt:
        return _cancel(box, session, done)


def _fulfil(done: Future[RunResult], work: Callable[[], RunResult]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def _cancel(box: BlockingSandbox, session: str, done: Future[RunResult]) -> RunResult:
    """Cancel until the run has ended.

    It gets a moment first: one that is refused because the session waits must not take that wait along.
    A terminal sends Ctrl-C to the engine's process as well: a run that its death ended was cancelled too.
    """
    while True:
        try:
            result = done.result(timeout=_PATIENCE_S)
        except TimeoutError:
            box.cancel(session)
        else:
            return _as_cancelled(result) if result.status == "interrupted" else result


def _as_cancelled(result: RunResult) -> RunResult:
    import msgspec

    from holdfast.errors import Code, ErrorObject
    from holdfast.model import Diagnostic, RunStatus

    error = ErrorObject(code=Code.CANCELLED, message="the run was cancelled")
    others = [item for item in result.diagnostics if item.code != Code.INTERRUPTED]
    return msgspec.structs.replace(
        result, status=RunStatus.CANCELLED, error=error, diagnostics=[Diagnostic.error(error), *others]
    )
