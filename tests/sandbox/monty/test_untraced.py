"""The engine's search for a tracer is answered only for the engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.sandbox.monty import workers as module
from standfast.sandbox.monty.workers import untraced

TRACER = "tracer_that_is_never_installed"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a process in which nothing has been fed yet, and whose engine looks for a missing package."""
    monkeypatch.setattr(module, "_TRACER", TRACER)
    monkeypatch.setattr(module, "_is_absent", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    sys.modules.pop(TRACER, None)


def seen() -> list[str]:
    """Return the names that are searched for while the engine is fed."""
    found: list[str] = []

    class Spy:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            found.append(name)

    untraced(lambda: None)()  # the engine looks only once
    sys.meta_path.append(Spy())
    try:
        with pytest.raises(ModuleNotFoundError):
            untraced(lambda: importlib.import_module(TRACER))()
    finally:
        sys.meta_path.pop()
    return found


def test_the_engine_does_not_search_for_a_tracer_that_does_not_exist(fresh: None) -> None:
    """Ours: the search through the import path took longer than feeding."""
    assert seen() == []


def test_other_importers_search_as_before(fresh: None, tmp_path: Path) -> None:
    """Ours: a package that is installed later is found."""
    assert seen() == []
    (tmp_path / f"{TRACER}.py").write_text("here = True\n")
    sys.path.insert(0, str(tmp_path))
    try:
        assert importlib.import_module(TRACER).here
    finally:
        sys.path.remove(str(tmp_path))


def test_a_tracer_that_exists_is_found(fresh: None, tmp_path: Path) -> None:
    """Ours: a trace continues in the guest."""
    (tmp_path / f"{TRACER}.py").write_text("here = True\n")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    try:
        assert untraced(lambda: importlib.import_module(TRACER).here)()
    finally:
        sys.path.remove(str(tmp_path))


def test_an_exception_while_feeding_is_raised(fresh: None) -> None:
    """Ours: the next caller must not inherit the state of the failed one."""
    with pytest.raises(ZeroDivisionError):
        untraced(lambda: 1 // 0)()
    assert not module._feeding
