"""What a session holds between runs, as bytes that only a jail ever reads.

Rules
-----
1. Functions and classes that code defined are kept by value, modules by their name. A function of the session
   finds the session's names again, and functions that share a variable share it again.
2. What cannot be kept (generators, open files, locks, objects that do not load) is dropped, here and in the
   process: a session is the same whether its process lives on or not.
3. All names are in one pickle, so that what two names share stays shared.
"""

from __future__ import annotations

import decimal
import functools
import io
import pickle
import random
import sys
import types
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
_parts._get_or_create_tracker_id = lambda cls: None
"""Ids for classes come of chance, which is the run's own; two classes must not get the same."""

Names = dict[str, Any]
_loading: dict[str, Any] = {}


def pack(names: Names, chance: object) -> tuple[bytes, list[str], bool, list[str]]:
    """The session as bytes, its names, whether all of it is plain data, and what was dropped and why."""
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEPTH)
    try:
        for name in [name for name in names if type(name) is not str or not name.isidentifier()]:
            del names[name]
        kept = {name: value for name, value in names.items() if name not in _HIDDEN}
        extras = _extras(chance)
        notes: list[str] = []
        try:
            data, plain = _pack((kept, extras), names)
        except MemoryError:
            raise
        except BaseException:
            notes = _drop_what_cannot_stay(kept, names)
            data, plain = _pack((kept, extras), names)
        return data, sorted(kept), plain, notes
    finally:
        sys.setrecursionlimit(depth)


def unpack(file: IO[bytes], names: Names) -> bool:
    """Fill *names* with what was packed; tells whether chance goes on from there."""
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEPTH)
    try:
        kept, extras = _unpickled(file, names)
        names.update(kept)
        if "decimal" in extras:
            decimal.setcontext(extras["decimal"])
        if "random" in extras:
            random.setstate(extras["random"])
        return "random" in extras
    finally:
        sys.setrecursionlimit(depth)


def _unpickled(file: IO[bytes], names: Names) -> Any:
    """What was pickled; its functions see *names*."""
    _loading.update(names=names, cells={})
    try:
        return pickle.load(file)  # noqa: S301 - this is the jail
    finally:
        _loading.clear()


def _extras(chance: object) -> Names:
    """What modules remember and a session would miss: how decimals are rounded, how chance goes on."""
    extras: Names = {}
    context = decimal.getcontext()
    if repr(context) != _PLAIN_CONTEXT:
        extras["decimal"] = context
    if chance is not None:
        extras["random"] = chance
    return extras


_PLAIN_CONTEXT: Final = repr(decimal.DefaultContext)


def _pack(what: object, names: Names) -> tuple[bytes, bool]:
    """Pickle, and see that what is no plain data can be had back, unless that takes too long."""
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
            notes.append(f"{name} ({type(value).__name__}) cannot be kept between runs: {_why(error)}")
    return notes


def _why(error: BaseException) -> str:
    try:
        return str(error)[:_SHOWN].encode("utf-8", "replace").decode() or type(error).__name__
    except Exception:
        return type(error).__name__


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
        if isinstance(obj, BaseException):
            return _reduce_exception(obj)
        if kind is _CACHED:
            return make_cached, (obj.__wrapped__, obj.cache_parameters())
        if isinstance(obj, io.IOBase) and not isinstance(obj, (io.StringIO, io.BytesIO)):
            raise TypeError("it is an open file")
        return super().reducer_override(obj)

    def _reduce_function(self, function: types.FunctionType) -> Any:
        closure = function.__closure__ or ()
        new = [cell for cell in closure if id(cell) not in self._cells]
        for cell in new:
            self._cells.setdefault(id(cell), (len(self._cells), cell))
        keys = tuple(self._cells[id(cell)][0] for cell in closure)
        contents = [(self._cells[id(cell)][0], *_contents(cell)) for cell in new]
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


_INERT: Final = frozenset(
    {types.ModuleType, types.CodeType, types.BuiltinFunctionType, type(None), type(...)}
)


_CACHED: Final = type(functools.lru_cache(len))


def make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    """A function that remembers its results, and has forgotten them."""
    return functools.lru_cache(**parameters)(function)


def _contents(cell: Any) -> tuple[str, Any]:
    try:
        return "value", cell.cell_contents
    except ValueError:
        return _EMPTY, None


def make_function(code: types.CodeType, name: str, keys: tuple[int, ...]) -> types.FunctionType:
    """A function of the session that is being loaded."""
    cells = _loading["cells"]
    closure = tuple(cells.setdefault(key, types.CellType()) for key in keys)
    return types.FunctionType(code, _loading["names"], name, None, closure or None)


def fill_function(function: Any, state: Names) -> None:
    """Give a function what may refer to it."""
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__annotations__ = state["annotations"]
    function.__doc__ = state["doc"]
    function.__qualname__ = state["qualname"]
    function.__module__ = state["module"]
    function.__dict__.update(state["dict"])
    for key, filled, value in state["cells"]:
        if filled != _EMPTY:
            _loading["cells"][key].cell_contents = value


def _reduce_exception(error: BaseException) -> Any:
    """An exception is made without its `__init__`, whose arguments nobody knows any more."""
    state = (error.args, error.__dict__, error.__cause__, error.__suppress_context__)
    return make_exception, (type(error), error.args), state, None, None, fill_exception


def make_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


def fill_exception(error: BaseException, state: tuple[Any, ...]) -> None:
    error.args = state[0]
    error.__dict__.update(state[1])
    error.__cause__ = state[2]
    error.__suppress_context__ = state[3]
