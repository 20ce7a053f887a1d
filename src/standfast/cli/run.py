"""`standfast run`: run code in a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from standfast.cli import options
from standfast.cli.host import SandboxGrants, make_sandbox
from standfast.cli.output import CommandOutput
from standfast.cli.report import RunReport

if TYPE_CHECKING:
    from standfast.model.approval import Approval
    from standfast.model.run import RunResult
    from standfast.runtime.blocking import BlockingSandbox


@click.command(
    "run",
    epilog="""\b
Examples:
  standfast run -e 'sum(range(10))'
  standfast run -e 'total = price * 2' --inputs '{"price": 21}'
  standfast run -f report.py --session-id reports --timeout-ms 2000
  echo 'print("hi")' | standfast run -
  standfast run --mount /data=./data -e 'read_text("/data/a.txt")'
  standfast run --tools examples/refunds.py -e 'fee() + refund("A1", 500)'
  standfast run --language typescript -e '[1, 2, 3].map((n) => n * 2)'
  standfast run --engine cpython -f analysis.py --package numpy --session-id analysis
""",
)
@options.code_options
@options.session_option
@options.inputs_option
@click.option("--timeout-ms", type=click.IntRange(1, 2**32 - 1), metavar="N", help="Wall time of this run.")
@click.option(
    "--limits",
    type=options.JsonParameter(dict),
    metavar="JSON",
    help='Limits of this run, such as \'{"memory_mb": 32, "cpu_ms": 500}\'.',
)
@click.option("--snapshot", is_flag=True, help="Store a snapshot of the session after the run.")
@options.server_option
@options.grants_options
@options.answers
def command(
    invocation: options.Invocation,
    *,
    code: str,
    session_id: str | None,
    grants: SandboxGrants,
    language: str,
    engine: str | None,
    **settings: Any,
) -> CommandOutput:
    """Run code in a session and show its result.

    The result is the value that the code bound to `result`, else its last expression. Variables stay in
    the session. A call that needs approval suspends the run; `standfast approvals approve` resumes it. A
    session keeps the language and the engine with which it was created.
    """
    from standfast.errors import StandfastError
    from standfast.model.run import RunResult

    session = options.session_or_usual(session_id, language, engine)
    if invocation.server is not None:
        if grants != SandboxGrants() or engine or settings.pop("snapshot"):
            raise click.UsageError(
                "the server defines tools and engines; leave out their options with --server"
            )

        with invocation.client() as client:
            given = {name: value for name, value in settings.items() if value is not None}
            result = client.run(code, session=session, language=language, **given)
        return RunReport(result, invocation, code).output()
    box = make_sandbox(invocation.data_dir, grants, language, engine)
    try:
        with box:
            result = box.run(code, session=session, **settings)
            waiting = waiting_in(box, session, result)
    except StandfastError as error:
        result, waiting = RunResult.failed(error.error_object()), []
    return RunReport(result, invocation, code, waiting).output()


def continue_run(
    invocation: options.Invocation,
    session: str,
    box: BlockingSandbox,
    work: Callable[[BlockingSandbox], RunResult],
) -> CommandOutput:
    """Resume a session's waiting run by calling *work*, and output its result as `standfast run` does."""
    with box:
        result = work(box)
        waiting = waiting_in(box, session, result)
    return RunReport(result, invocation, waiting=waiting).output()


def waiting_in(box: BlockingSandbox, session: str, result: RunResult) -> list[Approval]:
    """Return the approvals that a result waits for."""
    if result.status != "waiting_for_approval":
        return []
    return box.approvals(session=session, pending=True)
