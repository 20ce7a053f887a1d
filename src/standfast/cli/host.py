"""The grants of a command line to guest code, as a waiting run records them.

Rule: recorded paths are absolute, because the process that decides may have another working directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from standfast.runtime.blocking import BlockingSandbox
    from standfast.runtime.sandbox import SandboxOptions
    from standfast.tools.registered_tool import RegisteredTool


class SandboxGrants(msgspec.Struct, frozen=True):
    """Tool files, mounts (virtual path → directory, writable), hosts and packages."""

    tools: tuple[str, ...] = ()
    mounts: dict[str, tuple[str, bool]] = {}
    allow_hosts: tuple[str, ...] = ()
    allow_private_hosts: bool = False
    packages: tuple[str, ...] = ()
    mount_max_bytes: int | None = None
    mount_max_files: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> SandboxGrants:
        """Read the grants of a waiting run."""
        return msgspec.convert(record, cls)

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}

    def over(self, recorded: SandboxGrants) -> SandboxGrants:
        """Merge these over *recorded* grants: tool files replace, everything else adds."""
        return SandboxGrants(
            tools=self.tools or recorded.tools,
            mounts={**recorded.mounts, **self.mounts},
            allow_hosts=tuple(dict.fromkeys((*recorded.allow_hosts, *self.allow_hosts))),
            allow_private_hosts=self.allow_private_hosts or recorded.allow_private_hosts,
            packages=tuple(dict.fromkeys((*recorded.packages, *self.packages))),
            mount_max_bytes=_either(self.mount_max_bytes, recorded.mount_max_bytes),
            mount_max_files=_either(self.mount_max_files, recorded.mount_max_files),
        )

    def options(
        self, data_dir: Path | str | None, language: str = "python", engine: str | None = None
    ) -> SandboxOptions:
        """Return sandbox options with these grants; raise `StandfastError` if one cannot be granted."""
        from standfast.runtime.sandbox import SandboxOptions
        from standfast.tools.builtin.mounts import MOUNT_MAX_BYTES, MOUNT_MAX_FILES, Mount

        return SandboxOptions(
            tools=[tool for file in self.tools for tool in load_tools(file)],
            mounts={
                virtual: Mount(
                    path,
                    writable,
                    max_bytes=_either(self.mount_max_bytes, MOUNT_MAX_BYTES),
                    max_files=_either(self.mount_max_files, MOUNT_MAX_FILES),
                )
                for virtual, (path, writable) in self.mounts.items()
            },
            allow_hosts=self.allow_hosts,
            allow_private_hosts=self.allow_private_hosts,
            packages=self.packages,
            language=language,
            engine=engine,
            data_dir=data_dir,
            host=self.record(),
        )


def _either(given: int | None, otherwise: int | None) -> int | None:
    return otherwise if given is None else given


def make_sandbox(
    data_dir: Path | str | None, grants: SandboxGrants, language: str = "python", engine: str | None = None
) -> BlockingSandbox:
    """Return an unopened sandbox with *grants*; raise `UsageError` if one cannot be granted."""
    from standfast.runtime.blocking import BlockingSandbox

    with wrong_grants_are_wrong_usage():
        return BlockingSandbox(grants.options(data_dir, language, engine), interruptible=True)


def make_recorded_sandbox(
    data_dir: Path | str, grants: SandboxGrants, recorded: Mapping[str, Any]
) -> BlockingSandbox:
    """Return a sandbox with *grants* over the *recorded* ones of a waiting run."""
    from standfast.runtime.blocking import BlockingSandbox

    if grants.tools:
        with wrong_grants_are_wrong_usage():
            SandboxGrants(tools=grants.tools).options(None)
    options = grants.over(SandboxGrants.from_record(recorded)).options(data_dir)
    return BlockingSandbox(options, interruptible=True)


@contextmanager
def wrong_grants_are_wrong_usage() -> Iterator[None]:
    from standfast.errors import StandfastError

    try:
        yield
    except StandfastError as error:
        raise click.UsageError(str(error)) from None


def parse_mount(text: str) -> tuple[str, tuple[str, bool]]:
    """Parse `/virt=dir`, `/virt=dir:ro` or `/virt=dir:rw`."""
    virtual, separator, path = text.partition("=")
    if not separator or not virtual.startswith("/") or not path:
        raise click.UsageError(f"--mount {text!r} must look like /virt=dir or /virt=dir:rw")
    writable = path.endswith(":rw")
    directory = Path(path.removesuffix(":rw").removesuffix(":ro")).expanduser().absolute()
    if not directory.is_dir():
        raise click.UsageError(f"--mount {virtual}: there is no directory {directory}")
    return virtual, (str(directory), writable)


def load_tools(file: str) -> list[RegisteredTool]:
    """Return the `@tool` functions of a Python file."""
    from standfast.errors import NotConfigured
    from standfast.tools.decorator import collect_tools
    from standfast.tools.module_file import load_file

    if not Path(file).is_file():
        raise NotConfigured(f"there is no tools file {file}", hint="pass its new path with --tools FILE.py")
    try:
        module = load_file(Path(file))
    except (Exception, SystemExit) as error:
        where, step = "", error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == file:
                where = f" (line {step.tb_lineno})"
            step = step.tb_next
        raise NotConfigured(
            f"the tools file {file} cannot be loaded: {type(error).__name__}: {error}{where}"
        ) from error
    found = collect_tools(vars(module).values())
    if not found:
        raise NotConfigured(f"{file} defines no tools", hint="decorate a function with @standfast.tool")
    return found
