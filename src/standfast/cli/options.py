"""Options that many commands share, and the frozen values that carry them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click

from standfast.cli.output import CommandOutput, stdout_reserved

if TYPE_CHECKING:
    from standfast.client import BlockingClient
    from standfast.runtime.agent_runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

TOKEN_VARIABLE = "STANDFAST_TOKEN"  # noqa: S105 - the name of a variable
_TYPESCRIPT = (".ts", ".mts", ".cts")
_DATA_DIR = "standfast.data_dir"
_AS_JSON = "standfast.as_json"


class Invocation(NamedTuple):
    """How a command was called: where its data is, or which server to use, and whether it outputs JSON."""

    given_data_dir: Path | str | None
    as_json: bool
    program: str
    server: str | None

    @property
    def data_dir(self) -> Path | str:
        """A directory, a database file, or a URL."""
        from standfast.runtime.data_dir import default_location

        return self.given_data_dir or default_location()

    def beside(self, name: str) -> Path:
        """Return the path of the file *name* beside the data, such as the history of typed lines."""
        from standfast.runtime.data_dir import DataDir

        return DataDir(self.data_dir, make=False).beside(name)

    def with_runtime(self, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Run *work* on the sessions of the data directory. No agent is loaded, so no turn runs."""
        import asyncio

        from standfast.runtime.agent_runtime import Runtime
        from standfast.runtime.data_dir import DataDir

        async def run() -> T:
            async with Runtime(DataDir(self.data_dir).database) as runtime:
                return await work(runtime)

        return asyncio.run(run())

    def client(self) -> BlockingClient:
        """Return a client of the server of `--server`, with the token in the environment."""
        from standfast.client import BlockingClient
        from standfast.errors import NotConfigured

        token = os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise NotConfigured(
                f"--server needs a token in {TOKEN_VARIABLE}",
                hint="create one with `standfast tokens create`, on the machine that has the server's data",
            )
        return BlockingClient(str(self.server), token=token, retry_s=5.0)

    def ask(self, remote: Callable[[BlockingClient], T], local: Callable[[Runtime], Awaitable[T]]) -> T:
        """Return the result of *remote* on the server, or without `--server` of *local* on the data."""
        if self.server is None:
            return self.with_runtime(local)
        with self.client() as client:
            return remote(client)

    def command(self, *words: str) -> str:
        """Return a command line, for copying, that uses the same data."""
        import shlex

        from standfast.runtime.data_dir import without_password

        where = ("--store", without_password(str(self.given_data_dir))) if self.given_data_dir else ()
        return f"{self.program} {shlex.join((*words, *where))}"


class JsonParameter(click.ParamType[Any]):
    """JSON text on the command line, of one of the given kinds."""

    name = "json"

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        def refuse(name: str) -> NoReturn:
            raise ValueError(f"{name} is not a JSON number")

        if not isinstance(value, str):
            return value
        import json  # few commands are given any

        try:
            decoded = json.loads(value, parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            self.fail(f"this is not JSON: {error}", param, ctx)
        if not isinstance(decoded, self._kinds):
            wanted = """an object, such as '{"name": 1}'"""
            if list in self._kinds:
                wanted = """an array or an object, such as '["A1", 100]' or '{"cents": 100}'"""
            self.fail(f"this must be {wanted}", param, ctx)
        return decoded


class LocationParameter(click.ParamType[Any]):
    """The location of a store: the URL of a PostgreSQL database as text, or a path."""

    name = "store"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from standfast.errors import NotConfigured
        from standfast.runtime.data_dir import is_url

        try:
            return value if isinstance(value, Path) or is_url(value) else Path(value)
        except NotConfigured as error:
            self.fail(f"{error.message}: {error.hint}", param, ctx)


_shared = (
    click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document."),
    click.option(
        "--store",
        "--data-dir",
        "data_dir",
        type=LocationParameter(),
        metavar="URL|FILE.db|DIR",
        help='Where sessions are: a PostgreSQL URL, the file of a Runtime("FILE.db"), or a directory.  '
        "[default: STANDFAST_STORE, else STANDFAST_HOME, else ~/.standfast]",
    ),
)


def _with_options(function: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in options:
        function = option(function)
    return function


def inherited_options(function: Callable[[], None]) -> Callable[..., None]:
    """Add `--json` and `--store` to a group; they apply to the command below it."""

    @functools.wraps(function)
    def remember(as_json: bool, data_dir: Path | str | None) -> None:
        meta = click.get_current_context().meta
        meta[_AS_JSON] = as_json or meta.get(_AS_JSON, False)
        meta[_DATA_DIR] = data_dir or meta.get(_DATA_DIR)

    return _with_options(remember, _shared)


def answers(function: Callable[..., CommandOutput]) -> Callable[..., None]:
    """Convert a command into a click callback. With `--json`, all other output goes to standard error."""

    @functools.wraps(function)
    def callback(as_json: bool, data_dir: Path | str | None, **arguments: Any) -> None:
        from standfast.errors import StandfastError

        context = click.get_current_context()
        invocation = Invocation(
            given_data_dir=data_dir or context.meta.get(_DATA_DIR),
            as_json=as_json or context.meta.get(_AS_JSON, False),
            program=context.find_root().info_name or "standfast",
            server=arguments.pop("server", None),
        )
        with stdout_reserved(invocation.as_json):
            try:
                output = function(invocation, **arguments)
            except StandfastError as error:
                output = CommandOutput.failed(error.error_object())
        output.write(as_json=invocation.as_json)
        context.exit(output.exit_status)

    return _with_options(callback, _shared)


_granting = (
    click.option(
        "--package",
        "packages",
        multiple=True,
        metavar="NAME",
        help="Let code on the engine cpython import this installed package.",
    ),
    click.option("--allow-private-hosts", is_flag=True, help="Let --allow-host reach private addresses."),
    click.option(
        "--allow-host", "allow_hosts", multiple=True, metavar="HOST", help="Let code fetch from this host."
    ),
    click.option(
        "--mount-max-files",
        type=click.IntRange(min=0),
        metavar="N",
        help="Let writable mounts hold this many files and directories (100,000).",
    ),
    click.option(
        "--mount-max-bytes",
        type=click.IntRange(min=0),
        metavar="N",
        help="Let writable mounts hold this many bytes (1 GiB).",
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="/VIRT=DIR[:rw]",
        help="Show a directory to code, read-only unless it ends in :rw.",
    ),
    click.option(
        "--tools",
        multiple=True,
        metavar="FILE.py",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        help="Let code call the @tool functions of this file.",
    ),
)


def grants_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--tools`, `--mount`, `--allow-host`, `--package` and so on, passed as `grants`."""

    @functools.wraps(function)
    def collect(*args: Any, tools: tuple[str, ...], mounts: tuple[str, ...], **given: Any) -> Any:
        from standfast.cli.host import SandboxGrants, parse_mount

        names = ("allow_hosts", "allow_private_hosts", "packages", "mount_max_bytes", "mount_max_files")
        grants = SandboxGrants(
            tools=tuple(str(Path(file).absolute()) for file in tools),
            mounts=dict(parse_mount(text) for text in mounts),
            **{name: given.pop(name) for name in names},
        )
        return function(*args, grants=grants, **given)

    return _with_options(collect, _granting)


_speaking = (
    click.option(
        "--engine",
        type=click.Choice(["monty", "cpython", "auto"]),
        help="The engine for Python: monty is fast, cpython is all of Python, auto starts on monty and moves "
        "to cpython when code needs it.  [default: monty, or the session's own]",
    ),
    click.option(
        "--language",
        type=click.Choice(["python", "typescript"]),
        help="The language of the code.  [default: typescript for a file that ends in .ts, else python]",
    ),
)


def language_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--language` and `--engine`; the language defaults to Python."""

    @functools.wraps(function)
    def collect(*args: Any, language: str | None, **rest: Any) -> Any:
        return function(*args, language=language or "python", **rest)

    return _with_options(collect, _speaking)


_coding = (
    click.argument("source", required=False, metavar="[-]"),
    click.option("-f", "--file", metavar="FILE", help="Read the code from this file."),
    click.option("-e", "--code", "text", metavar="CODE", help="The code itself."),
)


def code_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-e CODE`, `-f FILE` or `-`, exactly one of them, passed as `code` with its `language`."""

    @functools.wraps(function)
    def collect(
        *args: Any, text: str | None, file: str | None, source: str | None, language: str | None, **rest: Any
    ) -> Any:
        if source not in (None, "-"):
            raise click.UsageError(
                f"unexpected argument {source!r}; to read code from a file, write -f {source}"
            )
        if sum(given is not None for given in (text, file, source)) != 1:
            raise click.UsageError("give the code once: -e CODE, -f FILE, or - for standard input")
        spoken = language or ("typescript" if file and file.endswith(_TYPESCRIPT) else "python")
        if text is None:
            try:
                data = sys.stdin.buffer.read() if file is None or file == "-" else Path(file).read_bytes()
                text = data.decode("utf-8-sig")
            except OSError as error:
                raise click.UsageError(f"{file or '-'} cannot be read: {error.strerror or error}") from None
            except UnicodeDecodeError:
                raise click.UsageError(f"{file or '-'} is not UTF-8 text") from None
        return function(*args, code=text, language=spoken, **rest)

    return _with_options(collect, (*_speaking, *_coding))


server_option = click.option(
    "--server",
    metavar="URL",
    help="Use this server, with the token in STANDFAST_TOKEN, instead of the data directory.",
)

session_option = click.option(
    "--session-id",
    metavar="S",
    help="The session of the code.  [default: typescript, cpython or auto for those engines, else default]",
)


def session_or_usual(session_id: str | None, language: str, engine: str | None) -> str:
    """Return *session_id*, or the default session of the engine."""
    if session_id is not None:
        return session_id
    if language == "typescript":
        return "typescript"
    return "default" if engine in (None, "monty") else str(engine)


inputs_option = click.option(
    "--inputs", type=JsonParameter(dict), metavar="JSON", help="Variables of this run, as a JSON object."
)
