"""What a command line grants to guest code: tools, mounts, hosts and packages.

A run that waits for a person remembers its grants as a plain record, so that whoever decides need not
repeat them. Rule: paths are absolute in it, because the decision may come from another directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from standfast.runtime.blocking import BlockingSandbox
    from standfast.runtime.sandbox import SandboxOptions
    from standfast.tools.registered_tool import RegisteredTool


@dataclass(frozen=True, slots=True)
class Grants:
    """Tool files, mounts (virtual path → directory, writable), hosts and packages."""

    tools: tuple[str, ...] = ()
    mounts: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    allow_hosts: tuple[str, ...] = ()
    allow_private_hosts: bool = False
    packages: tuple[str, ...] = ()
    mount_max_bytes: int | None = None
    mount_max_files: int | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Grants:
        """The grants that a waiting run was made with."""
        mounts = record.get("mounts", {})
        return cls(
            tools=tuple(record.get("tools", ())),
            mounts={virtual: (path, writable) for virtual, (path, writable) in mounts.items()},
            allow_hosts=tuple(record.get("allow_hosts", ())),
            allow_private_hosts=bool(record.get("allow_private_hosts", False)),
            packages=tuple(record.get("packages", ())),
            mount_max_bytes=record.get("mount_max_bytes"),
            mount_max_files=record.get("mount_max_files"),
        )

    def record(self) -> dict[str, Any]:
        return {
            "tools": list(self.tools),
            "mounts": {virtual: [path, writable] for virtual, (path, writable) in self.mounts.items()},
            "allow_hosts": list(self.allow_hosts),
            "allow_private_hosts": self.allow_private_hosts,
            "packages": list(self.packages),
            **{name: value for name, value in self._quota().items() if value is not None},
        }

    def _quota(self) -> dict[str, int | None]:
        return {"mount_max_bytes": self.mount_max_bytes, "mount_max_files": self.mount_max_files}

    def over(self, recorded: Grants) -> Grants:
        """These on top of recorded ones: tool files replace, the rest adds."""
        return Grants(
            tools=self.tools or recorded.tools,
            mounts={**recorded.mounts, **self.mounts},
            allow_hosts=tuple(dict.fromkeys((*recorded.allow_hosts, *self.allow_hosts))),
            allow_private_hosts=self.allow_private_hosts or recorded.allow_private_hosts,
            packages=tuple(dict.fromkeys((*recorded.packages, *self.packages))),
            mount_max_bytes=_either(self.mount_max_bytes, recorded.mount_max_bytes),
            mount_max_files=_either(self.mount_max_files, recorded.mount_max_files),
        )

    def options(
        self, data_dir: Path | None, language: str = "python", engine: str | None = None
    ) -> SandboxOptions:
        """The sandbox options that grant this. Raises `StandfastError` for what cannot be granted."""
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
    data_dir: Path | None, grants: Grants, language: str = "python", engine: str | None = None
) -> BlockingSandbox:
    """A sandbox, not yet open, with what the command line grants; what it cannot grant is wrong usage."""
    from standfast.runtime.blocking import BlockingSandbox

    with wrong_grants_are_wrong_usage():
        return BlockingSandbox(grants.options(data_dir, language, engine), interruptible=True)


def make_recorded_sandbox(data_dir: Path, grants: Grants, recorded: Mapping[str, Any]) -> BlockingSandbox:
    """A sandbox like the one that a waiting run was made in; it cannot be had is an error, not usage."""
    from standfast.runtime.blocking import BlockingSandbox

    if grants.tools:
        with wrong_grants_are_wrong_usage():
            Grants(tools=grants.tools).options(None)
    options = grants.over(Grants.from_record(recorded)).options(data_dir)
    return BlockingSandbox(options, interruptible=True)


@contextmanager
def wrong_grants_are_wrong_usage() -> Iterator[None]:
    from standfast.errors import StandfastError

    try:
        yield
    except StandfastError as error:
        raise click.UsageError(str(error)) from None


def parse_mount(text: str) -> tuple[str, tuple[str, bool]]:
    """`/virt=dir`, `/virt=dir:ro` or `/virt=dir:rw`."""
    virtual, separator, path = text.partition("=")
    if not separator or not virtual.startswith("/") or not path:
        raise click.UsageError(f"--mount {text!r} must look like /virt=dir or /virt=dir:rw")
    writable = path.endswith(":rw")
    directory = Path(path.removesuffix(":rw").removesuffix(":ro")).expanduser().absolute()
    if not directory.is_dir():
        raise click.UsageError(f"--mount {virtual}: there is no directory {directory}")
    return virtual, (str(directory), writable)


def load_tools(file: str) -> list[RegisteredTool]:
    """The `@tool` functions that a Python file defines."""
    from standfast.errors import NotConfigured
    from standfast.tools.decorator import collect_tools

    found = collect_tools(vars(_load_module(Path(file))).values())
    if not found:
        raise NotConfigured(f"{file} defines no tools", hint="decorate a function with @standfast.tool")
    return found


def _load_module(file: Path) -> ModuleType:
    from standfast.errors import NotConfigured
    from standfast.tools.module_file import load_file

    if not file.is_file():
        raise NotConfigured(f"the tools file {file} is gone", hint="say where it is now with --tools FILE.py")
    try:
        return load_file(file)
    except (Exception, SystemExit) as error:
        raise NotConfigured(
            f"the tools file {file} cannot be loaded: {type(error).__name__}: {error}{_where(error, file)}"
        ) from error


def _where(error: BaseException, file: Path) -> str:
    """The line of the tools file that raised, where it is known."""
    line = None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(file):
            line = step.tb_lineno
        step = step.tb_next
    return f" (line {line})" if line is not None else ""
