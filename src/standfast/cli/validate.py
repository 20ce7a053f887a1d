"""`standfast validate`: check code without running it."""

from __future__ import annotations

from typing import Any

import click

from standfast.cli import options
from standfast.cli.host import SandboxGrants, make_sandbox
from standfast.cli.output import CommandOutput
from standfast.cli.report import RunReport


@click.command(
    "validate",
    epilog="""\b
Examples:
  standfast validate -e 'open("/etc/passwd")'
  standfast validate -f report.py --tools examples/refunds.py --json
  standfast validate -f report.ts
""",
)
@options.code_options
@options.session_option
@options.inputs_option
@options.server_option
@options.grants_options
@options.answers
def command(
    invocation: options.Invocation,
    *,
    code: str,
    session_id: str | None,
    inputs: dict[str, Any] | None,
    grants: SandboxGrants,
    language: str,
    engine: str | None,
) -> CommandOutput:
    """Check code without running it.

    Reports all syntax errors, type errors, calls of names that are not granted and unsupported features,
    each with its place.
    """
    from standfast.errors import StandfastError
    from standfast.model.run import RunResult

    session = options.session_or_usual(session_id, language, engine)
    if invocation.server is not None:
        if grants != SandboxGrants() or engine:
            raise click.UsageError(
                "the server defines tools and engines; leave out their options with --server"
            )

        with invocation.client() as client:
            result = client.validate(code, session=session, language=language, inputs=inputs or {})
    else:
        box = make_sandbox(invocation.data_dir, grants, language, engine)
        try:
            with box:
                result = box.validate(code, session=session, inputs=inputs)
        except StandfastError as error:
            result = RunResult.failed(error.error_object())
    report = RunReport(result, invocation, code)
    return CommandOutput(result, report.show_check, report.output().exit_status)
