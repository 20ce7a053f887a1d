"""The files that a jail shows: the interpreter, its library, what they link to, and chosen packages."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standfast.errors import CodeExecutionUnavailable, InvalidArgument

GUEST: Final = str(Path(__file__).parent / "guest")
_PICKLER: Final = "cloudpickle"
_OTHERS_PACKAGES: Final = ("site-packages", "dist-packages")
_LIBRARY_DIRS: Final = ("/lib64", "/usr/lib64", "/lib/{arch}", "/usr/lib/{arch}")
_LIBRARY_FILES: Final = ("/lib/ld-linux-aarch64.so.1", "/etc/ld.so.cache")
_DATA: Final = ("/usr/share/zoneinfo",)


@dataclass(frozen=True, slots=True)
class Package:
    """A package that guest code may import: the file it begins with, and what must be readable for that."""

    name: str
    file: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that runs guest code: the host's own, without its packages."""

    executable: str
    library: str
    shared: tuple[str, ...]

    def hidden(self) -> Iterator[str]:
        """Directories of packages inside of its library."""
        yield from (path for name in _OTHERS_PACKAGES if os.path.isdir(path := f"{self.library}/{name}"))

    def parts(self) -> Iterator[str]:
        """What its library consists of, without those."""
        hidden = set(self.hidden())
        yield from (entry.path for entry in os.scandir(self.library) if entry.path not in hidden)


@functools.lru_cache(maxsize=1)
def interpreter() -> Interpreter:
    """Return the interpreter and the libraries of the system that it may need."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    library = sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})
    arch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    shared = [path.format(arch=arch) for path in _LIBRARY_DIRS]
    where, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and where and name:
        shared.insert(0, os.path.join(where, name))
    with contextlib.suppress(OSError):  # where this process has its C library from
        maps = Path("/proc/self/maps").read_text().splitlines()
        for path in {line.split(maxsplit=5)[5] for line in maps if line.count(" ") > 5 and ".so" in line}:
            if os.path.basename(path).startswith(("libc.", "libc-", "ld-")):
                shared.append(os.path.dirname(path))
    existing = dict.fromkeys(path for path in (*shared, *_LIBRARY_FILES, *_DATA) if os.path.exists(path))
    return Interpreter(os.path.realpath(base), os.path.realpath(library), tuple(existing))


def packages_of(names: Sequence[str]) -> list[Package]:
    """Return the chosen packages, as the host has them, and the one that the guest itself needs."""
    try:
        pickler = _package(_PICKLER)
    except InvalidArgument:
        raise CodeExecutionUnavailable(
            "full Python needs the package cloudpickle", hint="pip install 'standfast[cpython]'"
        ) from None
    return [pickler, *(_package(name) for name in dict.fromkeys(names) if name != _PICKLER)]


def _package(name: str) -> Package:
    if not name.isidentifier():
        raise InvalidArgument(f"{name!r} is not the name of a package")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        raise InvalidArgument(
            f"there is no package {name!r} that guest code could be given",
            hint="install it where Standfast runs; the standard library need not be listed",
        )
    file = os.path.realpath(spec.origin)
    main = os.path.dirname(file) if spec.submodule_search_locations else file
    libraries = os.path.join(os.path.dirname(main), f"{name}.libs")  # where wheels put shared libraries
    return Package(name, file, (main, libraries) if os.path.isdir(libraries) else (main,))
