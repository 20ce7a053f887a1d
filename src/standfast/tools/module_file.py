"""Loads a Python file by its path, such as `desk/tools.py`, so that its imports work.

A file in a package (a directory with `__init__.py`) is loaded under its name in that package; for any other
file, its directory is treated as a package with a generated name. So relative imports find neighbouring
files. `import neighbour` works in both cases, as in a script: directories are appended to `sys.path`, where
they never hide an installed module.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


def load_file(file: Path) -> ModuleType:
    """Run the file as a module of its package and return the module; raise `ImportError` on failure."""
    file = file.absolute()
    package = _package_of(file)
    name = f"{package}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    _extend_path(file.parent)
    return _run(spec, sys.modules.get(name))


def _run(spec: ModuleSpec, before: ModuleType | None) -> ModuleType:
    """Run a module; if that fails, restore the earlier module of the same name."""
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[spec.name]
        else:
            sys.modules[spec.name] = before
        raise
    return module


def _package_of(file: Path) -> str:
    """Import or create the package that the file is in, and return its name."""
    directory = file.parent
    if not (directory / "__init__.py").is_file():  # create a package whose modules are the directory's files
        name = f"standfast_files_{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(directory)]
            sys.modules[name] = package
        return name
    names = [directory.name]
    while (directory.parent / "__init__.py").is_file():
        directory = directory.parent
        names.insert(0, directory.name)
    _require_package(directory)
    _extend_path(directory.parent)
    name = ".".join(names)
    importlib.import_module(name)
    return name


def _require_package(directory: Path) -> None:
    """Import the package in *directory* under its name, even if `sys.path` finds another of that name."""
    name = directory.name
    if not name.isidentifier():
        raise ImportError(f"the directory {directory} has an __init__.py, but its name cannot be imported")
    known = sys.modules.get(name)
    if known is None:
        spec = importlib.util.spec_from_file_location(
            name, directory / "__init__.py", submodule_search_locations=[str(directory)]
        )
        assert spec is not None
        _run(spec, None)
    elif str(directory) not in getattr(known, "__path__", ()):
        where = getattr(known, "__file__", None) or "built in"
        raise ImportError(f"the package {name} in {directory} has the name of another module ({where})")


def _extend_path(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
