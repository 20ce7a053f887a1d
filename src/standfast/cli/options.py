"""Options that many commands share, and the frozen values they are handed over as."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.host import Grants, parse_mount
from standfast.cli.output import Answer, give, stdout_reserved

if TYPE_CHECKING:
    from standfast.runtime.agent_runtime import Runtime

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_TYPESCRIPT = (".ts", ".mts", ".cts")
_DATA_DIR = "standfast.data_dir"
_AS_JSON = "standfast.as_json"


@dataclass(frozen=True, slots=True)
class Invocation:
    """How this command was called: where its data is and how it should answer."""

    given_data_dir: Path | None
    as_json: bool
    program: str

    @property
    def data_dir(self) -> Path:
        from standfast.runtime.data_dir import default_data_dir

        return self.given_data_dir or default_data_dir()

    def beside(self, name: str) -> Path:
        """The file *name* that belongs to the data, such as the history of what was typed."""
        from standfast.runtime.data_dir import DataDir

        return DataDir(self.data_dir, make=False).beside(name)

    def with_runtime(self, work: Callable[[Runtime], Awaitable[T]]) -> T:
        """Run *work* over the sessions of the data directory; no agent is known, so that no turn runs."""
        import asyncio

        from standfast.runtime.agent_runtime import Runtime
        from standfast.runtime.data_dir import DataDir

        async def run() -> T:
            async with Runtime(DataDir(self.data_dir).database) as runtime:
                return await work(runtime)

        return asyncio.run(run())

    def command(self, *words: str) -> str:
        """The command line, for copying, that reaches the same data."""
        import shlex

        where = ("--data-dir", str(self.given_data_dir)) if self.given_data_dir else ()
        return f"{self.program} {shlex.join((*words, *where))}"


class JsonParameter(click.ParamType[Any]):
    """JSON text on the command line, of one of the kinds that make sense there."""

    name = "json"

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            decoded = json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            self.fail(f"this is not JSON: {error}", param, ctx)
        if not isinstance(decoded, self._kinds):
            self.fail(f"this must be {self._wanted()}", param, ctx)
        return decoded

    def _wanted(self) -> str:
        if list in self._kinds:
            return """an array or an object, such as '["A1", 100]' or '{"cents": 100}'"""
        return """an object, such as '{"name": 1}'"""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_shared = (
    click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document."),
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        metavar="DIR|FILE.db",
        help='Where sessions are kept: a directory, or the file of a Runtime("FILE.db").  '
        "[default: STANDFAST_HOME, else ~/.standfast]",
    ),
)


def _with_options(function: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in options:
        function = option(function)
    return function


def inherited_options(function: Callable[[], None]) -> Callable[..., None]:
    """`--json` and `--data-dir` on a group: they hold for the command below it."""

    @functools.wraps(function)
    def remember(as_json: bool, data_dir: Path | None) -> None:
        meta = click.get_current_context().meta
        meta[_AS_JSON] = as_json or meta.get(_AS_JSON, False)
        meta[_DATA_DIR] = data_dir or meta.get(_DATA_DIR)

    return _with_options(remember, _shared)


def answers(function: Callable[..., Answer]) -> Callable[..., None]:
    """Make a click callback of a function that takes an `Invocation` and returns an `Answer`.

    Whatever else is printed while a `--json` command works goes to standard error.
    """

    @functools.wraps(function)
    def callback(as_json: bool, data_dir: Path | None, **arguments: Any) -> None:
        context = click.get_current_context()
        invocation = Invocation(
            given_data_dir=data_dir or context.meta.get(_DATA_DIR),
            as_json=as_json or context.meta.get(_AS_JSON, False),
            program=context.find_root().info_name or "standfast",
        )
        with stdout_reserved(invocation.as_json):
            answer = _attempt(lambda: function(invocation, **arguments))
        give(answer, as_json=invocation.as_json)
        context.exit(answer.exit_status)

    return _with_options(callback, _shared)


def _attempt(work: Callable[[], Answer]) -> Answer:
    from standfast.errors import StandfastError

    try:
        return work()
    except StandfastError as error:
        return Answer.failed(error.error_object())


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
    """`--tools`, `--mount`, `--allow-host`, `--package` and so on, handed over as `grants`."""

    @functools.wraps(function)
    def collect(
        *args: Any,
        tools: tuple[str, ...],
        mounts: tuple[str, ...],
        allow_hosts: tuple[str, ...],
        allow_private_hosts: bool,
        packages: tuple[str, ...],
        mount_max_bytes: int | None,
        mount_max_files: int | None,
        **rest: Any,
    ) -> Any:
        grants = Grants(
            tools=tuple(str(Path(file).absolute()) for file in tools),
            mounts=dict(parse_mount(text) for text in mounts),
            allow_hosts=allow_hosts,
            allow_private_hosts=allow_private_hosts,
            packages=packages,
            mount_max_bytes=mount_max_bytes,
            mount_max_files=mount_max_files,
        )
        return function(*args, grants=grants, **rest)

    return _with_options(collect, _granting)


_speaking = (
    click.option(
        "--engine",
        type=click.Choice(["monty", "cpython", "auto"]),
        help="What runs Python: monty is fast, cpython is all of Python, auto begins on monty and moves to "
        "cpython when code needs it.  [default: monty, or the session's own]",
    ),
    click.option(
        "--language",
        type=click.Choice(["python", "typescript"]),
        help="What the code is written in.  [default: typescript for a file that ends in .ts, else python]",
    ),
)


def language_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--language` and `--engine`, handed over as they are; the language is Python unless it is given."""

    @functools.wraps(function)
    def collect(*args: Any, language: str | None, **rest: Any) -> Any:
        return function(*args, language=language or "python", **rest)

    return _with_options(collect, _speaking)


_coding = (
    click.argument("source", required=False, metavar="[-]"),
    click.option("-f", "--file", metavar="FILE", help="Code from a file."),
    click.option("-e", "--code", "text", metavar="CODE", help="Code as text."),
)


def code_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`-e CODE`, `-f FILE` or `-`, exactly one of them, handed over as `code`, and its `language`."""

    @functools.wraps(function)
    def collect(
        *args: Any, text: str | None, file: str | None, source: str | None, language: str | None, **rest: Any
    ) -> Any:
        if source not in (None, "-"):
            raise click.UsageError(f"{source!r} is not understood; for a file say -f {source}")
        if sum(given is not None for given in (text, file, source)) != 1:
            raise click.UsageError("give the code once: -e CODE, -f FILE, or - for standard input")
        code = text if text is not None else _read_code(file or "-")
        spoken = language or ("typescript" if file and file.endswith(_TYPESCRIPT) else "python")
        return function(*args, code=code, language=spoken, **rest)

    return _with_options(collect, (*_speaking, *_coding))


def _read_code(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{file} is not UTF-8 text") from None


session_option = click.option(
    "--session-id",
    metavar="S",
    help="Whose variables the code uses.  [default: default; typescript, cpython or auto where that runs it]",
)


def session_or_usual(session_id: str | None, language: str, engine: str | None) -> str:
    """The session that is meant: without a name, the one that each engine has of its own."""
    if session_id is not None:
        return session_id
    if language == "typescript":
        return "typescript"
    return "default" if engine in (None, "monty") else str(engine)


inputs_option = click.option(
    "--inputs", type=JsonParameter(dict), metavar="JSON", help="Variables of this run, as a JSON object."
)
