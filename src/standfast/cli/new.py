"""`standfast new`: start a project of your own from a working example. No file is overwritten."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template

import click

from standfast.cli.options import Invocation, answers, inherited_options
from standfast.cli.output import CommandOutput, console

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_SECTION = re.compile(r"^==> (.+) <==\n", re.MULTILINE)
_MAX_NAME = 40
_TAKEN = {
    "Agent", "False", "None", "Path", "Plugin", "PluginActionContext", "PromptHookContext", "Runtime",
    "ScriptedModel", "ToolMessage", "ToolResultHookContext", "True",
}  # fmt: skip
"""The names that the template uses, and Python's own."""


@click.group("new", epilog="\b\nExample:\n  standfast new plugin greeter\n")
@inherited_options
def command() -> None:
    """Start a project of your own from a working example."""


@command.command(
    "plugin",
    epilog="""\b
Examples:
  standfast new plugin greeter
  standfast new plugin greeter --dir ~/src/greeter
""",
)
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to create; if it exists, it must be empty.  [default: ./NAME]",
)
@answers
def new_plugin(_: Invocation, *, name: str, folder: Path | None) -> CommandOutput:
    """Write a plugin package with a test that passes.

    NAME is the name that agents use, such as greeter or word-count. The package has a pyproject.toml with
    the entry point, so that the plugin is found once the package is installed.
    """
    from standfast.errors import InvalidArgument
    from standfast.plugins.discovery import installed_plugins

    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise InvalidArgument(
            f"{name[:80]!r} cannot be the name of a plugin",
            hint=f"use at most {_MAX_NAME} lower-case letters and digits, in words separated by '-'",
        )
    for one in installed_plugins():
        if one.name == name:
            raise InvalidArgument(
                f"plugin {name!r} already exists, in package {one.package}",
                hint="choose another name",
            )
    folder = Path(name) if folder is None else folder.expanduser()
    camel = "".join(word.capitalize() for word in name.split("-"))
    words = {
        "name": name,
        "snake": name.replace("-", "_"),
        "module": f"standfast_{name.replace('-', '_')}",
        "cls": f"{camel}Plugin" if camel in _TAKEN else camel,
    }
    text = Path(__file__).with_name("new_plugin.template").read_text(encoding="utf-8")
    sections = _SECTION.split(Template(text).substitute(words))[1:]
    files = dict(zip(sections[::2], sections[1::2], strict=True))
    _write(folder, files)
    steps = [
        f"cd {shlex.quote(str(folder))}",
        "pip install -e '.[dev]'",
        "pytest",
        f"standfast plugins show {name}",
    ]

    def show() -> None:
        written = [f"created a working plugin in {folder}:", *(f"  {path}" for path in files)]
        for line in (*written, "Next:", *(f"  {step}" for step in steps)):
            console().print(line, soft_wrap=True)

    return CommandOutput({"name": name, "folder": str(folder), "files": list(files), "next": steps}, show)


def _write(folder: Path, files: dict[str, str]) -> None:
    from standfast.errors import InvalidArgument

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidArgument(f"{folder} is not empty", hint="choose another folder with --dir DIR")
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be written: {error.strerror or error}") from None
