"""What a session holds between runs, as bytes that only a jail ever reads.

Rules
-----
1. Functions and classes that code defined are kept by value, modules by their name. A function of the session
   finds the session's names again, and functions that share a variable share it again.
2. What cannot be kept (generators, open files, locks, objects that do not load) is dropped, here and in the
   process: a session is the same whether its process lives on or not.
3. All names are in one pickle, so that what two names share stays shared.
4. Stored pickles name the `make_` and `fill_` functions.
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
"""Ids for classes come of chance, which is the run's own; two classes must not get the same."""

Names = dict[str, Any]
_loading: dict[str, Any] = {}


def pack(names: Names, chance: object) -> tuple[bytes, list[str], bool, list[str]]:
    """Return the session as bytes, its names, whether it is plain data, and what was dropped and why."""
    # Modules remember what a session would miss: how decimals are rounded, and how *chance* continues.
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
    """Fill *names* with what was packed; return whether that had the state of chance."""
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
    """Return what was pickled; its functions see *names*."""
    _loading.update(names=names, cells={})
    try:
        return pickle.load(file)  # noqa: S301 - this is the jail
    finally:
        _loading.clear()


def _pack(what: object, names: Names) -> tuple[bytes, bool]:
    """Pickle, and try to load what is no plain data, unless that takes too long."""
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
    """Pickles by value what code defined. `plain`: it met only data, functions, classes and modules."""

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
        if isinstance(obj, BaseException):  # made without its `__init__`, whose arguments are unknown by now
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
    """Return a function that caches its results, with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def make_function(code: types.CodeType, name: str, keys: tuple[int, ...]) -> types.FunctionType:
    """Return a function of the session that is being loaded."""
    cells = _loading["cells"]
    closure = tuple(cells.setdefault(key, types.CellType()) for key in keys)
    return types.FunctionType(code, _loading["names"], name, None, closure or None)


def fill_function(function: Any, state: Names) -> None:
    """Give a function what may refer to it."""
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
