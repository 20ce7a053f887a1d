"""`standfast tokens`: make, list and revoke the credentials of a server's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import CommandOutput, moment
from standfast.cli.report import show_table
from standfast.cli.sessions import Age

if TYPE_CHECKING:
    from standfast.runtime.agent_runtime import Runtime
    from standfast.server.credentials import TokenRecord

SCOPES = ("read", "run", "approve", "admin")
DEFAULT_URL = "http://127.0.0.1:8000"
_given = (
    click.option("--name", default="", metavar="NAME", help="The owner of the token; stored with decisions."),
    click.option("--tenant", default="", metavar="NAME", help="The tenant of the token.  [default: none]"),
    click.option(
        "--scope",
        "scopes",
        multiple=True,
        type=click.Choice(SCOPES),
        help="What it allows; may be repeated. admin includes the others.  [default: read, run and approve]",
    ),
)


def _token_options(function: Any) -> Any:
    for option in _given:
        function = option(function)
    return function


@click.group(
    "tokens",
    epilog="""\b
Examples:
  standfast tokens create --name alice
  standfast tokens create --scope read --tenant acme --expires 30d
  standfast tokens revoke tok1f3a5c7e9b2d
  standfast tokens link
""",
)
@inherited_options
def command() -> None:
    """Make, list and revoke the tokens of a server's clients, and sign a browser in."""


@command.command("create")
@click.option("--expires", type=Age(), metavar="AGE", help="When it expires, such as 30d.")
@_token_options
@answers
def create(
    invocation: Invocation, *, name: str, tenant: str, scopes: tuple[str, ...], expires: float | None
) -> CommandOutput:
    """Create a token and print it. Only its digest is stored, so it cannot be shown again."""
    from standfast.server.credentials import Tokens

    async def work(runtime: Runtime) -> tuple[str, TokenRecord]:
        chosen = scopes or SCOPES[:3]
        return await Tokens(runtime.store).create(
            name=name, tenant=tenant, scopes=chosen, expires_in_s=expires
        )

    token, record = invocation.with_runtime(work)
    return CommandOutput.line(token, {"token": token, **_document(record)})


@command.command("list")
@answers
def list_tokens(invocation: Invocation) -> CommandOutput:
    """List tokens, oldest first. Browsers that have signed in are among them."""
    from standfast.server.credentials import Tokens

    found = invocation.with_runtime(lambda runtime: Tokens(runtime.store).list())

    def show() -> None:
        rows = [
            (
                one.id,
                one.kind,
                one.name,
                one.tenant,
                " ".join(one.scopes),
                moment(one.created_at),
                _state(one),
            )
            for one in found
        ]
        headers = ("token", "kind", "name", "tenant", "scopes", "made", "state")
        show_table(*headers, rows=rows, whole=(0,), empty="no tokens yet")

    return CommandOutput([_document(one) for one in found], show)


@command.command("revoke")
@click.argument("token_id")
@answers
def revoke(invocation: Invocation, *, token_id: str) -> CommandOutput:
    """Revoke a token by its id. Requests and streams with it end within a second."""
    from standfast.errors import InvalidArgument
    from standfast.server.credentials import Tokens

    if not invocation.with_runtime(lambda runtime: Tokens(runtime.store).revoke(token_id)):
        raise InvalidArgument(
            f"there is no token {token_id[:80]!r}", hint="`standfast tokens list` shows their ids"
        )
    return CommandOutput.line(f"{token_id} is revoked", {"id": token_id, "revoked": True})


@command.command("link")
@click.option(
    "--url",
    metavar="URL",
    help=f"The server's address.  [default: that of the last `standfast serve`, else {DEFAULT_URL}]",
)
@_token_options
@answers
def link(
    invocation: Invocation, *, url: str | None, name: str, tenant: str, scopes: tuple[str, ...]
) -> CommandOutput:
    """Print a link that signs a browser in, once, within a minute."""
    from standfast.server.credentials import Tokens

    async def work(runtime: Runtime) -> tuple[str, str | None]:
        tokens = Tokens(runtime.store)
        code = await tokens.make_code(name=name, tenant=tenant, scopes=scopes or SCOPES[:3])
        return code, url or await tokens.address()

    code, known = invocation.with_runtime(work)
    address = f"{(known or DEFAULT_URL).rstrip('/')}/signin?code={code}"
    shown = CommandOutput.line(address, {"url": address, "expires_in_s": 60})

    def show() -> None:
        shown.show()
        if known is None:
            click.echo(
                f"hint: no server has used this store; pass --url if yours is not at {DEFAULT_URL}", err=True
            )

    return shown._replace(show=show)


def _document(record: TokenRecord) -> dict[str, Any]:
    import msgspec

    return {key: value for key, value in msgspec.to_builtins(record).items() if key != "digest"}


def _state(record: TokenRecord) -> str:
    import time

    if record.revoked_at is not None:
        return "revoked"
    if not record.is_valid(int(time.time() * 1000)):
        return "expired"
    return "valid" if record.expires_at is None else f"until {moment(record.expires_at)}"
