"""Serialization of a session's variables between runs, to bytes that only a jail ever reads.

Rules
-----
1. Functions and classes that guest code defined are pickled by value, modules by name. A loaded function uses
   the loaded session's global names, and functions that shared a variable share it again.
2. Values that cannot be stored (generators, open files, locks, objects that cannot be unpickled) are dropped
   from the pickle and from the running process, so a session does not depend on whether its process survives.
3. All names are in one pickle, so that an object with two names remains one object.
4. Stored pickles refer to the functions named `make_` and `fill_`, so these must keep their names.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import io
import pickle
import random
import sys
import types
from collections.abc import Iterator
from typing import IO, Any, Final

import cloudpickle  # type: ignore[import-untyped]
from cloudpickle import cloudpickle as _parts

from . import TRIED_BYTES

_HIDDEN: Final = frozenset({
    "__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__", "__annotations__",
})  # fmt: skip
_DEPTH: Final = 6_000
_SHOWN: Final = 60
_EMPTY: Final = "empty"
_INERT: Final = frozenset(
    {types.ModuleType, types.CodeType, types.BuiltinFunctionType, type(None), type(...)}
)
_CACHED: Final = type(functools.lru_cache(len))
_PLAIN_CONTEXT: Final = repr(decimal.DefaultContext)
_parts._get_or_create_tracker_id = lambda cls: None
"""Disables random ids of classes: runs replay the same randomness, so two classes could get the same id."""

Names = dict[str, Any]
_loading: dict[str, Any] = {}


def pack(names: Names, chance: object) -> tuple[bytes, list[str], bool, list[str]]:
    """Return the session as bytes, its names, whether it is plain data, and notes on dropped variables."""
    # Two modules have state that belongs to a session: the context of `decimal`, and *chance*, that of
    # `random`.
    with _deep_recursion():
        for name in [name for name in names if type(name) is not str or not name.isidentifier()]:
            del names[name]
        kept = {name: value for name, value in names.items() if name not in _HIDDEN}
        extras: Names = {} if chance is None else {"random": chance}
        context = decimal.getcontext()
        if repr(context) != _PLAIN_CONTEXT:
            extras = {"decimal": context, **extras}
        notes: list[str] = []
        try:
            data, plain = _pack((kept, extras), names)
        except MemoryError:
            raise
        except BaseException:
            notes = _drop_what_cannot_stay(kept, names)
            data, plain = _pack((kept, extras), names)
        return data, sorted(kept), plain, notes


def unpack(file: IO[bytes], names: Names) -> bool:
    """Load the packed variables into *names*; return whether the state of `random` was packed with them."""
    with _deep_recursion():
        kept, extras = _unpickled(file, names)
        names.update(kept)
        if "decimal" in extras:
            decimal.setcontext(extras["decimal"])
        if "random" in extras:
            random.setstate(extras["random"])
        return "random" in extras


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)


def _unpickled(file: IO[bytes], names: Names) -> Any:
    """Load a pickle, whose functions get *names* as their globals."""
    _loading.update(names=names, cells={})
    try:
        return pickle.load(file)  # noqa: S301 - this is the jail
    finally:
        _loading.clear()


def _pack(what: object, names: Names) -> tuple[bytes, bool]:
    """Pickle *what*; unless it is plain data or large, also check that it can be loaded."""
    with io.BytesIO() as file:
        packer = _Packer(file, names)
        packer.dump(what)
        data = file.getvalue()
    if not packer.plain and len(data) <= TRIED_BYTES:
        _unpickled(io.BytesIO(data), {"__name__": "__main__", "__builtins__": names["__builtins__"]})
    return data, packer.plain


def _drop_what_cannot_stay(kept: Names, names: Names) -> list[str]:
    notes = []
    for name, value in list(kept.items()):
        try:
            _pack(value, names)
        except MemoryError:
            raise
        except BaseException as error:
            del kept[name]
            names.pop(name, None)
            why = type(error).__name__
            with contextlib.suppress(Exception):
                why = str(error)[:_SHOWN].encode("utf-8", "replace").decode() or why
            notes.append(f"{name} ({type(value).__name__}) cannot be kept between runs: {why}")
    return notes


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles definitions of guest code by value. `plain` is false if it met an instance of another class."""

    def __init__(self, file: io.BytesIO, names: Names) -> None:
        super().__init__(file, protocol=5)
        self.plain = True
        self._names = names
        self._cells: dict[int, tuple[int, object]] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType:
            if obj.__globals__ is self._names:
                return self._reduce_function(obj)
            return super().reducer_override(obj)
        if issubclass(kind, type):
            return super().reducer_override(obj)
        if kind in _INERT:
            return NotImplemented
        self.plain = False
        if isinstance(obj, BaseException):  # recreated without `__init__`, whose arguments are not recorded
            state = (obj.args, obj.__dict__, obj.__cause__, obj.__suppress_context__)
            return make_exception, (kind, obj.args), state, None, None, fill_exception
        if kind is _CACHED:
            return make_cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, io.IOBase) and not isinstance(obj, (io.StringIO, io.BytesIO)):
            raise TypeError("it is an open file")
        return super().reducer_override(obj)

    def _reduce_function(self, function: types.FunctionType) -> Any:
        closure = function.__closure__ or ()
        contents: list[tuple[int, str, Any]] = []
        for cell in closure:
            if id(cell) not in self._cells:
                key = len(self._cells)
                self._cells[id(cell)] = (key, cell)
                try:
                    contents.append((key, "value", cell.cell_contents))
                except ValueError:
                    contents.append((key, _EMPTY, None))
        keys = tuple(self._cells[id(cell)][0] for cell in closure)
        state = {
            "defaults": function.__defaults__,
            "kwdefaults": function.__kwdefaults__,
            "annotations": function.__annotations__,
            "doc": function.__doc__,
            "qualname": function.__qualname__,
            "module": function.__module__,
            "dict": function.__dict__,
            "cells": contents,
        }
        made = (function.__code__, function.__name__, keys)
        return make_function, made, state, None, None, fill_function


def make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    """Wrap *function* in an `lru_cache` with these *parameters* and an empty cache."""
    return functools.lru_cache(**parameters)(function)


def make_function(code: types.CodeType, name: str, keys: tuple[int, ...]) -> types.FunctionType:
    """Create a function whose globals are those of the session that is being loaded."""
    cells = _loading["cells"]
    closure = tuple(cells.setdefault(key, types.CellType()) for key in keys)
    return types.FunctionType(code, _loading["names"], name, None, closure or None)


def fill_function(function: Any, state: Names) -> None:
    """Set the attributes and closure of a function; they may refer to the function itself."""
    function.__dict__.update(state["dict"])
    for name in ("defaults", "kwdefaults", "annotations", "doc", "qualname", "module"):
        setattr(function, f"__{name}__", state[name])
    for key, filled, value in state["cells"]:
        if filled != _EMPTY:
            _loading["cells"][key].cell_contents = value


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


def fill_exception(error: BaseException, state: tuple[Any, ...]) -> None:
    error.args, others, error.__cause__, error.__suppress_context__ = state
    error.__dict__.update(others)
