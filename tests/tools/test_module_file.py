"""Python files that are loaded by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.tools.module_file import load_file


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Restore `sys.path` and `sys.modules` after every test."""
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def written(root: Path, **files: str) -> Path:
    """Write files; `__` in a name separates directories."""
    for name, text in files.items():
        file = root.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def package(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "__init__.py").touch()


def test_a_file_in_a_package_may_use_relative_imports(tmp_path: Path) -> None:
    """Bug: `from .models import RATE` failed, because the file was loaded as a module without a package."""
    package(tmp_path, "desk", "desk/inner")
    written(
        tmp_path,
        desk__tools="from .models import RATE\nfrom .inner.deep import DEEP\nfrom . import models\n",
        desk__models="RATE = 5\n",
        desk__inner__deep="from ..models import RATE\nDEEP = RATE + 1\n",
    )
    module = load_file(tmp_path / "desk" / "tools.py")
    assert (module.__name__, module.RATE, module.DEEP) == ("desk.tools", 5, 6)
    inner = load_file(tmp_path / "desk" / "inner" / "deep.py")
    assert (inner.__name__, inner.DEEP) == ("desk.inner.deep", 6)


def test_relative_and_absolute_imports_of_a_package_give_one_module(tmp_path: Path) -> None:
    """Ours: a class that is loaded twice would be two classes."""
    package(tmp_path, "shop")
    written(
        tmp_path,
        shop__tools="from .models import Order as one\nfrom shop.models import Order as other\n",
        shop__models="class Order: pass\n",
    )
    module = load_file(tmp_path / "shop" / "tools.py")
    assert module.one is module.other


def test_a_file_may_import_its_neighbours_without_a_package(tmp_path: Path) -> None:
    """Bug: importing a neighbouring file, relatively or by name, failed without an `__init__.py`."""
    written(
        tmp_path,
        desk__tools="from .models_a import RATE\nimport models_b\n",
        desk__models_a="RATE = 5\n",
        desk__models_b="",
    )
    assert load_file(tmp_path / "desk" / "tools.py").RATE == 5


def test_two_files_of_the_same_name_are_two_modules(tmp_path: Path) -> None:
    """Ours: `--tools a/tools.py --tools b/tools.py` loads both files."""
    written(tmp_path, a__tools="from .rate import RATE\n", a__rate="RATE = 1\n",
            b__tools="from .rate import RATE\n", b__rate="RATE = 2\n")  # fmt: skip
    assert [load_file(tmp_path / name / "tools.py").RATE for name in "ab"] == [1, 2]


def test_a_file_is_executed_again_on_every_load(tmp_path: Path) -> None:
    """Ours: a user who edits a file and loads it again expects the new text."""
    file = written(tmp_path, tools="X = 1\n") / "tools.py"
    assert load_file(file).X == 1
    file.write_text("X = 22\n")
    assert load_file(file).X == 22


def test_a_package_with_the_name_of_another_module_is_refused(tmp_path: Path) -> None:
    """Ours: the package must not replace the other module, or vice versa."""
    package(tmp_path, "json")
    written(tmp_path, json__tools="")
    with pytest.raises(ImportError, match="has the name of another module"):
        load_file(tmp_path / "json" / "tools.py")


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ours: the next attempt starts from scratch."""
    package(tmp_path, "broken")
    written(tmp_path, broken__tools="raise RuntimeError('no')\n")
    with pytest.raises(RuntimeError):
        load_file(tmp_path / "broken" / "tools.py")
    assert "broken.tools" not in sys.modules


def test_a_neighbour_does_not_hide_an_installed_module(tmp_path: Path) -> None:
    """Ours: a file named like a module of the standard library does not replace that module."""
    written(tmp_path, tools="import fractions\nX = fractions.Fraction(1, 2)\n", fractions="")
    assert load_file(tmp_path / "tools.py").X == 0.5
